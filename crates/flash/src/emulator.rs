//! An SSD that holds data: what an emulator serves. The data lie by logical page; flash is simulated beside them, and says how
//! long each request takes.

use crate::config::{Config, ConfigError};
use crate::device::Ns;
use crate::ssd::{Op, Ssd};
use std::collections::HashMap;

/// An SSD with data. Memory grows with the pages that hold other bytes than zeros.
pub struct Emulator {
    ssd: Ssd,
    pages: HashMap<u64, Box<[u8]>>,
    page_bytes: u64,
}

/// A part of a page.
struct Part {
    page: u64,
    /// Where it begins in the page, and in the request.
    start: usize,
    from: usize,
    len: usize,
}

impl Emulator {
    /// An SSD whose bytes are all zero.
    ///
    /// # Errors
    /// What is asked for cannot be made.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        let page_bytes = u64::from(config.shape.page_bytes);
        Ok(Emulator { ssd: Ssd::new(config)?, pages: HashMap::new(), page_bytes })
    }

    /// The simulated SSD.
    pub fn ssd(&self) -> &Ssd {
        &self.ssd
    }

    fn parts(&self, offset: u64, bytes: usize) -> impl Iterator<Item = Part> + use<> {
        let (page_bytes, mut from) = (self.page_bytes, 0);
        std::iter::from_fn(move || {
            let at = offset + from as u64;
            let start = (at % page_bytes) as usize;
            let len = (page_bytes as usize - start).min(bytes - from);
            let part = Part { page: at / page_bytes, start, from, len };
            from += len;
            (len > 0).then_some(part)
        })
    }

    /// Reads; returns when the data have arrived. All requests lie within the capacity.
    pub fn read(&mut self, now: Ns, offset: u64, buffer: &mut [u8]) -> Ns {
        for part in self.parts(offset, buffer.len()) {
            let target = &mut buffer[part.from..part.from + part.len];
            match self.pages.get(&part.page) {
                Some(page) => target.copy_from_slice(&page[part.start..part.start + part.len]),
                None => target.fill(0),
            }
        }
        self.ssd.submit(now, Op::Read, offset, buffer.len() as u64)
    }

    /// Writes; returns when that is complete.
    pub fn write(&mut self, now: Ns, offset: u64, data: &[u8]) -> Ns {
        for part in self.parts(offset, data.len()) {
            let source = &data[part.from..part.from + part.len];
            let zeros = || vec![0; self.page_bytes as usize].into_boxed_slice();
            self.pages.entry(part.page).or_insert_with(zeros)[part.start..part.start + part.len]
                .copy_from_slice(source);
        }
        self.ssd.submit(now, Op::Write, offset, data.len() as u64)
    }

    /// Makes bytes zero. Pages that lie within are trimmed unless they are to `stay` allocated; parts of pages are written.
    pub fn zero(&mut self, now: Ns, offset: u64, bytes: u64, stay: bool) -> Ns {
        let (first, end) = (offset.div_ceil(self.page_bytes), (offset + bytes) / self.page_bytes);
        if stay || first >= end {
            return self.write_zeros(now, offset, bytes);
        }
        let (from, to) = (first * self.page_bytes, end * self.page_bytes);
        let done = self.trim(now, from, to - from);
        let done = done.max(self.write_zeros(now, offset, from - offset));
        done.max(self.write_zeros(now, to, offset + bytes - to))
    }

    fn write_zeros(&mut self, now: Ns, offset: u64, bytes: u64) -> Ns {
        for part in self.parts(offset, bytes as usize) {
            if part.len as u64 == self.page_bytes {
                self.pages.remove(&part.page);
            } else if let Some(page) = self.pages.get_mut(&part.page) {
                page[part.start..part.start + part.len].fill(0);
            }
        }
        self.ssd.submit(now, Op::Write, offset, bytes)
    }

    /// Drops the pages that lie within; they are zero then.
    pub fn trim(&mut self, now: Ns, offset: u64, bytes: u64) -> Ns {
        let pages = offset.div_ceil(self.page_bytes)..(offset + bytes) / self.page_bytes;
        if pages.end.saturating_sub(pages.start) > self.pages.len() as u64 {
            self.pages.retain(|page, _| !pages.contains(page));
        } else {
            pages.for_each(|page| drop(self.pages.remove(&page)));
        }
        self.ssd.submit(now, Op::Trim, offset, bytes)
    }

    /// Makes durable what was written; returns when it is.
    pub fn flush(&mut self, now: Ns) -> Ns {
        self.ssd.flush(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CAPACITY: usize = 1 << 20;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn it_equals_plain_bytes(
            steps in prop::collection::vec((0..5u8, 0..CAPACITY, 0..9000usize, any::<u8>()), 1..80),
        ) {
            let mut emulator = Emulator::new(&Config { over_provisioning: 5.0, ..Config::new(CAPACITY as u64, "dftl") }).unwrap();
            let mut bytes = vec![0u8; CAPACITY];
            for (step, offset, len, value) in steps {
                let range = offset..(offset + len).min(CAPACITY);
                let (at, len) = (offset as u64, range.len() as u64);
                match step {
                    0 | 1 => {
                        bytes[range.clone()].fill(value);
                        emulator.write(0, at, &bytes[range]);
                    }
                    2 => {
                        bytes[range].fill(0);
                        emulator.zero(0, at, len, value % 2 == 0);
                    }
                    3 => {
                        let whole = offset.next_multiple_of(4096)..(offset + len as usize) / 4096 * 4096;
                        if whole.start < whole.end {
                            bytes[whole].fill(0);
                        }
                        emulator.trim(0, at, len);
                    }
                    _ => {
                        let mut read = vec![1; range.len()];
                        emulator.read(0, at, &mut read);
                        prop_assert!(read == bytes[range]);
                    }
                }
            }
            let mut all = vec![1; CAPACITY];
            emulator.read(0, 0, &mut all);
            prop_assert!(all == bytes);
            emulator.ssd().check().unwrap();
        }
    }
}
