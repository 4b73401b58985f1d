//! Bytes written but not yet handed on: pieces at offsets that do not overlap, the newest winning.

use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub struct Pieces {
    by_start: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl Pieces {
    /// Bytes held.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// Where the first piece starts.
    pub fn first(&self) -> Option<u64> {
        self.by_start.keys().next().copied()
    }

    /// Puts a piece over what is there. Neighbours that touch become one, so that a stream stays one piece.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.cut(offset, offset + bytes.len() as u64);
        self.bytes += bytes.len();
        if let Some((start, before)) = self.by_start.range_mut(..offset).next_back()
            && *start + before.len() as u64 == offset
        {
            before.extend_from_slice(bytes);
            return;
        }
        self.by_start.insert(offset, bytes.to_vec());
    }

    /// Whether anything of `from..to` is held.
    pub fn holds(&self, from: u64, to: u64) -> bool {
        self.by_start.range(..to).next_back().is_some_and(|(start, piece)| start + piece.len() as u64 > from)
    }

    /// Takes away what lies in `from..to`.
    pub fn cut(&mut self, from: u64, to: u64) {
        let over: Vec<u64> =
            self.by_start.range(..to).rev().take_while(|(s, b)| **s + b.len() as u64 > from).map(|(s, _)| *s).collect();
        for start in over {
            let Some(mut piece) = self.by_start.remove(&start) else { continue };
            self.bytes -= piece.len();
            let end = start + piece.len() as u64;
            if end > to {
                let tail = piece.split_off((to - start) as usize);
                self.bytes += tail.len();
                self.by_start.insert(to, tail);
                piece.truncate((to - start) as usize);
            }
            if start < from {
                piece.truncate((from - start) as usize);
                self.bytes += piece.len();
                self.by_start.insert(start, piece);
            }
        }
    }

    /// The first piece, taken out.
    pub fn pop_first(&mut self) -> Option<(u64, Vec<u8>)> {
        let (start, piece) = self.by_start.pop_first()?;
        self.bytes -= piece.len();
        Some((start, piece))
    }

    /// The piece that starts at `offset`, taken out.
    pub fn take_at(&mut self, offset: u64) -> Option<Vec<u8>> {
        let piece = self.by_start.remove(&offset)?;
        self.bytes -= piece.len();
        Some(piece)
    }

    /// If what is held is exactly one piece from 0 to `size`: that piece, taken out.
    pub fn take_whole(&mut self, size: u64) -> Option<Vec<u8>> {
        let whole = self.by_start.len() == 1 && self.by_start.get(&0).is_some_and(|p| p.len() as u64 == size);
        if whole { self.take_at(0) } else { None }
    }

    /// Copies what is held of `offset..` over `out`.
    pub fn overlay(&self, offset: u64, out: &mut [u8]) {
        let end = offset + out.len() as u64;
        let over = self.by_start.range(..end).rev().take_while(|(s, b)| **s + b.len() as u64 > offset);
        for (&start, piece) in over {
            let from = start.max(offset);
            let to = (start + piece.len() as u64).min(end);
            out[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&piece[(from - start) as usize..(to - start) as usize]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_what_was_written_last(ops in proptest::collection::vec((any::<bool>(), 0u64..200, 1u64..60), 1..40)) {
            let (mut pieces, mut model) = (Pieces::default(), vec![None; 400]);
            for (n, (write, offset, len)) in ops.into_iter().enumerate() {
                let range = offset as usize..(offset + len) as usize;
                match write {
                    true => {
                        pieces.write(offset, &vec![n as u8; len as usize]);
                        model[range].fill(Some(n as u8));
                    }
                    false => {
                        pieces.cut(offset, offset + len);
                        model[range].fill(None);
                    }
                }
                let mut seen = vec![255; 400];
                pieces.overlay(0, &mut seen);
                let wanted: Vec<u8> = model.iter().map(|b| b.unwrap_or(255)).collect();
                prop_assert_eq!(&seen, &wanted);
                prop_assert_eq!(pieces.len_bytes(), model.iter().flatten().count());
                for from in (0..390).step_by(13) {
                    let any = model[from..from + 7].iter().any(Option::is_some);
                    prop_assert_eq!(pieces.holds(from as u64, from as u64 + 7), any);
                }
            }
            let mut last = None;
            while let Some((start, piece)) = pieces.pop_first() {
                prop_assert!(last < Some(start));
                last = Some(start + piece.len() as u64 - 1);
            }
            prop_assert_eq!(pieces.len_bytes(), 0);
        }
    }
}
