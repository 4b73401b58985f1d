//! A log's file: records can be read and checked while more are written. This module does not interpret records.

use super::budget::Budget;
use super::log::LogError;
use super::overlay::{LogSlice, Overlay};
use super::record::{HEADER_BYTES, Header};
use super::replay::LogOrigin;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tessera_client::Times;
use tessera_disk::{Disk, DiskError, DiskFile, DiskOp};

/// The file. Written records do not change. The last user to drop it releases its budget.
pub struct LogFile {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) number: u64,
    pub(super) budget: Arc<Budget>,
    pub(super) bytes: AtomicU64,
    pub(super) records: AtomicU64,
    /// A write or sync failed. The kernel may report such a failure only once and then count the pages as written.
    failed: AtomicBool,
}

impl Drop for LogFile {
    fn drop(&mut self) {
        self.budget.release_bytes(self.bytes.load(Ordering::Acquire));
        self.budget.release_log(self.records.load(Ordering::Acquire));
    }
}

impl LogFile {
    pub(super) fn new(disk: Arc<dyn Disk>, file: Arc<dyn DiskFile>, number: u64, budget: Arc<Budget>) -> LogFile {
        let (bytes, records, failed) = <(AtomicU64, AtomicU64, AtomicBool)>::default();
        LogFile { disk, file, number, budget, bytes, records, failed }
    }

    /// Reads a slice and checks its record (P2).
    ///
    /// # Errors
    /// The disk's error, or [`LogError::Damaged`] if the record does not match its checksum.
    pub fn read(&self, piece: &LogSlice, out: &mut [u8]) -> Result<(), LogError> {
        let damaged = || LogError::Damaged { path: self.path().into(), position: piece.record };
        let mut header = [0; HEADER_BYTES];
        self.file.read_at(piece.record, &mut header)?;
        let header = Header::decode(&header, self.number, piece.record).ok_or_else(damaged)?;
        let mut payload = vec![0; header.len_bytes as usize];
        self.file.read_at(piece.record + HEADER_BYTES as u64, &mut payload)?;
        let skip = piece.skip_bytes as usize;
        let wanted = payload.get(skip..skip + piece.len_bytes as usize).ok_or_else(damaged)?;
        if !header.fits(&payload) {
            return Err(damaged());
        }
        out.copy_from_slice(wanted);
        Ok(())
    }

    /// Makes all records written so far durable. Once a sync failed, every later one fails.
    ///
    /// # Errors
    /// The disk's error.
    pub fn sync(&self) -> Result<(), LogError> {
        if self.failed.load(Ordering::Acquire) {
            let source = io::Error::other("it could not be synced before");
            let (path, op, offset) = (self.path().into(), DiskOp::Sync, 0);
            return Err(DiskError::Io { path, op, offset, source }.into());
        }
        self.noted(self.file.sync_data())
    }

    pub(super) fn sync_name(&self) -> Result<(), LogError> {
        self.noted(self.disk.sync_dir(""))
    }

    fn noted(&self, done: Result<(), DiskError>) -> Result<(), LogError> {
        done.map_err(|error| {
            self.failed.store(true, Ordering::Release);
            error.into()
        })
    }

    /// Path of the file on its disk.
    pub fn path(&self) -> &str {
        self.file.path()
    }
}

/// The state of a log at one moment.
#[derive(Clone)]
pub struct View {
    /// The file it belongs to.
    pub origin: LogOrigin,
    /// The file's content.
    pub overlay: Overlay,
    /// Times to commit.
    pub times: Times,
    /// End of the last record that changes the file's bytes.
    pub(super) bytes_end: u64,
    /// End of the record of the last close.
    pub(super) closed_end: u64,
    /// See [`super::log::Log::stored_end`].
    pub(super) stored_end: u64,
    /// Holds the bytes.
    pub file: Arc<LogFile>,
}

impl View {
    /// The view of an earlier close. Only its positions are valid, not its content.
    pub fn closed_at(&self, closed_end: u64) -> View {
        View { bytes_end: closed_end, closed_end, ..self.clone() }
    }

    /// Whether the version below has all bytes: there is nothing new but a close, perhaps with times.
    pub fn is_in_version_below(&self) -> bool {
        self.bytes_end <= self.stored_end
    }

    /// Reads at `offset` over `out`, which holds the bytes of the version below.
    ///
    /// # Errors
    /// As [`LogFile::read`].
    pub fn read_over(&self, offset: u64, out: &mut [u8]) -> Result<(), LogError> {
        for piece in self.overlay.slices(offset..offset + out.len() as u64) {
            let at = (piece.offset - offset) as usize;
            self.file.read(&piece, &mut out[at..at + piece.len_bytes as usize])?;
        }
        Ok(())
    }
}
