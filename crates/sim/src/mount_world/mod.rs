//! Several mounts over one manager, with programs that use them at the same time.
//!
//! This file has the queue of events; [`wire`] carries messages, [`faults`] injects faults, [`program`] is what a mount's
//! program does, [`history`] knows what the manager held at any time, and [`model`] judges what programs saw. A run has
//! three phases: programs work while faults are injected; faults end and the programs finish; the mounts are unmounted,
//! and then all of them and the manager must agree and nothing may be left over.

pub mod faults;
pub mod history;
mod last_reads;
pub mod model;
pub mod plan;
pub mod program;
mod settle;
mod setup;
mod wire;

use crate::manager_host::ManagerHost;
use crate::mount_host::env::Env;
use crate::mount_host::executor::{Executor, Owner};
use crate::mount_host::fs::FileSystem;
use crate::mount_host::link::{Link, Outgoing};
use crate::mount_host::store::Store;
use crate::oracle::Violation;
use crate::plan::Rng;
use history::{History, Version};
use model::{Model, WriteRule};
use plan::{Fault, Plan, Theme};
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;
use tessera_disk::SimDisk;
use tessera_manager::config::Config;
use tessera_net::End;
use tessera_wire::Kind;
use wire::{Connection, Line, ToManager, ToMount};

const MS: i64 = 1_000_000;
/// Where simulated time begins, ns since 1970.
const START_NS: i64 = 1_000_000_000_000_000_000;
/// A client that is silent for longer loses its locks, ms.
const LOCK_SESSION_MS: u64 = 3_000;
/// Programs must end, and everything must settle, within this time after the last fault, ms.
const SETTLE_MS: i64 = 120_000;

/// What a process of a mount gets when it starts.
pub struct Setup {
    /// Time, timers and tasks.
    pub env: Env,
    /// The process.
    pub owner: Owner,
    /// The connection to the manager.
    pub link: Link,
    /// Content of files.
    pub store: Store,
    /// The disk of the spool.
    pub disk: SimDisk,
    /// Limit of the spool, bytes.
    pub spool_bytes: u64,
    /// The cluster.
    pub cluster_id: Vec<u8>,
}

/// A mount in the simulator.
pub trait Host: FileSystem + Sized {
    /// Starts the process of a mount. It may serve once the future ends.
    #[allow(async_fn_in_trait, reason = "everything runs in one thread")]
    async fn start(setup: Setup) -> Rc<Self>;

    /// Commits what is left and ends. Returns how many files could not be stored.
    #[allow(async_fn_in_trait, reason = "everything runs in one thread")]
    async fn unmount(&self) -> usize;
}

enum Event {
    ManagerTick { incarnation: u64 },
    NodeBeat,
    ToManager { connection: u64, message: ToManager },
    ToMount { connection: u64, message: ToMount },
    Dialled { owner: Owner },
    CallTimeout { owner: Owner, ticket: u64 },
    Send { owner: Owner, message: Outgoing },
    MountNotices { connection: u64 },
    ManagerNotices { connection: u64, end: End },
    StartMount(usize),
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

/// What programs and the world know of each other.
#[derive(Default)]
pub struct Shared {
    /// Directories with a write rule.
    pub directories: RefCell<Vec<u64>>,
    /// What programs do more often than else.
    pub theme: Cell<Theme>,
    /// Names in a directory.
    pub names: Cell<u64>,
    /// No fault was injected so far.
    pub calm: Cell<bool>,
    /// Longest pause of a program, ms.
    pub pause_ms: Cell<u64>,
    /// Operations left to each program.
    pub left: RefCell<Vec<usize>>,
    /// Whether each mount's second program runs.
    pub reading: RefCell<Vec<bool>>,
    /// When the manager last heard of each mount's locks, ns.
    lock_signs: RefCell<BTreeMap<usize, i64>>,
    /// When each mount was heard of again after it had been silent for so long that the manager took its locks, ns.
    silences: RefCell<BTreeMap<usize, i64>>,
    /// Mounts that may leave a log to the next mount: their spool had a fault, or a file lost its locks.
    leaves_logs: RefCell<Vec<bool>>,
}

impl Shared {
    fn heard_of_locks(&self, mount: usize, now_ns: i64) {
        let was_heard = self.lock_signs.borrow().contains_key(&mount);
        if was_heard && self.is_silent(mount, now_ns) {
            self.silences.borrow_mut().insert(mount, now_ns);
        }
        self.lock_signs.borrow_mut().insert(mount, now_ns);
    }

