//! A device's manager thread: takes jobs from the common queue, keeps a few of them running, each on a stream of
//! its own, and retires the device when it fails.

use super::central::{Central, Next};
use super::flight::{Flight, Input, Refusal};
use super::job::{JobError, JobOutput, Ticket};
use super::{Backend, Fault, Options, Pool, Stream};
use crate::panics::contain;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shortest and longest pause between two looks at running jobs. A megabyte takes a GPU some 20 µs each way.
const PAUSES: [Duration; 2] = [Duration::from_micros(4), Duration::from_micros(64)];
/// How long an idle manager sleeps unless it is woken.
const IDLE: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct Manager {
    pub index: usize,
    pub backend: Arc<dyn Backend>,
    pub central: Arc<Central>,
    pub pool: Pool,
    pub options: Options,
}

/// Pauses that grow while nothing ends, so that short jobs are noticed at once and long ones cost little.
struct Pauses(Duration);

impl Pauses {
    fn new() -> Pauses {
        Pauses(PAUSES[0])
    }

    fn pause(&mut self) {
        std::thread::sleep(self.0);
        self.0 = (2 * self.0).min(PAUSES[1]);
    }
}

/// Lets this thread's pauses be as short as asked for: by default Linux makes each 50 µs longer.
fn sleep_precisely() {
    #[cfg(target_os = "linux")]
    // If it is refused, jobs end a little later.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

struct Slot {
    stream: Box<dyn Stream>,
    running: Option<Running>,
}

struct Running {
    ticket: Ticket,
    flight: Flight,
    since: Instant,
}

impl Manager {
    /// The thread's main function.
    pub fn run(self) {
        sleep_precisely();
        let open = |_| Ok(Slot { stream: self.backend.stream()?, running: None });
        let opened = contain(|| (0..self.options.slots.max(1)).map(open).collect::<Result<Vec<Slot>, Fault>>());
        let mut slots = match opened.unwrap_or_else(|_| Err(self.fault("open its streams", "panicked"))) {
            Ok(slots) => slots,
            Err(fault) => return self.central.retire(self.index, fault),
        };
        let served = contain(|| self.serve(&mut slots));
        if let Err(fault) = served.unwrap_or_else(|_| Err(self.fault("manage its jobs", "panicked; this is a bug"))) {
            self.retire(slots, fault);
        }
    }

    fn fault(&self, what: &str, why: &str) -> Fault {
        Fault::Failed { device: self.backend.name().into(), what: what.into(), why: why.into() }
    }

    /// Runs jobs until it is stopped or the device fails.
    fn serve(&self, slots: &mut [Slot]) -> Result<(), Fault> {
        let mut pauses = Pauses::new();
        loop {
            if !self.central.is_alive(self.index) {
                // Another thread found wrong bytes, so the jobs that run now are not trusted either.
                return Err(self.fault("go on", "it was retired"));
            }
            let busy = slots.iter().any(|s| s.running.is_some());
            if let Some(free) = slots.iter().position(|s| s.running.is_none()) {
                match self.central.next_for_device(self.index, if busy { Duration::ZERO } else { IDLE }) {
                    Next::Job(ticket, input) => {
                        self.begin(slots, free, ticket, input)?;
                        pauses = Pauses::new();
                        continue; // Fill the other slots before looking at what runs.
                    }
                    Next::Stop if !busy => return Ok(()),
                    Next::Stop | Next::Nothing => {}
                }
            }
            let mut ended = false;
            for slot in slots.iter_mut() {
                ended |= self.look_at(slot)?;
            }
            if ended {
                pauses = Pauses::new();
            } else if busy {
                pauses.pause();
            }
        }
    }

    fn begin(&self, slots: &mut [Slot], free: usize, ticket: Ticket, input: Input) -> Result<(), Fault> {
        let others = slots.iter().any(|s| s.running.is_some());
        let stream = slots[free].stream.as_mut();
        let operation = ticket.operation.as_ref();
        let started = contain(|| Flight::start(stream, &self.pool, operation, input));
        let Ok(started) = started else {
            let primitive = operation.primitive();
            self.end(ticket, Err(JobError::Panicked { primitive }));
            return Ok(());
        };
        match started {
            Ok(flight) => slots[free].running = Some(Running { ticket, flight, since: Instant::now() }),
            Err((Refusal::Host(no_memory), _)) => self.end(ticket, Err(no_memory.into())),
            Err((Refusal::Fault(Fault::NoMemory { device, bytes }), input)) => {
                // Idle streams free the memory they keep; running streams free theirs when they finish.
                let idle = slots.iter_mut().filter(|s| s.running.is_none());
                if contain(|| idle.for_each(|s| s.stream.release())).is_err() {
                    return Err(self.fall_back(ticket, input, self.fault("free its memory", "panicked")));
                }
                if others {
                    self.central.put_back(ticket, input);
                    self.wait_for_memory(slots)?;
                } else if matches!(input, Input::Device { .. }) {
                    self.end(ticket, Err(JobError::NoDeviceMemory { device, bytes }));
                } else {
                    self.central.hand_to_cpu(ticket, input);
                }
            }
            Err((Refusal::Fault(fault), input)) => return Err(self.fall_back(ticket, input, fault)),
        }
        Ok(())
    }

    /// The device failed before it had the job: the CPU gets it.
    fn fall_back(&self, ticket: Ticket, input: Input, fault: Fault) -> Fault {
        // First, so that a caller who sees that the CPU did the job also sees why.
        self.central.retire(self.index, fault.clone());
        self.central.hand_to_cpu(ticket, input);
        fault
    }

    fn end(&self, ticket: Ticket, result: Result<JobOutput, JobError>) {
        self.central.finish(ticket, result, Some(self.index));
    }

    /// Waits until one running job is done, and frees the memory it used.
    fn wait_for_memory(&self, slots: &mut [Slot]) -> Result<(), Fault> {
        let mut pauses = Pauses::new();
        loop {
            for slot in slots.iter_mut() {
                if self.look_at(slot)? {
                    slot.stream.release();
                    return Ok(());
                }
            }
            pauses.pause();
        }
    }

    /// Ends the slot's job if it is done, and returns whether it was.
    fn look_at(&self, slot: &mut Slot) -> Result<bool, Fault> {
        let Some(running) = &slot.running else { return Ok(false) };
        if !slot.stream.is_done()? {
            let waited = running.since.elapsed();
            if waited > self.options.stuck_after {
                let (device, waited_ms) = (self.backend.name().into(), waited.as_millis() as u64);
                return Err(Fault::Stuck { device, waited_ms });
            }
            return Ok(false);
        }
        // While the slot has the job: if this panics, the CPU gets it.
        if !self.options.keep_device_memory {
            slot.stream.release();
        }
        let Some(Running { ticket, mut flight, .. }) = slot.running.take() else { return Ok(false) };
        let finish = || ticket.operation.finish(&mut flight.output);
        if !contain(finish).unwrap_or(false) {
            if matches!(flight.input, Input::Device { .. }) {
                let (primitive, device) = (ticket.operation.primitive(), self.backend.name().into());
                self.end(ticket, Err(JobError::Cramped { primitive, device }));
            } else {
                self.central.hand_to_cpu(ticket, flight.input);
            }
            return Ok(true);
        }
        let input = match flight.input {
            Input::Host(buffer) => Some(buffer),
            Input::Device { .. } => None,
        };
        let done = JobOutput { input, output: flight.output, device: self.backend.name().into() };
        self.end(ticket, Ok(done));
        Ok(true)
    }

    /// The device failed: its jobs go to the CPU. Its streams are never touched again, because closing a stuck one
    /// would block for ever.
    fn retire(&self, slots: Vec<Slot>, fault: Fault) {
        self.central.retire(self.index, fault);
        for slot in slots {
            if let Some(Running { ticket, flight, .. }) = slot.running {
                self.central.hand_to_cpu(ticket, flight.abandon());
            }
            std::mem::forget(slot.stream);
        }
    }
}
