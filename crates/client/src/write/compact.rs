//! Packs of which little is left are written anew: what is left of several goes into one, and the old ones become garbage.
//!
//! With packs at most half of which is left, each byte that is written frees another one at least. Files do not change, and may be read and
//! written meanwhile: what is gone or elsewhere when the new pack is committed stays as it is.

use super::moving::holds_its_contents;
use super::pack::{MOST_CONTENTS, PACK_BYTES};
use super::{Cancel, Writer};
use crate::client::Client;
use crate::error::{Error, FileError};
use crate::inodes::write_params;
use crate::memory::Means;
use crate::read::ReadHandle;
use crate::read::core::ReadParams;
use crate::write::core::{PackParams, WriteParams};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use tessera_accel::boundaries::MAX_CHUNK_BYTES;
use tessera_accel::hash::chunk_hash;
use tessera_wire::meta::*;
use tessera_wire::{Attr, ChunkInfo, ClassInfo, Code, Extent};

/// What was done.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Compacted {
    /// Packs of which nothing is left.
    pub packs: u64,
    /// Their bytes.
    pub pack_bytes: u64,
    /// Those of these bytes that lie in new packs now.
    pub moved_bytes: u64,
    /// Why not more was done.
    pub failed: Option<FileError>,
}

/// A new pack that is being filled, of one class.
#[derive(Debug)]
pub struct Refill {
    class_id: u32,
    /// The packs whose contents it takes. It takes domain and class of one of them.
    from: Vec<u64>,
    bytes: BytesMut,
    pack: Pack,
    /// What becomes true with its commit.
    done: Compacted,
}

impl Client {
    /// Writes packs anew of whose bytes at most `most_living_percent` are left; `is_mine` chooses among them by id.
    ///
    /// # Errors
    /// The manager does not answer. Packs that cannot be read are left as they are; what could not be written is in [`Compacted::failed`].
    /// The first that finds no space is the last: the space of the old packs comes back when garbage is collected.
    pub fn compact_packs(
        &self,
        most_living_percent: u32,
        is_mine: impl Fn(u64) -> bool,
        cancel: &Cancel,
    ) -> Result<Compacted, Error> {
        let (mut all, mut refills, mut after) = (Compacted::default(), Vec::<Refill>::new(), 0);
        loop {
            let listed = self.ask(&ListPacks { after, most_living_percent })?;
            for pack in &listed.packs {
                let Some(chunk) = pack.chunk.as_ref().filter(|chunk| is_mine(chunk.chunk_id)) else { continue };
                if cancel.is_cancelled() || all.is_without_space() {
                    return Ok(all);
                }
                let at = match refills.iter().position(|refill| refill.class_id == chunk.class_id) {
                    Some(at) => at,
                    None => {
                        refills.push(Refill::like(chunk));
                        refills.len() - 1
                    }
                };
                if !refills[at].has_room(pack) {
                    let full = std::mem::replace(&mut refills[at], Refill::like(chunk));
                    self.write_pack(full, cancel, &mut all);
                }
                if let Err(error) = self.take(&mut refills[at], chunk, &pack.contents, &listed.classes) {
                    tracing::warn!(chunk_id = chunk.chunk_id, %error, "a pack cannot be read, and is not written anew");
                }
            }
            if listed.next_after <= after {
                break;
            }
            after = listed.next_after;
        }
        refills.into_iter().for_each(|refill| self.write_pack(refill, cancel, &mut all));
        Ok(all)
    }

    /// Adds what is left of an old pack.
    fn take(
        &self,
        refill: &mut Refill,
        chunk: &ChunkInfo,
        contents: &[ContentInfo],
        classes: &[ClassInfo],
    ) -> Result<(), FileError> {
        let handle = ReadHandle::open(&self.context, reading(chunk, classes))?;
        let mut whole = vec![0; (chunk.len_bytes as usize).min(MAX_CHUNK_BYTES)];
        let read = handle.read_at(0, &mut whole)?;
        refill.add(chunk.chunk_id, contents, &whole[..read]);
        Ok(())
    }

    fn write_pack(&self, refill: Refill, cancel: &Cancel, all: &mut Compacted) {
        let (from, done) = (refill.from.clone(), refill.done.clone());
        let (bytes, pack) = refill.finish();
        if bytes.is_empty() || all.is_without_space() {
            return;
        }
        let contents = pack.moved.len() as u64;
        if !holds_its_contents(&bytes, &pack) {
            return;
        }
        for like in from {
            match self.commit_pack(bytes.clone(), PackParams { pack: pack.clone(), like }, cancel) {
                // It lost its last content meanwhile, or was written anew by another client.
                Err(error) if error.code() == Code::NotFound => {}
                Err(error) => return all.failed = Some(error),
                Ok(moved) => {
                    // Some may be gone or elsewhere by now: then the old packs lose them without this one.
                    assert!(moved <= contents, "{moved} of {contents} contents were moved");
                    all.packs += done.packs;
                    all.pack_bytes += done.pack_bytes;
                    all.moved_bytes += done.moved_bytes;
                    return;
                }
            }
        }
    }

