//! Where the bytes come from: files, the disks that hold them, and reads of ranges.

mod local;
mod played;
mod speed;
mod store;

pub use local::LocalFiles;
pub use played::{DiskSpeed, PlayedDisks, PlayedRead, SlowPhases};
pub use speed::measure_speeds;
pub use store::StoreFiles;

use crate::error::Error;
use crate::layout::Run;

/// Number of a file in [`Source::files`].
pub type FileIndex = u32;
/// Number of a disk in [`Source::disks`].
pub type DiskIndex = u32;

/// A file of a source. Its content does not change while the source is open, or reads fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// Its path, as the user wrote it.
    pub name: String,
    /// Its length in bytes.
    pub len_bytes: u64,
}

/// What a source has, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// The files.
    pub files: Vec<SourceFile>,
    /// Names of the disks.
    pub disks: Vec<String>,
    /// On which disk each byte lies. The runs of a file follow each other and cover it.
    pub runs: Vec<Run>,
    /// Files that were named more than once. Each is in `files` once.
    pub repeated: Vec<String>,
}

/// Files with known places: local ones, or versions of files in the store. Threads share it.
pub trait Source: Send + Sync {
    /// What it has, and where.
    fn contents(&self) -> &Contents;

    /// The files.
    fn files(&self) -> &[SourceFile] {
        &self.contents().files
    }

    /// Names of the disks.
    fn disks(&self) -> &[String] {
        &self.contents().disks
    }

    /// On which disk each byte lies.
    fn runs(&self) -> &[Run] {
        &self.contents().runs
    }

    /// Everything is as it was when the source was opened.
    ///
    /// # Errors
    /// Names the first file that has changed.
    fn check_unchanged(&self) -> Result<(), Error>;

    /// Reads at `offset` as many bytes as there are and fit into `out`; returns how many.
    ///
    /// # Errors
    /// The file cannot be read or has changed since it was opened.
    fn read_at(&self, file: FileIndex, offset: u64, out: &mut [u8]) -> Result<usize, Error>;

    /// Reads `len_bytes` at `offset`, fewer only at the end of the file.
    ///
    /// # Errors
    /// As [`Source::read_at`].
    fn read_vec(&self, file: FileIndex, offset: u64, len_bytes: u64) -> Result<Vec<u8>, Error> {
        let mut out = Vec::new();
        self.read_into(file, offset, len_bytes, &mut out)?;
        Ok(out)
    }

    /// As [`Source::read_vec`], into the memory of `out`, whose content is lost.
    ///
    /// # Errors
    /// As [`Source::read_at`].
    fn read_into(&self, file: FileIndex, offset: u64, len_bytes: u64, out: &mut Vec<u8>) -> Result<(), Error> {
        let left = self.files()[file as usize].len_bytes.saturating_sub(offset);
        let len = len_bytes.min(left) as usize;
        match out.capacity() < len {
            true => *out = vec![0; len],
            // What was in it need not be cleared: the read replaces it.
            false => out.resize(len, 0),
        }
        let read = self.read_at(file, offset, out)?;
        out.truncate(read);
        Ok(())
    }
}
