//! Rebuilds a damaged index from the segments while the store is running.
//!
//! Meanwhile reads are refused and writes wait, as while a node opens the disk. Nothing is lost: the rebuild finds
//! records that are written but not synced, syncs them and makes them visible. Callers that wait for their sync
//! succeed.

use std::sync::atomic::Ordering;

use tessera_disk::Identity;

use crate::compact::Compactor;
use crate::error::StoreError;
use crate::index::{Changes, Entry, FragmentId, Index, IndexError, IndexState};
use crate::open::{OpenReport, Opened, Opening};
use crate::store::SegmentStore;

/// Replaces the index while it is rebuilt.
struct UnavailableIndex;

impl Index for UnavailableIndex {
    fn get(&self, _: FragmentId) -> Result<Option<Entry>, IndexError> {
        Err(IndexError::Gone)
    }

    fn list(&self, _: Option<FragmentId>, _: usize) -> Result<Vec<Entry>, IndexError> {
        Err(IndexError::Gone)
    }

    fn apply(&self, _: &Changes) -> Result<(), IndexError> {
        Err(IndexError::Gone)
    }

    fn len(&self) -> u64 {
        0
    }

    fn memory_bytes(&self) -> u64 {
        0
    }

    fn recover(&self, _: &Identity) -> Result<Option<IndexState>, IndexError> {
        Err(IndexError::Gone)
    }

    fn reset(&mut self, _: &Identity) -> Result<(), IndexError> {
        Err(IndexError::Gone)
    }

    fn persist(&self, _: bool) -> Result<(), IndexError> {
        Err(IndexError::Gone)
    }
}

impl SegmentStore {
    /// True if the index failed to read its own files and no [`SegmentStore::rebuild_index`] has failed.
    #[must_use]
    pub fn index_failed(&self) -> bool {
        self.index.read().failed() && !self.index_given_up.load(Ordering::Relaxed)
    }

    /// Rebuilds a failed index from the segments; does nothing if the index is intact. Takes as long as opening the
    /// disk without an index.
    ///
    /// # Errors
    /// The disk's, or the index's. The store then refuses operations that need the index, and does not try again.
    pub fn rebuild_index(&self) -> Result<OpenReport, StoreError> {
        let mut compactor = self.compactor.lock();
        let _turn = self.sync_turn.lock();
        let mut writer = self.writer.lock();
        if !self.index_failed() {
            return Ok(OpenReport::default());
        }
        self.cut_failed_write(&mut writer)?;
        let failed = std::mem::replace(&mut *self.index.write(), Box::new(UnavailableIndex));
        let mut opening = Opening::new(self.disk.clone(), self.identity, failed);
        let made = opening.run(&mut |_| {});
        let Opened { index, segments, writer: renewed, report } = opening.finish();
        if let Err(e) = made {
            self.index_given_up.store(true, Ordering::Relaxed);
            *self.index.write() = index;
            return Err(e.into());
        }
        *compactor = Compactor::default();
        *writer = renewed;
        *self.segments.write() = segments;
        *self.index.write() = index;
        Ok(report)
    }
}
