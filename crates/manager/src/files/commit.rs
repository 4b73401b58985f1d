//! Commits: staging parts, checking acknowledgements, and making a version visible in one step.
//!
//! A fragment counts as stored with the node's receipt, and only if neither its disk nor the fragment itself was lost since its put
//! ([`receipts`], P11). Otherwise nothing is committed, and the reply says what to store again and where. A chunk that a commit names
//! for the first time needs the acknowledgements that the file's durability requires. A chunk that the dedup query reported as durable
//! needs none.
//!
//! A commit of what was written under a lock names the fence of that lock. It is refused if its client has lost or released
//! the lock since, because another client may have held it meanwhile and committed (P7, P11).

use crate::chunks::missing;
use crate::chunks::refs::RefChanges;
use crate::chunks::table;
use crate::ctx::Ctx;
use crate::db::pages;
use crate::db::sessions::{self as session_rows, Session};
use crate::error::{Result, invalid, refuse};
use crate::files::acks::Chunk;
use crate::files::receipts::Receipt;
use crate::files::versions::{self, MAX_FILE_BYTES, NewVersion};
use crate::files::{expiry, one_shot, packs, receipts, sessions, staged, unpacked};
use crate::map::delta;
use crate::namespace::hints::HintSet;
use crate::namespace::inodes::{self, Inode};
use crate::namespace::names;
use crate::soft::Effect;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use tessera_failpoint as failpoint;
use tessera_policy::{Durability, Policy};
use tessera_stripe::ClassLayout;
use tessera_wire::meta::*;
use tessera_wire::{Ack, ClassInfo, Code, Error, Extent, InodeKind};

/// Applies a commit. Stale acknowledgements are no error: the reply lists them.
///
/// # Errors
/// The request is refused (for example, its session has expired or a chunk has too few acknowledgements), or the database
/// fails.
pub fn commit(ctx: &mut Ctx, request: &Commit) -> Result<CommitReply> {
    if request.open.is_some() && request.pack.is_some() {
        return invalid("a commit opens a file, or is of a pack; send two");
    }
    if let Some(open) = &request.open {
        check_fence(ctx, request, open.ino)?;
        return one_shot::open_and_commit(ctx, request, open);
    }
    if let Some(pack) = &request.pack {
        return packs::commit(ctx, request, pack);
    }
    let session = sessions::writer(ctx.db, request.session_id)?;
    if packs::is_of_pack(&session) {
        return invalid("the session writes no file; name the files of its pack, or open one");
    }
    check_fence(ctx, request, session.ino)?;
    let policy = HintSet::read(&session.hints).policy()?;
    commit_in(ctx, request, session, (&policy, Inlined::new()))
}

/// Refuses a commit under locks that its client does not hold any more. Locks are soft state, so the answer is recorded.
fn check_fence(ctx: &mut Ctx, request: &Commit, ino: u64) -> Result<()> {
    let Some(fence) = request.lock_fence else { return Ok(()) };
    let held = ctx.record(|ctx, live| Ok(live.soft.locks.is_held(ctx.client_id, ino, fence).into()))?;
    if held != 0 || failpoint::is_active("manager.lost_lock_commits") {
        return Ok(());
    }
    let text = format!(
        "inode {ino} was written under a lock that this client does not hold any more, and another client may have changed the \
         file since; lock it, read it and write it again"
    );
    refuse(Code::LockLost, text)
}

/// The contents without packs that a one-shot commit names, by their ids, and whether it has brought them.
pub(super) type Inlined = BTreeMap<u64, (ChunkName, bool)>;

/// A commit while it is applied.
pub(super) struct Committer<'a> {
    request: &'a Commit,
    session: Session,
    policy: &'a Policy,
    mode: CommitMode,
    pub refs: RefChanges,
    /// Bytes of chunks that its session stored and no version named before.
    pub new_bytes: u64,
    /// Fragments left to be stored later.
    pub missing: u64,
    inlined: Inlined,
}

