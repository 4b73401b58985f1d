//! An edited copy of a file that never exists on disk: the original, read through a list of small edits. A file always
//! gets the same edits, so the stored copy can be compared later.

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Files shorter than this are small; most small files are not edited.
const SMALL_BYTES: u64 = 64 << 10;
/// One small file in this many gets a new line.
const SMALL_EDITED_ONE_IN: u32 = 8;

enum Piece {
    /// A range of the original.
    Original(Range<u64>),
    /// New bytes.
    New(Vec<u8>),
}

/// The parts of a copy.
pub struct Edits {
    pieces: Vec<Piece>,
}

impl Edits {
    /// No edits of a file of `len` bytes.
    pub fn none(len: u64) -> Edits {
        Edits { pieces: vec![Piece::Original(0..len)] }
    }

    /// The edits of the file `name` of `len` bytes. A long file gets 100 bytes inserted after a quarter, 4 KiB replaced
    /// in the middle, and a line at its end. Few of the small files get a line.
    pub fn of(name: &[u8], len: u64) -> Edits {
        let seed = name.iter().fold(len, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
        let mut random = seeded(seed);
        let mut edits = Edits::none(len);
        if len >= SMALL_BYTES {
            let (quarter, middle) = (len / 4, len / 2);
            edits.pieces = vec![
                Piece::Original(0..quarter),
                Piece::New(random_bytes(&mut random, 100)),
                Piece::Original(quarter..middle),
                Piece::New(random_bytes(&mut random, 4096)),
                Piece::Original(middle + 4096..len),
            ];
        }
        if len >= SMALL_BYTES || random.random_ratio(1, SMALL_EDITED_ONE_IN) {
            edits.pieces.push(Piece::New(b"\nthis line was added by an edit\n".to_vec()));
        }
        edits
    }

    /// Length of the copy.
    pub fn len_bytes(&self) -> u64 {
        let len = |piece: &Piece| match piece {
            Piece::Original(range) => range.end - range.start,
            Piece::New(bytes) => bytes.len() as u64,
        };
        self.pieces.iter().map(len).sum()
    }

    /// Reads the copy of `original`.
    pub fn read(self, original: File) -> Box<dyn Read + Send> {
        let file = Arc::new(original);
        self.pieces.into_iter().fold(Box::new(io::empty()), |before, piece| match piece {
            Piece::Original(range) => Box::new(before.chain(FileRange { file: file.clone(), range })),
            Piece::New(bytes) => Box::new(before.chain(Cursor::new(bytes))),
        })
    }
}

/// Reads a range of a file. A file that ends before the range does is an error.
struct FileRange {
    file: Arc<File>,
    range: Range<u64>,
}

impl Read for FileRange {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.range.end - self.range.start).unwrap_or(usize::MAX);
        let take = left.min(buffer.len());
        let got = self.file.read_at(&mut buffer[..take], self.range.start)?;
        if got == 0 && take > 0 {
            return Err(io::Error::other("the file became shorter while it was read"));
        }
        self.range.start += got as u64;
        Ok(got)
    }
}

/// A generator that gives the same numbers for the same seed.
pub fn seeded(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// `len` random bytes.
pub fn random_bytes(random: &mut StdRng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill_bytes(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn edited(name: &[u8], original: &[u8]) -> Vec<u8> {
        let edits = Edits::of(name, original.len() as u64);
        let len = edits.len_bytes();
        let mut out = Vec::new();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(original).unwrap();
        edits.read(file).read_to_end(&mut out).unwrap();
        assert_eq!(out.len() as u64, len);
        out
    }

    #[test]
    fn an_edited_copy_keeps_most_of_its_original_and_is_always_the_same() {
        let original = random_bytes(&mut seeded(1), 200_000);
        let copy = edited(b"x", &original);
        assert_eq!(copy, edited(b"x", &original));
        assert_ne!(copy, edited(b"y", &original));
        assert_eq!(copy[..50_000], original[..50_000]);
        assert_eq!(copy[50_100..100_100], original[50_000..100_000]);
        assert_eq!(copy[104_196..200_100], original[104_096..]);
    }

    #[test]
    fn few_small_files_change() {
        let changed = (0..800u32).filter(|i| edited(&i.to_le_bytes(), b"small") != b"small").count();
        assert!((50..150).contains(&changed), "{changed}");
        assert!(edited(b"", b"").len() <= 32);
    }
}
