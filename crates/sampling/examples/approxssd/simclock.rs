//! The same jobs in simulated time: disks and I/O threads without computing threads, equal on every machine. What a run by
//! the clock takes longer is the processor's and the system's.

use crate::data::DISKS;
use crate::strategy::{Job, MARGIN_BYTES, Strategy, balanced, random};
use std::time::Duration;
use tessera_sampling::layout::Unit;
use tessera_sampling::schedule::{Issue, Schedule, Shares};

/// What a simulated run took.
pub struct Simulated {
    pub seconds: f64,
    /// Time in which threads waited for a disk that served another thread, as a share of their time.
    pub waiting: f64,
}

impl Job<'_> {
    pub fn simulate(&self, strategy: &Strategy, seed: u64) -> Simulated {
        let layout = self.layout();
        match strategy {
            Strategy::Own(weights, drop) => {
                let mut schedule = Schedule::new(layout, Shares::Speeds(weights.clone()), seed);
                match self.ratio < 1.0 {
                    true => schedule.need(self.needed(), *drop),
                    false => schedule = Schedule::whole(schedule.layout().clone()),
                }
                self.simulate_own(schedule, seed)
            }
            Strategy::Random => self.simulate_dealt(&random(&layout, self.needed(), seed).1, seed),
            Strategy::Dealt(weights) => self.simulate_dealt(&balanced(layout, weights, self.needed(), seed), seed),
        }
    }

    fn service(&self, disk: usize, unit: &Unit, began_at: Duration, seed: u64) -> Duration {
        let mut slow = self.slow;
        slow.iter_mut().for_each(|slow| slow.seed += seed);
        let factor = slow.map_or(1.0, |slow| slow.factor_at(disk as u32, began_at));
        self.speeds[disk].time_of(unit.len_bytes + MARGIN_BYTES).mul_f64(factor)
    }

    fn simulate_own(&self, mut schedule: Schedule, seed: u64) -> Simulated {
        let mut under_way: Vec<Option<(Duration, usize)>> = vec![None; DISKS];
        let mut now = Duration::ZERO;
        let begin = |schedule: &mut Schedule, disk: usize, now: Duration| {
            let issue = schedule.next(disk as u32)?;
            Some((now + self.service(disk, &issue.unit, now, seed), issue.stratum))
        };
        for (disk, read) in under_way.iter_mut().enumerate() {
            *read = begin(&mut schedule, disk, now);
        }
        while !schedule.is_complete() {
            let reads = under_way.iter().enumerate().filter_map(|(disk, read)| read.map(|(at, h)| (at, disk, h)));
            let (at, disk, stratum) = reads.min().expect("what is needed was planned");
            now = at;
            schedule.arrived(stratum);
            under_way[disk] = begin(&mut schedule, disk, now);
        }
        Simulated { seconds: now.as_secs_f64(), waiting: 0.0 }
    }

    /// As many threads as disks, each with every so manieth task; a disk serves reads in the order of requests.
    fn simulate_dealt(&self, tasks: &[Issue], seed: u64) -> Simulated {
        let mut free_at = [Duration::ZERO; DISKS];
        let mut threads = [(Duration::ZERO, 0usize); DISKS];
        let mut waited = Duration::ZERO;
        let next = |threads: &[(Duration, usize)]| {
            let open = (0..DISKS).filter(|thread| threads[*thread].1 * DISKS + thread < tasks.len());
            open.min_by_key(|thread| (threads[*thread].0, *thread))
        };
        while let Some(thread) = next(&threads) {
            let (asked_at, done) = threads[thread];
            let unit = &tasks[done * DISKS + thread].unit;
            let disk = crate::strategy::disk_of(unit);
            let began_at = free_at[disk].max(asked_at);
            waited += began_at - asked_at;
            free_at[disk] = began_at + self.service(disk, unit, began_at, seed);
            threads[thread] = (free_at[disk], done + 1);
        }
        let end = threads.iter().map(|thread| thread.0).max().expect("threads");
        Simulated { seconds: end.as_secs_f64(), waiting: waited.as_secs_f64() / (DISKS as f64 * end.as_secs_f64()) }
    }
}
