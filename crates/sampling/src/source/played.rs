//! Disks that are played: reads of a source take the time that disks of a given speed would take.

use super::{Contents, DiskIndex, FileIndex, Source};
use crate::error::Error;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::{Duration, Instant};

/// How fast a disk is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskSpeed {
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// Time before the first byte of a read.
    pub latency: Duration,
}

impl DiskSpeed {
    /// How long a read takes.
    pub fn time_of(&self, len_bytes: u64) -> Duration {
        self.latency + Duration::from_secs_f64(len_bytes as f64 / self.bytes_per_s)
    }
}

/// Phases in which a disk is slow, as an SSD is while it collects garbage.
///
/// Time is cut into periods of equal length. In each period each disk has one slow phase, which begins at a random time
/// such that it ends within the period. A read that begins in a slow phase takes `factor` times as long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowPhases {
    /// Length of a period.
    pub period: Duration,
    /// Length of a slow phase; at most a period.
    pub lasts: Duration,
    /// How many times as long a read takes.
    pub factor: f64,
    /// Equal seeds give equal phases.
    pub seed: u64,
}

impl SlowPhases {
    /// The slow phase of a disk in a period, from the start of the first period.
    pub fn phase(&self, disk: DiskIndex, period: u64) -> (Duration, Duration) {
        assert!(self.lasts <= self.period, "a slow phase is no longer than a period");
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        seed[8..16].copy_from_slice(&period.to_le_bytes());
        seed[16..20].copy_from_slice(&disk.to_le_bytes());
        let at: f64 = StdRng::from_seed(seed).random();
        let start = self.period.mul_f64(period as f64) + (self.period - self.lasts).mul_f64(at);
        (start, start + self.lasts)
    }

    /// How many times as long a read of a disk takes that begins at a time.
    pub fn factor_at(&self, disk: DiskIndex, time: Duration) -> f64 {
        let (start, end) = self.phase(disk, (time.as_nanos() / self.period.as_nanos()) as u64);
        if start <= time && time < end { self.factor } else { 1.0 }
    }
}

/// A read of a played disk. Times count from when the disks began to be played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlayedRead {
    /// When it was asked for.
    pub asked_at: Duration,
    /// When the disk began to serve it; until then the disk was busy with other reads.
    pub began_at: Duration,
    /// When it was done.
    pub done_at: Duration,
    /// What was read.
    pub len_bytes: u64,
}

/// A source whose disks serve one read at a time at a given speed.
pub struct PlayedDisks<S> {
    source: S,
    speeds: Vec<DiskSpeed>,
    slow: Option<SlowPhases>,
    start: Instant,
    disks: Vec<Mutex<Disk>>,
}

#[derive(Default)]
struct Disk {
    free_at: Duration,
    reads: Vec<PlayedRead>,
}

impl<S: Source> PlayedDisks<S> {
    /// Plays a disk of `speeds[i]` for disk i of the source; the last speed counts for the rest.
    pub fn new(source: S, speeds: &[DiskSpeed]) -> Self {
        let last = *speeds.last().expect("a speed");
        let speeds: Vec<_> = (0..source.disks().len()).map(|i| speeds.get(i).copied().unwrap_or(last)).collect();
        let disks = speeds.iter().map(|_| Mutex::default()).collect();
        PlayedDisks { source, speeds, slow: None, start: Instant::now(), disks }
    }

    /// Makes the disks slow from time to time.
    #[must_use]
    pub fn with_slow_phases(self, slow: SlowPhases) -> Self {
        PlayedDisks { slow: Some(slow), ..self }
    }

    /// The reads of each disk so far, in the order in which it serves them.
    pub fn reads(&self) -> Vec<Vec<PlayedRead>> {
        self.disks.iter().map(|disk| disk.lock().reads.clone()).collect()
    }

