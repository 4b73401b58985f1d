//! A job from submission to result: how a caller asks for it ([`Request`]) and waits for it ([`Job`]), and how it ends.

use super::flight::Input;
use super::{Buffer, Operation};
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Where a job may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Target {
    /// Where calibration predicts the earliest end.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The first free device.
    AnyDevice,
    /// The device of this index in [`super::Runtime::devices`].
    Device(usize),
}

/// Where a job may run, and its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Request {
    /// Where.
    pub target: Target,
    /// The job does not begin after this instant, and callers wait no longer than until then.
    pub deadline: Option<Instant>,
}

/// The result of a job. The buffers return to their pool when dropped.
#[derive(Debug)]
pub struct JobOutput {
    /// The input; `None` if it lay on the device.
    pub input: Option<Buffer>,
    /// The output.
    pub output: Buffer,
    /// Name of the device that computed it, or of the CPU.
    pub device: Arc<str>,
}

/// Why a job ended without a result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// The caller cancelled it.
    #[error("the job was cancelled")]
    Cancelled,
    /// Its deadline passed.
    #[error("the job's deadline passed before it was done; devices may be busy, see `tessera accel list`")]
    Deadline,
    /// The runtime is shutting down.
    #[error("the runtime stopped before the job began")]
    Stopped,
    /// Its input lies on a device that failed, so the CPU cannot do the job.
    #[error("{device} was lost with the job's input on it; submit the job again from host memory")]
    Lost {
        /// Device.
        device: String,
    },
    /// Its input lies on a device without memory for the rest of the job, and it can run nowhere else.
    #[error(
        "{device}: no room for {bytes} bytes beside the job's input, which lies there; free some, or submit less at once"
    )]
    NoDeviceMemory {
        /// Device.
        device: String,
        /// Bytes asked for.
        bytes: usize,
    },
    /// Its input lies on a device, and its result does not fit the device's output format; only the CPU could do it.
    #[error("{primitive}: the result has no room on {device}; submit the job again from host memory")]
    Cramped {
        /// Primitive.
        primitive: &'static str,
        /// Device.
        device: String,
    },
    /// There was no memory for its buffers.
    #[error(transparent)]
    NoMemory(#[from] super::NoMemory),
    /// The operation panicked, which is a bug in it; other jobs are unaffected.
    #[error("{primitive} panicked on the CPU; this is a bug, please report it with the job's sizes")]
    Panicked {
        /// Primitive.
        primitive: &'static str,
    },
}

/// Called once when a job ends, on a thread of the runtime. It must not wait for other jobs.
pub type Callback = Box<dyn FnOnce(Result<JobOutput, JobError>) + Send>;

enum Stage {
    /// In a queue, with its input.
    Waiting(Input),
    Running,
    Finished(Box<Result<JobOutput, JobError>>),
    /// The result was taken, or no caller waits for it.
    Over,
}

struct Cell {
    stage: Stage,
    callback: Option<Callback>,
    cancelled: Option<JobError>,
}

/// A job as the runtime's threads see it.
pub(crate) struct Ticket {
    pub operation: Arc<dyn Operation>,
    pub target: Target,
    pub deadline: Option<Instant>,
    /// Bytes that it counts against the bound on outstanding bytes.
    pub bytes: usize,
    cell: Mutex<Cell>,
    ended: Condvar,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({:?}, {:?})", self.operation, self.target)
    }
}

impl Ticket {
    pub fn new(operation: Arc<dyn Operation>, input: Input, request: Request, callback: Option<Callback>) -> Ticket {
        let held = match &input {
            Input::Host(buffer) => buffer.len(),
            Input::Device { .. } => 0,
        };
        let bytes = held + operation.output_bytes();
        let cell = Cell { stage: Stage::Waiting(input), callback, cancelled: None };
        let Request { target, deadline } = request;
        assert!(target != Target::Auto, "jobs are routed before they are queued");
        Ticket { operation, target, deadline, bytes, cell: Mutex::new(cell), ended: Condvar::new() }
    }

