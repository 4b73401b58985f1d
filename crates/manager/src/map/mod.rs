//! The cluster map: nodes, disks, placement groups and classes. Only this module writes their tables.

pub mod delta;
pub mod tables;
