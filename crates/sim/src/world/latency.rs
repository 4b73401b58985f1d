//! How long clients wait, in simulated time, and that a node that is only slow is not given up.

use super::*;
use tessera_wire::Health;

/// The longest waits of a run, in ms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    /// For an answer of the leading manager.
    pub metadata_ms: u64,
    /// For the end of an operation: a file written, appended to, read or removed.
    pub operation_ms: u64,
}

/// What is under way.
#[derive(Default)]
pub(super) struct Latency {
    pub(super) waits: Waits,
    /// (client, token) to when the question began.
    asked: BTreeMap<(usize, u64), i64>,
    /// Client to the number of its operation under way, and when that began.
    operations: BTreeMap<usize, (u64, i64)>,
}

impl World {
    pub(super) fn note_question(&mut self, from: Actor, call: &Call) {
        if let (Actor::Client(client), Peer::Manager) = (from, &call.peer) {
            self.latency.asked.insert((client, call.token), self.now_ns);
        }
    }

    pub(super) fn note_answer(&mut self, client: usize, token: u64) {
        let Some(began_ns) = self.latency.asked.remove(&(client, token)) else { return };
        if !self.quiesced {
            let waits = &mut self.latency.waits;
            waits.metadata_ms = waits.metadata_ms.max(((self.now_ns - began_ns) / MS) as u64);
        }
    }

    pub(super) fn note_operation(&mut self, client: usize) {
        let now = self.clients[client].operation();
        let before = self.latency.operations.get(&client).copied();
        if now == before.map(|(number, _)| number) {
            return;
        }
        if let Some((_, began_ns)) = before.filter(|_| !self.quiesced) {
            let waits = &mut self.latency.waits;
            waits.operation_ms = waits.operation_ms.max(((self.now_ns - began_ns) / MS) as u64);
        }
        match now {
            Some(number) => drop(self.latency.operations.insert(client, (number, self.now_ns))),
            None => drop(self.latency.operations.remove(&client)),
        }
    }

    /// A node that is only slow stays a member, with its disk (P12).
    pub(super) fn check_slow_node(&mut self) -> Result<(), Violation> {
        let Some(node) = self.plan.slow_node.filter(|_| !self.quiesced) else { return Ok(()) };
        let Some(status) = self.leader_mut().status() else { return Ok(()) };
        let gone = |health: Health| matches!(health, Health::Out);
        match status.nodes.iter().any(|n| gone(n.health())) || status.disks.iter().any(|d| gone(d.health())) {
            true => broken("P12", format!("a node is given up although n{node} is only slow")),
            false => Ok(()),
        }
    }
}
