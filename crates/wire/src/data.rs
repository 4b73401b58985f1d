//! What anybody asks a node: put and get fragments, look at its state.

use crate::common::{Hint, NodeInfo};
use crate::error::Error;

/// One fragment on its way to a disk. Its bytes are the next `len_bytes` of the frame's payload.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutItem {
    /// Chunk id.
    #[prost(uint64, tag = "1")]
    pub chunk_id: u64,
    /// Fragment number: for `ec`, 0..k data and k..k+m parity; for copies, which copy.
    #[prost(uint32, tag = "2")]
    pub fragment: u32,
    /// Disk to store it on.
    #[prost(uint64, tag = "3")]
    pub disk_id: u64,
    /// Placement group.
    #[prost(uint64, tag = "4")]
    pub pg_id: u64,
    /// Group epoch the writer knows (P11).
    #[prost(uint64, tag = "5")]
    pub epoch: u64,
    /// Domain of the chunk.
    #[prost(uint32, tag = "6")]
    pub domain: u32,
    /// Redundancy class of the chunk.
    #[prost(uint32, tag = "7")]
    pub class_id: u32,
    /// BLAKE3-256 of the chunk, 32 bytes.
    #[prost(bytes = "bytes", tag = "8")]
    pub hash: bytes::Bytes,
    /// Length of the chunk in bytes.
    #[prost(uint64, tag = "9")]
    pub chunk_len_bytes: u64,
    /// Length of this fragment in bytes; may be 0 (a data fragment behind the end of a short chunk).
    #[prost(uint32, tag = "10")]
    pub len_bytes: u32,
    /// crc32c of the fragment.
    #[prost(fixed32, tag = "11")]
    pub crc32c: u32,
    /// Chaining values of the chunk's 16 KiB groups, 32 bytes each; empty for chunks of at most 16 KiB.
    #[prost(bytes = "bytes", tag = "12")]
    pub groups: bytes::Bytes,
}

/// Store fragments. Payload: their bytes, back to back, in order.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutFragments {
    /// Session that writes. Never 0: that is repair's, which writes on its own node only and may bring back what was
    /// deleted (P3).
    #[prost(uint64, tag = "1")]
    pub session_id: u64,
    /// The fragments.
    #[prost(message, repeated, tag = "2")]
    pub items: Vec<PutItem>,
    /// Answer once received instead of once synced (only `durability=optimistic` files' later fragments).
    #[prost(bool, tag = "3")]
    pub no_sync: bool,
    /// Hints of the file.
    #[prost(message, repeated, tag = "4")]
    pub hints: Vec<Hint>,
}

/// Fate of one fragment of a put.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutResult {
    /// Absent: stored as durably as asked. A put of a fragment that is already there succeeds (P8).
    #[prost(message, optional, tag = "1")]
    pub error: Option<Error>,
    /// Life of the node that acknowledged.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
}

/// Answer to [`PutFragments`], one result per item, in order.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutFragmentsReply {
    /// The results.
    #[prost(message, repeated, tag = "1")]
    pub results: Vec<PutResult>,
}

/// A fragment, or a range of it, that is wanted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetItem {
    /// Chunk id.
    #[prost(uint64, tag = "1")]
    pub chunk_id: u64,
    /// Fragment number.
    #[prost(uint32, tag = "2")]
    pub fragment: u32,
    /// Disk that should have it.
    #[prost(uint64, tag = "3")]
    pub disk_id: u64,
    /// First byte wanted.
    #[prost(uint32, tag = "4")]
    pub offset: u32,
    /// Bytes wanted; 0 with `whole` for all of it. A range that passes the fragment's end is an error.
    #[prost(uint32, tag = "5")]
    pub len_bytes: u32,
    /// The whole fragment, whatever its length.
    #[prost(bool, tag = "6")]
    pub whole: bool,
    /// Send the group hashes too.
    #[prost(bool, tag = "7")]
    pub want_groups: bool,
    /// Re-read and check the fragment's checksum at the node before sending (repair, suspicion).
    #[prost(bool, tag = "8")]
    pub verify: bool,
}

/// Read fragments.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetFragments {
    /// What is wanted.
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<GetItem>,
    /// Hints of the file.
    #[prost(message, repeated, tag = "2")]
    pub hints: Vec<Hint>,
}

/// One fragment, or the reason why not.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetResult {
    /// Present: nothing of this item is in the payload.
    #[prost(message, optional, tag = "1")]
    pub error: Option<Error>,
    /// Bytes of this item in the payload.
    #[prost(uint32, tag = "2")]
    pub len_bytes: u32,
    /// Length of the whole fragment.
    #[prost(uint32, tag = "3")]
    pub fragment_len_bytes: u32,
    /// crc32c of the whole fragment, as stored.
    #[prost(fixed32, tag = "4")]
    pub crc32c: u32,
    /// Group hashes, if asked for.
    #[prost(bytes = "bytes", tag = "5")]
    pub groups: bytes::Bytes,
}

/// Answer to [`GetFragments`], one result per item, in order. Payload: the bytes of those without error, back to back.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetFragmentsReply {
    /// The results.
    #[prost(message, repeated, tag = "1")]
    pub results: Vec<GetResult>,
}

/// Ask a node about itself.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetNodeStatus {}

/// State of one disk as its node sees it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DiskStatus {
    /// Disk id.
    #[prost(uint64, tag = "1")]
    pub disk_id: u64,
    /// Directory.
    #[prost(string, tag = "2")]
    pub path: String,
    /// Segments on it.
    #[prost(uint64, tag = "3")]
    pub segments: u64,
    /// Living fragments.
    #[prost(uint64, tag = "4")]
    pub fragments: u64,
    /// Bytes of living records.
    #[prost(uint64, tag = "5")]
    pub live_bytes: u64,
    /// Bytes compaction can win back.
    #[prost(uint64, tag = "6")]
    pub dead_bytes: u64,
    /// Why the disk takes no more writes; empty when it does.
    #[prost(string, tag = "7")]
    pub poisoned: String,
    /// Bytes re-read by the current scrub cycle.
    #[prost(uint64, tag = "8")]
    pub scrubbed_bytes: u64,
    /// Rotten fragments found since start.
    #[prost(uint64, tag = "9")]
    pub rot_found: u64,
    /// Bytes of memory that the disk's index takes, roughly.
    #[prost(uint64, tag = "10")]
    pub index_bytes: u64,
}

/// What a node holds and does.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeStatus {
    /// Who it is.
    #[prost(message, optional, tag = "1")]
    pub node: Option<NodeInfo>,
    /// Its disks.
    #[prost(message, repeated, tag = "2")]
    pub disks: Vec<DiskStatus>,
    /// Rebuild tasks waiting or running.
    #[prost(uint64, tag = "3")]
    pub tasks: u64,
    /// Device that computes (`cpu/avx512`, …).
    #[prost(string, tag = "4")]
    pub device: String,
}
