//! An edited copy of a file that never exists on disk: the original, read through a list of small edits. A file always
//! gets the same edits, so the stored copy can be compared later.

use std::io::{self, Read, Seek, SeekFrom};

/// Files shorter than this are small; most small files are not edited.
const SMALL_BYTES: u64 = 64 << 10;
/// One small file in this many gets a new line.
const SMALL_EDITED_ONE_IN: u64 = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    /// A range of the original.
    Original { start: u64, len: u64 },
    /// New bytes.
    New(Vec<u8>),
}

/// The parts of an edited copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edits {
    pieces: Vec<Piece>,
}

impl Edits {
    /// The edits of the file `name` of `len` bytes. A long file gets 100 bytes inserted after a quarter, 4 KiB replaced
    /// in the middle, and a line at its end. Few of the small files get a line.
    pub fn of(name: &[u8], len: u64) -> Edits {
        let mut random = Random::new(name.iter().fold(len, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)));
        let line = b"\nthis line was added by an edit\n".to_vec();
        let original = |start, len| Piece::Original { start, len };
        let pieces = if len >= SMALL_BYTES {
            let (quarter, middle) = (len / 4, len / 2);
            vec![
                original(0, quarter),
                Piece::New(random.bytes(100)),
                original(quarter, middle - quarter),
                Piece::New(random.bytes(4096)),
                original(middle + 4096, len - middle - 4096),
                Piece::New(line),
            ]
        } else if random.next().is_multiple_of(SMALL_EDITED_ONE_IN) {
            vec![original(0, len), Piece::New(line)]
        } else {
            vec![original(0, len)]
        };
        Edits { pieces }
    }

    /// Length of the edited copy.
    pub fn len_bytes(&self) -> u64 {
        let len = |piece: &Piece| match piece {
            Piece::Original { len, .. } => *len,
            Piece::New(bytes) => bytes.len() as u64,
        };
        self.pieces.iter().map(len).sum()
    }

    /// Reads the edited copy of `original`.
    pub fn read<R: Read + Seek>(self, original: R) -> EditedReader<R> {
        EditedReader { original, pieces: self.pieces, at: (0, 0) }
    }
}

/// Reads an original through its edits.
pub struct EditedReader<R> {
    original: R,
    pieces: Vec<Piece>,
    /// (index of the part, offset in it).
    at: (usize, u64),
}

impl<R: Read + Seek> Read for EditedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (index, offset) = self.at;
        let Some(piece) = self.pieces.get(index) else { return Ok(0) };
        let left = match piece {
            Piece::Original { len, .. } => len - offset,
            Piece::New(bytes) => bytes.len() as u64 - offset,
        };
        if left == 0 {
            self.at = (index + 1, 0);
            return self.read(buffer);
        }
        let take = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let got = match piece {
            Piece::Original { start, .. } => {
                if offset == 0 {
                    self.original.seek(SeekFrom::Start(*start))?;
                }
                match self.original.read(&mut buffer[..take])? {
                    0 if take > 0 => return Err(io::Error::other("the file became shorter while it was read")),
                    got => got,
                }
            }
            Piece::New(bytes) => {
                let from = offset as usize;
                buffer[..take].copy_from_slice(&bytes[from..from + take]);
                take
            }
        };
        self.at.1 += got as u64;
        Ok(got)
    }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): good enough for data that only has to look random.
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound` (at least 1).
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let number = self.next().to_le_bytes();
            piece.copy_from_slice(&number[..piece.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(name: &[u8], original: &[u8]) -> Vec<u8> {
        let edits = Edits::of(name, original.len() as u64);
        let len = edits.len_bytes();
        let mut out = Vec::new();
        edits.read(io::Cursor::new(original)).read_to_end(&mut out).unwrap();
        assert_eq!(out.len() as u64, len);
        out
    }

    #[test]
    fn an_edited_copy_keeps_most_of_its_original_and_is_always_the_same() {
        let original = Random::new(1).bytes(200_000);
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
