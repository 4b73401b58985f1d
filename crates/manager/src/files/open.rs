//! Opening a file for writing: its policy, the space it reserves, and the first dedup query.

use crate::chunks::dedup;
use crate::ctx::Ctx;
use crate::db::meta::draw;
use crate::db::sessions::{Session, WRITER};
use crate::error::{Result, invalid, refuse};
use crate::files::{one_shot, packs, sessions, unfinished};
use crate::namespace::hints::{self, HintSet};
use crate::namespace::inodes::{self, check_name};
use crate::namespace::names;
use crate::placement::groups;
use crate::soft::Effect;
use tessera_policy::{Dedup, Policy, Redundancy, SCHEMES};
use tessera_wire::Code;
use tessera_wire::meta::*;

/// Longest host label.
const MAX_HOST_BYTES: usize = 255;

/// Opens a write session.
///
/// # Errors
/// The request is refused (for example, for an invalid policy or for lack of space), or the database fails.
pub fn open_write(ctx: &mut Ctx, request: &OpenWrite) -> Result<OpenWriteReply> {
    let OpenedWriter { mut session, policy, base_size_bytes } = match request.pack {
        true => packs::begin(ctx, request)?,
        false => begin(ctx, request)?,
    };
    let granted_bytes = reserve(ctx, &policy, request.size_hint_bytes)?;
    session.session_id = draw(&mut ctx.meta.next_session);
    let spec = || scheme_spec(&request.redundancy, &policy, request.size_hint_bytes);
    let allocated = match request.chunks.is_empty() {
        true => None,
        false => {
            let known = request.known_map_version;
            Some(dedup::answer(ctx, &session, &policy, &spec()?, &request.chunks, &[], known)?)
        }
    };
    let preallocated = match request.preallocate {
        0 => None,
        _ => one_shot::preallocate(ctx, &session, &policy, &spec()?, request)?,
    };
    assert!(
        session.session_id != 0 && (session.ino != 0 || request.pack),
        "a writer has an id and an inode: {session:?}"
    );
    assert!(session.created || session.base_version == 0, "inode {}: a new file has no version", session.ino);
    session.write(ctx.db)?;
    let reply = OpenWriteReply {
        session_id: session.session_id,
        ino: if session.created { session.ino } else { 0 },
        base_version: session.base_version,
        base_size_bytes,
        policy: hints::all(&policy),
        session_ms: session_ms(ctx)?,
        domain: session.domain,
        allocated,
        preallocated,
    };
    sessions::opened(ctx, &session, granted_bytes.saturating_sub(len_of(&request.chunks)));
    Ok(reply)
}

/// How long a session lasts that is not used, milliseconds.
pub(crate) fn session_ms(ctx: &mut Ctx) -> Result<u64> {
    ctx.record(|_, live| Ok(live.config.session_ms))
}

/// A write session that has no id, and no row, yet.
pub(crate) struct OpenedWriter {
    pub session: Session,
    pub policy: Policy,
    /// Length of the current version.
    pub base_size_bytes: u64,
}

/// Finds the file, its policy and its current version for a writer.
pub(crate) fn begin(ctx: &mut Ctx, request: &OpenWrite) -> Result<OpenedWriter> {
    if request.host.len() > MAX_HOST_BYTES {
        return invalid(format!("a host label of {} bytes; at most {MAX_HOST_BYTES}", request.host.len()));
    }
    let (parent, inode) = target(ctx, request)?;
    let own = match (&inode, &parent) {
        (Some(inode), _) => &inode.hints,
        (None, Some(parent)) => &parent.hints,
        (None, None) => return refuse(Code::NotFound, "neither a directory nor a file was named"),
    };
    let hints = HintSet::read(own).with(&request.hints)?;
    let policy = hints.policy()?;
    let session = Session {
        kind: WRITER,
        client_id: ctx.client_id,
        started_ns: ctx.now_ns,
        ino: match &inode {
            Some(inode) => inode.ino,
            None if request.ino != 0 => {
                names::check_drawn(ctx, request.ino)?;
                request.ino
            }
            None if request.pack => 0,
            None => draw(&mut ctx.meta.next_ino),
        },
        created: inode.is_some(),
        parent: parent.map_or(0, |parent| parent.ino),
        name: request.name.clone(),
        base_version: inode.as_ref().map_or(0, |inode| inode.version_id),
        base_number: inode.as_ref().map_or(0, |inode| inode.version_number),
        domain: inode.as_ref().map_or(1, |inode| inode.domain),
        hints: hints.column(),
        host: request.host.clone(),
        reserved_bytes: request.size_hint_bytes,
        ..Default::default()
    };
    Ok(OpenedWriter { session, policy, base_size_bytes: inode.map_or(0, |inode| inode.size_bytes) })
}

