//! Which units are read, in which order, and when enough have arrived. Does no I/O.
//!
//! Each disk has a queue of its own, in random order; each disk gets an equal share of the sample, or a share by its
//! speed (ApproxSSD, section on balanced sampling). A straggling disk is not waited for: `drop` more is selected than
//! is needed, and the sample ends once the needed number has arrived *anywhere*, with a few units of every stratum and
//! disk at least. What arrives from a disk is always the beginning of its queue. So within a stratum the sample stays random,
//! whatever the speeds are, and the estimators need only the number of units that arrived.

use crate::layout::{Layout, Unit};
use crate::source::DiskIndex;
use hashbrown::HashMap;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;

/// Units of each stratum that always arrive: without two there is no variance.
pub const MIN_STRATUM_UNITS: u64 = 2;

/// Units of each disk that always arrive. A straggler's few units stand for all that it holds; of fewer, the variance
/// would be known too badly.
pub const MIN_DISK_UNITS: u64 = 24;

/// Draws numbers below `len` without replacement, each permutation equally likely; memory grows with what was drawn
/// (the shuffle of Fisher and Yates with a sparse array).
#[derive(Debug)]
pub(crate) struct Shuffle {
    len: u64,
    drawn: u64,
    moved: HashMap<u64, u64>,
}

impl Shuffle {
    pub(crate) fn new(len: u64) -> Self {
        Shuffle { len, drawn: 0, moved: HashMap::new() }
    }

    fn left(&self) -> u64 {
        self.len - self.drawn
    }

    pub(crate) fn next(&mut self, rng: &mut StdRng) -> Option<u64> {
        if self.drawn == self.len {
            return None;
        }
        let at = rng.random_range(self.drawn..self.len);
        let first = self.moved.remove(&self.drawn).unwrap_or(self.drawn);
        let picked = if at == self.drawn { first } else { self.moved.insert(at, first).unwrap_or(at) };
        self.drawn += 1;
        Some(picked)
    }
}

/// How shares of the sample go to disks.
#[derive(Debug, Clone, PartialEq)]
pub enum Shares {
    /// The same number of units from each disk.
    Equal,
    /// In proportion to measured speeds, one for each disk.
    Speeds(Vec<f64>),
    /// In proportion to the units that each disk holds: what a random choice gives on average.
    Sizes,
}

/// A unit that a disk is to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Issue {
    /// Its stratum.
    pub stratum: usize,
    /// The unit.
    pub unit: Unit,
}

#[derive(Debug)]
struct StratumState {
    shuffle: Shuffle,
    arrived: u64,
}

#[derive(Debug, Default)]
struct DiskQueue {
    /// Units that the disk holds.
    units: u64,
    planned: VecDeque<Issue>,
    issued: u64,
    arrived: u64,
}

/// The state of a sample.
#[derive(Debug)]
pub struct Schedule {
    layout: Layout,
    shares: Shares,
    rng: StdRng,
    strata: Vec<StratumState>,
    disks: Vec<DiskQueue>,
    needed: u64,
    is_whole: bool,
    /// Strata and disks of which more must arrive.
    lacking: usize,
}

impl Schedule {
    /// A sample of nothing yet. Equal seeds draw equal units.
    pub fn new(layout: Layout, shares: Shares, seed: u64) -> Schedule {
        if let Shares::Speeds(speeds) = &shares {
            assert_eq!(speeds.len(), layout.disks, "a speed for each disk");
        }
        let strata =
            layout.strata.iter().map(|s| StratumState { shuffle: Shuffle::new(s.units), arrived: 0 }).collect();
        let mut disks: Vec<DiskQueue> = (0..layout.disks).map(|_| DiskQueue::default()).collect();
        layout.strata.iter().for_each(|stratum| disks[stratum.disk as usize].units += stratum.units);
        let holders = layout.strata.iter().map(|stratum| stratum.units).chain(disks.iter().map(|disk| disk.units));
        let lacking = holders.filter(|units| *units > 0).count();
        let rng = StdRng::seed_from_u64(seed);
        let mut schedule = Schedule { layout, shares, rng, strata, disks, needed: 0, is_whole: false, lacking };
        schedule.plan_minimum();
        schedule
    }

    /// Everything, each disk from its beginning to its end.
    pub fn whole(layout: Layout) -> Schedule {
        let mut schedule = Schedule::new(layout, Shares::Sizes, 0);
        schedule.is_whole = true;
        schedule.needed = schedule.layout.units();
        for disk in &mut schedule.disks {
            disk.planned.clear();
        }
        for h in 0..schedule.strata.len() {
            let stratum = &schedule.layout.strata[h];
            let issues = (0..stratum.units).map(|i| Issue { stratum: h, unit: schedule.layout.unit(h, i) });
            schedule.disks[stratum.disk as usize].planned.extend(issues);
        }
        schedule
    }

    /// Everything is read, not a sample.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// So much is needed, or always arrives, that the sample will have all units.
    pub fn will_be_everything(&self) -> bool {
        self.needed >= self.layout.units() || self.disks.iter().all(|disk| disk.units <= MIN_DISK_UNITS)
    }

