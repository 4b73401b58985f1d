//! The cluster map: nodes, disks, placement groups and classes. Their tables are written here, and nowhere else.

pub mod delta;
pub mod tables;
