//! The world: one queue of happenings in order of time, and what each sets off.
//!
//! A story has three parts. *Trouble*: clients work while faults strike. *Calm*: faults stop, what can come back comes back,
//! clients finish, repair ends (P6, P12). *Judgement*: everything is read back and compared, references are
//! recounted (P4), and garbage must be gone (P5).

pub mod script;

use crate::client_host::ClientHost;
use crate::manager_host::ManagerHost;
use crate::network::{Actor, Content as Message, Envelope, Network, Outcome};
use crate::node_host::{NodeHost, Wish};
use crate::oracle::{Oracle, Violation};
use crate::plan::{Dice, Fault, Plan};
use crate::planted::Planted;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use tessera_disk::{CrashKind, Fault as DiskFault};
use tessera_node::core::Event;
use tessera_wire::rpc::{Call, Peer};
use tessera_wire::{Error, Kind};

const MS: i64 = 1_000_000;
/// Where simulated time begins, ns since 1970.
const DAWN_NS: i64 = 1_000_000_000_000_000_000;
/// After the calm began the cluster has this long to become whole (P6, P12), ms.
const PATIENCE_MS: i64 = 400_000;

enum Happening {
    Deliver(Envelope),
    Verdict { ticket: u64, error: Error },
    NodeTick { node: usize, life: u64 },
    NodeDisk { node: usize, life: u64 },
    NodeEvent { node: usize, life: u64, event: Box<Event> },
    ManagerTick { life: u64 },
    ClientTick { client: usize, life: u64 },
    Fault(Fault),
}

struct Scheduled {
    at_ns: i64,
    number: u64,
    what: Happening,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.number).cmp(&(other.at_ns, other.number))
    }
}

/// How a story ended.
#[derive(Debug, Clone)]
pub struct Report {
    /// Happenings.
    pub events: u64,
    /// A number that any difference between two runs changes.
    pub trace: u64,
    /// The first broken promise.
    pub violation: Option<Violation>,
    /// Errors that operations ended with.
    pub errors: Vec<String>,
    /// What happened when, if asked for.
    pub log: Vec<String>,
}

/// Everything there is.
pub struct World {
    plan: Plan,
    planted: Planted,
    now_ns: i64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    next_number: u64,
    dice: Dice,
    calm: bool,
    network: Network,
    manager: ManagerHost,
    nodes: Vec<NodeHost>,
    clients: Vec<ClientHost>,
    oracle: Oracle,
    /// Ticket of a request under way to who asked it.
    askers: BTreeMap<u64, (Actor, Kind)>,
    next_tick: BTreeMap<(Actor, u64), i64>,
    /// What reached paused nodes: the kernel keeps it for them until they go on.
    asleep: Vec<(usize, Happening)>,
    events: u64,
    trace: u64,
    log: Option<Vec<String>>,
}

impl World {
    /// The world of a plan, with a planted bug or none. `keep_log`: tell what happens.
    pub fn new(plan: Plan, planted: Planted, keep_log: bool) -> World {
        let mut dice = Dice::new(plan.seed ^ 0x5eed);
        let cluster_id = *b"simulated world!";
        let nodes = (0..plan.nodes)
            .map(|i| NodeHost::new(i, cluster_id, planted.node_config(), planted.disks_lie(), dice.any()))
            .collect();
        let clients = (0..plan.clients)
            .map(|i| ClientHost::new(i, plan.operations, plan.redundancy, plan.optimistic, dice.any()))
            .collect();
        World {
            network: Network::new(plan.network, dice.any()),
            manager: ManagerHost::new(cluster_id, plan.nodes, planted.manager_config(plan.m), dice.any()),
            plan,
            planted,
            calm: false,
            now_ns: DAWN_NS,
            queue: BinaryHeap::new(),
            next_number: 0,
            dice,
            nodes,
            clients,
            oracle: Oracle::default(),
            askers: BTreeMap::new(),
            next_tick: BTreeMap::new(),
            asleep: Vec::new(),
            events: 0,
            trace: 0,
            log: keep_log.then(Vec::new),
        }
    }

