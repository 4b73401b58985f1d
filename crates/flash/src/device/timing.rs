//! How long flash operations take, and when dies and channels are free.
//!
//! A die does one operation at a time and a channel carries one page at a time, each in the order in which the
//! operations are issued. An operation that reaches its channel before a later reservation uses the gap.

use super::geometry::Shape;
use crate::ConfigError;
use std::collections::VecDeque;

/// Simulated time in ns since the start.
pub type Ns = u64;

/// Gaps that a channel remembers.
const GAPS: usize = 8;

/// Times of the flash operations, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Cells to the chip's register.
    pub read: Ns,
    /// Register to cells.
    pub program: Ns,
    /// Erase of a block.
    pub erase: Ns,
    /// A page on the channel.
    pub transfer: Ns,
}

impl Timing {
    /// Table 3.3 of the CPFTL paper: 25 us, 200 us, 1.5 ms.
    pub const SIMULATION: Timing = Timing { read: 25_000, program: 200_000, erase: 1_500_000, transfer: 0 };
    /// Table 3.6, the paper's emulator: 25 us, 300 us, 3 ms.
    pub const EMULATOR: Timing = Timing { read: 25_000, program: 300_000, erase: 3_000_000, transfer: 0 };

    /// Reads a preset (`simulation`, `emulator`) or `KEY=TIME,…` with the keys read, program, erase and transfer;
    /// a time is a number with `ns`, `us` or `ms`. Keys that are not named are those of `simulation`.
    ///
    /// # Errors
    /// An unknown name, or no time between 0 and 10 s.
    pub fn parse(text: &str) -> Result<Timing, ConfigError> {
        match text {
            "simulation" => return Ok(Self::SIMULATION),
            "emulator" => return Ok(Self::EMULATOR),
            _ => {}
        }
        let mut timing = Self::SIMULATION;
        for part in text.split(',') {
            let (key, value) = part.split_once('=').ok_or_else(|| ConfigError::Timing(part.into()))?;
            let field = match key {
                "read" => &mut timing.read,
                "program" => &mut timing.program,
                "erase" => &mut timing.erase,
                "transfer" => &mut timing.transfer,
                _ => return Err(ConfigError::Timing(part.into())),
            };
            let range = "0ns to 10000ms, as a number with ns, us or ms";
            *field = parse_duration(value).ok_or_else(|| ConfigError::Key {
                key: key.into(),
                value: value.into(),
                range,
            })?;
        }
        Ok(timing)
    }
}

/// A time up to 10 s, written with ns, us or ms.
pub fn parse_duration(text: &str) -> Option<Ns> {
    let (digits, unit) = [("ns", 1.0), ("us", 1e3), ("ms", 1e6)]
        .iter()
        .find_map(|(suffix, unit)| text.strip_suffix(suffix).map(|digits| (digits, unit)))?;
    let ns = digits.parse::<f64>().ok()? * unit;
    (0.0..=1e10).contains(&ns).then_some(ns as Ns)
}

/// When each die and channel is free.
#[derive(Debug)]
pub(crate) struct Schedule {
    timing: Timing,
    dies: Vec<Ns>,
    channels: Vec<Channel>,
    /// End of the last operation.
    busy_until: Ns,
}

#[derive(Debug, Default)]
struct Channel {
    free_at: Ns,
    /// Idle times before `free_at`, the oldest first.
    gaps: VecDeque<(Ns, Ns)>,
}

impl Channel {
    /// Reserves the channel for `duration`, not before `earliest`; returns the start.
    fn reserve(&mut self, earliest: Ns, duration: Ns) -> Ns {
        if duration == 0 {
            return earliest;
        }
        for i in 0..self.gaps.len() {
            let (from, to) = self.gaps[i];
            let start = from.max(earliest);
            if start + duration <= to {
                self.gaps[i] = (start + duration, to);
                return start;
            }
        }
        let start = self.free_at.max(earliest);
        if start > self.free_at {
            if self.gaps.len() == GAPS {
                self.gaps.pop_front();
            }
            self.gaps.push_back((self.free_at, start));
        }
        self.free_at = start + duration;
        start
    }
}

impl Schedule {
    pub fn new(shape: &Shape, timing: Timing) -> Self {
        let dies = (shape.channels * shape.chips * shape.dies) as usize;
        let channels = (0..shape.channels).map(|_| Channel::default()).collect();
        Schedule { timing, dies: vec![0; dies], channels, busy_until: 0 }
    }

    /// The die and the channel of a plane: neighbours in number are on different channels.
    fn place(&self, unit: u32) -> (usize, usize) {
        (unit as usize % self.dies.len(), unit as usize % self.channels.len())
    }

    fn occupy(&mut self, die: usize, until: Ns) -> Ns {
        self.dies[die] = until;
        self.busy_until = self.busy_until.max(until);
        until
    }

    /// Reads a page that is asked for at `now`; returns when it has arrived.
    pub fn read(&mut self, unit: u32, now: Ns) -> Ns {
        let (die, channel) = self.place(unit);
        let sensed = self.dies[die].max(now) + self.timing.read;
        let sent = self.channels[channel].reserve(sensed, self.timing.transfer) + self.timing.transfer;
        self.occupy(die, sent)
    }

    /// Programs a page that is sent at `now`; returns when it is done.
    pub fn program(&mut self, unit: u32, now: Ns) -> Ns {
        let (die, channel) = self.place(unit);
        let start = self.channels[channel].reserve(self.dies[die].max(now), self.timing.transfer);
        self.occupy(die, start + self.timing.transfer + self.timing.program)
    }

    /// Erases a block; returns when it is done.
    pub fn erase(&mut self, unit: u32, now: Ns) -> Ns {
        let (die, _) = self.place(unit);
        let end = self.dies[die].max(now) + self.timing.erase;
        self.occupy(die, end)
    }

    /// When every die is idle.
    pub fn busy_until(&self) -> Ns {
        self.busy_until
    }

    /// How long the collection of a block with `valid` pages takes.
    pub fn collection(&self, valid: u32) -> Ns {
        let page = self.timing.read + self.timing.program + 2 * self.timing.transfer;
        u64::from(valid) * page + self.timing.erase
    }

    /// Time before this is no idle time.
    pub fn begin_at(&mut self, now: Ns) {
        self.busy_until = self.busy_until.max(now);
    }

    /// Forgets what was issued; time begins anew.
    pub fn reset(&mut self) {
        self.dies.fill(0);
        self.channels.iter_mut().for_each(|c| *c = Channel::default());
        self.busy_until = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dies_work_in_parallel_and_share_their_channel() {
        let shape = Shape { channels: 1, chips: 2, ..Shape::ONE_DIE };
        let mut schedule = Schedule::new(&shape, Timing { transfer: 5_000, ..Timing::SIMULATION });
        assert_eq!((schedule.read(0, 0), schedule.read(1, 0)), (30_000, 35_000));
        assert_eq!(schedule.read(0, 0), 60_000, "the die was busy until its page was sent");
        assert_eq!(schedule.program(1, 0), 35_000 + 5_000 + 200_000, "the transfer uses the gap before that read's");
    }

    #[test]
    fn timings_are_read_and_wrong_ones_refused() {
        let timing = Timing::parse("read=50us,erase=2ms,transfer=10.5us").unwrap();
        assert_eq!((timing.read, timing.program, timing.erase, timing.transfer), (50_000, 200_000, 2_000_000, 10_500));
        for bad in ["", "fast", "read=5", "read=-1us", "read=NaNus", "seek=1ms"] {
            assert!(Timing::parse(bad).is_err(), "{bad}");
        }
    }
}