    /// The units and strata.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The sample shall have `units` units, and `drop` times as many more are selected so that stragglers need not be
    /// waited for. Extends the sample that there is; never makes it smaller. Without `drop` all that is selected is needed, also
    /// where a disk has more than its share because some units always arrive: which units arrive depends on the seed alone.
    pub fn need(&mut self, units: u64, drop: f64) {
        let all = self.layout.units();
        self.needed = self.needed.max(units.min(all));
        let select = ((self.needed as f64 * (1.0 + drop)).ceil() as u64).min(all);
        let capacities: Vec<u64> = self.disks.iter().map(|disk| disk.units).collect();
        let weights = match &self.shares {
            Shares::Equal => vec![1.0; self.disks.len()],
            Shares::Speeds(speeds) => speeds.clone(),
            Shares::Sizes => capacities.iter().map(|units| *units as f64).collect(),
        };
        for (disk, quota) in share(select, &weights, &capacities).into_iter().enumerate() {
            let queue = &self.disks[disk];
            let selected = queue.issued + queue.planned.len() as u64;
            self.extend(disk, quota.saturating_sub(selected));
        }
        if drop == 0.0 {
            self.needed = self.needed.max(self.selected());
        }
    }

    /// Number of units that the sample is to have.
    pub fn needed(&self) -> u64 {
        self.needed
    }

    /// Units that were selected so far, arrived or not.
    pub fn selected(&self) -> u64 {
        self.disks.iter().map(|queue| queue.issued + queue.planned.len() as u64).sum()
    }

    /// The next unit that a disk reads; `None` when its queue is empty.
    pub fn next(&mut self, disk: DiskIndex) -> Option<Issue> {
        let queue = &mut self.disks[disk as usize];
        let issue = queue.planned.pop_front()?;
        queue.issued += 1;
        Some(issue)
    }

    /// A unit was read. A disk's units arrive in the order of its queue.
    pub fn arrived(&mut self, stratum: usize) {
        let of_layout = &self.layout.strata[stratum];
        let (state, disk) = (&mut self.strata[stratum], &mut self.disks[of_layout.disk as usize]);
        state.arrived += 1;
        disk.arrived += 1;
        assert!(disk.arrived <= disk.issued, "more arrived than was issued");
        self.lacking -= usize::from(state.arrived == MIN_STRATUM_UNITS.min(of_layout.units));
        self.lacking -= usize::from(disk.arrived == MIN_DISK_UNITS.min(disk.units));
    }

    /// Units of a stratum that arrived.
    pub fn arrived_of(&self, stratum: usize) -> u64 {
        self.strata[stratum].arrived
    }

    /// All units that arrived.
    pub fn arrived_units(&self) -> u64 {
        self.disks.iter().map(|queue| queue.arrived).sum()
    }

    /// The sample is large enough, or there is nothing more to read.
    pub fn is_complete(&self) -> bool {
        self.lacking == 0 && self.arrived_units() >= self.needed
    }

    /// The units come first that always arrive.
    fn plan_minimum(&mut self) {
        for disk in 0..self.disks.len() {
            let mut first = Vec::new();
            for h in 0..self.strata.len() {
                if self.layout.strata[h].disk as usize == disk {
                    first.extend((0..MIN_STRATUM_UNITS).map_while(|_| self.draw(h)));
                }
            }
            let more = MIN_DISK_UNITS.saturating_sub(first.len() as u64);
            self.shuffle_in(disk, first);
            self.extend(disk, more);
        }
    }

    /// Plans `more` units of a disk, from its strata in proportion to what is left of each.
    fn extend(&mut self, disk: usize, more: u64) {
        let own: Vec<usize> = (0..self.strata.len()).filter(|h| self.layout.strata[*h].disk as usize == disk).collect();
        let left: Vec<u64> = own.iter().map(|h| self.strata[*h].shuffle.left()).collect();
        let weights: Vec<f64> = left.iter().map(|units| *units as f64).collect();
        let mut units = Vec::new();
        for (h, quota) in own.into_iter().zip(share(more, &weights, &left)) {
            units.extend((0..quota).map_while(|_| self.draw(h)));
        }
        self.shuffle_in(disk, units);
    }

    fn draw(&mut self, stratum: usize) -> Option<Issue> {
        let index = self.strata[stratum].shuffle.next(&mut self.rng)?;
        Some(Issue { stratum, unit: self.layout.unit(stratum, index) })
    }

    fn shuffle_in(&mut self, disk: usize, mut units: Vec<Issue>) {
        for last in (1..units.len()).rev() {
            units.swap(last, self.rng.random_range(0..=last));
        }
        self.disks[disk].planned.extend(units);
    }
}

