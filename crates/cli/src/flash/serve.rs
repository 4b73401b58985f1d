//! `tessera flash serve`: an emulated SSD as a network block device. A thread reads the commands of a connection. With
//! delays a second one sends each reply when the simulated SSD is done with it; replies may overtake each other.

use super::listen::{Listener, Stream};
use crate::args::ServeArgs;
use crate::exit::{At, Failure, Outcome};
use parking_lot::Mutex;
use serde_json::json;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, BufReader, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tessera_flash::nbd::{Command, Kind, Reply, Session, negotiate};
use tessera_flash::{Config, Emulator, Ns};

/// The most replies of a connection that wait for their time.
const WAITING_MAX: usize = 1024;

struct Server {
    emulator: Mutex<Emulator>,
    start: Instant,
    /// Whether replies wait until the simulated SSD is done.
    delays: bool,
    size: u64,
    page_bytes: u32,
}

/// A reply and when it is due, in ns since the start of the server.
type Due = (Ns, Vec<u8>);

/// Serves until the process is ended.
pub fn serve(args: &ServeArgs) -> Outcome {
    let config = Config {
        map_cache: args.map_cache,
        shape: args.geometry,
        timing: args.timing.unwrap_or(tessera_flash::Timing::SIMULATION),
        over_provisioning: args.over_provisioning,
        ..Config::new(args.capacity, args.ftl.name)
    };
    let emulator = Emulator::new(&config).map_err(Failure::usage)?;
    let server = Arc::new(Server {
        emulator: Mutex::new(emulator),
        start: Instant::now(),
        delays: args.timing.is_some(),
        size: args.capacity,
        page_bytes: args.geometry.page_bytes,
    });
    let listener = Listener::bind(&args.nbd)?;
    let document = json!({ "nbd": listener.uri(), "capacity_bytes": args.capacity, "ftl": args.ftl.name });
    args.output.result(&document, listener.uri())?;
    args.output.flush()?;
    loop {
        let stream = listener.accept()?;
        let (server, output) = (server.clone(), args.output);
        let work = move || {
            if let Err(error) = server.connection(stream) {
                output.note(format!("a connection ended: {error}"));
            }
        };
        std::thread::Builder::new().name("nbd".into()).spawn(work).at("a thread")?;
    }
}

impl Server {
    fn connection(&self, mut stream: Stream) -> io::Result<()> {
        let Some(session) = negotiate(&mut stream, self.size, self.page_bytes)? else { return Ok(()) };
        let (mut replies, input) = (stream.try_clone()?, BufReader::new(stream));
        if !self.delays {
            return self.commands(input, session, |(_, reply)| replies.write_all(&reply));
        }
        let (sender, receiver) = sync_channel(WAITING_MAX);
        std::thread::scope(|scope| {
            let sending = scope.spawn(move || self.send_in_time(&receiver, replies));
            let read = self.commands(input, session, |reply| give(&sender, reply));
            drop(sender);
            let sent = sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            sent.and(read)
        })
    }

    /// Executes the commands of a connection.
    fn commands(
        &self,
        mut input: BufReader<Stream>,
        session: Session,
        mut answer: impl FnMut(Due) -> io::Result<()>,
    ) -> io::Result<()> {
        while let Some(command) = Command::read(&mut input, self.size)? {
            let (due, reply) = self.execute(&command);
            answer((due, reply.encode(session)))?;
        }
        Ok(())
    }

    fn now(&self) -> Ns {
        self.start.elapsed().as_nanos() as Ns
    }

    /// Executes a command; returns when the simulated SSD is done with it.
    fn execute(&self, command: &Command) -> (Ns, Reply) {
        let (cookie, offset, length) = (command.cookie, command.offset, u64::from(command.length));
        let mut data = None;
        let mut emulator = self.emulator.lock();
        // Under the lock, so that time does not go back.
        let now = self.now();
        let kind = match command.kind {
            Ok(kind) => kind,
            Err(error) => return (now, Reply { cookie, data: None, error: Some(error) }),
        };
        let mut due = match kind {
            Kind::Read => {
                let mut bytes = vec![0; command.length as usize];
                let due = emulator.read(now, offset, &mut bytes);
                data = Some((offset, bytes));
                due
            }
            Kind::Write => emulator.write(now, offset, &command.data),
            Kind::Flush => emulator.flush(now),
            Kind::Trim => emulator.trim(now, offset, length),
            Kind::Zero { stay } => emulator.zero(now, offset, length, stay),
        };
        if command.fua && kind != Kind::Read {
            due = due.max(emulator.flush(now));
        }
        (due, Reply { cookie, data, error: None })
    }

    /// Sends each reply when it is due, until there will be no more.
    fn send_in_time(&self, receiver: &Receiver<Due>, mut stream: Stream) -> io::Result<()> {
        let mut waiting: BinaryHeap<Reverse<Due>> = BinaryHeap::new();
        let mut is_open = true;
        while is_open || !waiting.is_empty() {
            let now = self.now();
            while waiting.peek().is_some_and(|Reverse((due, _))| *due <= now) {
                let Reverse((_, reply)) = waiting.pop().expect("it was there");
                stream.write_all(&reply)?;
            }
            let wait = waiting.peek().map(|Reverse((due, _))| Duration::from_nanos(due - now.min(*due)));
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
}

/// Hands a reply to the thread that sends it.
fn give(sender: &SyncSender<Due>, reply: Due) -> io::Result<()> {
    sender.send(reply).map_err(|_| io::ErrorKind::BrokenPipe.into())
}
