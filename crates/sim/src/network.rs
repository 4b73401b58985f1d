//! The simulated network: every request and every answer is a message that may be delayed, lost, doubled,
//! overtaken, cut off by a partition (one way or both), or reset in mid-flight.
//!
//! As the real shells do, it gives each call exactly one answer: the peer's, or `Unavailable` when the
//! connection broke, or `Timeout` when nothing came.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use tessera_disk::SplitMix64;
use tessera_wire::rpc::{Answer, Call};
use tessera_wire::{Code, Error, Kind};

/// Somebody who sends and receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Actor {
    /// The manager.
    Manager,
    /// Node by index.
    Node(usize),
    /// Client by index.
    Client(usize),
}

/// What the network does to messages. Shares are in thousandths.
#[derive(Debug, Clone, Copy, Default)]
pub struct NetworkFaults {
    /// Lost for good.
    pub loss_permille: u64,
    /// Delivered twice.
    pub duplicate_permille: u64,
    /// The connection breaks: the caller is told, the receiver may or may not have got it.
    pub reset_permille: u64,
    /// Shortest way, µs.
    pub min_delay_us: u64,
    /// Longest ordinary way, µs: messages overtake each other within it.
    pub max_delay_us: u64,
    /// Held up for ten to a thousand times as long.
    pub clog_permille: u64,
}

/// A message under way.
#[derive(Debug, Clone)]
pub struct Envelope {
    /// Sender and its incarnation: an answer to an earlier incarnation is not delivered.
    pub from: (Actor, u64),
    /// Receiver.
    pub to: Actor,
    /// Which call it belongs to.
    pub ticket: u64,
    /// Its content.
    pub content: Content,
}

/// What is in a message.
#[derive(Debug, Clone)]
pub enum Content {
    /// A request.
    Request {
        /// Kind.
        kind: Kind,
        /// Encoded message.
        body: Bytes,
        /// Raw bytes.
        payload: Bytes,
    },
    /// An answer.
    Answer(Result<(Bytes, Bytes), Error>),
}

struct OpenCall {
    caller: (Actor, u64),
    token: u64,
}

/// Calls under way, partitions and the rng.
pub struct Network {
    /// What may happen to messages.
    pub faults: NetworkFaults,
    cut: BTreeSet<(Actor, Actor)>,
    calls: BTreeMap<u64, OpenCall>,
    next_ticket: u64,
    rng: SplitMix64,
}

/// What a call or an answer turns into: messages with the time they take, and answers made up by the network.
#[derive(Default)]
pub struct Outcome {
    /// (delay in ns, message).
    pub deliveries: Vec<(u64, Envelope)>,
    /// (delay in ns, ticket, error): what the caller is told if nothing else came until then.
    pub failures: Vec<(u64, u64, Error)>,
}

impl Network {
    /// A network that misbehaves as `faults` say and the seed decides.
    pub fn new(faults: NetworkFaults, seed: u64) -> Self {
        Network { faults, cut: BTreeSet::new(), calls: BTreeMap::new(), next_ticket: 1, rng: SplitMix64::new(seed) }
    }

    /// Cuts the way from one to the other (one direction).
    pub fn cut(&mut self, from: Actor, to: Actor) {
        self.cut.insert((from, to));
    }

    /// Mends every cut.
    pub fn heal_partitions(&mut self) {
        self.cut.clear();
    }

    /// Mends every cut and stops all faults.
    pub fn stop_faults(&mut self) {
        self.cut.clear();
        let faults = self.faults;
        self.faults = NetworkFaults {
            min_delay_us: faults.min_delay_us,
            max_delay_us: faults.max_delay_us,
            ..Default::default()
        };
    }

    /// Sends a call on its way.
    pub fn call(&mut self, caller: (Actor, u64), to: Actor, call: Call) -> Outcome {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.calls.insert(ticket, OpenCall { caller, token: call.token });
        let content = Content::Request { kind: call.kind, body: call.body, payload: gather(&call.payload) };
        let timeout = Error::new(Code::Timeout, format!("{to:?} did not answer in time"));
        let mut outcome = self.carry(Envelope { from: caller, to, ticket, content });
        outcome.failures.push((call.timeout_ms.saturating_mul(1_000_000), ticket, timeout));
        outcome
    }

    /// Sends the answer to a request that was delivered. `request` names its caller and its ticket.
    pub fn answer(
        &mut self,
        from: (Actor, u64),
        to: Actor,
        ticket: u64,
        result: Result<(Bytes, Bytes), Error>,
    ) -> Outcome {
        self.carry(Envelope { from, to, ticket, content: Content::Answer(result) })
    }

    /// The first answer to a call closes it: who asked, in which incarnation, and what it is told. Later ones are nothing.
    pub fn close(&mut self, ticket: u64, result: Result<(Bytes, Bytes), Error>) -> Option<((Actor, u64), Answer)> {
        let call = self.calls.remove(&ticket)?;
        Some((call.caller, Answer { token: call.token, result }))
    }

    /// Who waits for the answer to a call, if anybody still does.
    pub fn caller(&self, ticket: u64) -> Option<(Actor, u64)> {
        self.calls.get(&ticket).map(|call| call.caller)
    }

    fn carry(&mut self, envelope: Envelope) -> Outcome {
        let mut outcome = Outcome::default();
        let (from, to) = (envelope.from.0, envelope.to);
        if self.cut.contains(&(from, to)) || self.hits(self.faults.loss_permille) {
            return outcome;
        }
        if self.hits(self.faults.reset_permille) {
            let broke = Error::new(Code::Unavailable, format!("connection to {to:?} broke"));
            outcome.failures.push((self.delay_ns(), envelope.ticket, broke));
            if self.rng.next_u64() & 1 == 0 {
                return outcome;
            }
        }
        if self.hits(self.faults.duplicate_permille) {
            outcome.deliveries.push((self.delay_ns(), envelope.clone()));
        }
        outcome.deliveries.push((self.delay_ns(), envelope));
        outcome
    }

    fn delay_ns(&mut self) -> u64 {
        let span = self.faults.max_delay_us.saturating_sub(self.faults.min_delay_us) + 1;
        let us = self.faults.min_delay_us + self.rng.next_u64() % span;
        let clogged = self.hits(self.faults.clog_permille);
        us * 1000 * if clogged { 10 + self.rng.next_u64() % 990 } else { 1 }
    }

    fn hits(&mut self, permille: u64) -> bool {
        permille > 0 && self.rng.next_u64() % 1000 < permille
    }
}

fn gather(parts: &[Bytes]) -> Bytes {
    match parts {
        [] => Bytes::new(),
        [one] => one.clone(),
        many => many.concat().into(),
    }
}
