//! Sets as a graph of transformations, and the tree of tasks that computes one of them.

use super::logs::Logs;
use super::partition::{Partition, Place};
use super::tree::{Task, TaskId, Tree};
use crate::error::Error;
use crate::layout::{Layout, Run};
use crate::schedule::{Schedule, Shares};
use hashbrown::HashMap;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

/// What a task yields: a `Part<T>`, buckets of pairs, or bytes. Only the set that made a task knows its type.
pub(super) type Value = Arc<dyn Any + Send + Sync>;
/// What a wide task has merged so far.
pub(super) type Merged = Box<dyn Any + Send>;
/// Loads a partition, on a disk's thread.
pub(super) type Load = dyn Fn(usize) -> Result<Value, Error> + Send + Sync;
/// Works on a partition, given its number.
pub(super) type Compute = dyn Fn(usize, Value) -> Result<Value, Error> + Send + Sync;

/// Merges results of many tasks, in any order.
pub(super) trait Merge: Send + Sync {
    fn begin(&self) -> Merged;
    fn merge(&self, merged: &mut Merged, partition: usize, input: Value);
    fn finish(&self, merged: Merged) -> Value;
}

/// How a set's partitions come to be.
pub(super) enum Work {
    Load(Arc<Load>),
    Map(Arc<Node>, Arc<Compute>),
    /// Partitions of another set, in the order in which they are read.
    Select(Arc<Node>, Vec<usize>, Arc<Selection>),
    /// Each partition merges all partitions of these sets.
    Merge(Vec<Arc<Node>>, Arc<dyn Merge>),
}

/// What a set was computed from, as far as estimates need it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Basis {
    /// Partitions were left out.
    pub(super) partitions_sampled: bool,
    /// Records were left out inside partitions.
    pub(super) rows_sampled: bool,
    /// Records of a sample were merged: nothing can be said about the rest any more.
    pub(super) merged: bool,
}

impl Basis {
    pub(super) fn is_sampled(self) -> bool {
        self.partitions_sampled || self.rows_sampled
    }
}

/// A set without its type.
pub(super) struct Node {
    pub(super) partitions: Vec<Partition>,
    /// Partitions in each stratum, those included that were not selected.
    pub(super) population: Vec<u64>,
    pub(super) basis: Basis,
    pub(super) work: Work,
}

/// Which partitions a sample has, and how many of them are needed.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    layout: Layout,
    shares: Shares,
    seed: u64,
    needed: u64,
    drop: f64,
}

impl Selection {
    /// Selects among partitions whose strata are given, each below `count`.
    pub(super) fn new(strata: &[usize], count: usize, ratio: f64, shares: Shares, drop: f64, seed: u64) -> Selection {
        // A partition is a run of one byte that must not be cut, at its number: so a layout's units are partitions.
        let run = |(i, stratum): (usize, &usize)| Run {
            file: 0,
            offset: i as u64,
            len_bytes: 1,
            disk: *stratum as u32,
            rows: Some(1),
        };
        let runs: Vec<Run> = strata.iter().enumerate().map(run).collect();
        let needed = (strata.len() as f64 * ratio).ceil() as u64;
        Selection { layout: Layout::new(&runs, count, 1), shares, seed, needed, drop }
    }

    /// Number of partitions that are waited for.
    pub(super) fn needed(&self) -> u64 {
        self.needed
    }

    fn schedule(&self) -> Schedule {
        let mut schedule = Schedule::new(self.layout.clone(), self.shares.clone(), self.seed);
        schedule.need(self.needed, self.drop);
        schedule
    }

    /// The selected partitions: stratum after stratum, each in the random order in which it is read.
    pub(super) fn chosen(&self) -> Vec<usize> {
        let mut schedule = self.schedule();
        let mut chosen = Vec::new();
        for disk in 0..self.layout.disks {
            while let Some(issue) = schedule.next(disk as u32) {
                chosen.push(issue.unit.offset as usize);
            }
        }
        chosen
    }
}

/// A selection during a run: it decides when the stragglers are dropped.
pub(super) struct Live {
    schedule: Schedule,
    /// Position of each stratum in the schedule's layout; empty strata have none.
    positions: HashMap<usize, usize>,
    loads: Vec<TaskId>,
}

impl Live {
    fn new(selection: &Selection) -> Live {
        let mut schedule = selection.schedule();
        for disk in 0..selection.layout.disks {
            while schedule.next(disk as u32).is_some() {}
        }
        let strata = selection.layout.strata.iter().enumerate();
        let positions = strata.map(|(position, stratum)| (stratum.disk as usize, position)).collect();
        Live { schedule, positions, loads: Vec::new() }
    }

    /// A partition has arrived; returns the loads that are not waited for, once enough has arrived.
    pub(super) fn arrived(&mut self, stratum: usize) -> Option<Vec<TaskId>> {
        self.schedule.arrived(self.positions[&stratum]);
        self.schedule.is_complete().then(|| std::mem::take(&mut self.loads))
    }
}

/// What a task does.
#[derive(Clone)]
pub(super) enum Step {
    Load(Arc<Load>, usize),
    Map(Arc<Compute>, usize),
    Merge(Arc<dyn Merge>, usize),
    /// Writes bytes to a disk that the router chooses.
    Store,
}

