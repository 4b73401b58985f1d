//! The outbox under many schedules of threads: no wake-up is lost, frames leave whole and in the order in which they were queued, every
//! byte is accounted, and a close while others send leaves nothing behind.

mod endpoint {
    use tessera_interleave::Mutex;

    /// A socket that takes bytes only while its peer has read the earlier ones.
    pub(crate) struct Stream(pub(super) Mutex<Socket>);

    #[derive(Default)]
    pub(crate) struct Socket {
        pub(crate) room: usize,
        pub(crate) taken: Vec<u8>,
    }
}

mod sending {
    use super::endpoint::Stream;
    pub(crate) use crate::sending::{Outgoing, Part, Purpose, Writable, advance};
    use std::collections::VecDeque;
    use std::io;

    pub(crate) fn write_some(
        stream: &Stream,
        frames: &mut VecDeque<Outgoing>,
        most_bytes: usize,
        _what: Writable,
    ) -> io::Result<(usize, bool)> {
        let mut written = 0;
        while let Some(Part::Bytes(bytes)) = frames.front().and_then(|frame| frame.parts.front()) {
            let mut socket = stream.0.lock();
            let (now, whole) = (bytes.len().min(socket.room).min(most_bytes - written), bytes.len());
            socket.room -= now;
            socket.taken.extend(&bytes[..now]);
            written += now;
            if now > 0 {
                advance(frames, now);
            }
            if now < whole {
                return Ok((written, false));
            }
        }
        Ok((written, true))
    }
}

mod limits {
    pub(crate) use crate::limits::Admissions;
}

mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, Ordering};
    pub(crate) use tessera_interleave::{Mutex, MutexGuard};

    /// Wakes a thread that polls.
    pub(crate) struct Wake(AtomicBool);

    impl Wake {
        pub(crate) fn new() -> std::io::Result<Wake> {
            Ok(Wake(AtomicBool::new(false)))
        }

        pub(crate) fn signal(&self) {
            self.0.store(true, Ordering::SeqCst);
        }

        pub(crate) fn clear(&self) {
            self.0.store(false, Ordering::SeqCst);
        }

        pub(crate) fn is_signalled(&self) -> bool {
            self.0.load(Ordering::SeqCst)
        }
    }
}

/// The production code, with locks and a socket that the test schedules.
#[allow(clippy::duplicate_mod, dead_code, reason = "the tests need a part of it")]
#[path = "outbox.rs"]
mod outbox;

use crate::limits::{Admissions, Limits};
use bytes::Bytes;
use endpoint::{Socket, Stream};
use outbox::Outbox;
use sending::{Outgoing, Part, Purpose};
use shuttle::thread;
use std::sync::Arc;
use sync::{AtomicBool, Mutex, Ordering};
use tessera_interleave::{explore, fails};

const SCHEDULES: usize = 2_000;
const SENDERS: u8 = 2;
const FRAMES: u8 = 3;
/// A frame is a head and a payload: its sender, its number, filler.
const FRAME_BYTES: usize = 5;
const TOTAL_BYTES: usize = SENDERS as usize * FRAMES as usize * FRAME_BYTES;

struct Rig {
    outbox: Outbox,
    stream: Stream,
    admissions: Arc<Admissions>,
    ends: AtomicBool,
}

fn frame(purpose: Purpose, sender: u8, number: u8) -> Outgoing {
    let part = |bytes: &[u8]| Part::Bytes(Bytes::copy_from_slice(bytes));
    Outgoing::new(purpose, [part(&[sender, number]), part(&[sender, number, 7])])
}

impl Rig {
    fn new() -> Arc<Rig> {
        let admissions = Admissions::new(Limits::default());
        let outbox = Outbox::new(Some(admissions.clone())).unwrap();
        let stream = Stream(Mutex::new(Socket::default()));
        Arc::new(Rig { outbox, stream, admissions, ends: AtomicBool::new(false) })
    }

    /// Sends frames that answer requests; returns whether all were taken.
    fn send(&self, sender: u8) -> bool {
        (0..FRAMES).all(|number| {
            let id = u64::from(sender * FRAMES + number);
            self.outbox.begin(id, 100);
            self.outbox.send(&self.stream, frame(Purpose::Answer(id), sender, number)).is_ok()
        })
    }

    /// Calls the peer, and does not wait for the answers.
    fn call_in_vain(&self) {
        for number in 0..FRAMES {
            let id = u64::from(number);
            self.outbox.send(&self.stream, frame(Purpose::Call(id), SENDERS, number)).unwrap();
            self.outbox.give_up([id].into());
        }
    }

    /// The connection's thread, as in `reading.rs`: it waits until it is woken, or for room if something is left.
    fn serve(&self) {
        loop {
            let unsent = self.outbox.begin_wait();
            let mut woken = false;
            while !self.ends.load(Ordering::SeqCst) {
                woken = self.outbox.wake().is_signalled();
                if woken || unsent && self.stream.0.lock().room > 0 {
                    break;
                }
                thread::yield_now();
            }
            self.outbox.end_wait(woken);
            if self.ends.load(Ordering::SeqCst) || self.outbox.flush(&self.stream).is_err() {
                return;
            }
        }
    }