    fn is_silent(&self, mount: usize, now_ns: i64) -> bool {
        let heard_ns = self.lock_signs.borrow().get(&mount).copied().unwrap_or(i64::MIN / 2);
        now_ns - heard_ns >= LOCK_SESSION_MS as i64 * MS - 1
    }

    /// Whether the manager may have taken the locks that a mount had at `since_ns`.
    pub fn locks_may_be_lost(&self, mount: usize, since_ns: i64, now_ns: i64) -> bool {
        let ended_ns = self.silences.borrow().get(&mount).copied().unwrap_or(i64::MIN);
        ended_ns > since_ns || self.is_silent(mount, now_ns)
    }
}

/// The machine of a mount.
struct Slot<H> {
    incarnation: u64,
    link: Option<Link>,
    host: Option<Rc<H>>,
    /// Set by the task that starts the host.
    started: Rc<RefCell<Option<Rc<H>>>>,
    disk: SimDisk,
    /// Operations on the disk fail.
    spool_fails: bool,
    /// They begin to fail when the next process starts, for so long, ms.
    fails_at_start_ms: Option<u64>,
    line: Line,
    cut_until_ns: i64,
    losses: u64,
    /// It dies when its next commit reaches the manager: whether the commit is carried out, whether its machine dies,
    /// and for how long, ms.
    dies_at_commit: Option<(bool, bool, u64)>,
    /// Its connection breaks when it says what locks it holds, which arrives late.
    delays_claim: bool,
    /// The number of files that could not be stored at the unmount.
    unmounted: Rc<Cell<Option<usize>>>,
}

impl<H> Slot<H> {
    /// Whether its process has begun and does not serve yet.
    fn is_starting(&self) -> bool {
        self.link.is_some() && self.host.is_none()
    }
}

/// Result of a run.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Number of events.
    pub events: u64,
    /// Answers that were checked.
    pub checked: u64,
    /// Versions that were made.
    pub versions: u64,
    /// The first broken promise.
    pub violation: Option<Violation>,
    /// The trace, if requested.
    pub log: Vec<String>,
    /// Hash of the trace.
    pub trace: u64,
}

/// See the module.
pub struct MountWorld<H: Host> {
    plan: Plan,
    now_ns: i64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    next_number: u64,
    rng: Rng,
    executor: Executor,
    env: Env,
    manager: ManagerHost,
    mounts: Vec<Slot<H>>,
    connections: BTreeMap<u64, Connection>,
    last_connection: u64,
    /// Requests of mounts that the manager has: connection and kind.
    tickets: BTreeMap<u64, (u64, Kind)>,
    node: setup::Node,
    history: Rc<RefCell<History>>,
    model: Rc<RefCell<Model>>,
    shared: Rc<Shared>,
    new_versions: Vec<Version>,
    /// States that the model has seen.
    states: usize,
    versions: u64,
    events: u64,
    trace: u64,
    log: Option<Vec<String>>,
    /// A repeated request gets another op id.
    fresh_op_ids: bool,
}

fn manager_config() -> Config {
    Config {
        session_ms: 6_000,
        reader_persist_ms: 300,
        answers_ms: 120_000,
        lease_entry_ms: 1_500,
        lock_session_ms: LOCK_SESSION_MS,
        lock_orphan_ms: 400,
        // One command a group commit: the model sees every state.
        max_batch_commands: 1,
        max_voters: 1,
        heartbeat_ms: 1_000,
        node_lease_ms: 20_000,
        down_after_ms: 30_000,
        out_after_ms: 600_000,
        scrub_every_ms: 0,
        inventory_every_ms: 0,
        ..Config::default()
    }
}