/// Applies a commit of `session`.
pub(super) fn commit_in(
    ctx: &mut Ctx,
    request: &Commit,
    session: Session,
    (policy, inlined): (&Policy, Inlined),
) -> Result<CommitReply> {
    let mut commit = Committer { inlined, ..Committer::new(request, session, policy)? };
    let stale = commit.accept_chunks(ctx)?;
    if !stale.is_empty() {
        return stale_reply(ctx, stale);
    }
    let reply = if request.partial { commit.stage(ctx)? } else { commit.finish(ctx)? };
    commit.refs.apply(ctx)?;
    Ok(reply)
}

/// Checks the request itself (P14), without reading the database.
fn check(request: &Commit, session: &Session) -> Result<CommitMode> {
    let mode = match CommitMode::try_from(request.mode) {
        Ok(mode) if mode != CommitMode::Unknown => mode,
        _ => return invalid(format!("commit mode {} is none; send Replace, Patch or Append", request.mode)),
    };
    if session.staged != 0 && session.staged != i64::from(mode as i32) {
        return invalid("parts of one commit have different modes");
    }
    let contiguous = mode != CommitMode::Patch;
    let mut end = session.staged_end;
    for &Extent { offset, len_bytes, chunk_id, chunk_offset, name_prefix } in &request.extents {
        let next = offset.checked_add(len_bytes).filter(|&end| end <= MAX_FILE_BYTES);
        let why = match next {
            None => format!("{len_bytes} bytes reach beyond the longest file"),
            _ if len_bytes == 0 => "has no bytes".into(),
            _ if offset < end => format!("overlaps the one before, which ends at {end}; send them in order"),
            _ if contiguous && offset != end => format!(
                "the one before ends at {end}; a replacing or appending commit has no gaps, send holes as extents without a chunk"
            ),
            _ if chunk_id == 0 && chunk_offset != 0 => "a hole with an offset into a chunk".into(),
            _ if chunk_id == 0 && name_prefix != 0 => "a hole with the name of a chunk".into(),
            Some(next) => {
                end = next;
                continue;
            }
        };
        return invalid(format!("extent at {offset}: {why}"));
    }
    if request.partial {
        return Ok(mode);
    }
    if request.size_bytes > MAX_FILE_BYTES || end > request.size_bytes {
        return invalid(format!("the extents end at {end}, behind the length of {} bytes", request.size_bytes));
    }
    if contiguous && end != request.size_bytes {
        return invalid(format!("the extents end at {end}, the length is {} bytes", request.size_bytes));
    }
    Ok(mode)
}

