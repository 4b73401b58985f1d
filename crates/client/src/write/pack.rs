//! Many small files at once: their contents share chunks, the packs, and each pack is committed with its files in one request
//! ([`tessera_wire::meta::Pack`]). A file that cannot share, or of which the manager refuses to make a part of a pack, is written by itself.

use super::input::{CutRule, Cutting, Source, Stretch, is_hole};
use super::{Cancel, Writer, put};
use crate::context::Context;
use crate::error::{Cause, FileError};
use crate::memory::Held;
use crate::write::core::{Owner, PackParams, Target, WriteDone, WriteParams};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tessera_accel::hash::chunk_hash;
use tessera_policy::{Dedup, Placement, Policy};
use tessera_wire::Extent;
use tessera_wire::meta::{Commit, CommitMode, OpenWrite, Pack, PackedContent, PackedFile};

/// A pack has at most this many bytes.
pub const PACK_BYTES: usize = 1 << 20;
/// A pack has at most this many files.
pub const PACK_FILES: usize = 512;
/// A pack has at most this many contents.
pub(super) const MOST_CONTENTS: usize = 1_024;
/// Fewer files are written by themselves.
pub(super) const FEWEST_FILES: usize = 4;

/// Files that are written by themselves at the same time.
const ALONE_AT_ONCE: usize = 8;

/// A small file that waits to be stored.
#[derive(Debug, Clone)]
pub struct SmallFile {
    /// As for a write of the file by itself.
    pub params: WriteParams,
    /// All of its bytes.
    pub content: Bytes,
}

type Done = Result<WriteDone, FileError>;

/// Writes files, each as one version, with the memory that is held for them; returns the result of each, in order.
pub(crate) fn put_all(context: &Arc<Context>, files: Vec<SmallFile>, held: &Held, cancel: &Cancel) -> Vec<Done> {
    let mut done: Vec<Option<Done>> = files.iter().map(|_| None).collect();
    for group in groups(&files) {
        let members: Vec<&SmallFile> = group.iter().map(|i| &files[*i]).collect();
        let written = Packed::of(&members).and_then(|packed| write(context, packed, &members, held, cancel));
        for (i, result) in group.into_iter().zip(written.unwrap_or_default()) {
            done[i] = result;
        }
    }
    write_alone(context, &files, &mut done, held, cancel);
    done.into_iter().map(|done| done.expect("each file is a part of a pack, or alone")).collect()
}

/// Writes the files that have no result yet, some at a time, because each mostly waits.
fn write_alone(context: &Arc<Context>, files: &[SmallFile], done: &mut [Option<Done>], held: &Held, cancel: &Cancel) {
    let left: Vec<(&SmallFile, &mut Option<Done>)> =
        files.iter().zip(done).filter(|(_, done)| done.is_none()).collect();
    let left = Mutex::new(left.into_iter());
    let next = || left.lock().next();
    let work = || {
        while let Some((SmallFile { params, content }, done)) = next() {
            let source = Source::Bytes(content.clone());
            *done = Some(put(context, params.clone(), source, None, cancel.clone(), held.means(context)));
        }
    };
    std::thread::scope(|scope| {
        let others = left.lock().len().saturating_sub(1).min(ALONE_AT_ONCE - 1);
        (0..others).for_each(|_| drop(scope.spawn(work)));
        work();
    });
}

/// The files that may share a pack, by pack: their places.
fn groups(files: &[SmallFile]) -> Vec<Vec<usize>> {
    let mut groups: Vec<(Vec<usize>, usize)> = Vec::new();
    for (i, file) in files.iter().enumerate() {
        let Some(policy) = file.params.expect_policy.as_ref().filter(|policy| may_share(policy)) else { continue };
        let len = file.content.len();
        let fits = |(group, bytes): &&mut (Vec<usize>, usize)| {
            let first = &files[group[0]].params;
            let alike = first.expect_policy.as_ref() == Some(policy) && first.hints == file.params.hints;
            alike && bytes.saturating_add(len) <= PACK_BYTES && group.len() < PACK_FILES
        };
        match groups.iter_mut().rev().find(fits) {
            Some((group, bytes)) => {
                group.push(i);
                *bytes += len;
            }
            None => groups.push((vec![i], len)),
        }
    }
    groups.into_iter().map(|(group, _)| group).filter(|group| group.len() >= FEWEST_FILES).collect()
}

/// Whether the policy lets files share chunks with others.
fn may_share(policy: &Policy) -> bool {
    policy.placement == Placement::Spread && policy.dedup == Dedup::All
}

/// The bytes of a pack, and what its commit says of them.
#[derive(Debug, Default)]
pub struct Packed {
    /// The chunk.
    pub bytes: Bytes,
    /// Its contents and files.
    pub pack: Pack,
    /// Of each file, the bytes that none before it has.
    pub new_bytes: Vec<u64>,
}

impl Packed {
    /// The pack of these files, cut by their policies. `None` if they have nothing to share, or one cannot be a part of it.
    #[must_use]
    pub fn of(files: &[&SmallFile]) -> Option<Packed> {
        let mut packing = Packing::default();
        let mut packed = Packed::default();
        for file in files {
            let before = packing.bytes.len();
            packed.pack.files.push(packing.add(file)?);
            packed.new_bytes.push((packing.bytes.len() - before) as u64);
        }
        (packed.bytes, packed.pack.contents) = packing.finish();
        (!packed.bytes.is_empty()).then_some(packed)
    }

