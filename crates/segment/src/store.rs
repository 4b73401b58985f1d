//! [`SegmentStore`]: stores the fragments of one disk.
//!
//! # Locks and threads
//!
//! All methods take `&self`. Look-ups, listings and reads take only the read locks of the index and of the segment
//! table, for one map access each, and never wait for a writer's I/O. (An index on flash reads a page, and may have to
//! write a full insert buffer.) `append`, `delete` and the publishing half of `sync` share the writer's lock, which is
//! held during a gathered write but not during a sync. Two syncs exclude each other, and so do two compaction steps.
//! One writer thread per disk is the intended use; more are safe. Locks are taken in this order: compactor, sync turn,
//! writer, index, segments.
//!
//! # Visible records are durable
//!
//! An appended record cannot be found or listed before [`SegmentStore::sync`] returns. So everything that the store
//! shows to a reader, an inventory or a repair survives a power loss (P9).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};
use tessera_disk::{Disk, Identity, record::RecordPlace};

use crate::compact::Compactor;
use crate::config::Options;
use crate::error::StoreError;
use crate::format::RecordMeta;
use crate::handle::FragmentHandle;
use crate::index::{Entry, FragmentId, Index, IndexError};
use crate::ledger::Segments;
use crate::writer::Writer;

/// A fragment to append.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The fragment's identity.
    pub id: FragmentId,
    /// Properties of the chunk.
    pub meta: RecordMeta,
    /// BLAKE3 chaining values of the chunk's 16 KiB groups, 32 bytes each; may be empty.
    pub groups: &'a [u8],
    /// The fragment's bytes.
    pub data: &'a [u8],
    /// crc32c of `data`, which the caller has verified. The store writes it without recomputing it.
    pub data_crc: u32,
}

/// Outcome of appending one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOutcome {
    /// Written; held once [`SegmentStore::sync`] returns.
    Written(Entry),
    /// The fragment is present with the same checksum (P8); held once `sync` returns.
    AlreadyHeld(Entry),
    /// Refused (P3): the fragment is deleted, the record is not a repair (session 0), and its epoch is not newer than
    /// the delete's.
    Deleted,
    /// Refused: an intact fragment with the same identity and other bytes is held. The sender made a mistake.
    Conflict {
        /// crc32c of the held bytes.
        held_crc: u32,
    },
}

/// A request to delete a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteOrder {
    /// The fragment.
    pub id: FragmentId,
    /// 0: the chunk is gone permanently. Otherwise the group's epoch when the manager found that the fragment does not
    /// belong here. A put under a newer epoch belongs here again, and the order does not apply to it (P4, P11).
    pub epoch: u64,
}

/// Outcome of one delete order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteOutcome {
    /// The fragment was held; it is gone once [`SegmentStore::sync`] returns.
    Removed,
    /// Nothing to do: the fragment was not held, or its record has a newer epoch than the order.
    NotHeld,
}

/// Statistics of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Segment files.
    pub segments: u64,
    /// Fragments held.
    pub fragments: u64,
    /// Delete records that are still needed.
    pub deletes: u64,
    /// Bytes of live records.
    pub live_bytes: u64,
    /// Bytes that compaction can free.
    pub dead_bytes: u64,
    /// Bytes of all segment files.
    pub file_bytes: u64,
    /// Approximate bytes of memory of the index and the tombstones.
    pub index_bytes: u64,
    /// Records that are written but not yet synced.
    pub unsynced_records: u64,
}

/// The fragments of one disk. The module documentation describes locks and visibility.
pub struct SegmentStore {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) identity: Identity,
    pub(crate) options: Options,
    /// Room for others on the disk, beyond `options.reserve_bytes`.
    pub(crate) more_reserve_bytes: AtomicU64,
    /// `None` while it is rebuilt.
    pub(crate) index: RwLock<Option<Box<dyn Index>>>,
    /// Rebuilding the index has failed; it is not retried.
    pub(crate) index_given_up: AtomicBool,
    pub(crate) segments: RwLock<Segments>,
    pub(crate) writer: Mutex<Writer>,
    pub(crate) sync_turn: Mutex<()>,
    pub(crate) compactor: Mutex<Compactor>,
}

