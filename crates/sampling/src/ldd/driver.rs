//! The active storage driver: threads that load and store, threads that compute, and the router of writes.
//!
//! Each device has one thread and two queues. Writes are served before loads, because a write frees memory; a load
//! waits while [`MAX_LOADED`] partitions are loaded and not computed yet, and a computing thread that has something to
//! store waits while the shortest write queue has [`MAX_QUEUED_WRITES`]. Neither wait can last: computing threads always
//! find a loaded partition's task ready, and devices never wait before a write.

use super::logs::Logs;
use super::plan::{Live, Merged, Plan, Step, Value};
use super::tree::{Job, Outcome, TaskId, Tree};
use crate::error::Error;
use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Partitions that are loaded and not computed yet, at most; each device may have one more under way.
const MAX_LOADED: usize = 32;
/// Writes in the shortest queue, at most.
const MAX_QUEUED_WRITES: usize = 4;

struct Shared {
    steps: Vec<Step>,
    logs: Option<Arc<Logs>>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    tree: Tree,
    devices: Vec<Device>,
    /// Results, and how often each will still be taken.
    results: HashMap<TaskId, (Value, usize)>,
    merged: HashMap<TaskId, Merged>,
    selections: Vec<Live>,
    selection_of: HashMap<TaskId, (usize, usize)>,
    /// Loaded partitions that no task has taken yet.
    loaded: usize,
    closed: bool,
    error: Option<Error>,
}

/// The queues of a device.
#[derive(Default)]
struct Device {
    writes: VecDeque<(TaskId, Value)>,
    writing: bool,
    loads: VecDeque<TaskId>,
}

enum DeviceWork {
    Write(TaskId, Value),
    Load(TaskId),
}

impl Device {
    /// What the device does next: writes in the order in which they came, then loads if there is room.
    fn next(&mut self, room: bool) -> Option<DeviceWork> {
        if let Some((task, bytes)) = self.writes.pop_front() {
            self.writing = true;
            return Some(DeviceWork::Write(task, bytes));
        }
        if room { self.loads.pop_front().map(DeviceWork::Load) } else { None }
    }

    fn queued_writes(&self) -> usize {
        self.writes.len() + usize::from(self.writing)
    }
}

/// The router: the device with the shortest write queue, the first of several.
fn shortest_queue(devices: &[Device]) -> usize {
    (0..devices.len()).min_by_key(|device| devices[*device].queued_writes()).expect("a disk to write to")
}

/// Ends all threads when the caller leaves.
struct Run(Arc<Shared>);

impl Drop for Run {
    fn drop(&mut self) {
        self.0.close(None);
    }
}

/// Computes a plan; returns the value of each goal, `None` where it was dropped.
pub(super) fn run(plan: Plan, threads: usize, logs: Option<Arc<Logs>>) -> Result<Vec<Option<Value>>, Error> {
    let Plan { tree, steps, goals, devices, loads, selections, selection_of, .. } = plan;
    let queues = loads.into_iter().map(|loads| Device { loads, ..Device::default() }).collect();
    let state = State {
        tree,
        devices: queues,
        results: HashMap::new(),
        merged: HashMap::new(),
        selections,
        selection_of,
        loaded: 0,
        closed: false,
        error: None,
    };
    let shared = Arc::new(Shared { steps, logs, state: Mutex::new(state), changed: Condvar::new() });
    let run = Run(shared.clone());
    for (number, name) in devices.iter().enumerate() {
        spawn(format!("ldd-{name}"), &shared, move |shared| shared.serve_device(number))?;
    }
    for number in 0..threads.max(1) {
        spawn(format!("ldd-compute-{number}"), &shared, Shared::compute)?;
    }
    run.0.wait(&goals)
}

fn spawn(name: String, shared: &Arc<Shared>, work: impl FnOnce(&Shared) + Send + 'static) -> Result<(), Error> {
    let shared = shared.clone();
    let name: String = name.chars().filter(|c| *c != '\0').collect();
    let started = std::thread::Builder::new().name(name).spawn(move || {
        let ended = guarded(|| {
            work(&shared);
            Ok(())
        });
        if let Err(error) = ended {
            shared.close(Some(error));
        }
    });
    started.map(drop).map_err(|error| Error::Question(format!("cannot start a thread: {error}")))
}

