//! The plan of a seed: the cluster's shape, its policy, the faults and their times. Everything is drawn here, before the first
//! event, so that the same seed gives the same run.
//!
//! There are two families. *Survivable* plans keep within the promises: they damage stored bytes on at most `m` nodes, and
//! everything else comes back. So every loss is a bug. Plans *beyond* destroy the bytes of more than `m` nodes: the cluster
//! must then report the lost chunks, in typed errors and in `status`, and keep all others.

mod fault;
mod trouble;

pub use fault::{Fault, ManagerFault, Slowness, Who};

use crate::network::{Actor, NetworkFaults};
use tessera_disk::SplitMix64;

/// Random numbers from a seed.
pub struct Rng(SplitMix64);

impl Rng {
    /// The numbers of `seed`.
    pub fn new(seed: u64) -> Self {
        Rng(SplitMix64::new(seed))
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.next_u64() % (high - low + 1)
    }

    /// True with this probability.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.0.next_u64() % 100 < percent
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[(self.0.next_u64() % of.len() as u64) as usize]
    }
}

/// What a plan may destroy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// At most `m` nodes' bytes.
    Survivable,
    /// More.
    Beyond,
}

/// Redundancy as a hint, hosts a group needs, losses it survives.
const CLASSES: &[(&str, usize, usize)] = &[
    ("ec:4+2", 6, 2),
    ("ec:2+1", 3, 1),
    ("ec:3+2", 5, 2),
    ("replica:3", 3, 2),
    ("replica:2", 2, 1),
    ("auto:2+1", 3, 1),
    ("copy+ec:4+2", 6, 2),
    ("copy+ec:2+1", 3, 1),
    ("raid6:4+2", 6, 2),
    ("raid6:3+2", 5, 2),
];

/// The schedule of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// What it may destroy.
    pub family: Family,
    /// Whether the manager's database rots once everything else is verified.
    pub rots_metadata: bool,
    /// Whether a fault changes a manager's database: the managers must find it and be equal in the end.
    pub harms_metadata: bool,
    /// Whether managers make a snapshot of every few entries and lose all commits of SQLite with the power.
    pub snapshots_often: bool,
    /// Whether the store will hold very many chunks: batches are larger, and databases are not compared all the time.
    pub many_chunks: bool,
    /// The only node in trouble, if the plan is one of a slow node: it delays nobody else, and is not given up.
    pub slow_node: Option<usize>,
    /// Whether onlookers look names up, and wait long for the answers.
    pub probes: bool,
    /// Whether clocks have offsets and drift.
    pub clocks_differ: bool,
    /// Whether enough hosts survive the plan for every group to be whole again.
    pub spare_hosts: bool,
    /// Nodes, each with a voter.
    pub nodes: usize,
    /// Managers.
    pub managers: usize,
    /// Limit of the peers that vote.
    pub max_voters: u32,
    /// Clients.
    pub clients: usize,
    /// Redundancy of every file, as a hint.
    pub redundancy: &'static str,
    /// Losses the class survives.
    pub m: usize,
    /// `optimistic` or `pessimistic`.
    pub optimistic: bool,
    /// Operations of each client.
    pub operations: usize,
    /// Length of the chunks of each write: of one group, or of several, so that every slice holds bytes.
    pub piece_bytes: usize,
    /// Whether a reader stays open from the first file on to the end. The garbage of all others must go (P5).
    pub endless_reader: bool,
    /// Faults of the network.
    pub network: NetworkFaults,
    /// (ms from the start, what).
    pub faults: Vec<(u64, Fault)>,
    /// When faults end and the cluster may heal, ms from the start.
    pub quiesce_at_ms: u64,
}

