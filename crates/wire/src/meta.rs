//! What clients and nodes ask the manager.
//!
//! Every mutating request carries `op_id`, a random number its sender chose: sent twice, it has one effect
//! and one answer (P8). Directory entries are bytes, not text.

mod cluster;
mod locks;
mod namespace;
mod sessions;

pub use cluster::*;
pub use locks::*;
pub use namespace::*;
pub use sessions::*;
