//! Errors of the log replica.

use tessera_disk::DiskError;

/// Damage found when the log is opened. The log remains usable; see [`crate::LogState::missing_seq`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogDamage {
    /// A damaged file header.
    #[error(
        "log file {file:016x}: header is damaged; entries it made void may show again until a snapshot covers them"
    )]
    FileHeader {
        /// File number.
        file: u64,
    },
    /// A stretch of synced bytes that holds no valid entry.
    #[error(
        "log file {file:016x} at {offset}: {len_bytes} bytes are damaged; the manager sends them again, or a snapshot"
    )]
    Entries {
        /// File number.
        file: u64,
        /// Offset of the stretch.
        offset: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// An entry whose sequence number does not follow the previous one.
    #[error("log file {file:016x} at {offset}: entry {seq} is out of order and ignored")]
    Order {
        /// File number.
        file: u64,
        /// Offset of the entry.
        offset: u64,
        /// Its sequence number.
        seq: u64,
    },
    /// An unusable snapshot file.
    #[error("snapshot {name}: {reason}; the manager sends another")]
    Snapshot {
        /// File name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Why a log cannot be opened. None of these cases changes the disk.
#[derive(Debug, thiserror::Error)]
pub enum LogOpenError {
    /// The disk's identity file is missing or unreadable.
    #[error(transparent)]
    Identity(#[from] tessera_disk::IdentityError),
    /// A newer release wrote the file.
    #[error("log/{name}: format version {found}, but this program knows {supported}; use a newer release")]
    Version {
        /// File name.
        name: String,
        /// The version in the file.
        found: u32,
        /// The version this code reads.
        supported: u32,
    },
    /// The file belongs to another cluster or disk.
    #[error(
        "log/{name}: belongs to another cluster, disk or file name ({field}); it was copied here from elsewhere, move it away"
    )]
    Foreign {
        /// File name.
        name: String,
        /// The field that differs.
        field: &'static str,
    },
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Why an operation on the log failed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A manager with a higher term exists.
    #[error("term {got} is over: a manager with term {highest} exists; stop this one")]
    StaleTerm {
        /// The sender's term.
        got: u64,
        /// The highest term seen.
        highest: u64,
    },
    /// The batch leaves a gap: the replica lacks entries before its first.
    #[error("entry {got} does not follow: the next one here is {next_seq}; send from there")]
    Gap {
        /// First entry of the batch.
        got: u64,
        /// The first missing entry.
        next_seq: u64,
    },
    /// The entry before the batch has another term at the sender.
    #[error("entry {seq} is of term {held} here, of term {expected} at the sender; send from there or earlier")]
    PrevTerm {
        /// Its sequence number.
        seq: u64,
        /// Its term in this replica.
        held: u64,
        /// Its term at the sender.
        expected: u64,
    },
    /// An invalid entry: sequence or term 0, out of order, of a later term than its sender, or too long.
    #[error(
        "entry {seq} of term {term} with {len_bytes} bytes is out of order, of a later term than its sender, or too long"
    )]
    BadEntry {
        /// Its sequence number.
        seq: u64,
        /// Its term.
        term: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// The held entry has the same sequence and term but other bytes, or an entry that may not overrule it: two
    /// managers share a term.
    #[error("entry {seq} of term {term} differs from the one held; two managers share a term")]
    Conflict {
        /// Its sequence number.
        seq: u64,
        /// Its term.
        term: u64,
    },
    /// The entry was dropped or lost, or never arrived.
    #[error("entry {seq} is not held; read the snapshot, or ask another replica")]
    NotHeld {
        /// Its sequence number.
        seq: u64,
    },
    /// The stored entry is damaged.
    #[error(
        "entry {seq} in log file {file:016x} at {offset}: checksum {got:#010x}, expected {expected:#010x}; ask another replica"
    )]
    Damaged {
        /// Its sequence number.
        seq: u64,
        /// File number.
        file: u64,
        /// Offset of the entry.
        offset: u64,
        /// Expected crc32c.
        expected: u32,
        /// crc32c of the stored bytes.
        got: u32,
    },
    /// A piece of a snapshot that does not follow the previous one, or whose snapshot has no first piece.
    #[error("snapshot {seq}: the piece at {offset} does not follow; send from {expected}")]
    Piece {
        /// The snapshot's sequence number.
        seq: u64,
        /// Offset of the piece.
        offset: u64,
        /// Expected offset.
        expected: u64,
    },
    /// A piece that ends after the snapshot's length.
    #[error("snapshot {seq}: a piece up to {end} passes its length of {total_bytes} bytes")]
    PieceLength {
        /// The snapshot's sequence number.
        seq: u64,
        /// End of the piece.
        end: u64,
        /// The whole length.
        total_bytes: u64,
    },
    /// The received pieces, or the stored snapshot, do not match the announced hash.
    #[error("snapshot {seq}: BLAKE3 differs from the one announced; send it again")]
    SnapshotHash {
        /// The snapshot's sequence number.
        seq: u64,
    },
    /// The snapshot is not the newest complete one.
    #[error("snapshot {seq} is not held; ask for the state first")]
    NoSnapshot {
        /// The sequence number asked for.
        seq: u64,
    },
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}
