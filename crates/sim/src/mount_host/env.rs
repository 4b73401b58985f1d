//! What the world gives to its processes: the time, timers, new tasks and numbers for requests.

use super::executor::{Owner, Spawner};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Timers by their time, and by number among equal times.
type Timers = RefCell<BTreeMap<(i64, u64), Waker>>;

/// See the module. Clones share everything.
#[derive(Clone)]
pub struct Env {
    now_ns: Rc<Cell<i64>>,
    numbers: Rc<Cell<u64>>,
    timers: Rc<Timers>,
    spawner: Spawner,
}

impl Env {
    /// An environment whose time begins at `now_ns`.
    pub fn new(now_ns: i64, spawner: Spawner) -> Env {
        Env { now_ns: Rc::new(Cell::new(now_ns)), numbers: Rc::default(), timers: Rc::default(), spawner }
    }

    /// The time, ns.
    pub fn now_ns(&self) -> i64 {
        self.now_ns.get()
    }

    /// A number that no other call returns.
    pub fn number(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    /// Starts a task of a process.
    pub fn spawn(&self, owner: Owner, future: impl Future<Output = ()> + 'static) {
        self.spawner.spawn(owner, future);
    }

    /// Waits for so long.
    pub fn sleep_ms(&self, ms: u64) -> Sleep {
        self.sleep_until(self.now_ns() + i64::try_from(ms).unwrap_or(i64::MAX / 2_000_000) * 1_000_000)
    }

    /// Waits until then.
    pub fn sleep_until(&self, at_ns: i64) -> Sleep {
        Sleep { env: self.clone(), at_ns, key: None }
    }

    /// Time of the first timer.
    pub fn next_timer_ns(&self) -> Option<i64> {
        self.timers.borrow().keys().next().map(|(at_ns, _)| *at_ns)
    }

    /// Sets the time, and wakes the tasks whose timers have come.
    pub fn advance(&self, now_ns: i64) {
        assert!(now_ns >= self.now_ns(), "the world's time went back");
        self.now_ns.set(now_ns);
        let due = {
            let mut timers = self.timers.borrow_mut();
            let later = timers.split_off(&(now_ns + 1, 0));
            std::mem::replace(&mut *timers, later)
        };
        due.into_values().for_each(Waker::wake);
    }
}

/// Ends at a time.
pub struct Sleep {
    env: Env,
    at_ns: i64,
    key: Option<(i64, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.env.now_ns() >= self.at_ns {
            return Poll::Ready(());
        }
        let key = self.key.unwrap_or_else(|| (self.at_ns, self.env.number()));
        self.key = Some(key);
        self.env.timers.borrow_mut().insert(key, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.env.timers.borrow_mut().remove(&key);
        }
    }
}
