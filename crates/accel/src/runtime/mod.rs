//! The task runtime: callers queue jobs with their buffers; the jobs run on any free device; callers wait for them.
//!
//! After CrystalGPU (Gharaibeh, Al-Kiswany, Gopalakrishnan, Ripeanu, "A GPU accelerated storage system", HPDC 2010,
//! §3.2.3): idle buffers in a [`pool`](Pool), one queue of outstanding jobs that all devices drain, and one manager
//! thread per device. The manager keeps several jobs running, so that the transfers of one overlap the kernels of
//! another.
//!
//! - A device that fails, hangs or gives wrong bytes is retired. The CPU does its jobs, and those that wait for it,
//!   from the same input, with equal bytes (P10).
//! - Jobs that wait or run hold at most [`Options::bound_bytes`]. [`Runtime::submit`] waits for room, so a slow device
//!   slows its submitters instead of filling memory.
//! - [`Target::Auto`] goes where a [`Calibration`] predicts the earliest end, and [`Runtime::explain`] says why.
//!
//! It never does I/O and knows no files or nodes. Start at [`Runtime`]; inside, read `job`, `central`, `flight`,
//! `manager`.

mod backend;
mod calibrate;
mod calibration_file;
mod central;
mod flight;
mod job;
mod manager;
mod operation;
pub mod operations;
mod pool;
mod resident;
mod routing;
mod workers;

#[cfg(test)]
mod tests;

pub use backend::{Backend, Fault, Stream};
pub use calibrate::{add_sample, fill_sample, samples};
pub use calibration_file::{CalibrationSource, calibration_file};
pub use central::{DeviceState, Queues};
pub use job::{Job, JobError, JobOutput, Target};
pub use operation::{Addresses, Operation, Packed, Sizes, padded};
pub use pool::{Buffer, HostMemory, NoMemory, Pageable, Pool, PoolUse};
pub use resident::Resident;
pub use routing::{CPU, Calibration, CalibrationError, Cost, Decision, Why};

use crate::device::Work;
use crate::isa::Isa;
use central::Central;
use flight::Input;
use job::Ticket;
use manager::Manager;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How a runtime works.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes of inputs and outputs that waiting and running jobs may hold together.
    pub bound_bytes: usize,
    /// Bytes of unused buffers that are kept for reuse.
    pub keep_bytes: usize,
    /// Jobs that run at once on one device; with 1 nothing overlaps.
    pub slots: usize,
    /// Whether a device's memory is kept between jobs.
    pub keep_device_memory: bool,
    /// CPU threads.
    pub cpu_threads: usize,
    /// A job that takes longer than this retires its device.
    pub stuck_after: Duration,
    /// The CPU's instruction set.
    pub isa: Isa,
    /// Where buffers come from; pinned memory for CUDA.
    pub memory: Arc<dyn HostMemory>,
    /// What [`Runtime::calibrate`] measures: a job of each primitive on about the given number of bytes. Crates that
    /// add operations add their samples.
    pub samples: fn(usize) -> Vec<Arc<dyn Operation>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            bound_bytes: 512 << 20,
            keep_bytes: 512 << 20,
            slots: 3,
            keep_device_memory: true,
            cpu_threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            stuck_after: Duration::from_secs(30),
            isa: Isa::best(),
            memory: Arc::new(Pageable),
            samples,
        }
    }
}

/// Why a job was refused.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The input is not as long as the operation says.
    #[error("{primitive}: the input has {got} bytes, the operation needs {expected}; pack it by the operation")]
    InputLength {
        /// Primitive.
        primitive: &'static str,
        /// Bytes needed.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// There is no such device.
    #[error("device {index} asked for, there are {count}; `tessera accel list` names them")]
    NoSuchDevice {
        /// Index asked for.
        index: usize,
        /// Number of devices.
        count: usize,
    },
    /// Data on the device begins at an address that kernels cannot read from.
    #[error(
        "{primitive}: the input begins at {address:#x} on the device, kernels read from multiples of 16; copy it to one"
    )]
    Misaligned {
        /// Primitive.
        primitive: &'static str,
        /// Address given.
        address: u64,
    },
    /// Data on a device of another runtime, or on a device that no longer exists.
    #[error("the data lies on a device of another runtime; put it on one of this one's")]
    Elsewhere,
}

/// The system started no thread at all for the CPU's jobs, so they would wait for ever.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no thread can be started for the accelerator's jobs: {why}; raise the limit on threads or on memory")]
pub struct NoThread {
    /// The system's error message.
    pub why: String,
}

/// Devices, the CPU's threads, and the queues between them. Dropping it ends queued jobs and waits for running ones.
#[derive(Debug)]
pub struct Runtime {
    central: Arc<Central>,
    pool: Pool,
    calibration: Mutex<Calibration>,
    backends: Vec<Arc<dyn Backend>>,
    options: Options,
    threads: Vec<JoinHandle<()>>,
}

impl Runtime {
    /// Makes a runtime over these devices (possibly none). Devices open on their own threads; one that cannot is
    /// retired. If the system starts fewer CPU threads than requested, the runtime uses those.
    ///
    /// # Errors
    /// [`NoThread`] if the system starts no CPU thread.
    pub fn new(backends: Vec<Arc<dyn Backend>>, options: Options) -> Result<Runtime, NoThread> {
        let devices = backends.iter().map(|b| describe(b.as_ref())).collect();
        let central = Arc::new(Central::new(devices, options.bound_bytes));
        let pool = Pool::new(options.memory.clone(), options.keep_bytes);
        let mut runtime =
            Runtime { central, pool, calibration: Mutex::default(), backends, options, threads: Vec::new() };
        runtime.start_managers();
        runtime.start_workers()?;
        Ok(runtime)
    }