impl<H: Host> MountWorld<H> {
    /// The world of a plan. `keep_log`: record the events.
    pub fn new(plan: Plan, keep_log: bool) -> MountWorld<H> {
        let mut rng = Rng::new(plan.seed ^ 0x776f_726c_6473);
        let executor = Executor::new(rng.any());
        let env = Env::new(START_NS, executor.spawner());
        let history = Rc::<RefCell<History>>::default();
        let slots = (0..plan.mounts).map(|_| Slot {
            incarnation: 0,
            link: None,
            host: None,
            started: Rc::default(),
            disk: SimDisk::new(rng.any()),
            spool_fails: false,
            fails_at_start_ms: None,
            line: Line::Closed(0),
            cut_until_ns: 0,
            losses: 0,
            dies_at_commit: None,
            delays_claim: false,
            unmounted: Rc::default(),
        });
        let shared = Shared::default();
        shared.theme.set(plan.theme);
        shared.names.set(plan.names);
        shared.calm.set(plan.is_calm());
        shared.pause_ms.set(plan.pause_ms);
        *shared.left.borrow_mut() = vec![plan.operations; plan.mounts];
        *shared.reading.borrow_mut() = vec![false; plan.mounts];
        *shared.leaves_logs.borrow_mut() = vec![false; plan.mounts];
        MountWorld {
            mounts: slots.collect(),
            manager: ManagerHost::new(0, *b"simulated world!", manager_config(), rng.any()),
            model: Rc::new(RefCell::new(Model::new(history.clone(), START_NS))),
            plan,
            now_ns: START_NS,
            queue: BinaryHeap::new(),
            next_number: 0,
            rng,
            executor,
            env,
            connections: BTreeMap::new(),
            last_connection: 10_000,
            tickets: BTreeMap::new(),
            node: setup::Node::default(),
            history,
            shared: Rc::new(shared),
            new_versions: Vec::new(),
            states: 0,
            versions: 0,
            events: 0,
            trace: 0,
            log: keep_log.then(Vec::new),
            fresh_op_ids: false,
        }
    }

    /// Runs with a mistake of the client library: a repeated request gets another op id.
    #[must_use]
    pub fn with_fresh_op_ids(mut self) -> Self {
        self.fresh_op_ids = true;
        self
    }

    /// Runs all phases.
    pub fn run(mut self) -> Report {
        let violation = self.run_phases().err();
        let model = self.model.borrow();
        Report {
            events: self.events,
            checked: model.checked,
            versions: self.versions,
            violation,
            log: self.log.take().unwrap_or_default(),
            trace: self.trace,
        }
    }

    fn run_phases(&mut self) -> Result<(), Violation> {
        self.set_up();
        for index in 0..self.mounts.len() {
            self.start_mount(index);
        }
        for (at_ms, fault) in self.plan.faults.clone() {
            self.push(self.now_ns + at_ms as i64 * MS, Event::Fault(fault));
        }
        let last_ms = self.plan.faults.last().map_or(0, |(at_ms, _)| *at_ms as i64);
        self.run_until(self.now_ns + (last_ms + 1) * MS, |_| false)?;
        self.end_faults();
        self.run_until(self.now_ns + SETTLE_MS * MS, |world| world.programs_are_done())?;
        self.settle()
    }

    fn owner(&self, index: usize) -> Owner {
        Owner { index, incarnation: self.mounts[index].incarnation }
    }

    fn programs_are_done(&self) -> bool {
        let ended = self.shared.left.borrow().iter().all(|left| *left == 0)
            && self.shared.reading.borrow().iter().all(|reading| !reading);
        ended && self.mounts.iter().all(|slot| slot.host.is_some())
    }

