//! The table of keys against a map, with keys that meet at their hashes.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};

/// A table and a map that count the same keys.
struct Counted {
    table: KeyTable<u64>,
    batch: Batch,
    map: HashMap<Vec<u8>, u64>,
    /// Bits that hashes keep; the others are 0, so that keys meet.
    mask: u32,
}

impl Counted {
    fn new(mask: u32) -> Counted {
        Counted { table: KeyTable::new(), batch: Batch::new(), map: HashMap::new(), mask }
    }

    fn add(&mut self, key: &[u8]) {
        let mut packed = Packed::of(key, &mut self.batch.long, &self.batch.seeds);
        packed.hash &= self.mask;
        if self.batch.push_packed(packed, 1.0) {
            self.count();
        }
        *self.map.entry(key.to_vec()).or_default() += 1;
    }

    fn count(&mut self) {
        let places = self.table.find(&self.batch);
        for (place, value) in places.iter().zip(self.batch.values()) {
            *self.table.counts(*place) += *value as u64;
        }
        self.batch.clear();
    }

    fn counts(&mut self, part_bits: u32) -> HashMap<Vec<u8>, u64> {
        self.count();
        let part = |part| self.table.part(part, part_bits).map(|slot| (self.table.key(slot).to_vec(), slot.counts));
        let found: Vec<_> = (0..1 << part_bits).flat_map(part).collect();
        assert_eq!(found.len(), self.table.len(), "each key is in one part");
        found.into_iter().collect()
    }
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..4),
        prop::collection::vec(0u8..2, 0..40),
        prop::collection::vec(Just(0), 0..60),
        (prop::collection::vec(0u8..2, 12), prop::collection::vec(0u8..2, 0..3)).prop_map(|(ends, middle)| [
            &ends[..],
            &middle,
            &ends
        ]
        .concat()),
    ]
}

proptest! {
    #[test]
    fn counts_are_those_of_a_map(keys in prop::collection::vec(key(), 0..2000), mask in prop_oneof![
        Just(u32::MAX), Just(0), Just(0xff), Just(0xf000_0000), Just(0xffff_0000)
    ], part_bits in 0u32..12) {
        let mut counted = Counted::new(mask);
        keys.iter().for_each(|key| counted.add(key));
        prop_assert_eq!(counted.counts(part_bits), counted.map);
    }

    #[test]
    fn keys_within_bytes_are_packed_as_alone(bytes in prop::collection::vec(any::<u8>(), 0..90), at in 0usize..90, len in 0usize..90) {
        let (start, end) = (at.min(bytes.len()), (at + len).min(bytes.len()));
        let (mut alone, mut within) = (Batch::new(), Batch::new());
        prop_assert!(!alone.push(&bytes[start..end], 3.0) && !within.push_within(&bytes, start, end, 3.0));
        prop_assert_eq!(alone.keys[0], within.keys[0]);
        prop_assert_eq!(within.keys[0].key(&within.long), &bytes[start..end]);
        prop_assert_eq!(alone.values(), &[3.0]);
    }
}

#[test]
fn a_table_grows_within_a_stream_of_new_keys() {
    for mask in [u32::MAX, 0xffff_ff00, 0xffff, 0xfff0_0000] {
        let mut counted = Counted::new(mask);
        for i in 0..6000u32 {
            counted.add(&i.wrapping_mul(0x9e37_79b9).to_le_bytes());
            counted.add(format!("a key that is too long for its slot {}", i % 50).as_bytes());
        }
        assert_eq!(counted.counts(3), counted.map);
        assert!(counted.table.bits >= FIRST_BITS + 4, "6050 keys need 2^13 places");
    }
}

#[test]
fn keys_are_got_by_their_bytes() {
    let mut counted = Counted::new(u32::MAX);
    let keys: Vec<Vec<u8>> = (0..2000)
        .map(|i| vec![b'k'; i % 200].into_iter().chain((i / 200).to_string().into_bytes()).collect())
        .collect();
    keys.iter().for_each(|key| counted.add(key));
    counted.count();
    for key in &keys {
        assert_eq!(counted.table.get(key).map(|slot| slot.counts), counted.map.get(key).copied(), "{key:?}");
    }
    assert!(counted.table.get(b"").is_none() && counted.table.get(&[b'k'; 500]).is_none());
}

#[test]
fn a_key_and_its_counts_are_a_cache_line() {
    assert_eq!(size_of::<Slot<[u64; 4]>>(), 64);
    assert_eq!(size_of::<Slot<crate::tally::OpenUnit>>(), 64);
    assert_eq!(size_of::<Slot<crate::tally::Sums>>(), 64);
}

#[test]
fn hashes_of_similar_keys_differ_in_all_bits() {
    let hashes: BTreeSet<u32> =
        (0..10_000u32).map(|i| Packed::of(format!("Page_{i}").as_bytes(), &mut Vec::new(), &seeds()).hash).collect();
    assert!(hashes.len() > 9_990, "{} of 10000", hashes.len());
    for bit in 0..32 {
        let ones = hashes.iter().filter(|hash| **hash >> bit & 1 == 1).count();
        assert!((4_500..5_500).contains(&ones), "bit {bit} is 1 in {ones} of 10000");
    }
}
