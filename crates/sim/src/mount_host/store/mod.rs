//! Versions of files as the client library reads and writes them, over a store whose chunks are blocks.
//!
//! A file of the simulated programs consists of blocks of [`BLOCK_BYTES`] bytes. A block is a chunk, and the manager is
//! told the block itself as the chunk's hash. So the manager's extents decide a version's content, and no node needs to
//! hold bytes: a reader asks for the extents. A block of zeros is a hole. Sessions, dedup questions, acknowledgements,
//! staged parts and one-shot commits are those of the client.

mod writer;

pub use writer::BlockWriter;

use super::link::Link;
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use tessera_client::inodes::OnlyIf;
use tessera_client::{Cause, FileError, Opened, Owner, Times, WriteDone};
use tessera_wire::meta::*;
use tessera_wire::{Code, Error, Extent, Request};

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 32;
/// Redundancy of all files.
pub const REDUNDANCY: &str = "none";
/// Chunk ids drawn ahead for small files.
const PREALLOCATE: u32 = 16;
/// A session that stages sends a commit of more extents than this in parts.
const WHOLE_EXTENTS: usize = 3;

/// A block.
pub type Block = [u8; BLOCK_BYTES as usize];

/// The block of zeros.
pub const HOLE: Block = [0; BLOCK_BYTES as usize];

/// Chunk ids drawn ahead.
#[derive(Default)]
struct Preallocated {
    session_id: u64,
    chunks: Vec<ChunkAnswer>,
}

/// The data side of a client. Clones share it.
#[derive(Clone)]
pub struct Store {
    link: Link,
    preallocated: Rc<RefCell<Preallocated>>,
}

/// The file that a write is for.
#[derive(Debug, Clone)]
pub struct Target {
    /// Directory; 0: the file is named by inode.
    pub parent: u64,
    /// Name in the directory.
    pub name: Vec<u8>,
    /// The inode, or the number of the new file.
    pub ino: u64,
    /// Inode numbers to draw along with the commit.
    pub inos: u32,
    /// Owner of the new file.
    pub owner: Owner,
}

impl Target {
    /// A file by inode.
    pub fn inode(ino: u64) -> Target {
        Target { parent: 0, name: Vec::new(), ino, inos: 0, owner: Owner::default() }
    }
}

impl Store {
    /// The data side of the client behind `link`.
    pub fn new(link: Link) -> Store {
        Store { link, preallocated: Rc::default() }
    }

    /// Opens a version (its id; 0: the current one).
    ///
    /// # Errors
    /// There is no such version, or the manager does not answer.
    pub async fn open_read(&self, ino: u64, version: u64) -> Result<BlockReader, FileError> {
        let refused = |request| move |error| refused(request, error).of(format!("inode {ino}"));
        let request = OpenRead { ino, version, len_bytes: u64::MAX, ..OpenRead::default() };
        let reply = self.link.ask(request).await.map_err(refused("OpenRead"))?;
        let session = OpenSession::keep(&self.link, reply.session_id, reply.session_ms);
        let opened = Opened {
            attr: reply.attr.unwrap_or_default(),
            version: reply.version.unwrap_or_default(),
            policy: reply.policy,
        };
        let size_bytes = opened.version.size_bytes;
        let mut content = vec![0; size_bytes as usize];
        let mut page = reply.extents.unwrap_or_default();
        loop {
            place(&page, &mut content);
            if page.next_offset >= size_bytes || page.extents.is_empty() {
                break;
            }
            let next = ListExtents {
                session_id: reply.session_id,
                offset: page.next_offset,
                len_bytes: u64::MAX,
                known_map_version: 0,
            };
            page = self.link.ask(next).await.map_err(refused("ListExtents"))?;
        }
        Ok(BlockReader { link: self.link.clone(), opened, content, session: Some(session) })
    }

    /// Reads files that were described. Some cannot be read.
    pub async fn read_described(&self, files: Vec<OpenReadReply>) -> Vec<Option<BlockReader>> {
        self.link.env().sleep_ms(self.link.random() % 5).await;
        let read = |file: OpenReadReply| {
            let (attr, version, extents) = (file.attr?, file.version?, file.extents?);
            let mut content = vec![0; version.size_bytes as usize];
            place(&extents, &mut content);
            let opened = Opened { attr, version, policy: file.policy };
            let are_gone = self.link.random().is_multiple_of(8);
            (!are_gone).then(|| BlockReader { link: self.link.clone(), opened, content, session: None })
        };
        files.into_iter().map(read).collect()
    }

