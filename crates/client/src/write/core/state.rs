//! What a write knows of its pieces.

use super::*;
use crate::fetch::FragmentRequest;
use tessera_accel::hash::Tree;
use tessera_stripe::Class;
use tessera_stripe::ClassLayout;
use tessera_wire::Hint;
use tessera_wire::meta::{CommitMode, Entry, InoRange};

/// The file a write is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A name in a directory; created at commit if it is not there.
    Name {
        /// Inode of the directory.
        parent: u64,
        /// The name.
        name: Vec<u8>,
    },
    /// A file by inode.
    Inode(u64),
    /// A new file; refused if there is one of that name.
    New {
        /// Inode of the directory.
        parent: u64,
        /// The name.
        name: Vec<u8>,
        /// Its number, grant before ([`tessera_wire::meta::InoRange`]).
        ino: u64,
        /// Numbers to draw with the commit, for files to come.
        inos: u32,
    },
}

/// What a write is to do.
#[derive(Debug, Clone)]
pub struct WriteParams {
    /// The file's name, for messages.
    pub file: String,
    /// The file.
    pub target: Target,
    /// Hints for this write, over the file's own.
    pub hints: Vec<Hint>,
    /// Replace, patch or append.
    pub mode: CommitMode,
    /// Refuse unless this version is current (0: unless there is no file).
    pub if_version: Option<u64>,
    /// Bytes of input, if known.
    pub size_hint_bytes: Option<u64>,
    /// The policy the file will probably have (its directory's): lets small files ask about their chunks
    /// when they open.
    pub expect_policy: Option<Policy>,
    /// Modification time to record, ns since 1970; 0: now.
    pub mtime_ns: i64,
    /// Permission bits, owner and group of a new file.
    pub owner: Owner,
    /// Ask for the file as it is then, to be kept until it is recalled.
    pub want_lease: bool,
    /// [`tessera_wire::meta::Commit::content`] of the next commit.
    pub content: u64,
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

/// A piece of input that was cut and named.
#[derive(Debug, Clone)]
pub struct ChunkReady {
    /// Place among the pieces of the input, from 0, without gaps.
    pub index: u64,
    /// Where it starts, in bytes from the start of the input (`Patch`: of the file).
    pub offset: u64,
    /// BLAKE3-256 of `data`.
    pub hash: [u8; 32],
    /// Group hashes, 32 bytes each; empty up to 16 KiB.
    pub groups: Bytes,
    /// The bytes; kept until they are stored.
    pub data: Bytes,
}

impl ChunkReady {
    /// Names a piece.
    pub fn new(index: u64, offset: u64, data: Bytes) -> Self {
        let tree = tessera_accel::device().tree(&[&data]).pop();
        let Tree { root, groups } = tree.expect("a tree for each chunk");
        ChunkReady { index, offset, hash: root.0, groups: groups.concat().into(), data }
    }
}

/// A write that became a version.
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
    /// The file as it is, under a lease, if that was wanted ([`WriteParams::want_lease`]).
    pub entry: Option<Box<Entry>>,
    /// Inode numbers that came with the commit ([`Target::New`]).
    pub inos: Option<InoRange>,
    /// The directory's names are this client's for so long from when it asked ([`tessera_wire::meta::CommitReply::delegation_ms`]).
    pub delegation_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Queued,
    Asked,
    /// Waits for the map, its fragments, or their acknowledgements.
    Storing,
    Settled,
}

#[derive(Debug)]
pub(super) struct Chunk {
    pub hash: [u8; 32],
    pub len_bytes: u64,
    /// Where it first occurs.
    pub offset: u64,
    /// Region of the file that it is stored for (`placement=scatter`).
    pub region: u64,
    pub chunk_id: u64,
    pub pg_id: u64,
    /// Epoch under which all acknowledgements so far are good.
    pub epoch: u64,
    /// The newest epoch that a node told of. What it changed is unknown until the map shows it, so no acknowledgement
    /// is claimed under it before.
    pub told_epoch: u64,
    /// Where some were stored again after the chunk had been settled: the epoch under which the manager found the
    /// others good, which nobody here watches any more. 0: all are watched.
    pub unwatched_epoch: u64,
    pub stage: Stage,
    /// Answered `Durable`: needs no acknowledgement.
    pub durable: bool,
    /// Staged or committed under this id: it cannot move to another group any more.
    pub pinned: bool,
    /// Its acknowledgement was told under this epoch; 0: not yet.
    pub reported_epoch: u64,
    /// Fragments that were not acknowledged when the chunk was settled or committed.
    pub missing: Vec<u32>,
    /// Fragments that a commit asked for again while the chunk's bytes are being read back.
    pub again: Vec<u32>,
    pub class: Option<Arc<Class>>,
    /// Present while its bytes are held.
    pub active: Option<Box<Active>>,
}

#[derive(Debug)]
pub(super) struct Active {
    pub data: Bytes,
    pub groups: Bytes,
    pub frags: Vec<Frag>,
    pub attempts: u32,
    /// How often it was given to another group.
    pub moves: u32,
    pub trouble_since: Option<i64>,
    pub last_error: String,
}

#[derive(Debug)]
pub(super) struct Frag {
    pub number: u32,
    pub bytes: Bytes,
    pub crc32c: u32,
    /// Its bytes have been made.
    pub ready: bool,
    pub state: FragState,
}