    /// Tells the whole story.
    pub fn run(mut self) -> Report {
        let violation = self.tell().err();
        let errors = self.clients.iter().flat_map(|c| c.errors.clone()).collect();
        Report { events: self.events, trace: self.trace, violation, errors, log: self.log.unwrap_or_default() }
    }

    fn tell(&mut self) -> Result<(), Violation> {
        self.start_manager();
        for node in 0..self.nodes.len() {
            self.start_node(node);
        }
        for client in 0..self.clients.len() {
            let at = self.now_ns + 600 * MS + self.dice.between(0, 500) as i64 * MS;
            self.push(at, Happening::ClientTick { client, life: 1 });
        }
        for (at_ms, fault) in self.plan.faults.clone() {
            self.push(DAWN_NS + 1_000 * MS + at_ms as i64 * MS, Happening::Fault(fault));
        }
        self.run_until(DAWN_NS + 1_000 * MS + self.plan.calm_at_ms as i64 * MS, |_| false)?;
        self.calm_down()?;
        let deadline = self.now_ns + PATIENCE_MS * MS;
        self.run_until(deadline, |w| w.clients.iter().all(ClientHost::is_done) && w.is_whole())?;
        self.judge(deadline)
    }

    fn calm_down(&mut self) -> Result<(), Violation> {
        self.say("calm");
        self.calm = true;
        self.network.heal();
        let faults = std::mem::take(&mut self.queue).into_sorted_vec();
        self.queue = faults.into_iter().filter(|Reverse(s)| !matches!(s.what, Happening::Fault(_))).collect();
        for node in 0..self.nodes.len() {
            self.nodes[node].set_capacity(1 << 30);
            self.resume(node);
        }
        self.restore_manager()?;
        self.start_manager();
        Ok(())
    }

    /// Asks the machines that live what their log replicas hold, and rebuilds the database from it.
    fn restore_manager(&mut self) -> Result<(), Violation> {
        if !self.manager.is_lost() {
            return Ok(());
        }
        self.say("restore");
        let now = self.now_ns;
        let nodes = &mut self.nodes;
        let restored = self.manager.restore(&mut |call| {
            let Peer::Address(address) = &call.peer else { unreachable!("only addresses are asked") };
            let index = address.trim_start_matches('n').trim_end_matches(":1").parse::<usize>().unwrap_or(usize::MAX);
            let payload = call.payload.concat().into();
            let wishes = nodes.get_mut(index).map_or(Vec::new(), |n| n.request(now, 0, call.kind, &call.body, payload));
            let answered =
                wishes.into_iter().find_map(|w| if let Wish::Answer { result, .. } = w { Some(result) } else { None });
            answered.unwrap_or_else(|| Err(Error::new(tessera_wire::Code::Unavailable, "nobody there")))
        });
        restored.map_err(|fact| Violation { promise: "P7", fact: format!("the manager cannot be restored: {fact}") })
    }

    fn judge(&mut self, deadline: i64) -> Result<(), Violation> {
        if let Some(client) = self.clients.iter().find(|c| !c.is_done()) {
            return broken("P12", format!("client {} could not finish in calm: {}", client.index, client.doing()));
        }
        if !self.is_whole() {
            return broken("P6", format!("redundancy has not returned: {}", self.manager.status_line(self.now_ns)));
        }
        self.say("judgement");
        for path in self.oracle.paths().into_iter().chain(self.oracle.logs()) {
            let reader = &mut self.clients[0];
            reader.errors.clear();
            reader.read(self.now_ns, &path);
            self.push(self.now_ns, Happening::ClientTick { client: 0, life: self.clients[0].life });
            self.run_until(deadline, |w| w.clients[0].is_done())?;
            if let Some(error) = self.clients[0].errors.first() {
                return broken("P1", format!("{path} cannot be read in calm: {error}"));
            }
        }
        self.manager.recount().map_err(|fact| Violation { promise: "P4", fact })?;
        self.count_fragments()?;
        self.collect_garbage(deadline)
    }

