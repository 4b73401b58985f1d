//! The sending half of a connection. No thread ever waits here.
//!
//! A thread that sends writes as much as the socket takes at once. What is left, and everything that comes from a file,
//! is written by the connection's own thread: it waits for the socket in `poll`, together with what the peer sends. So a
//! peer that does not read costs memory, within its [`crate::Limits`], and nobody's time.

use super::endpoint::Stream;
use super::limits::Admissions;
use super::sending::{Outgoing, Purpose, Writable, write_some};
use super::sync::{AtomicBool, Mutex, MutexGuard, Ordering, Wake};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Instant;
use tessera_failpoint as failpoint;

/// A thread writes about this many bytes at a time, so that it comes back to its other work.
const TURN_BYTES: usize = 1 << 20;

pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    /// Signalled when the connection's thread must look at the queue.
    wake: Wake,
    /// The connection's thread is about to wait, or waits.
    asleep: AtomicBool,
    /// Of the server that accepted the connection.
    admissions: Option<Arc<Admissions>>,
}

struct Queue {
    frames: VecDeque<Outgoing>,
    unsent_bytes: usize,
    /// Calls that ended while a thread wrote.
    given_up: HashSet<u64>,
    /// When the peer last took something, or the queue was empty.
    moved: Instant,
    /// The queue became empty without that: what was left in it was given up.
    is_stuck: bool,
    /// Costs of requests without an answer.
    unanswered: HashMap<u64, usize>,
    unanswered_bytes: usize,
    /// What [`Admissions`] has counted.
    accounted_bytes: usize,
    /// A thread is writing, without the lock.
    writing: bool,
    /// The rest is left to the connection's thread.
    left: bool,
    /// The connection's thread reads no request until others are answered.
    held: bool,
    failed: bool,
}

impl Outbox {
    /// # Errors
    /// No file descriptor is free.
    pub fn new(admissions: Option<Arc<Admissions>>) -> io::Result<Outbox> {
        let queue = Queue {
            frames: VecDeque::new(),
            unsent_bytes: 0,
            given_up: HashSet::new(),
            moved: Instant::now(),
            is_stuck: false,
            unanswered: HashMap::new(),
            unanswered_bytes: 0,
            accounted_bytes: 0,
            writing: false,
            left: false,
            held: false,
            failed: false,
        };
        let wake = Wake::new()?;
        Ok(Outbox { queue: Mutex::new(queue), wake, asleep: AtomicBool::new(false), admissions })
    }

    /// Counts a request that needs an answer. Returns false if one with this id has none yet.
    pub fn begin(&self, request_id: u64, cost_bytes: usize) -> bool {
        let mut queue = self.queue.lock();
        if queue.failed {
            return true;
        }
        queue.unanswered_bytes += cost_bytes;
        let is_new = queue.unanswered.insert(request_id, cost_bytes).is_none();
        self.account(&mut queue);
        is_new
    }

    /// Queues a frame, and writes what the socket takes unless another thread writes.
    ///
    /// # Errors
    /// The stream failed, now or before, or the peer has left too much unread.
    pub fn send(&self, stream: &Stream, frame: Outgoing) -> io::Result<()> {
        let mut queue = self.queue.lock();
        if queue.failed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if queue.frames.is_empty() && !queue.writing && !queue.is_stuck {
            queue.moved = Instant::now();
        }
        if let Purpose::Answer(id) = frame.purpose
            && let Some(cost_bytes) = queue.unanswered.remove(&id)
        {
            queue.unanswered_bytes -= cost_bytes;
        }
        queue.unsent_bytes += frame.len_bytes();
        queue.frames.push_back(frame);
        let result = match queue.writing || queue.left {
            true => Ok(()),
            false => self.write(&mut queue, stream, Writable::Memory),
        };
        self.account(&mut queue);
        let too_much = self.admissions.as_ref().is_some_and(|a| queue.unsent_bytes > a.limits.outbox_bytes);
        let (left, held, unsent_bytes) = (queue.left, queue.held, queue.unsent_bytes);
        drop(queue);
        result?;
        if too_much {
            let text = format!("the peer has left {unsent_bytes} bytes unread");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
        }
        if left || held {
            self.wake_thread();
        }
        if left && let Some(admissions) = &self.admissions {
            admissions.shed();
        }
        Ok(())
    }

    /// Writes what other threads left, as much as the socket takes. Only the connection's thread calls it.
    ///
    /// # Errors
    /// The stream failed.
    pub fn flush(&self, stream: &Stream) -> io::Result<()> {
        let mut queue = self.queue.lock();
        if queue.writing || !queue.left {
            return Ok(());
        }
        let result = self.write(&mut queue, stream, Writable::All);
        if !failpoint::is_active("net.flushed_not_accounted") {
            self.account(&mut queue);
        }
        result
    }

