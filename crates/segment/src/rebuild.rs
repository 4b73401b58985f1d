//! Rebuilds a damaged index from the segments while the store is running.
//!
//! Meanwhile reads are refused and writes wait, as while a node opens the disk. Nothing is lost: the rebuild finds
//! records that are written but not synced, syncs them and makes them visible. Callers that wait for their sync
//! succeed.

use std::sync::atomic::Ordering;

use crate::compact::Compactor;
use crate::error::StoreError;
use crate::open::{OpenReport, Opening};
use crate::store::SegmentStore;

impl SegmentStore {
    /// True if the index failed to read its own files and no [`SegmentStore::rebuild_index`] has failed.
    #[must_use]
    pub fn index_failed(&self) -> bool {
        self.index().is_ok_and(|index| index.failed()) && !self.index_given_up.load(Ordering::Relaxed)
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
        let Some(failed) = self.index.write().take() else { return Ok(OpenReport::default()) };
        let mut opening = Opening::new(self.disk.clone(), self.identity, failed);
        let rebuilt = opening.run(&mut |_| {});
        let (index, segments, renewed, report) = opening.finish();
        if let Err(e) = rebuilt {
            self.index_given_up.store(true, Ordering::Relaxed);
            *self.index.write() = Some(index);
            return Err(e.into());
        }
        *compactor = Compactor::default();
        *writer = renewed;
        *self.segments.write() = segments;
        *self.index.write() = Some(index);
        Ok(report)
    }
}
