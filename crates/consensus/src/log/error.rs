//! Errors of the log.

use tessera_disk::DiskError;

/// Why a log cannot be opened. None of these cases changes the disk, except for a torn tail that was removed.
#[derive(Debug, thiserror::Error)]
pub enum LogOpenError {
    /// A newer release wrote the file.
    #[error("{name}: format version {found}, but this program knows {supported}; use a newer release")]
    Version {
        /// File name.
        name: String,
        /// The version in the file.
        found: u32,
        /// The version this code reads.
        supported: u32,
    },
    /// The file belongs to another cluster or peer.
    #[error(
        "{name}: belongs to another cluster or peer than its neighbours ({field}); it was copied here, move it away"
    )]
    Foreign {
        /// File name.
        name: String,
        /// The field that differs.
        field: &'static str,
    },
    /// What the peer had synced is damaged: it must not vote with what is left.
    #[error(
        "{name} at {offset}: {what}; this peer can no longer know what it voted for and stored: move its log directory \
         away, and let it join again under a new id"
    )]
    Damaged {
        /// File name.
        name: String,
        /// Offset of the damage in bytes.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Why an operation on the log failed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The entry is not in the log.
    #[error("entry {index} is not in the log, which holds {first} to {last}")]
    NotHeld {
        /// The entry.
        index: u64,
        /// First entry held.
        first: u64,
        /// Last entry held.
        last: u64,
    },
    /// A stored entry does not match its checksum.
    #[error(
        "entry {index}: checksum {got:08x}, expected {expected:08x}; move the log directory away and join again under a new id"
    )]
    Damaged {
        /// The entry.
        index: u64,
        /// Stored checksum.
        expected: u32,
        /// Checksum of the bytes.
        got: u32,
    },
    /// No such snapshot is held.
    #[error("no snapshot of entry {index} is held here")]
    NoSnapshot {
        /// Last entry of the snapshot.
        index: u64,
    },
    /// A received snapshot does not match its hash.
    #[error("the snapshot of entry {index} does not have the hash that was announced; it is fetched again")]
    SnapshotHash {
        /// Last entry of the snapshot.
        index: u64,
    },
    /// A snapshot does not fit beside what else the disk needs room for.
    #[error(
        "the rest of a snapshot has {needed_bytes} bytes, and {room_bytes} are kept free, but {free_bytes} are: make room on the disk"
    )]
    NoRoom {
        /// Bytes of the snapshot that are still to come.
        needed_bytes: u64,
        /// Bytes that stay free.
        room_bytes: u64,
        /// Free bytes.
        free_bytes: u64,
    },
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl LogError {
    /// Whether more room on the disk would help.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        match self {
            LogError::NoRoom { .. } => true,
            LogError::Disk(error) => error.is_no_space(),
            _ => false,
        }
    }
}