impl<'a> Committer<'a> {
    /// A commit whose request itself is right.
    pub fn new(request: &'a Commit, session: Session, policy: &'a Policy) -> Result<Committer<'a>> {
        let mode = check(request, &session)?;
        let (refs, inlined) = (RefChanges::default(), Inlined::new());
        Ok(Committer { request, session, policy, mode, refs, new_bytes: 0, missing: 0, inlined })
    }

    /// Checks every chunk that the commit names. Returns the chunks that must be stored again; if there are any, nothing is
    /// written.
    pub fn accept_chunks(&mut self, ctx: &mut Ctx) -> Result<Vec<StaleAck>> {
        let (request, session) = (self.request, &self.session);
        let mut acks: HashMap<u64, &ChunkAck> = HashMap::with_capacity(request.acks.len());
        for ack in &request.acks {
            if acks.insert(ack.chunk_id, ack).is_some() {
                return invalid(format!("chunk {} is acknowledged twice", ack.chunk_id));
            }
        }
        let chunks = named_chunks(ctx, request, session, &self.inlined)?;
        for ack in request.acks.iter().filter(|ack| !chunks.contains_key(&ack.chunk_id)) {
            Chunk::load(ctx, session, ack.chunk_id)?; // Acknowledged, not used: harmless if it exists.
        }
        let look_at_missing = missing::any(ctx.db)?;
        let mut stale = Vec::new();
        let mut writes = Vec::new();
        let brought = self.inlined.values().filter(|(_, is_new)| *is_new);
        let inlined_bytes: u64 = brought.map(|(name, _)| name.len_bytes).sum();
        let (mut new_bytes, mut missing) = (inlined_bytes, 0);
        let mut ids: Vec<u64> = chunks.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let chunk = &chunks[&id];
            let ack = acks.get(&id).copied();
            let class = ctx.class(chunk.class_id)?;
            new_bytes += if chunk.is_new(ack, &class) { chunk.len_bytes } else { 0 };
            if chunk.committed && !look_at_missing {
                continue;
            }
            let pg = ctx.caches.pg(ctx.db, chunk.pg_id)?;
            // The session was asked for the fragments of a committed chunk that were missing before the session began.
            // Repair handles fragments that went missing later.
            let asked = match chunk.committed {
                true => missing::of_chunk_before(ctx.db, id, session.started_ns)?,
                false => (0..class.fragments()).collect(),
            };
            let verdict = chunk.judge(ctx, ack, &pg, &class, &asked)?;
            if !verdict.stale.is_empty() {
                stale.push(StaleAck { chunk_id: id, pg_id: pg.pg_id, epoch: pg.epoch, fragments: verdict.stale });
                continue;
            }
            check_durability(chunk, &class, self.policy, &verdict.missing)?;
            missing += verdict.missing.len() as u64;
            writes.push((id, pg, verdict));
        }
        if !stale.is_empty() {
            return Ok(stale);
        }
        let named_bytes = chunks.values().map(|c| c.len_bytes).sum::<u64>() + inlined_bytes;
        assert!(new_bytes <= named_bytes, "{new_bytes} new bytes of {named_bytes} named ones");
        for (id, pg, verdict) in writes {
            let chunk = &chunks[&id];
            chunk.write(ctx, &pg, &*ctx.class(chunk.class_id)?, &verdict)?;
            if !chunk.committed {
                self.refs.commit(ctx, id, chunk.len_bytes, chunk.class_id)?;
            }
        }
        (self.new_bytes, self.missing) = (new_bytes, missing);
        Ok(stale)
    }

    /// Stores the extents with the session and counts their references, so that the final commit has little to do.
    fn stage(&mut self, ctx: &mut Ctx) -> Result<CommitReply> {
        let session = &mut self.session;
        let pieces = &self.request.extents;
        let packed = if self.mode == CommitMode::Patch { pages::pack_with_holes(pieces) } else { pages::pack(pieces) };
        for page in &packed {
            staged::insert(ctx.db, session.session_id, page)?;
            self.refs.add(page);
        }
        session.staged = i64::from(self.mode as i32);
        assert!(session.staged != 0, "a stage has a mode");
        assert!(pieces.last().is_none_or(|p| p.end() >= session.staged_end), "stages are in order");
        session.staged_end = pieces.last().map_or(session.staged_end, Extent::end);
        session.staged_new += self.new_bytes;
        session.staged_missing += self.missing;
        session.write(ctx.db)?;
        Ok(CommitReply { missing_fragments: session.staged_missing, ..Default::default() })
    }

    /// Makes the version visible.
    pub fn finish(&mut self, ctx: &mut Ctx) -> Result<CommitReply> {
        let (request, mode) = (self.request, self.mode);
        let target = find_target(ctx, &self.session, mode)?;
        check_version(request, &self.session, target.as_ref())?;
        let (mut inode, is_new) = match target {
            Some(inode) => (inode, false),
            None => (create(ctx, request, &self.session)?, true),
        };
        let superseded = match inode.version_id {
            current if !is_new && current != self.session.base_version && request.if_version.is_none() => current,
            _ => 0,
        };
        let base_size = inode.size_bytes;
        let version = self.build(ctx, &inode)?;
        let number = inode.version_number + 1;
        let id = versions::publish(ctx, &mut inode, number, &version)?;
        if request.atime_ns != 0 {
            inode.atime_ns = request.atime_ns;
        }
        assert_eq!((inode.version_id, inode.version_number), (id, number), "the commit's version is the current one");
        if is_new {
            inode.insert(ctx.db)?;
            ctx.meta.files += 1;
        } else {
            inode.update(ctx.db)?;
            versions::trim(ctx, &inode, self.policy.lifetime, &mut self.refs)?;
        }
        expiry::note(ctx, &inode, self.policy)?;
        unpacked::note(ctx, &inode, self.policy, &request.extents)?;
        end_session(ctx, request, &self.session, &inode)?;
        Ok(CommitReply {
            ino: inode.ino,
            version: id,
            number,
            append_offset: if mode == CommitMode::Append { base_size } else { 0 },
            superseded,
            missing_fragments: self.session.staged_missing + self.missing,
            entry: if request.want_lease { Some(inodes::get(ctx.db, inode.ino)?.entry()) } else { None },
            ..Default::default()
        })
    }

    /// Writes the pages of the new version and returns its sizes.
    fn build(&mut self, ctx: &mut Ctx, inode: &Inode) -> Result<NewVersion> {
        let (request, session, mode) = (self.request, &self.session, self.mode);
        let refs = &mut self.refs;
        let number = inode.version_number + 1;
        let shift = if mode == CommitMode::Append { inode.size_bytes } else { 0 };
        let mut size_bytes = match shift.checked_add(request.size_bytes) {
            Some(size) if size <= MAX_FILE_BYTES => size,
            _ => return invalid(format!("appending {} bytes would pass the longest file", request.size_bytes)),
        };
        let moved = |extent: &Extent| Extent { offset: extent.offset + shift, ..*extent };
        let mut pieces: Vec<Extent> = request.extents.iter().map(moved).collect();
        let base_data = versions::data_bytes(ctx.db, inode.ino, inode.version_number)?;
        let data_bytes = if mode == CommitMode::Replace {
            versions::end_pages(ctx, inode.ino, number)?;
            let staged_data =
                if session.staged != 0 { versions::adopt_staged(ctx, session, inode.ino, number)? } else { 0 };
            staged_data + versions::add_pages(ctx, inode.ino, number, &pieces, refs)?
        } else {
            if session.staged != 0 {
                let mut all = staged::take(ctx, session.session_id, shift, refs)?;
                all.append(&mut pieces);
                pieces = all;
            }
            if mode == CommitMode::Patch && size_bytes < inode.size_bytes && !request.cuts {
                // Another writer made the file longer since the session was opened.
                size_bytes = inode.size_bytes;
            }
            if mode == CommitMode::Patch && size_bytes < inode.size_bytes {
                // A hole up to the old end removes the bytes beyond the new length.
                let len_bytes = inode.size_bytes - size_bytes;
                pieces.push(Extent::hole(size_bytes, len_bytes));
            }
            let grown = versions::overlay(ctx, inode.ino, number, &pieces, refs)?;
            base_data.saturating_add_signed(grown)
        };
        Ok(NewVersion {
            size_bytes,
            data_bytes,
            new_bytes: session.staged_new + self.new_bytes,
            mtime_ns: ctx.or_now(request.mtime_ns),
            ctime_ns: ctx.or_now(request.ctime_ns),
            content: request.content,
        })
    }
}

