//! Bytes that were written and not sent yet, by offset. Ranges do not overlap; the latest write wins.

use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub struct WriteBuffer {
    by_start: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl WriteBuffer {
    /// Number of bytes.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// Offset of the first byte.
    pub fn first(&self) -> Option<u64> {
        self.by_start.keys().next().copied()
    }

    /// Offset behind the last byte; 0: there is none.
    pub fn end(&self) -> u64 {
        self.by_start.last_key_value().map_or(0, |(start, bytes)| start + bytes.len() as u64)
    }

    /// Writes over the bytes in the buffer. A write that continues a range extends it, so that a stream stays one
    /// range.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.remove(offset, offset + bytes.len() as u64);
        self.bytes += bytes.len();
        if let Some((start, before)) = self.by_start.range_mut(..offset).next_back()
            && *start + before.len() as u64 == offset
        {
            before.extend_from_slice(bytes);
            return;
        }
        let replaced = self.by_start.insert(offset, bytes.to_vec());
        assert!(replaced.is_none(), "the range at {offset} was removed before");
    }

    /// Whether there are bytes in `from..to`.
    pub fn overlaps(&self, from: u64, to: u64) -> bool {
        self.by_start.range(..to).next_back().is_some_and(|(start, piece)| start + piece.len() as u64 > from)
    }

    /// Offset of the first byte from `from` on.
    pub fn next(&self, from: u64) -> Option<u64> {
        match self.overlaps(from, from.saturating_add(1)) {
            true => Some(from),
            false => self.by_start.range(from..).next().map(|(start, _)| *start),
        }
    }

    /// Removes the bytes in `from..to`.
    pub fn remove(&mut self, from: u64, to: u64) {
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

    /// Removes and returns the first range.
    pub fn pop_first(&mut self) -> Option<(u64, Vec<u8>)> {
        let (start, piece) = self.by_start.pop_first()?;
        self.bytes -= piece.len();
        Some((start, piece))
    }

    /// Removes and returns the range that starts at `offset`.
    pub fn take_at(&mut self, offset: u64) -> Option<Vec<u8>> {
        let piece = self.by_start.remove(&offset)?;
        self.bytes -= piece.len();
        Some(piece)
    }

    /// Removes and returns everything, if it is exactly one range from 0 to `size`.
    pub fn take_whole(&mut self, size: u64) -> Option<Vec<u8>> {
        let whole = self.by_start.len() == 1 && self.by_start.get(&0).is_some_and(|p| p.len() as u64 == size);
        if whole { self.take_at(0) } else { None }
    }

    /// Copies the bytes from `offset` on over `out`.
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
        fn each_byte_is_the_one_written_last(ops in proptest::collection::vec((any::<bool>(), 0u64..200, 1u64..60), 1..40)) {
            let (mut buffer, mut model) = (WriteBuffer::default(), vec![None; 400]);
            for (n, (write, offset, len)) in ops.into_iter().enumerate() {
                let range = offset as usize..(offset + len) as usize;
                match write {
                    true => {
                        buffer.write(offset, &vec![n as u8; len as usize]);
                        model[range].fill(Some(n as u8));
                    }
                    false => {
                        buffer.remove(offset, offset + len);
                        model[range].fill(None);
                    }
                }
                let mut seen = vec![255; 400];
                buffer.overlay(0, &mut seen);
                let wanted: Vec<u8> = model.iter().map(|b| b.unwrap_or(255)).collect();
                prop_assert_eq!(&seen, &wanted);
                prop_assert_eq!(buffer.len_bytes(), model.iter().flatten().count());
                for from in (0..390).step_by(13) {
                    let any = model[from..from + 7].iter().any(Option::is_some);
                    prop_assert_eq!(buffer.overlaps(from as u64, from as u64 + 7), any);
                }
            }
            let mut last = None;
            while let Some((start, piece)) = buffer.pop_first() {
                prop_assert!(last < Some(start));
                last = Some(start + piece.len() as u64 - 1);
            }
            prop_assert_eq!(buffer.len_bytes(), 0);
        }
    }
}
