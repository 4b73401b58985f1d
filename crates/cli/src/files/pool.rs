//! Many transfers at once: small files side by side, for each is mostly waiting; large ones two at a time, for each
//! fills the pipes alone and holds buffers.

use crate::exit::{Exit, Failure, Outcome};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

/// Files longer than this are large.
const LARGE_BYTES: u64 = 16 << 20;
/// Large files on their way at once.
const LARGE_AT_ONCE: usize = 2;

/// Runs `work` on every item, at most `jobs` at once, and returns what failed, each told to `tell` as it happens.
/// A failure that the next item would meet too (nobody answers, no space, refused) ends the run.
pub fn run<T: Send>(
    items: Vec<(u64, T)>,
    jobs: usize,
    work: impl Fn(T) -> Outcome + Sync,
    tell: impl Fn(&Failure) + Sync,
) -> Vec<Failure> {
    let jobs = jobs.max(1);
    let (large, small): (VecDeque<_>, VecDeque<_>) = items.into_iter().partition(|(len, _)| *len > LARGE_BYTES);
    let queues = [Mutex::new(large), Mutex::new(small)];
    let (failures, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let worker = |order: &[usize]| {
        while !stop.load(Ordering::Relaxed) {
            let Some((_, item)) = order.iter().find_map(|i| queues[*i].lock().pop_front()) else { return };
            if let Err(failure) = work(item) {
                tell(&failure);
                if is_general(&failure) {
                    stop.store(true, Ordering::Relaxed);
                }
                failures.lock().push(failure);
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
    failures.into_inner()
}

fn is_general(failure: &Failure) -> bool {
    matches!(failure.exit, Exit::Unavailable | Exit::NoSpace | Exit::Refused | Exit::Interrupted)
}

/// What a command that met these failures ends with. They were told already: the sum is not repeated for one.
pub fn sum(failures: Vec<Failure>) -> Outcome {
    let Some(first) = failures.first() else { return Ok(()) };
    let exit = if failures.iter().all(|f| f.exit == first.exit) { first.exit } else { Exit::Failed };
    match failures.len() {
        1 => Err(Failure { exit, message: String::new() }),
        n => Err(Failure::new(exit, format!("{n} failed"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_item_is_done_once_whatever_its_size() {
        for jobs in [1, 2, 16] {
            let sum = AtomicU64::new(0);
            let items = (0..100u64).map(|i| ((i % 3) * LARGE_BYTES, i)).collect();
            let failures = run(items, jobs, |i| count(&sum, i), |_| ());
            assert!(failures.is_empty());
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
            let failures = run((0..10).map(|i| (0, i)).collect(), 1, work, |_| ());
            (failures.len(), done.into_inner())
        };
        assert_eq!(run_with(Exit::NotFound), (1, 9));
        assert_eq!(run_with(Exit::NoSpace), (1, 0));
    }
}
