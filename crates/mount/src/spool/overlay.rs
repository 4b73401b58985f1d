//! The file that a spool log describes: which of its bytes the log holds, and which show from the version below. This
//! module does no I/O.

use super::record::{HEADER_BYTES, MAX_PAYLOAD_BYTES};
use rangemap::RangeMap;
use std::ops::Range;

/// A range of a file's bytes, and where the log holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSlice {
    /// Offset in the file.
    pub offset: u64,
    /// Length; at most one record's payload.
    pub len_bytes: u32,
    /// Offset of the record in the log.
    pub record: u64,
    /// Offset of the slice in the record's payload.
    pub skip_bytes: u32,
}

impl LogSlice {
    /// Offset in the file of the first byte behind the slice.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.len_bytes)
    }
}

/// A `Write` record: where it starts in the log, and where its payload starts in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Source {
    record: u64,
    offset: u64,
}

/// See the module. A clone stays valid while the log grows, because a log only grows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlay {
    written: RangeMap<u64, Source>,
    size_bytes: u64,
    /// Where writes ended, and their records: of each, all later ones ended before it.
    ends: Vec<(u64, u64)>,
    base_bytes: u64,
    /// Lengths that a program set, and where their records start in the log: of each, all later ones are longer.
    lengths: Vec<(u64, u64)>,
}

impl Overlay {
    /// A file without writes, over a version of `base_bytes`.
    pub fn new(base_bytes: u64) -> Overlay {
        let (written, size_bytes) = (RangeMap::new(), base_bytes);
        Overlay { written, size_bytes, ends: Vec::new(), base_bytes, lengths: Vec::new() }
    }

    /// Length of the file.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Offset behind the last byte that records from `since` on wrote, if no later one set a length.
    pub fn writes_end(&self, since: u64) -> u64 {
        self.ends.iter().find(|(record, _)| *record >= since).map_or(0, |(_, end)| *end)
    }

    /// Length of the prefix of the version below that shows where nothing was written. Bytes that were cut off never
    /// show again.
    pub fn kept_bytes(&self) -> u64 {
        self.shortest_set(0).map_or(self.base_bytes, |shortest| shortest.min(self.base_bytes))
    }

    /// The shortest length that a program set by records from `since` on: no byte behind it of any version below shows.
    /// None: what another mount wrote behind the end belongs to the file, too.
    pub fn shortest_set(&self, since: u64) -> Option<u64> {
        self.lengths.iter().find(|(record, _)| *record >= since).map(|(_, size_bytes)| *size_bytes)
    }

    /// Adds `len_bytes` at `offset`, which the log holds in consecutive records of maximum length from `record` on.
    pub fn write(&mut self, offset: u64, len_bytes: u64, record: u64) {
        let (mut at, end, mut record) = (offset, offset + len_bytes, record);
        let mut last = record;
        while at < end {
            last = record;
            let next = at + (end - at).min(MAX_PAYLOAD_BYTES as u64);
            self.written.insert(at..next, Source { record, offset: at });
            record += HEADER_BYTES as u64 + (next - at);
            at = next;
        }
        while self.ends.pop_if(|(_, shorter)| *shorter <= end).is_some() {}
        self.ends.push((last, end));
        self.size_bytes = self.size_bytes.max(end);
        assert!(self.kept_bytes() <= self.size_bytes, "the version below ends inside of the file");
    }

    /// Changes the length, by a record of the log. New bytes are a hole.
    pub fn set_len(&mut self, size_bytes: u64, record: u64) {
        if size_bytes < u64::MAX {
            self.written.remove(size_bytes..u64::MAX);
        }
        while self.lengths.pop_if(|(_, longer)| *longer >= size_bytes).is_some() {}
        self.lengths.push((record, size_bytes));
        self.size_bytes = size_bytes;
    }