    /// Takes the input to run the job; `None` if the job has ended. An error says how it must end instead.
    pub fn begin(&self) -> Option<Result<Input, JobError>> {
        let mut cell = self.cell.lock();
        if !matches!(cell.stage, Stage::Waiting(_)) {
            return None;
        }
        if let Some(why) = cell.cancelled.clone() {
            return Some(Err(why));
        }
        if self.deadline.is_some_and(|d| Instant::now() >= d) {
            return Some(Err(JobError::Deadline));
        }
        match std::mem::replace(&mut cell.stage, Stage::Running) {
            Stage::Waiting(input) => Some(Ok(input)),
            _ => None,
        }
    }

    /// Puts the input back, so that the job waits again.
    pub fn put_back(&self, input: Input) {
        let mut cell = self.cell.lock();
        assert!(matches!(cell.stage, Stage::Running), "{self:?} is put back without running");
        cell.stage = Stage::Waiting(input);
    }

    /// Ends the job once; later calls do nothing. `before` runs first, so that its effect is visible to a waiting
    /// caller.
    pub fn finish(&self, result: Result<JobOutput, JobError>, before: impl FnOnce()) {
        let callback = {
            let mut cell = self.cell.lock();
            if matches!(cell.stage, Stage::Finished(_) | Stage::Over) {
                return;
            }
            before();
            let result = match cell.cancelled.take() {
                Some(why) => Err(why),
                None => result,
            };
            match cell.callback.take() {
                Some(callback) => {
                    cell.stage = Stage::Over;
                    Some((callback, result))
                }
                None => {
                    cell.stage = Stage::Finished(Box::new(result));
                    None
                }
            }
        };
        self.ended.notify_all();
        if let Some((callback, result)) = callback {
            // A callback that panics hurts its own job only.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || callback(result)));
        }
    }

    /// Asks the job to end with `why`; a running job ends at its next step. True if it had not begun and so can end
    /// now.
    pub fn cancel(&self, why: JobError) -> bool {
        let mut cell = self.cell.lock();
        match cell.stage {
            Stage::Waiting(_) => {
                cell.cancelled = Some(why);
                true
            }
            Stage::Running => {
                cell.cancelled = Some(why);
                false
            }
            Stage::Finished(_) | Stage::Over => false,
        }
    }

    /// Waits for the end, or for the deadline.
    fn wait(&self) -> Result<JobOutput, JobError> {
        let mut cell = self.cell.lock();
        loop {
            match std::mem::replace(&mut cell.stage, Stage::Over) {
                Stage::Finished(result) => return *result,
                Stage::Over => return Err(JobError::Cancelled),
                other => cell.stage = other,
            }
            match self.deadline {
                None => self.ended.wait(&mut cell),
                Some(deadline) => {
                    let late = self.ended.wait_until(&mut cell, deadline).timed_out();
                    if late && !matches!(cell.stage, Stage::Finished(_)) {
                        return Err(JobError::Deadline);
                    }
                }
            }
        }
    }
}

/// A submitted job. Dropping it does not cancel the job; the result is then thrown away.
#[derive(Debug)]
pub struct Job {
    pub(crate) ticket: Arc<Ticket>,
    pub(crate) central: Arc<super::central::Central>,
}

impl Job {
    /// Waits for the end, at most until the deadline.
    ///
    /// # Errors
    /// How the job ended, or [`JobError::Deadline`].
    pub fn wait(self) -> Result<JobOutput, JobError> {
        let result = self.ticket.wait();
        if result.as_ref().is_err_and(|e| *e == JobError::Deadline) {
            self.end(JobError::Deadline);
        }
        result
    }

    /// Ends the job with [`JobError::Cancelled`]: at once if it has not begun, else when the device is done with it.
    pub fn cancel(&self) {
        self.end(JobError::Cancelled);
    }

    fn end(&self, why: JobError) {
        if self.ticket.cancel(why.clone()) {
            self.central.finish(&self.ticket, Err(why));
        }
    }
}
