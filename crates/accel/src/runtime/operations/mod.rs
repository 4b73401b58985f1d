//! The operations, one file per family: how a batch is packed into one buffer, which kernels compute it, and how the
//! result is read. Other crates also implement [`super::Operation`].

mod boundaries;
mod coding;
mod hash;
mod multiply;
mod roofs;
mod verify;
mod xor;

pub use boundaries::FindCandidates;
pub use coding::{Coding, Layout};
pub(crate) use coding::{encode, reconstruct, update};
pub use hash::HashBatch;
pub use multiply::Multiply;
pub use roofs::{CopyInside, KernelsAlone, Transfer};
pub use verify::Verify;
pub use xor::XorFragments;
