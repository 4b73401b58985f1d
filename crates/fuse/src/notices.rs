//! What a thread tells the kernel, one notice after another. The kernel may let it wait for long, so what waits is bounded: notices
//! of one key become one, and beyond [`MAX_WAITING`] keys none is taken.

use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Keys that wait at most.
const MAX_WAITING: usize = 1 << 16;

/// What a notice says of its key.
pub trait Notice {
    /// A later notice of the same key came: this one stands for both.
    fn merge(&mut self, later: Self);
}

impl Notice for () {
    fn merge(&mut self, (): ()) {}
}

/// Bytes of a file: those of both and between them.
impl Notice for Range<u64> {
    fn merge(&mut self, later: Range<u64>) {
        *self = self.start.min(later.start)..self.end.max(later.end);
    }
}

/// Place of a notice in the order in which they are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ticket(u64);

struct Queue<K, N> {
    order: VecDeque<(K, Ticket)>,
    waiting: BTreeMap<K, (N, Ticket)>,
    last: Ticket,
    /// The kernel has answered all up to this one.
    told: Ticket,
    /// A caller has waited in vain for this one.
    is_late_until: Ticket,
    /// One of the two sides is gone.
    is_over: bool,
}

struct Shared<K, N> {
    queue: Mutex<Queue<K, N>>,
    changed: Condvar,
}

impl<K, N> Shared<K, N> {
    fn end(&self) {
        self.queue.lock().is_over = true;
        self.changed.notify_all();
    }
}

/// The side of those who have something to tell.
pub struct Notices<K, N>(Arc<Shared<K, N>>);

/// The side of the thread that tells the kernel.
pub struct NoticeQueue<K, N>(Arc<Shared<K, N>>);

/// Both sides of a queue.
pub fn notices<K: Ord + Clone, N: Notice>() -> (Notices<K, N>, NoticeQueue<K, N>) {
    let (last, told, is_late_until) = Default::default();
    let (order, waiting) = Default::default();
    let queue = Mutex::new(Queue { order, waiting, last, told, is_late_until, is_over: false });
    let shared = Arc::new(Shared { queue, changed: Condvar::new() });
    (Notices(shared.clone()), NoticeQueue(shared))
}

impl<K: Ord + Clone, N: Notice> Notices<K, N> {
    /// Adds a notice. None: too many wait.
    pub fn add(&self, key: K, notice: N) -> Option<Ticket> {
        let mut queue = self.0.queue.lock();
        if let Some((waiting, ticket)) = queue.waiting.get_mut(&key) {
            waiting.merge(notice);
            return Some(*ticket);
        }
        if queue.order.len() >= MAX_WAITING {
            return None;
        }
        queue.last = Ticket(queue.last.0 + 1);
        let ticket = queue.last;
        queue.order.push_back((key.clone(), ticket));
        queue.waiting.insert(key, (notice, ticket));
        drop(queue);
        self.0.changed.notify_all();
        Some(ticket)
    }

    /// The notice that was added last.
    pub fn last(&self) -> Ticket {
        self.0.queue.lock().last
    }

    /// Waits for this time at most until the kernel has answered a notice. Others wait for it as long as before.
    pub fn wait_a_moment(&self, ticket: Ticket, within: Duration) {
        let deadline = Instant::now() + within;
        let mut queue = self.0.queue.lock();
        while queue.told < ticket && !queue.is_over && !self.0.changed.wait_until(&mut queue, deadline).timed_out() {}
    }

    /// Waits until the kernel has answered a notice, or nobody tells it any more; false: not within this time. Once it took longer,
    /// no caller waits until what waited then is answered.
    pub fn wait(&self, ticket: Ticket, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        let mut queue = self.0.queue.lock();
        while queue.told < ticket && !queue.is_over {
            if queue.told < queue.is_late_until {
                return false;
            }
            if self.0.changed.wait_until(&mut queue, deadline).timed_out() && queue.told < ticket {
                queue.is_late_until = queue.last;
            }
        }
        true
    }
}

