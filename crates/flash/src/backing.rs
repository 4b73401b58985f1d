//! Where an emulated SSD keeps the bytes of its flash.

use std::collections::HashMap;
use std::io;

/// The bytes of the flash, by logical address. All of them are zero at first, and every range lies within the capacity.
pub trait Backing: Send {
    /// Reads bytes.
    ///
    /// # Errors
    /// They cannot be read.
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Replaces bytes.
    ///
    /// # Errors
    /// They cannot be written; some of them may be.
    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Makes bytes zero, and frees the memory of whole pages.
    ///
    /// # Errors
    /// They cannot be written; some of them may be.
    fn zero(&mut self, offset: u64, bytes: u64) -> io::Result<()>;

    /// Makes durable what was written, as far as it can be.
    ///
    /// # Errors
    /// It is not durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// A part of a page.
pub(crate) struct Part {
    pub page: u64,
    /// Where it begins in the page, and in the request.
    pub start: usize,
    pub from: usize,
    pub len: usize,
}

/// The pages that a range touches, in order.
pub(crate) fn parts(page_bytes: u64, offset: u64, bytes: u64) -> impl Iterator<Item = Part> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = offset + from as u64;
        let start = at % page_bytes;
        let len = (page_bytes - start).min(bytes - from as u64) as usize;
        let part = Part { page: at / page_bytes, start: start as usize, from, len };
        from += len;
        (len > 0).then_some(part)
    })
}

/// Whether all bytes are zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Bytes in memory, which grows with the pages that were written with other bytes than zeros.
pub struct Memory {
    pages: HashMap<u64, Box<[u8]>>,
    page_bytes: u64,
}

impl Memory {
    /// Memory without bytes other than zeros.
    pub fn new(page_bytes: u32) -> Self {
        Memory { pages: HashMap::new(), page_bytes: page_bytes.into() }
    }
}

impl Backing for Memory {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        for part in parts(self.page_bytes, offset, buffer.len() as u64) {
            let target = &mut buffer[part.from..part.from + part.len];
            match self.pages.get(&part.page) {
                Some(page) => target.copy_from_slice(&page[part.start..part.start + part.len]),
                None => target.fill(0),
            }
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let zeros = || vec![0; self.page_bytes as usize].into_boxed_slice();
        for part in parts(self.page_bytes, offset, data.len() as u64) {
            let data = &data[part.from..part.from + part.len];
            if is_zero(data) && (data.len() as u64 == self.page_bytes || !self.pages.contains_key(&part.page)) {
                self.pages.remove(&part.page);
                continue;
            }
            let page = self.pages.entry(part.page).or_insert_with(zeros);
            page[part.start..part.start + part.len].copy_from_slice(data);
        }
        Ok(())
    }

    fn zero(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        let whole = offset.div_ceil(self.page_bytes)..(offset + bytes) / self.page_bytes;
        if whole.end.saturating_sub(whole.start) > self.pages.len() as u64 {
            self.pages.retain(|page, _| !whole.contains(page));
        } else {
            whole.clone().for_each(|page| drop(self.pages.remove(&page)));
        }
        let head = bytes.min(offset.next_multiple_of(self.page_bytes) - offset);
        let tail = if whole.start <= whole.end { (offset + bytes) % self.page_bytes } else { 0 };
        for (at, bytes) in [(offset, head), (offset + bytes - tail, tail)] {
            for part in parts(self.page_bytes, at, bytes) {
                if let Some(page) = self.pages.get_mut(&part.page) {
                    page[part.start..part.start + part.len].fill(0);
                }
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_that_are_written_take_no_memory() {
        let mut memory = Memory::new(16);
        memory.write(3, &[0; 50]).unwrap();
        assert!(memory.pages.is_empty());
        memory.write(8, &[1; 32]).unwrap();
        memory.write(16, &[0; 16]).unwrap();
        memory.write(8, &[0; 8]).unwrap();
        let mut bytes = [9; 48];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!((&bytes[..32], &bytes[32..]), (&[0; 32][..], &[[1; 8], [0; 8]].concat()[..]));
        assert_eq!(memory.pages.len(), 2);
    }
}
