//! Replies that wait until the simulated SSD is done with their commands.

use super::listen::Stream;
use super::room::Room;
use super::serve::Server;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
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

/// Sends each reply when it is due, until there will be no more, and gives its room back. After a power cut those that wait fail: the
/// SSD is not done with their commands, and never will be.
pub fn send_in_time(
    server: &Server,
    session: Session,
    (receiver, room): (&Receiver<Waiting>, &Room),
    mut stream: Stream,
) -> io::Result<()> {
    let mut waiting: BinaryHeap<Reverse<Waiting>> = BinaryHeap::new();
    let (mut is_open, mut power_cuts) = (true, server.power_cuts());
    let mut send = |Reverse(reply): Reverse<Waiting>, is_cut: bool| {
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
