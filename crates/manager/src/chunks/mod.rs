//! Chunks: dedup lookups and allocation, preallocated ids, reference counts, deletion of garbage.

pub mod audit;
pub mod dedup;
pub mod garbage;
pub mod prealloc;
pub mod refs;
