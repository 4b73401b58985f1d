//! Replies that wait until the simulated SSD is done with their commands.

use super::listen::Stream;
use super::serve::Server;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use tessera_flash::Ns;
use tessera_flash::nbd::{Error, Reply, Session};

/// The most replies of a connection that wait for their time.
pub const WAITING_MAX: usize = 1024;

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
}

/// How soon a reply that waits fails after a power cut.
const CUT_NOTICED: Duration = Duration::from_millis(50);

/// Sends each reply when it is due, until there will be no more. After a power cut those that wait fail: the SSD is not done with
/// their commands, and never will be.
pub fn send_in_time(
    server: &Server,
    session: Session,
    receiver: &Receiver<Waiting>,
    mut stream: Stream,
) -> io::Result<()> {
    let mut waiting: BinaryHeap<Reverse<Waiting>> = BinaryHeap::new();
    let (mut is_open, mut power_cuts) = (true, server.power_cuts());
    while is_open || !waiting.is_empty() {
        if power_cuts != server.power_cuts() {
            power_cuts = server.power_cuts();
            let (cut, rest): (Vec<_>, Vec<_>) =
                waiting.into_iter().partition(|Reverse(reply)| reply.power_cuts != power_cuts);
            waiting = rest.into();
            cut.iter().try_for_each(|Reverse(reply)| stream.write_all(&failed(session, reply)))?;
        }
        let now = server.now();
        while waiting.peek().is_some_and(|Reverse(reply)| reply.due <= now) {
            let Reverse(reply) = waiting.pop().expect("it was there");
            match reply.power_cuts == server.power_cuts() {
                true => stream.write_all(&reply.bytes)?,
                false => stream.write_all(&failed(session, &reply))?,
            }
        }
        let wait = waiting.peek().map(|Reverse(reply)| Duration::from_nanos(reply.due - now.min(reply.due)));
        let wait = wait.map(|wait| wait.min(CUT_NOTICED));
        if !is_open || waiting.len() >= WAITING_MAX {
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
