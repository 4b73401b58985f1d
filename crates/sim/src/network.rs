//! The simulated network: it may delay, lose, duplicate or reorder each message, cut it off by a partition (one way or
//! both), or reset its connection.
//!
//! Like the real shells it gives each call exactly one answer: the peer's, `Unavailable` if the connection broke, or
//! `Timeout`.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use tessera_disk::SplitMix64;
use tessera_wire::rpc::{Answer, Call};
use tessera_wire::{Code, Error, Kind};

/// A process that sends and receives messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Actor {
    /// Manager by index.
    Manager(usize),
    /// Node by index.
    Node(usize),
    /// Client by index.
    Client(usize),
}

impl Actor {
    /// The process at an address: managers have `m0:1`, nodes `n0:1`.
    #[must_use]
    pub fn at(address: &str) -> Option<Actor> {
        let host = address.strip_suffix(":1")?;
        let manager = host.strip_prefix('m').and_then(|index| index.parse().ok()).map(Actor::Manager);
        manager.or_else(|| Some(Actor::Node(host.strip_prefix('n')?.parse().ok()?)))
    }
}

/// Rates of network faults, in thousandths, and delays.
#[derive(Debug, Clone, Copy, Default)]
pub struct NetworkFaults {
    /// Lost for good.
    pub loss_permille: u64,
    /// Delivered twice.
    pub duplicate_permille: u64,
    /// The connection breaks: the caller gets an error; the receiver gets the message or not.
    pub reset_permille: u64,
    /// Shortest delay, µs.
    pub min_delay_us: u64,
    /// Longest ordinary delay, µs: messages are reordered within it.
    pub max_delay_us: u64,
    /// The delay is ten to a thousand times as long.
    pub clog_permille: u64,
}

/// A message in flight.
#[derive(Debug, Clone)]
pub struct Envelope {
    /// Sender and its incarnation: an answer to an earlier incarnation is not delivered.
    pub from: (Actor, u64),
    /// Receiver.
    pub to: Actor,
    /// Its call.
    pub ticket: u64,
    /// Its content.
    pub content: Content,
}

/// Content of a message.
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

/// Calls in flight, partitions and the random numbers.
pub struct Network {
    /// Fault rates.
    pub faults: NetworkFaults,
    cut: BTreeSet<(Actor, Actor)>,
    calls: BTreeMap<u64, OpenCall>,
    next_ticket: u64,
    rng: SplitMix64,
}

/// Results of sending a message: deliveries with their delay, and errors that the network itself returns.
#[derive(Default)]
pub struct Outcome {
    /// (delay in ns, message).
    pub deliveries: Vec<(u64, Envelope)>,
    /// (delay in ns, ticket, error): the caller's answer unless another arrives earlier.
    pub failures: Vec<(u64, u64, Error)>,
}

impl Network {
    /// A network with these fault rates.
    pub fn new(faults: NetworkFaults, seed: u64) -> Self {
        Network { faults, cut: BTreeSet::new(), calls: BTreeMap::new(), next_ticket: 1, rng: SplitMix64::new(seed) }
    }

    /// Drops all messages in one direction from now on.
    pub fn cut(&mut self, from: Actor, to: Actor) {
        self.cut.insert((from, to));
    }

    /// Ends all partitions.
    pub fn heal_partitions(&mut self) {
        self.cut.clear();
    }

    /// Ends all partitions and all faults.
    pub fn stop_faults(&mut self) {
        self.cut.clear();
        let faults = self.faults;
        self.faults = NetworkFaults {
            min_delay_us: faults.min_delay_us,
            max_delay_us: faults.max_delay_us,
            ..Default::default()
        };
    }

    /// Sends a call. Returns its ticket, too.
    pub fn call(&mut self, caller: (Actor, u64), to: Actor, call: Call) -> (u64, Outcome) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.calls.insert(ticket, OpenCall { caller, token: call.token });
        let content = Content::Request { kind: call.kind, body: call.body, payload: gather(&call.payload) };
        let timeout = Error::new(Code::Timeout, format!("{to:?} did not answer in time"));
        let mut outcome = self.carry(Envelope { from: caller, to, ticket, content });
        outcome.failures.push((call.timeout_ms.saturating_mul(1_000_000), ticket, timeout));
        (ticket, outcome)
    }

    /// Sends the answer to a delivered request.
    pub fn answer(
        &mut self,
        from: (Actor, u64),
        to: Actor,
        ticket: u64,
        result: Result<(Bytes, Bytes), Error>,
    ) -> Outcome {
        self.carry(Envelope { from, to, ticket, content: Content::Answer(result) })
    }

    /// Closes a call with its first answer, and returns the caller with it. Later answers are dropped.
    pub fn close(&mut self, ticket: u64, result: Result<(Bytes, Bytes), Error>) -> Option<((Actor, u64), Answer)> {
        let call = self.calls.remove(&ticket)?;
        Some((call.caller, Answer { token: call.token, result }))
    }

    /// The caller of an open call.
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
