//! Counts over all chunks, from the rows alone. In a large store they take long, so a manager that serves counts beside its core.

pub mod redundancy;

use crate::db::Db;
use crate::db::cache::Caches;
use crate::error::Result;
use redundancy::Redundancy;

/// What `status` and the maintenance jobs report of all chunks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct StoreCounts {
    /// Chunks by redundancy.
    pub redundancy: Redundancy,
    /// Chunks that wait for collection; preallocated ones do not count.
    pub garbage_chunks: u64,
    /// Their bytes.
    pub garbage_bytes: u64,
    /// Delete orders that nodes have not confirmed.
    pub deletes_pending: u64,
    /// Committed chunks with fragments that no node has checked.
    pub chunks_unproven: u64,
    /// Placement groups.
    pub pgs: u64,
}

impl StoreCounts {
    /// Counts in one state of the database.
    ///
    /// # Errors
    /// The database fails, or a row is damaged.
    pub fn of(db: &Db, caches: &Caches) -> Result<StoreCounts> {
        const GARBAGE: &str = "SELECT count(*), coalesce(sum(len_bytes), 0) FROM chunks WHERE refs = 0 AND hash <> x''";
        let (garbage_chunks, garbage_bytes) = db.one(GARBAGE, [])?;
        Ok(StoreCounts {
            redundancy: redundancy::redundancy(db, caches)?,
            garbage_chunks,
            garbage_bytes,
            deletes_pending: db.one("SELECT count(*) FROM deletes", [])?,
            chunks_unproven: db.one("SELECT count(*) FROM chunks WHERE state = 2 AND proof < 2", [])?,
            pgs: db.one("SELECT count(*) FROM pgs", [])?,
        })
    }
}
