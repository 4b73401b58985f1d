//! The parameters of a write, and its result.

use bytes::Bytes;
use std::sync::Arc;
use tessera_accel::hash::Tree;
use tessera_policy::Policy;
use tessera_wire::Hint;
use tessera_wire::meta::{CommitMode, Entry, InoRange, LockFence, Pack, PackedFile};

/// The file a write is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A name in a directory; the commit creates the file if there is none.
    Name {
        /// Inode of the directory.
        parent: u64,
        /// The name.
        name: Vec<u8>,
    },
    /// A file by inode.
    Inode(u64),
    /// A new file; refused if the name is taken.
    New {
        /// Inode of the directory.
        parent: u64,
        /// The name.
        name: Vec<u8>,
        /// Its inode number, granted before ([`tessera_wire::meta::InoRange`]).
        ino: u64,
        /// Inode numbers to draw with the commit, for later files.
        inos: u32,
    },
}

/// Times of a file's next version, ns since 1970; 0: the time of its commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Modification time.
    pub mtime_ns: i64,
    /// Change time.
    pub ctime_ns: i64,
    /// Access time. 0: it stays.
    pub atime_ns: i64,
}

impl Times {
    /// These times; those that are not set, from `other`.
    pub fn or(self, other: Times) -> Times {
        let first = |own, other| if own == 0 { other } else { own };
        Times {
            mtime_ns: first(self.mtime_ns, other.mtime_ns),
            ctime_ns: first(self.ctime_ns, other.ctime_ns),
            atime_ns: first(self.atime_ns, other.atime_ns),
        }
    }
}

/// The parameters of a write.
#[derive(Debug, Clone)]
pub struct WriteParams {
    /// The file's name, for messages.
    pub file: String,
    /// The file.
    pub target: Target,
    /// Hints for this write, which override the file's own.
    pub hints: Vec<Hint>,
    /// Replace, patch or append.
    pub mode: CommitMode,
    /// Refuse unless this version is current (0: unless there is no file).
    pub if_version: Option<u64>,
    /// Bytes of input, if known.
    pub size_hint_bytes: Option<u64>,
    /// The policy that the file probably has (its directory's): with it, small files ask about their chunks
    /// in the opening request.
    pub expect_policy: Option<Policy>,
    /// Times to record.
    pub times: Times,
    /// Permission bits, owner and group for a new file.
    pub owner: Owner,
    /// Request the committed file's attributes under a lease.
    pub want_lease: bool,
    /// Sets [`tessera_wire::meta::Commit::content`] of the next commit.
    pub content: u64,
    /// Fence of the locks held on the file.
    pub lock_fence: Option<LockFence>,
    /// The input is a pack, and becomes these files; `target` is the first of them.
    pub pack: Option<Arc<PackParams>>,
}

/// What a write of a pack is for.
#[derive(Debug, Clone, Default)]
pub struct PackParams {
    /// What its commit says.
    pub pack: Pack,
    /// Instead of files: the older pack whose class and domain it takes; 0: none.
    pub like: u64,
}

/// Permission bits, owner and group of a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Default for Owner {
    fn default() -> Self {
        Owner { mode: 0o644, uid: 0, gid: 0 }
    }
}

/// A piece of input, cut and hashed.
#[derive(Debug, Clone)]
pub struct ChunkReady {
    /// Index among the pieces of the input, from 0, without gaps.
    pub index: u64,
    /// Where it starts, in bytes from the start of the input (`Patch`: of the file).
    pub offset: u64,
    /// BLAKE3-256 of `data`.
    pub hash: [u8; 32],
    /// Group hashes, 32 bytes each; empty up to 16 KiB.
    pub groups: Bytes,
    /// The bytes; held until they are stored.
    pub data: Bytes,
}

impl ChunkReady {
    /// Hashes a piece.
    pub fn new(index: u64, offset: u64, data: Bytes) -> Self {
        let tree = tessera_accel::device().tree(&[&data]).pop();
        let Tree { root, groups } = tree.expect("a tree for each chunk");
        ChunkReady { index, offset, hash: root.0, groups: groups.concat().into(), data }
    }
}

/// The result of a write that became a version.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WriteDone {
    /// The file.
    pub ino: u64,
    /// Version id.
    pub version: u64,
    /// Its number within the file.
    pub number: u64,
    /// Where appended bytes start.
    pub append_offset: u64,
    /// Version that another writer committed meanwhile and this one replaced; 0: none.
    pub superseded: u64,
    /// Fragments not stored yet (optimistic or degraded writes).
    pub missing_fragments: u64,
    /// Bytes of input, holes included.
    pub input_bytes: u64,
    /// Bytes of chunks that were new to the cluster.
    pub new_bytes: u64,
    /// Bytes of fragments that were sent.
    pub sent_bytes: u64,
    /// Chunks of the input.
    pub chunks: u64,
    /// Chunks that were stored already.
    pub known_chunks: u64,
    /// The committed file, under a lease, if requested ([`WriteParams::want_lease`]).
    pub entry: Option<Box<Entry>>,
    /// Inode numbers that came with the commit ([`Target::New`]).
    pub inos: Option<InoRange>,
    /// The delegation of the directory lasts this long from when the client sent the commit; 0: not granted
    /// ([`tessera_wire::meta::CommitReply::delegation_ms`]).
    pub delegation_ms: u64,
    /// What became of the files of a pack ([`WriteParams::pack`]).
    pub files: Vec<PackedFile>,
    /// Permission bits and owner of a file that was there before and was stored with others ([`crate::Client::put_small`]).
    pub owner: Option<Owner>,
    /// Contents that were moved into a pack.
    pub moved: u64,
}
