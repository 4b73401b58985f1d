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
/// Ticks that one takes at once while it knows a leader: the leader's heartbeats come every third tick, and wake it.
const FOLLOWING_TICKS: u32 = 4;

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
        let mut ticked = started;
        loop {
            let wakes = ticked + TICK * self.ticks_at_once();
            let input = inbox.recv_timeout(wakes.saturating_duration_since(Instant::now()));
            let now_ns = started.elapsed().as_nanos() as i64;
            // Before the input: what it does may depend on how long nothing was heard.
            self.tick(now_ns, &mut ticked);
            match input {
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
            self.id.store(self.voter.id(), Relaxed);
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

    /// Ticks after which the thread looks, if nothing arrives.
    fn ticks_at_once(&self) -> u32 {
        let peer = self.voter.peer();
        match peer.standing() {
            _ if peer.is_spare() => SPARE_TICKS,
            standing if standing.leader.is_some() && !standing.leads => FOLLOWING_TICKS,
            _ => 1,
        }
    }

    /// Takes the ticks since `ticked`, under load too; after a pause of the process no more than it would have waited for.
    fn tick(&mut self, now_ns: i64, ticked: &mut Instant) {
        let (now, at_once) = (Instant::now(), self.ticks_at_once());
        let due = now.saturating_duration_since(*ticked).as_millis() / TICK.as_millis();
        if due == 0 {
            return;
        }
        let ticks = u32::try_from(due).map_or(at_once, |due| due.min(at_once));
        *ticked = if due > u128::from(at_once) { now } else { *ticked + TICK * ticks };
        (0..ticks).for_each(|_| self.voter.handle(now_ns, Input::Tick));
        self.store.reserve_more(self.voter.room_bytes());
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
