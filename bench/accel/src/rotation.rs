//! Buffers that take turns, so that a race reads from memory and not from a cache that the last call has filled.

use std::cell::Cell;
use std::path::Path;

/// Where a race's bytes are when a call begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The same buffers for every call: in a cache, if one holds them.
    Cache,
    /// Buffers that take turns, four times as large together as the last-level cache.
    Memory,
}

impl Place {
    /// Both places.
    pub const BOTH: [Place; 2] = [Place::Cache, Place::Memory];

    /// What the name of a row says of its place.
    pub fn suffix(self) -> &'static str {
        match self {
            Place::Cache => "",
            Place::Memory => ", from memory",
        }
    }

    /// Sets of buffers of `set_bytes` each, for races of two, three or four ways.
    pub fn sets(self, set_bytes: usize) -> usize {
        match self {
            Place::Cache => 1,
            Place::Memory => coprime_to_ways((4 * last_level_bytes()).div_ceil(set_bytes)),
        }
    }
}

/// The next number in which neither two nor three goes: every way then meets every set.
fn coprime_to_ways(least: usize) -> usize {
    (least.max(5)..).find(|n| !n.is_multiple_of(2) && !n.is_multiple_of(3)).expect("one of six numbers is such")
}

/// Size of the largest cache of the first processor; 32 MiB if the system does not tell.
pub fn last_level_bytes() -> usize {
    let caches = Path::new("/sys/devices/system/cpu/cpu0/cache");
    let sizes = (0..8).filter_map(|i| std::fs::read_to_string(caches.join(format!("index{i}/size"))).ok());
    sizes.filter_map(|text| parse_size(text.trim())).max().unwrap_or(32 << 20)
}

/// Bytes of a size as the kernel writes it: `32768K`.
fn parse_size(text: &str) -> Option<usize> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit).filter(|size| *size > 0)
}

/// Sets of buffers, and whose turn it is. All ways of a race share it: no call meets the buffers of the call before.
pub struct Rotation<T> {
    sets: Vec<T>,
    next: Cell<usize>,
}

impl<T> Rotation<T> {
    /// As many sets as `place` needs if each has `set_bytes`; `make` makes each apart, as a store allocates fragments.
    pub fn new(place: Place, set_bytes: usize, make: impl FnMut(usize) -> T) -> Rotation<T> {
        (0..place.sets(set_bytes)).map(make).collect()
    }

    /// The set whose turn it is.
    pub fn turn(&self) -> &T {
        let at = self.next.get();
        self.next.set((at + 1) % self.sets.len());
        &self.sets[at]
    }

    /// All sets.
    pub fn sets(&self) -> &[T] {
        &self.sets
    }
}

impl<T> FromIterator<T> for Rotation<T> {
    fn from_iter<I: IntoIterator<Item = T>>(sets: I) -> Rotation<T> {
        Rotation { sets: sets.into_iter().collect(), next: Cell::new(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_four_times_the_last_level() {
        for set_bytes in [1 << 20, 14 << 20, 18 << 20] {
            let sets = Place::Memory.sets(set_bytes);
            assert!(
                sets * set_bytes >= 4 * last_level_bytes() && !sets.is_multiple_of(2) && !sets.is_multiple_of(3),
                "{sets}"
            );
        }
        assert_eq!(Place::Cache.sets(14 << 20), 1);
    }

    #[test]
    fn every_way_meets_every_set() {
        for ways in 2..=4 {
            let rotation = Rotation::new(Place::Memory, 14 << 20, |i| i);
            let sets = rotation.sets().len();
            let mut met = vec![vec![false; sets]; ways];
            (0..ways * sets).for_each(|call| met[call % ways][*rotation.turn()] = true);
            assert!(met.concat().iter().all(|met| *met), "{ways} ways, {sets} sets");
        }
    }

    #[test]
    fn sizes_of_caches_are_read() {
        let sizes = ["48K", "32768K", "2M", "512", "", "K", "0K"].map(parse_size);
        assert_eq!(sizes, [Some(48 << 10), Some(32 << 20), Some(2 << 20), Some(512), None, None, None]);
    }
}
