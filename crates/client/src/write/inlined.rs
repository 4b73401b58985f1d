//! Contents of tiny files move out of the metadata into packs. Rows of contents change, and no file does.

use super::Cancel;
use super::moving::{MovedFiles, Share, holds_its_contents};
use super::pack::{FEWEST_FILES, MOST_CONTENTS, PACK_BYTES, Packing};
use crate::client::Client;
use crate::error::{Error, FileError};
use crate::write::core::PackParams;
use bytes::Bytes;
use std::collections::HashSet;
use std::time::Duration;
use tessera_accel::hash::chunk_hash;
use tessera_wire::Code;
use tessera_wire::meta::*;

/// How often a batch is packed again because some of its contents were removed meanwhile.
const MOST_TRIES: u32 = 4;

/// Contents of one domain that will move into one pack of one class.
#[derive(Debug)]
pub struct InlinedBatch {
    domain: u32,
    class_id: u32,
    packing: Packing,
    moved: Vec<MovedContent>,
    /// Those that move.
    contents: Vec<ContentInfo>,
    /// One before it could not be written.
    failed: bool,
}

impl Client {
    /// Moves contents of this share that were written so long ago. Fewer than four of a kind stay, and so do all of a kind that cannot be written
    /// now.
    pub(super) fn move_inlined(&self, unwritten: Duration, share: Share, cancel: &Cancel) -> Result<MovedFiles, Error> {
        let unwritten_ms = u64::try_from(unwritten.as_millis()).unwrap_or(u64::MAX);
        let (mut all, mut batches, mut after) = (MovedFiles::default(), Vec::<InlinedBatch>::new(), 0);
        loop {
            let listed = self.ask(&ListInlined { after, unwritten_ms, own: share.own, all: share.all })?;
            for InlinedContent { content, domain, class_id } in listed.contents {
                let Some(content) = content else { continue };
                if cancel.is_cancelled() {
                    return Ok(all);
                }
                let is_like = |batch: &InlinedBatch| (batch.domain, batch.class_id) == (domain, class_id);
                let at = batches.iter().position(is_like).unwrap_or_else(|| {
                    batches.push(InlinedBatch::of(domain, class_id));
                    batches.len() - 1
                });
                if !batches[at].has_room(&content) {
                    let next = InlinedBatch { failed: batches[at].failed, ..InlinedBatch::of(domain, class_id) };
                    let full = std::mem::replace(&mut batches[at], next);
                    batches[at].failed |= !self.move_contents(full, share, cancel, &mut all)?;
                }
                batches[at].add(&content);
            }
            if listed.next_after <= after {
                break;
            }
            after = listed.next_after;
        }
        for batch in batches {
            self.move_contents(batch, share, cancel, &mut all)?;
        }
        Ok(all)
    }

    /// Whether more of the kind may be written. A content that goes meanwhile leaves nothing to compare the pack with: the rest is packed again.
    fn move_contents(
        &self,
        mut batch: InlinedBatch,
        share: Share,
        cancel: &Cancel,
        all: &mut MovedFiles,
    ) -> Result<bool, Error> {
        if batch.failed {
            return Ok(false);
        }
        let mut tries = MOST_TRIES;
        while batch.moved.len() >= FEWEST_FILES {
            let contents = batch.contents.clone();
            let (domain, class_id) = (batch.domain, batch.class_id);
            let (bytes, pack) = batch.finish();
            if !holds_its_contents(&bytes, &pack) {
                return Ok(false);
            }
            tries -= 1;
            let failed = match self.commit_contents(&bytes, &pack, cancel) {
                Ok(moved) => {
                    all.contents += moved;
                    all.pack_bytes += if moved > 0 { bytes.len() as u64 } else { 0 };
                    return Ok(true);
                }
                Err(error) if error.code() == Code::SessionExpired && tries > 0 => {
                    batch = self.left_of(contents, share, InlinedBatch::of(domain, class_id))?;
                    continue;
                }
                Err(error) => error,
            };
            all.failed.get_or_insert(failed);
            return Ok(false);
        }
        Ok(true)
    }

    /// Commits a pack. Returns how many contents it took; 0: all of them are gone, or in packs by now.
    fn commit_contents(&self, bytes: &Bytes, pack: &Pack, cancel: &Cancel) -> Result<u64, FileError> {
        for like in pack.moved.iter().map(|moved| moved.content_id) {
            match self.commit_pack(bytes.clone(), PackParams { pack: pack.clone(), like }, cancel) {
                Err(error) if error.code() == Code::NotFound => {}
                Err(error) => return Err(error),
                Ok(moved) => {
                    assert!(moved <= pack.moved.len() as u64, "{moved} of {} contents moved", pack.moved.len());
                    return Ok(moved);
                }
            }
        }
        Ok(0)
    }

    /// Those of the contents that lie in the metadata still.
    fn left_of(
        &self,
        contents: Vec<ContentInfo>,
        share: Share,
        mut batch: InlinedBatch,
    ) -> Result<InlinedBatch, Error> {
        let ids = || contents.iter().map(|content| content.content_id);
        let (mut after, last) = (ids().min().unwrap_or(1) - 1, ids().max().unwrap_or(0));
        let mut left = HashSet::new();
        while after < last {
            let listed = self.ask(&ListInlined { after, unwritten_ms: 0, own: share.own, all: share.all })?;
            left.extend(listed.contents.into_iter().filter_map(|listed| Some(listed.content?.content_id)));
            if listed.next_after <= after {
                break;
            }
            after = listed.next_after;
        }
        contents.iter().filter(|content| left.contains(&content.content_id)).for_each(|content| batch.add(content));
        Ok(batch)
    }
}

impl InlinedBatch {
    /// An empty batch.
    #[must_use]
    pub fn of(domain: u32, class_id: u32) -> InlinedBatch {
        InlinedBatch {
            domain,
            class_id,
            packing: Packing::default(),
            moved: Vec::new(),
            contents: Vec::new(),
            failed: false,
        }
    }

    fn has_room(&self, content: &ContentInfo) -> bool {
        self.packing.len_bytes() + content.inlined.len() <= PACK_BYTES
            && self.packing.count() < MOST_CONTENTS
            && self.moved.len() < MOST_CONTENTS
    }

    /// Adds a content, unless its bytes have rotted: then its readers are told, and the others move.
    pub fn add(&mut self, content: &ContentInfo) {
        let hash = chunk_hash(&content.inlined).0;
        if content.inlined.len() as u64 != content.len_bytes || hash[..] != content.hash[..] {
            return tracing::warn!(
                content_id = content.content_id,
                "a content in the metadata is not what its name says"
            );
        }
        self.contents.push(content.clone());
        let place = self.packing.place(hash, &content.inlined);
        self.moved.push(MovedContent { content_id: content.content_id, from_chunk_id: 0, place });
    }

    /// The bytes of the pack, and what its commit says. Any of the contents may lend it domain and class ([`PackParams::like`]).
    #[must_use]
    pub fn finish(self) -> (Bytes, Pack) {
        let (bytes, contents) = self.packing.finish();
        (bytes, Pack { contents, moved: self.moved, ..Pack::default() })
    }
}