    /// The peer reads a few bytes at a time, until it has all.
    fn read(&self) {
        loop {
            {
                let mut socket = self.stream.0.lock();
                if socket.taken.len() == TOTAL_BYTES {
                    return;
                }
                socket.room = 4;
            }
            thread::yield_now();
        }
    }
}

fn everything_arrives_in_order() {
    let rig = Rig::new();
    let spawn = |act: fn(&Rig)| {
        let rig = rig.clone();
        thread::spawn(move || act(&rig))
    };
    let senders = [spawn(|rig| assert!(rig.send(0))), spawn(|rig| assert!(rig.send(1)))];
    let (server, peer) = (spawn(Rig::serve), spawn(Rig::read));
    senders.into_iter().chain([peer]).for_each(|thread| thread.join().unwrap());
    rig.ends.store(true, Ordering::SeqCst);
    server.join().unwrap();
    let taken = std::mem::take(&mut rig.stream.0.lock().taken);
    let mut next = [0; SENDERS as usize];
    for frame in taken.chunks(FRAME_BYTES) {
        let (sender, number) = (frame[0], frame[1]);
        assert_eq!(frame, [sender, number, sender, number, 7], "a frame is whole");
        assert_eq!(number, next[sender as usize], "frames stay in order");
        next[sender as usize] += 1;
    }
    assert_eq!(rig.admissions.outstanding_bytes(), 0, "nothing is left to account");
}

/// Calls are given up while others send, and the peer takes little.
fn a_call_given_up_leaves_whole_or_not_at_all() {
    let rig = Rig::new();
    let spawn = |act: fn(&Rig)| {
        let rig = rig.clone();
        thread::spawn(move || act(&rig))
    };
    let senders = [spawn(|rig| assert!(rig.send(0))), spawn(Rig::call_in_vain)];
    let (server, trickle) = (spawn(Rig::serve), spawn(|rig| rig.stream.0.lock().room = 4));
    senders.into_iter().chain([trickle]).for_each(|thread| thread.join().unwrap());
    rig.ends.store(true, Ordering::SeqCst);
    server.join().unwrap();
    rig.stream.0.lock().room = TOTAL_BYTES;
    rig.outbox.push(&rig.stream).unwrap();
    let taken = std::mem::take(&mut rig.stream.0.lock().taken);
    let mut answers = Vec::new();
    for frame in taken.chunks(FRAME_BYTES) {
        let (sender, number) = (frame[0], frame[1]);
        assert_eq!(frame, [sender, number, sender, number, 7], "a frame is whole");
        if sender == 0 {
            answers.push(number);
        }
    }
    assert_eq!(answers, [0, 1, 2], "no answer is lost");
    assert_eq!(rig.admissions.outstanding_bytes(), 0, "nothing is left to account");
}

/// One thread closes while others send and the connection's thread writes.
fn a_close_leaves_nothing() {
    let rig = Rig::new();
    rig.stream.0.lock().room = 12;
    let spawn = |act: fn(&Rig)| {
        let rig = rig.clone();
        thread::spawn(move || act(&rig))
    };
    let senders = [spawn(|rig| _ = rig.send(0)), spawn(|rig| _ = rig.send(1))];
    let server = spawn(Rig::serve);
    let closer = spawn(|rig| rig.outbox.close());
    senders.into_iter().chain([closer]).for_each(|thread| thread.join().unwrap());
    rig.ends.store(true, Ordering::SeqCst);
    server.join().unwrap();
    let before = rig.stream.0.lock().taken.len();
    rig.stream.0.lock().room = 100;
    assert!(rig.outbox.flush(&rig.stream).is_ok() && !rig.send(0), "a closed outbox takes nothing");
    assert_eq!(rig.stream.0.lock().taken.len(), before, "nothing leaves after the close");
    assert_eq!(rig.admissions.outstanding_bytes(), 0, "nothing is left to account");
}

#[test]
fn frames_arrive_whole_in_order_and_accounted() {
    explore(SCHEDULES, everything_arrives_in_order);
    for mistake in ["net.sleeps_unannounced", "net.frames_overtake", "net.flushed_not_accounted"] {
        let _mistake = tessera_failpoint::activate(mistake);
        assert!(fails(SCHEDULES, everything_arrives_in_order), "{mistake} is not noticed");
    }
}

#[test]
fn a_close_while_others_send_leaves_nothing() {
    explore(SCHEDULES, a_close_leaves_nothing);
    let _mistake = tessera_failpoint::activate("net.writes_after_close");
    assert!(fails(SCHEDULES, a_close_leaves_nothing), "a write after the close is not noticed");
}

#[test]
fn what_is_given_up_tears_no_frame() {
    explore(SCHEDULES, a_call_given_up_leaves_whole_or_not_at_all);
    let _mistake = tessera_failpoint::activate("net.gives_up_what_has_begun");
    assert!(fails(SCHEDULES, a_call_given_up_leaves_whole_or_not_at_all), "a torn frame is not noticed");
}
