//! A job from submission to result: where it may run ([`Target`]), how a caller waits for it ([`Job`]), and how it ends.

use super::flight::Input;
use super::{Buffer, Operation};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

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

/// A job in a queue or on a device. Dropping it ends the job with [`JobError::Stopped`].
#[derive(Debug)]
pub(crate) struct Ticket {
    pub operation: Arc<dyn Operation>,
    pub target: Target,
    /// Bytes that it counts against the bound on outstanding bytes.
    pub bytes: usize,
    end: Sender<Result<JobOutput, JobError>>,
}

impl Ticket {
    pub fn new(operation: Arc<dyn Operation>, input: &Input, target: Target) -> (Ticket, Job) {
        assert!(target != Target::Auto, "jobs are routed before they are queued");
        let held = match input {
            Input::Host(buffer) => buffer.len(),
            Input::Device { .. } => 0,
        };
        let bytes = held + operation.output_bytes();
        let (end, job) = channel();
        (Ticket { operation, target, bytes, end }, Job(job))
    }

    /// Ends the job.
    pub fn finish(self, result: Result<JobOutput, JobError>) {
        let _ = self.end.send(result); // If nobody waits for it, the result is thrown away.
    }
}

/// A submitted job. Dropping it does not cancel the job; the result is then thrown away.
#[derive(Debug)]
pub struct Job(Receiver<Result<JobOutput, JobError>>);

impl Job {
    /// Waits for the end.
    ///
    /// # Errors
    /// Why the job ended without a result.
    pub fn wait(self) -> Result<JobOutput, JobError> {
        self.0.recv().unwrap_or(Err(JobError::Stopped))
    }
}
