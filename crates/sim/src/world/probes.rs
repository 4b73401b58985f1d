//! Onlookers: clients that only look names up. What they find must be the file as it was at some moment between question and answer (P7).
//! They wait long for answers, so they go on asking a leader that is paused, cut off or deposed after others have left it.

use super::*;
use prost::Message as _;
use tessera_wire::meta::{Entry, Lookup};
use tessera_wire::rpc::Answer;

/// Marks the tokens of these questions.
const PROBE_BIT: u64 = 1 << 62;
const TIMEOUT_MS: u64 = 8_000;
const ROOT: u64 = 1;
const ONLOOKERS: usize = 2;

/// Questions under way: path, and where the file's history was.
#[derive(Default)]
pub(super) struct Probes {
    asked: BTreeMap<u64, (String, usize)>,
    next: u64,
}

pub(super) fn is_probe(token: u64) -> bool {
    token & PROBE_BIT != 0
}

impl World {
    pub(super) fn begin_probes(&mut self) {
        let onlookers = if self.plan.probes { ONLOOKERS } else { 0 };
        for client in self.clients.len()..self.clients.len() + onlookers {
            self.push(EPOCH_NS + 1_200 * MS, Event::Probe { client });
        }
    }

    /// Looks up any file that a client has written.
    pub(super) fn probe(&mut self, client: usize) {
        if self.quiesced {
            return;
        }
        let pause_ns = self.rng.between(20, 250) as i64 * MS;
        self.push(self.now_ns + pause_ns, Event::Probe { client });
        let paths = self.oracle.paths();
        if paths.is_empty() {
            return;
        }
        let path = self.rng.pick(&paths).clone();
        let token = PROBE_BIT | self.probes.next;
        self.probes.next += 1;
        let lookup = Lookup { parent: ROOT, name: path.clone().into(), ..Lookup::default() };
        self.probes.asked.insert(token, (path.clone(), self.oracle.moment(&path)));
        let call = Call::new(Peer::Manager, token, &lookup, Vec::new(), TIMEOUT_MS);
        self.send(Actor::Client(client), 0, call);
    }

    pub(super) fn probed(&mut self, answer: Answer) -> Result<(), Violation> {
        let Some((path, since)) = self.probes.asked.remove(&answer.token) else { return Ok(()) };
        let found = match answer.result {
            Ok((body, _)) => Entry::decode(body).ok().and_then(|entry| entry.attr).map(|attr| attr.size_bytes),
            Err(error) if error.code() == Code::NotFound => None,
            Err(_) => return Ok(()),
        };
        self.group.note("names looked up");
        self.oracle.check_length(&path, since, found)
    }
}
