//! Where chunks go: layout of placement groups, and the choice of a group for a chunk.

pub mod affinity;
pub mod groups;
pub mod layout;
pub mod select;
