//! An insert buffer: the newest writes, in memory, sorted by key.
//!
//! Readers look keys up while one writer inserts. A key keeps older versions only while a snapshot may read them. A
//! small filter answers most lookups of absent keys without touching the tree.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::page::Content;

/// A value, or `None` for a delete.
pub(crate) type ValueOrDelete<T = Arc<[u8]>> = Option<T>;

const INLINE: usize = 30;

/// A key. Short keys are stored inline, so comparing them follows no pointer.
#[derive(Clone, Debug)]
pub(crate) enum SmallKey {
    Inline(u8, [u8; INLINE]),
    Heap(Box<[u8]>),
}

impl SmallKey {
    pub(crate) fn new(key: &[u8]) -> Self {
        if key.len() > INLINE {
            return SmallKey::Heap(key.into());
        }
        let mut inline = [0; INLINE];
        inline[..key.len()].copy_from_slice(key);
        SmallKey::Inline(key.len() as u8, inline)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            SmallKey::Inline(len, bytes) => &bytes[..usize::from(*len)],
            SmallKey::Heap(bytes) => bytes,
        }
    }
}

impl PartialEq for SmallKey {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}
impl Eq for SmallKey {}
impl PartialOrd for SmallKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for SmallKey {
    /// Bytewise order. Short keys are compared eight bytes at a time: comparisons dominate a search in the tree.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        match (self, other) {
            (SmallKey::Inline(len, bytes), SmallKey::Inline(other_len, other)) => {
                // Unused bytes are zeros. If all bytes are equal, the shorter key comes first. The last two words
                // overlap.
                let differ = [0, 8, 16, INLINE - 8].into_iter().map(|at| (word(bytes, at), word(other, at)));
                let order = differ.map(|(a, b)| a.cmp(&b)).find(|order| order.is_ne());
                order.unwrap_or_else(|| len.cmp(other_len))
            }
            _ => self.as_bytes().cmp(other.as_bytes()),
        }
    }
}

fn word(bytes: &[u8; INLINE], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(word)
}
impl std::borrow::Borrow<[u8]> for SmallKey {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

struct Slot {
    seq: u64,
    value: ValueOrDelete,
    /// A delete that may hide a record of a cell.
    hides: bool,
    /// Versions that a snapshot may read, newest first.
    older: Vec<(u64, ValueOrDelete)>,
}

/// One change of a batch.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) key: SmallKey,
    pub(crate) hash: u64,
    pub(crate) value: ValueOrDelete,
}

/// An insert buffer.
pub(crate) struct Buffer {
    map: RwLock<BTreeMap<SmallKey, Slot>>,
    filter: Box<[AtomicU64]>,
    bytes: AtomicU64,
    /// Keys whose newest version is a delete that may hide a record of a cell.
    hidden: AtomicU64,
    /// Sequence number of the last batch applied.
    last_seq: AtomicU64,
    /// Numbers of the logs that hold its batches.
    pub(crate) logs: Mutex<Vec<u64>>,
}

/// Memory per entry besides key and value.
const ENTRY_BYTES: u64 = 96;

impl Buffer {
    pub(crate) fn new(buffer_bytes: u64) -> Self {
        let words = (buffer_bytes / 1024).next_power_of_two().max(16) as usize;
        Buffer {
            map: RwLock::default(),
            filter: (0..words).map(|_| AtomicU64::new(0)).collect(),
            bytes: AtomicU64::new(0),
            hidden: AtomicU64::new(0),
            last_seq: AtomicU64::new(0),
            logs: Mutex::default(),
        }
    }

    fn filter_of(&self, hash: u64) -> (&AtomicU64, u64) {
        let word = (hash >> 12) as usize & (self.filter.len() - 1);
        (&self.filter[word], 1 << (hash & 63) | 1 << ((hash >> 6) & 63))
    }

    /// Bytes of all keys and values inserted, overwritten ones included, plus the overhead of the entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Number of keys whose newest version is a delete that may hide a record of a cell.
    pub(crate) fn hidden(&self) -> u64 {
        self.hidden.load(Ordering::Relaxed)
    }

    pub(crate) fn last_seq(&self) -> u64 {
        self.last_seq.load(Ordering::Acquire)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.read().is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.map.read().len()
    }

    /// Applies batches atomically: a reader sees all of a batch or nothing. Loads `newest_snapshot` and stores
    /// `visible` under the lock. `hides` tells of a delete's key and hash if it may hide a record of a cell.
    pub(crate) fn apply<'a>(
        &self,
        batches: impl Iterator<Item = (u64, &'a [Change])>,
        newest_snapshot: &AtomicU64,
        visible: &AtomicU64,
        hides: impl Fn(&[u8], u64) -> bool,
    ) {
        let mut map = self.map.write();
        let wanted = newest_snapshot.load(Ordering::Acquire);
        let mut last = 0;
        for (seq, changes) in batches {
            assert!(seq > last && seq > self.last_seq(), "batch {seq} is applied out of order");
            for change in changes {
                let hides = change.value.is_none() && hides(change.key.as_bytes(), change.hash);
                self.apply_one(&mut map, seq, change, wanted, hides);
            }
            last = seq;
        }
        if last > 0 {
            self.last_seq.store(last, Ordering::Release);
            visible.store(last, Ordering::Release);
        }
    }

