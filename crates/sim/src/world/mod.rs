//! The world: one queue of events in order of time, and the handler of each.
//!
//! This file has the queue; `managers`, `nodes` and `traffic` handle events, `slow` delays them, `group` watches the peers, `faults` injects faults, `verify` checks the promises.
//! A run has three phases. *Faults*: clients work while faults are injected. *Quiescence*: faults end, processes
//! restart, clients finish, repair ends (P6, P12). *Verification*: all files are read back and compared, references
//! are recounted (P4), and no garbage may remain (P5).

pub mod many;
pub mod script;

pub use latency::Waits;

use crate::client_host::ClientHost;
use crate::clock::Clocks;
use crate::manager_host::{ManagerHost, Placed};
use crate::mutants::Mutant;
use crate::network::{Actor, Content as Message, Envelope, Network, Outcome};
use crate::node_host::{Effect, NodeHost};
use crate::oracle::{Oracle, Violation};
use crate::plan::{Fault, ManagerFault, Plan, Rng, Who};
use crate::routes::{Next, Routed, Routes};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use tessera_disk::{CrashKind, Fault as DiskFault};
use tessera_node::core::Event as NodeEvent;
use tessera_wire::rpc::{Call, Peer};
use tessera_wire::{Code, Error, Kind};

const MS: i64 = 1_000_000;
/// Where simulated time begins, ns since 1970.
const EPOCH_NS: i64 = 1_000_000_000_000_000_000;
/// Limit of the quiescence phase: the cluster must be whole within it (P6, P12), ms.
const QUIESCE_TIMEOUT_MS: i64 = 400_000;

mod faults;
mod group;
mod latency;
mod managers;
mod nodes;
mod old_receipts;
mod probes;
mod rotten_metadata;
mod slow;
mod traffic;
mod verify;

enum Event {
    Deliver(Envelope),
    CallFailed {
        ticket: u64,
        error: Error,
    },
    NodeTick {
        node: usize,
        incarnation: u64,
    },
    NodeDisk {
        node: usize,
        incarnation: u64,
    },
    NodeDone {
        node: usize,
        incarnation: u64,
        event: Box<NodeEvent>,
    },
    VoterTick {
        node: usize,
        incarnation: u64,
    },
    ManagerTick {
        manager: usize,
        incarnation: u64,
    },
    /// Another round of the search for the leader.
    Search(Box<Routed>),
    ClientTick {
        client: usize,
        incarnation: u64,
    },
    /// An onlooker looks a name up.
    Probe {
        client: usize,
    },
    /// An event whose turn has come at a process or a disk that is slow.
    Late(Box<Event>),
    Fault(Fault),
}

struct Scheduled {
    at_ns: i64,
    number: u64,
    what: Event,
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

/// Result of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// Number of events.
    pub events: u64,
    /// Hash of all events: two runs that differ have different traces.
    pub trace: u64,
    /// The first broken promise.
    pub violation: Option<Violation>,
    /// Errors of operations.
    pub errors: Vec<String>,
    /// How often things happened in the group of peers.
    pub counts: BTreeMap<&'static str, u64>,
    /// The longest waits of clients.
    pub waits: Waits,
    /// Events with their times, if requested.
    pub log: Vec<String>,
}

/// A cluster, its clients and its network.
pub struct World {
    plan: Plan,
    mutant: Mutant,
    /// The only client that the mutant changes.
    liar: Option<usize>,
    now_ns: i64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    next_number: u64,
    rng: Rng,
    quiesced: bool,
    scrubbed: bool,
    network: Network,
    managers: Vec<ManagerHost>,
    routes: Routes,
    /// Calls that look for the leader, by the ticket of the attempt.
    routed: BTreeMap<u64, Routed>,
    group: group::Watch,
    reader: managers::Reader,
    clocks: Clocks,
    nodes: Vec<NodeHost>,
    clients: Vec<ClientHost>,
    oracle: Oracle,
    /// Ticket of an open request to its sender.
    callers: BTreeMap<u64, (Actor, Kind)>,
    next_tick: BTreeMap<(Actor, u64), i64>,
    /// Index of a node by its id.
    node_indexes: BTreeMap<u64, usize>,
    /// Events of paused processes: their kernels hold them until the processes resume.
    held_events: Vec<(Actor, Event)>,
    /// Processes that are slow, or whose disks are.
    slow: BTreeMap<Actor, slow::Slow>,
    probes: probes::Probes,
    latency: latency::Latency,
    old_receipts: old_receipts::OldReceipts,
    events: u64,
    trace: u64,
    log: Option<Vec<String>>,
}

impl World {
    /// The mutant changes only what the last client sends and receives; the first one is honest. `None`: there is only one client.
    pub fn with_one_liar(self) -> Option<World> {
        let liar = self.clients.len().checked_sub(1).filter(|liar| *liar > 0)?;
        Some(World { liar: Some(liar), ..self })
    }