/// The chunks that a commit names, once its extents are checked against what they name.
fn named_chunks(ctx: &Ctx, request: &Commit, session: &Session, inlined: &Inlined) -> Result<HashMap<u64, Chunk>> {
    let mut chunks: HashMap<u64, Chunk> = HashMap::with_capacity(request.extents.len());
    for extent in request.extents.iter().filter(|extent| extent.chunk_id != 0) {
        if let Some((name, _)) = inlined.get(&extent.chunk_id) {
            check_extent(extent, &name.hash, name.len_bytes)?;
            continue;
        }
        let chunk = match chunks.entry(extent.chunk_id) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(free) => free.insert(Chunk::load(ctx, session, extent.chunk_id)?),
        };
        check_extent(extent, &chunk.hash, chunk.len_bytes)?;
    }
    Ok(chunks)
}

/// Refuses an extent that is not within what it names, or knows it by another name.
fn check_extent(extent: &Extent, hash: &[u8], named_bytes: u64) -> Result<()> {
    let &Extent { offset, len_bytes, chunk_id, chunk_offset, name_prefix } = extent;
    let stored = Extent::prefix_of(hash);
    if name_prefix != stored {
        return invalid(format!(
            "extent at {offset}: the name of chunk {chunk_id} starts with {stored:016x}, not with {name_prefix:016x}; ask AllocateChunks \
             about the bytes again"
        ));
    }
    let end = chunk_offset.checked_add(len_bytes);
    if end.is_none_or(|end| end > named_bytes) {
        return invalid(format!(
            "extent at {offset}: {len_bytes} bytes from {chunk_offset} on, but chunk {chunk_id} has {named_bytes} bytes"
        ));
    }
    Ok(())
}