impl Frag {
    /// Whether an acknowledgement counts under `epoch` (P11).
    pub fn is_acked_under(&self, epoch: u64) -> bool {
        matches!(self.state, FragState::Acked { epoch: acked } if acked >= epoch)
    }

    pub fn waiting(number: u32) -> Self {
        Frag { number, bytes: Bytes::new(), crc32c: 0, ready: false, state: FragState::Waiting }
    }
}

impl Active {
    pub fn is_encoded(&self) -> bool {
        self.frags.iter().all(|f| f.ready)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FragState {
    /// To be queued once it is known where it goes.
    Waiting,
    /// In its node's queue or on its way, to this disk under this epoch.
    Sent {
        disk_id: u64,
        epoch: u64,
    },
    Acked {
        epoch: u64,
    },
    /// Refused by this disk; `hopeless`: the disk will not take it later either.
    Failed {
        disk_id: u64,
        hopeless: bool,
    },
}

impl Chunk {
    pub fn new(ready: &ChunkReady, region: u64) -> Self {
        let active = Active {
            data: ready.data.clone(),
            groups: ready.groups.clone(),
            frags: Vec::new(),
            attempts: 0,
            moves: 0,
            trouble_since: None,
            last_error: String::new(),
        };
        Chunk {
            hash: ready.hash,
            len_bytes: ready.data.len() as u64,
            offset: ready.offset,
            region,
            chunk_id: 0,
            pg_id: 0,
            epoch: 0,
            told_epoch: 0,
            unwatched_epoch: 0,
            stage: Stage::Queued,
            durable: false,
            pinned: false,
            reported_epoch: 0,
            missing: Vec::new(),
            again: Vec::new(),
            class: None,
            active: Some(Box::new(active)),
        }
    }

    pub fn wire_name(&self) -> ChunkName {
        ChunkName { hash: Bytes::copy_from_slice(&self.hash), len_bytes: self.len_bytes, region: self.region }
    }

    /// The epoch under which all acknowledgements are good, as far as is known here (P11).
    pub fn ack_epoch(&self) -> u64 {
        if self.unwatched_epoch == 0 { self.epoch } else { self.epoch.min(self.unwatched_epoch) }
    }

    /// The epoch that the map has to show before fragments are sent, or acknowledgements checked.
    pub fn newest_epoch(&self) -> u64 {
        self.epoch.max(self.told_epoch)
    }

    /// Numbers of the fragments that are in place, wanted ones and others.
    pub fn in_place(&self) -> impl Iterator<Item = u32> {
        let all = self.class.as_ref().map_or(0, |c| c.fragments());
        (0..all).filter(move |number| match &self.active {
            Some(active) => {
                let wanted = active.frags.iter().find(|f| f.number == *number);
                wanted.is_none_or(|f| f.is_acked_under(self.epoch))
            }
            None => !self.missing.contains(number),
        })
    }
}

/// A piece of the new version.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingExtent {
    pub offset: u64,
    pub len_bytes: u64,
    /// Place in the list of chunks; none for a hole.
    pub chunk: Option<usize>,
}

/// The pieces in order; those that are staged are forgotten.
#[derive(Debug, Default)]
pub(super) struct ExtentQueue {
    first: u64,
    /// Pieces at the front that were found ready for a commit.
    pub ready: usize,
    pieces: VecDeque<Option<PendingExtent>>,
}

impl ExtentQueue {
    pub fn put(&mut self, index: u64, extent: PendingExtent) {
        let at = index.saturating_sub(self.first) as usize;
        if self.pieces.len() <= at {
            self.pieces.resize(at + 1, None);
        }
        self.pieces[at] = Some(extent);
    }

    /// Pieces without gaps from the front.
    pub fn iter(&self) -> impl Iterator<Item = &PendingExtent> {
        self.pieces.iter().map_while(|p| p.as_ref())
    }

    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    pub fn get(&self, at: usize) -> Option<&PendingExtent> {
        self.pieces.get(at)?.as_ref()
    }

    pub fn forget(&mut self, count: usize) {
        self.ready = self.ready.saturating_sub(count);
        self.pieces.drain(..count);
        self.first += count as u64;
    }
}

#[derive(Debug)]
pub(super) enum Purpose {
    Open { first: Vec<usize> },
    Ask { chunks: Vec<usize>, avoided: bool },
    Put { node_id: u64, items: Vec<FragmentPut> },
    Map { chunks: Vec<usize> },
    Renew,
    Commit { partial: usize },
    Complete,
    Refetch { chunk: usize, want: FragmentRequest },
    Close,
}

/// A fragment in a queue or on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FragmentPut {
    pub chunk: usize,
    /// The chunk's id when it was queued: a chunk that moved is another one.
    pub chunk_id: u64,
    pub number: u32,
    pub disk_id: u64,
    pub epoch: u64,
    pub len_bytes: usize,
}

/// What waits for one node.
#[derive(Debug, Default)]
pub(super) struct NodeQueue {
    pub urgent: VecDeque<FragmentPut>,
    /// Redundancy of optimistic writes: sent when nothing urgent waits.
    pub later: VecDeque<FragmentPut>,
    pub queued_bytes: usize,
    pub in_flight: usize,
}

impl NodeQueue {
    /// What has not left yet is not sent.
    pub fn forget_queued(&mut self) {
        self.urgent.clear();
        self.later.clear();
        self.queued_bytes = 0;
    }
}