/// A panic in a closure of the user, or in a source, becomes an error.
fn guarded<R>(work: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
        let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Error::Panic { message: message.unwrap_or_else(|| "without a message".to_string()) })
    })
}

impl Shared {
    /// Waits until each goal has ended; returns their values.
    fn wait(&self, goals: &[TaskId]) -> Result<Vec<Option<Value>>, Error> {
        let mut guard = self.state.lock();
        loop {
            let state = &mut *guard;
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            if state.tree.open_goals() == 0 {
                let value = |goal: &TaskId| {
                    let done = state.tree.outcome(*goal) == Some(Outcome::Done);
                    done.then(|| state.take(*goal, &self.steps))
                };
                return Ok(goals.iter().map(value).collect());
            }
            self.changed.wait(&mut guard);
        }
    }

    fn close(&self, error: Option<Error>) {
        let mut state = self.state.lock();
        state.closed = true;
        if state.error.is_none() {
            state.error = error;
        }
        self.changed.notify_all();
    }

    /// A device's thread.
    fn serve_device(&self, number: usize) {
        while let Some(work) = self.next_of_device(number) {
            let served = match work {
                DeviceWork::Load(task) => self.load(task),
                DeviceWork::Write(task, bytes) => self.write(number, task, bytes),
            };
            if let Err(error) = served {
                return self.close(Some(error));
            }
        }
    }

    fn next_of_device(&self, number: usize) -> Option<DeviceWork> {
        let mut state = self.state.lock();
        while !state.closed {
            let room = state.loaded < MAX_LOADED;
            match state.devices[number].next(room) {
                // It was dropped while it was queued.
                Some(DeviceWork::Load(task)) if state.tree.outcome(task).is_some() => {}
                Some(work) => return Some(work),
                None => self.changed.wait(&mut state),
            }
        }
        None
    }

    fn load(&self, task: TaskId) -> Result<(), Error> {
        let Step::Load(load, partition) = &self.steps[task] else { unreachable!("devices load and write") };
        let value = guarded(|| load(*partition))?;
        let mut state = self.state.lock();
        if state.finish(task, value) {
            // What the caller wants itself is taken at the end, and must not keep others waiting.
            state.loaded += usize::from(!state.tree.is_goal(task));
            state.arrived(task);
        }
        self.changed.notify_all();
        Ok(())
    }

    fn write(&self, number: usize, task: TaskId, bytes: Value) -> Result<(), Error> {
        let logs = self.logs.as_ref().expect("there are writes");
        let bytes = bytes.downcast_ref::<Vec<u8>>().expect("what is stored was encoded");
        // The first devices of a plan are the disks with logs, in their order.
        let stored = guarded(|| logs.append(number, bytes))?;
        let mut state = self.state.lock();
        state.devices[number].writing = false;
        state.finish(task, Arc::new(stored) as Value);
        self.changed.notify_all();
        Ok(())
    }

    /// A computing thread.
    fn compute(&self) {
        while let Some((job, inputs)) = self.next_job() {
            let computed = match job {
                Job::Compute { task, .. } => self.compute_one(task, inputs),
                Job::Merge { task, last, .. } => self.merge(task, inputs, last),
            };
            if let Err(error) = computed {
                return self.close(Some(error));
            }
        }
    }

    fn next_job(&self) -> Option<(Job, Vec<Value>)> {
        let mut state = self.state.lock();
        while !state.closed {
            if let Some(job) = state.tree.next_job() {
                let inputs = match &job {
                    Job::Compute { input, .. } => vec![state.take(*input, &self.steps)],
                    Job::Merge { inputs, .. } => inputs.iter().map(|input| state.take(*input, &self.steps)).collect(),
                };
                self.changed.notify_all();
                return Some((job, inputs));
            }
            self.changed.wait(&mut state);
        }
        None
    }

