//! Disk operations that the core requests, and their results. Plain data: threads or the simulator run them.

use bytes::Bytes;
pub use tessera_segment::ScrubCursor;
use tessera_segment::{RecordMeta, Stats};
use tessera_wire::meta::FragmentRef;
use tessera_wire::{Code, Error};

/// Identity of a fragment. Chunk ids are never reused, so neither are fragment keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentKey {
    /// Chunk id.
    pub chunk_id: u64,
    /// Fragment number.
    pub fragment: u32,
}

impl FragmentKey {
    /// The key on disk `disk_id`, as messages carry it.
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
    /// The writer's session (0: repair), the chunk and its group. The disk's writer sets the time.
    pub meta: RecordMeta,
    /// Group hashes of the chunk, 32 bytes each.
    pub groups: Bytes,
    /// Position in the chunk of `data`, which was checked against the chunk's name; `None`: parity, or from a rebuild.
    pub offset: Option<u64>,
    /// crc32c of `data`; already verified.
    pub crc32c: u32,
    /// The fragment's bytes: a shared handle, never copied.
    pub data: Bytes,
}

/// A disk operation.
#[derive(Clone, Debug, PartialEq)]
pub enum DiskOp {
    /// Store fragments. With `sync` the operation ends once they are durable, otherwise once they are written. Runs on
    /// the writer.
    Append {
        /// Wait until the fragments are durable.
        sync: bool,
        /// The fragments.
        items: Vec<AppendItem>,
    },
    /// Delete fragments durably. Epoch 0: the fragment's chunk is gone. Otherwise the fragment is deleted only if it was
    /// written under this epoch of its group or an older one (P11). Absent fragments count as deleted. Runs on the writer.
    Delete(Vec<FragmentRef>),
    /// Copy live records out of segments with at least this share of dead bytes, and remove those segments. Runs on the
    /// writer.
    Compact {
        /// Percentage of dead bytes; 0: any dead byte counts.
        dead_percent: u8,
        /// First seal the open segment if anything in it is dead.
        seal: bool,
        /// Approximate number of bytes to copy in this step.
        max_bytes: u64,
    },
    /// Read and check fragments. Runs on a reader.
    Verify(Vec<FragmentKey>),
    /// Read one whole fragment. Runs on a reader.
    Read(FragmentKey),
    /// List the fragments after this one, in order. Runs on a reader.
    List {
        /// `None`: from the first fragment on.
        after: Option<FragmentKey>,
        /// Maximum number of fragments.
        limit: usize,
    },
    /// Read and check records from the cursor on. Runs on a reader.
    Scrub {
        /// `None` starts a cycle.
        cursor: Option<ScrubCursor>,
        /// Approximate number of bytes to read.
        max_bytes: u64,
    },
    /// Report space and counts. Runs on a reader.
    Stats,
}

impl DiskOp {
    /// Bytes of fragments that it appends.
    pub fn append_bytes(&self) -> usize {
        match self {
            DiskOp::Append { items, .. } => items.iter().map(|item| item.data.len()).sum(),
            _ => 0,
        }
    }

    /// True if the disk's only writer thread runs it; reader threads run the others.
    pub fn is_write(&self) -> bool {
        matches!(self, DiskOp::Append { .. } | DiskOp::Delete(_) | DiskOp::Compact { .. })
    }
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
    /// On this disk, but corrupt or unreadable.
    Bad(String),
}

/// Statistics of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Size of the file system in bytes.
    pub capacity_bytes: u64,
    /// Bytes available to puts, without the reserve for deletes and compaction.
    pub free_bytes: u64,
    /// What the disk's segments hold.
    pub store: Stats,
    /// Corrupt fragments found when the disk was opened; the core reports them once.
    pub rot: Vec<FragmentKey>,
}

/// The result of a disk operation.
#[derive(Clone, Debug, PartialEq)]
pub enum DiskReply {
    /// One result per appended fragment, in order.
    Appended(Vec<Result<(), Error>>),
    /// The whole delete is durable.
    Deleted,
    /// Result of a compaction step.
    Compacted {
        /// Bytes freed.
        freed_bytes: u64,
        /// Another segment is worth compacting.
        more: bool,
    },
    /// One verdict per fragment, in order.
    Verified(Vec<Verdict>),
    /// A fragment as stored, with the checksum of its record, not yet compared.
    Read {
        /// The fragment's bytes.
        data: Bytes,
        /// The record's checksum.
        crc32c: u32,
    },
    /// A page of the fragments on a disk.
    Listed {
        /// The fragments, in order.
        held: Vec<FragmentKey>,
        /// True if no fragment follows.
        last: bool,
    },
    /// One step of a scrub.
    Scrubbed {
        /// Cursor for the next step; `None` if the cycle is complete.
        next: Option<ScrubCursor>,
        /// Bytes read.
        bytes: u64,
        /// Corrupt fragments.
        bad: Vec<FragmentKey>,
    },
    /// Answer to [`DiskOp::Stats`].
    Stats(DiskStats),
}

/// Why a disk operation failed as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskFault {
    /// The error for the caller of the operation.
    pub error: Error,
    /// A sync failed or the disk's directory is gone. The disk takes no more writes and is reported as failed.
    pub poisoned: bool,
}

/// The error for a reply that does not match its operation.
pub(super) fn wrong_reply() -> Error {
    Error::new(Code::Internal, "the disk answered something else")
}

/// The content of the reply that the operation must have.
macro_rules! reply {
    ($result:expr, $reply:pat => $content:expr) => {
        match $result {
            Ok($reply) => Ok($content),
            Ok(_) => Err($crate::core::ops::wrong_reply()),
            Err(error) => Err(error),
        }
    };
}
pub(super) use reply;
