//! The address space of a recorded disk, and the pages of a file in it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Bytes of a page: what the page cache reads and writes.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes that a file gets at a time, and the longest request.
pub const EXTENT_BYTES: u64 = 1 << 20;

/// Extents of a device, the lowest free one first.
#[derive(Debug, Default)]
pub struct Space {
    free: BTreeSet<u64>,
    /// Extents from here on were never used.
    unused: u64,
}

impl Space {
    fn take(&mut self) -> u64 {
        self.free.pop_first().unwrap_or_else(|| {
            self.unused += 1;
            self.unused - 1
        })
    }

    fn give(&mut self, extent: u64) {
        let is_new = self.free.insert(extent);
        assert!(is_new && extent < self.unused, "extent {extent} was not in use");
    }
}

/// Where the bytes of a file lie.
#[derive(Debug, Default)]
pub struct Placement {
    /// Extent of the device by extent of the file.
    extents: BTreeMap<u64, u64>,
    /// First byte behind the last page that has a place.
    end: u64,
}

impl Placement {
    /// The places of a range of bytes, in pieces that stay within an extent; what has no place gets one.
    pub fn place(&mut self, space: &mut Space, bytes: Range<u64>) -> Vec<Range<u64>> {
        self.end = self.end.max(bytes.end);
        let pieces = pieces(bytes);
        pieces
            .map(|piece| {
                let extent = *self.extents.entry(piece.start / EXTENT_BYTES).or_insert_with(|| space.take());
                on_device(extent, &piece)
            })
            .collect()
    }

    /// Gives back what lies from byte `from` on, and says where it lay. Extents that keep an earlier byte stay.
    pub fn cut(&mut self, space: &mut Space, from: u64) -> Vec<Range<u64>> {
        let mut places = Vec::new();
        for piece in pieces(from..self.end.max(from)) {
            let number = piece.start / EXTENT_BYTES;
            let Some(extent) = self.extents.get(&number).copied() else { continue };
            places.push(on_device(extent, &piece));
            if piece.start.is_multiple_of(EXTENT_BYTES) {
                self.extents.remove(&number);
                space.give(extent);
            }
        }
        self.end = self.end.min(from);
        places
    }
}

fn on_device(extent: u64, piece: &Range<u64>) -> Range<u64> {
    let start = extent * EXTENT_BYTES + piece.start % EXTENT_BYTES;
    start..start + (piece.end - piece.start)
}

/// The parts of a range within one extent each.
fn pieces(bytes: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = bytes.start;
    std::iter::from_fn(move || {
        let end = bytes.end.min((at / EXTENT_BYTES + 1) * EXTENT_BYTES);
        let piece = at..end;
        at = end;
        (piece.start < piece.end).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_disk::SplitMix64;

    const MIB: u64 = EXTENT_BYTES;

    /// First byte and length of each.
    fn lengths(places: Vec<Range<u64>>) -> Vec<(u64, u64)> {
        places.into_iter().map(|place| (place.start, place.end - place.start)).collect()
    }

    #[test]
    fn a_range_is_split_at_extents_and_keeps_its_place() {
        let (mut space, mut a, mut b) = (Space::default(), Placement::default(), Placement::default());
        assert_eq!(lengths(a.place(&mut space, 0..4096)), [(0, 4096)]);
        assert_eq!(lengths(b.place(&mut space, 0..4096)), [(MIB, 4096)]);
        for _ in 0..2 {
            let places = lengths(a.place(&mut space, MIB - 4096..2 * MIB + 4096));
            assert_eq!(places, [(MIB - 4096, 4096), (2 * MIB, MIB), (3 * MIB, 4096)]);
        }
    }

    #[test]
    fn what_is_cut_is_used_again_from_the_lowest_on() {
        let (mut space, mut a, mut b) = (Space::default(), Placement::default(), Placement::default());
        a.place(&mut space, 0..3 * MIB);
        assert_eq!(lengths(a.cut(&mut space, MIB + 8192)), [(MIB + 8192, MIB - 8192), (2 * MIB, MIB)]);
        assert_eq!(lengths(b.place(&mut space, 0..2 * MIB)), [(2 * MIB, MIB), (3 * MIB, MIB)]);
        assert_eq!(lengths(a.cut(&mut space, 0)), [(0, MIB), (MIB, 8192)]);
        assert_eq!(a.cut(&mut space, 0), []);
        assert_eq!(lengths(a.place(&mut space, 9 * MIB..9 * MIB + 4096)), [(0, 4096)], "a hole takes no place");
        assert_eq!(lengths(a.cut(&mut space, 0)), [(0, 4096)]);
    }

    #[test]
    fn files_never_overlap() {
        let (mut rng, mut space) = (SplitMix64::new(1), Space::default());
        let mut files: Vec<Placement> = (0..8).map(|_| Placement::default()).collect();
        for _ in 0..2_000 {
            let at = rng.below(8) as usize;
            let start = rng.below(2_048) * PAGE_BYTES;
            match rng.below(4) {
                0 => drop(files[at].cut(&mut space, start)),
                _ => drop(files[at].place(&mut space, start..start + (1 + rng.below(512)) * PAGE_BYTES)),
            }
            let mut held: Vec<u64> = files.iter().flat_map(|file| file.extents.values().copied()).collect();
            held.extend(&space.free);
            held.sort_unstable();
            assert!(held.into_iter().eq(0..space.unused), "each extent is free or in one file");
        }
    }
}