    fn start_managers(&mut self) {
        for (index, backend) in self.backends.iter().enumerate() {
            let (central, pool, options) = (self.central.clone(), self.pool.clone(), self.options.clone());
            let manager = Manager { index, backend: backend.clone(), central, pool, options };
            let spawned = std::thread::Builder::new().name(format!("accel {}", backend.name())).spawn(|| manager.run());
            match spawned {
                Ok(thread) => self.threads.push(thread),
                Err(error) => {
                    let (device, what) = (backend.name().into(), "start its manager thread".into());
                    self.central.retire(index, Fault::Failed { device, what, why: error.to_string() });
                }
            }
        }
    }

    fn start_workers(&mut self) -> Result<(), NoThread> {
        let name: Arc<str> = format!("{CPU} ({})", self.options.isa.name()).into();
        let started = workers::start(self.options.cpu_threads, |number| {
            let (central, pool, name, isa) = (self.central.clone(), self.pool.clone(), name.clone(), self.options.isa);
            let thread = std::thread::Builder::new().name(format!("accel cpu {number}"));
            thread.spawn(move || workers::run(&central, &pool, isa, &name))
        })?;
        self.threads.extend(started);
        Ok(())
    }

    /// Returns a buffer of `len` bytes of arbitrary content for a job's input.
    ///
    /// # Errors
    /// [`NoMemory`] if there is no memory for it.
    pub fn buffer(&self, len: usize) -> Result<Buffer, NoMemory> {
        self.pool.take(len)
    }

    /// Queues a job. Waits while the queues hold [`Options::bound_bytes`].
    ///
    /// # Errors
    /// The input has the wrong length, or the device does not exist.
    pub fn submit(&self, operation: Arc<dyn Operation>, input: Buffer, target: Target) -> Result<Job, SubmitError> {
        self.queue(operation, Input::Host(input), target)
    }

    /// Queues a job whose input already lies in the memory of device `index`. The input is read in place and never
    /// freed. With `stream` (the device library's handle) the job begins after the work queued there. The CPU cannot
    /// take such a job over: a device that is lost or has too little memory ends it with [`JobError::Lost`],
    /// [`JobError::NoDeviceMemory`] or [`JobError::Cramped`].
    ///
    /// # Errors
    /// [`SubmitError::Misaligned`] unless `address` is a multiple of 16; [`SubmitError::NoSuchDevice`].
    ///
    /// # Safety
    /// The device can read [`Operation::input_bytes`] bytes from `address` on, rounded up to a multiple of 16. They are
    /// neither changed nor freed until the job has ended. `stream` is a live stream.
    #[allow(unsafe_code)]
    pub unsafe fn submit_in_place(
        &self,
        operation: Arc<dyn Operation>,
        index: usize,
        address: u64,
        stream: Option<u64>,
    ) -> Result<Job, SubmitError> {
        self.queue(operation, Input::Device { address, stream }, Target::Device(index))
    }

    fn queue(&self, operation: Arc<dyn Operation>, input: Input, mut target: Target) -> Result<Job, SubmitError> {
        let (primitive, expected) = (operation.primitive(), operation.input_bytes());
        match &input {
            Input::Host(buffer) if buffer.len() != expected => {
                return Err(SubmitError::InputLength { primitive, expected, got: buffer.len() });
            }
            Input::Device { address, .. } if !address.is_multiple_of(16) => {
                return Err(SubmitError::Misaligned { primitive, address: *address });
            }
            _ => {}
        }
        match target {
            Target::Device(index) if index >= self.backends.len() => {
                return Err(SubmitError::NoSuchDevice { index, count: self.backends.len() });
            }
            Target::Auto => {
                let on_device = !self.backends.is_empty() && self.explain(primitive, expected).on_device;
                target = if on_device { Target::AnyDevice } else { Target::Cpu };
            }
            _ => {}
        }
        let (ticket, job) = Ticket::new(operation, &input, target);
        self.central.submit(ticket, input);
        Ok(job)
    }

    /// Where a job would go now, and why.
    pub fn explain(&self, primitive: &str, bytes: usize) -> Decision {
        let devices = self.central.devices();
        let in_use: Vec<&str> =
            devices.iter().filter(|d| d.retired.is_none() && !d.is_for_tests).map(|d| &*d.name).collect();
        self.calibration.lock().choose(primitive, bytes, &in_use)
    }

    /// The costs that were measured ([`Runtime::calibrate`]) or set.
    pub fn calibration(&self) -> Calibration {
        self.calibration.lock().clone()
    }

    /// Sets costs that were measured earlier on this machine.
    pub fn set_calibration(&self, calibration: Calibration) {
        *self.calibration.lock() = calibration;
    }

    /// The devices, the work they did, and why some were retired.
    pub fn devices(&self) -> Vec<DeviceState> {
        self.central.devices()
    }

    /// Jobs that the CPU did for this runtime, and their input bytes, by primitive.
    pub fn done_on_cpu(&self) -> BTreeMap<&'static str, Work> {
        self.central.done_on_cpu()
    }

    /// How full the queues are.
    pub fn queues(&self) -> Queues {
        self.central.queues()
    }

    /// How the buffers are used.
    pub fn buffers(&self) -> PoolUse {
        self.pool.usage()
    }
}

fn describe(backend: &dyn Backend) -> DeviceState {
    DeviceState {
        name: backend.name().into(),
        description: backend.description(),
        memory_bytes: backend.memory_bytes(),
        is_for_tests: backend.is_for_tests(),
        retired: None,
        done: BTreeMap::new(),
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.central.stop();
        for thread in self.threads.drain(..) {
            // The thread's panic was already reported.
            let _ = thread.join();
        }
    }
}
