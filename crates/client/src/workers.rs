//! The threads that hash, code, verify and drive sessions: one pool per client.
//!
//! Driving a session (handling answers, sending the next calls) goes before computing, so that the network never waits
//! for a hash. There are two threads more than cores: a thread that is blocked sending to a slow node must not stop the
//! others.

use crossbeam_channel::{Receiver, Sender, select_biased, unbounded};

type Task = Box<dyn FnOnce() + Send>;

/// See the module. Dropping it ends the threads once the queues are empty.
pub(crate) struct Workers {
    urgent: Sender<Task>,
    ordinary: Sender<Task>,
}

impl Workers {
    /// `threads`: 0 for one per core.
    pub fn start(threads: usize) -> std::io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(2, |n| n.get());
        let threads = if threads == 0 { cores } else { threads } + 2;
        let (urgent, first) = unbounded();
        let (ordinary, second) = unbounded();
        for _ in 0..threads {
            let (first, second) = (first.clone(), second.clone());
            std::thread::Builder::new().name("client".into()).spawn(move || run(&first, &second))?;
        }
        Ok(Workers { urgent, ordinary })
    }

    /// Runs before any submitted computation.
    pub fn urgent(&self, task: impl FnOnce() + Send + 'static) {
        // A thread keeps the receiving end while the pool lives.
        let _ = self.urgent.send(Box::new(task));
    }

    /// Runs after the tasks submitted before.
    pub fn submit(&self, task: impl FnOnce() + Send + 'static) {
        let _ = self.ordinary.send(Box::new(task));
    }
}

/// Runs tasks until both queues are closed and empty.
fn run(first: &Receiver<Task>, second: &Receiver<Task>) {
    loop {
        let task = select_biased! {
            recv(first) -> task => task.or_else(|_| second.recv()),
            recv(second) -> task => task.or_else(|_| first.recv()),
        };
        let Ok(task) = task else { return };
        task();
    }
}