/// Shorter files reserve without a check of all disks, because the choice of their groups checks for space anyway.
const RESERVE_FROM_BYTES: u64 = 1 << 20;

/// Reserves space for a writer, at most what other sessions have not reserved. The manager does not know yet which chunks
/// are already stored, so it refuses for lack of space only when new chunks need it ([`dedup::DedupQuery`]). Only a file
/// without dedup is refused here.
fn reserve(ctx: &mut Ctx, policy: &Policy, bytes: u64) -> Result<u64> {
    if bytes < RESERVE_FROM_BYTES {
        return Ok(bytes);
    }
    let scheme = policy.scheme(bytes);
    ctx.record(|ctx, live| {
        let reserved_bytes = live.soft.sessions.reserved_bytes();
        let space = groups::space((ctx.db, ctx.caches), &live.soft.cluster.stats, scheme, reserved_bytes)?;
        match policy.dedup {
            Dedup::Off if space.unreserved_bytes() < bytes => Err(space.refusal(&scheme.to_string(), bytes).into()),
            _ => Ok(space.unreserved_bytes().min(bytes)),
        }
    })
}

fn len_of(chunks: &[ChunkName]) -> u64 {
    chunks.iter().map(|c| c.len_bytes).fold(0, u64::saturating_add)
}

/// The directory (if the request names the file in one) and the file (if it exists).
fn target(ctx: &Ctx, request: &OpenWrite) -> Result<(Option<inodes::Inode>, Option<inodes::Inode>)> {
    let (parent, inode) = match (request.parent, request.ino) {
        (0, 0) => return invalid("OpenWrite names neither a directory nor a file"),
        (0, ino) => (None, Some(inodes::get(ctx.db, ino)?)),
        (parent, _) => {
            check_name(&request.name)?;
            let parent = inodes::directory(ctx.db, parent)?;
            let inode = inodes::named(ctx.db, parent.ino, &request.name)?;
            (Some(parent), inode)
        }
    };
    match &inode {
        Some(inode) if inode.is_directory() => refuse(Code::IsDirectory, "a directory cannot be written to"),
        Some(inode) if !inode.is_file() => {
            refuse(Code::Unsupported, "a symbolic link cannot be written to; resolve it first")
        }
        _ => Ok((parent, inode)),
    }
}

/// The requested class, else the policy's class, with `auto` resolved by the file's length and place.
pub(crate) fn scheme_spec(asked: &str, policy: &Policy, file_bytes: u64) -> Result<String> {
    let redundancy = match asked {
        "" => policy.redundancy,
        text => text
            .parse::<Redundancy>()
            .or_else(|why| invalid(format!("redundancy {text:?}: {why}; allowed: {SCHEMES}")))?,
    };
    Ok(redundancy.scheme(file_bytes, &policy.placement).to_string())
}

/// Takes note of what a write session has stored, and answers its dedup query.
///
/// # Errors
/// The session has expired, the request names no valid class, new chunks find no space, or the database fails.
pub fn allocate_chunks(ctx: &mut Ctx, request: &AllocateChunks) -> Result<AllocateChunksReply> {
    let session = sessions::writer(ctx.db, request.session_id)?;
    let policy = HintSet::read(&session.hints).policy()?;
    if request.redundancy.is_empty() {
        return invalid(format!("AllocateChunks names no class; send one of {SCHEMES}"));
    }
    let spec = scheme_spec(&request.redundancy, &policy, u64::MAX)?;
    unfinished::keep(ctx, &session, &request.stored)?;
    let AllocateChunks { chunks, avoid_pgs, known_map_version, .. } = request;
    let reply = dedup::answer(ctx, &session, &policy, &spec, chunks, avoid_pgs, *known_map_version)?;
    // These chunks no longer need a reservation, whether they were stored before or not.
    let (id, bytes) = (session.session_id, len_of(&request.chunks));
    ctx.after_commit(Effect::ReservationUsed { session_id: id, bytes });
    Ok(reply)
}