/// Divides `total` in proportion to `weights`, nobody above its capacity; what is above goes to the others. The largest
/// remainders are rounded up.
pub(crate) fn share(total: u64, weights: &[f64], capacities: &[u64]) -> Vec<u64> {
    let mut quotas = vec![0u64; weights.len()];
    loop {
        let open: Vec<usize> =
            (0..weights.len()).filter(|i| quotas[*i] < capacities[*i] && weights[*i] > 0.0).collect();
        let left = total.saturating_sub(quotas.iter().sum());
        if left == 0 || open.is_empty() {
            return quotas;
        }
        let weight: f64 = open.iter().map(|i| weights[*i]).sum();
        let ideal = |i: usize| left as f64 * weights[i] / weight;
        let mut given = 0;
        for i in &open {
            let quota = (ideal(*i).floor() as u64).min(capacities[*i] - quotas[*i]);
            quotas[*i] += quota;
            given += quota;
        }
        if given == 0 {
            let mut by_remainder = open;
            by_remainder.sort_by(|a, b| ideal(*b).fract().total_cmp(&ideal(*a).fract()));
            by_remainder.iter().take(left as usize).for_each(|i| quotas[*i] += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Run;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn layout(units: &[u64]) -> Layout {
        let run = |(i, units): (usize, &u64)| Run {
            file: i as u32,
            offset: 0,
            len_bytes: units * 10,
            disk: i as u32,
            rows: None,
        };
        Layout::new(&units.iter().enumerate().map(run).collect::<Vec<_>>(), units.len(), 10)
    }

    #[test]
    fn a_shuffle_draws_each_number_once_and_all_equally() {
        let mut first = [0u32; 6];
        for seed in 0..6000 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut shuffle = Shuffle::new(6);
            let drawn: Vec<u64> = std::iter::from_fn(|| shuffle.next(&mut rng)).collect();
            assert_eq!(drawn.iter().collect::<BTreeSet<_>>().len(), 6);
            first[drawn[2] as usize] += 1;
        }
        for count in first {
            assert!((850..1150).contains(&count), "{first:?}");
        }
    }

    proptest! {
        #[test]
        fn shares_add_up_and_fit(total in 0u64..5000, parts in prop::collection::vec((0.01f64..9.0, 0u64..900), 1..9)) {
            let (weights, capacities): (Vec<f64>, Vec<u64>) = parts.into_iter().unzip();
            let quotas = share(total, &weights, &capacities);
            prop_assert_eq!(quotas.iter().sum::<u64>(), total.min(capacities.iter().sum()));
            prop_assert!(quotas.iter().zip(&capacities).all(|(q, c)| q <= c));
        }

        #[test]
        fn every_selected_unit_is_issued_once(sizes in prop::collection::vec(1u64..300, 1..5), seed: u64, steps in prop::collection::vec(0u64..400, 1..4)) {
            let mut schedule = Schedule::new(layout(&sizes), Shares::Equal, seed);
            let mut seen = BTreeSet::new();
            for need in steps {
                schedule.need(need, 0.1);
                for disk in 0..sizes.len() as u32 {
                    while let Some(issue) = schedule.next(disk) {
                        prop_assert!(seen.insert(issue.unit));
                        prop_assert_eq!(schedule.layout().strata[issue.stratum].disk, disk);
                        schedule.arrived(issue.stratum);
                    }
                }
                prop_assert!(schedule.is_complete());
                prop_assert!(seen.len() as u64 >= need.min(sizes.iter().sum()));
            }
        }
    }

    #[test]
    fn disks_get_equal_shares_and_a_small_one_gives_the_rest_to_others() {
        let mut schedule = Schedule::new(layout(&[1000, 1000, 10]), Shares::Equal, 1);
        schedule.need(300, 0.0);
        let planned: Vec<usize> = schedule.disks.iter().map(|queue| queue.planned.len()).collect();
        assert_eq!(planned, [145, 145, 10]);
    }

    /// Equal seeds give equal samples, whichever disk is faster.
    #[test]
    fn without_drop_all_that_is_selected_arrives() {
        // Two units of each of 40 strata always arrive, which is more than the disk's share.
        let file = |file, units: u64, disk| Run { file, offset: 0, len_bytes: units * 10, disk, rows: None };
        let runs: Vec<Run> = (0..40).map(|i| file(i, 100, 0)).chain([file(40, 4000, 1)]).collect();
        for faster in [0, 1] {
            let mut schedule = Schedule::new(Layout::new(&runs, 2, 10), Shares::Equal, 1);
            schedule.need(100, 0.0);
            for disk in [faster, 1 - faster] {
                while let Some(issue) = schedule.next(disk) {
                    assert!(!schedule.is_complete(), "disk {disk}");
                    schedule.arrived(issue.stratum);
                }
            }
            assert_eq!((schedule.is_complete(), schedule.arrived_units()), (true, schedule.selected()));
            assert!(schedule.arrived_units() > 100);
        }
    }

    #[test]
    fn a_straggler_is_not_waited_for_beyond_what_always_arrives() {
        let mut schedule = Schedule::new(layout(&[1000, 1000]), Shares::Equal, 1);
        schedule.need(100, 0.9);
        while let Some(issue) = schedule.next(0) {
            schedule.arrived(issue.stratum);
        }
        assert_eq!(schedule.arrived_units(), 95);
        for left in (0..MIN_DISK_UNITS).rev() {
            assert!(!schedule.is_complete());
            let issue = schedule.next(1).unwrap();
            schedule.arrived(issue.stratum);
            assert_eq!(schedule.is_complete(), left == 0);
        }
    }
}
