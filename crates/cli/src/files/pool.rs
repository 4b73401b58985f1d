//! Runs many transfers at once. Small files go side by side, because each mostly waits. Large files go two at a time,
//! because each saturates the network and holds buffers.

use crate::exit::{Exit, Failure, Outcome, bail};
use crate::term::Out;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Files longer than this are large.
const LARGE_BYTES: u64 = 16 << 20;
/// Large files in transfer at once.
const LARGE_AT_ONCE: usize = 2;

/// The result of a run.
#[derive(Default)]
pub struct Tally {
    /// Items that succeeded.
    pub done: u64,
    /// Items not tried, because an earlier failure applies to them.
    pub untried: u64,
    /// Failures, in order.
    pub failures: Vec<Failure>,
}

impl Tally {
    /// Adds the failures of work that is not counted itself: links, attributes of directories.
    pub fn and(mut self, minor: Tally) -> Tally {
        self.failures.extend(minor.failures);
        self
    }

    /// The first failure.
    ///
    /// # Errors
    /// The run had failures.
    pub fn first_failure(self) -> Outcome {
        self.failures.into_iter().next().map_or(Ok(()), Err)
    }

    /// The failure that sums up the run. Each failure was already printed, so a single one gets no summary.
    ///
    /// # Errors
    /// The run had failures.
    pub fn outcome(self) -> Outcome {
        let Some(first) = self.failures.first() else { return Ok(()) };
        let exit = if self.failures.iter().all(|f| f.exit == first.exit) { first.exit } else { Exit::Failed };
        match (self.failures.len(), self.untried) {
            (1, 0) => Err(Failure::silent(exit)),
            _ if self.failures.iter().any(|f| f.message.is_empty()) => Err(Failure::silent(exit)),
            (n, 0) => bail!(exit, "{n} failed"),
            (n, left) => bail!(exit, "{n} failed, {left} were not tried after that"),
        }
    }
}

/// Runs `work` on every item, at most `jobs` at once; `size` is the length of an item's file in bytes. Failures are passed
/// to `warn` as they happen. A failure that applies to every item (unreachable, no space, refused) ends the run.
pub fn run<T: Send>(
    items: Vec<T>,
    size: impl Fn(&T) -> u64,
    jobs: usize,
    work: impl Fn(T) -> Outcome + Sync,
    warn: impl Fn(&Failure) + Sync,
) -> Tally {
    run_groups(items, (size, |_: &T| 1), jobs, |item| vec![work(item)], warn)
}

/// As [`run`], of items that are several files each: the second function says how many, and `work` returns the outcome of each in order. It may
/// end behind a failure that [applies to every item](is_general); the rest counts as untried.
pub fn run_groups<T: Send>(
    items: Vec<T>,
    (size, files): (impl Fn(&T) -> u64, impl Fn(&T) -> u64 + Sync),
    jobs: usize,
    work: impl Fn(T) -> Vec<Outcome> + Sync,
    warn: impl Fn(&Failure) + Sync,
) -> Tally {
    let jobs = jobs.max(1);
    let (large, small): (VecDeque<_>, VecDeque<_>) = items.into_iter().partition(|item| size(item) > LARGE_BYTES);
    let queues = [Mutex::new(large), Mutex::new(small)];
    let (failures, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let (done, untried) = (AtomicU64::new(0), AtomicU64::new(0));
    let worker = |order: &[usize]| {
        while !stop.load(Ordering::Relaxed) {
            let Some(item) = order.iter().find_map(|i| queues[*i].lock().pop_front()) else { return };
            let count = files(&item);
            let outcomes = work(item);
            untried.fetch_add(count.saturating_sub(outcomes.len() as u64), Ordering::Relaxed);
            for outcome in outcomes {
                match outcome {
                    Ok(()) => _ = done.fetch_add(1, Ordering::Relaxed),
                    Err(failure) => {
                        warn(&failure);
                        stop.fetch_or(is_general(&failure), Ordering::Relaxed);
                        failures.lock().push(failure);
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        if jobs > 1 {
            (0..LARGE_AT_ONCE.min(jobs)).for_each(|_| drop(scope.spawn(|| worker(&[0]))));
            (0..jobs).for_each(|_| drop(scope.spawn(|| worker(&[1]))));
        } else {
            worker(&[0, 1]);
        }
    });
    let waiting: u64 = queues.iter().map(|queue| queue.lock().iter().map(&files).sum::<u64>()).sum();
    Tally { done: done.into_inner(), untried: untried.into_inner() + waiting, failures: failures.into_inner() }
}

/// Runs `work` on one item after the other and prints failures as they happen. Ends early for the same failures as
/// [`run`].
pub fn each<T>(out: Out, items: impl IntoIterator<Item = T>, mut work: impl FnMut(T) -> Outcome) -> Tally {
    let mut ran = Tally::default();
    let mut items = items.into_iter();
    for item in items.by_ref() {
        match work(item) {
            Ok(()) => ran.done += 1,
            Err(failure) => {
                let stop = is_general(&failure);
                if !failure.message.is_empty() {
                    out.warn(&failure);
                }
                ran.failures.push(failure);
                if stop {
                    break;
                }
            }
        }
    }
    ran.untried = items.count() as u64;
    ran
}

/// Whether this failure applies to every item. An empty message means that the reader of stdout closed the
/// pipe.
pub(super) fn is_general(failure: &Failure) -> bool {
    failure.message.is_empty()
        || crate::cleanup::is_interrupted()
        || matches!(failure.exit, Exit::Unavailable | Exit::NoSpace | Exit::Refused | Exit::Interrupted)
}

/// Notes the entries of a tree that are not transferred, and returns them.
pub fn note_skipped(out: Out, names: impl Iterator<Item = String>) -> Vec<String> {
    names.inspect(|name| out.note(format!("skipped {name}: neither file, directory nor symbolic link"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_done_once_whatever_its_size() {
        for jobs in [1, 2, 16] {
            let sum = AtomicU64::new(0);
            let ran = run((0..100u64).collect(), |i| (i % 3) * LARGE_BYTES, jobs, |i| count(&sum, i), |_| ());
            assert_eq!((ran.done, ran.untried, ran.failures.len()), (100, 0, 0));
            assert_eq!(sum.into_inner(), 4950);
        }
    }

    fn count(counter: &AtomicU64, number: u64) -> Outcome {
        counter.fetch_add(number, Ordering::Relaxed);
        Ok(())
    }

    #[test]
    fn one_bad_file_does_not_stop_the_others_but_a_full_store_does() {
        let run_with = |exit: Exit| {
            let done = AtomicU64::new(0);
            let work = |i: u64| match i {
                0 => Err(Failure::new(exit, "no")),
                _ => count(&done, 1),
            };
            let ran = run((0..10).collect(), |_| 0, 1, work, |_| ());
            assert_eq!(ran.done, done.into_inner());
            (ran.failures.len(), ran.done, ran.untried)
        };
        assert_eq!(run_with(Exit::NotFound), (1, 9, 0));
        assert_eq!(run_with(Exit::NoSpace), (1, 0, 9));
    }
}
