//! An SSD that holds data: what an emulator serves. The data lie by logical page; flash is simulated beside them, and says how
//! long each request takes.
//!
//! What only the device's write buffer has is in memory of its own, and a power cut drops it. Without a write buffer every
//! write is on flash once it is complete. Bytes that were trimmed stay zero after a cut, although flash has no trace of it.

use crate::backing::{Backing, Memory, is_zero, parts};
use crate::config::{Config, ConfigError};
use crate::device::Ns;
use crate::replay::{Figures, Tally};
use crate::ssd::{Op, Ssd};
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use tessera_disk::SplitMix64;

/// The most zeros that are written at a time: with a write buffer they take memory until they are on flash.
const ZEROS_STEP: u64 = 8 << 20;

/// Bytes that are laid out at a time.
const PRELOAD_STEP: u64 = 16 << 20;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// There is no power.
    #[error("the power is off")]
    PowerOff,
    /// The bytes of the flash cannot be read or written.
    #[error(transparent)]
    Backing(#[from] io::Error),
}

/// Whether there is power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    /// There is.
    On,
    /// There is none.
    Off {
        /// When it returns; `None`: when it is turned on.
        until: Option<Ns>,
    },
}

/// Power cuts after so many requests, counted from when power is on.
#[derive(Debug, Clone)]
pub struct Cuts {
    /// Requests to a cut, or with a seed the most of them.
    pub after: u64,
    /// Draws how many requests there are to each cut.
    pub seed: Option<u64>,
    /// How long there is no power; `None`: until it is turned on.
    pub off_for: Option<Ns>,
}

/// When the next cut comes.
struct NextCut {
    cuts: Cuts,
    random: Option<SplitMix64>,
    left: u64,
}

impl NextCut {
    fn new(cuts: Cuts) -> Self {
        let random = cuts.seed.map(SplitMix64::new);
        let mut next = NextCut { cuts, random, left: 0 };
        next.draw();
        next
    }

    fn draw(&mut self) {
        let after = self.cuts.after.max(1);
        self.left = self.random.as_mut().map_or(after, |random| 1 + random.below(after));
    }
}

/// Power cuts so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CutCount {
    /// All of them.
    pub all: u64,
    /// Those that dropped something from the write buffer that was acknowledged and not flushed.
    pub lossy: u64,
}

/// An SSD with data.
pub struct Emulator {
    ssd: Ssd,
    /// What is on flash.
    backing: Box<dyn Backing>,
    /// Pages that the write buffer has. Those that left it are here only until `settle` has put them on flash.
    volatile: HashMap<u64, Box<[u8]>>,
    page_bytes: u64,
    power: Power,
    next_cut: Option<NextCut>,
    lossy_cuts: u64,
    /// The time of the host when the SSD's began.
    epoch: Ns,
    tally: Tally,
}

