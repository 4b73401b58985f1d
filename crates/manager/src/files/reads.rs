//! Requests that change no row: the last committed state answers them. Opening a version for reading and renewing a session
//! change soft state only.

use crate::chunks::{contents, missing};
use crate::ctx::View;
use crate::db::sql::{FromRow, TableRow, args};
use crate::db::{Db, cache};
use crate::error::{Failure, Result, corrupt_row, invalid, refuse};
use crate::files::sessions;
use crate::files::versions;
use crate::internal::ReaderRow;
use crate::map::delta;
use crate::namespace::hints::{self, HintSet};
use crate::namespace::inodes::{self, Inode, check_name};
use crate::namespace::names::child;
use crate::placement::groups;
use crate::soft::sessions::Reader;
use rusqlite::OptionalExtension;
use std::collections::BTreeSet;
use tessera_wire::meta::*;
use tessera_wire::{ChunkInfo, ClassInfo, Code, Extent};

/// Answers [`ListVersions`].
///
/// # Errors
/// The inode does not exist or is not a file, or the database fails.
pub fn list_versions(db: &Db, request: &ListVersions) -> Result<ListVersionsReply> {
    file(inodes::get(db, request.ino)?)?;
    Ok(ListVersionsReply { versions: versions::list(db, request.ino)? })
}

fn file(inode: Inode) -> Result<Inode> {
    match (inode.is_file(), inode.is_directory()) {
        (true, _) => Ok(inode),
        (_, true) => refuse(Code::IsDirectory, "is a directory, not a file; `tessera ls` shows what is in it"),
        _ => refuse(Code::Unsupported, "is a symbolic link; name what it points to (`tessera stat` shows that)"),
    }
}

/// Opens a version for reading: adds the reader to soft state.
///
/// # Errors
/// The file or the version does not exist, the inode is not a file, a page is damaged, or the database fails.
pub fn open_read(view: &mut View, client_id: u64, request: &OpenRead) -> Result<OpenReadReply> {
    let (inode, version) = find(view.db, request)?;
    let (now_ns, VersionInfo { version: id, number, size_bytes, .. }) = (view.now_ns, version);
    let row = ReaderRow { session_id: 0, client_id, started_ns: now_ns, ino: inode.ino, version: id, number };
    let reader = Reader { row, size_bytes, used_ns: now_ns, persisted: false };
    let extents = extents(view, &reader, request.offset, request.len_bytes, request.known_map_version)?;
    // The manager's own term: until its first batch, the database has the one of the manager before, which numbered readers, too.
    let session_id = view.soft.sessions.open_reader(view.soft.cluster.tasks.term, reader);
    let (session_ms, extents) = (view.config.session_ms, Some(extents));
    Ok(OpenReadReply { session_id, session_ms, extents, ..described(&inode, version)? })
}

fn find(db: &Db, request: &OpenRead) -> Result<(Inode, VersionInfo)> {
    let inode = match request.parent {
        0 => inodes::get(db, request.ino)?,
        parent => {
            check_name(&request.name)?;
            child(db, &inodes::directory(db, parent)?, &request.name)?
        }
    };
    let inode = file(inode)?;
    let version = which(db, &inode, request)?;
    Ok((inode, version))
}

fn described(inode: &Inode, version: VersionInfo) -> Result<OpenReadReply> {
    let policy = hints::all(&HintSet::read(&inode.hints).policy()?);
    Ok(OpenReadReply { attr: Some(inode.attr()), version: Some(version), policy, ..OpenReadReply::default() })
}

/// Files that one answer to [`DescribeReads`] describes.
const MOST_DESCRIBED: usize = 128;
/// Extents of one of them.
const MOST_EXTENTS_DESCRIBED: usize = 64;

/// Answers [`DescribeReads`].
///
/// # Errors
/// There are too many files, or the database fails.
pub fn describe_reads(view: &View, request: &DescribeReads) -> Result<DescribeReadsReply> {
    let files = request.files.len();
    if files > MOST_DESCRIBED {
        return invalid(format!("{files} files to describe, at most {MOST_DESCRIBED} at once; send several requests"));
    }
    let (mut reply, mut classes, mut pgs) = (DescribeReadsReply::default(), BTreeSet::new(), BTreeSet::new());
    for open in &request.files {
        let file = match describe(view.db, open) {
            // It is opened by itself, and its error is told then.
            Err(Failure::Refused(_)) => OpenReadReply::default(),
            file => file?,
        };
        let chunks = || file.extents.iter().flat_map(|extents| &extents.chunks);
        classes.extend(chunks().map(|chunk| chunk.class_id));
        pgs.extend(chunks().map(|chunk| chunk.pg_id));
        reply.files.push(file);
    }
    reply.classes = class_infos(view, classes)?;
    reply.map = Some(delta::map_since(view.db, view.meta.map_version, view.caches, request.known_map_version, pgs)?);
    Ok(reply)
}