impl std::fmt::Debug for SegmentStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SegmentStore").field("disk", &self.disk.describe()).finish_non_exhaustive()
    }
}

impl SegmentStore {
    /// The index.
    ///
    /// # Errors
    /// [`IndexError::Gone`] while it is rebuilt.
    pub(crate) fn index(&self) -> Result<MappedRwLockReadGuard<'_, dyn Index>, IndexError> {
        RwLockReadGuard::try_map(self.index.read(), Option::as_deref).map_err(|_| IndexError::Gone)
    }

    /// Finds a fragment. Returns `None` for a fragment that is appended but not synced.
    ///
    /// # Errors
    /// [`StoreError::Index`]: the index cannot answer.
    pub fn get(&self, id: FragmentId) -> Result<Option<FragmentHandle>, StoreError> {
        let mut last = None;
        while let Some(entry) = self.index()?.get(id)? {
            if let Some(handle) = self.handle(entry) {
                return Ok(Some(handle));
            }
            // Compaction moved the record between the two look-ups; the index knows the new place.
            if last.replace(entry) == Some(entry) {
                return Err(IndexError::Gone.into());
            }
        }
        Ok(None)
    }

    /// Returns up to `limit` fragments after `after`, in order of (chunk id, fragment number). Serves the inventory.
    ///
    /// # Errors
    /// As for [`SegmentStore::get`].
    pub fn list(&self, after: Option<FragmentId>, limit: usize) -> Result<Vec<Entry>, StoreError> {
        Ok(self.index()?.list(after, limit)?)
    }

    /// Makes all appended records and the index durable, so that the next opening has nothing to scan. For a clean
    /// shutdown; the store remains usable.
    ///
    /// # Errors
    /// As for [`SegmentStore::sync`], or the index's.
    pub fn close(&self) -> Result<(), StoreError> {
        self.sync()?;
        Ok(self.index()?.persist(true)?)
    }

    /// Statistics of the store.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let writer = self.writer.lock();
        let mut stats = Stats {
            fragments: self.index().map_or(0, |index| index.len()),
            index_bytes: self.index().map_or(0, |index| index.memory_bytes()) + writer.ledger.tombstones.memory_bytes(),
            deletes: writer.ledger.tombstones.delete_records(),
            unsynced_records: writer.staged.len() as u64,
            ..Stats::default()
        };
        for segment in self.segments.read().values() {
            stats.segments += 1;
            stats.file_bytes += segment.end();
            stats.live_bytes += segment.live_bytes();
            stats.dead_bytes += segment.dead_bytes();
        }
        stats
    }

    /// Statistics of the index.
    #[must_use]
    pub fn index_stats(&self) -> tessera_cona::Stats {
        self.index().map(|index| index.stats()).unwrap_or_default()
    }

    /// The disk's identity.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The store's options.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The store's disk.
    #[must_use]
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub(crate) fn handle(&self, entry: Entry) -> Option<FragmentHandle> {
        let segments = self.segments.read();
        let segment = segments.get(&entry.segment)?;
        Some(FragmentHandle::new(entry, segment.file.clone(), self.identity.disk_uuid))
    }

    pub(crate) fn place(&self, segment: u64) -> RecordPlace {
        RecordPlace { disk_uuid: self.identity.disk_uuid, file: segment }
    }

    /// True if some stretch of some segment holds no valid record.
    pub(crate) fn any_damaged(&self) -> bool {
        self.segments.read().values().any(|s| s.is_damaged())
    }

    /// Reads a held record and compares it with all its checksums.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] with the damage found, or the disk's.
    pub fn verify(&self, entry: &Entry) -> Result<(), StoreError> {
        self.handle(*entry).map_or(Ok(()), |handle| handle.verify())
    }

    /// Held fragments whose records overlap a stretch of a segment.
    pub(crate) fn held_in(&self, segment: u64, from: u64, to: u64) -> Result<Vec<Entry>, StoreError> {
        let mut hit = Vec::new();
        let mut after = None;
        loop {
            let page = self.index()?.list(after, 4096)?;
            let Some(last) = page.last() else { return Ok(hit) };
            after = Some(last.id);
            hit.extend(
                page.iter().filter(|e| e.segment == segment && e.offset < to && from < e.offset + e.record_bytes()),
            );
        }
    }
}
