//! Shared by tests of this crate and of upper crates: reproducible bytes, and a device that fails as planned. Only with
//! the feature `testing`.
#![allow(unsafe_code)]

use crate::emulated::Emulated;
use crate::isa::Isa;
use crate::kernels::Launch;
use crate::runtime::{Addresses, Backend, Buffer, Fault, HostMemory, NoMemory, Operation, Pageable, Sizes, Stream};
use parking_lot::{Condvar, Mutex};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The fault, and the first job (from 0) that it affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// No fault.
    Healthy,
    /// Streams cannot be opened.
    NeverOpens,
    /// The kernel of this job is refused.
    LaunchFails(u64),
    /// The job's upload is refused, perhaps while another one is in flight.
    UploadFails(u64),
    /// The job is queued successfully and fails while it runs.
    DiesRunning(u64),
    /// The job never finishes.
    Hangs(u64),
    /// One bit of the result is wrong, for this job and all later ones.
    FlipsBits(u64),
    /// A kernel's thread panics the manager, which would be a bug of this crate.
    Panics(u64),
    /// Freeing the memory of this job panics the manager, which would be a bug of this crate.
    ReleasePanics(u64),
}

/// An emulated device with a plan. Jobs end only while its gate is open.
#[derive(Debug)]
pub struct Faulty {
    inner: Emulated,
    plan: Plan,
    jobs: AtomicU64,
    gate: AtomicBool,
}

impl Faulty {
    /// Emulated device `number`, with a plan.
    pub fn new(number: usize, plan: Plan) -> Arc<Faulty> {
        Faulty::on(Emulated::new(number), plan)
    }

    /// A device with a plan.
    pub fn on(inner: Emulated, plan: Plan) -> Arc<Faulty> {
        Arc::new(Faulty { inner, plan, jobs: AtomicU64::new(0), gate: AtomicBool::new(true) })
    }

    /// Keeps running jobs from ending until [`Faulty::open`].
    pub fn shut(&self) {
        self.gate.store(false, Ordering::SeqCst);
    }

    /// Lets jobs end again.
    pub fn open(&self) {
        self.gate.store(true, Ordering::SeqCst);
    }
}

/// The same device as a backend of a runtime.
#[derive(Debug)]
pub struct Handle(pub Arc<Faulty>);

impl Backend for Handle {
    fn name(&self) -> &str {
        self.0.inner.name()
    }

    fn description(&self) -> String {
        format!("{:?}", self.0.plan)
    }

    fn is_for_tests(&self) -> bool {
        true
    }

    fn memory_bytes(&self) -> u64 {
        self.0.inner.memory_bytes()
    }

    fn calibration_bytes(&self) -> usize {
        self.0.inner.calibration_bytes()
    }

    fn stream(&self) -> Result<Box<dyn Stream>, Fault> {
        if self.0.plan == Plan::NeverOpens {
            return Err(failed(self, "open"));
        }
        Ok(Box::new(FaultyStream { inner: self.0.inner.stream()?, device: self.0.clone(), job: 0 }))
    }
}

fn failed(device: &Handle, what: &str) -> Fault {
    Fault::Failed { device: device.name().into(), what: what.into(), why: "as planned".into() }
}

struct FaultyStream {
    inner: Box<dyn Stream>,
    device: Arc<Faulty>,
    job: u64,
}

impl FaultyStream {
    fn fail_if(&self, due: bool, what: &str) -> Result<(), Fault> {
        if due { Err(failed(&Handle(self.device.clone()), what)) } else { Ok(()) }
    }

    fn due(&self, plan: impl Fn(u64) -> Plan) -> bool {
        (0..=self.job).any(|job| self.device.plan == plan(job))
    }
}

impl Stream for FaultyStream {
    fn reserve(&mut self, bytes: usize) -> Result<u64, Fault> {
        let given = self.inner.reserve(bytes)?;
        self.job = self.device.jobs.fetch_add(1, Ordering::SeqCst);
        Ok(given)
    }

    fn release(&mut self) {
        assert!(!self.due(Plan::ReleasePanics), "as planned");
        self.inner.release();
    }

    unsafe fn wait_for(&mut self, stream: u64) -> Result<(), Fault> {
        // SAFETY: the caller's contract is the inner stream's.
        unsafe { self.inner.wait_for(stream) }
    }

    unsafe fn upload(&mut self, to: u64, from: &[u8]) -> Result<(), Fault> {
        self.fail_if(self.due(Plan::UploadFails), "upload")?;
        // SAFETY: the caller's contract is the inner stream's.
        unsafe { self.inner.upload(to, from) }
    }

    unsafe fn clear(&mut self, at: u64, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's contract is the inner stream's.
        unsafe { self.inner.clear(at, bytes) }
    }

    unsafe fn launch(&mut self, launch: &Launch) -> Result<(), Fault> {
        self.fail_if(self.due(Plan::LaunchFails), "launch")?;
        assert!(!self.due(Plan::Panics), "as planned");
        // SAFETY: the caller's contract is the inner stream's.
        unsafe { self.inner.launch(launch) }
    }

    unsafe fn download(&mut self, to: *mut u8, from: u64, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's contract is the inner stream's.
        unsafe { self.inner.download(to, from, bytes)? };
        if self.due(Plan::FlipsBits) {
            assert!(self.inner.is_done()?);
            // SAFETY: there is room for `bytes`, and the download is done.
            unsafe { *to.add(bytes / 2) ^= 4 };
        }
        Ok(())
    }

    fn is_done(&mut self) -> Result<bool, Fault> {
        if !self.device.gate.load(Ordering::SeqCst) || self.due(Plan::Hangs) {
            return Ok(false);
        }
        self.fail_if(self.due(Plan::DiesRunning), "run")?;
        self.inner.is_done()
    }
}

/// A job for the CPU that ends when two run at once, or reports that they did not: its output is then 0, not 1.
#[derive(Debug, Clone, Default)]
pub struct Meeting(Arc<(Mutex<usize>, Condvar)>);

// SAFETY: it launches nothing.
unsafe impl Operation for Meeting {
    fn primitive(&self) -> &'static str {
        "meeting"
    }

    fn sizes(&self) -> Sizes {
        Sizes { input: 1, output: 1, ..Sizes::default() }
    }

    fn on_cpu(&self, _: Isa, _: &[u8], output: &mut Buffer) -> Result<(), NoMemory> {
        let (here, came) = &*self.0;
        let mut count = here.lock();
        *count += 1;
        came.notify_all();
        came.wait_while_for(&mut count, |n| *n < 2, Duration::from_secs(20));
        output[0] = u8::from(*count >= 2);
        Ok(())
    }

    fn launches(&self, _: &Addresses) -> Vec<Launch> {
        Vec::new()
    }
}

/// Memory with a limited number of blocks.
#[derive(Debug)]
pub struct Blocks(pub AtomicUsize);

// SAFETY: all memory comes from Pageable.
unsafe impl HostMemory for Blocks {
    fn take(&self, bytes: usize) -> Option<NonNull<u8>> {
        let left = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        left.ok().and_then(|_| Pageable.take(bytes))
    }

    unsafe fn give(&self, memory: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's contract is Pageable's.
        unsafe { Pageable.give(memory, bytes) }
    }
}

/// Deterministic bytes.
pub fn test_bytes(seed: u64, len: usize) -> Vec<u8> {
    use rand::{Rng, SeedableRng};
    let mut bytes = vec![0; len];
    rand::rngs::StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}
