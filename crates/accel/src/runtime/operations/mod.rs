//! The operations, one file a family: how a batch is packed into one buffer, which kernels it takes, and how the
//! result is read.

mod boundaries;
mod digests;
mod hash;
mod lookup;
mod multiply;
mod roofs;
mod verify;
mod windows;
mod xor;

pub use boundaries::FindCandidates;
pub use digests::{DigestBatch, Segmented};
pub use hash::HashBatch;
pub use lookup::{AskBloom, FindInLevels};
pub(super) use lookup::{FindInKept, HostLevels};
pub use multiply::Multiply;
pub use roofs::{CopyInside, KernelsAlone, Transfer};
pub use verify::Verify;
pub use windows::HashWindows;
pub use xor::XorFragments;