    /// Opens a write session on a file.
    ///
    /// # Errors
    /// There is no such file, or the manager refuses or does not answer.
    pub async fn open_write(
        &self,
        target: Target,
        patch: bool,
        if_version: Option<u64>,
    ) -> Result<BlockWriter, FileError> {
        let file = format!("inode {}", target.ino);
        let request = OpenWrite { op_id: self.link.op_id(), ..open_request(&target) };
        let reply = self.link.ask(request).await.map_err(|e| write_refused(&file, if_version, "OpenWrite", e))?;
        let session = OpenSession::keep(&self.link, reply.session_id, reply.session_ms);
        Ok(BlockWriter {
            link: self.link.clone(),
            file,
            owner: target.owner,
            session,
            mode: if patch { CommitMode::Patch } else { CommitMode::Replace },
            if_version,
            position: 0,
            blocks: BTreeMap::new(),
            size_bytes: if patch { reply.base_size_bytes } else { 0 },
            end_bytes: 0,
            cuts: false,
            stages: self.link.random().is_multiple_of(2),
            goes_back: false,
            times: Times::default(),
            content: 0,
            lock_fence: None,
            failed: None,
        })
    }

    /// Replaces a file's content by one version: in one request if chunk ids are at hand, else through a session.
    ///
    /// # Errors
    /// No part of the write is visible, unless there was no answer.
    pub async fn write_whole(
        &self,
        target: Target,
        bytes: &[u8],
        times: Times,
        only_if: OnlyIf,
    ) -> Result<WriteDone, FileError> {
        match self.one_shot(&target, bytes, times, only_if).await {
            None => {}
            Some(Err(error)) if error.code() == Code::SessionExpired => {}
            Some(done) => return done,
        }
        self.preallocate(&target).await;
        let mut writer = self.open_write(target, false, only_if.version).await?;
        writer.write_at(0, bytes).await?;
        writer.set_times(times);
        writer.set_lock_fence(only_if.lock_fence);
        writer.finish().await
    }

    /// Draws chunk ids, for the next small files.
    async fn preallocate(&self, target: &Target) {
        if !self.preallocated.borrow().chunks.is_empty() {
            return;
        }
        let request = OpenWrite {
            op_id: self.link.op_id(),
            redundancy: REDUNDANCY.into(),
            preallocate: PREALLOCATE,
            parent: if target.parent == 0 { 0 } else { target.parent },
            ..open_request(target)
        };
        let Ok(reply) = self.link.ask(request).await else { return };
        self.link.tell(&CloseSession { session_id: reply.session_id, ..Default::default() });
        if let Some(grant) = reply.preallocated {
            *self.preallocated.borrow_mut() = Preallocated { session_id: grant.session_id, chunks: grant.chunks };
        }
    }

    /// The one-shot commit; none: there are too few chunk ids at hand.
    async fn one_shot(
        &self,
        target: &Target,
        bytes: &[u8],
        times: Times,
        only_if: OnlyIf,
    ) -> Option<Result<WriteDone, FileError>> {
        let blocks = cut(0, bytes);
        let mut unique: Vec<Block> = blocks.iter().map(|(_, block)| *block).filter(|block| *block != HOLE).collect();
        unique.sort_unstable();
        unique.dedup();
        let (session_id, taken) = {
            let mut preallocated = self.preallocated.borrow_mut();
            let left = preallocated.chunks.len().checked_sub(unique.len())?;
            let taken: Vec<ChunkAnswer> = preallocated.chunks.drain(left..).collect();
            (if taken.is_empty() { 0 } else { preallocated.session_id }, taken)
        };
        let ids: BTreeMap<Block, u64> = unique.iter().copied().zip(taken.iter().map(|chunk| chunk.chunk_id)).collect();
        let open = OpenWrite {
            redundancy: REDUNDANCY.into(),
            size_hint_bytes: bytes.len() as u64,
            chunks: unique.iter().map(chunk_name).collect(),
            ..open_request(target)
        };
        let commit = Commit {
            op_id: self.link.op_id(),
            session_id,
            mode: CommitMode::Replace as i32,
            if_version: only_if.version,
            size_bytes: bytes.len() as u64,
            extents: whole_extents(&blocks, bytes.len() as u64, &ids),
            acks: taken.iter().map(ack).collect(),
            mtime_ns: times.mtime_ns,
            ctime_ns: times.ctime_ns,
            atime_ns: times.atime_ns,
            file_mode: Some(target.owner.mode),
            uid: target.owner.uid,
            gid: target.owner.gid,
            want_lease: true,
            preallocated_ids: taken.iter().map(|chunk| chunk.chunk_id).collect(),
            open: Some(Box::new(open)),
            lock_fence: only_if.lock_fence,
            ..Commit::default()
        };
        let file = format!("inode {}", target.ino);
        let reply = self.link.ask(commit).await.map_err(|e| write_refused(&file, only_if.version, "Commit", e));
        Some(reply.and_then(|reply| done(&file, reply)))
    }
}

fn open_request(target: &Target) -> OpenWrite {
    let Target { parent, name, ino, inos, .. } = target;
    OpenWrite { parent: *parent, name: name.clone(), ino: *ino, inos: *inos, ..OpenWrite::default() }
}

fn chunk_name(block: &Block) -> ChunkName {
    ChunkName { hash: Bytes::copy_from_slice(block), len_bytes: BLOCK_BYTES, region: 0 }
}

/// A chunk that was stored: no node is asked, so every put succeeds.
fn ack(chunk: &ChunkAnswer) -> ChunkAck {
    ChunkAck { chunk_id: chunk.chunk_id, epochs: vec![chunk.epoch], ..ChunkAck::default() }
}

