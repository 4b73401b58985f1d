//! Small files that were written by themselves move into packs once they are cold. Versions, attributes and what programs see stay as they are.
//!
//! Files are read as their versions are described, without sessions: one that is written meanwhile has another version when the pack is
//! committed, and stays where it is.

use super::pack::{FEWEST_FILES, MOST_CONTENTS, PACK_BYTES, PACK_FILES, Packing};
use super::{Cancel, Writer};
use crate::client::Client;
use crate::error::{Error, FileError};
use crate::inodes::write_params;
use crate::memory::Means;
use crate::read::describe::DESCRIBED_FILES;
use crate::write::core::{PackParams, Target, WriteParams};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tessera_accel::hash::chunk_hash;
use tessera_wire::meta::*;
use tessera_wire::{Code, Extent, Hint};

/// Files of a group that are read by themselves because they could not be read with the others.
const MOST_RETRIES: usize = 4;

/// What was done.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MovedFiles {
    /// Files whose chunks lie in packs now.
    pub files: u64,
    /// Contents of tiny files that lay in the metadata, and lie in packs now.
    pub contents: u64,
    /// Bytes of these packs.
    pub pack_bytes: u64,
    /// Why not more was done.
    pub failed: Option<FileError>,
}

/// A part of the files, or contents, whose numbers come in runs: those of a run were probably made together, and are read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Which part, from 0.
    pub own: u64,
    /// Of so many.
    pub all: u64,
}

impl Share {
    /// All of them.
    pub const ALL: Share = Share { own: 0, all: 1 };

    fn has(self, number: u64) -> bool {
        number / SHARE_RUN % self.all.max(1) == self.own
    }
}

/// Files of one policy that will move into one pack.
pub struct Batch {
    policy: Vec<Hint>,
    packing: Packing,
    files: Vec<MovedFile>,
    /// Those of them that have a place in the pack.
    fitting: usize,
}

impl Client {
    /// Moves files of this share that were not written for `unwritten`, and could share packs, into packs, and contents of tiny files out of the
    /// metadata. Fewer than four that could share a pack stay where they are.
    ///
    /// # Errors
    /// The manager does not answer. Files that cannot be read stay where they are; the first pack that cannot be written is the last of its
    /// kind, see [`MovedFiles::failed`].
    pub fn move_into_packs(&self, unwritten: Duration, share: Share, cancel: &Cancel) -> Result<MovedFiles, Error> {
        let contents = self.move_inlined(unwritten, share, cancel)?;
        let files = self.move_files(unwritten, share, cancel)?;
        Ok(MovedFiles {
            contents: contents.contents,
            pack_bytes: contents.pack_bytes + files.pack_bytes,
            failed: files.failed.or(contents.failed),
            ..files
        })
    }

    fn move_files(&self, unwritten: Duration, share: Share, cancel: &Cancel) -> Result<MovedFiles, Error> {
        let (mut all, mut batches, mut after) = (MovedFiles::default(), Vec::<Batch>::new(), 0);
        let unwritten_ms = u64::try_from(unwritten.as_millis()).unwrap_or(u64::MAX);
        loop {
            let ListUnpackedReply { inos, next_after } = self.ask(&ListUnpacked { after, unwritten_ms })?;
            let mine: Vec<u64> = inos.into_iter().filter(|ino| share.has(*ino)).collect();
            for inos in mine.chunks(DESCRIBED_FILES) {
                for (known, pieces) in self.read_fitting(self.describe_inodes(inos)?) {
                    if cancel.is_cancelled() || all.failed.is_some() {
                        return Ok(all);
                    }
                    self.add_to_batch(&known, &pieces, &mut batches, cancel, &mut all);
                }
            }
            if next_after <= after {
                break;
            }
            after = next_after;
        }
        batches.into_iter().for_each(|batch| self.move_batch(batch, cancel, &mut all));
        Ok(all)
    }

