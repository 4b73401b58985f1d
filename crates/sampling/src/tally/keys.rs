//! A hash table of keys with what is counted of each.
//!
//! A tally looks up a key for each record, millions of keys in no order, so most look-ups wait for memory. Two things
//! help: a key and its counts lie in one cache line, and look-ups come in batches, whose lines are all asked for before
//! the first one is needed. A map that looks keys up one by one cannot do that.
//!
//! A key lies at the place that the high bits of its hash name, or behind it (linear probing). So tables of different
//! sizes have their keys in about the same order, and [`super::groups`] adds several up from their beginnings to their ends.

use std::sync::OnceLock;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Longest key that lies in its slot; a longer one lies in the arena.
const SHORT_BYTES: usize = 24;
/// Look-ups of a batch.
const BATCH: usize = 64;
/// A new table has 2^this places.
const FIRST_BITS: u32 = 9;
/// Bits of a hash that are kept.
const HASH_BITS: u32 = 32;
/// Slots that are added where keys run over the end.
const OVERRUN: usize = 16;

/// A key in 24 bytes: itself and zeros, or the start, the end and the place in an arena of a long one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Packed {
    bytes: [u8; SHORT_BYTES],
    /// Length of the key and 1; 0 in a slot without a key.
    len1: u32,
    /// The high bits of the key's hash.
    hash: u32,
}

/// A key and its counts; a cache line if these have 32 bytes.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
pub(super) struct Slot<C> {
    key: Packed,
    pub counts: C,
}

/// Keys and their counts.
#[derive(Debug, Clone)]
pub(super) struct KeyTable<C> {
    slots: Vec<Slot<C>>,
    bits: u32,
    len: usize,
    /// Long keys, one behind the other.
    arena: Vec<u8>,
}

/// Keys that are looked up together, each with a value.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    keys: [Packed; BATCH],
    values: [f64; BATCH],
    len: usize,
    /// Long keys of the batch, one behind the other.
    long: Vec<u8>,
    seeds: Seeds,
}

type Seeds = [u64; 3];

/// Where the counts of a batch's keys are.
pub(super) type Places = [u32; BATCH];

