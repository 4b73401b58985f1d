//! [`ConaIndex`]: the index on flash, with about a byte of memory per fragment.
//!
//! It is a CONA store without a log, in a directory of its disk. Each [`Changes`] is one batch, so a crash leaves the
//! index as a scan up to some point would make it; the segments after that point hold the rest. A fragment's write
//! never waits for a sync of the index. CONA syncs cells in the background: when a buffer is full, and when
//! [`Index::persist`] asks.
//!
//! Damage causes an error now and a scan at the next opening, never a wrong entry: the file `damaged` in the same
//! directory tells the next opening. Rows that cannot be written because the disk is full stay in memory until they can
//! be.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockUpgradableReadGuard};
use tessera_cona::{Background, Batch, Error, Options, Stats, Store};
use tessera_disk::{Disk, DiskError, Identity, OpenMode};

use crate::index::{Changes, Entry, FragmentId, Index, IndexError, IndexState};
use crate::index_rows::{
    FRAGMENT, HEAD, Head, SEGMENT, TOMBSTONE, decode_entry, decode_head, decode_id, decode_segment, decode_segment_key,
    decode_tombstone, encode_entry, encode_head, encode_segment, encode_tombstone, id_key, segment_key,
};

/// The index's directory on the disk. All files in it belong to the index.
pub const INDEX_DIR: &str = "index";
/// Marks the cells in the same directory as damaged.
const DAMAGED_FILE: &str = "index/damaged";
/// Bytes of each of its two insert buffers.
const BUFFER_BYTES: u64 = 4 << 20;
/// With n rows pending, every (1 + n / this)th change attempts to write them.
const WAITING_A_TRY: u64 = 1000;

/// Rows that are not written yet; `None` is a removal.
type PendingRows = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// An index on flash, on the disk whose fragments it lists.
pub struct ConaIndex {
    disk: Arc<dyn Disk>,
    options: Options,
    /// `Err` says why the files cannot be opened.
    store: Result<Store, IndexError>,
    unwritten: RwLock<PendingRows>,
    /// Changes since rows became pending.
    tries: AtomicU64,
    head: Mutex<Head>,
    damaged: AtomicBool,
}

impl std::fmt::Debug for ConaIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConaIndex").field("disk", &self.disk.describe()).finish_non_exhaustive()
    }
}

impl ConaIndex {
    /// Opens the index in directory [`INDEX_DIR`] of `disk`, with one thread of its own. [`Index::recover`] reports
    /// damage.
    #[must_use]
    pub fn open(disk: Arc<dyn Disk>) -> Self {
        Self::with_options(disk, Options { buffer_bytes: BUFFER_BYTES, ..Options::default() })
    }

    /// Like [`ConaIndex::open`], but merges on the caller's thread. For simulations.
    #[must_use]
    pub fn open_inline(disk: Arc<dyn Disk>, buffer_bytes: u64) -> Self {
        Self::with_options(disk, Options { buffer_bytes, background: Background::Inline, ..Options::default() })
    }

    fn with_options(disk: Arc<dyn Disk>, options: Options) -> Self {
        let options = Options { logged: false, cache_bytes: 0, lock: false, ..options };
        let store = open_store(&disk, &options);
        let unknown = Identity { cluster_id: [0; 16], disk_uuid: [0; 16], created_ms: 0 };
        ConaIndex {
            disk,
            options,
            store,
            unwritten: RwLock::default(),
            tries: AtomicU64::new(0),
            head: Mutex::new(Head::of(&unknown)),
            damaged: AtomicBool::new(false),
        }
    }

    fn store(&self) -> Result<&Store, IndexError> {
        self.store.as_ref().map_err(Clone::clone)
    }

    /// Waits until all buffers are written and no merge is due.
    ///
    /// # Errors
    /// CONA's.
    pub fn settle(&self) -> Result<(), IndexError> {
        self.persist(true)?;
        Ok(self.store()?.settle()?)
    }

    /// Marks the index as damaged for the next opening if a read failed, through damage or a bad sector.
    fn note_failure<T>(&self, result: Result<T, IndexError>) -> Result<T, IndexError> {
        if result.is_err() && !self.damaged.swap(true, Ordering::Relaxed) {
            // If this fails, the next read that finds the damage tries again.
            let _ = self.disk.open(DAMAGED_FILE, OpenMode::Create);
        }
        result
    }

