//! The same work on a mounted file system: the raw disk, or a peer.

use crate::{Reply, Small, small_files};
use bytes::Bytes;
use std::error::Error;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// Bytes of one `write` or `read` call.
const BLOCK_BYTES: usize = 1 << 20;

/// Writes `source` as one new file and syncs it.
pub fn write(path: &Path, source: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut file = File::create(path)?;
    for block in source.chunks(BLOCK_BYTES) {
        file.write_all(block)?;
    }
    file.sync_all()?;
    Ok(())
}

/// Reads a whole file of `sink.len()` bytes.
pub fn read(path: &Path, sink: &mut [u8]) -> Result<(), Box<dyn Error>> {
    let mut file = File::open(path)?;
    for block in sink.chunks_mut(BLOCK_BYTES) {
        file.read_exact(block)?;
    }
    match file.read(&mut [0])? {
        0 => Ok(()),
        _ => Err("the file is longer than what was written".into()),
    }
}

/// Reads a whole file of `len` bytes through one buffer, as a consumer does that works on what comes and lets it go.
pub fn take(path: &Path, len: usize) -> Result<(), Box<dyn Error>> {
    let mut file = File::open(path)?;
    let mut block = vec![0; BLOCK_BYTES];
    let mut taken = 0;
    loop {
        match file.read(std::hint::black_box(&mut block))? {
            0 if taken == len => return Ok(()),
            0 => return Err(format!("{taken} of {len} bytes came").into()),
            got => taken += got,
        }
    }
}

/// Small files, each synced before its writer goes on.
pub fn small(dir: &Path, args: Small, source: &Bytes) -> Reply {
    for writer in 0..args.writers {
        std::fs::create_dir_all(dir.join(format!("w{writer}")))?;
    }
    small_files(args, source, |writer, number, content| -> io::Result<()> {
        let mut file = File::create(dir.join(format!("w{writer}/f{number}")))?;
        file.write_all(&content)?;
        file.sync_all()
    })
}