    fn write(&self, queue: &mut MutexGuard<'_, Queue>, stream: &Stream, what: Writable) -> io::Result<()> {
        queue.writing = true;
        let (mut turn_bytes, mut goes_on) = (0, true);
        while goes_on && turn_bytes < TURN_BYTES && !queue.frames.is_empty() {
            let mut batch = std::mem::take(&mut queue.frames);
            let most_bytes = TURN_BYTES - turn_bytes;
            let written = MutexGuard::unlocked(queue, || write_some(stream, &mut batch, most_bytes, what));
            if queue.failed && !failpoint::is_active("net.writes_after_close") {
                queue.writing = false;
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let (bytes, more) = match written {
                Ok(written) => written,
                Err(error) => {
                    queue.writing = false;
                    queue.fail();
                    return Err(error);
                }
            };
            match failpoint::is_active("net.frames_overtake") {
                true => queue.frames.append(&mut batch),
                false => {
                    batch.append(&mut queue.frames);
                    queue.frames = batch;
                }
            }
            queue.drop_given_up();
            if bytes > 0 {
                (queue.moved, queue.is_stuck) = (Instant::now(), false);
                queue.unsent_bytes -= bytes;
                turn_bytes += bytes;
            }
            goes_on = more;
        }
        queue.writing = false;
        queue.left = !queue.frames.is_empty();
        Ok(())
    }

    /// Calls have ended without their answers: what of them has not begun to leave is dropped, because a peer that takes little would
    /// get nothing else. Returns those that the peer may not know.
    pub fn give_up(&self, calls: HashSet<u64>) -> HashSet<u64> {
        let mut queue = self.queue.lock();
        queue.given_up.extend(&calls);
        let unknown = match queue.writing {
            // The thread that writes has the frames, and drops them when it brings them back.
            true => calls,
            false => queue.drop_given_up(),
        };
        self.account(&mut queue);
        unknown
    }

    fn account(&self, queue: &mut Queue) {
        let now_bytes = queue.unsent_bytes + queue.unanswered_bytes;
        if let Some(admissions) = &self.admissions
            && now_bytes != queue.accounted_bytes
        {
            admissions.account(queue.accounted_bytes, now_bytes);
            queue.accounted_bytes = now_bytes;
        }
    }

    /// Whether the connection may read another request.
    pub fn may_read(&self) -> bool {
        let Some(admissions) = &self.admissions else { return true };
        let mut queue = self.queue.lock();
        let outstanding_bytes = queue.unsent_bytes + queue.unanswered_bytes;
        let too_much = outstanding_bytes > admissions.limits.outstanding_bytes || admissions.is_exhausted();
        queue.held = outstanding_bytes > 0 && too_much;
        !queue.held
    }

    /// Since when the peer takes nothing although something waits for it.
    pub fn unsent_since(&self) -> Option<Instant> {
        let queue = self.queue.lock();
        (queue.left && !queue.failed).then_some(queue.moved)
    }

    /// Whether a request of the peer has no answer.
    pub fn owes_answer(&self) -> bool {
        !self.queue.lock().unanswered.is_empty()
    }

    /// Writes what was left to the connection's thread, which may be busy, as far as it is in memory and the socket takes it, unless
    /// another thread writes. Returns whether nothing is left.
    ///
    /// # Errors
    /// The stream failed.
    pub fn push(&self, stream: &Stream) -> io::Result<bool> {
        let mut queue = self.queue.lock();
        if queue.writing || queue.failed {
            return Ok(false);
        }
        if queue.frames.is_empty() {
            return Ok(true);
        }
        let result = self.write(&mut queue, stream, Writable::Memory);
        self.account(&mut queue);
        let left = queue.left;
        drop(queue);
        result?;
        if left {
            self.wake_thread();
        }
        Ok(!left)
    }

    /// The connection's thread is about to wait: from now on others wake it. Returns whether it has something to write.
    pub fn begin_wait(&self) -> bool {
        let seen = failpoint::is_active("net.sleeps_unannounced").then(|| self.queue.lock().left);
        self.asleep.store(true, Ordering::SeqCst);
        seen.unwrap_or_else(|| self.queue.lock().left)
    }

    /// The connection's thread has waited.
    pub fn end_wait(&self, woken: bool) {
        self.asleep.store(false, Ordering::SeqCst);
        if woken {
            self.wake.clear();
        }
    }

    /// Signalled when the connection's thread is to stop waiting.
    pub fn wake(&self) -> &Wake {
        &self.wake
    }

    /// Ends the wait of the connection's thread.
    pub fn wake_thread(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            self.wake.signal();
        }
    }

    /// Drops what is queued; every later frame is refused.
    pub fn close(&self) {
        let mut queue = self.queue.lock();
        queue.fail();
        self.account(&mut queue);
    }
}

impl Queue {
    /// Drops the frames of calls that ended, unless they have begun to leave. Returns those calls.
    fn drop_given_up(&mut self) -> HashSet<u64> {
        let given_up = std::mem::take(&mut self.given_up);
        let mut dropped = HashSet::new();
        if given_up.is_empty() {
            return dropped;
        }
        let may_drop = |frame: &Outgoing| !frame.has_begun || failpoint::is_active("net.gives_up_what_has_begun");
        self.frames.retain(|frame| match frame.purpose {
            Purpose::Call(id) if may_drop(frame) && given_up.contains(&id) => {
                self.unsent_bytes -= frame.len_bytes();
                dropped.insert(id);
                false
            }
            _ => true,
        });
        self.is_stuck |= self.frames.is_empty() && !dropped.is_empty();
        self.left &= !self.frames.is_empty();
        dropped
    }

    fn fail(&mut self) {
        self.failed = true;
        self.left = false;
        self.frames.clear();
        self.given_up.clear();
        self.unanswered.clear();
        (self.unsent_bytes, self.unanswered_bytes) = (0, 0);
    }
}
