//! Disk operations that the core asks for, and their results. Plain data: threads, or the simulator, run them.

use bytes::Bytes;
use tessera_wire::meta::FragmentRef;
use tessera_wire::{Code, Error};

/// Identity of a fragment: a chunk id is never reused, so neither is this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentKey {
    /// Chunk id.
    pub chunk_id: u64,
    /// Fragment number.
    pub fragment: u32,
}

impl FragmentKey {
    /// As messages name it, on disk `disk_id`.
    pub fn on_disk(self, disk_id: u64) -> FragmentRef {
        FragmentRef { chunk_id: self.chunk_id, fragment: self.fragment, epoch: 0, disk_id }
    }
}

impl From<&FragmentRef> for FragmentKey {
    fn from(it: &FragmentRef) -> Self {
        FragmentKey { chunk_id: it.chunk_id, fragment: it.fragment }
    }
}

/// A fragment to store, with the fields of its record.
#[derive(Clone, Debug, PartialEq)]
pub struct AppendItem {
    /// Identity.
    pub key: FragmentKey,
    /// Placement group.
    pub pg_id: u64,
    /// Group epoch it is written under.
    pub epoch: u64,
    /// Domain of the chunk.
    pub domain: u32,
    /// Class of the chunk.
    pub class_id: u32,
    /// Name of the chunk.
    pub hash: [u8; 32],
    /// Length of the chunk.
    pub chunk_len_bytes: u64,
    /// Group hashes of the chunk, 32 bytes each.
    pub groups: Bytes,
    /// crc32c of `data`, verified against it.
    pub crc32c: u32,
    /// The fragment: a handle that is passed on, never copied.
    pub data: Bytes,
}

/// A disk operation.
#[derive(Clone, Debug, PartialEq)]
pub enum DiskOp {
    /// Store fragments. With `sync` done when they are durable, else when they are written. Writer.
    Append {
        /// Session that writes; 0: repair.
        session_id: u64,
        /// Wait for the sync.
        sync: bool,
        /// The fragments.
        items: Vec<AppendItem>,
    },
    /// Remove fragments, durably. Absent fragments count as removed. Writer.
    Delete(Vec<DeleteItem>),
    /// Copy living records out of segments with at least this share of dead bytes, and remove those. Writer.
    Compact {
        /// Percent; 0: any dead byte counts.
        dead_percent: u8,
        /// Seal the open segment first if anything in it is dead.
        seal: bool,
        /// About this many bytes in this step.
        max_bytes: u64,
    },
    /// Re-read fragments and check them. Reader.
    Verify(Vec<FragmentKey>),
    /// Read one whole fragment. Reader.
    Read(FragmentKey),
    /// List the fragments after this one, in order. Reader.
    List {
        /// `None`: from the start.
        after: Option<FragmentKey>,
        /// At most this many.
        limit: usize,
    },
    /// Re-read and check about this many bytes from the cursor on. Reader.
    Scrub {
        /// `None`: start a cycle.
        cursor: Option<ScrubCursor>,
        /// About this many bytes.
        max_bytes: u64,
    },
    /// Space and counts. Reader.
    Stats,
}

/// A fragment to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteItem {
    /// Which.
    pub key: FragmentKey,
    /// 0: its chunk is gone. Otherwise only a fragment written under this epoch of its group, or an older one, is deleted (P11).
    pub epoch: u64,
}

impl From<&tessera_wire::meta::FragmentRef> for DeleteItem {
    fn from(it: &tessera_wire::meta::FragmentRef) -> DeleteItem {
        DeleteItem { key: FragmentKey::from(it), epoch: it.epoch }
    }
}

impl DiskOp {
    /// Whether the disk's one writer thread runs it; reader threads run the others.
    pub fn is_write(&self) -> bool {
        matches!(self, DiskOp::Append { .. } | DiskOp::Delete(_) | DiskOp::Compact { .. })
    }
}

/// Position of a scrub; it visits segments by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScrubCursor {
    /// Segment number.
    pub segment: u64,
    /// Offset in it.
    pub offset: u64,
}

/// The result of verifying one fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Bytes and checksum agree.
    Good {
        /// Name of the chunk, from its record.
        hash: [u8; 32],
        /// Length of the fragment.
        len_bytes: u32,
    },
    /// Not on this disk.
    Missing,
    /// On this disk, and corrupt or unreadable.
    Bad(String),
}

/// State of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Size of the file system, bytes.
    pub capacity_bytes: u64,
    /// Bytes that puts may still use: without the reserve for deletes and compaction.
    pub free_bytes: u64,
    /// Bytes of its segment files.
    pub used_bytes: u64,
    /// Segments on it.
    pub segments: u64,
    /// Living fragments.
    pub fragments: u64,
    /// Bytes of living records.
    pub live_bytes: u64,
    /// Bytes compaction can win back.
    pub dead_bytes: u64,
    /// Bytes of memory of its index, roughly.
    pub index_bytes: u64,
    /// Corrupt fragments found when it was opened; the core reports them once.
    pub rot: Vec<FragmentKey>,
}

/// The result of a disk operation.
#[derive(Clone, Debug, PartialEq)]
pub enum DiskReply {
    /// Per item of an append, in order.
    Appended(Vec<Result<(), Error>>),
    /// All of a delete is durable.
    Deleted,
    /// Of a compaction.
    Compacted {
        /// Bytes freed.
        freed_bytes: u64,
        /// Another segment is worth compacting.
        more: bool,
    },
    /// Per fragment of a verification, in order.
    Verified(Vec<Verdict>),
    /// A fragment as stored, with the checksum of its record (not yet compared).
    Read {
        /// Its bytes.
        data: Bytes,
        /// Its checksum.
        crc32c: u32,
    },
    /// A page of the fragments on a disk.
    Listed {
        /// In order.
        held: Vec<FragmentKey>,
        /// No fragment follows.
        last: bool,
    },
    /// One step of a scrub.
    Scrubbed {
        /// Where the next step starts; `None`: the cycle is complete.
        next: Option<ScrubCursor>,
        /// Bytes re-read.
        bytes: u64,
        /// Corrupt fragments.
        bad: Vec<FragmentKey>,
    },
    /// Answer to [`DiskOp::Stats`].
    Stats(DiskStats),
}

/// Why a whole disk operation failed.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskFault {
    /// The error for whoever waits for the operation.
    pub error: Error,
    /// A sync failed (or the disk vanished): nothing more is written to this disk, it is reported as failed.
    pub poisoned: bool,
}

/// A disk's result that does not belong to its operation.
pub(super) const WRONG_REPLY: &str = "the disk answered something else";

/// [`WRONG_REPLY`] as an error.
pub(super) fn wrong_reply() -> Error {
    Error::new(Code::Internal, WRONG_REPLY)
}
