//! Runs futures in one thread, in an order that a seed decides.
//!
//! A task belongs to an owner (a process of the simulated world). When the owner is killed, its tasks are dropped, as the
//! threads of a killed process end. A task that waits is polled again only after its waker was called.

use crate::plan::Rng;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// A future without a result.
pub type BoxFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Process that a task belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// Place in the world.
    pub index: usize,
    /// Grows when the process is killed.
    pub incarnation: u64,
}

/// Locks a mutex that a waker shares. A panic ends the run, so poison does not matter.
pub(super) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tasks that can be polled.
#[derive(Default)]
struct Ready(Mutex<Vec<u64>>);

struct TaskWaker {
    task: u64,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        lock(&self.ready.0).push(self.task);
    }
}

struct Task {
    owner: Owner,
    future: BoxFuture,
    waker: Waker,
}

/// Starts tasks from within other tasks.
#[derive(Clone, Default)]
pub struct Spawner(Rc<RefCell<Vec<(Owner, BoxFuture)>>>);

impl Spawner {
    /// Starts a task of `owner`.
    pub fn spawn(&self, owner: Owner, future: impl Future<Output = ()> + 'static) {
        self.0.borrow_mut().push((owner, Box::pin(future)));
    }
}

/// See the module.
pub struct Executor {
    tasks: BTreeMap<u64, Task>,
    ready: Arc<Ready>,
    spawner: Spawner,
    last_task: u64,
    rng: Rng,
}

impl Executor {
    /// An executor without tasks.
    pub fn new(seed: u64) -> Executor {
        Executor {
            tasks: BTreeMap::new(),
            ready: Arc::default(),
            spawner: Spawner::default(),
            last_task: 0,
            rng: Rng::new(seed),
        }
    }

    /// Starts tasks.
    pub fn spawner(&self) -> Spawner {
        self.spawner.clone()
    }

    /// Polls tasks, one at a time in random order, until all of them wait. Returns the number of polls.
    pub fn run(&mut self) -> usize {
        let mut polls = 0;
        loop {
            self.take_spawned();
            let next = {
                let mut ready = lock(&self.ready.0);
                match ready.len() {
                    0 => return polls,
                    count => ready.swap_remove(self.rng.between(0, count as u64 - 1) as usize),
                }
            };
            polls += 1;
            assert!(polls < 1_000_000, "tasks wake each other without an event of the world");
            let Some(mut task) = self.tasks.remove(&next) else { continue };
            match task.future.as_mut().poll(&mut Context::from_waker(&task.waker.clone())) {
                Poll::Pending => _ = self.tasks.insert(next, task),
                Poll::Ready(()) => {}
            }
        }
    }

    /// Drops the tasks of a process.
    pub fn kill(&mut self, owner: Owner) {
        self.take_spawned();
        let dead: Vec<u64> = self.tasks.iter().filter(|(_, task)| task.owner == owner).map(|(id, _)| *id).collect();
        let dropped: Vec<Task> = dead.iter().filter_map(|id| self.tasks.remove(id)).collect();
        drop(dropped);
        // A destructor may have started another.
        self.spawner.0.borrow_mut().retain(|(of, _)| *of != owner);
    }

    /// Number of tasks of a process.
    pub fn count(&self, owner: Owner) -> usize {
        self.tasks.values().filter(|task| task.owner == owner).count()
    }

    fn take_spawned(&mut self) {
        let spawned = std::mem::take(&mut *self.spawner.0.borrow_mut());
        for (owner, future) in spawned {
            self.last_task += 1;
            let task = self.last_task;
            let waker = Waker::from(Arc::new(TaskWaker { task, ready: self.ready.clone() }));
            self.tasks.insert(task, Task { owner, future, waker });
            lock(&self.ready.0).push(task);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner { index: 0, incarnation: 1 };

    /// Waits once.
    struct Yield(bool);

    impl Future for Yield {
        type Output = ();
        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
            if std::mem::replace(&mut self.0, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        }
    }

    fn order(seed: u64) -> Vec<usize> {
        let (mut executor, order) = (Executor::new(seed), Arc::new(Mutex::new(Vec::new())));
        for number in 0..5 {
            let order = order.clone();
            executor.spawner().spawn(OWNER, async move {
                for _ in 0..3 {
                    lock(&order).push(number);
                    Yield(false).await;
                }
            });
        }
        executor.run();
        assert_eq!(executor.count(OWNER), 0);
        lock(&order).clone()
    }

    #[test]
    fn a_seed_decides_the_order() {
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        assert_eq!(order(3).len(), 15);
    }

    #[test]
    fn a_killed_process_does_nothing_more() {
        let mut executor = Executor::new(1);
        let alive = Arc::new(());
        let held = alive.clone();
        executor.spawner().spawn(OWNER, async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        executor.run();
        assert_eq!((executor.count(OWNER), Arc::strong_count(&alive)), (1, 2));
        executor.kill(Owner { incarnation: 2, ..OWNER });
        assert_eq!(executor.count(OWNER), 1);
        executor.kill(OWNER);
        assert_eq!((executor.count(OWNER), Arc::strong_count(&alive)), (0, 1));
    }
}
