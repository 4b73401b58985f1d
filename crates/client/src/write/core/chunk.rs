//! One chunk of a write: its state, its fragments while its bytes are held, and the table of all chunks.

use super::*;
use std::ops::{Deref, DerefMut};
use tessera_stripe::{Class, ClassLayout};
use tessera_wire::meta::ChunkAck;

/// State of a chunk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// Waits for the dedup question.
    #[default]
    Queued,
    Asked,
    /// Waits for the map, its fragments, or their acknowledgements.
    Storing,
    Settled,
}

#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub hash: [u8; 32],
    pub len_bytes: u64,
    /// Offset of its first occurrence.
    pub offset: u64,
    /// Region of the file it is stored for (`placement=scatter`).
    pub region: u64,
    pub chunk_id: u64,
    pub pg_id: u64,
    /// All acknowledgements so far are valid under this epoch.
    pub epoch: u64,
    /// The newest epoch that a node reported. The client does not know what that epoch changed until the map shows it,
    /// so it claims no acknowledgement under it before.
    pub told_epoch: u64,
    stage: Stage,
    /// The manager answered `Durable`: it needs no acknowledgement.
    pub durable: bool,
    /// Staged or committed under this id: it cannot move to another group.
    pub pinned: bool,
    /// The manager knows that it is stored, by a report or a commit.
    pub reported: bool,
    /// Epoch under which a commit reported its acknowledgements; 0: no commit did.
    pub reported_epoch: u64,
    /// When the first version with it became visible. A partial commit makes nothing visible.
    pub visible_since: Option<i64>,
    /// Fragments that were not acknowledged when the chunk was settled or committed.
    pub missing: Vec<u32>,
    /// The newest receipt of each fragment that was acknowledged, and the epoch of its put.
    pub receipts: BTreeMap<u32, (u64, u64)>,
    /// Fragments that a commit asked for again, while the chunk's bytes are being read back.
    pub again: Vec<u32>,
    pub class: Option<Arc<Class>>,
    /// Present while the chunk's bytes are held.
    pub active: Option<Box<Active>>,
}

/// State of a chunk while its bytes are held.
#[derive(Debug, Default)]
pub(super) struct Active {
    pub data: Bytes,
    pub groups: Bytes,
    pub frags: Vec<Frag>,
    pub attempts: u32,
    /// How often it moved to another group.
    pub moves: u32,
    pub trouble_since: Option<i64>,
    pub last_error: String,
}

#[derive(Debug)]
pub(super) struct Frag {
    pub number: u32,
    pub bytes: Bytes,
    pub crc32c: u32,
    /// Whether its bytes have been computed.
    pub ready: bool,
    pub state: FragState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FragState {
    /// Will be queued once its disk is known.
    Waiting,
    /// In its node's queue or in flight, to this disk under this epoch.
    Sent {
        disk_id: u64,
        epoch: u64,
    },
    Acked {
        epoch: u64,
    },
    /// Refused by this disk, for good.
    Failed {
        disk_id: u64,
    },
}

impl Frag {
    pub fn waiting(number: u32) -> Self {
        Frag { number, bytes: Bytes::new(), crc32c: 0, ready: false, state: FragState::Waiting }
    }

    pub fn is_acked(&self) -> bool {
        matches!(self.state, FragState::Acked { .. })
    }

    /// Whether an acknowledgement counts under `epoch` (P11).
    pub fn is_acked_under(&self, epoch: u64) -> bool {
        matches!(self.state, FragState::Acked { epoch: acked } if acked >= epoch)
    }

    pub fn is_failed(&self) -> bool {
        matches!(self.state, FragState::Failed { .. })
    }
}

impl Active {
    pub fn new(data: Bytes, groups: Bytes, frags: Vec<Frag>) -> Self {
        Active { data, groups, frags, ..Active::default() }
    }

    pub fn is_encoded(&self) -> bool {
        self.frags.iter().all(|f| f.ready)
    }

    /// The disks that are to take what is not acknowledged; `None`: not known yet.
    pub fn wanted_disks(&self) -> impl Iterator<Item = Option<u64>> {
        self.frags.iter().filter(|f| !f.is_acked()).map(|f| match f.state {
            FragState::Sent { disk_id, .. } | FragState::Failed { disk_id } => Some(disk_id),
            FragState::Waiting | FragState::Acked { .. } => None,
        })
    }

    pub fn frag(&self, number: u32) -> Option<&Frag> {
        self.frags.iter().find(|f| f.number == number)
    }