/// Refuses a chunk with too few acknowledgements. Pessimistic durability requires all fragments, optimistic durability as
/// many as a reader needs, degraded writes at least one fragment of redundancy.
fn check_durability(chunk: &Chunk, class: &ClassInfo, policy: &Policy, missing: &[u32]) -> Result<()> {
    let there = class.fragments().saturating_sub(missing.len() as u32);
    let enough = match (policy.durability, policy.degraded_writes) {
        (Durability::Optimistic, _) => class.suffices_without(|fragment| missing.contains(&fragment)),
        (Durability::Pessimistic, true) => class.is_redundant(there) || missing.is_empty(),
        (Durability::Pessimistic, false) => missing.is_empty(),
    };
    match enough {
        true => Ok(()),
        false => refuse(
            Code::TooFewFragments,
            format!(
                "chunk {}: fragments {missing:?} of {} are not acknowledged, and the file's policy ({}{}) does not allow \
                 that; store them, or move the chunk to another group (AllocateChunks with avoid_pgs)",
                chunk.chunk_id,
                class.spec,
                policy.durability,
                if policy.degraded_writes { ", degraded writes" } else { "" }
            ),
        ),
    }
}

pub(super) fn stale_reply(ctx: &Ctx, stale: Vec<StaleAck>) -> Result<CommitReply> {
    let pgs = stale.iter().map(|s| s.pg_id);
    let map = delta::map_since(ctx.db, ctx.meta.map_version, ctx.caches, 0, pgs)?;
    Ok(CommitReply { stale, map: Some(map), ..Default::default() })
}

/// The file that the commit writes, if it exists. If the file was opened by name, it is the file that now has the name.
pub(super) fn find_target(ctx: &Ctx, session: &Session, mode: CommitMode) -> Result<Option<Inode>> {
    if session.parent == 0 {
        return inodes::get(ctx.db, session.ino).map(Some);
    }
    inodes::directory(ctx.db, session.parent)?;
    let Some(inode) = inodes::named(ctx.db, session.parent, &session.name)? else {
        return match session.created && mode == CommitMode::Patch {
            true => refuse(Code::NotFound, "the file was removed since it was opened; a patch needs it"),
            false => Ok(None),
        };
    };
    if inode.is_directory() {
        return refuse(Code::IsDirectory, "there is a directory of that name now");
    }
    if !inode.is_file() {
        return refuse(Code::Unsupported, "there is a symbolic link of that name now; resolve it and open again");
    }
    if mode == CommitMode::Patch && inode.ino != session.ino {
        let text = "another file has taken that name since it was opened";
        return Err(Error { current: inode.version_id, ..Error::new(Code::VersionConflict, text) }.into());
    }
    Ok(Some(inode))
}

