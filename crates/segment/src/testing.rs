//! An index in memory, for tests and simulations.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::RwLock;
use tessera_disk::{Disk, Identity};

use crate::config::Options;
use crate::error::OpenError;
use crate::index::{Changes, Entry, FragmentId, Index, IndexError, IndexState};
use crate::open::{OpenProgress, OpenReport};
use crate::store::SegmentStore;

impl SegmentStore {
    /// As [`SegmentStore::open_with_index`], with an index in memory.
    ///
    /// # Errors
    /// [`OpenError`]; the disk is unchanged.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: Options,
        progress: &mut dyn FnMut(OpenProgress),
    ) -> Result<(Self, OpenReport), OpenError> {
        Self::open_with_index(disk, options, Box::<MemIndex>::default(), progress)
    }
}

/// An index in memory: about 100 bytes per fragment, and a full scan at each opening.
#[derive(Debug, Default)]
pub struct MemIndex(RwLock<BTreeMap<FragmentId, Entry>>);

impl Index for MemIndex {
    fn get(&self, id: FragmentId) -> Result<Option<Entry>, IndexError> {
        Ok(self.0.read().get(&id).copied())
    }

    fn list(&self, after: Option<FragmentId>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        Ok(self.0.read().range((from, Bound::Unbounded)).take(limit).map(|(_, e)| *e).collect())
    }

    fn apply(&self, changes: &Changes) -> Result<(), IndexError> {
        let mut map = self.0.write();
        for (id, entry) in &changes.entries {
            match entry {
                Some(entry) => map.insert(*id, *entry),
                None => map.remove(id),
            };
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.0.read().len() as u64
    }

    fn memory_bytes(&self) -> u64 {
        self.len() * 100
    }

    fn recover(&self, _: &Identity) -> Result<Option<IndexState>, IndexError> {
        Ok(None)
    }

    fn reset(&mut self, _: &Identity) -> Result<(), IndexError> {
        self.0.get_mut().clear();
        Ok(())
    }

    fn persist(&self, _: bool) -> Result<(), IndexError> {
        Ok(())
    }
}