/// The tasks of a run.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) tree: Tree,
    pub(super) steps: Vec<Step>,
    /// The task of each partition of the set that is wanted.
    pub(super) goals: Vec<TaskId>,
    pub(super) devices: Vec<Arc<str>>,
    /// What each device loads, in this order.
    pub(super) loads: Vec<VecDeque<TaskId>>,
    pub(super) selections: Vec<Live>,
    /// Selection and stratum of a load.
    pub(super) selection_of: HashMap<TaskId, (usize, usize)>,
    known: HashMap<(usize, usize, Option<usize>), TaskId>,
    known_selections: HashMap<usize, usize>,
}

/// The selection that a load belongs to, and the stratum.
type Context = Option<(usize, usize)>;

impl Plan {
    /// The tasks that compute a set; with `logs`, also those that store it.
    pub(super) fn of(node: &Arc<Node>, logs: Option<&Logs>) -> Plan {
        let mut plan = Plan::default();
        for name in logs.iter().flat_map(|logs| logs.names()) {
            plan.device(&name);
        }
        for partition in 0..node.partitions.len() {
            let mut task = plan.task(node, partition, None);
            if logs.is_some() {
                task = plan.add(Task::Compute(task), Step::Store);
            }
            plan.goals.push(task);
        }
        for goal in &plan.goals {
            plan.tree.set_goal(*goal);
        }
        plan
    }

    fn add(&mut self, task: Task, step: Step) -> TaskId {
        self.steps.push(step);
        self.tree.add(task)
    }

    fn device(&mut self, name: &Arc<str>) -> usize {
        self.devices.iter().position(|device| device == name).unwrap_or_else(|| {
            self.devices.push(name.clone());
            self.loads.push(VecDeque::new());
            self.devices.len() - 1
        })
    }

    /// The task of a partition. A set that is used twice is computed once, except under different selections, since each
    /// drops its own stragglers.
    fn task(&mut self, node: &Arc<Node>, partition: usize, context: Context) -> TaskId {
        let key = (Arc::as_ptr(node) as usize, partition, context.map(|(selection, _)| selection));
        if let Some(task) = self.known.get(&key) {
            return *task;
        }
        let task = match &node.work {
            Work::Load(load) => self.load(node, load, partition, context),
            Work::Map(parent, compute) => {
                let input = self.task(parent, partition, context);
                self.add(Task::Compute(input), Step::Map(compute.clone(), partition))
            }
            Work::Select(parent, chosen, selection) => {
                let context = context.unwrap_or_else(|| (self.live(selection), node.partitions[partition].stratum));
                self.task(parent, chosen[partition], Some(context))
            }
            Work::Merge(parents, merge) => {
                let mut inputs = Vec::new();
                for parent in parents {
                    inputs.extend((0..parent.partitions.len()).map(|i| self.task(parent, i, None)));
                }
                self.add(Task::Wide(inputs), Step::Merge(merge.clone(), partition))
            }
        };
        self.known.insert(key, task);
        task
    }

    fn load(&mut self, node: &Node, load: &Arc<Load>, partition: usize, context: Context) -> TaskId {
        let task = self.add(Task::Io, Step::Load(load.clone(), partition));
        let device = self.device(&node.partitions[partition].device());
        self.loads[device].push_back(task);
        if let Some((selection, stratum)) = context {
            self.selection_of.insert(task, (selection, stratum));
            self.selections[selection].loads.push(task);
        }
        task
    }

    fn live(&mut self, selection: &Arc<Selection>) -> usize {
        let known = *self.known_selections.entry(Arc::as_ptr(selection) as usize).or_insert(self.selections.len());
        if known == self.selections.len() {
            self.selections.push(Live::new(selection));
        }
        known
    }
}

impl Node {
    /// A set with one task for each partition of another.
    pub(super) fn map(parent: &Arc<Node>, basis: Basis, compute: Arc<Compute>) -> Arc<Node> {
        let derive =
            |partition: &Partition| Partition { place: Place::Computed { from: 1 }, stratum: partition.stratum };
        Arc::new(Node {
            partitions: parent.partitions.iter().map(derive).collect(),
            population: parent.population.clone(),
            basis,
            work: Work::Map(parent.clone(), compute),
        })
    }

    /// A set of `count` partitions that each depend on all partitions of others.
    pub(super) fn merge(parents: Vec<Arc<Node>>, count: usize, merge: Arc<dyn Merge>) -> Arc<Node> {
        let from = parents.iter().map(|parent| parent.partitions.len()).sum();
        let mut basis = Basis::default();
        for parent in &parents {
            basis.partitions_sampled |= parent.basis.partitions_sampled;
            basis.rows_sampled |= parent.basis.rows_sampled;
        }
        basis.merged = basis.is_sampled();
        let partition = Partition { place: Place::Computed { from }, stratum: 0 };
        let population = vec![count as u64];
        Arc::new(Node { partitions: vec![partition; count], population, basis, work: Work::Merge(parents, merge) })
    }

    /// The names of the devices whose partitions a stratum's depend on, for each stratum; a wide task depends on none.
    pub(super) fn devices(&self) -> Vec<Vec<Arc<str>>> {
        let mut devices: Vec<Vec<Arc<str>>> = vec![Vec::new(); self.population.len()];
        for i in 0..self.partitions.len() {
            let Some(device) = self.device(i) else { continue };
            let of_stratum = &mut devices[self.partitions[i].stratum];
            if !of_stratum.contains(&device) {
                of_stratum.push(device);
            }
        }
        devices
    }

    fn device(&self, partition: usize) -> Option<Arc<str>> {
        match &self.work {
            Work::Load(_) => Some(self.partitions[partition].device()),
            Work::Map(parent, _) => parent.device(partition),
            Work::Select(parent, chosen, _) => parent.device(chosen[partition]),
            Work::Merge(..) => None,
        }
    }
}