fn describe(db: &Db, open: &OpenRead) -> Result<OpenReadReply> {
    let (inode, version) = find(db, open)?;
    let (number, size) = (version.number, version.size_bytes);
    let pieces = versions::read(db, inode.ino, number, size, 0, size, MOST_EXTENTS_DESCRIBED)?;
    if pieces.last().map_or(0, Extent::end) < size {
        return refuse(Code::Unsupported, "has too many extents to be described beside other files");
    }
    Ok(OpenReadReply { extents: Some(with_chunks(db, pieces, size)?), ..described(&inode, version)? })
}

fn which(db: &Db, inode: &Inode, request: &OpenRead) -> Result<VersionInfo> {
    let (found, wanted) = match (request.version, request.number) {
        (0, 0) if inode.version_number == 0 => return Ok(VersionInfo::default()),
        (0, number) => {
            let number = if number == 0 { inode.version_number } else { number };
            (versions::by_number(db, inode.ino, number)?, format!("number {number}"))
        }
        (id, _) => (versions::by_id(db, inode.ino, id)?, format!("id {id}")),
    };
    let text = || format!("there is no such version of it ({wanted}); `tessera versions` lists those that are kept");
    found.ok_or_else(|| Failure::refused(Code::NotFound, text()))
}

/// Answers [`ListExtents`].
///
/// # Errors
/// `SessionExpired` if there is no such reader; a damaged page, or a failure of the database.
pub fn list_extents(view: &mut View, request: &ListExtents) -> Result<ListExtentsReply> {
    let id = request.session_id;
    let Some(reader) = view.soft.sessions.reader(id, view.now_ns).cloned() else {
        let text = format!("session {id} has expired or is no reader's; open the version again");
        return refuse(Code::SessionExpired, text);
    };
    extents(view, &reader, request.offset, request.len_bytes, request.known_map_version)
}

fn extents(view: &View, reader: &Reader, offset: u64, len: u64, known_map_version: u64) -> Result<ListExtentsReply> {
    let (size, most) = (reader.size_bytes, view.config.max_list_extents);
    let pieces = versions::read(view.db, reader.row.ino, reader.row.number, size, offset, len, most)?;
    let next_offset = pieces.last().map_or(offset.min(size), Extent::end);
    let reply = with_chunks(view.db, pieces, next_offset)?;
    let classes = class_infos(view, reply.chunks.iter().map(|chunk| chunk.class_id).collect())?;
    let pgs = reply.chunks.iter().map(|chunk| chunk.pg_id);
    let map = Some(delta::map_since(view.db, view.meta.map_version, view.caches, known_map_version, pgs)?);
    Ok(ListExtentsReply { classes, map, ..reply })
}

/// These extents and what they name, without classes and map.
fn with_chunks(db: &Db, extents: Vec<Extent>, next_offset: u64) -> Result<ListExtentsReply> {
    let mut ids: BTreeSet<u64> = extents.iter().map(|e| e.chunk_id).filter(|&chunk| chunk != 0).collect();
    let contents = content_infos(db, ids.split_off(&contents::FIRST_CONTENT))?;
    ids.extend(contents.iter().map(|content| content.chunk_id).filter(|&pack| pack != 0));
    let chunks = chunk_infos(db, &ids)?;
    Ok(ListExtentsReply { extents, chunks, next_offset, contents, ..ListExtentsReply::default() })
}

fn class_infos(view: &View, ids: BTreeSet<u32>) -> Result<Vec<ClassInfo>> {
    ids.into_iter().map(|id| Ok((*view.caches.class(view.db, id)?).clone())).collect()
}

/// Packs that one answer to [`ListPacks`] looks at.
const PACKS_PER_ANSWER: usize = 4_096;
/// Packs that one answer shows.
const MOST_PACKS_SHOWN: usize = 64;

/// Answers [`ListPacks`].
///
/// # Errors
/// A pack has no row, or the database fails.
pub fn list_packs(db: &Db, request: &ListPacks) -> Result<ListPacksReply> {
    let living = contents::living(db, request.after, PACKS_PER_ANSWER)?;
    let mut reply = ListPacksReply::default();
    if living.len() == PACKS_PER_ANSWER {
        reply.next_after = living.last().map_or(0, |(chunk_id, _)| *chunk_id);
    }
    for (chunk_id, bytes) in living {
        let chunk = chunk_infos(db, &BTreeSet::from([chunk_id]))?.remove(0);
        if bytes.saturating_mul(100) > chunk.len_bytes.saturating_mul(request.most_living_percent.into()) {
            continue;
        }
        if reply.packs.len() == MOST_PACKS_SHOWN {
            reply.next_after =
                reply.packs.last().and_then(|pack| pack.chunk.as_ref()).map_or(0, |chunk| chunk.chunk_id);
            break;
        }
        reply.packs.push(PackUse { chunk: Some(chunk), contents: contents::of_pack(db, chunk_id)? });
    }
    let classes: BTreeSet<u32> = reply.packs.iter().filter_map(|pack| Some(pack.chunk.as_ref()?.class_id)).collect();
    for class_id in classes {
        reply.classes.extend(cache::classes(db, "WHERE class_id = ?1", args![class_id])?);
    }
    Ok(reply)
}

