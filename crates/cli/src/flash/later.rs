//! Answers to the kernel that wait until the simulated SSD is done.

use super::replies::{CUT_NOTICED, wake_in_time};
use super::serve::Server;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tessera_flash::Ns;

/// Is told whether the power was cut meanwhile.
type Answer = Box<dyn FnOnce(bool) + Send>;

struct Waiting {
    power_cuts: u64,
    answer: Answer,
}

/// Answers that wait. The kernel bounds how many there are.
#[derive(Default)]
pub struct Later {
    queue: Mutex<Queue>,
    added: Condvar,
}

#[derive(Default)]
struct Queue {
    /// By when they are due, and a number.
    waiting: BTreeMap<(Ns, u64), Waiting>,
    last: u64,
}

impl Queue {
    /// Takes the answers that are due, and those that a power cut has overtaken.
    fn take_ready(&mut self, now: Ns, power_cuts: u64) -> BTreeMap<(Ns, u64), Waiting> {
        let later = self.waiting.split_off(&(now + 1, 0));
        let mut ready = std::mem::replace(&mut self.waiting, later);
        let is_cut = |waiting: &Waiting| waiting.power_cuts != power_cuts;
        if self.waiting.values().any(is_cut) {
            let (cut, rest) = std::mem::take(&mut self.waiting).into_iter().partition(|(_, waiting)| is_cut(waiting));
            self.waiting = rest;
            ready.extend(BTreeMap::into_iter(cut));
        }
        ready
    }
}

impl Later {
    /// Starts the thread that gives answers.
    ///
    /// # Errors
    /// The system's.
    pub fn start(server: &Arc<Server>) -> io::Result<Arc<Later>> {
        let later = Arc::new(Later::default());
        let (server, giving) = (server.clone(), later.clone());
        std::thread::Builder::new().name("later".into()).spawn(move || giving.give(&server))?;
        Ok(later)
    }

    /// Gives an answer at a time since the start of the server. There were so many power cuts when its request was carried out.
    pub fn at(&self, due: Ns, power_cuts: u64, answer: impl FnOnce(bool) + Send + 'static) {
        let mut queue = self.queue.lock();
        queue.last += 1;
        let number = queue.last;
        queue.waiting.insert((due, number), Waiting { power_cuts, answer: Box::new(answer) });
        self.added.notify_one();
    }

    fn give(&self, server: &Server) {
        wake_in_time();
        let mut queue = self.queue.lock();
        loop {
            let (now, cuts) = (server.now(), server.power_cuts());
            let ready = queue.take_ready(now, cuts);
            if !ready.is_empty() {
                drop(queue);
                for ((due, _), Waiting { power_cuts, answer }) in ready {
                    if power_cuts == cuts {
                        server.note_sent(due);
                    }
                    answer(power_cuts != cuts);
                }
                queue = self.queue.lock();
                continue;
            }
            match queue.waiting.keys().next() {
                None => self.added.wait(&mut queue),
                Some((due, _)) => {
                    let wait = Duration::from_nanos(due - now).min(CUT_NOTICED);
                    self.added.wait_for(&mut queue, wait);
                }
            }
        }
    }
}
