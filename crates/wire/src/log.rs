//! The manager's command log as it travels to and from its replicas on nodes (architecture, section 7).
//!
//! A log entry is one group commit: the commands in the order they were applied, with their times and ids
//! explicit, so that applying them again to the state before gives the state after.

/// One logged command: a mutating request as it was applied.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LoggedCommand {
    /// Kind of the request, or one of the manager's internal commands (0x8000 and up).
    #[prost(uint32, tag = "1")]
    pub kind: u32,
    /// The encoded request.
    #[prost(bytes = "bytes", tag = "2")]
    pub body: bytes::Bytes,
    /// Client that asked (0: the manager itself).
    #[prost(uint64, tag = "3")]
    pub client_id: u64,
    /// What the manager decided from state that is not in its database (which group, who still reads), in order.
    #[prost(uint64, repeated, tag = "4")]
    pub decisions: Vec<u64>,
}

/// One group commit.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LogEntry {
    /// Manager's term: grows at each start and restore.
    #[prost(uint64, tag = "1")]
    pub term: u64,
    /// Position in the log, from 1, without gaps.
    #[prost(uint64, tag = "2")]
    pub seq: u64,
    /// The manager's time when it was applied, ns since 1970; never goes backwards.
    #[prost(sint64, tag = "3")]
    pub now_ns: i64,
    /// The commands.
    #[prost(message, repeated, tag = "4")]
    pub commands: Vec<LoggedCommand>,
}

/// Store entries durably. Payload: the encoded [`LogEntry`]s, back to back, `lengths` bytes each.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AppendLog {
    /// Term of the manager that sends. A replica that has seen a higher one refuses (P11).
    #[prost(uint64, tag = "1")]
    pub term: u64,
    /// Sequence of the first entry; a replica that lacks the one before it answers with what it has.
    #[prost(uint64, tag = "2")]
    pub first_seq: u64,
    /// Terms of the entries.
    #[prost(uint64, repeated, tag = "3")]
    pub terms: Vec<u64>,
    /// Length of each entry in bytes.
    #[prost(uint32, repeated, tag = "4")]
    pub lengths: Vec<u32>,
    /// Entries up to here are covered by a snapshot this replica holds and may be dropped.
    #[prost(uint64, tag = "5")]
    pub drop_to_seq: u64,
    /// Term of the entry before `first_seq`; a replica whose entry there is of another term refuses. 0: not compared.
    #[prost(uint64, tag = "6")]
    pub prev_term: u64,
}

/// State of a replica after an append or a snapshot piece.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AppendLogReply {
    /// Highest term seen.
    #[prost(uint64, tag = "1")]
    pub term: u64,
    /// Last entry held durably; `snapshot_seq` when there is none behind the snapshot.
    #[prost(uint64, tag = "2")]
    pub last_seq: u64,
    /// Newest complete snapshot; 0 if none.
    #[prost(uint64, tag = "3")]
    pub snapshot_seq: u64,
    /// Term of the last entry held.
    #[prost(uint64, tag = "4")]
    pub last_term: u64,
}

/// Read entries back.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReadLog {
    /// First entry wanted.
    #[prost(uint64, tag = "1")]
    pub from_seq: u64,
    /// At most about this many payload bytes; 0 asks for the replica's state alone.
    #[prost(uint32, tag = "2")]
    pub max_bytes: u32,
}

/// Entries. Payload: as in [`AppendLog`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReadLogReply {
    /// The replica's state.
    #[prost(message, optional, tag = "1")]
    pub state: Option<AppendLogReply>,
    /// Sequence of the first entry in the payload.
    #[prost(uint64, tag = "2")]
    pub first_seq: u64,
    /// Length of each entry in bytes.
    #[prost(uint32, repeated, tag = "3")]
    pub lengths: Vec<u32>,
    /// Cluster the log belongs to, 16 bytes.
    #[prost(bytes = "vec", tag = "4")]
    pub cluster_id: Vec<u8>,
}

/// A piece of a snapshot of the manager's database. Payload: the piece.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutSnapshot {
    /// Term of the manager that sends.
    #[prost(uint64, tag = "1")]
    pub term: u64,
    /// Entries up to here are in the snapshot.
    #[prost(uint64, tag = "2")]
    pub seq: u64,
    /// Where the piece goes.
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    /// Length of the whole snapshot in bytes; the piece that reaches it completes the snapshot.
    #[prost(uint64, tag = "4")]
    pub total_bytes: u64,
    /// BLAKE3-256 of the whole, 32 bytes.
    #[prost(bytes = "vec", tag = "5")]
    pub hash: Vec<u8>,
    /// Term of the entry at `seq`, so that a replica can tell whether what it holds behind it continues the snapshot. 0:
    /// not compared.
    #[prost(uint64, tag = "6")]
    pub seq_term: u64,
}

/// Read a piece of the newest complete snapshot.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetSnapshot {
    /// Which: its sequence, from the replica's state.
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// First byte wanted.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    /// At most this many.
    #[prost(uint32, tag = "3")]
    pub max_bytes: u32,
}

/// Payload: the piece.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetSnapshotReply {
    /// Length of the whole in bytes.
    #[prost(uint64, tag = "1")]
    pub total_bytes: u64,
    /// BLAKE3-256 of the whole.
    #[prost(bytes = "vec", tag = "2")]
    pub hash: Vec<u8>,
}