    /// Reads a value, twice if needed: a bit that flips in transit is not damage on the medium.
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexError> {
        if let Some(row) = self.unwritten.read().get(key) {
            return Ok(row.clone());
        }
        let store = self.store()?;
        Ok(store.get(key).or_else(|_| store.get(key))?)
    }

    fn entry(&self, id: FragmentId) -> Result<Option<Entry>, IndexError> {
        self.value(&id_key(FRAGMENT, id))?.map(|value| decode_entry(id, &value)).transpose()
    }

    /// Up to `limit` written rows of this kind with keys above `after`, merged with the pending rows among them.
    fn rows(&self, kind: u8, after: Option<&[u8]>, limit: usize) -> Result<PendingRows, IndexError> {
        let (first, end) = ([kind], [kind + 1]);
        let from = after.map_or(Bound::Included(&first[..]), Bound::Excluded);
        let unwritten = self.unwritten.read();
        // Each pending removal hides at most one written row.
        let wanted = limit.saturating_add(unwritten.len());
        let mut rows = PendingRows::new();
        for row in self.store()?.range_at_most((from, Bound::Excluded(&end[..])), wanted)? {
            let (key, value) = row?;
            rows.insert(key, Some(value));
        }
        let beyond = if rows.len() < wanted { None } else { rows.last_key_value().map(|(key, _)| key.clone()) };
        let newer = unwritten.range::<[u8], _>((from, Bound::Excluded(&end[..])));
        for (key, value) in newer.take_while(|(key, _)| beyond.as_ref().is_none_or(|b| *key <= b)) {
            rows.insert(key.clone(), value.clone());
        }
        rows.retain(|_, value| value.is_some());
        Ok(rows)
    }

    fn list_rows(&self, after: Option<FragmentId>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        let after = after.map(|id| id_key(FRAGMENT, id));
        let rows = self.rows(FRAGMENT, after.as_ref().map(|key| &key[..]), limit)?;
        rows.into_iter()
            .take(limit)
            .map(|(key, value)| decode_entry(decode_id(&key)?, &value.unwrap_or_default()))
            .collect()
    }

    fn recover_rows(&self, identity: &Identity) -> Result<Option<IndexState>, IndexError> {
        let Some(head) = self.value(&[HEAD])? else { return Ok(None) };
        let head = decode_head(&head)?;
        let ours = Head { point: head.point, len: head.len, ..Head::of(identity) };
        if head != ours {
            return Ok(None);
        }
        let mut recovered = IndexState { point: head.point, ..IndexState::default() };
        for (key, value) in self.rows(SEGMENT, None, usize::MAX)? {
            recovered.segments.insert(decode_segment_key(&key)?, decode_segment(&value.unwrap_or_default())?);
        }
        for (key, value) in self.rows(TOMBSTONE, None, usize::MAX)? {
            let id = decode_id(&key)?;
            recovered.tombstones.insert(id, decode_tombstone(id, &value.unwrap_or_default())?);
        }
        *self.head.lock() = head;
        Ok(Some(recovered))
    }

    /// The rows that encode the changes.
    fn rows_of(&self, changes: &Changes) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let entries =
            changes.entries.iter().map(|(id, e)| (id_key(FRAGMENT, *id).to_vec(), e.as_ref().map(encode_entry)));
        let tombstones = changes
            .tombstones
            .iter()
            .map(|(id, t)| (id_key(TOMBSTONE, *id).to_vec(), t.as_ref().map(encode_tombstone)));
        let segments = changes.segments.iter().map(|(n, s)| (segment_key(*n).to_vec(), s.as_ref().map(encode_segment)));
        let mut rows: Vec<_> = entries.chain(tombstones).chain(segments).collect();
        let mut head = self.head.lock();
        head.len = head.len.saturating_add_signed(changes.added);
        head.point = changes.point.unwrap_or(head.point);
        rows.push((vec![HEAD], Some(encode_head(&head))));
        rows
    }

    fn write<'r>(&self, rows: impl Iterator<Item = (&'r Vec<u8>, &'r Option<Vec<u8>>)>) -> Result<(), IndexError> {
        let mut batch = Batch::new();
        for (key, value) in rows {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            };
        }
        Ok(self.store()?.write(batch)?)
    }

    /// Writes the pending rows as one batch; together they are the newest state.
    fn write_waiting(&self) -> Result<(), IndexError> {
        // Rows of another change must not join before these are cleared.
        let unwritten = self.unwritten.upgradable_read();
        self.write(unwritten.iter())?;
        RwLockUpgradableReadGuard::upgrade(unwritten).clear();
        Ok(())
    }
}

