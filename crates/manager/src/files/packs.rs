//! Packs: many small files that one commit makes visible, and whose contents share one chunk.
//!
//! The session of a pack writes no file: it takes policy and domain from the first file of the pack, stores one chunk as any writer does,
//! and commits it together with all files ([`tessera_wire::meta::Commit::pack`]). A file whose own policy or state does not allow that is
//! refused, with the reason; the others become visible, each as a whole.

use crate::chunks::contents;
use crate::chunks::refs::RefChanges;
use crate::ctx::Ctx;
use crate::db::sessions::{self as session_rows, Session, WRITER};
use crate::error::{Failure, Result, invalid, refuse};
use crate::files::acks::Chunk;
use crate::files::commit::{self, Committer};
use crate::files::open::{self, OpenedWriter};
use crate::files::{sessions, unpacked};
use crate::namespace::hints::HintSet;
use crate::namespace::inodes;
use crate::soft::Effect;
use std::collections::{HashMap, HashSet};
use tessera_policy::{Dedup, Placement, Policy};
use tessera_wire::meta::*;
use tessera_wire::{Code, Error, Extent, Hint};

/// Refuses a policy whose files cannot share a chunk with others.
pub(super) fn check_policy(policy: &Policy) -> Result<()> {
    match (&policy.placement, policy.dedup) {
        (Placement::Spread, Dedup::All) => Ok(()),
        _ => refuse(
            Code::SessionExpired,
            "the file's policy asks for a place, or for chunks, of its own; write it by itself",
        ),
    }
}

/// The session of a pack: that of its first file without the file, or that of a pack like another one.
pub(super) fn begin(ctx: &mut Ctx, request: &OpenWrite) -> Result<OpenedWriter> {
    let opened = match request.pack_like {
        0 => open::begin(ctx, request)?,
        id => like(ctx, request, id)?,
    };
    check_policy(&opened.policy)?;
    let Session { kind, client_id, started_ns, domain, hints, host, reserved_bytes, .. } = opened.session;
    let rewrites = request.pack_like != 0 && !contents::is_content(request.pack_like);
    let session =
        Session { kind, client_id, started_ns, domain, hints, host, reserved_bytes, rewrites, ..Default::default() };
    Ok(OpenedWriter { session, policy: opened.policy, base_size_bytes: 0 })
}

/// Whether a session writes no file.
pub(crate) fn is_of_pack(session: &Session) -> bool {
    session.ino == 0 && session.parent == 0
}

/// The session of a pack of the class and domain of a pack, or of a content that lies in none yet.
fn like(ctx: &Ctx, request: &OpenWrite, id: u64) -> Result<OpenedWriter> {
    let found = match contents::is_content(id) {
        true => contents::inlined(ctx.db, id)?.map(|content| (content.class_id, content.domain)),
        false => Chunk::find(ctx, id)?.map(|chunk| (chunk.class_id, chunk.domain)),
    };
    let Some((class_id, domain)) = found else {
        return refuse(Code::NotFound, format!("pack or content {id} is gone; ask ListPacks or ListInlined again"));
    };
    let redundancy = Hint { name: "redundancy".into(), value: ctx.class(class_id)?.spec.clone() };
    let hints = HintSet::default().with(&[redundancy])?;
    let session = Session {
        kind: WRITER,
        client_id: ctx.client_id,
        started_ns: ctx.now_ns,
        domain,
        hints: hints.column(),
        reserved_bytes: request.size_hint_bytes,
        ..Default::default()
    };
    Ok(OpenedWriter { session, policy: hints.policy()?, base_size_bytes: 0 })
}

