//! Directories, names, inodes and hints.

pub mod bulk;
pub mod hints;
pub mod inodes;
pub mod names;