    fn is_whole(&mut self) -> bool {
        // Lost, or on a disk that cannot be opened any more.
        let gone = |n: &&NodeHost| n.lost || !n.is_running();
        let lost: Vec<String> = self.nodes.iter().filter(gone).map(|n| format!("n{}", n.index)).collect();
        self.manager.is_whole(self.now_ns, &lost)
    }

    /// What the manager believes to be in place is in place (P6).
    fn count_fragments(&mut self) -> Result<(), Violation> {
        for (chunk_id, fragment, node) in self.manager.fragments() {
            let there = node.is_some_and(|n| self.nodes.get(n).is_some_and(|host| host.holds(chunk_id, fragment)));
            if !there {
                return broken("P6", format!("fragment {chunk_id}.{fragment} should be on node {node:?} and is not"));
            }
        }
        Ok(())
    }

    /// With all sessions over, what the manager counts as stored is all that nodes hold (P5).
    fn collect_garbage(&mut self, deadline: i64) -> Result<(), Violation> {
        let now = self.now_ns;
        self.manager.collect_garbage(now);
        self.pump_manager();
        self.run_until(deadline + PATIENCE_MS * MS, |w| w.manager.is_clean(w.now_ns))?;
        match self.manager.is_clean(self.now_ns) {
            true => Ok(()),
            false => broken("P5", format!("garbage stays: {}", self.manager.status_line(self.now_ns))),
        }
    }

