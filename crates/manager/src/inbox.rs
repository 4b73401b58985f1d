//! What waits for the core's thread, taken in turn: one request of each connection, then the next of each.
//!
//! So a peer that sends many requests, or costly ones, delays the others by one request a turn. Requests of one
//! connection stay in order. What belongs to no connection (answers to the manager's own calls, the end of a snapshot)
//! goes first: the log waits for it.

use super::sync::{Condvar, Mutex, MutexGuard};
use crate::core::Event;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use tessera_failpoint as failpoint;

/// A queue of `T`, fair to connections.
pub(crate) struct Inbox<T> {
    queue: Mutex<Queue<T>>,
    filled: Condvar,
}

struct Queue<T> {
    first: VecDeque<T>,
    /// None of them is empty.
    by_connection: HashMap<u64, VecDeque<T>>,
    /// The connections of `by_connection`, each once.
    turns: VecDeque<u64>,
    /// The core's thread waits.
    waiting: bool,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        let queue =
            Queue { first: VecDeque::new(), by_connection: HashMap::new(), turns: VecDeque::new(), waiting: false };
        Inbox { queue: Mutex::new(queue), filled: Condvar::new() }
    }
}

impl<T> Inbox<T> {
    /// Adds something; `connection` is the one that it came on.
    pub fn push(&self, connection: Option<u64>, item: T) {
        let mut queue = self.queue.lock();
        queue.push(connection, item);
        if std::mem::take(&mut queue.waiting) {
            drop(queue);
            self.filled.notify_one();
        }
    }

    /// Number of those that wait.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        let queue = self.queue.lock();
        queue.first.len() + queue.by_connection.values().map(VecDeque::len).sum::<usize>()
    }

    /// The next one; `None` if there is none yet.
    pub fn take(&self) -> Option<T> {
        self.queue.lock().pop()
    }

    /// The next one, waiting at most `limit` for it.
    pub fn take_within(&self, limit: Duration) -> Option<T> {
        let until = Instant::now() + limit;
        let mut queue = self.queue.lock();
        loop {
            if let Some(item) = queue.pop() {
                return Some(item);
            }
            if failpoint::is_active("manager.inbox_waits_unannounced") {
                MutexGuard::unlocked(&mut queue, || ());
            }
            queue.waiting = true;
            if self.filled.wait_until(&mut queue, until).timed_out() {
                queue.waiting = false;
                return queue.pop();
            }
        }
    }
}

impl<T> Queue<T> {
    fn push(&mut self, connection: Option<u64>, item: T) {
        let Some(connection) = connection else { return self.first.push_back(item) };
        let waiting = self.by_connection.entry(connection).or_default();
        if waiting.is_empty() {
            self.turns.push_back(connection);
        }
        match failpoint::is_active("manager.inbox_reorders") {
            true => waiting.push_front(item),
            false => waiting.push_back(item),
        }
    }

    fn pop(&mut self) -> Option<T> {
        if let Some(item) = self.first.pop_front() {
            return Some(item);
        }
        let connection = self.turns.pop_front()?;
        let waiting = self.by_connection.get_mut(&connection)?;
        let item = waiting.pop_front();
        assert!(item.is_some(), "connection {connection} had a turn and no request");
        match waiting.is_empty() {
            true => drop(self.by_connection.remove(&connection)),
            false => self.turns.push_back(connection),
        }
        item
    }
}

/// The connection whose turn an event takes.
pub(crate) fn connection_of(event: &Event) -> Option<u64> {
    match event {
        Event::Request { connection, .. } | Event::ConnectionClosed { connection, .. } => Some(*connection),
        Event::RejectedNode { .. } | Event::Answer(_) | Event::Read(_) | Event::Tick => None,
    }
}