    /// Reads the bytes of the chunks of each file whose extents are whole chunks; the other files come without any. What cannot be read
    /// now is left out.
    fn read_fitting(&self, known: Vec<OpenReadReply>) -> Vec<(OpenReadReply, Vec<Bytes>)> {
        let (fitting, others): (Vec<_>, Vec<_>) = known.into_iter().partition(fits);
        let mut read: Vec<_> = others.into_iter().map(|known| (known, Vec::new())).collect();
        let mut retries = MOST_RETRIES;
        for (known, content) in fitting.iter().zip(self.read_described(fitting.clone())) {
            // One that cannot be read takes those behind it along.
            let content = content.or_else(|| {
                retries = retries.checked_sub(1)?;
                let alone = self.read_described(vec![known.clone()]).pop().flatten();
                retries += usize::from(alone.is_some());
                alone
            });
            read.extend(content.map(|content| (known.clone(), pieces_of(known, content.bytes()))));
        }
        read
    }

    fn add_to_batch(
        &self,
        known: &OpenReadReply,
        pieces: &[Bytes],
        batches: &mut Vec<Batch>,
        cancel: &Cancel,
        all: &mut MovedFiles,
    ) {
        let (Some(attr), Some(version)) = (&known.attr, &known.version) else { return };
        let at = batches.iter().position(|batch| batch.policy == known.policy).unwrap_or_else(|| {
            batches.push(Batch::of(known.policy.clone()));
            batches.len() - 1
        });
        if !batches[at].has_room(pieces) {
            let full = std::mem::replace(&mut batches[at], Batch::of(known.policy.clone()));
            self.move_batch(full, cancel, all);
        }
        batches[at].add(attr.ino, version.version, pieces);
    }

    fn move_batch(&self, batch: Batch, cancel: &Cancel, all: &mut MovedFiles) {
        let fitting = batch.fitting;
        if fitting < FEWEST_FILES || all.failed.is_some() {
            return;
        }
        // The pack takes policy and domain from a file that is there.
        let targets: Vec<u64> =
            batch.files.iter().filter(|file| !file.places.is_empty()).map(|file| file.ino).collect();
        let (bytes, pack) = batch.finish();
        let size_bytes = bytes.len() as u64;
        if !holds_its_contents(&bytes, &pack.pack) {
            return;
        }
        let params = WriteParams {
            file: format!("a pack of {fitting} files"),
            size_hint_bytes: Some(size_bytes),
            pack: Some(Arc::new(pack)),
            ..write_params(0, false)
        };
        for ino in targets {
            let params = WriteParams { target: Target::Inode(ino), ..params.clone() };
            let writer = Writer::new(&self.context, params, cancel.clone(), Means::of_options(&self.context));
            match writer.write_pack(bytes.clone()) {
                // It was removed, or has another policy by now.
                Err(error) if matches!(error.code(), Code::NotFound | Code::SessionExpired) => {}
                Err(error) if error.code() == Code::Invalid => {
                    return tracing::warn!(%error, "these files do not move into a pack");
                }
                Err(error) => return all.failed = Some(error),
                Ok(done) => {
                    assert!(done.moved <= fitting as u64, "{} of {fitting} files moved", done.moved);
                    all.files += done.moved;
                    all.pack_bytes += if done.moved > 0 { size_bytes } else { 0 };
                    return;
                }
            }
        }
    }
}

impl Batch {
    /// An empty batch of files of this policy.
    #[must_use]
    pub fn of(policy: Vec<Hint>) -> Batch {
        Batch { policy, packing: Packing::default(), files: Vec::new(), fitting: 0 }
    }

    fn has_room(&self, pieces: &[Bytes]) -> bool {
        let size_bytes: usize = pieces.iter().map(Bytes::len).sum();
        self.packing.len_bytes() + size_bytes <= PACK_BYTES
            && self.packing.count() + pieces.len() <= MOST_CONTENTS
            && self.files.len() < PACK_FILES
    }

    /// Adds a file with the bytes of its chunks in order; empty: a content, which stays where it is. Without any chunk, the manager is told
    /// only that the file is not to be listed again.
    pub fn add(&mut self, ino: u64, version: u64, pieces: &[Bytes]) {
        let place = |piece: &Bytes| match piece.is_empty() {
            true => Some(0),
            false => Some(self.packing.extent(0, piece).chunk_id).filter(|place| *place != 0),
        };
        // None: a chunk is all zeros, and no content.
        let places: Option<Vec<u64>> = pieces.iter().map(place).collect();
        let places = places.filter(|places| places.iter().any(|place| *place != 0)).unwrap_or_default();
        self.fitting += usize::from(!places.is_empty());
        self.files.push(MovedFile { ino, version, places });
    }