    fn run_until(&mut self, until_ns: i64, done: impl Fn(&mut World) -> bool) -> Result<(), Violation> {
        let mut check_at = self.now_ns;
        while let Some(Reverse(next)) = self.queue.pop() {
            if next.at_ns > until_ns {
                self.queue.push(Reverse(next));
                self.now_ns = until_ns;
                return Ok(());
            }
            self.now_ns = self.now_ns.max(next.at_ns);
            self.happen(next.what)?;
            // Asking whether all is well costs a query: now and then is enough.
            if self.now_ns >= check_at {
                check_at = self.now_ns + 100 * MS;
                if done(self) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn happen(&mut self, what: Happening) -> Result<(), Violation> {
        self.events += 1;
        if let Some(node) = self.sleeper(&what) {
            self.asleep.push((node, what));
            return Ok(());
        }
        match what {
            Happening::Deliver(envelope) => self.deliver(envelope),
            Happening::Verdict { ticket, error } => self.close_call(ticket, Err(error)),
            Happening::NodeTick { node, life } => self.with_node(node, life, |host, now| host.tick(now)),
            Happening::NodeDisk { node, life } => self.with_node(node, life, |host, now| host.write_disk(now)),
            Happening::NodeEvent { node, life, event } => {
                self.with_node(node, life, |host, now| host.event(now, *event))
            }
            Happening::ManagerTick { life } => {
                if self.manager.life == life && self.manager.is_running() {
                    self.manager.tick(self.now_ns);
                    self.pump_manager();
                    self.push(self.now_ns + 50 * MS, Happening::ManagerTick { life });
                }
                Ok(())
            }
            Happening::ClientTick { client, life } => self.tick_client(client, life),
            Happening::Fault(fault) => {
                self.say(&format!("{fault:?}"));
                self.strike(fault);
                Ok(())
            }
        }
    }

    // --- nodes ----------------------------------------------------------------------------------------------

    fn start_node(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        if !host.is_running() {
            // Connections of an earlier life died with it.
            self.asleep.retain(|(of, _)| *of != node);
            host.start();
        }
        let life = host.life;
        self.push(self.now_ns, Happening::NodeTick { node, life });
    }

    /// The paused node that this would reach.
    fn sleeper(&self, what: &Happening) -> Option<usize> {
        let node = match what {
            Happening::NodeTick { node, .. } | Happening::NodeDisk { node, .. } | Happening::NodeEvent { node, .. } => {
                *node
            }
            Happening::Deliver(Envelope { to: Actor::Node(node), content: Message::Request { .. }, .. }) => *node,
            Happening::Deliver(Envelope { ticket, .. }) | Happening::Verdict { ticket, .. } => {
                match self.network.caller(*ticket) {
                    Some((Actor::Node(node), _)) => node,
                    _ => return None,
                }
            }
            _ => return None,
        };
        self.nodes.get(node).is_some_and(|host| host.paused && host.is_running()).then_some(node)
    }

    /// A paused node goes on, and everything that reached it meanwhile does so at once, in any order: too late for
    /// many, which is the point. A node that stands still for another reason starts.
    fn resume(&mut self, node: usize) {
        self.nodes[node].paused = false;
        self.start_node(node);
        let (due, others) = std::mem::take(&mut self.asleep).into_iter().partition(|(of, _)| *of == node);
        self.asleep = others;
        let due: Vec<(usize, Happening)> = due;
        for (_, what) in due {
            let at = self.now_ns + self.dice.between(0, 1_000) as i64 * 1_000;
            self.push(at, what);
        }
    }

    fn with_node(
        &mut self,
        node: usize,
        life: u64,
        act: impl FnOnce(&mut NodeHost, i64) -> Vec<Wish>,
    ) -> Result<(), Violation> {
        let host = &mut self.nodes[node];
        if host.life != life || !host.is_running() {
            return Ok(());
        }
        let wishes = act(host, self.now_ns);
        if host.disk().is_off() {
            host.power_off(CrashKind::KeepSome);
            if self.calm {
                self.start_node(node);
            }
            return Ok(());
        }
        self.grant(node, wishes);
        let next = self.nodes[node].next_deadline_ns();
        self.schedule_tick((Actor::Node(node), life), next, Happening::NodeTick { node, life });
        Ok(())
    }

    fn grant(&mut self, node: usize, wishes: Vec<Wish>) {
        let life = self.nodes[node].life;
        for wish in wishes {
            match wish {
                Wish::Call(call) => self.send(Actor::Node(node), life, call),
                Wish::Answer { ticket, result } => self.answer(Actor::Node(node), life, ticket, result),
                Wish::DiskLater => {
                    let at = self.now_ns + self.dice.between(50, 4_000) as i64 * 1_000;
                    self.push(at, Happening::NodeDisk { node, life });
                }
                Wish::EventLater(event) => {
                    let at = self.now_ns + self.dice.between(20, 1_000) as i64 * 1_000;
                    self.push(at, Happening::NodeEvent { node, life, event: Box::new(event) });
                }
            }
        }
    }

    // --- clients --------------------------------------------------------------------------------------------

    fn tick_client(&mut self, client: usize, life: u64) -> Result<(), Violation> {
        let host = &mut self.clients[client];
        if host.life != life {
            return Ok(());
        }
        let calls = host.tick(self.now_ns, &mut self.oracle)?;
        self.after_client(client, calls);
        Ok(())
    }

    fn after_client(&mut self, client: usize, calls: Vec<Call>) {
        let life = self.clients[client].life;
        for call in calls {
            self.send(Actor::Client(client), life, call);
        }
        let host = &self.clients[client];
        if host.is_done() {
            return;
        }
        let pause = self.now_ns + self.dice.between(1, 900) as i64 * MS;
        let next = self.clients[client].next_due().unwrap_or(pause);
        self.schedule_tick((Actor::Client(client), life), Some(next), Happening::ClientTick { client, life });
    }

    // --- the manager ----------------------------------------------------------------------------------------

    fn start_manager(&mut self) {
        if self.manager.is_running() {
            return;
        }
        self.manager.start(self.now_ns);
        self.pump_manager();
        self.push(self.now_ns, Happening::ManagerTick { life: self.manager.life });
    }

    /// Commits what waits and sends what the manager has to say.
    fn pump_manager(&mut self) {
        let life = self.manager.life;
        let (calls, answers) = self.manager.pump(self.now_ns);
        for call in calls {
            self.send(Actor::Manager, life, call);
        }
        for (ticket, result) in answers {
            self.answer(Actor::Manager, life, ticket, result);
        }
    }

    // --- messages -------------------------------------------------------------------------------------------

    fn send(&mut self, from: Actor, life: u64, mut call: Call) {
        self.planted.corrupt_call(&mut call);
        let to = match &call.peer {
            Peer::Manager => Some(Actor::Manager),
            Peer::Node(id) => self.manager.node_index(*id),
            Peer::Connection(number) => Some(Actor::Client(*number as usize)),
            Peer::Address(address) => {
                address.trim_start_matches('n').trim_end_matches(":1").parse().ok().map(Actor::Node)
            }
        };
        if matches!(from, Actor::Client(_)) && self.log.is_some() {
            self.say(&format!("{from:?} -> {:?} {}", call.peer, call.kind.name()));
        }
        self.mix(call.kind as u64, call.token);
        // Nobody has that id: the connection cannot even be tried.
        let to = to.unwrap_or(Actor::Node(usize::MAX));
        let outcome = self.network.call((from, life), to, call);
        self.under_way(from, outcome);
    }

    fn answer(&mut self, from: Actor, life: u64, ticket: u64, result: Result<(bytes::Bytes, bytes::Bytes), Error>) {
        let Some((asker, kind)) = self.askers.get(&ticket).copied() else { return };
        let result = result.map(|(mut body, payload)| {
            self.planted.corrupt_answer(kind, &mut body);
            (body, payload)
        });
        let outcome = self.network.answer((from, life), asker, ticket, result);
        self.under_way(from, outcome);
    }

    fn under_way(&mut self, from: Actor, outcome: Outcome) {
        for (delay_ns, envelope) in outcome.deliveries {
            if let Message::Request { kind, .. } = envelope.content {
                self.askers.insert(envelope.ticket, (from, kind));
            }
            self.push(self.now_ns + delay_ns as i64, Happening::Deliver(envelope));
        }
        for (delay_ns, ticket, error) in outcome.verdicts {
            self.push(self.now_ns + delay_ns as i64, Happening::Verdict { ticket, error });
        }
    }

    fn deliver(&mut self, envelope: Envelope) -> Result<(), Violation> {
        self.mix(envelope.ticket, envelope.from.1);
        let Envelope { from, to, ticket, content } = envelope;
        let (kind, body, payload) = match content {
            Message::Answer(result) => return self.close_call(ticket, result),
            Message::Request { kind, body, payload } => (kind, body, payload),
        };
        match to {
            Actor::Node(node) if node < self.nodes.len() => {
                let life = self.nodes[node].life;
                self.with_node(node, life, |host, now| host.request(now, ticket, kind, &body, payload))
            }
            Actor::Manager => {
                let client_id = match from.0 {
                    Actor::Client(index) => 1_000 + index as u64 + from.1 * 1_000_000,
                    Actor::Node(index) => 1 + index as u64 + from.1 * 1_000_000,
                    Actor::Manager => 0,
                };
                self.manager.request(self.now_ns, ticket, from.0, client_id, kind, body, payload);
                self.pump_manager();
                Ok(())
            }
            // Simulated clients hold no leases: an answer is all a recall needs.
            Actor::Client(index) => {
                self.answer(Actor::Client(index), 0, ticket, Ok(Default::default()));
                Ok(())
            }
            Actor::Node(_) => Ok(()),
        }
    }

    fn close_call(
        &mut self,
        ticket: u64,
        result: Result<(bytes::Bytes, bytes::Bytes), Error>,
    ) -> Result<(), Violation> {
        let Some(((actor, life), answer)) = self.network.close(ticket, result) else { return Ok(()) };
        match actor {
            Actor::Manager if self.manager.life == life && self.manager.is_running() => {
                self.manager.answer(self.now_ns, answer);
                self.pump_manager();
            }
            Actor::Node(node) => return self.with_node(node, life, |host, now| host.answer(now, answer)),
            Actor::Client(client) if self.clients[client].life == life => {
                if let (Err(error), true) = (&answer.result, self.log.is_some()) {
                    self.say(&format!("{actor:?} <- {:?}: {error}", error.kind()));
                }
                let calls = self.clients[client].answer(self.now_ns, answer, &mut self.oracle)?;
                self.after_client(client, calls);
            }
            _ => {}
        }
        Ok(())
    }

    // --- faults ---------------------------------------------------------------------------------------------

    fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::KillNode(node) => self.nodes[node].kill(),
            Fault::PowerOffNode(node) => self.power_off(node),
            Fault::StartNode(node) => self.start_node(node),
            Fault::PauseNode(node) => self.nodes[node].paused = true,
            Fault::ResumeNode(node) => self.resume(node),
            Fault::LoseNode(node) => self.nodes[node].lose(),
            Fault::KillManager => self.manager.kill(),
            Fault::StartManager => self.start_manager(),
            // Until the calm there is no manager: it is restored when every machine that lives can be asked.
            Fault::LoseManager => self.manager.lose(),
            Fault::Partition { node, outbound, inbound } => self.partition(node, outbound, inbound),
            Fault::HealPartitions => self.network.mend(),
            Fault::Rot(node) => drop(self.nodes[node].disk().rot_somewhere()),
            Fault::FailSync(node) => {
                let disk = self.nodes[node].disk();
                disk.set_rates(tessera_disk::FaultRates { sync_fails: 1_000_000, ..Default::default() });
            }
            Fault::FillDisk(node) => self.nodes[node].set_capacity(1),
            Fault::EmptyDisk(node) => self.nodes[node].set_capacity(1 << 30),
            Fault::KillClient(client) => {
                self.clients[client].kill();
                let life = self.clients[client].life;
                self.push(self.now_ns + MS, Happening::ClientTick { client, life });
            }
            Fault::CollectGarbage => {
                self.manager.collect_garbage(self.now_ns);
                self.pump_manager();
            }
            Fault::Drain(node) => {
                self.manager.drain_node(self.now_ns, node);
                self.pump_manager();
            }
        }
    }

    /// At once, or in the middle of one of the next disk operations.
    fn power_off(&mut self, node: usize) {
        let kind = *self.dice.pick(&[CrashKind::KeepNone, CrashKind::KeepAll, CrashKind::KeepSome, CrashKind::Torn]);
        let host = &mut self.nodes[node];
        if host.is_running() && self.dice.percent(60) {
            let at = host.disk().io_count() + self.dice.between(1, 12);
            host.disk().fail_at(at, DiskFault::PowerLoss);
        } else {
            host.power_off(kind);
        }
    }

    fn partition(&mut self, node: usize, outbound: bool, inbound: bool) {
        let others = (0..self.nodes.len())
            .map(Actor::Node)
            .chain((0..self.clients.len()).map(Actor::Client))
            .chain([Actor::Manager]);
        for other in others.filter(|o| *o != Actor::Node(node)).collect::<Vec<_>>() {
            if outbound {
                self.network.cut(Actor::Node(node), other);
            }
            if inbound {
                self.network.cut(other, Actor::Node(node));
            }
        }
    }

    // --- the queue ------------------------------------------------------------------------------------------

    fn push(&mut self, at_ns: i64, what: Happening) {
        self.next_number += 1;
        self.queue.push(Reverse(Scheduled { at_ns: at_ns.max(self.now_ns), number: self.next_number, what }));
    }

    /// Ticks are cheap, but not worth having twice for the same moment.
    fn schedule_tick(&mut self, actor: (Actor, u64), at_ns: Option<i64>, what: Happening) {
        let Some(at_ns) = at_ns else { return };
        let at_ns = at_ns.max(self.now_ns + 1_000);
        let known = self.next_tick.get(&actor).copied().unwrap_or(i64::MIN);
        if known > self.now_ns && known <= at_ns {
            return;
        }
        self.next_tick.insert(actor, at_ns);
        self.push(at_ns, what);
    }

    fn mix(&mut self, a: u64, b: u64) {
        let z = self.trace ^ a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.rotate_left(32) ^ self.now_ns as u64;
        self.trace = (z ^ z >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }

    fn say(&mut self, line: &str) {
        let at = (self.now_ns - DAWN_NS) / MS;
        if let Some(log) = &mut self.log {
            log.push(format!("{at:>8} ms  {line}"));
        }
    }
}

fn broken<T>(promise: &'static str, fact: String) -> Result<T, Violation> {
    Err(Violation { promise, fact })
}