/// Numbers that make hashes of keys differ from process to process, so that nobody can choose keys of one hash.
fn seeds() -> Seeds {
    static SEEDS: OnceLock<Seeds> = OnceLock::new();
    *SEEDS.get_or_init(rand::random)
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The eight bytes from `at` on.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Up to eight bytes as a number, the first one lowest.
#[inline(always)]
fn few(bytes: &[u8]) -> u64 {
    let half = |at: usize| u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")));
    match bytes.len() {
        0 => 0,
        len @ 1..4 => {
            let at = |place: usize| u64::from(bytes[place]) << (8 * place);
            at(0) | at(len / 2) | at(len - 1)
        }
        8 => word(bytes, 0),
        len => half(0) | half(len - 4) << (8 * (len - 4)),
    }
}

impl Packed {
    #[inline(always)]
    fn short([a, b, c]: [u64; 3], len: usize, seeds: &Seeds) -> Packed {
        let hash = fold(fold(a ^ seeds[0], b ^ seeds[1]) ^ c ^ ((len as u64) << 56), seeds[2]);
        let mut bytes = [0; SHORT_BYTES];
        bytes[..8].copy_from_slice(&a.to_le_bytes());
        bytes[8..16].copy_from_slice(&b.to_le_bytes());
        bytes[16..].copy_from_slice(&c.to_le_bytes());
        Packed { bytes, len1: len as u32 + 1, hash: (hash >> 32) as u32 }
    }

    fn long(key: &[u8], place: usize, seeds: &Seeds) -> Packed {
        let mut bytes = [0; SHORT_BYTES];
        bytes[..8].copy_from_slice(&key[..8]);
        bytes[8..16].copy_from_slice(&key[key.len() - 8..]);
        let hash = xxh3_64_with_seed(key, seeds[0]);
        Packed { bytes, len1: key.len() as u32 + 1, hash: (hash >> 32) as u32 }.at(place)
    }

    /// A long key that lies at another place.
    fn at(mut self, place: usize) -> Packed {
        self.bytes[16..].copy_from_slice(&(place as u64).to_le_bytes());
        self
    }

    #[inline(always)]
    fn of(key: &[u8], long: &mut Vec<u8>, seeds: &Seeds) -> Packed {
        let len = key.len();
        match len {
            0..=8 => Packed::short([few(key), 0, 0], len, seeds),
            9..=16 => Packed::short([word(key, 0), few(&key[8..]), 0], len, seeds),
            17..=SHORT_BYTES => Packed::short([word(key, 0), word(key, 8), few(&key[16..])], len, seeds),
            _ => {
                assert!(
                    u32::try_from(len).is_ok_and(|len| len < u32::MAX),
                    "records are shorter than a key of {len} bytes"
                );
                long.extend_from_slice(key);
                Packed::long(key, long.len() - len, seeds)
            }
        }
    }

    #[inline(always)]
    fn is_long(&self) -> bool {
        self.len1 as usize > SHORT_BYTES + 1
    }

    fn place(&self) -> usize {
        word(&self.bytes, 16) as usize
    }

    /// The key; `long` holds it if it is long.
    fn key<'a>(&'a self, long: &'a [u8]) -> &'a [u8] {
        let len = self.len1 as usize - 1;
        if self.is_long() { &long[self.place()..self.place() + len] } else { &self.bytes[..len] }
    }

    /// Both are the same key; each long one lies in its own bytes.
    #[inline(always)]
    fn is_key(&self, long: &[u8], other: &Packed, of_other: &[u8]) -> bool {
        if self.len1 != other.len1 {
            return false;
        }
        match self.is_long() {
            false => self.bytes == other.bytes,
            true => {
                self.hash == other.hash
                    && self.bytes[..16] == other.bytes[..16]
                    && self.key(long) == other.key(of_other)
            }
        }
    }
}

impl Batch {
    pub fn new() -> Batch {
        Batch { keys: [Packed::default(); BATCH], values: [0.0; BATCH], len: 0, long: Vec::new(), seeds: seeds() }
    }

    /// Adds a look-up. True if the batch is full then: it must be taken by [`KeyTable::find`].
    #[inline(always)]
    #[must_use]
    pub fn push(&mut self, key: &[u8], value: f64) -> bool {
        let key = Packed::of(key, &mut self.long, &self.seeds);
        self.push_packed(key, value)
    }

    /// As [`Batch::push`], of the key that is `bytes[start..end]`. It is faster for short keys, whose bytes are read
    /// together with those behind them.
    #[inline(always)]
    #[must_use]
    pub fn push_within(&mut self, bytes: &[u8], start: usize, end: usize, value: f64) -> bool {
        let len = end - start;
        match bytes[start..].first_chunk::<SHORT_BYTES>() {
            Some(around) if len <= SHORT_BYTES => {
                let masked = |number: usize| word(around, 8 * number) & low_bytes(len.saturating_sub(8 * number));
                self.push_packed(Packed::short([masked(0), masked(1), masked(2)], len, &self.seeds), value)
            }
            _ => self.push(&bytes[start..end], value),
        }
    }

    #[inline(always)]
    fn push_packed(&mut self, key: Packed, value: f64) -> bool {
        let at = self.len % BATCH;
        self.keys[at] = key;
        self.values[at] = value;
        self.len += 1;
        self.len == BATCH
    }

    /// The values of the batch, in their order.
    pub fn values(&self) -> &[f64] {
        &self.values[..self.len]
    }

    pub fn clear(&mut self) {
        self.len = 0;
        self.long.clear();
    }
}

/// A word whose lowest `len` bytes are all ones.
#[inline(always)]
fn low_bytes(len: usize) -> u64 {
    if len >= 8 { u64::MAX } else { (1 << (8 * len)) - 1 }
}

impl<C: Copy + Default> KeyTable<C> {
    pub fn new() -> KeyTable<C> {
        KeyTable { slots: slots(FIRST_BITS), bits: FIRST_BITS, len: 0, arena: Vec::new() }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Finds the counts of the keys of a batch, in its order: [`KeyTable::counts`] has them at these places until the next
    /// batch. Keys that are not there yet are added.
    #[inline]
    pub fn find(&mut self, batch: &Batch) -> Places {
        assert!(batch.len <= BATCH, "a full batch is counted before more is added");
        while self.len + batch.len > (1 << self.bits) / 4 * 3 {
            self.grow();
        }
        let keys = &batch.keys[..batch.len];
        // The processor asks for many lines at a time, since no read depends on another.
        let touched = keys.iter().fold(0, |all, key| all ^ self.slots[self.home(key.hash)].key.hash);
        std::hint::black_box(touched);
        let mut places = [0; BATCH];
        for (place, key) in places.iter_mut().zip(keys) {
            *place = self.find_or_insert(key, &batch.long) as u32;
        }
        places
    }

    /// The counts at a place.
    #[inline(always)]
    pub fn counts(&mut self, place: u32) -> &mut C {
        &mut self.slots[place as usize].counts
    }

    /// Calls `read` with the counts at places, which must not depend on each other. So the processor asks for all that
    /// it reads at once.
    #[inline(always)]
    pub fn touch(&self, places: &[u32], read: impl Fn(&C) -> u32) {
        let touched = places.iter().fold(0, |all, place| all ^ read(&self.slots[*place as usize].counts));
        std::hint::black_box(touched);
    }

    #[inline(always)]
    fn home(&self, hash: u32) -> usize {
        (hash >> (HASH_BITS - self.bits)) as usize
    }

    #[inline(always)]
    fn find_or_insert(&mut self, key: &Packed, long: &[u8]) -> usize {
        let mut at = self.home(key.hash);
        loop {
            let slot = &self.slots[at];
            if slot.key.is_key(&self.arena, key, long) {
                return at;
            }
            if slot.key.len1 == 0 {
                self.insert(at, key, long);
                return at;
            }
            at = self.next(at);
        }
    }

    fn insert(&mut self, at: usize, key: &Packed, long: &[u8]) {
        self.len += 1;
        self.slots[at].key = match key.is_long() {
            false => *key,
            true => {
                let bytes = key.key(long);
                self.arena.extend_from_slice(bytes);
                key.at(self.arena.len() - bytes.len())
            }
        };
    }

    /// The slot behind another one; there always is one.
    #[inline(always)]
    fn next(&mut self, at: usize) -> usize {
        if at + 1 == self.slots.len() {
            self.slots.resize(at + 1 + OVERRUN, Slot::default());
        }
        at + 1
    }

    /// Twice as many places. Both tables are gone through from their beginning to their end.
    fn grow(&mut self) {
        self.bits += 1;
        assert!(self.bits < HASH_BITS, "a place and what runs over the end have numbers of 32 bits");
        for slot in std::mem::replace(&mut self.slots, slots(self.bits)).into_iter().filter(|slot| slot.key.len1 > 0) {
            let mut at = self.home(slot.key.hash);
            while self.slots[at].key.len1 > 0 {
                at = self.next(at);
            }
            self.slots[at] = slot;
        }
    }

    /// The counts of a key.
    pub fn get(&self, key: &[u8]) -> Option<&Slot<C>> {
        let mut long = Vec::new();
        let key = Packed::of(key, &mut long, &seeds());
        let from = &self.slots[self.home(key.hash)..];
        let mut until_free = from.iter().take_while(|slot| slot.key.len1 > 0);
        until_free.find(|slot| slot.key.is_key(&self.arena, &key, &long))
    }

    /// The slots whose hashes have the given `part` as their highest bits: of 2^`part_bits` parts.
    pub fn part(&self, part: u32, part_bits: u32) -> impl Iterator<Item = &Slot<C>> {
        let is_of_part = move |slot: &&Slot<C>| slot.key.len1 > 0 && part_of(slot.hash(), part_bits) == part;
        let (first, last) = match part_bits {
            0 => (0, u32::MAX),
            _ => (part << (HASH_BITS - part_bits), (part << (HASH_BITS - part_bits)) | (u32::MAX >> part_bits)),
        };
        let (first, last) = (self.home(first), self.home(last));
        // Keys may lie behind their place, with no free slot between.
        let behind = self.slots[last + 1..].iter().take_while(|slot| slot.key.len1 > 0);
        self.slots[first..=last].iter().chain(behind).filter(is_of_part)
    }

    /// The key of a slot of this table.
    pub fn key<'a>(&'a self, slot: &'a Slot<C>) -> &'a [u8] {
        slot.key.key(&self.arena)
    }

    /// A slot of this table has the key of a slot of another one.
    pub fn is_key(&self, slot: &Slot<C>, other: &KeyTable<C>, of_other: &Slot<C>) -> bool {
        slot.key.is_key(&self.arena, &of_other.key, &other.arena)
    }
}

impl<C> Slot<C> {
    /// The high bits of the key's hash.
    pub fn hash(&self) -> u32 {
        self.key.hash
    }
}

/// The part that a hash belongs to.
fn part_of(hash: u32, part_bits: u32) -> u32 {
    if part_bits == 0 { 0 } else { hash >> (HASH_BITS - part_bits) }
}

/// Free slots for 2^`bits` places.
fn slots<C: Copy + Default>(bits: u32) -> Vec<Slot<C>> {
    vec![Slot::default(); (1 << bits) + OVERRUN]
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
