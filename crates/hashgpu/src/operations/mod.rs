//! Jobs for a runtime's devices: how a batch is packed into one buffer, which kernels compute it, and how the result is
//! read.

mod digests;
mod lookup;
mod windows;

pub use digests::{DigestBatch, Segmented};
pub use lookup::{AskBloom, FindInLevels};
pub(crate) use lookup::{FindInResident, HostLevels};
pub use windows::HashWindows;
