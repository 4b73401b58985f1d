//! What the runtime needs of a device with kernels: [`Backend`] and [`Stream`]. CUDA and the emulated device implement
//! them; tests implement faulty ones.

#![allow(unsafe_code)]

use crate::kernels::Launch;
use std::fmt;

/// Why a device could not do a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The device has too little free memory. It stays in use; the job goes to the CPU.
    #[error("{device}: no room for {bytes} bytes in the device's memory; use smaller batches or fewer slots")]
    NoMemory {
        /// Device.
        device: String,
        /// Bytes asked for.
        bytes: usize,
    },
    /// A call failed. The device is retired.
    #[error("{device}: {what}: {why}; the device is not used again, restart to try it anew")]
    Failed {
        /// Device.
        device: String,
        /// The call that failed.
        what: String,
        /// The device's error message.
        why: String,
    },
    /// A job did not finish in time. The device is retired.
    #[error("{device}: a job has not come back after {waited_ms} ms; the device is not used again")]
    Stuck {
        /// Device.
        device: String,
        /// The time limit in milliseconds.
        waited_ms: u64,
    },
    /// The device's result differs from the CPU's (P10). The device is retired.
    #[error("{device}: {primitive} gives other bytes than the CPU; the device is not used again, have it checked")]
    WrongBytes {
        /// Device.
        device: String,
        /// Primitive.
        primitive: &'static str,
    },
}

/// A device that runs the kernels.
pub trait Backend: Send + Sync + fmt::Debug {
    /// Name: `cuda:0`, `emulated:1`.
    fn name(&self) -> &str;

    /// A description for people: the card's name.
    fn description(&self) -> String;

    /// Whether it exists for tests: then it gets only jobs that name it.
    fn is_for_tests(&self) -> bool {
        false
    }

    /// Its memory in bytes.
    fn memory_bytes(&self) -> u64;

    /// Bytes of input for a calibration job: about a millisecond's work.
    fn calibration_bytes(&self) -> usize;

    /// Opens a queue of its own. Only the device's manager thread calls this and uses the stream.
    ///
    /// # Errors
    /// The device could not be opened.
    fn stream(&self) -> Result<Box<dyn Stream>, Fault>;
}

/// Work that a device does in order: uploads, kernels, downloads. Streams of one device overlap.
///
/// # Safety of the unsafe methods
/// Addresses lie in the memory that the last [`Stream::reserve`] returned (or in memory that the caller vouches for),
/// with the requested lengths. Host memory stays in place until [`Stream::is_done`] has returned true or the stream has
/// been dropped without having failed. Until then nothing writes to the source of an upload or touches the target of a
/// download.
pub trait Stream {
    /// Returns at least `bytes` of device memory, aligned to 256. The memory lasts until the next call and has
    /// arbitrary content. Called only when the stream is idle.
    ///
    /// # Errors
    /// [`Fault::NoMemory`] if the device has too little; [`Fault::Failed`] if a call fails.
    fn reserve(&mut self, bytes: usize) -> Result<u64, Fault>;

    /// Frees the reserved memory.
    fn release(&mut self);

    /// Makes later work wait for the work that another library has queued on `stream`, its own handle.
    ///
    /// # Errors
    /// A call failed.
    ///
    /// # Safety
    /// `stream` is a live stream of the same device.
    unsafe fn wait_for(&mut self, stream: u64) -> Result<(), Fault>;

    /// Queues a copy to the device.
    ///
    /// # Errors
    /// A call failed.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn upload(&mut self, to: u64, from: &[u8]) -> Result<(), Fault>;

    /// Queues writing zeros.
    ///
    /// # Errors
    /// A call failed.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn clear(&mut self, at: u64, bytes: usize) -> Result<(), Fault>;

    /// Queues a kernel.
    ///
    /// # Errors
    /// A call failed.
    ///
    /// # Safety
    /// See the trait; the argument's addresses and lengths are those that the kernel uses.
    unsafe fn launch(&mut self, launch: &Launch) -> Result<(), Fault>;

    /// Queues a copy from the device.
    ///
    /// # Errors
    /// A call failed.
    ///
    /// # Safety
    /// See the trait; `to` has room for `bytes`.
    unsafe fn download(&mut self, to: *mut u8, from: u64, bytes: usize) -> Result<(), Fault>;

    /// Whether all queued work is done. Does not wait.
    ///
    /// # Errors
    /// A call or queued work failed.
    fn is_done(&mut self) -> Result<bool, Fault>;
}
