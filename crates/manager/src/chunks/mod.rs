//! Chunks: the dedup query, reference counts, missing fragments, deletion of garbage.

pub mod dedup;
pub mod garbage;
pub mod missing;
pub mod refs;
pub mod table;
