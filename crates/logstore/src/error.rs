//! What can go wrong with the log replica.

use tessera_disk::DiskError;

/// A damaged stretch of the log, found while opening. The log is usable; see [`crate::LogState::missing_seq`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogDamage {
    /// A file's header.
    #[error(
        "log file {file:016x}: header is damaged; entries it made void may show again until a snapshot covers them"
    )]
    FileHeader {
        /// File number.
        file: u64,
    },
    /// Bytes that are no entry where one was synced.
    #[error(
        "log file {file:016x} at {offset}: {len_bytes} bytes are damaged; the manager sends them again, or a snapshot"
    )]
    Entries {
        /// File number.
        file: u64,
        /// Where the stretch begins.
        offset: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// An entry whose position does not follow.
    #[error("log file {file:016x} at {offset}: entry {seq} is out of order and ignored")]
    Order {
        /// File number.
        file: u64,
        /// Where it is.
        offset: u64,
        /// Its position.
        seq: u64,
    },
    /// A snapshot file that cannot be used.
    #[error("snapshot {name}: {reason}; the manager sends another")]
    Snapshot {
        /// File name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Why a log cannot be opened. None of these changes the disk.
#[derive(Debug, thiserror::Error)]
pub enum LogOpenError {
    /// The disk has no identity file, or it is not to be read.
    #[error(transparent)]
    Identity(#[from] tessera_disk::IdentityError),
    /// A file of a newer release.
    #[error("log/{name}: format version {found}, but this program knows {supported}; use a newer release")]
    Version {
        /// File name.
        name: String,
        /// The version in the file.
        found: u32,
        /// The version this code reads.
        supported: u32,
    },
    /// A file of another cluster or disk.
    #[error(
        "log/{name}: belongs to another cluster, disk or file name ({field}); it was copied here from elsewhere, move it away"
    )]
    Foreign {
        /// File name.
        name: String,
        /// Which field differs.
        field: &'static str,
    },
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Why an operation on the log failed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The sender is not the newest manager.
    #[error("term {got} is over: a manager with term {highest} exists; stop this one")]
    StaleTerm {
        /// The sender's term.
        got: u64,
        /// The highest term seen.
        highest: u64,
    },
    /// Entries before the first of the batch are missing here.
    #[error("entry {got} does not follow: the next one here is {next_seq}; send from there")]
    Gap {
        /// First entry of the batch.
        got: u64,
        /// The first entry that is missing.
        next_seq: u64,
    },
    /// The entry before the batch is another one than the sender's.
    #[error("entry {seq} is of term {held} here, of term {expected} at the sender; send from there or earlier")]
    PrevTerm {
        /// Its position.
        seq: u64,
        /// Its term here.
        held: u64,
        /// Its term at the sender.
        expected: u64,
    },
    /// An entry that no log can hold: position or term 0, out of order, of a later term than its sender, or too long.
    #[error(
        "entry {seq} of term {term} with {len_bytes} bytes is out of order, of a later term than its sender, or too long"
    )]
    BadEntry {
        /// Its position.
        seq: u64,
        /// Its term.
        term: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// Other bytes under the same position and term, or an entry that may not overrule the one held: two managers of one term.
    #[error("entry {seq} of term {term} differs from the one held; two managers share a term")]
    Conflict {
        /// Its position.
        seq: u64,
        /// Its term.
        term: u64,
    },
    /// Dropped, lost or never there.
    #[error("entry {seq} is not held; read the snapshot, or ask another replica")]
    NotHeld {
        /// Its position.
        seq: u64,
    },
    /// Rot.
    #[error(
        "entry {seq} in log file {file:016x} at {offset}: checksum {got:#010x}, expected {expected:#010x}; ask another replica"
    )]
    Damaged {
        /// Its position.
        seq: u64,
        /// File number.
        file: u64,
        /// Where it is.
        offset: u64,
        /// crc32c it should have.
        expected: u32,
        /// crc32c of what is stored.
        got: u32,
    },
    /// A piece of a snapshot that does not follow the one before, or of one that was not begun.
    #[error("snapshot {seq}: the piece at {offset} does not follow; send from {expected}")]
    Piece {
        /// The snapshot's position.
        seq: u64,
        /// Where the piece begins.
        offset: u64,
        /// Where it should.
        expected: u64,
    },
    /// A piece that passes the snapshot's length.
    #[error("snapshot {seq}: a piece up to {end} passes its length of {total_bytes} bytes")]
    PieceLength {
        /// The snapshot's position.
        seq: u64,
        /// Where the piece ends.
        end: u64,
        /// The whole length.
        total_bytes: u64,
    },
    /// The pieces do not make what was announced, or what is stored rotted.
    #[error("snapshot {seq}: BLAKE3 differs from the one announced; send it again")]
    SnapshotHash {
        /// The snapshot's position.
        seq: u64,
    },
    /// Not the newest complete snapshot.
    #[error("snapshot {seq} is not held; ask for the state first")]
    NoSnapshot {
        /// The position asked for.
        seq: u64,
    },
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}