/// Commits a pack and its files.
///
/// # Errors
/// The request is refused as a whole, or the database fails.
pub(super) fn commit(ctx: &mut Ctx, request: &Commit, pack: &Pack) -> Result<CommitReply> {
    check(request, pack)?;
    let session = sessions::writer(ctx.db, request.session_id)?;
    if !is_of_pack(&session) || session.staged != 0 {
        return invalid("the session writes a file and no pack; open one with `pack`");
    }
    let takes_whole = !pack.moved_files.is_empty() || pack.moved.iter().any(|moved| moved.from_chunk_id == 0);
    if session.rewrites && (takes_whole || !pack.files.is_empty()) {
        return invalid(
            "a pack like another one takes contents of packs only: it may use space that is kept for rewriting",
        );
    }
    let policy = HintSet::read(&session.hints).policy()?;
    let mut whole = Committer::new(request, session.clone(), &policy)?;
    let stale = whole.accept_chunks(ctx)?;
    if !stale.is_empty() {
        return commit::stale_reply(ctx, stale);
    }
    let chunk_id = request.extents[0].chunk_id;
    let rules = Rules { policy: &policy, domain: session.domain, class: class_of(ctx, &session, chunk_id)? };
    let mut named = HashSet::new();
    let mut opened: Vec<std::result::Result<OpenedWriter, Error>> = Vec::with_capacity(pack.files.len());
    for file in &pack.files {
        opened.push(refused(rules.open(ctx, file, &mut named))?);
    }
    let mut moves = RefChanges::of_unfinished();
    if whole.missing > 0 && takes_whole {
        // What the files have now is complete.
        let text = format!("{} fragments of the pack are missing; files move only into a whole one", whole.missing);
        return refuse(Code::TooFewFragments, text);
    }
    // Bytes of rows decide, and a row may have rotted on another manager: it does as this one does.
    ctx.record(|ctx, _| check_moved_bytes(ctx, pack, (chunk_id, &request.extents[0])).map(|()| 0))?;
    let mut moved = move_contents(ctx, (chunk_id, &session), pack, &mut moves)?;
    let mut places = Places::new(ctx, (chunk_id, whole.new_bytes > 0), pack)?;
    for (file, _) in pack.files.iter().zip(&opened).filter(|(_, opened)| opened.is_ok()) {
        for extent in file.extents.iter().filter(|extent| extent.chunk_id != 0) {
            places.id(ctx, extent.chunk_id, &mut whole.refs)?;
        }
    }
    moved += unpacked::move_files(ctx, &rules, &pack.moved_files, &mut places, (&mut whole.refs, &mut moves))?;
    let (missing, mut unused_bytes) = (whole.missing, whole.new_bytes);
    let mut refs = whole.refs;
    let mut files = Vec::with_capacity(pack.files.len());
    for (file, opened) in pack.files.iter().zip(opened) {
        files.push(match opened {
            Err(error) => PackedFile { error: Some(error), ..Default::default() },
            Ok(opened) => {
                let new_bytes = unused_bytes.min(file.size_bytes);
                unused_bytes -= new_bytes;
                let file = places.named_by_id(file);
                let mut committer = Committer::new(&file, opened.session, &opened.policy)?;
                (committer.refs, committer.new_bytes) = (refs, new_bytes);
                let done = committer.finish(ctx)?;
                refs = committer.refs;
                packed(ctx, &done)?
            }
        });
    }
    refs.apply(ctx)?;
    // Readers may know the old packs: these stay for a while, as what an unfinished write has stored.
    moves.apply(ctx)?;
    session_rows::delete(ctx.db, session.session_id)?;
    ctx.after_commit(Effect::SessionEnded { session_id: session.session_id });
    assert_eq!(files.len(), pack.files.len(), "each file of a pack has an answer");
    Ok(CommitReply { files, moved, missing_fragments: missing, ..Default::default() })
}

/// The answer about a file that was committed.
fn packed(ctx: &Ctx, done: &CommitReply) -> Result<PackedFile> {
    let CommitReply { ino, version, number, .. } = *done;
    let (mode, uid, gid) = match number {
        // The request has said them.
        1 => (0, 0, 0),
        _ => {
            let inode = inodes::get(ctx.db, ino)?;
            (inode.mode, inode.uid, inode.gid)
        }
    };
    Ok(PackedFile { ino, version, number, mode, uid, gid, error: None })
}

/// Checks the request itself (P14).
fn check(request: &Commit, pack: &Pack) -> Result<()> {
    let [whole] = &request.extents[..] else { return invalid("a pack is one extent, which names its chunk") };
    let is_final = !request.partial && !request.keep_session && request.mode == CommitMode::Replace as i32;
    if !is_final || whole.chunk_id == 0 || whole.chunk_offset != 0 || request.lock_fence.is_some() {
        return invalid("a pack is one chunk from its beginning, committed at once, under no lock");
    }
    let contents = pack.contents.len();
    let kinds = [pack.files.is_empty(), pack.moved.is_empty(), pack.moved_files.is_empty()];
    if kinds.iter().filter(|is_empty| !**is_empty).count() > 1 {
        return invalid(
            "a pack has new files, or contents of older packs, or files that move into it; send one for each",
        );
    }
    let mut end = 0;
    for content in &pack.contents {
        let next = content.offset.checked_add(content.len_bytes).filter(|next| *next <= whole.len_bytes);
        match next {
            Some(next) if content.hash.len() == 32 && content.len_bytes > 0 && content.offset >= end => end = next,
            _ => {
                let text = "a content of a pack has a name of 32 bytes, a length, and a place behind the one before it, within the pack";
                return invalid(format!("content at {} of {} bytes: {text}", content.offset, content.len_bytes));
            }
        }
    }
    let moved_to = pack.moved.iter().map(|moved| moved.place);
    let of_files = pack.moved_files.iter().flat_map(|file| file.places.iter().copied());
    let mut moved_to = moved_to.chain(of_files.filter(|place| *place != 0));
    if moved_to.any(|place| !(1..=contents as u64).contains(&place)) {
        return invalid("a content is moved to a place that the pack does not have");
    }
    pack.files.iter().try_for_each(|file| check_file(file, pack))
}