    /// The world of a plan, with a mutant or none. `keep_log`: record the events.
    pub fn new(plan: Plan, mutant: Mutant, keep_log: bool) -> World {
        let mut rng = Rng::new(plan.seed ^ 0x5eed);
        let cluster_id = *b"simulated world!";
        let mut nodes: Vec<NodeHost> = (0..plan.nodes)
            .map(|i| NodeHost::new(i, cluster_id, mutant.node_config(&plan), mutant.disks_lie(), rng.any()))
            .collect();
        let mut config = mutant.manager_config(&plan);
        if plan.rots_metadata {
            // A manager that is right would take over.
            config.metadata_compare_every_ms = 0;
        }
        let mut managers: Vec<ManagerHost> =
            (0..plan.managers).map(|i| ManagerHost::new(i, cluster_id, config.clone(), rng.any())).collect();
        managers.iter_mut().for_each(|manager| manager.syncs_database = !plan.snapshots_often);
        let seeds: Vec<String> = (0..plan.managers).map(|i| format!("m{i}:1")).collect();
        nodes.iter_mut().for_each(|node| node.seeds.clone_from(&seeds));
        let seeds: Vec<String> = seeds.into_iter().chain((0..plan.nodes).map(|i| format!("n{i}:1"))).collect();
        managers.iter_mut().for_each(|manager| manager.seeds.clone_from(&seeds));
        let clients = (0..plan.clients).map(|i| ClientHost::new(i, &plan, rng.any())).collect();
        let mut world = World {
            network: Network::new(plan.network, rng.any()),
            routes: Routes::new(plan.managers),
            managers,
            routed: BTreeMap::new(),
            group: group::Watch::default(),
            reader: managers::Reader::default(),
            clocks: Clocks::new(EPOCH_NS),
            plan,
            mutant,
            liar: None,
            quiesced: false,
            scrubbed: false,
            now_ns: EPOCH_NS,
            queue: BinaryHeap::new(),
            next_number: 0,
            rng,
            nodes,
            clients,
            oracle: Oracle::default(),
            callers: BTreeMap::new(),
            next_tick: BTreeMap::new(),
            node_indexes: BTreeMap::new(),
            held_events: Vec::new(),
            slow: BTreeMap::new(),
            probes: probes::Probes::default(),
            latency: latency::Latency::default(),
            old_receipts: old_receipts::OldReceipts::default(),
            events: 0,
            trace: 0,
            log: keep_log.then(Vec::new),
        };
        if world.plan.clocks_differ {
            let actors = world.all_actors();
            world.clocks.draw(actors.into_iter(), &mut world.rng);
        }
        world
    }

    fn all_actors(&self) -> Vec<Actor> {
        let nodes = (0..self.nodes.len()).map(Actor::Node);
        let managers = (0..self.managers.len()).map(Actor::Manager);
        nodes.chain((0..self.clients.len()).map(Actor::Client)).chain(managers).collect()
    }

    /// Runs all phases.
    pub fn run(mut self) -> Report {
        let violation = self.run_phases().err();
        let errors = self.clients.iter().flat_map(|c| c.errors.iter().map(|(_, text)| text.clone())).collect();
        let (events, trace, counts, log) = (self.events, self.trace, self.group.counts, self.log.unwrap_or_default());
        Report { events, trace, violation, errors, counts, waits: self.latency.waits, log }
    }

    fn run_phases(&mut self) -> Result<(), Violation> {
        self.start_all()?;
        for client in 0..self.clients.len() {
            let at = self.now_ns + 600 * MS + self.rng.between(0, 500) as i64 * MS;
            self.push(at, Event::ClientTick { client, incarnation: 1 });
        }
        self.begin_probes();
        for (at_ms, fault) in self.plan.faults.clone() {
            self.push(EPOCH_NS + 1_000 * MS + at_ms as i64 * MS, Event::Fault(fault));
        }
        self.run_until(EPOCH_NS + 1_000 * MS + self.plan.quiesce_at_ms as i64 * MS, |_| false)?;
        self.quiesce()?;
        self.verify()
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
            self.dispatch(next.what)?;
            // `done` costs a query, so it is asked only every 250 ms.
            if self.now_ns >= check_at {
                check_at = self.now_ns + 250 * MS;
                if done(self) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn dispatch(&mut self, what: Event) -> Result<(), Violation> {
        let Some(what) = self.in_turn(what) else { return Ok(()) };
        self.events += 1;
        if let Some(actor) = self.paused(&what) {
            self.held_events.push((actor, what));
            return Ok(());
        }
        match what {
            Event::Deliver(envelope) => self.deliver(envelope),
            Event::CallFailed { ticket, error } => self.close_call(ticket, Err(error)),
            Event::NodeTick { node, incarnation } => self.with_node(node, incarnation, |host, now| host.tick(now)),
            Event::NodeDisk { node, incarnation } => {
                self.with_node(node, incarnation, |host, now| host.write_disk(now))
            }
            Event::NodeDone { node, incarnation, event } => {
                self.with_node(node, incarnation, |host, now| host.event(now, *event))
            }
            Event::VoterTick { node, incarnation } => self.tick_voter(node, incarnation),
            Event::ManagerTick { manager, incarnation } => self.tick_manager(manager, incarnation),
            Event::Search(routed) => {
                let routed = self.routes.again(*routed, self.now_ns);
                self.attempt(routed);
                Ok(())
            }
            Event::ClientTick { client, incarnation } => self.tick_client(client, incarnation),
            Event::Probe { client } => {
                self.probe(client);
                Ok(())
            }
            Event::Late(_) => unreachable!("it was unwrapped when its turn came"),
            Event::Fault(fault) => {
                self.record(&format!("{fault:?}"));
                self.inject(fault)
            }
        }
    }

    // --- the queue ------------------------------------------------------------------------------------------

    fn push(&mut self, at_ns: i64, what: Event) {
        self.next_number += 1;
        self.queue.push(Reverse(Scheduled { at_ns: at_ns.max(self.now_ns), number: self.next_number, what }));
    }

    /// Schedules a tick unless an earlier one is scheduled.
    fn schedule_tick(&mut self, actor: (Actor, u64), at_ns: Option<i64>, what: Event) {
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

    fn record(&mut self, line: &str) {
        let at = (self.now_ns - EPOCH_NS) / MS;
        if let Some(log) = &mut self.log {
            log.push(format!("{at:>8} ms  {line}"));
        }
    }
}

fn broken<T>(promise: &'static str, fact: String) -> Result<T, Violation> {
    Err(Violation { promise, fact })
}