    /// The written parts of `range`, in order of offsets.
    pub fn slices(&self, range: Range<u64>) -> impl Iterator<Item = LogSlice> + '_ {
        // The map rejects empty ranges.
        let searched = if range.is_empty() { 0..1 } else { range.clone() };
        self.written.overlapping(searched).filter_map(move |(part, source)| {
            let (from, to) = (part.start.max(range.start), part.end.min(range.end));
            (from < to).then(|| LogSlice {
                offset: from,
                len_bytes: (to - from) as u32,
                record: source.record,
                skip_bytes: (from - source.offset) as u32,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_long_write_spans_several_records() {
        let mut overlay = Overlay::new(0);
        overlay.write(10, MAX_PAYLOAD_BYTES as u64 + 5, 1000);
        let slices: Vec<LogSlice> = overlay.slices(0..u64::MAX).collect();
        let second = 1000 + (HEADER_BYTES + MAX_PAYLOAD_BYTES) as u64;
        assert_eq!(slices.iter().map(|p| p.record).collect::<Vec<_>>(), [1000, second]);
        assert_eq!((slices[1].offset, slices[1].len_bytes), (10 + MAX_PAYLOAD_BYTES as u64, 5));
        assert_eq!((overlay.size_bytes(), overlay.kept_bytes()), (MAX_PAYLOAD_BYTES as u64 + 15, 0));
    }

    #[test]
    fn the_shortest_length_that_was_set_counts_from_a_record_on() {
        let mut overlay = Overlay::new(50);
        assert_eq!((overlay.shortest_set(0), overlay.kept_bytes()), (None, 50));
        for (record, size_bytes) in [(1, 40), (2, 60), (3, 30), (4, 70)] {
            overlay.set_len(size_bytes, record);
        }
        assert_eq!([0, 3, 4, 5].map(|since| overlay.shortest_set(since)), [Some(30), Some(30), Some(70), None]);
        assert_eq!((overlay.size_bytes(), overlay.kept_bytes()), (70, 30));
    }

    #[test]
    fn the_end_of_writes_counts_from_a_record_on() {
        let mut overlay = Overlay::new(50);
        assert_eq!(overlay.writes_end(0), 0);
        for (record, end) in [(1, 40), (2, 60), (3, 30), (4, 30), (5, 20)] {
            overlay.write(end - 10, 10, record);
        }
        assert_eq!([0, 2, 3, 4, 5, 6].map(|since| overlay.writes_end(since)), [60, 60, 30, 30, 20, 0]);
    }

    proptest! {
        /// Compares with an array that says for each byte which write it came from, or that it is the version's below.
        #[test]
        fn each_byte_comes_from_its_last_write(
            base in 0u64..150,
            ops in proptest::collection::vec((any::<bool>(), 0u64..200, 1u64..60), 1..40),
        ) {
            const BELOW: u64 = u64::MAX;
            let mut overlay = Overlay::new(base);
            let mut model: Vec<Option<(u64, u64)>> = (0..base).map(|_| Some((BELOW, 0))).collect();
            for (n, (write, offset, len)) in (1u64..).zip(ops) {
                match write {
                    true => {
                        overlay.write(offset, len, n);
                        model.resize(model.len().max((offset + len) as usize), None);
                        (0..len).for_each(|i| model[(offset + i) as usize] = Some((n, i)));
                    }
                    false => {
                        overlay.set_len(offset, n);
                        model.resize(offset as usize, None);
                    }
                }
                prop_assert_eq!(overlay.size_bytes(), model.len() as u64);
            }
            for range in [0..u64::MAX, 0..77, 33..90, 120..121, 50..50] {
                let mut seen: Vec<Option<(u64, u64)>> =
                    (0..model.len() as u64).map(|i| (i < overlay.kept_bytes()).then_some((BELOW, 0))).collect();
                for slice in overlay.slices(range.clone()) {
                    prop_assert!(slice.offset >= range.start && slice.end() <= range.end);
                    for i in 0..u64::from(slice.len_bytes) {
                        seen[(slice.offset + i) as usize] = Some((slice.record, u64::from(slice.skip_bytes) + i));
                    }
                }
                for i in (range.start..range.end.min(model.len() as u64)).map(|i| i as usize) {
                    prop_assert_eq!(seen[i], model[i], "byte {}", i);
                }
            }
        }
    }
}