    /// Stores a pack that no file is written for. Returns how many contents were moved into it.
    pub(super) fn commit_pack(&self, bytes: Bytes, pack: PackParams, cancel: &Cancel) -> Result<u64, FileError> {
        let params = WriteParams {
            file: format!("a pack like {}", pack.like),
            size_hint_bytes: Some(bytes.len() as u64),
            pack: Some(Arc::new(pack)),
            ..write_params(0, false)
        };
        let means = Means::of_options(&self.context);
        Ok(Writer::new(&self.context, params, cancel.clone(), means).write_pack(bytes)?.moved)
    }
}

/// How to read a pack, as if it were a file.
#[must_use]
pub fn reading(chunk: &ChunkInfo, classes: &[ClassInfo]) -> ReadParams {
    let len_bytes = chunk.len_bytes;
    let extents = ListExtentsReply {
        extents: vec![Extent::of_chunk(0, len_bytes, chunk.chunk_id, &chunk.hash, 0)],
        chunks: vec![chunk.clone()],
        classes: classes.iter().filter(|class| class.class_id == chunk.class_id).cloned().collect(),
        next_offset: len_bytes,
        ..ListExtentsReply::default()
    };
    let known = OpenReadReply {
        attr: Some(Attr::default()),
        version: Some(VersionInfo { size_bytes: len_bytes, ..VersionInfo::default() }),
        extents: Some(extents),
        ..OpenReadReply::default()
    };
    let file = format!("pack {}", chunk.chunk_id);
    ReadParams { file, open: OpenRead::default(), known: Some(Box::new(known)), bulk: true }
}

impl Compacted {
    /// Whether more could be done once garbage is collected.
    #[must_use]
    pub fn is_without_space(&self) -> bool {
        self.failed.as_ref().is_some_and(|error| error.code() == Code::NoSpace)
    }
}

impl Refill {
    /// An empty one of the class of an old pack.
    #[must_use]
    pub fn like(chunk: &ChunkInfo) -> Refill {
        Refill {
            class_id: chunk.class_id,
            from: Vec::new(),
            bytes: BytesMut::new(),
            pack: Pack::default(),
            done: Compacted::default(),
        }
    }

    /// Whether the contents of a pack fit.
    fn has_room(&self, pack: &PackUse) -> bool {
        let len: u64 = pack.contents.iter().map(|content| content.len_bytes).sum();
        let contents = self.pack.contents.len() + pack.contents.len();
        self.bytes.is_empty() || (self.bytes.len() as u64 + len <= PACK_BYTES as u64 && contents <= MOST_CONTENTS)
    }

    /// Adds the contents that are left of the pack `pack_id`, whose bytes are `whole`.
    pub fn add(&mut self, pack_id: u64, contents: &[ContentInfo], whole: &[u8]) {
        let mut moved_bytes = 0;
        let before = self.pack.moved.len();
        // What does not fit stays for the next time.
        for content in contents.iter().take(MOST_CONTENTS - self.pack.contents.len()) {
            let end = content.chunk_offset.saturating_add(content.len_bytes);
            let own = whole.get(content.chunk_offset as usize..end as usize);
            let Some(own) = own.filter(|own| chunk_hash(own).0[..] == content.hash[..]) else {
                tracing::warn!(content.content_id, "a content is not what its name says, and stays where it is");
                continue;
            };
            let (offset, len_bytes) = (self.bytes.len() as u64, content.len_bytes);
            self.bytes.extend_from_slice(own);
            self.pack.contents.push(PackedContent { hash: content.hash.clone(), offset, len_bytes });
            let place = self.pack.contents.len() as u64;
            self.pack.moved.push(MovedContent { content_id: content.content_id, from_chunk_id: pack_id, place });
            moved_bytes += len_bytes;
        }
        let is_all = self.pack.moved.len() - before == contents.len();
        self.from.push(pack_id);
        self.done.packs += u64::from(is_all);
        self.done.pack_bytes += if is_all { whole.len() as u64 } else { 0 };
        self.done.moved_bytes += moved_bytes;
    }

    /// The bytes of the new pack, and what its commit says. Any of the old packs may lend it domain and class ([`PackParams::like`]).
    #[must_use]
    pub fn finish(self) -> (Bytes, Pack) {
        (self.bytes.freeze(), self.pack)
    }
}