/// Bytes as blocks with their offsets.
fn cut(offset: u64, bytes: &[u8]) -> Vec<(u64, Block)> {
    let len = bytes.len() as u64;
    assert!(
        offset.is_multiple_of(BLOCK_BYTES) && len.is_multiple_of(BLOCK_BYTES),
        "{len} bytes at {offset} are not whole blocks"
    );
    let blocks = bytes.chunks_exact(BLOCK_BYTES as usize).zip((offset..).step_by(BLOCK_BYTES as usize));
    blocks.map(|(block, at)| (at, block.try_into().expect("a block's length"))).collect()
}

fn extent(at: u64, block: &Block, ids: &BTreeMap<Block, u64>) -> Extent {
    match *block == HOLE {
        true => Extent::hole(at, BLOCK_BYTES),
        false => Extent::of_chunk(at, BLOCK_BYTES, ids[block], block, 0),
    }
}

/// Extents of a whole version: holes between the blocks.
fn whole_extents(blocks: &[(u64, Block)], size_bytes: u64, ids: &BTreeMap<Block, u64>) -> Vec<Extent> {
    let (mut extents, mut end) = (Vec::new(), 0);
    let hole = |from: u64, to: u64| Extent::hole(from, to - from);
    for (at, block) in blocks {
        if *at > end {
            extents.push(hole(end, *at));
        }
        extents.push(extent(*at, block, ids));
        end = at + BLOCK_BYTES;
    }
    if size_bytes > end {
        extents.push(hole(end, size_bytes));
    }
    extents
}

/// Puts the blocks that a page of extents names into `content`.
fn place(page: &ListExtentsReply, content: &mut [u8]) {
    let chunks: BTreeMap<u64, &[u8]> = page.chunks.iter().map(|chunk| (chunk.chunk_id, &chunk.hash[..])).collect();
    for extent in page.extents.iter().filter(|extent| extent.chunk_id != 0) {
        let (from, at) = (extent.chunk_offset as usize, extent.offset as usize);
        let end = (at + extent.len_bytes as usize).min(content.len());
        content[at..end].copy_from_slice(&chunks[&extent.chunk_id][from..from + end - at]);
    }
}

/// A session that is renewed while this value lives, and closed with it.
struct OpenSession {
    link: Link,
    id: u64,
    /// The manager closed it.
    closed: Cell<bool>,
    _alive: Rc<()>,
}

impl OpenSession {
    fn keep(link: &Link, id: u64, session_ms: u64) -> OpenSession {
        let alive = Rc::new(());
        let (weak, renewing) = (Rc::downgrade(&alive), link.clone());
        link.env().spawn(link.owner(), async move {
            loop {
                renewing.env().sleep_ms((session_ms / 3).max(1)).await;
                if weak.upgrade().is_none() {
                    return;
                }
                renewing.tell(&RenewSession { session_id: id, reserve_bytes: 0 });
            }
        });
        OpenSession { link: link.clone(), id, closed: Cell::new(false), _alive: alive }
    }
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        if !self.closed.get() {
            self.link.tell(&CloseSession { session_id: self.id, ..Default::default() });
        }
    }
}

/// An open version.
pub struct BlockReader {
    link: Link,
    opened: Opened,
    content: Vec<u8>,
    /// None: the content was read as described.
    session: Option<OpenSession>,
}

impl BlockReader {
    /// Reads at `offset` as many bytes as there are and fit; returns how many.
    ///
    /// # Errors
    /// None: the blocks are at hand.
    pub async fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, FileError> {
        self.link.env().sleep_ms(self.link.random() % 3).await;
        let from = (offset as usize).min(self.content.len());
        let len = (self.content.len() - from).min(out.len());
        out[..len].copy_from_slice(&self.content[from..from + len]);
        Ok(len)
    }

    /// Whether a session keeps the version.
    pub fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// The version, and the file when it was opened.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }
}

fn done(file: &str, reply: CommitReply) -> Result<WriteDone, FileError> {
    if !reply.stale.is_empty() {
        let message = "a group moved although no node ever goes".to_string();
        return Err(Cause::Nonsense(message).of(file));
    }
    Ok(WriteDone {
        ino: reply.ino,
        version: reply.version,
        number: reply.number,
        superseded: reply.superseded,
        entry: reply.entry.map(Box::new),
        inos: reply.inos,
        delegation_ms: reply.delegation_ms,
        ..WriteDone::default()
    })
}

fn write_refused(file: &str, if_version: Option<u64>, request: &'static str, error: Error) -> FileError {
    let cause = match error.code() {
        Code::VersionConflict => Cause::VersionConflict { expected: if_version.unwrap_or(0), current: error.current },
        _ => refused(request, error),
    };
    cause.of(file)
}

fn refused(request: &'static str, error: Error) -> Cause {
    match error.is_retryable() {
        true => Cause::ManagerSilent { request, waited_ms: 0, last: error.message },
        false => Cause::Refused(error),
    }
}