/// Contents without packs that one answer to [`ListInlined`] shows, and their bytes: about what one pack takes.
const MOST_INLINED_SHOWN: usize = 1_024;
const MOST_INLINED_BYTES_SHOWN: usize = 1 << 20;

/// Answers [`ListInlined`].
///
/// # Errors
/// The database fails.
pub fn list_inlined(view: &View, request: &ListInlined) -> Result<ListInlinedReply> {
    let all = request.all.max(1);
    if request.own >= all {
        return invalid(format!("share {} of {all}; shares count from 0", request.own));
    }
    let unwritten_ns = i64::try_from(request.unwritten_ms).unwrap_or(i64::MAX).saturating_mul(1_000_000);
    let until_ns = view.now_ns.saturating_sub(unwritten_ns);
    let share = (until_ns, request.own, all);
    let limits = (MOST_INLINED_SHOWN, MOST_INLINED_BYTES_SHOWN);
    let (rows, next_after) = contents::inlined_until(view.db, request.after, share, limits)?;
    let mut reply = ListInlinedReply { next_after: next_after.unwrap_or(0), ..ListInlinedReply::default() };
    for row in rows {
        let content = contents::find(view.db, row.content_id)?;
        let content = content.map(|content| ContentInfo { inlined: row.bytes, ..content });
        reply.contents.push(InlinedContent { content, domain: row.domain, class_id: row.class_id });
    }
    Ok(reply)
}

fn content_infos(db: &Db, ids: BTreeSet<u64>) -> Result<Vec<ContentInfo>> {
    let info = |id| match contents::find(db, id)? {
        Some(content) if content.chunk_id == 0 => {
            let inlined = contents::inlined(db, id)?.map(|row| row.bytes).unwrap_or_default();
            Ok(ContentInfo { inlined, ..content })
        }
        Some(content) => Ok(content),
        None => Err(corrupt_row(format!("contents, row {id}"), "a page names it, and it is not there (P4)").into()),
    };
    ids.into_iter().map(info).collect()
}

fn chunk_infos(db: &Db, ids: &BTreeSet<u64>) -> Result<Vec<ChunkInfo>> {
    let any_missing = missing::any(db)?;
    let mut select = db.stmt(&ChunkInfo::select("FROM chunks WHERE chunk_id = ?1"))?;
    let mut chunks = Vec::with_capacity(ids.len());
    for &chunk_id in ids {
        let missing = if any_missing { missing::of_chunk(db, chunk_id)? } else { Vec::new() };
        let Some(chunk) = select.query_row(args![chunk_id], ChunkInfo::of).optional()? else {
            let row = format!("chunks, row {chunk_id}");
            return Err(corrupt_row(row, "a page or a content names it, and it is not there (P4)").into());
        };
        chunks.push(ChunkInfo { missing, ..chunk });
    }
    Ok(chunks)
}

/// A stream of unknown length gets at most 1/`STREAM_SHARE` of the space that no session has reserved.
const STREAM_SHARE: u64 = 4;

/// Answers [`RenewSession`].
///
/// # Errors
/// `SessionExpired` if there is no such session, or a failure of the database.
pub fn renew(view: &mut View, request: &RenewSession) -> Result<RenewSessionReply> {
    let wanted = request.reserve_bytes;
    let (id, now_ns) = (request.session_id, view.now_ns);
    let Some(reserved) = view.soft.sessions.renew(id, now_ns, None) else {
        return refuse(Code::SessionExpired, format!("session {id} has expired or never was; open the file again"));
    };
    let granted = match wanted > reserved {
        true => grant(view, id, wanted, reserved)?,
        false => wanted,
    };
    let reserved_bytes = view.soft.sessions.renew(id, now_ns, Some(granted)).unwrap_or(0);
    Ok(RenewSessionReply { session_ms: view.config.session_ms, reserved_bytes })
}

/// Bytes of the wanted reservation to grant: at most the space that no session has reserved. A stream asks for more than it
/// may ever write, so it gets at most a quarter of that space. The grant is never below the current reservation.
fn grant(view: &View, id: u64, wanted: u64, reserved: u64) -> Result<u64> {
    let session = sessions::writer(view.db, id)?;
    let scheme = HintSet::read(&session.hints).policy()?.scheme(wanted);
    let others = view.soft.sessions.reserved_bytes().saturating_sub(reserved);
    let space = groups::space((view.db, view.caches), &view.soft.cluster.stats, scheme, others)?.unreserved_bytes();
    let known = session.reserved_bytes >= wanted;
    Ok(wanted.min(if known { space } else { space / STREAM_SHARE }).max(reserved))
}