/// Checks what a pack says of one file.
fn check_file(file: &Commit, pack: &Pack) -> Result<()> {
    let Some(open) = &file.open else { return invalid("a file of a pack names no target; send `open`") };
    let by_name = open.parent != 0 && open.ino == 0;
    let alone = by_name && open.chunks.is_empty() && open.preallocate == 0 && open.inos == 0 && file.acks.is_empty();
    let plain =
        !file.partial && !file.keep_session && !file.want_lease && file.lock_fence.is_none() && file.pack.is_none();
    if !alone || !plain || file.session_id != 0 || file.mode != CommitMode::Replace as i32 {
        return invalid(
            "a file of a pack is named by directory and name, replaces its content as a whole, and has no chunks, lease, lock or session of its own",
        );
    }
    for extent in file.extents.iter().filter(|extent| extent.chunk_id != 0) {
        let content = place(extent).and_then(|place| pack.contents.get(place));
        let fits = |content: &&PackedContent| {
            let end = extent.chunk_offset.checked_add(extent.len_bytes);
            end.is_some_and(|end| end <= content.len_bytes) && extent.name_prefix == Extent::prefix_of(&content.hash)
        };
        if content.filter(fits).is_none() {
            let text = "names no content of the pack, or more bytes than it has, or not by its name";
            return invalid(format!("extent at {}: {text}", extent.offset));
        }
    }
    Ok(())
}

/// Place in `Pack.contents` of the content that an extent names.
fn place(extent: &Extent) -> Option<usize> {
    usize::try_from(extent.chunk_id).ok()?.checked_sub(1)
}

fn class_of(ctx: &Ctx, session: &Session, chunk_id: u64) -> Result<String> {
    let chunk = Chunk::load(ctx, session, chunk_id)?;
    Ok(ctx.class(chunk.class_id)?.spec.clone())
}

/// What all files of a pack have in common.
pub(super) struct Rules<'a> {
    policy: &'a Policy,
    domain: u32,
    class: String,
}

impl Rules<'_> {
    /// Opens one of the files, which writes nothing.
    fn open<'f>(&self, ctx: &mut Ctx, file: &'f Commit, named: &mut HashSet<(u64, &'f [u8])>) -> Result<OpenedWriter> {
        let Some(open) = &file.open else { return invalid("a file of a pack names no target") };
        if !named.insert((open.parent, &open.name)) {
            return refuse(Code::SessionExpired, "the pack names this file twice; write it by itself");
        }
        let opened = open::begin(ctx, open)?;
        self.admit(&opened.policy, opened.session.domain)?;
        let target = commit::find_target(ctx, &opened.session, CommitMode::Replace)?;
        commit::check_version(file, &opened.session, target.as_ref())?;
        Committer::new(file, opened.session.clone(), &opened.policy)?;
        Ok(opened)
    }

    /// Refuses a file of this policy and domain, unless it may lie in the pack.
    pub(super) fn admit(&self, own: &Policy, domain: u32) -> Result<()> {
        check_policy(own)?;
        // A pack is long, whatever the length of its files.
        let is_of_class = own.scheme(u64::MAX).to_string() == self.class;
        let as_durable = (own.durability, own.degraded_writes) == (self.policy.durability, self.policy.degraded_writes);
        match is_of_class && as_durable && own.chunking == self.policy.chunking && domain == self.domain {
            true => Ok(()),
            false => refuse(Code::SessionExpired, "the file's policy is not that of the pack; write it by itself"),
        }
    }
}

/// A refusal of one file does not refuse the others.
fn refused<T>(opened: Result<T>) -> Result<std::result::Result<T, Error>> {
    match opened {
        Ok(opened) => Ok(Ok(opened)),
        Err(Failure::Refused(error)) => Ok(Err(error)),
        Err(failure) => Err(failure),
    }
}

/// The contents of a pack by their places in the request. A row is inserted for each that is named; a pack that was there before may have it.
pub(super) struct Places<'a> {
    chunk_id: u64,
    pack: &'a Pack,
    known: contents::ByPlace,
    /// Id of each content; 0: not named yet.
    ids: Vec<u64>,
}