    /// The parameters of its write: those of the first file.
    #[must_use]
    pub fn params(&self, first: &WriteParams) -> WriteParams {
        let others = self.pack.files.len() - 1;
        WriteParams {
            file: format!("{} and {others} other files", first.file),
            if_version: None,
            size_hint_bytes: Some(self.bytes.len() as u64),
            pack: Some(Arc::new(PackParams { pack: self.pack.clone(), like: 0 })),
            ..first.clone()
        }
    }
}

/// A pack that is being filled.
#[derive(Debug, Default)]
pub(super) struct Packing {
    bytes: BytesMut,
    contents: Vec<PackedContent>,
    /// Place in `contents` of each name, from 1.
    known: HashMap<[u8; 32], u64>,
}

impl Packing {
    /// Adds a file. `None` if it has no name, or its policy is not valid here.
    fn add(&mut self, SmallFile { params, content }: &SmallFile) -> Option<Commit> {
        let Target::Name { parent, name } = &params.target else { return None };
        let rule = CutRule::of(params.expect_policy.as_ref()?).ok()?;
        let whole = Stretch { bytes: content.clone(), fresh: 0, last: true };
        let (pieces, _) = Cutting::new(rule, 0).feed(&whole);
        let size_bytes = content.len() as u64;
        let (parent, name, hints) = (*parent, name.clone(), params.hints.clone());
        let open = OpenWrite { parent, name, hints, size_hint_bytes: size_bytes, ..OpenWrite::default() };
        Some(Commit {
            mode: CommitMode::Replace as i32,
            if_version: params.if_version,
            size_bytes,
            extents: pieces.into_iter().map(|(offset, piece)| self.extent(offset, &piece)).collect(),
            mtime_ns: params.times.mtime_ns,
            ctime_ns: params.times.ctime_ns,
            atime_ns: params.times.atime_ns,
            file_mode: Some(params.owner.mode),
            uid: params.owner.uid,
            gid: params.owner.gid,
            open: Some(Box::new(open)),
            ..Commit::default()
        })
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn count(&self) -> usize {
        self.contents.len()
    }

    /// The pack, and what lies in it.
    pub(super) fn finish(self) -> (Bytes, Vec<PackedContent>) {
        assert!(self.bytes.len() <= PACK_BYTES, "a pack of {} bytes", self.bytes.len());
        (self.bytes.freeze(), self.contents)
    }

    /// The extent of a piece of a file, whose bytes are added unless the pack has them.
    pub(super) fn extent(&mut self, offset: u64, piece: &Bytes) -> Extent {
        let len_bytes = piece.len() as u64;
        if is_hole(piece) {
            return Extent::hole(offset, len_bytes);
        }
        let hash = chunk_hash(piece).0;
        Extent::of_chunk(offset, len_bytes, self.place(hash, piece), &hash, 0)
    }

    /// The place of bytes of this name, which are added unless the pack has them.
    pub(super) fn place(&mut self, hash: [u8; 32], piece: &Bytes) -> u64 {
        let next = self.contents.len() as u64 + 1;
        let place = *self.known.entry(hash).or_insert(next);
        if place == next {
            let (offset, len_bytes) = (self.bytes.len() as u64, piece.len() as u64);
            self.contents.push(PackedContent { hash: hash.to_vec(), offset, len_bytes });
            self.bytes.extend_from_slice(piece);
        }
        place
    }
}

/// Writes a pack. Returns the results of its files, in order; of those that must be tried by themselves, `None`.
fn write(
    context: &Arc<Context>,
    packed: Packed,
    files: &[&SmallFile],
    held: &Held,
    cancel: &Cancel,
) -> Option<Vec<Option<Done>>> {
    let writer = Writer::new(context, packed.params(&files[0].params), cancel.clone(), held.means(context));
    match writer.write_pack(packed.bytes) {
        Ok(done) if done.files.len() == files.len() => {
            let one = |((file, packed), new_bytes): ((&&SmallFile, &PackedFile), &u64)| {
                packed.error.is_none().then(|| Ok(of_file(file, packed, &done, *new_bytes)))
            };
            Some(files.iter().zip(&done.files).zip(&packed.new_bytes).map(one).collect())
        }
        Err(error) if !matches!(error.cause, Cause::Refused(_)) => {
            Some(files.iter().map(|file| Some(Err(error.cause.clone().of(&file.params.file)))).collect())
        }
        // Each file finds out by itself what the manager refuses.
        _ => None,
    }
}

fn of_file(file: &SmallFile, packed: &PackedFile, whole: &WriteDone, new_bytes: u64) -> WriteDone {
    WriteDone {
        ino: packed.ino,
        version: packed.version,
        number: packed.number,
        input_bytes: file.content.len() as u64,
        new_bytes: if whole.new_bytes > 0 { new_bytes } else { 0 },
        missing_fragments: whole.missing_fragments,
        owner: (packed.number > 1).then_some(Owner { mode: packed.mode, uid: packed.uid, gid: packed.gid }),
        ..WriteDone::default()
    }
}