impl Plan {
    /// The plan of a seed, of the survivable family.
    pub fn survivable(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let (redundancy, width, m) = *rng.pick(CLASSES);
        // One spare host for each that may be lost or drained, so that repair can end (P12).
        let drains = rng.percent(10);
        let nodes = width + m + usize::from(drains) + rng.between(0, 2) as usize;
        let mut plan = Plan::quiet(seed, Family::Survivable, (redundancy, m), nodes, &mut rng);
        plan.draw_faults(&mut rng);
        plan.draw_clocks(&mut rng);
        if drains {
            let node = plan.node(&mut rng);
            plan.faults.push((plan.moment(&mut rng), Fault::Drain(node)));
        }
        plan.draw_trouble();
        plan.faults.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Whether a node is drained.
    pub fn drains(&self) -> bool {
        self.faults.iter().any(|(_, fault)| matches!(fault, Fault::Drain(_)))
    }

    /// The survivable plan of a seed, with a database that rots in the end.
    pub fn rotten_metadata(seed: u64) -> Plan {
        Plan { rots_metadata: true, endless_reader: false, ..Plan::survivable(seed) }
    }

    /// The survivable plan of a seed with three managers, of which one comes to differ from the others.
    pub fn differing_managers(seed: u64) -> Plan {
        let mut rng = Rng::new(seed ^ 0xd1ff);
        let mut plan = Plan { harms_metadata: true, managers: 3, max_voters: 5, ..Plan::survivable(seed) };
        let who = if rng.percent(40) { Who::Leader } else { Who::Index(plan.manager(&mut rng)) };
        plan.faults.push((plan.moment(&mut rng), Fault::HarmMetadata(who)));
        plan.faults.sort_by_key(|(at, _)| *at);
        plan
    }

    /// The plan of a seed, of the family beyond: more than `m` nodes are destroyed, all at once or one after the other.
    pub fn beyond(seed: u64) -> Plan {
        let mut rng = Rng::new(!seed);
        let (redundancy, width, m) = *rng.pick(CLASSES);
        let losses = m + rng.between(1, 2) as usize;
        let spare_hosts = rng.percent(75);
        let nodes = match spare_hosts {
            true => width + losses + rng.between(0, 1) as usize,
            false => width + rng.between(0, losses as u64 - 1) as usize,
        };
        let mut plan = Plan::quiet(seed, Family::Beyond, (redundancy, m), nodes, &mut rng);
        plan.spare_hosts = spare_hosts;
        if rng.percent(40) {
            plan.draw_restarts(&mut rng);
        }
        plan.draw_managers(&mut rng, 30);
        plan.draw_partitions(&mut rng, 20);
        plan.draw_garbage(&mut rng);
        plan.draw_clocks(&mut rng);
        plan.destroy(losses, &mut rng);
        plan.draw_trouble();
        plan.faults.sort_by_key(|(at, _)| *at);
        plan
    }

    /// A plan in which nothing happens but that one node, its disk, or both are slow the whole time, or that it limps.
    pub fn one_slow(seed: u64) -> Plan {
        let mut rng = Rng::new(seed ^ 0x510e);
        let (redundancy, width, m) = *rng.pick(CLASSES);
        let nodes = width + m + rng.between(1, 2) as usize;
        let mut plan = Plan::quiet(seed, Family::Survivable, (redundancy, m), nodes, &mut rng);
        plan.network = NetworkFaults { min_delay_us: 50, max_delay_us: 2_000, ..NetworkFaults::default() };
        plan.draw_one_slow(&mut rng);
        plan
    }

    /// A plan in which nothing happens but that stored bytes of one node rot again and again.
    pub fn rotting(seed: u64) -> Plan {
        let mut rng = Rng::new(seed ^ 0x2077);
        let (redundancy, width, m) = *rng.pick(CLASSES);
        let mut plan = Plan::quiet(seed, Family::Survivable, (redundancy, m), width + m, &mut rng);
        (plan.clients, plan.operations, plan.optimistic) = (3, 40, false);
        let node = plan.node(&mut rng);
        for _ in 0..rng.between(5, 40) {
            plan.faults.push((plan.moment(&mut rng), Fault::Rot(node)));
        }
        plan.faults.sort_by_key(|(at, _)| *at);
        plan
    }

    /// A plan without faults.
    fn quiet(seed: u64, family: Family, (redundancy, m): (&'static str, usize), nodes: usize, rng: &mut Rng) -> Plan {
        Plan {
            seed,
            family,
            rots_metadata: false,
            harms_metadata: false,
            snapshots_often: false,
            many_chunks: false,
            slow_node: None,
            probes: false,
            clocks_differ: false,
            spare_hosts: true,
            nodes,
            quiesce_at_ms: rng.between(2_000, 14_000),
            managers: *rng.pick(&[1, 1, 2, 3, 3]),
            max_voters: *rng.pick(&[3, 5, 5]),
            clients: rng.between(1, 3) as usize,
            redundancy,
            m,
            optimistic: rng.percent(20),
            operations: rng.between(4, 14) as usize,
            endless_reader: seed.is_multiple_of(2),
            network: network(rng),
            piece_bytes: *rng.pick(&[3_000, 3_000, 36_000, 72_000]),
            faults: Vec::new(),
        }
    }

    /// Destroys this many different nodes: most are lost, some keep running on rotten bytes.
    fn destroy(&mut self, losses: usize, rng: &mut Rng) {
        let mut left: Vec<usize> = (0..self.nodes).collect();
        let together = rng.percent(50).then(|| self.moment(rng));
        for _ in 0..losses.min(self.nodes - 1) {
            let node = left.swap_remove(rng.between(0, left.len() as u64 - 1) as usize);
            let at = together.unwrap_or_else(|| self.moment(rng)) + rng.between(0, 20);
            let fault = if rng.percent(75) { Fault::LoseNode(node) } else { Fault::RotMuch(node) };
            self.faults.push((at, fault));
        }
    }

    fn draw_clocks(&mut self, rng: &mut Rng) {
        self.clocks_differ = rng.percent(30);
        if rng.percent(15) {
            for _ in 0..rng.between(1, 3) {
                let by_ms = rng.between(100, 600_000) as i64;
                let at = self.moment(rng);
                let manager = self.manager(rng);
                self.faults.push((at, Fault::SetClock(manager, if rng.percent(50) { by_ms } else { -by_ms })));
            }
        }
    }

    fn draw_faults(&mut self, rng: &mut Rng) {
        // First draw whether a kind of fault occurs, then how often.
        if rng.percent(60) {
            self.draw_restarts(rng);
        }
        // Faults that damage stored bytes affect only these nodes, at most `m`.
        let victims: Vec<usize> = (0..rng.between(1, self.m as u64)).map(|_| self.node(rng)).collect();
        // An optimistic write promises only what is synced so far, so its plans lose no node.
        if rng.percent(35) && !self.optimistic {
            for node in &victims {
                let lose = rng.percent(70);
                let at = self.moment(rng);
                self.faults.push((at, if lose { Fault::LoseNode(*node) } else { Fault::FailSync(*node) }));
            }
        }
        self.draw_managers(rng, 60);
        self.draw_partitions(rng, 35);
        if rng.percent(25) && !self.optimistic {
            for _ in 0..rng.between(1, 4) {
                let (at, node) = (self.moment(rng), *rng.pick(&victims));
                self.faults.push((at, Fault::Rot(node)));
            }
        }
        if rng.percent(15) {
            let (at, node) = (self.moment(rng), self.node(rng));
            self.faults.push((at, Fault::FillDisk(node)));
            self.faults.push((at + rng.between(100, 5_000), Fault::EmptyDisk(node)));
        }
        if rng.percent(25) {
            let client = rng.between(0, self.clients as u64 - 1) as usize;
            self.faults.push((self.moment(rng), Fault::KillClient(client)));
        }
        self.draw_garbage(rng);
    }

    fn draw_garbage(&mut self, rng: &mut Rng) {
        if rng.percent(30) {
            self.faults.push((self.moment(rng), Fault::CollectGarbage));
        }
    }

    fn draw_managers(&mut self, rng: &mut Rng, percent: u64) {
        if !rng.percent(percent) {
            return;
        }
        for _ in 0..rng.between(1, 4) {
            let who = if rng.percent(60) { Who::Leader } else { Who::Index(self.manager(rng)) };
            let what = match rng.between(0, 99) {
                0..=34 => ManagerFault::Kill,
                35..=54 => ManagerFault::PowerOff,
                55..=74 => ManagerFault::Pause,
                75..=89 => ManagerFault::Lose,
                _ => ManagerFault::Retire,
            };
            let back_ms = rng.between(1, 4_000);
            self.faults.push((self.moment(rng), Fault::Manager { who, what, back_ms }));
        }
    }

    fn draw_partitions(&mut self, rng: &mut Rng, percent: u64) {
        if rng.percent(percent) {
            for _ in 0..rng.between(1, 3) {
                let (at, who) = (self.moment(rng), self.peer(rng, 40));
                let (outbound, inbound) = *rng.pick(&[(true, true), (true, false), (false, true)]);
                self.faults.push((at, Fault::Partition { who, outbound, inbound }));
                self.faults.push((at + rng.between(10, 6_000), Fault::HealPartitions));
            }
        }
        if rng.percent(percent) {
            for _ in 0..rng.between(1, 4) {
                let (at, from, to) = (self.moment(rng), self.peer(rng, 70), self.peer(rng, 60));
                self.faults.push((at, Fault::Cut { from, to }));
                self.faults.push((at + rng.between(1_000, 9_000), Fault::HealPartitions));
            }
        }
    }

    fn draw_restarts(&mut self, rng: &mut Rng) {
        for _ in 0..rng.between(1, 5) {
            let (at, node) = (self.moment(rng), self.node(rng));
            let back = at + rng.between(1, 4_000);
            match rng.between(0, 2) {
                0 => self.faults.extend([(at, Fault::KillNode(node)), (back, Fault::StartNode(node))]),
                1 => self.faults.extend([(at, Fault::PowerOffNode(node)), (back, Fault::StartNode(node))]),
                _ => self.faults.extend([(at, Fault::PauseNode(node)), (back, Fault::ResumeNode(node))]),
            }
        }
    }

    /// Whether stored bytes rot in it.
    pub fn rots(&self) -> bool {
        self.faults.iter().any(|(_, fault)| matches!(fault, Fault::Rot(_) | Fault::RotMuch(_)))
    }

    fn moment(&self, rng: &mut Rng) -> u64 {
        rng.between(1, self.quiesce_at_ms)
    }

    fn manager(&self, rng: &mut Rng) -> usize {
        rng.between(0, self.managers as u64 - 1) as usize
    }

    /// A peer of the group: with this probability a manager.
    fn peer(&self, rng: &mut Rng, percent: u64) -> Actor {
        if rng.percent(percent) { Actor::Manager(self.manager(rng)) } else { Actor::Node(self.node(rng)) }
    }

    fn node(&self, rng: &mut Rng) -> usize {
        rng.between(0, self.nodes as u64 - 1) as usize
    }
}

fn network(rng: &mut Rng) -> NetworkFaults {
    let mut rate = |on_percent: u64, high: u64| if rng.percent(on_percent) { rng.between(1, high) } else { 0 };
    NetworkFaults {
        loss_permille: rate(30, 50),
        duplicate_permille: rate(30, 50),
        reset_permille: rate(30, 30),
        clog_permille: rate(20, 20),
        min_delay_us: 50,
        max_delay_us: 50 + rate(50, 20_000),
    }
}
