//! A file as its log says it is: what was written, over what it had before. Here is no I/O.

use super::record::{HEADER_BYTES, MAX_PAYLOAD_BYTES};
use std::collections::BTreeMap;
use std::ops::Range;

/// Some bytes of a file, and where in the log they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where in the file.
    pub offset: u64,
    /// How many; at most a record's payload.
    pub len_bytes: u32,
    /// Where the record starts in the log.
    pub record: u64,
    /// Bytes of the payload before these.
    pub skip_bytes: u32,
}

impl Piece {
    /// Where in the file it ends.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.len_bytes)
    }

    fn part(&self, range: Range<u64>) -> Option<Piece> {
        let (from, to) = (range.start.max(self.offset), range.end.min(self.end()));
        (from < to).then(|| Piece {
            offset: from,
            len_bytes: (to - from) as u32,
            record: self.record,
            skip_bytes: self.skip_bytes + (from - self.offset) as u32,
        })
    }
}

/// See the module. Clones are as the file was then: a log only grows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlay {
    /// By offset; none overlap.
    pieces: BTreeMap<u64, Piece>,
    size_bytes: u64,
    kept_bytes: u64,
}

impl Overlay {
    /// Over a version of this length.
    pub fn new(base_bytes: u64) -> Overlay {
        Overlay { pieces: BTreeMap::new(), size_bytes: base_bytes, kept_bytes: base_bytes }
    }

    /// Length of the file.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Of the version below, so many bytes from its start are part of the file where nothing was written; behind them is nothing.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Bytes at `offset` are in the log, in records that start at `record` and are as long as they can be.
    pub fn write(&mut self, offset: u64, len_bytes: u64, record: u64) {
        self.cut(offset..offset + len_bytes);
        let (mut done, mut record) = (0, record);
        while done < len_bytes {
            let now = (len_bytes - done).min(MAX_PAYLOAD_BYTES as u64);
            let piece = Piece { offset: offset + done, len_bytes: now as u32, record, skip_bytes: 0 };
            self.pieces.insert(piece.offset, piece);
            done += now;
            record += HEADER_BYTES as u64 + now;
        }
        self.size_bytes = self.size_bytes.max(offset + len_bytes);
    }

    /// Changes the length; what is added is a hole.
    pub fn set_len(&mut self, size_bytes: u64) {
        self.cut(size_bytes..u64::MAX);
        self.kept_bytes = self.kept_bytes.min(size_bytes);
        self.size_bytes = size_bytes;
    }

    /// What lies in a range, in order.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece> + '_ {
        let first = self.pieces.range(..range.start).next_back().map(|(_, piece)| piece);
        let rest = self.pieces.range(range.start.min(range.end)..range.end).map(|(_, piece)| piece);
        first.into_iter().chain(rest).filter_map(move |piece| piece.part(range.clone()))
    }

    fn cut(&mut self, range: Range<u64>) {
        let over: Vec<Piece> = {
            let before = self.pieces.range(..range.start).next_back().map(|(_, piece)| *piece);
            let inside = self.pieces.range(range.clone()).map(|(_, piece)| *piece);
            before.into_iter().chain(inside).filter(|piece| piece.end() > range.start).collect()
        };
        for piece in over {
            self.pieces.remove(&piece.offset);
            for part in [piece.part(0..range.start), piece.part(range.end..u64::MAX)].into_iter().flatten() {
                self.pieces.insert(part.offset, part);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_long_write_is_as_many_records_as_it_takes() {
        let mut overlay = Overlay::new(0);
        overlay.write(10, MAX_PAYLOAD_BYTES as u64 + 5, 1000);
        let pieces: Vec<Piece> = overlay.pieces(0..u64::MAX).collect();
        let second = 1000 + (HEADER_BYTES + MAX_PAYLOAD_BYTES) as u64;
        assert_eq!(pieces.iter().map(|p| p.record).collect::<Vec<_>>(), [1000, second]);
        assert_eq!((pieces[1].offset, pieces[1].len_bytes), (10 + MAX_PAYLOAD_BYTES as u64, 5));
        assert_eq!((overlay.size_bytes(), overlay.kept_bytes()), (MAX_PAYLOAD_BYTES as u64 + 15, 0));
    }

    proptest! {
        /// Against an array of bytes: who wrote each one last, the version below, or nobody.
        #[test]
        fn what_is_seen_is_what_was_written_last(
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
                        overlay.set_len(offset);
                        model.resize(offset as usize, None);
                    }
                }
                prop_assert_eq!(overlay.size_bytes(), model.len() as u64);
            }
            for range in [0..u64::MAX, 0..77, 33..90, 120..121, 50..50] {
                let mut seen: Vec<Option<(u64, u64)>> =
                    (0..model.len() as u64).map(|i| (i < overlay.kept_bytes()).then_some((BELOW, 0))).collect();
                for piece in overlay.pieces(range.clone()) {
                    prop_assert!(piece.offset >= range.start && piece.end() <= range.end);
                    for i in 0..u64::from(piece.len_bytes) {
                        seen[(piece.offset + i) as usize] = Some((piece.record, u64::from(piece.skip_bytes) + i));
                    }
                }
                for i in (range.start..range.end.min(model.len() as u64)).map(|i| i as usize) {
                    prop_assert_eq!(seen[i], model[i], "byte {}", i);
                }
            }
        }
    }
}