/// Compare and swap. `if_version` 0 means that the file must not exist, or, if it was opened by inode number, that it must
/// have no version.
pub(super) fn check_version(request: &Commit, session: &Session, target: Option<&Inode>) -> Result<()> {
    let Some(wanted) = request.if_version else { return Ok(()) };
    let current = target.map_or(0, |inode| inode.version_id);
    if wanted == current && (wanted != 0 || session.parent == 0 || target.is_none()) {
        return Ok(());
    }
    let text = format!("if-version {wanted}: the file's current version is {current}; read it and decide again");
    Err(Error { current, ..Error::new(Code::VersionConflict, text) }.into())
}

/// Makes the inode of a new file and its name; the caller inserts the row. Uses the number drawn at open, or a new number if
/// the session opened a file that existed.
fn create(ctx: &mut Ctx, request: &Commit, session: &Session) -> Result<Inode> {
    let parent = inodes::directory(ctx.db, session.parent)?;
    let mode = request.file_mode.unwrap_or(0o644);
    let next_ino = ctx.meta.next_ino;
    let mut inode = names::new_inode(ctx, InodeKind::File, &parent, mode, request.uid, request.gid);
    if !session.created {
        // The client may have chosen the number, and another client may have chosen the same one.
        names::check_drawn(ctx, session.ino)?;
        ctx.meta.next_ino = next_ino;
        inode.ino = session.ino;
    }
    assert!(inode.ino != 0 && inode.ino < ctx.meta.next_ino, "inode {} was never drawn", inode.ino);
    inode.domain = session.domain;
    inode.hints = session.hints.clone();
    names::add_name(ctx, &parent, &session.name, inode.ino)?;
    Ok(inode)
}

/// Ends the session, or continues it from the version that it just committed.
fn end_session(ctx: &mut Ctx, request: &Commit, session: &Session, inode: &Inode) -> Result<()> {
    let id = session.session_id;
    // The opened file may have lost its name, and this commit may end its last session.
    let left = if session.created && session.ino != inode.ino { session.ino } else { inode.ino };
    if left != inode.ino || inode.nlink == 0 {
        ctx.after_commit(Effect::CheckOrphan { ino: left });
    }
    if request.keep_session {
        let next = Session {
            ino: inode.ino,
            created: true,
            base_version: inode.version_id,
            base_number: inode.version_number,
            staged: 0,
            staged_end: 0,
            staged_new: 0,
            staged_missing: 0,
            ..session.clone()
        };
        next.write(ctx.db)?;
        return Ok(());
    }
    if id != 0 {
        session_rows::delete(ctx.db, id)?;
        ctx.after_commit(Effect::SessionEnded { session_id: id });
    }
    Ok(())
}

/// Applies [`CompleteFragments`]: an optimistic writer has stored fragments that its commit left missing.
///
/// Those without a receipt that counts stay missing.
///
/// # Errors
/// The database fails.
pub fn complete_fragments(ctx: &mut Ctx, request: &CompleteFragments) -> Result<Ack> {
    for (fragment, receipt) in request.fragments.iter().zip(&request.receipts) {
        let Some(since_epoch) = missing::since(ctx.db, fragment.chunk_id)?.remove(&fragment.fragment) else {
            continue; // Repaired meanwhile, or the chunk is gone.
        };
        let Some(chunk) = Chunk::find(ctx, fragment.chunk_id)? else { continue };
        let (pg, class) = (ctx.caches.pg(ctx.db, chunk.pg_id)?, ctx.class(chunk.class_id)?);
        let receipt = Receipt { fragment: fragment.fragment, epoch: fragment.epoch, number: *receipt };
        if receipts::counts(ctx, chunk.named(), (&pg, &class), receipt, since_epoch)? && fragment.epoch <= pg.epoch {
            missing::delete(ctx, fragment.chunk_id, fragment.fragment, 0)?;
            if !class.is_plain(fragment.fragment) {
                table::lower_proof(ctx, fragment.chunk_id, table::CONTENT_PROVEN)?;
            }
        }
    }
    Ok(Ack {})
}