impl<K: Ord + Clone, N: Notice> NoticeQueue<K, N> {
    /// Tells each notice, until the other side is gone and nothing waits.
    pub fn run(&self, mut tell: impl FnMut(K, N)) {
        while let Some((key, notice, ticket)) = self.next() {
            tell(key, notice);
            self.0.queue.lock().told = ticket;
            self.0.changed.notify_all();
        }
    }

    fn next(&self) -> Option<(K, N, Ticket)> {
        let mut queue = self.0.queue.lock();
        loop {
            if let Some((key, ticket)) = queue.order.pop_front() {
                let (notice, added) = queue.waiting.remove(&key).expect("each key in the order waits");
                assert!(added == ticket && queue.told < ticket, "notices are told in the order of their tickets");
                return Some((key, notice, ticket));
            }
            if queue.is_over {
                return None;
            }
            self.0.changed.wait(&mut queue);
        }
    }
}

impl<K, N> Drop for Notices<K, N> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl<K, N> Drop for NoticeQueue<K, N> {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn notices_of_a_key_that_wait_become_one() {
        let (notices, queue) = notices::<u64, Range<u64>>();
        let first = notices.add(7, 10..20).unwrap();
        let second = notices.add(8, 0..u64::MAX).unwrap();
        assert!(first < second && notices.add(7, 15..30) == Some(first) && notices.last() == second);
        drop(notices);
        let mut told = Vec::new();
        queue.run(|ino, bytes| told.push((ino, bytes)));
        assert_eq!(told, [(7, 10..30), (8, 0..u64::MAX)]);
    }

    /// A notice that is being told does not stand for a later one: the kernel may have looked at the page before.
    #[test]
    fn a_notice_that_is_being_told_takes_no_other_in() {
        let (notices, queue) = notices::<u64, Range<u64>>();
        let (begin, begun) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let teller = std::thread::spawn(move || {
            queue.run(|_, _| {
                begin.send(()).unwrap();
                goes_on.recv().unwrap();
            });
        });
        let first = notices.add(7, 0..1).unwrap();
        begun.recv().unwrap();
        let second = notices.add(7, 0..1).unwrap();
        assert!(first < second);
        go_on.send(()).unwrap();
        assert!(notices.wait(first, LONG));
        begun.recv().unwrap();
        go_on.send(()).unwrap();
        assert!(notices.wait(second, LONG));
        drop(notices);
        teller.join().unwrap();
    }

    #[test]
    fn what_waits_is_bounded() {
        let (notices, _queue) = notices::<u64, ()>();
        for key in 0..MAX_WAITING as u64 {
            assert!(notices.add(key, ()).is_some());
        }
        assert_eq!(notices.add(MAX_WAITING as u64, ()), None);
        assert!(notices.add(5, ()).is_some(), "it waits already");
    }

    /// A read that does not end keeps the kernel from an answer: one caller waits for it, and no other.
    #[test]
    fn a_kernel_that_does_not_answer_lets_one_caller_wait() {
        let (notices, queue) = notices::<u64, ()>();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let teller = std::thread::spawn(move || queue.run(|_, ()| goes_on.recv().unwrap()));
        let first = notices.add(1, ()).unwrap();
        assert!(!notices.wait(first, Duration::from_millis(1)));
        let second = notices.add(2, ()).unwrap();
        assert!(!notices.wait(second, LONG), "it does not wait at all");
        go_on.send(()).unwrap();
        go_on.send(()).unwrap();
        while !notices.wait(second, LONG) {
            // The kernel has not caught up yet.
            std::thread::yield_now();
        }
        drop(notices);
        teller.join().unwrap();
    }

    #[test]
    fn nobody_waits_for_a_thread_that_is_gone() {
        let (notices, queue) = notices::<u64, ()>();
        drop(queue);
        let ticket = notices.add(1, ()).unwrap();
        assert!(notices.wait(ticket, LONG));
    }
}