    fn apply_one(&self, map: &mut BTreeMap<SmallKey, Slot>, seq: u64, change: &Change, wanted: u64, hides: bool) {
        let (word, bits) = self.filter_of(change.hash);
        word.fetch_or(bits, Ordering::Relaxed);
        let size = change.value.as_ref().map_or(0, |v| v.len()) as u64;
        self.hidden.fetch_add(u64::from(hides), Ordering::Relaxed);
        match map.entry(change.key.clone()) {
            Entry::Occupied(slot) => {
                let slot = slot.into_mut();
                let old = std::mem::replace(&mut slot.value, change.value.clone());
                let hid = std::mem::replace(&mut slot.hides, hides);
                self.hidden.fetch_sub(u64::from(hid), Ordering::Relaxed);
                let freed = old.as_ref().map_or(0, |v| v.len()) as u64;
                if slot.seq <= wanted && slot.seq != seq {
                    slot.older.insert(0, (slot.seq, old));
                    self.bytes.fetch_add(size + 32, Ordering::Relaxed);
                } else {
                    self.bytes.fetch_add(size, Ordering::Relaxed);
                    self.bytes.fetch_sub(freed, Ordering::Relaxed);
                }
                slot.seq = seq;
            }
            Entry::Vacant(place) => {
                self.bytes.fetch_add(size + change.key.as_bytes().len() as u64 + ENTRY_BYTES, Ordering::Relaxed);
                place.insert(Slot { seq, value: change.value.clone(), hides, older: Vec::new() });
            }
        }
    }

    /// The newest version with a sequence of at most `upto`. `None`: the buffer does not know the key.
    pub(crate) fn get(&self, key: &[u8], hash: u64, upto: u64) -> Option<ValueOrDelete> {
        let (word, bits) = self.filter_of(hash);
        if word.load(Ordering::Relaxed) & bits != bits {
            return None;
        }
        let key = SmallKey::new(key);
        version(self.map.read().get(&key)?, upto).cloned()
    }

    /// Runs `f` while no batch is being applied.
    pub(crate) fn quietly<T>(&self, f: impl FnOnce() -> T) -> T {
        let _guard = self.map.read();
        f()
    }

    /// Calls `f` with every key and its newest version, in key order. Stops at the first error.
    pub(crate) fn for_each<E>(&self, mut f: impl FnMut(&[u8], Option<&[u8]>) -> Result<(), E>) -> Result<(), E> {
        self.map.read().iter().try_for_each(|(key, slot)| f(key.as_bytes(), slot.value.as_deref()))
    }
}

fn version(slot: &Slot, upto: u64) -> Option<&ValueOrDelete> {
    if slot.seq <= upto {
        return Some(&slot.value);
    }
    slot.older.iter().find(|(seq, _)| *seq <= upto).map(|(_, value)| value)
}

/// Entries that a cursor copies under one lock: at first, and at most.
const CHUNK: (usize, usize) = (4, 64);

/// Walks a buffer in key order as of one sequence number, while the writer continues.
pub(crate) struct BufferCursor {
    buffer: Arc<Buffer>,
    upto: u64,
    chunk: Vec<(SmallKey, ValueOrDelete)>,
    at: usize,
    /// Entries to copy next time.
    ahead: usize,
    ended: bool,
}

impl BufferCursor {
    /// Positions the cursor at the first key that is not below `from`.
    pub(crate) fn seek(buffer: Arc<Buffer>, upto: u64, from: &[u8]) -> Self {
        let mut cursor = BufferCursor { buffer, upto, chunk: Vec::new(), at: 0, ahead: CHUNK.0, ended: false };
        cursor.fill(Bound::Included(from));
        cursor
    }

    fn fill(&mut self, from: Bound<&[u8]>) {
        let buffer = self.buffer.clone();
        let map = buffer.map.read();
        let mut chunk = std::mem::take(&mut self.chunk);
        chunk.clear();
        self.at = 0;
        self.ended = true;
        for (key, slot) in map.range::<[u8], _>((from, Bound::Unbounded)) {
            if let Some(value) = version(slot, self.upto) {
                chunk.push((key.clone(), value.clone()));
                if chunk.len() == self.ahead {
                    self.ended = false;
                    break;
                }
            }
        }
        self.chunk = chunk;
        self.ahead = (self.ahead * 2).min(CHUNK.1);
    }

    pub(crate) fn current(&self) -> Option<(&[u8], Content<'_>)> {
        self.chunk.get(self.at).map(|(key, value)| (key.as_bytes(), Content::of(value.as_deref())))
    }

    pub(crate) fn advance(&mut self) {
        self.at += 1;
        if self.at >= self.chunk.len() && !self.ended {
            let last = self.chunk.last().map(|(key, _)| key.clone());
            if let Some(last) = last {
                self.fill(Bound::Excluded(last.as_bytes()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Comparing short keys by words gives the bytewise order, also for keys that end in zeros.
        #[test]
        fn keys_are_in_the_order_of_their_bytes(
            a in proptest::collection::vec(0_u8..3, 1..34),
            b in proptest::collection::vec(0_u8..3, 1..34),
            shared in 0_usize..34,
        ) {
            let b = [&a[..shared.min(a.len())], &b[..]].concat();
            prop_assert_eq!(SmallKey::new(&a).cmp(&SmallKey::new(&b)), a.cmp(&b));
            prop_assert_eq!(SmallKey::new(&a) == SmallKey::new(&b), a == b);
        }
    }
}
