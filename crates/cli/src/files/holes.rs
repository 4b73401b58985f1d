//! Holes in local files: finds them for reading, leaves them when writing zeros.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use tessera_client::{ReadHoles, WriteHoles};

/// Shorter runs of zeros are written as data.
const HOLE_MIN: usize = 4096;

/// Whether a file of this length and number of 512-byte blocks may have holes.
pub fn may_be_sparse(len_bytes: u64, blocks: u64) -> bool {
    len_bytes >= HOLE_MIN as u64 && blocks.saturating_mul(512) < len_bytes
}

/// A file that is read without its holes.
pub struct SparseSource<'a>(pub &'a mut File);

impl Read for SparseSource<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out)
    }
}

impl ReadHoles for SparseSource<'_> {
    fn next_data(&mut self, at: u64, len_bytes: u64) -> io::Result<Option<Range<u64>>> {
        let data = next_data(self.0, at, len_bytes)?;
        if let Some(data) = &data {
            self.0.seek(SeekFrom::Start(data.start))?;
        }
        Ok(data)
    }
}

/// The next range of data at or after `at`, up to `len_bytes`. `None`: only a hole remains. A file system without
/// support for holes reports everything as data (lseek(2)).
///
/// # Errors
/// The system's.
pub fn next_data(file: &File, at: u64, len_bytes: u64) -> io::Result<Option<Range<u64>>> {
    if at >= len_bytes {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(rustix::io::Errno::NXIO) => return Ok(None),
        Err(rustix::io::Errno::INVAL) => at,
        Err(e) => return Err(e.into()),
    };
    if start >= len_bytes {
        return Ok(None);
    }
    let end = match rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start)) {
        Ok(end) => end.min(len_bytes),
        Err(_) => len_bytes,
    };
    Ok(Some(start..end.max(start + 1)))
}

/// Writes to a new, empty file and leaves holes where there are only zeros. [`Sparse::finish`] sets its length.
pub struct Sparse<'a> {
    file: &'a mut File,
    at: u64,
    /// Whether the file is shorter than what was written, because it ends in a hole.
    short: bool,
}

impl<'a> Sparse<'a> {
    /// Starts writing to an empty file.
    pub fn new(file: &'a mut File) -> Self {
        Sparse { file, at: 0, short: false }
    }

    /// Sets the length of the file, which may end in a hole.
    ///
    /// # Errors
    /// The system's.
    pub fn finish(self) -> io::Result<()> {
        if self.short { self.file.set_len(self.at) } else { Ok(()) }
    }
}

impl Write for Sparse<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let zeros = bytes.len() >= HOLE_MIN && bytes.iter().all(|b| *b == 0);
        if zeros {
            self.file.seek(SeekFrom::Current(bytes.len() as i64))?;
        } else {
            self.file.write_all(bytes)?;
        }
        self.short = zeros;
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl WriteHoles for Sparse<'_> {
    fn hole(&mut self, len_bytes: u64) -> io::Result<()> {
        let len = i64::try_from(len_bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        self.file.seek(SeekFrom::Current(len))?;
        self.short = true;
        self.at += len_bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn holes_are_found_and_made() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = File::options().create_new(true).read(true).write(true).open(dir.path().join("a")).unwrap();
        assert_eq!(next_data(&file, 0, 0).unwrap(), None);
        file.set_len(3 << 20).unwrap();
        file.write_all_at(&[7; 100], 1 << 20).unwrap();
        let first = next_data(&file, 0, 3 << 20).unwrap().unwrap();
        // A file system without holes reports all of it as data.
        assert!(first.start <= 1 << 20 && first.end >= (1 << 20) + 100, "{first:?}");
        assert!(!may_be_sparse(3 << 20, 3 << 11) && may_be_sparse(3 << 20, 8) && !may_be_sparse(100, 0));

        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        let mut copy = File::options().create_new(true).read(true).write(true).open(dir.path().join("b")).unwrap();
        let mut sparse = Sparse::new(&mut copy);
        bytes.chunks(64 << 10).for_each(|piece| sparse.write_all(piece).unwrap());
        sparse.hole(100 << 30).unwrap();
        sparse.finish().unwrap();
        assert_eq!(copy.metadata().unwrap().len(), (3 << 20) + (100 << 30));
        copy.set_len(3 << 20).unwrap();
        let mut again = Vec::new();
        copy.seek(SeekFrom::Start(0)).unwrap();
        copy.read_to_end(&mut again).unwrap();
        assert!(again == bytes);
        assert!(copy.metadata().unwrap().blocks() * 512 <= file.metadata().unwrap().blocks() * 512 + (128 << 10));
    }
}
