//! Replies that wait until the simulated SSD is done with their commands.

use super::listen::Stream;
use super::room::Room;
use super::serve::Server;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, BufReader, Write};
use std::num::NonZeroU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;
use tessera_flash::Ns;
use tessera_flash::nbd::{Error, Reply, Session};

/// A reply, and when it is due.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Waiting {
    /// In ns since the start of the server.
    pub due: Ns,
    /// The client's number of the command.
    pub cookie: u64,
    /// Power cuts before the command was executed.
    pub power_cuts: u64,
    /// What is sent, unless the power was cut since.
    pub bytes: Vec<u8>,
    /// The bytes that it takes of the connection's room.
    pub room: usize,
}

/// How soon a reply that waits fails after a power cut.
pub const CUT_NOTICED: Duration = Duration::from_millis(50);

/// How long a thread waits for the time of a reply without sleeping: the kernel wakes one some 50 us late.
const SPIN_MAX: Ns = 100_000;

/// Longer replies may fill the socket's buffer, and the thread that reads commands is not to wait for the client.
const SOON_BYTES_MAX: usize = 68 << 10;

/// Sends a short reply that is due soon from the thread that reads the commands, if no other reply waits and no other command has
/// come. Otherwise returns it, for [`send_in_time`].
pub fn send_soon(
    server: &Server,
    session: Session,
    (input, room): (&BufReader<Stream>, &Room),
    stream: &mut Stream,
    reply: Waiting,
) -> io::Result<Option<Waiting>> {
    let is_soon = reply.due.saturating_sub(server.now()) <= SPIN_MAX && reply.bytes.len() <= SOON_BYTES_MAX;
    if !is_soon || !room.is_one() {
        return Ok(Some(reply));
    }
    while server.now() < reply.due {
        if !input.buffer().is_empty() || input.get_ref().has_input() {
            return Ok(Some(reply));
        }
        std::hint::spin_loop();
    }
    let is_cut = reply.power_cuts != server.power_cuts();
    if !is_cut {
        server.note_sent(reply.due);
    }
    stream.write_all(&if is_cut { failed(session, &reply) } else { reply.bytes })?;
    room.free(reply.room);
    Ok(None)
}

/// Waits a short while for the next command without sleeping: a client that has one command at a time sends it soon after a reply.
pub fn stay_awake(server: &Server, input: &BufReader<Stream>) {
    let end = server.now() + SPIN_MAX;
    while input.buffer().is_empty() && !input.get_ref().has_input() && server.now() < end {
        std::hint::spin_loop();
    }
}

/// Lets the kernel wake this thread when its time has come, and not up to 50 us later so that other timers can join.
pub fn wake_in_time() {
    // Without it replies are only later.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// Sends each reply when it is due, until there will be no more, and gives its room back. After a power cut those that wait fail: the
/// SSD is not done with their commands, and never will be.
pub fn send_in_time(
    server: &Server,
    session: Session,
    (receiver, room): (&Receiver<Waiting>, &Room),
    mut stream: Stream,
) -> io::Result<()> {
    let mut waiting: BinaryHeap<Reverse<Waiting>> = BinaryHeap::new();
    wake_in_time();
    let (mut is_open, mut power_cuts) = (true, server.power_cuts());
    let mut send = |Reverse(reply): Reverse<Waiting>, is_cut: bool| {
        if !is_cut {
            server.note_sent(reply.due);
        }
        stream.write_all(&if is_cut { failed(session, &reply) } else { reply.bytes })?;
        room.free(reply.room);
        io::Result::Ok(())
    };
    while is_open || !waiting.is_empty() {
        if power_cuts != server.power_cuts() {
            power_cuts = server.power_cuts();
            let is_cut = |Reverse(reply): &Reverse<Waiting>| reply.power_cuts != power_cuts;
            let (cut, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_cut);
            waiting = rest.into();
            cut.into_iter().try_for_each(|reply| send(reply, true))?;
        }
        let now = server.now();
        while waiting.peek().is_some_and(|Reverse(reply)| reply.due <= now) {
            let reply = waiting.pop().expect("it was there");
            let is_cut = reply.0.power_cuts != server.power_cuts();
            send(reply, is_cut)?;
        }
        let wait = waiting.peek().map(|Reverse(reply)| Duration::from_nanos(reply.due - now.min(reply.due)));
        let wait = wait.map(|wait| wait.min(CUT_NOTICED));
        // One alone is sent by a thread that is awake; with several, a core is worth more than a few us.
        let wakes = wait.is_some_and(|wait| waiting.len() == 1 && wait.as_nanos() as Ns > SPIN_MAX);
        let wait = if wakes { wait.map(|wait| wait - Duration::from_nanos(SPIN_MAX)) } else { wait };
        if waiting.len() == 1 && !wakes && is_open {
            match receiver.try_recv() {
                Ok(reply) => waiting.push(Reverse(reply)),
                Err(TryRecvError::Empty) => std::hint::spin_loop(),
                Err(TryRecvError::Disconnected) => is_open = false,
            }
            continue;
        }
        if !is_open {
            std::thread::sleep(wait.unwrap_or_default());
            continue;
        }
        let next = match wait {
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(wait) => receiver.recv_timeout(wait),
        };
        match next {
            Ok(reply) => waiting.push(Reverse(reply)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => is_open = false,
        }
    }
    Ok(())
}

fn failed(session: Session, reply: &Waiting) -> Vec<u8> {
    Reply { cookie: reply.cookie, data: None, error: Some(Error::Io) }.encode(session)
}
