//! Disks that are played: reads of a source take the time that disks of a given speed would take.

use super::{Contents, DiskIndex, FileIndex, Source};
use crate::error::Error;
use parking_lot::Mutex;
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

/// A source whose disks serve one read at a time at a given speed.
pub struct PlayedDisks<S> {
    source: S,
    speeds: Vec<DiskSpeed>,
    /// For each disk: when it is free again.
    free_at: Vec<Mutex<Instant>>,
}

impl<S: Source> PlayedDisks<S> {
    /// Plays a disk of `speeds[i]` for disk i of the source; the last speed counts for the rest.
    pub fn new(source: S, speeds: &[DiskSpeed]) -> Self {
        let last = *speeds.last().expect("a speed");
        let speeds: Vec<_> = (0..source.disks().len()).map(|i| speeds.get(i).copied().unwrap_or(last)).collect();
        let free_at = speeds.iter().map(|_| Mutex::new(Instant::now())).collect();
        PlayedDisks { source, speeds, free_at }
    }

    fn disk_of(&self, file: FileIndex, offset: u64) -> DiskIndex {
        let runs = self.source.runs();
        let after = runs.partition_point(|run| (run.file, run.offset) <= (file, offset));
        after.checked_sub(1).map_or(0, |i| runs[i].disk)
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
        let disk = self.disk_of(file, offset) as usize;
        let read = self.source.read_at(file, offset, out)?;
        let done_at = {
            let mut free_at = self.free_at[disk].lock();
            *free_at = (*free_at).max(Instant::now()) + self.speeds[disk].time_of(read as u64);
            *free_at
        };
        std::thread::sleep(done_at.saturating_duration_since(Instant::now()));
        Ok(read)
    }
}
