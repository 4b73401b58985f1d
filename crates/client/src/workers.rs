//! The threads that hash, code, verify and drive sessions: one pool per client.
//!
//! Driving a session (handling answers, sending the next calls) goes before computing, so that the network never waits
//! for a hash. There are two threads more than cores: a thread that is blocked sending to a slow node must not stop the
//! others.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

type Task = Box<dyn FnOnce() + Send>;

/// See the module. Dropping it ends the threads once the queues are empty.
pub(crate) struct Workers {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    queues: Mutex<Queues>,
    wake: Condvar,
}

#[derive(Default)]
struct Queues {
    urgent: VecDeque<Task>,
    ordinary: VecDeque<Task>,
    idle: usize,
    closing: bool,
}

impl Workers {
    /// `threads`: 0 for one per core.
    pub fn start(threads: usize) -> std::io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(2, |n| n.get());
        let threads = if threads == 0 { cores } else { threads } + 2;
        let shared = Arc::new(Shared::default());
        for _ in 0..threads {
            let shared = shared.clone();
            std::thread::Builder::new().name("client".into()).spawn(move || shared.run())?;
        }
        Ok(Workers { shared })
    }

    /// Runs before any submitted computation.
    pub fn urgent(&self, task: impl FnOnce() + Send + 'static) {
        self.shared.push(|queues| queues.urgent.push_back(Box::new(task)));
    }

    /// Runs after the tasks submitted before.
    pub fn submit(&self, task: impl FnOnce() + Send + 'static) {
        self.shared.push(|queues| queues.ordinary.push_back(Box::new(task)));
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.queues.lock().closing = true;
        self.shared.wake.notify_all();
    }
}

impl Shared {
    fn push(&self, add: impl FnOnce(&mut Queues)) {
        let wake = {
            let mut queues = self.queues.lock();
            add(&mut queues);
            queues.idle > 0
        };
        if wake {
            self.wake.notify_one();
        }
    }

    fn run(&self) {
        while let Some(task) = self.next() {
            task();
        }
    }

    fn next(&self) -> Option<Task> {
        let mut queues = self.queues.lock();
        loop {
            let task = queues.urgent.pop_front().or_else(|| queues.ordinary.pop_front());
            if task.is_some() || queues.closing {
                return task;
            }
            queues.idle += 1;
            self.wake.wait(&mut queues);
            queues.idle -= 1;
        }
    }
}