    /// The time since the disks began to be played.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn disk_of(&self, file: FileIndex, offset: u64) -> DiskIndex {
        let runs = self.source.runs();
        let after = runs.partition_point(|run| (run.file, run.offset) <= (file, offset));
        after.checked_sub(1).map_or(0, |i| runs[i].disk)
    }

    /// Puts a read into a disk's queue and returns when it is done.
    fn queue(&self, disk: DiskIndex, asked_at: Duration, len_bytes: u64) -> Duration {
        let mut state = self.disks[disk as usize].lock();
        let began_at = state.free_at.max(asked_at);
        let factor = self.slow.map_or(1.0, |slow| slow.factor_at(disk, began_at));
        let done_at = began_at + self.speeds[disk as usize].time_of(len_bytes).mul_f64(factor);
        state.free_at = done_at;
        state.reads.push(PlayedRead { asked_at, began_at, done_at, len_bytes });
        done_at
    }
}

impl<S: Source> Source for PlayedDisks<S> {
    fn contents(&self) -> &Contents {
        self.source.contents()
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        self.source.check_unchanged()
    }

    fn read_at(&self, file: FileIndex, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        let asked_at = self.now();
        let read = self.source.read_at(file, offset, out)?;
        let done_at = self.queue(self.disk_of(file, offset), asked_at, read as u64);
        std::thread::sleep(done_at.saturating_sub(self.now()));
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceFile;

    const MS: Duration = Duration::from_millis(1);

    fn slow() -> SlowPhases {
        SlowPhases { period: 100 * MS, lasts: 20 * MS, factor: 5.0, seed: 3 }
    }

    /// Two disks without files.
    struct Empty(Contents);

    impl Source for Empty {
        fn contents(&self) -> &Contents {
            &self.0
        }

        fn check_unchanged(&self) -> Result<(), Error> {
            Ok(())
        }

        fn read_at(&self, _: FileIndex, _: u64, _: &mut [u8]) -> Result<usize, Error> {
            Ok(0)
        }
    }

    fn played() -> PlayedDisks<Empty> {
        let file = SourceFile { name: "f".into(), len_bytes: 0 };
        let contents = Contents { files: vec![file], disks: vec!["a".into(), "b".into()], ..Default::default() };
        PlayedDisks::new(Empty(contents), &[DiskSpeed { bytes_per_s: 1e6, latency: 2 * MS }])
    }

    #[test]
    fn a_disk_serves_one_read_at_a_time_and_disks_do_not_wait_for_each_other() {
        let disks = played();
        assert_eq!(disks.queue(0, 10 * MS, 1000), 13 * MS);
        assert_eq!(disks.queue(0, 11 * MS, 3000), 18 * MS);
        assert_eq!(disks.queue(1, 11 * MS, 1000), 14 * MS);
        assert_eq!(disks.queue(0, 40 * MS, 1000), 43 * MS);
        let waited: Vec<Duration> = disks.reads()[0].iter().map(|read| read.began_at - read.asked_at).collect();
        assert_eq!(waited, [Duration::ZERO, 2 * MS, Duration::ZERO]);
    }

    #[test]
    fn a_read_that_begins_in_a_slow_phase_takes_longer() {
        let disks = played().with_slow_phases(slow());
        let (start, end) = slow().phase(1, 4);
        assert_eq!(disks.queue(1, start - MS, 0), start + MS, "it began before");
        assert_eq!(disks.queue(1, start, 0), start + 11 * MS);
        assert_eq!(disks.queue(1, end, 0), end + 2 * MS);
    }

    #[test]
    fn each_period_has_one_slow_phase_of_each_disk_at_a_random_time() {
        let slow = slow();
        let mut starts = Vec::new();
        for disk in 0..4 {
            for period in 0..50 {
                let (start, end) = slow.phase(disk, period);
                let first = slow.period * period as u32;
                assert!(first <= start && end <= first + slow.period && end - start == slow.lasts);
                assert_eq!(slow.phase(disk, period), (start, end), "equal seeds give equal phases");
                starts.push((start - first).as_micros());
            }
            let ms = |ms: u32| slow.factor_at(disk, ms * MS);
            let slow_ms = (0..5000).filter(|at| ms(*at) > 1.0).count();
            assert!((900..=1100).contains(&slow_ms), "{slow_ms} of 5000 ms");
        }
        let mean = starts.iter().sum::<u128>() / starts.len() as u128;
        assert!((35_000..45_000).contains(&mean), "phases begin after {mean} us on average");
        starts.sort_unstable();
        starts.dedup();
        assert!(starts.len() > 190, "phases differ between disks and periods");
    }
}