impl<'a> Places<'a> {
    fn new(ctx: &Ctx, (chunk_id, is_new): (u64, bool), pack: &'a Pack) -> Result<Places<'a>> {
        let known = if is_new { HashMap::new() } else { contents::by_place(ctx.db, chunk_id)? };
        Ok(Places { chunk_id, pack, known, ids: vec![0; pack.contents.len()] })
    }

    /// The content at a place, from 1, that the request was checked to have.
    pub(super) fn content(&self, place: u64) -> &'a PackedContent {
        &self.pack.contents[place as usize - 1]
    }

    /// The id of the content at a place. A new row refers to the pack.
    pub(super) fn id(&mut self, ctx: &mut Ctx, place: u64, refs: &mut RefChanges) -> Result<u64> {
        let content = self.content(place);
        let id = &mut self.ids[place as usize - 1];
        if *id == 0 {
            let there = self.known.get(&(content.offset, content.len_bytes, content.hash.to_vec()));
            *id = there.copied().unwrap_or(0);
        }
        if *id == 0 {
            *id = contents::insert(ctx, self.chunk_id, content)?;
            refs.add_content(self.chunk_id);
        }
        Ok(*id)
    }

    /// The commit of a file whose extents name contents by their ids.
    fn named_by_id(&self, file: &Commit) -> Commit {
        let named = |extent: &Extent| match place(extent) {
            None => *extent,
            Some(place) => {
                assert!(self.ids[place] != 0, "the contents of an accepted file were inserted");
                Extent { chunk_id: self.ids[place], ..*extent }
            }
        };
        Commit { extents: file.extents.iter().map(named).collect(), open: None, ..file.clone() }
    }
}

/// Compares a pack that takes contents out of the metadata with their bytes, which nobody keeps then (P2): it has them one behind the other,
/// by their names, and nothing else.
fn check_moved_bytes(ctx: &Ctx, pack: &Pack, (chunk_id, whole): (u64, &Extent)) -> Result<()> {
    if pack.moved.iter().all(|moved| moved.from_chunk_id != 0) {
        return Ok(());
    }
    let mut by_place = vec![None; pack.contents.len()];
    for moved in pack.moved.iter().filter(|moved| moved.from_chunk_id == 0) {
        // The request was checked: the place exists. Contents that are gone, or are not called so, stay where they are.
        let at = moved.place as usize - 1;
        let is_called =
            |inlined: &contents::Inlined| blake3::hash(&inlined.bytes).as_bytes()[..] == pack.contents[at].hash[..];
        let inlined = contents::inlined(ctx.db, moved.content_id)?.filter(is_called);
        by_place[at] = inlined.or(by_place[at].take());
    }
    let (mut hasher, mut end) = (blake3::Hasher::new(), 0);
    for (content, inlined) in pack.contents.iter().zip(by_place) {
        let Some(inlined) = inlined else {
            return refuse(
                Code::SessionExpired,
                "a content of the pack is not in the metadata any more; ask ListInlined again",
            );
        };
        if content.offset != end || content.len_bytes != inlined.bytes.len() as u64 {
            return invalid("a pack has contents of the metadata one behind the other, as long as they are");
        }
        hasher.update(&inlined.bytes);
        end += content.len_bytes;
    }
    let is_equal = Chunk::find(ctx, chunk_id)?.is_some_and(|chunk| chunk.hash == hasher.finalize().as_bytes());
    match is_equal && end == whole.len_bytes {
        true => Ok(()),
        false => invalid("the pack does not have the bytes of the contents that it takes; check this machine's memory"),
    }
}

/// Moves contents of older packs, or out of the metadata, of the same domain and class to this one. Returns how many.
fn move_contents(
    ctx: &mut Ctx,
    (chunk_id, session): (u64, &Session),
    pack: &Pack,
    refs: &mut RefChanges,
) -> Result<u64> {
    let class_id = Chunk::load(ctx, session, chunk_id)?.class_id;
    let mut moved = 0;
    for MovedContent { content_id, from_chunk_id, place } in &pack.moved {
        // The request was checked: the place exists.
        let to = &pack.contents[*place as usize - 1];
        let from = match *from_chunk_id {
            0 => contents::inlined(ctx.db, *content_id)?.map(|content| (content.class_id, content.domain)),
            from if from == chunk_id => None,
            from => Chunk::find(ctx, from)?.map(|chunk| (chunk.class_id, chunk.domain)),
        };
        if from == Some((class_id, session.domain))
            && contents::relocate(ctx, *content_id, *from_chunk_id, (chunk_id, to))?
        {
            match *from_chunk_id {
                0 => refs.add_content(chunk_id),
                from => refs.move_content(from, chunk_id),
            }
            moved += 1;
        }
    }
    Ok(moved)
}
