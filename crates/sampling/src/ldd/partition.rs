//! Where a partition lies.

use std::sync::Arc;

/// Where the data of a partition comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// It is stored in a continuous range of a file.
    Disk {
        /// The disk that holds it.
        disk: Arc<str>,
        /// The file.
        file: Arc<str>,
        /// Where it starts in the file, in bytes.
        offset: u64,
        /// Its length in bytes.
        len_bytes: u64,
    },
    /// It is in memory.
    Memory,
    /// It is computed from other partitions.
    Computed {
        /// Number of these.
        from: usize,
    },
}

/// The device of partitions in memory.
const MEMORY: &str = "memory";

/// A part of a set: what one task loads or computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Where it lies.
    pub place: Place,
    /// Number of the group in which it is drawn with equal chances: by default that of its disk.
    pub stratum: usize,
}

impl Partition {
    /// Name of the device that loads it.
    pub(super) fn device(&self) -> Arc<str> {
        match &self.place {
            Place::Disk { disk, .. } => disk.clone(),
            Place::Memory | Place::Computed { .. } => MEMORY.into(),
        }
    }
}
