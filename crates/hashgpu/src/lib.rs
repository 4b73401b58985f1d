//! Primitives of HashGPU, StoreGPU and CONA that no store path uses: [`digest`]s of batches and of large buffers,
//! sliding [`windows`], and batches of look-ups ([`lookup`]), on the CPU's vectors and on the devices of
//! [`tessera_accel`].
//!
//! [`operations`] are the jobs that a [`tessera_accel::runtime::Runtime`] runs; their kernels are in accel's kernel
//! image. [`ResidentLevels`] keeps levels in a device's memory. [`samples`] gives calibration one job of each.
//!
//! As in accel, every family has a reference that faster paths equal byte for byte (P10), and invalid arguments give
//! typed errors (P14). This crate does no I/O and starts no threads.

pub mod digest;
pub mod lookup;
pub mod operations;
mod resident_levels;
mod samples;
pub mod windows;

pub use resident_levels::{ResidentError, ResidentLevels};
pub use samples::samples;