/// Opens the index, or creates an empty one.
fn open_store(disk: &Arc<dyn Disk>, options: &Options) -> Result<Store, IndexError> {
    disk.create_dir(INDEX_DIR).map_err(Error::from)?;
    if disk.list(INDEX_DIR).map_err(Error::from)?.iter().any(|name| DAMAGED_FILE.ends_with(name)) {
        return Err(IndexError::Gone);
    }
    Ok(Store::open_on(disk.clone(), INDEX_DIR, options.clone())?)
}

/// Removes all files of an index. The manifest goes first: without it no cell is used. The mark of damage goes last.
fn remove_all(disk: &dyn Disk) -> Result<(), DiskError> {
    disk.create_dir(INDEX_DIR)?;
    let mut names = disk.list(INDEX_DIR)?;
    names.sort_by_key(|name| (name != "MANIFEST", DAMAGED_FILE.ends_with(name)));
    for name in names {
        match disk.remove(&format!("{INDEX_DIR}/{name}")) {
            Err(DiskError::NotFound { .. }) => {}
            removed => removed?,
        }
    }
    disk.sync_dir(INDEX_DIR)
}

impl Index for ConaIndex {
    fn get(&self, id: FragmentId) -> Result<Option<Entry>, IndexError> {
        self.note_failure(self.entry(id))
    }

    fn list(&self, after: Option<FragmentId>, limit: usize) -> Result<Vec<Entry>, IndexError> {
        let listed = self.list_rows(after, limit).or_else(|_| self.list_rows(after, limit));
        self.note_failure(listed)
    }

    fn apply(&self, changes: &Changes) -> Result<(), IndexError> {
        let rows = self.rows_of(changes);
        let waiting = self.unwritten.read().len() as u64;
        let written = if waiting == 0 {
            let written = self.write(rows.iter().map(|(key, value)| (key, value)));
            if written.is_err() {
                self.unwritten.write().extend(rows);
            }
            written
        } else {
            self.unwritten.write().extend(rows);
            let due = self.tries.fetch_add(1, Ordering::Relaxed).is_multiple_of(1 + waiting / WAITING_A_TRY);
            if due { self.write_waiting() } else { Ok(()) }
        };
        written.or_else(|e| if e.is_no_space() { Ok(()) } else { Err(e) })
    }

    fn len(&self) -> u64 {
        self.head.lock().len
    }

    fn memory_bytes(&self) -> u64 {
        let stats = self.stats();
        let unwritten = self.unwritten.read().len() as u64 * 150;
        stats.index_bytes + stats.filter_bytes + stats.buffer_bytes + stats.merge_bytes + unwritten
    }

    fn failed(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }

    fn stats(&self) -> Stats {
        self.store.as_ref().map(Store::stats).unwrap_or_default()
    }

    fn recover(&self, identity: &Identity) -> Result<Option<IndexState>, IndexError> {
        self.note_failure(self.recover_rows(identity))
    }

    fn reset(&mut self, identity: &Identity) -> Result<(), IndexError> {
        // The store's thread must end before its files are removed.
        self.store = Err(IndexError::Gone);
        remove_all(&*self.disk).map_err(Error::from)?;
        self.unwritten.get_mut().clear();
        *self.head.get_mut() = Head::of(identity);
        *self.damaged.get_mut() = false;
        self.store = open_store(&self.disk, &self.options);
        self.store().map(|_| ())
    }

    fn persist(&self, wait: bool) -> Result<(), IndexError> {
        let store = self.store()?;
        let mut done = if self.unwritten.read().is_empty() { Ok(()) } else { self.write_waiting() };
        if done.is_ok() {
            done = if wait { store.flush() } else { store.flush_soon() }.map_err(IndexError::from);
        }
        if store.stats().damaged_cells > 0 {
            // A merge found damage or a bad sector that no look-up may ever reach.
            let _ = self.note_failure(Err::<(), _>(IndexError::Gone));
        }
        done.or_else(|e| if e.is_no_space() { Ok(()) } else { Err(e) })
    }
}
