//! The shared queues: outstanding jobs for devices, jobs for the CPU, running jobs, and the bytes that all of them hold
//! (the bound that makes submitters wait).

use super::Fault;
use super::flight::Input;
use super::job::{JobError, JobOutput, Target, Ticket};
use crate::device::Work;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// A device as its users see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceState {
    /// Name.
    pub name: Arc<str>,
    /// The card's name or another description.
    pub description: String,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// Whether it is emulated and so gets only jobs that name it.
    pub is_for_tests: bool,
    /// Why it was retired; `None` while it is in use.
    pub retired: Option<Fault>,
    /// Finished jobs and their input bytes, by primitive.
    pub done: BTreeMap<&'static str, Work>,
}

/// How full the queues are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Queues {
    /// Jobs that wait for a device.
    pub outstanding: usize,
    /// Jobs that wait for the CPU.
    pub outstanding_cpu: usize,
    /// Jobs that run.
    pub running: usize,
    /// Bytes that waiting and running jobs hold.
    pub bytes: usize,
    /// Jobs that a device failed to do and the CPU did.
    pub fallen_back: u64,
}

#[derive(Debug, Default)]
struct State {
    outstanding: VecDeque<(Ticket, Input)>,
    cpu: VecDeque<(Ticket, Input)>,
    /// Without the lengths of the queues above.
    counts: Queues,
    devices: Vec<DeviceState>,
    done_on_cpu: BTreeMap<&'static str, Work>,
    stopping: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Central {
    state: Mutex<State>,
    bound_bytes: usize,
    device_work: Condvar,
    cpu_work: Condvar,
    room: Condvar,
}

/// What a device's manager gets when it asks for work.
pub(crate) enum Next {
    Job(Ticket, Input),
    Nothing,
    Stop,
}

impl Central {
    pub fn new(devices: Vec<DeviceState>, bound_bytes: usize) -> Central {
        let state = Mutex::new(State { devices, ..State::default() });
        let (device_work, cpu_work, room) = (Condvar::new(), Condvar::new(), Condvar::new());
        Central { state, bound_bytes, device_work, cpu_work, room }
    }

    /// Queues a job. If all jobs together would hold more than the bound, it waits for room. A job larger than the bound
    /// runs alone.
    pub fn submit(&self, ticket: Ticket, input: Input) {
        let mut state = self.state.lock();
        while state.counts.bytes > 0 && state.counts.bytes.saturating_add(ticket.bytes) > self.bound_bytes {
            self.room.wait(&mut state);
        }
        state.counts.bytes += ticket.bytes;
        self.enqueue(&mut state, ticket, input);
    }

    fn enqueue(&self, state: &mut State, ticket: Ticket, input: Input) {
        let alive = |index: usize| state.devices.get(index).is_some_and(|d| d.retired.is_none());
        let on_device = match ticket.target {
            Target::Auto | Target::Cpu => false,
            Target::AnyDevice => (0..state.devices.len()).any(alive),
            Target::Device(index) => alive(index),
        };
        if on_device {
            state.outstanding.push_back((ticket, input));
            self.device_work.notify_all();
        } else {
            state.cpu.push_back((ticket, input));
            self.cpu_work.notify_one();
        }
    }

    /// The next job for device `index`; waits for one, at most `patience`.
    pub fn next_for_device(&self, index: usize, patience: Duration) -> Next {
        let mut state = self.state.lock();
        let mut waited = false;
        loop {
            let first = state
                .outstanding
                .iter()
                .position(|(t, _)| [Target::AnyDevice, Target::Device(index)].contains(&t.target));
            if let Some((ticket, input)) = first.and_then(|at| state.outstanding.remove(at)) {
                state.counts.running += 1;
                return Next::Job(ticket, input);
            }
            if state.stopping {
                return Next::Stop;
            }
            if waited || patience.is_zero() {
                return Next::Nothing;
            }
            waited = self.device_work.wait_for(&mut state, patience).timed_out();
        }
    }