    pub fn frag_mut(&mut self, number: u32) -> Option<&mut Frag> {
        self.frags.iter_mut().find(|f| f.number == number)
    }
}

impl Chunk {
    fn new(ready: &ChunkReady, region: u64) -> Self {
        Chunk {
            hash: ready.hash,
            len_bytes: ready.data.len() as u64,
            offset: ready.offset,
            region,
            active: Some(Box::new(Active::new(ready.data.clone(), ready.groups.clone(), Vec::new()))),
            ..Chunk::default()
        }
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    pub fn is_settled(&self) -> bool {
        self.stage == Stage::Settled
    }

    /// Changes the stage. Only [`ChunkTable`] settles a chunk, or stores a settled one again.
    pub fn set_stage(&mut self, to: Stage) {
        // From the queue to the nodes: under a preallocated id. Back to the queue: another group is needed.
        let legal = match to {
            Stage::Queued => matches!(self.stage, Stage::Asked | Stage::Storing),
            Stage::Asked => self.stage == Stage::Queued,
            Stage::Storing => matches!(self.stage, Stage::Queued | Stage::Asked),
            Stage::Settled => false,
        };
        assert!(legal, "chunk {} at {}: {:?} to {to:?}", self.chunk_id, self.offset, self.stage);
        self.stage = to;
    }

    pub fn wire_name(&self) -> ChunkName {
        ChunkName { hash: Bytes::copy_from_slice(&self.hash), len_bytes: self.len_bytes, region: self.region }
    }

    /// The epoch that the map must show before fragments are sent or acknowledgements are checked.
    pub fn newest_epoch(&self) -> u64 {
        self.epoch.max(self.told_epoch)
    }

    /// Numbers of the fragments in place: acknowledged, or not for this write to store.
    pub fn in_place(&self) -> impl Iterator<Item = u32> {
        let all = self.class.as_ref().map_or(0, |c| c.fragments());
        (0..all).filter(move |number| match self.active.as_ref().and_then(|active| active.frag(*number)) {
            Some(frag) => frag.is_acked_under(self.epoch),
            None => !self.missing.contains(number),
        })
    }

    /// What was acknowledged of it, as the manager wants to know it.
    pub fn ack(&self) -> ChunkAck {
        let stored = self.receipts.iter().filter(|(fragment, _)| !self.missing.contains(fragment));
        let (stored, (receipts, epochs)) = stored.map(|(fragment, receipt)| (*fragment, *receipt)).unzip();
        ChunkAck { chunk_id: self.chunk_id, epochs, missing: self.missing.clone(), stored, receipts }
    }

    /// Notes which fragments are not acknowledged now. A chunk that was read back holds only some: the others stay as they were.
    pub fn note_missing(&mut self) {
        if let Some(active) = &self.active {
            self.missing.retain(|number| active.frag(*number).is_none());
            let missing = active.frags.iter().filter(|f| !f.is_acked_under(self.epoch));
            self.missing.extend(missing.map(|f| f.number));
        }
    }
}

/// The distinct chunks of a write, in order of first occurrence.
#[derive(Debug, Default)]
pub(super) struct ChunkTable {
    chunks: Vec<Chunk>,
    /// By hash, length and region.
    by_name: HashMap<([u8; 32], u64, u64), usize>,
    /// Bytes of chunks held in memory.
    pub held_bytes: u64,
    pub unsettled: usize,
}

impl ChunkTable {
    /// Adds a chunk; returns its index, and whether it is new to this write.
    pub fn add(&mut self, ready: &ChunkReady, region: u64) -> (usize, bool) {
        let next = self.chunks.len();
        let index = *self.by_name.entry((ready.hash, ready.data.len() as u64, region)).or_insert(next);
        if index == next {
            self.held_bytes += ready.data.len() as u64;
            self.unsettled += 1;
            self.chunks.push(Chunk::new(ready, region));
        }
        (index, index == next)
    }

    /// Settles a chunk: it needs nothing more, and its bytes are freed unless `keep_bytes`.
    pub fn settle(&mut self, index: usize, keep_bytes: bool) {
        let chunk = &mut self.chunks[index];
        assert!(chunk.stage == Stage::Storing, "chunk {} is settled while {:?}", chunk.chunk_id, chunk.stage);
        assert!(self.unsettled > 0, "more chunks are settled than there are");
        chunk.stage = Stage::Settled;
        self.unsettled -= 1;
        if !keep_bytes && chunk.active.take().is_some() {
            assert!(self.held_bytes >= chunk.len_bytes, "{} bytes held, {} freed", self.held_bytes, chunk.len_bytes);
            self.held_bytes -= chunk.len_bytes;
        }
    }

    /// Stores a settled chunk again, at least in part.
    pub fn unsettle(&mut self, index: usize) {
        let chunk = &mut self.chunks[index];
        if chunk.stage == Stage::Settled {
            assert!(chunk.pinned, "chunk {} is stored again, but no commit named it", chunk.chunk_id);
            chunk.stage = Stage::Storing;
            self.unsettled += 1;
        }
    }

    /// Puts back the bytes of a chunk that were read back.
    pub fn restore_bytes(&mut self, index: usize, active: Active) {
        let chunk = &mut self.chunks[index];
        let (got, wanted) = (active.data.len() as u64, chunk.len_bytes);
        assert_eq!(got, wanted, "chunk {} was read back with another length", chunk.chunk_id);
        assert!(chunk.active.is_none(), "chunk {} was read back while its bytes are held", chunk.chunk_id);
        self.held_bytes += got;
        chunk.active = Some(Box::new(active));
    }

    /// Starts the placement of a chunk again; its bytes are still held.
    pub fn restart(&mut self, index: usize) {
        let chunk = &mut self.chunks[index];
        (chunk.chunk_id, chunk.pg_id, chunk.epoch, chunk.told_epoch, chunk.reported_epoch) = (0, 0, 0, 0, 0);
        (chunk.pinned, chunk.durable, chunk.reported) = (false, false, false);
        chunk.missing.clear();
        chunk.receipts.clear();
        let active = chunk.active.as_mut().expect("a one-shot commit keeps the bytes of its chunks");
        active.frags.clear();
        self.unsettled += usize::from(chunk.stage == Stage::Settled);
        chunk.stage = Stage::Queued;
    }

    /// Forgets the names of committed chunks: if one occurs again, the client asks, and the answer is `Durable`.
    pub fn forget_names(&mut self) {
        self.by_name.clear();
    }

    pub fn drop_data(&mut self) {
        self.chunks.iter_mut().for_each(|chunk| chunk.active = None);
        self.held_bytes = 0;
    }
}

impl Deref for ChunkTable {
    type Target = [Chunk];
    fn deref(&self) -> &[Chunk] {
        &self.chunks
    }
}

impl DerefMut for ChunkTable {
    fn deref_mut(&mut self) -> &mut [Chunk] {
        &mut self.chunks
    }
}
