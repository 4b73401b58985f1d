//! A cache-oblivious lookahead array with lookahead pointers, on the CPU (M. Bender et al.: "Cache-oblivious streaming B-trees",
//! SPAA 2007, section 3): every so many-th entry of a level stands in the level above, too, and says where it is.
//!
//! A search halves the first level, the size of the insertion buffer. From there on it goes from pointer to pointer, and
//! compares the entries between two pointers one after the other.

use crate::map::{Level, Map};

/// What a pointer has in place of a physical page.
const POINTER: u32 = u32::MAX;

/// Entries and pointers of one level by key. A pointer stands before an entry with the same key.
struct PointedLevel {
    keys: Vec<u32>,
    /// Apart from the keys, so that these lie close together when they are compared.
    slots: Vec<Slot>,
}

#[derive(Clone, Copy)]
struct Slot {
    /// The physical page; [`POINTER`]: a pointer.
    place: u32,
    /// Where the search goes on in the level below: what this pointer, or the nearest one before this entry, points to.
    below: u32,
}

/// The levels, newest first.
pub struct Cola {
    levels: Vec<PointedLevel>,
    spacing: usize,
}

impl PointedLevel {
    fn new(level: &Level, below: Option<&PointedLevel>, spacing: usize) -> PointedLevel {
        let pointers = below.map_or(&[][..], |below| &below.keys);
        let mut pointers = (0u32..).zip(pointers).step_by(spacing).peekable();
        let (mut keys, mut slots) = (Vec::new(), Vec::new());
        let mut at = 0;
        for (key, place) in level.keys.iter().zip(&level.places) {
            while let Some((below, pointer)) = pointers.next_if(|(_, pointer)| *pointer <= key) {
                at = below;
                keys.push(*pointer);
                slots.push(Slot { place: POINTER, below });
            }
            keys.push(*key);
            slots.push(Slot { place: *place, below: at });
        }
        for (below, pointer) in pointers {
            keys.push(*pointer);
            slots.push(Slot { place: POINTER, below });
        }
        PointedLevel { keys, slots }
    }
}

impl Cola {
    /// Lays pointers to every `spacing`-th entry, pointers counted, into the level above it.
    pub fn new(map: &Map, spacing: usize) -> Cola {
        let mut levels: Vec<PointedLevel> = Vec::new();
        for level in map.levels().iter().rev() {
            levels.push(PointedLevel::new(level, levels.last(), spacing));
        }
        levels.reverse();
        Cola { levels, spacing }
    }

    /// Pointers in all levels.
    pub fn pointers(&self) -> usize {
        self.levels.iter().flat_map(|level| &level.slots).filter(|slot| slot.place == POINTER).count()
    }

    /// The physical page of a logical page, [`u32::MAX`] if no level has it.
    pub fn find(&self, page: u32) -> u32 {
        let Some((first, others)) = self.levels.split_first() else { return POINTER };
        let mut slot = slot_before(first, page, first.keys.partition_point(|key| *key <= page));
        for level in others {
            match slot {
                Found::Place(place) => return place,
                Found::Below(start) => {
                    let scanned = level.keys[start..].iter().take_while(|key| **key <= page).count();
                    debug_assert!(scanned <= self.spacing, "{scanned} entries between two pointers");
                    slot = slot_before(level, page, start + scanned);
                }
            }
        }
        match slot {
            Found::Place(place) => place,
            Found::Below(_) => POINTER,
        }
    }
}

/// What a level says.
enum Found {
    Place(u32),
    /// Where the search goes on in the level below.
    Below(usize),
}

/// What the last of the first `count` entries, which are those up to `page`, says of it.
fn slot_before(level: &PointedLevel, page: u32, count: usize) -> Found {
    let Some(last) = count.checked_sub(1) else { return Found::Below(0) };
    let slot = level.slots[last];
    if level.keys[last] == page && slot.place != POINTER {
        Found::Place(slot.place)
    } else {
        Found::Below(slot.below as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_bench_accel::timing::Noise;

    #[test]
    fn pointers_stand_before_entries_with_the_same_key() {
        let map = Map::of(10, vec![vec![4, 6], vec![1, 4, 5, 6, 9]]);
        let cola = Cola::new(&map, 2);
        // Entries 1, 5 and 9 of the second level stand in the first.
        assert_eq!(cola.levels[0].keys, [1, 4, 5, 6, 9]);
        assert_eq!(cola.levels[0].slots.iter().map(|slot| slot.below).collect::<Vec<_>>(), [0, 0, 2, 2, 4]);
        assert_eq!(cola.pointers(), 3);
        // Places are numbered through: 4 and 6 are in the first level, 1, 5 and 9 in the second.
        let found: Vec<u32> = (0..10).map(|page| cola.find(page)).collect();
        let none = u32::MAX;
        assert_eq!(found, [none, 2, none, none, 0, 4, 1, none, none, 6]);
    }

    #[test]
    fn a_search_equals_a_plain_map_for_every_spacing() {
        let mut noise = Noise::default();
        for spacing in [2, 3, 8, 64, 1024] {
            for _ in 0..20 {
                // Levels of any density, the lowest included.
                let level = |share: u32, noise: &mut Noise| (0..500).filter(|_| noise.below(100) < share).collect();
                let keys = [3, 0, 10, 40, 5, 80].map(|share| level(share, &mut noise)).to_vec();
                let map = Map::of(500, keys);
                let cola = Cola::new(&map, spacing);
                let found: Vec<u32> = (0..500).map(|page| cola.find(page)).collect();
                assert_eq!(found, map.table(), "spacing {spacing}");
            }
        }
    }
}
