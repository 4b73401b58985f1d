//! Locks of shuttle with the interface of `parking_lot`, so that a test can explore the schedules of production code.
//!
//! A module that takes its locks from `super::sync` is compiled twice: in the crate with `parking_lot`'s locks, and in a test module,
//! by `#[path]`, with these. [`explore`] runs a test under many schedules, drawn at random from fixed seeds. No production crate depends
//! on this crate outside its tests.
//!
//! A wait never times out here: a wake-up that is lost shows as a deadlock, which shuttle reports.

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, MaxSteps, Runner, sync};
use std::ops::{Deref, DerefMut};
use std::time::Instant;

/// Steps of a schedule; a test that has not ended by then waits for something that never comes.
const MAX_STEPS: usize = 20_000;
/// Threads that are preempted in a schedule of the second kind.
const PREEMPTIONS: usize = 3;
const SEED: u64 = 0x7e55_e2a0;

/// Runs `test` under this many schedules drawn at random, and as many with few preemptions.
///
/// # Panics
/// `test` panics or deadlocks under one of them.
pub fn explore(schedules: usize, test: impl Fn() + Send + Sync + Clone + 'static) {
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(MAX_STEPS);
    Runner::new(RandomScheduler::new_from_seed(SEED, schedules), config.clone()).run(test.clone());
    Runner::new(PctScheduler::new_from_seed(SEED, PREEMPTIONS, schedules), config).run(test);
}

/// Whether [`explore`] finds a schedule in which `test` fails: for tests of tests.
pub fn fails(schedules: usize, test: impl Fn() + Send + Sync + Clone + 'static) -> bool {
    let run = std::panic::AssertUnwindSafe(|| explore(schedules, test));
    std::panic::catch_unwind(run).is_err()
}

/// A mutual exclusion lock.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A lock around a value.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { lock: &self.0, held: Some(self.0.lock().unwrap_or_else(|_| panic!("a thread has panicked"))) }
    }
}

/// Holds a [`Mutex`].
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    lock: &'a sync::Mutex<T>,
    /// None only while it waits or is unlocked.
    held: Option<sync::MutexGuard<'a, T>>,
}

impl<T> MutexGuard<'_, T> {
    /// Runs `act` without the lock.
    pub fn unlocked<R>(guard: &mut Self, act: impl FnOnce() -> R) -> R {
        drop(guard.held.take());
        let result = act();
        guard.held = Some(guard.lock.lock().unwrap_or_else(|_| panic!("a thread has panicked")));
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_deref().expect("the lock is held")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_deref_mut().expect("the lock is held")
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

/// What ended a wait.
#[derive(Debug, Clone, Copy)]
pub struct WaitTimeoutResult;

impl WaitTimeoutResult {
    /// Never: see the crate.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        false
    }
}

impl Condvar {
    /// A condition variable.
    #[must_use]
    pub fn new() -> Condvar {
        Condvar(sync::Condvar::new())
    }

    /// Waits until it is notified.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _until: Instant) -> WaitTimeoutResult {
        let held = guard.held.take().expect("the lock is held");
        guard.held = Some(self.0.wait(held).unwrap_or_else(|_| panic!("a thread has panicked")));
        WaitTimeoutResult
    }

    /// Wakes one thread that waits.
    pub fn notify_one(&self) -> bool {
        self.0.notify_one();
        true
    }
}