    fn compute_one(&self, task: TaskId, mut inputs: Vec<Value>) -> Result<(), Error> {
        let input = inputs.pop().expect("a computing task has one input");
        match &self.steps[task] {
            Step::Map(compute, partition) => {
                let value = guarded(|| compute(*partition, input))?;
                self.state.lock().finish(task, value);
                self.changed.notify_all();
            }
            Step::Store => self.route(task, input),
            Step::Load(..) | Step::Merge(..) => unreachable!("the tree says that it computes"),
        }
        Ok(())
    }

    /// Gives a write to the disk with the shortest queue.
    fn route(&self, task: TaskId, bytes: Value) {
        let logs = self.logs.as_ref().expect("there are writes");
        let disks = logs.names().len();
        let mut state = self.state.lock();
        while !state.closed {
            let number = shortest_queue(&state.devices[..disks]);
            let device = &mut state.devices[number];
            if device.queued_writes() < MAX_QUEUED_WRITES {
                device.writes.push_back((task, bytes));
                logs.queued(number, device.queued_writes());
                self.changed.notify_all();
                return;
            }
            self.changed.wait(&mut state);
        }
    }

    fn merge(&self, task: TaskId, inputs: Vec<Value>, last: bool) -> Result<(), Error> {
        let Step::Merge(merge, partition) = &self.steps[task] else { unreachable!("the tree says that it merges") };
        let before = self.state.lock().merged.remove(&task);
        let after = guarded(|| {
            let mut merged = before.unwrap_or_else(|| merge.begin());
            inputs.into_iter().for_each(|input| merge.merge(&mut merged, *partition, input));
            Ok(if last { Err(merge.finish(merged)) } else { Ok(merged) })
        })?;
        let mut state: MutexGuard<'_, State> = self.state.lock();
        match after {
            Ok(merged) => {
                state.merged.insert(task, merged);
                state.tree.done(task);
            }
            Err(value) => {
                state.finish(task, value);
            }
        }
        self.changed.notify_all();
        Ok(())
    }
}

impl State {
    /// A task has its result. False if it was dropped meanwhile.
    fn finish(&mut self, task: TaskId, value: Value) -> bool {
        let done = self.tree.done(task);
        if done {
            let uses = self.tree.uses(task);
            self.results.insert(task, (value, uses));
        }
        done
    }

    /// A result for one of those that need it; the last one gets it alone.
    fn take(&mut self, task: TaskId, steps: &[Step]) -> Value {
        let (_, uses) = self.results.get_mut(&task).expect("a result is there until all have taken it");
        *uses -= 1;
        if *uses > 0 {
            return self.results[&task].0.clone();
        }
        if matches!(steps[task], Step::Load(..)) && !self.tree.is_goal(task) {
            self.loaded -= 1;
        }
        self.results.remove(&task).expect("asked above").0
    }

    /// A load has arrived; drops the stragglers once its selection is complete.
    fn arrived(&mut self, task: TaskId) {
        let Some((selection, stratum)) = self.selection_of.get(&task) else { return };
        for load in self.selections[*selection].arrived(*stratum).into_iter().flatten() {
            self.tree.dropped(load);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(writes: usize, writing: bool) -> Device {
        let write = |task| (task, Arc::new(()) as Value);
        Device { writes: (0..writes).map(write).collect(), writing, loads: VecDeque::from([7, 8]) }
    }

    #[test]
    fn writes_go_before_loads_and_loads_wait_for_room() {
        let mut device = device(2, false);
        assert!(matches!(device.next(true), Some(DeviceWork::Write(0, _))));
        assert!(matches!(device.next(true), Some(DeviceWork::Write(1, _))));
        assert!(device.next(false).is_none());
        assert!(matches!(device.next(true), Some(DeviceWork::Load(7))));
    }

    #[test]
    fn a_write_goes_to_the_shortest_queue_and_one_under_way_counts() {
        assert_eq!(shortest_queue(&[device(1, true), device(1, false), device(0, true), device(2, true)]), 1);
        assert_eq!(shortest_queue(&[device(0, true), device(0, false)]), 1);
    }
}