    /// The next job for a CPU thread; waits for one. `None` if the runtime has stopped.
    pub fn next_for_cpu(&self) -> Option<(Ticket, Input)> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.cpu.pop_front() {
                state.counts.running += 1;
                return Some(job);
            }
            // Devices may still hand jobs over while they stop.
            if state.stopping && state.outstanding.is_empty() && state.counts.running == 0 {
                return None;
            }
            self.cpu_work.wait(&mut state);
        }
    }

    /// Ends a job that device `by`, or the CPU, took from a queue.
    pub fn finish(&self, ticket: Ticket, result: Result<JobOutput, JobError>, by: Option<usize>) {
        {
            let mut state = self.state.lock();
            let state = &mut *state;
            assert!(state.counts.running > 0, "{ticket:?} ended without having been taken");
            assert!(
                state.counts.bytes >= ticket.bytes,
                "{} bytes given back, {} are counted",
                ticket.bytes,
                state.counts.bytes
            );
            state.counts.running -= 1;
            state.counts.bytes -= ticket.bytes;
            if result.is_ok() {
                let done = by.map_or(&mut state.done_on_cpu, |index| &mut state.devices[index].done);
                let work = done.entry(ticket.operation.primitive()).or_default();
                work.jobs += 1;
                work.bytes += ticket.operation.input_bytes() as u64;
            }
        }
        self.room.notify_all();
        ticket.finish(result);
        self.cpu_work.notify_all();
    }

    /// Queues for the CPU a job that a thread took.
    pub fn hand_to_cpu(&self, ticket: Ticket, input: Input) {
        let mut state = self.state.lock();
        assert!(state.counts.running > 0, "{ticket:?} handed over without having been taken");
        state.counts.running -= 1;
        state.counts.fallen_back += 1;
        state.cpu.push_back((ticket, input));
        self.cpu_work.notify_one();
    }

    /// Puts a job that a thread took back, first in line.
    pub fn put_back(&self, ticket: Ticket, input: Input) {
        let mut state = self.state.lock();
        assert!(state.counts.running > 0, "{ticket:?} put back without having been taken");
        state.counts.running -= 1;
        state.outstanding.push_front((ticket, input));
        self.device_work.notify_all();
    }

    /// Retires device `index`; jobs that no other device may do go to the CPU.
    pub fn retire(&self, index: usize, fault: Fault) {
        let mut state = self.state.lock();
        if let Some(device) = state.devices.get_mut(index) {
            device.retired.get_or_insert(fault);
        }
        for (ticket, input) in std::mem::take(&mut state.outstanding) {
            let waits_in_vain =
                ticket.target == Target::Device(index) || state.devices.iter().all(|d| d.retired.is_some());
            state.counts.fallen_back += u64::from(waits_in_vain);
            self.enqueue(&mut state, ticket, input);
        }
    }

    /// Whether device `index` is in use.
    pub fn is_alive(&self, index: usize) -> bool {
        self.state.lock().devices.get(index).is_some_and(|d| d.retired.is_none())
    }

    /// Name of the device that `target` names.
    pub fn name_of(&self, target: Target) -> String {
        let state = self.state.lock();
        let device = if let Target::Device(index) = target { state.devices.get(index) } else { None };
        device.map_or("a device".into(), |d| d.name.to_string())
    }

    pub fn devices(&self) -> Vec<DeviceState> {
        self.state.lock().devices.clone()
    }

    /// Jobs the CPU did for this runtime, and their input bytes, by primitive.
    pub fn done_on_cpu(&self) -> BTreeMap<&'static str, Work> {
        self.state.lock().done_on_cpu.clone()
    }

    pub fn queues(&self) -> Queues {
        let s = self.state.lock();
        Queues { outstanding: s.outstanding.len(), outstanding_cpu: s.cpu.len(), ..s.counts }
    }

    /// Stops the runtime: no job begins, queued jobs end with [`JobError::Stopped`], and threads stop once nothing
    /// runs.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        let queued = (std::mem::take(&mut state.outstanding), std::mem::take(&mut state.cpu));
        drop(state);
        drop(queued);
        self.device_work.notify_all();
        self.cpu_work.notify_all();
    }
}
