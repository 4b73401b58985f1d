//! Reads files piece by piece: no command here holds more than a few pieces of a file in memory.

use crate::exit::{At, Outcome};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use tessera_hashgpu::digest::{Digest, Function, Hasher};

/// Bytes read at a time.
pub const PIECE_BYTES: usize = 16 << 20;

/// Opens the file for reading.
///
/// # Errors
/// The file cannot be opened.
pub fn open_file(path: &Path) -> Outcome<File> {
    File::open(path).at(path)
}

/// Appends up to `most` of the next bytes to `buffer`; returns their number, 0 at the end.
///
/// # Errors
/// The file cannot be read.
pub fn read_more(file: &mut File, path: &Path, most: usize, buffer: &mut Vec<u8>) -> Outcome<usize> {
    file.take(most as u64).read_to_end(buffer).at(path)
}

/// Length and digest of a file whose first bytes, `before`, have been read already; reads the rest.
///
/// # Errors
/// The file cannot be read.
pub fn digest_rest(function: Function, before: &[u8], file: &mut File, path: &Path) -> Outcome<(u64, Digest)> {
    let (mut hasher, mut bytes, mut piece) = (Hasher::new(function), before.len() as u64, Vec::new());
    hasher.update(before);
    while read_more(file, path, PIECE_BYTES, &mut piece)? > 0 {
        hasher.update(&piece);
        bytes += piece.len() as u64;
        piece.clear();
    }
    Ok((bytes, hasher.finish()))
}
