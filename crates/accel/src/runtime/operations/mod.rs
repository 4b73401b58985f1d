//! The operations, one file a family: how a batch is packed into one buffer, which kernels it takes, and how the
//! result is read.

mod boundaries;
mod hash;
mod multiply;
mod xor;

pub use boundaries::FindCandidates;
pub use hash::HashBatch;
pub use multiply::Multiply;
pub use xor::XorFragments;
