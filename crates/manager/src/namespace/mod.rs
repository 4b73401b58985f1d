//! Directories, names, inodes and hints.

pub mod hints;
pub mod inodes;
pub mod names;
