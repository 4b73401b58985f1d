//! How long flash operations take, and when dies and channels are free.
//!
//! A die does one operation at a time and a channel carries one page at a time, each in the order in which the
//! operations are issued. A page that reaches its channel before a later reservation uses the gap, and so does a read of a die
//! that would be idle otherwise: until a page has come from another die that is to be programmed there, say.

use super::geometry::Shape;
use crate::ConfigError;
use crate::config::options;
use std::collections::VecDeque;

/// Simulated time in ns since the start.
pub type Ns = u64;

/// Gaps that a die or a channel remembers.
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
        for part in options(text)? {
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
    dies: Vec<Line>,
    channels: Vec<Line>,
    /// When the last program or erase of each block ends.
    written: Vec<Ns>,
    /// End of the last operation.
    busy_until: Ns,
}

/// What does one thing at a time.
#[derive(Debug, Default, Clone)]
struct Line {
    free_at: Ns,
    /// Idle times before `free_at`, the oldest first.
    gaps: VecDeque<(Ns, Ns)>,
}

impl Line {
    /// When something can start, not before `earliest`, that ends at `end(start)`; and the gap that it uses.
    fn place(&self, earliest: Ns, end: impl Fn(Ns) -> Ns) -> (Ns, Option<usize>) {
        let fits = |(from, to): &(Ns, Ns)| end(earliest.max(*from)) <= *to;
        match self.gaps.iter().position(fits) {
            Some(gap) => (earliest.max(self.gaps[gap].0), Some(gap)),
            None => (earliest.max(self.free_at), None),
        }
    }

    /// Takes a gap, or what follows the last reservation, from `start` to `end`.
    fn take(&mut self, gap: Option<usize>, start: Ns, end: Ns) {
        let (from, to) = match gap {
            Some(gap) => self.gaps.remove(gap).expect("it was found there"),
            None => (std::mem::replace(&mut self.free_at, end), start),
        };
        let rest = [(from, start), (end, to)].into_iter().filter(|(from, to)| from < to);
        let at = gap.unwrap_or(self.gaps.len());
        rest.rev().for_each(|idle| self.gaps.insert(at, idle));
        while self.gaps.len() > GAPS {
            self.gaps.pop_front();
        }
    }

    /// Reserves `duration`, not before `earliest`; returns the start.
    fn reserve(&mut self, earliest: Ns, duration: Ns) -> Ns {
        if duration == 0 {
            return earliest;
        }
        let (start, gap) = self.place(earliest, |start| start + duration);
        self.take(gap, start, start + duration);
        start
    }

    /// As [`Line::reserve`], after all that is reserved.
    fn reserve_last(&mut self, start: Ns, end: Ns) {
        assert!(start >= self.free_at, "it follows what was reserved before");
        self.take(None, start, end);
    }
}

impl Schedule {
    pub fn new(shape: &Shape, timing: Timing, blocks: u32) -> Self {
        let dies = vec![Line::default(); (shape.channels * shape.chips * shape.dies) as usize];
        let channels = vec![Line::default(); shape.channels as usize];
        Schedule { timing, dies, channels, written: vec![0; blocks as usize], busy_until: 0 }
    }

    /// The die and the channel of a plane: neighbours in number are on different channels.
    fn place(&self, unit: u32) -> (usize, usize) {
        (unit as usize % self.dies.len(), unit as usize % self.channels.len())
    }

    fn ends(&mut self, end: Ns) -> Ns {
        self.busy_until = self.busy_until.max(end);
        end
    }

    /// Reads a page of a block that is asked for at `now`; returns when it has arrived. It may use the time in which a die waits
    /// for a program's data, but not before what was programmed into its block.
    pub fn read(&mut self, unit: u32, block: u32, now: Ns) -> Ns {
        let (die, channel) = self.place(unit);
        let Timing { read, transfer, .. } = self.timing;
        let sent = |start: Ns| match transfer {
            0 => start + read,
            _ => self.channels[channel].place(start + read, |start| start + transfer).0 + transfer,
        };
        let (start, gap) = self.dies[die].place(now.max(self.written[block as usize]), sent);
        let end = self.channels[channel].reserve(start + read, transfer) + transfer;
        self.dies[die].take(gap, start, end);
        self.ends(end)
    }

    /// Programs a page of a block that is sent at `now`; returns when it is done.
    pub fn program(&mut self, unit: u32, block: u32, now: Ns) -> Ns {
        let (die, channel) = self.place(unit);
        let earliest = self.dies[die].free_at.max(now);
        let start = self.channels[channel].reserve(earliest, self.timing.transfer);
        let end = start + self.timing.transfer + self.timing.program;
        self.dies[die].reserve_last(start, end);
        self.written[block as usize] = end;
        self.ends(end)
    }

    /// Erases a block; returns when it is done.
    pub fn erase(&mut self, unit: u32, block: u32, now: Ns) -> Ns {
        let (die, _) = self.place(unit);
        let start = self.dies[die].free_at.max(now);
        let end = start + self.timing.erase;
        self.dies[die].reserve_last(start, end);
        self.written[block as usize] = end;
        self.ends(end)
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
        self.dies.fill(Line::default());
        self.channels.fill(Line::default());
        self.written.fill(0);
        self.busy_until = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dies_work_in_parallel_and_share_their_channel() {
        let shape = Shape { channels: 1, chips: 2, ..Shape::ONE_DIE };
        let mut schedule = Schedule::new(&shape, Timing { transfer: 5_000, ..Timing::SIMULATION }, 2);
        assert_eq!((schedule.read(0, 0, 0), schedule.read(1, 1, 0)), (30_000, 35_000));
        assert_eq!(schedule.read(0, 0, 0), 60_000, "the die was busy until its page was sent");
        assert_eq!(schedule.program(1, 1, 0), 35_000 + 5_000 + 200_000, "the transfer uses the gap before that read's");
    }

    /// A page is read on one die to be programmed on another one, which would be idle until then.
    #[test]
    fn a_read_uses_the_time_in_which_its_die_waits_for_data() {
        let shape = Shape { channels: 2, ..Shape::ONE_DIE };
        let mut schedule = Schedule::new(&shape, Timing::SIMULATION, 4);
        assert_eq!((schedule.read(0, 0, 0), schedule.read(0, 0, 0)), (25_000, 50_000));
        assert_eq!(schedule.program(1, 1, 50_000), 250_000);
        assert_eq!((schedule.read(1, 3, 0), schedule.read(1, 3, 10_000)), (25_000, 50_000));
        assert_eq!(schedule.read(1, 3, 0), 275_000, "the gap is used");
        assert_eq!(schedule.program(0, 0, 300_000), 500_000);
        assert_eq!(schedule.read(0, 0, 60_000), 525_000, "what is read may be what was programmed");
        assert_eq!(schedule.read(0, 2, 60_000), 85_000, "a page of another block");
        assert_eq!(schedule.erase(0, 2, 90_000), 525_000 + 1_500_000, "an erase uses no gap");
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