impl Emulator {
    /// An SSD in memory whose bytes are all zero.
    ///
    /// # Errors
    /// What is asked for cannot be made.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        Emulator::with_backing(config, Box::new(Memory::new(config.shape.page_bytes)))
    }

    /// An SSD whose bytes are elsewhere.
    ///
    /// # Errors
    /// What is asked for cannot be made.
    pub fn with_backing(config: &Config, backing: Box<dyn Backing>) -> Result<Self, ConfigError> {
        Ok(Emulator {
            ssd: Ssd::new(config)?,
            backing,
            volatile: HashMap::new(),
            page_bytes: config.shape.page_bytes.into(),
            power: Power::On,
            next_cut: None,
            lossy_cuts: 0,
            epoch: 0,
            tally: Tally::default(),
        })
    }

    /// Lays out the flash for data that the backing has in these ranges, as if they had been written in order; figures begin after that.
    pub fn preload(&mut self, ranges: impl IntoIterator<Item = Range<u64>>) {
        let mut next = 0;
        for range in ranges {
            let end = range.end.div_ceil(self.page_bytes) * self.page_bytes;
            let start = (range.start / self.page_bytes * self.page_bytes).max(next);
            for at in (start..end).step_by(PRELOAD_STEP as usize) {
                self.ssd.submit(0, Op::Write, at, PRELOAD_STEP.min(end - at));
            }
            next = next.max(end);
        }
        self.ssd.flush(0);
        self.ssd.reset();
    }

    /// The simulated SSD.
    pub fn ssd(&self) -> &Ssd {
        &self.ssd
    }

    /// Reads; returns when the data have arrived. All requests lie within the capacity.
    ///
    /// # Errors
    /// There is no power, or the bytes cannot be read.
    pub fn read(&mut self, now: Ns, offset: u64, buffer: &mut [u8]) -> Result<Ns, Refusal> {
        self.begin(now)?;
        self.backing.read(offset, buffer)?;
        if !self.volatile.is_empty() {
            for part in parts(self.page_bytes, offset, buffer.len() as u64) {
                if let Some(page) = self.volatile.get(&part.page) {
                    buffer[part.from..part.from + part.len].copy_from_slice(&page[part.start..part.start + part.len]);
                }
            }
        }
        let done = self.submit(now, Op::Read, offset, buffer.len() as u64);
        Ok(self.finish(now, done))
    }

    /// Writes; returns when that is complete.
    ///
    /// # Errors
    /// There is no power, or the bytes cannot be written; then each sector is as it was or as it was to be.
    pub fn write(&mut self, now: Ns, offset: u64, data: &[u8]) -> Result<Ns, Refusal> {
        self.begin(now)?;
        self.settle()?;
        if self.ssd.has_write_buffer() {
            self.hold(offset, data.len() as u64, |from, target| {
                target.copy_from_slice(&data[from..from + target.len()]);
            })?;
        } else {
            self.backing.write(offset, data)?;
        }
        let done = self.submit(now, Op::Write, offset, data.len() as u64);
        self.settle()?;
        Ok(self.finish(now, done))
    }

    /// Makes bytes zero. Pages that lie within are trimmed unless they are to `stay` allocated; parts of pages are written.
    ///
    /// # Errors
    /// As [`Emulator::write`].
    pub fn zero(&mut self, now: Ns, offset: u64, bytes: u64, stay: bool) -> Result<Ns, Refusal> {
        self.begin(now)?;
        let (first, end) = (offset.div_ceil(self.page_bytes), (offset + bytes) / self.page_bytes);
        let done = if stay || first >= end {
            self.settle()?;
            self.write_zeros(now, offset, bytes)?
        } else {
            let (from, to) = (first * self.page_bytes, end * self.page_bytes);
            let done = self.drop_pages(now, from, to - from)?;
            // As after a TRIM what waits may still have no room; parts of pages that are written wait behind it.
            let settled = self.settle();
            if (offset, offset + bytes) != (from, to) {
                settled?;
            }
            let done = done.max(self.write_zeros(now, offset, from - offset)?);
            done.max(self.write_zeros(now, to, offset + bytes - to)?)
        };
        Ok(self.finish(now, done))
    }

    fn write_zeros(&mut self, now: Ns, offset: u64, bytes: u64) -> Result<Ns, Refusal> {
        let mut done = now;
        for at in (offset..offset + bytes).step_by(ZEROS_STEP as usize) {
            let bytes = ZEROS_STEP.min(offset + bytes - at);
            if self.ssd.has_write_buffer() {
                self.hold(at, bytes, |_, target| target.fill(0))?;
            } else {
                self.backing.zero(at, bytes)?;
            }
            done = done.max(self.submit(now, Op::Write, at, bytes));
            self.settle()?;
        }
        Ok(done)
    }

    /// Drops the pages that lie within; they are zero then.
    ///
    /// # Errors
    /// As [`Emulator::write`].
    pub fn trim(&mut self, now: Ns, offset: u64, bytes: u64) -> Result<Ns, Refusal> {
        self.begin(now)?;
        // On a full file system only a TRIM may make room for what waits.
        let done = self.drop_pages(now, offset, bytes)?;
        let _ = self.settle();
        Ok(self.finish(now, done))
    }

    fn drop_pages(&mut self, now: Ns, offset: u64, bytes: u64) -> Result<Ns, Refusal> {
        let pages = offset.div_ceil(self.page_bytes)..(offset + bytes) / self.page_bytes;
        if pages.start < pages.end {
            self.backing.zero(pages.start * self.page_bytes, (pages.end - pages.start) * self.page_bytes)?;
            self.volatile.retain(|page, _| !pages.contains(page));
        }
        Ok(self.submit(now, Op::Trim, offset, bytes))
    }

    /// Makes durable what was written; returns when it is.
    ///
    /// # Errors
    /// There is no power, or the bytes cannot be made durable.
    pub fn flush(&mut self, now: Ns) -> Result<Ns, Refusal> {
        self.begin(now)?;
        let done = self.epoch + self.ssd.flush(now.saturating_sub(self.epoch));
        self.settle()?;
        self.backing.sync()?;
        Ok(done.max(now))
    }

    /// Figures of reads, writes, TRIMs and zeroing so far; FLUSH is not counted.
    pub fn figures(&self) -> Figures {
        self.tally.figures(&self.ssd)
    }

    /// Cuts the power now and then.
    pub fn plan_cuts(&mut self, cuts: Cuts) {
        self.next_cut = Some(NextCut::new(cuts));
    }

    /// Lets the layer learn; see [`Ssd::plan_learning`].
    pub fn plan_learning(&mut self, requests: u64) -> bool {
        self.ssd.plan_learning(requests)
    }

    /// Whether there is power.
    pub fn power(&mut self, now: Ns) -> Power {
        match self.power {
            Power::Off { until: Some(until) } if until <= now => self.restore_power(until),
            _ => {}
        }
        self.power
    }

    /// Power cuts so far.
    pub fn power_cuts(&self) -> u64 {
        self.tally.power_cuts
    }

    /// Power cuts so far, those that lost something among them.
    pub fn cut_count(&self) -> CutCount {
        CutCount { all: self.tally.power_cuts, lossy: self.lossy_cuts }
    }

    /// Cuts the power until a time, or until it is turned on; returns how many pages were in the write buffer only, and are
    /// lost. If there is none, only the time changes.
    pub fn cut_power(&mut self, now: Ns, until: Option<Ns>) -> usize {
        self.tally.power_cuts += u64::from(self.power(now) == Power::On);
        self.power = Power::Off { until };
        let lost = std::mem::take(&mut self.volatile).len();
        self.lossy_cuts += u64::from(lost > 0);
        lost
    }

    /// Turns the power on. Requests that arrive before the map is recovered wait for it.
    pub fn restore_power(&mut self, now: Ns) {
        if self.power != Power::On {
            let recovery = self.ssd.cut_power();
            (self.power, self.epoch) = (Power::On, now + recovery);
            self.tally.recovered(recovery);
            if let Some(next) = &mut self.next_cut {
                next.draw();
            }
        }
    }

    fn begin(&mut self, now: Ns) -> Result<(), Refusal> {
        match self.power(now) {
            Power::On => Ok(()),
            Power::Off { .. } => Err(Refusal::PowerOff),
        }
    }

    /// What a request does to the simulated SSD.
    fn submit(&mut self, now: Ns, op: Op, offset: u64, bytes: u64) -> Ns {
        (self.epoch + self.ssd.submit(now.saturating_sub(self.epoch), op, offset, bytes)).max(now)
    }

    /// Counts a request that is complete; the next cut may follow it.
    fn finish(&mut self, now: Ns, done: Ns) -> Ns {
        self.tally.requests += 1;
        self.tally.served(now, done);
        self.ssd.count_request();
        if let Some(next) = &mut self.next_cut {
            next.left -= 1;
            if next.left == 0 {
                let until = next.cuts.off_for.map(|off| now + off);
                self.cut_power(now, until);
            }
        }
        done
    }

    /// Changes pages in the write buffer. `fill` gets where a part begins in the request, and its bytes.
    fn hold(&mut self, offset: u64, bytes: u64, fill: impl Fn(usize, &mut [u8])) -> io::Result<()> {
        for part in parts(self.page_bytes, offset, bytes) {
            if !self.volatile.contains_key(&part.page) {
                let mut page = vec![0; self.page_bytes as usize].into_boxed_slice();
                if part.len < page.len() {
                    self.backing.read(part.page * self.page_bytes, &mut page)?;
                }
                self.volatile.insert(part.page, page);
            }
            let page = self.volatile.get_mut(&part.page).expect("it was just brought in");
            fill(part.from, &mut page[part.start..part.start + part.len]);
        }
        Ok(())
    }

    /// Puts on flash what left the write buffer. What cannot be written stays, and is tried again.
    fn settle(&mut self) -> io::Result<()> {
        // Every page of the buffer is among them.
        if self.volatile.len() == self.ssd.buffered_pages() {
            return Ok(());
        }
        let gone = |page: &&u64| !self.ssd.is_buffered(**page as u32);
        let mut pages: Vec<u64> = self.volatile.keys().filter(gone).copied().collect();
        pages.sort_unstable();
        for number in pages {
            let (offset, page) = (number * self.page_bytes, &self.volatile[&number]);
            if is_zero(page) {
                self.backing.zero(offset, self.page_bytes)?;
            } else {
                self.backing.write(offset, page)?;
            }
            self.volatile.remove(&number);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
