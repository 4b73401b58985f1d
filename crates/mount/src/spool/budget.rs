//! Limits for all logs and segments of a spool together: bytes on the disk, open files, and records (each costs
//! memory).
//!
//! Counters are atomic because the last reader of a log releases its bytes, on whichever thread that is.

use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

/// Limit of logs; each is an open file.
pub const MAX_LOGS: u64 = 256;
/// Limit of the records of all logs, at about 100 bytes of memory each. A log of a sequentially written file has one
/// per 128 KiB.
const MAX_RECORDS: u64 = 4 << 20;

/// A spool cannot take more.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BudgetError {
    /// No bytes are left.
    #[error("the spool is full ({used_bytes} of {limit_bytes} bytes)")]
    Bytes {
        /// Bytes of all logs.
        used_bytes: u64,
        /// Bytes they may have.
        limit_bytes: u64,
    },
    /// No open files are left.
    #[error("{MAX_LOGS} files wait in the spool")]
    Logs,
    /// No records are left.
    #[error("the spool is full ({limit} records: files are written in smaller pieces than it is made for)")]
    Records {
        /// Records that all logs may have.
        limit: u64,
    },
}

/// See the module.
#[derive(Debug)]
pub struct Budget {
    used_bytes: AtomicU64,
    logs: AtomicU64,
    records: AtomicU64,
    limit_bytes: u64,
    max_records: u64,
}

impl Budget {
    /// An unused budget of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Budget {
        Budget::with_records(limit_bytes, MAX_RECORDS)
    }

    /// As [`Budget::new`], with a limit on records.
    pub fn with_records(limit_bytes: u64, max_records: u64) -> Budget {
        let (used_bytes, logs, records) = Default::default();
        Budget { used_bytes, logs, records, limit_bytes, max_records }
    }

    /// Bytes used.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Acquire)
    }

    /// Bytes that may be used.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Reserves bytes.
    ///
    /// # Errors
    /// [`BudgetError::Bytes`].
    pub fn reserve_bytes(&self, bytes: u64) -> Result<(), BudgetError> {
        add_up_to(&self.used_bytes, bytes, self.limit_bytes)
            .map_err(|used_bytes| BudgetError::Bytes { used_bytes, limit_bytes: self.limit_bytes })
    }

    /// Reserves one log.
    ///
    /// # Errors
    /// [`BudgetError::Logs`].
    pub fn reserve_log(&self) -> Result<(), BudgetError> {
        add_up_to(&self.logs, 1, MAX_LOGS).map_err(|_| BudgetError::Logs)
    }

    /// Reserves records.
    ///
    /// # Errors
    /// [`BudgetError::Records`].
    pub fn reserve_records(&self, records: u64) -> Result<(), BudgetError> {
        add_up_to(&self.records, records, self.max_records)
            .map_err(|_| BudgetError::Records { limit: self.max_records })
    }

    /// Counts a log of an earlier mount, even beyond the limits.
    pub fn adopt_log(&self, bytes: u64, records: u64) {
        self.logs.fetch_add(1, Ordering::AcqRel);
        self.force(bytes, records);
    }

    /// Counts bytes and records, even beyond the limits.
    pub fn force(&self, bytes: u64, records: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::AcqRel);
        self.records.fetch_add(records, Ordering::AcqRel);
    }

    /// Releases bytes.
    pub fn release_bytes(&self, bytes: u64) {
        subtract(&self.used_bytes, bytes, "bytes");
    }

    /// Releases records.
    pub fn release_records(&self, records: u64) {
        subtract(&self.records, records, "records");
    }

    /// Releases a log and its records.
    pub fn release_log(&self, records: u64) {
        subtract(&self.logs, 1, "logs");
        self.release_records(records);
    }
}

/// Adds unless the sum exceeds `limit`; then returns the counter's value as the error.
fn add_up_to(counter: &AtomicU64, more: u64, limit: u64) -> Result<(), u64> {
    let fits = |now: u64| now.checked_add(more).filter(|sum| *sum <= limit);
    counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).map(drop)
}

fn subtract(counter: &AtomicU64, less: u64, what: &str) {
    let before = counter.fetch_sub(less, Ordering::AcqRel);
    assert!(before >= less, "{less} {what} of the spool were released, {before} were reserved");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_refuses_and_leaves_the_budget_as_it_was() {
        let budget = Budget::with_records(100, 3);
        budget.reserve_bytes(60).unwrap();
        assert_eq!(budget.reserve_bytes(41), Err(BudgetError::Bytes { used_bytes: 60, limit_bytes: 100 }));
        assert_eq!(budget.reserve_bytes(u64::MAX), Err(BudgetError::Bytes { used_bytes: 60, limit_bytes: 100 }));
        budget.reserve_bytes(40).unwrap();
        budget.reserve_records(3).unwrap();
        assert_eq!(budget.reserve_records(1), Err(BudgetError::Records { limit: 3 }));
        (0..MAX_LOGS).for_each(|_| budget.reserve_log().unwrap());
        assert_eq!(budget.reserve_log(), Err(BudgetError::Logs));
        budget.release_log(1);
        budget.reserve_log().unwrap();
        budget.reserve_records(1).unwrap();
        budget.adopt_log(1000, 1000);
        budget.release_bytes(1100);
        assert_eq!(budget.used_bytes(), 0);
    }
}