    /// The bytes of the pack, and what its commit says.
    #[must_use]
    pub fn finish(self) -> (Bytes, PackParams) {
        let (bytes, contents) = self.packing.finish();
        (bytes, PackParams { pack: Pack { contents, moved_files: self.files, ..Pack::default() }, like: 0 })
    }
}

/// Whether each extent of a file is a hole, all of a chunk, or of a content.
fn fits(known: &OpenReadReply) -> bool {
    let Some(list) = &known.extents else { return false };
    let is_whole = |extent: &Extent| {
        let chunk = list.chunks.iter().find(|chunk| chunk.chunk_id == extent.chunk_id);
        extent.chunk_offset == 0 && chunk.is_some_and(|chunk| chunk.len_bytes == extent.len_bytes)
    };
    list.extents.iter().all(|extent| extent.chunk_id == 0 || extent.chunk_id >= FIRST_CONTENT || is_whole(extent))
}

/// The bytes of a file's chunks in order; of contents, none.
fn pieces_of(known: &OpenReadReply, content: &Bytes) -> Vec<Bytes> {
    let extents = known.extents.iter().flat_map(|list| &list.extents);
    let chunks = extents.filter(|extent| extent.chunk_id != 0);
    let bytes = |extent: &Extent| match extent.chunk_id >= FIRST_CONTENT {
        true => Bytes::new(),
        false => content.slice(extent.offset as usize..extent.end() as usize),
    };
    chunks.map(bytes).collect()
}

/// Whether each content of a pack has its name where it lies; says so if not. Copies and older packs are given up for this one, and nobody
/// but this process has compared it with them.
pub(super) fn holds_its_contents(bytes: &Bytes, pack: &Pack) -> bool {
    let holds = pack.contents.iter().all(|content| {
        let range = content.offset as usize..(content.offset + content.len_bytes) as usize;
        chunk_hash(&bytes[range]).0[..] == content.hash[..]
    });
    if !holds {
        tracing::error!("the memory of this machine does not keep what is written to it; nothing moves into the pack");
    }
    holds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Cause;
    use crate::test_drive::data;
    use crate::tests::{client, path};
    use crate::{Options, PutOptions};
    use tessera_testkit::Cluster;

    /// P2: a client may say that a pack has the bytes of files that are in chunks of their own.
    #[test]
    fn a_read_that_follows_its_file_into_a_pack_compares_its_bytes_with_their_name() {
        let (client, cluster) = client(Cluster::new(8, 1), Options { get_timeout_ms: 500, ..Options::default() });
        let name = |i: u64| path(&format!("tess:/f{i}"));
        (0..4).for_each(|i| drop(client.put(&name(i), &data(7_000, i)[..], PutOptions::default()).unwrap()));
        let inos: Vec<u64> = (0..4).map(|i| client.stat(&name(i)).unwrap().ino).collect();
        let described = client.describe_inodes(&inos).unwrap();
        let mut batch = Batch::of(described[0].policy.clone());
        for (i, known) in (0..4).zip(&described) {
            let (attr, version) = (known.attr.as_ref().unwrap(), known.version.as_ref().unwrap());
            batch.add(attr.ino, version.version, &[data(7_000, i).into()]);
        }
        let (bytes, pack) = batch.finish();
        let mut bytes = bytes.to_vec();
        bytes[100] ^= 1;
        let handle = client.read_inode(inos[0], 0, 0..u64::MAX).unwrap();
        let params = WriteParams {
            size_hint_bytes: Some(bytes.len() as u64),
            pack: Some(Arc::new(pack)),
            ..write_params(inos[0], false)
        };
        let writer = Writer::new(&client.context, params, Cancel::default(), Means::of_options(&client.context));
        assert_eq!(writer.write_pack(bytes.into()).unwrap().moved, 4);
        client.context.cache.clear();
        // Their chunks go.
        for _ in 0..2 {
            cluster.lock().run(60_000);
            client.maintain(MaintenanceJob::Gc, true).unwrap();
            cluster.lock().run(60_000);
        }
        let mut out = vec![0; 7_000];
        let error = handle.read_at(0, &mut out).unwrap_err();
        assert!(matches!(error.cause, Cause::WrongContent { .. }), "{error}");
        let other = client.read_inode(inos[1], 0, 0..u64::MAX).unwrap();
        assert_eq!(other.read_at(0, &mut out).unwrap(), 7_000);
        assert!(out == data(7_000, 1));
    }
}
