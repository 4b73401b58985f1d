//! Chunks: the dedup query, reference counts, contents of packs, missing fragments, deletion of garbage.

pub mod contents;
pub mod dedup;
pub mod garbage;
pub mod missing;
pub mod refs;
pub mod table;
