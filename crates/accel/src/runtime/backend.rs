//! What the runtime needs of a device with kernels, and nothing more: [`Backend`] and [`Stream`]. CUDA and the
//! emulated device stand behind it; tests put faulty ones there.

#![allow(unsafe_code)]

use crate::kernels::Launch;
use std::fmt;

/// Why a device could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Its memory is too small, or taken. The device stays in use; the job goes to the CPU.
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
        /// What was asked of it.
        what: String,
        /// What it said.
        why: String,
    },
    /// A job did not come back. The device is retired.
    #[error("{device}: a job has not come back after {waited_ms} ms; the device is not used again")]
    Stuck {
        /// Device.
        device: String,
        /// How long it was given.
        waited_ms: u64,
    },
    /// It computed something else than the CPU (P10). The device is retired.
    #[error("{device}: {primitive} gives other bytes than the CPU; the device is not used again, have it checked")]
    WrongBytes {
        /// Device.
        device: String,
        /// What was computed.
        primitive: &'static str,
    },
}

/// A device that runs the kernels.
pub trait Backend: Send + Sync + fmt::Debug {
    /// Name: `cuda:0`, `emulated:1`.
    fn name(&self) -> &str;

    /// What it is, for people: the card's name.
    fn description(&self) -> String;

    /// Whether it exists to be tested with: then no job goes there unless told to.
    fn is_for_tests(&self) -> bool {
        false
    }

    /// Its memory in bytes.
    fn memory_bytes(&self) -> u64;

    /// How many bytes of input a calibration may spend on it: about a millisecond's work.
    fn calibration_bytes(&self) -> usize;

    /// A queue of its own. Called on, and the stream used by, the device's manager thread alone.
    fn stream(&self) -> Result<Box<dyn Stream>, Fault>;
}

/// Work that a device does in order: uploads, kernels, downloads. Streams of one device overlap.
///
/// # Safety of the unsafe methods
/// Addresses lie in what the last [`Stream::reserve`] gave (or in memory that the caller vouches for), with the
/// lengths asked for. Host memory stays where it is, and is neither written (uploads) nor touched (downloads),
/// until [`Stream::is_done`] has said yes or the stream has been dropped without having failed.
pub trait Stream {
    /// At least `bytes` of device memory, aligned to 256, that last until the next call; their contents are
    /// arbitrary. Called only when the stream is idle.
    fn reserve(&mut self, bytes: usize) -> Result<u64, Fault>;

    /// Gives the memory back.
    fn release(&mut self);

    /// Makes what comes after wait for work that another library has queued on `stream`, a handle of its own.
    ///
    /// # Safety
    /// `stream` is a live stream of the same device.
    unsafe fn wait_for(&mut self, stream: u64) -> Result<(), Fault>;

    /// Queues a copy to the device.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn upload(&mut self, to: u64, from: &[u8]) -> Result<(), Fault>;

    /// Queues zeros.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn clear(&mut self, at: u64, bytes: usize) -> Result<(), Fault>;

    /// Queues a kernel.
    ///
    /// # Safety
    /// See the trait; the argument's addresses and lengths are what the kernel will use.
    unsafe fn launch(&mut self, launch: &Launch) -> Result<(), Fault>;

    /// Queues a copy from the device.
    ///
    /// # Safety
    /// See the trait; `to` has room for `bytes`.
    unsafe fn download(&mut self, to: *mut u8, from: u64, bytes: usize) -> Result<(), Fault>;

    /// Whether all that was queued is done. Does not wait.
    fn is_done(&mut self) -> Result<bool, Fault>;
}
