//! The thread of the node's log voter.

use crate::voter::{Voter, VoterAction};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tessera_consensus::Input;
use tessera_net::{Connection, Dialer, Part};
use tessera_segment::SegmentStore;
use tessera_wire::rpc::{Answer, Call, Peer};
use tessera_wire::{Code, Error, Kind};

/// Interval of ticks.
const TICK: Duration = Duration::from_millis(100);
/// Ticks that a voter outside the group takes at once: nothing is due at them, and most nodes of a large cluster have such a voter.
const SPARE_TICKS: u32 = 10;

pub(super) enum In {
    Request {
        connection: Arc<Connection>,
        request_id: u64,
        kind: Kind,
        body: Bytes,
        payload: Bytes,
    },
    Answer(Answer),
    /// The node obeys a manager of this term.
    Term(u64),
    Stop,
}

/// The way to the voter's thread.
pub(super) struct VoterLine {
    sender: Sender<In>,
    /// The voter's id; 0: it has stopped.
    id: Arc<AtomicU64>,
}

impl VoterLine {
    /// Starts the thread; `store` is that of the voter's disk.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn start(
        voter: Voter,
        store: Arc<SegmentStore>,
        dialer: Dialer,
    ) -> std::io::Result<(VoterLine, JoinHandle<()>)> {
        let (sender, inbox) = channel();
        let id = Arc::new(AtomicU64::new(voter.id()));
        let line = VoterLine { sender: sender.clone(), id: id.clone() };
        let thread = VoterThread { voter, dialer, sender, id, store, asked: HashMap::new(), next_token: 0 };
        let run = move || thread.run(&inbox);
        Ok((line, std::thread::Builder::new().name("voter".into()).spawn(run)?))
    }

    pub(super) fn id(&self) -> u64 {
        self.id.load(Relaxed)
    }

    pub(super) fn send(&self, input: In) {
        if let Err(refused) = self.sender.send(input)
            && let In::Request { connection, request_id, kind, .. } = refused.0
        {
            let error = Error::new(Code::Unavailable, "this node's voter has stopped");
            connection.reply(kind as u16, request_id, Err(error));
        }
    }

    pub(super) fn stop(&self) {
        self.send(In::Stop);
    }
}

struct VoterThread {
    voter: Voter,
    dialer: Dialer,
    /// For answers to its own calls.
    sender: Sender<In>,
    id: Arc<AtomicU64>,
    /// Keeps room for the next snapshot.
    store: Arc<SegmentStore>,
    asked: HashMap<u64, (Arc<Connection>, Kind, u64)>,
    next_token: u64,
}

/// Also if the thread panics.
impl Drop for VoterThread {
    fn drop(&mut self) {
        self.id.store(0, Relaxed);
    }
}

impl VoterThread {
    fn run(mut self, inbox: &Receiver<In>) {
        let started = Instant::now();
        let (mut next_tick, mut ticks) = (started, 1);
        loop {
            let now_ns = started.elapsed().as_nanos() as i64;
            match inbox.recv_timeout(next_tick.saturating_duration_since(Instant::now())) {
                Ok(In::Request { connection, request_id, kind, body, payload }) => {
                    self.next_token += 1;
                    let token = self.next_token;
                    self.asked.insert(token, (connection, kind, request_id));
                    self.voter.handle(now_ns, Input::Request { token, kind, body, payload });
                }
                Ok(In::Term(term)) => self.voter.meet_term(term),
                Ok(In::Answer(answer)) => self.voter.handle(now_ns, Input::Answer(answer)),
                Err(RecvTimeoutError::Timeout) => {}
                Ok(In::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            }
            // Under load, too.
            let now = Instant::now();
            if now >= next_tick {
                (0..ticks).for_each(|_| self.voter.handle(now_ns, Input::Tick));
                ticks = if self.voter.peer().is_spare() { SPARE_TICKS } else { 1 };
                next_tick = now + TICK * ticks;
                self.id.store(self.voter.id(), Relaxed);
                self.store.reserve_more(self.voter.room_bytes());
            }
            if ticks > 1 && !self.voter.peer().is_spare() {
                // The group has let it in.
                (ticks, next_tick) = (1, next_tick.min(now + TICK));
            }
            while let Some(action) = self.voter.poll() {
                match action {
                    VoterAction::Call(call) => self.call(call),
                    VoterAction::Answer { token, result } => {
                        if let Some((connection, kind, request_id)) = self.asked.remove(&token) {
                            let parts = |payload: Vec<Bytes>| payload.into_iter().map(Part::Bytes).collect();
                            let result = result.map(|(body, payload)| (body, parts(payload)));
                            connection.reply(kind as u16, request_id, result);
                        }
                    }
                }
            }
        }
    }

    fn call(&self, call: Call) {
        let (token, sender) = (call.token, self.sender.clone());
        let endpoint = match &call.peer {
            Peer::Address(address) => address.parse(),
            other => Err(format!("a voter calls addresses only, not {other:?}")),
        };
        let answer = move |result| _ = sender.send(In::Answer(Answer { token, result }));
        match endpoint {
            Ok(endpoint) => {
                let timeout = Duration::from_millis(call.timeout_ms);
                self.dialer.call(&endpoint, call.kind, call.body, call.payload, timeout, Box::new(answer));
            }
            Err(why) => answer(Err(Error::new(Code::Unavailable, why))),
        }
    }
}