    /// Handles events until this time, or until `done`.
    fn run_until(&mut self, until_ns: i64, done: impl Fn(&Self) -> bool) -> Result<(), Violation> {
        loop {
            self.run_tasks()?;
            if done(self) {
                return Ok(());
            }
            let event_ns = self.queue.peek().map(|Reverse(next)| next.at_ns);
            let timer_ns = self.env.next_timer_ns();
            let Some(next_ns) = event_ns.into_iter().chain(timer_ns).min() else { return Ok(()) };
            self.now_ns = self.now_ns.max(next_ns.min(until_ns));
            self.env.advance(self.now_ns);
            if next_ns > until_ns {
                return Ok(());
            }
            if event_ns == Some(next_ns)
                && let Some(Reverse(next)) = self.queue.pop()
            {
                self.events += 1;
                self.dispatch(next.what);
            }
        }
    }

    /// Runs the tasks of all mounts, and sends what they send.
    fn run_tasks(&mut self) -> Result<(), Violation> {
        loop {
            let polls = self.executor.run();
            self.events += polls as u64;
            self.mix(polls as u64);
            self.send_outgoing();
            self.judge_versions();
            for slot in &mut self.mounts {
                if let Some(host) = slot.started.borrow_mut().take() {
                    slot.host = Some(host);
                }
            }
            if polls == 0 {
                break;
            }
        }
        match self.model.borrow().violation() {
            Some(violation) => Err(violation.clone()),
            None => Ok(()),
        }
    }

    fn judge_versions(&mut self) {
        let (history, model) = (self.history.clone(), self.model.clone());
        let states = history.borrow().len();
        if std::mem::replace(&mut self.states, states) != states {
            model.borrow_mut().learn(&history.borrow().now());
        }
        for version in std::mem::take(&mut self.new_versions) {
            self.versions += 1;
            self.mix(version.id);
            let tree = self.history.borrow().now();
            self.model.borrow_mut().version(&version, &tree);
        }
    }

    fn dispatch(&mut self, what: Event) {
        match what {
            Event::ManagerTick { incarnation } => self.tick_manager(incarnation),
            Event::NodeBeat => self.beat(),
            Event::ToManager { connection, message } => self.arrive_at_manager(connection, message),
            Event::ToMount { connection, message } => self.arrive_at_mount(connection, message),
            Event::Dialled { owner } => self.dialled(owner),
            Event::CallTimeout { owner, ticket } => self.call_timeout(owner, ticket),
            Event::Send { owner, message } => self.send_late(owner, message),
            Event::MountNotices { connection } => self.mount_notices(connection),
            Event::ManagerNotices { connection, end } => self.manager_notices(connection, end),
            Event::StartMount(index) => self.start_mount(index),
            Event::Fault(fault) => {
                self.record(|| format!("{fault:?}"));
                self.inject(fault);
            }
        }
        // Before any task runs: a program that hears of its commit must find it in the model.
        self.judge_versions();
    }

    fn tick_manager(&mut self, incarnation: u64) {
        if self.manager.incarnation == incarnation && self.manager.is_running() {
            self.manager.tick(self.now_ns);
            self.pump_manager();
            self.push(self.now_ns + 100 * MS, Event::ManagerTick { incarnation });
        }
    }

    fn push(&mut self, at_ns: i64, what: Event) {
        self.next_number += 1;
        self.queue.push(Reverse(Scheduled { at_ns: at_ns.max(self.now_ns), number: self.next_number, what }));
    }

    fn mix(&mut self, number: u64) {
        let z = self.trace ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.now_ns as u64;
        self.trace = (z ^ z >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }

    fn record(&mut self, line: impl FnOnce() -> String) {
        let at = (self.now_ns - START_NS) as f64 / MS as f64;
        if let Some(log) = &mut self.log {
            log.push(format!("{at:>10.3} ms  {}", line()));
        }
    }
}

/// The rules of the directories that every run has.
pub const RULES: [WriteRule; 5] = [
    WriteRule { mode: "sliding-window", optimistic: false },
    WriteRule { mode: "incremental", optimistic: false },
    WriteRule { mode: "incremental", optimistic: true },
    WriteRule { mode: "complete-local", optimistic: false },
    WriteRule { mode: "complete-local", optimistic: true },
];
