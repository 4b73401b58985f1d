//! What all logs of a spool, and its temporary files, may have together: bytes on the disk, open files, and records, which are remembered.

use super::log::LogError;
use std::sync::atomic::{AtomicU64, Ordering};

/// Logs at a time.
pub const MAX_LOGS: u64 = 256;
/// Records of all logs: some 100 bytes of memory each. A log of a file that is written in order has one for each 128 KiB.
const MAX_RECORDS: u64 = 4 << 20;

/// Bytes that all logs of a spool have, and may have.
#[derive(Debug)]
pub struct Room {
    used: AtomicU64,
    logs: AtomicU64,
    records: AtomicU64,
    limit_bytes: u64,
    max_records: u64,
}

impl Room {
    /// Nothing is used.
    pub fn new(limit_bytes: u64) -> Room {
        Room::with_records(limit_bytes, MAX_RECORDS)
    }

    /// As [`Room::new`], for so many records.
    pub fn with_records(limit_bytes: u64, max_records: u64) -> Room {
        let (used, logs, records) = Default::default();
        Room { used, logs, records, limit_bytes, max_records }
    }

    /// Bytes used.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// Bytes there may be.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Takes so many bytes.
    ///
    /// # Errors
    /// There is not so much room.
    pub fn take(&self, bytes: u64) -> Result<(), LogError> {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit_bytes);
        let taken = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
        taken.map(drop).map_err(|used_bytes| LogError::Full { used_bytes, limit_bytes: self.limit_bytes })
    }

    /// Takes one log more.
    ///
    /// # Errors
    /// There are as many as may be.
    pub fn take_log(&self) -> Result<(), LogError> {
        let taken = self.logs.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < MAX_LOGS).then_some(n + 1));
        taken.map(drop).map_err(|_| LogError::TooMany)
    }

    /// Takes so many records.
    ///
    /// # Errors
    /// There are as many as may be.
    pub fn take_records(&self, records: u64) -> Result<(), LogError> {
        let fits = |used: u64| Some(used + records).filter(|sum| *sum <= self.max_records);
        let taken = self.records.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
        taken.map(drop).map_err(|_| LogError::Scattered { limit: self.max_records })
    }

    /// A log that was there before is there, whether it fits or not.
    pub fn found(&self, bytes: u64, records: u64) {
        self.logs.fetch_add(1, Ordering::AcqRel);
        self.records.fetch_add(records, Ordering::AcqRel);
        self.found_bytes(bytes);
    }

    /// As [`Room::found`], of bytes.
    pub fn found_bytes(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Gives bytes back.
    pub fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Gives records back.
    pub fn give_back_records(&self, records: u64) {
        self.records.fetch_sub(records, Ordering::AcqRel);
    }

    /// Gives a log back, and its records.
    pub fn give_back_log(&self, records: u64) {
        self.logs.fetch_sub(1, Ordering::AcqRel);
        self.give_back_records(records);
    }
}
