//! One-shot commits: a client stores the fragments of a small file under preallocated chunk ids, then one request
//! ([`tessera_wire::meta::Commit::open`]) opens the file, names the content of the chunks and commits. So a small file costs one
//! logged command instead of two.
//!
//! A preallocated id is a pending chunk with a group and without a name. The session that drew it protects it from garbage
//! collection like any pending chunk (P4). The commit does the dedup lookup: if the content is already stored, the file gets
//! the stored chunk, and the preallocated chunk becomes garbage.
//!
//! A tiny file needs no chunk: the commit brings its bytes, and the metadata keeps them until a pack takes them
//! (`Commit.pack.moved`). They are as safe as the file's name, and no node is asked.

use crate::chunks::contents;
use crate::chunks::dedup::{self, DedupQuery};
use crate::chunks::table::{self, NewChunk, PENDING, SCOPE_NONE};
use crate::ctx::Ctx;
use crate::db::meta::draw;
use crate::db::sessions::{Session, WRITER};
use crate::db::sql::args;
use crate::error::{Failure, Result, invalid, refuse};
use crate::files::commit::Inlined;
use crate::files::open::{self, OpenedWriter};
use crate::files::{commit, sessions, unpacked};
use crate::map::delta;
use crate::namespace::names;
use crate::placement::groups;
use crate::placement::room::Purpose;
use crate::placement::select::{self, ChunkSpec};
use std::collections::HashMap;
use tessera_failpoint as failpoint;
use tessera_policy::{Placement, Policy};
use tessera_wire::Code;
use tessera_wire::meta::*;

/// Most preallocated chunks in one reply.
const MAX_PREALLOCATED: u32 = 256;
/// Expected length of a preallocated chunk, for the choice of its group.
const EXPECTED_BYTES: u64 = 64 << 10;
/// Most bytes of a tiny file in the metadata, and most extents of it.
const MOST_INLINED_OF_FILE: usize = 16 << 10;
const MOST_INLINED_EXTENTS: usize = 64;

/// Draws the preallocated chunks that `request` asks for, of class `spec`. `None` if the policy asks for certain hosts, or if
/// there is no space.
pub(crate) fn preallocate(
    ctx: &mut Ctx,
    writer: &Session,
    policy: &Policy,
    spec: &str,
    request: &OpenWrite,
) -> Result<Option<PreallocatedChunks>> {
    if policy.placement != Placement::Spread {
        return Ok(None);
    }
    let class = groups::class_for(ctx, spec)?;
    let wanted = ChunkSpec {
        class: &class,
        len_bytes: EXPECTED_BYTES,
        avoid: &[],
        degraded: policy.degraded_writes,
        purpose: Purpose::NewChunks,
    };
    let mut chunks = Vec::new();
    for _ in 0..request.preallocate.min(MAX_PREALLOCATED) {
        let pg_id = ctx.record(|ctx, live| Ok(select::select_group(ctx, live, &wanted).unwrap_or(0)))?;
        if pg_id == 0 {
            break;
        }
        let pg = ctx.caches.pg(ctx.db, pg_id)?;
        let new = NewChunk { domain: writer.domain, class_id: class.class_id, pg_id };
        let chunk_id = table::insert(ctx, new, None, SCOPE_NONE)?;
        chunks.push(dedup::reply(ChunkState::New, chunk_id, &pg, Vec::new()));
    }
    if chunks.is_empty() {
        return Ok(None);
    }
    assert!(chunks.len() <= MAX_PREALLOCATED as usize, "{} preallocated chunks", chunks.len());
    let session = Session {
        session_id: draw(&mut ctx.meta.next_session),
        kind: WRITER,
        client_id: ctx.client_id,
        started_ns: ctx.now_ns,
        domain: writer.domain,
        ..Default::default()
    };
    session.write(ctx.db)?;
    let pgs = chunks.iter().map(|c| c.pg_id);
    let map = delta::map_since(ctx.db, ctx.meta.map_version, ctx.caches, request.known_map_version, pgs)?;
    let preallocated = PreallocatedChunks {
        session_id: session.session_id,
        session_ms: open::session_ms(ctx)?,
        chunks,
        class: Some(class.as_ref().clone()),
        domain: session.domain,
        map: Some(map),
    };
    sessions::opened(ctx, &session, 0);
    Ok(Some(preallocated))
}

/// Opens a file, names its preallocated chunks and commits.
pub(crate) fn open_and_commit(ctx: &mut Ctx, request: &Commit, open_request: &OpenWrite) -> Result<CommitReply> {
    check(ctx, request, open_request)?;
    let OpenedWriter { session, policy, .. } = open::begin(ctx, open_request)?;
    let Filled { stored, mut known, inlined } = fill(ctx, &session, &policy, request, open_request)?;
    let mut request = Commit { inlined: Vec::new(), ..request.clone() };
    for extent in &mut request.extents {
        extent.chunk_id = stored.get(&extent.chunk_id).copied().unwrap_or(extent.chunk_id);
    }
    request.acks.retain(|ack| !stored.contains_key(&ack.chunk_id));
    let spec = open::scheme_spec(&open_request.redundancy, &policy, request.size_bytes)?;
    let writer = session.clone();
    let has_brought = inlined.values().any(|(_, is_new)| *is_new);
    let mut reply = commit::commit_in(ctx, &request, session, (&policy, inlined))?;
    if has_brought && !reply.stale.is_empty() {
        return refuse(Code::SessionExpired, "content that was stored before is not complete; open the file");
    }
    if reply.stale.is_empty() && open_request.preallocate > 0 {
        reply.preallocated = preallocate(ctx, &writer, &policy, &spec, open_request)?;
    }
    if reply.stale.is_empty() {
        reply.inos = names::draw_inos(ctx, open_request.inos);
    }
    known.sort_unstable();
    reply.known = known;
    assert!(reply.known.len() <= open_request.chunks.len(), "known chunks are some of those that the request names");
    Ok(reply)
}

/// What became of the chunks that a commit names.
#[derive(Default)]
struct Filled {
    /// The chunk or content that extents name instead of the client's id.
    stored: HashMap<u64, u64>,
    /// The client's ids of those that were stored already.
    known: Vec<u64>,
    inlined: Inlined,
}

/// Whether the client has stored nothing under an id: it names content that it believes to be here, or brings it.
fn is_of_known(id: u64) -> bool {
    id >= KNOWN_ID
}

/// Checks the request itself (P14), and that the session of its preallocated chunks is live.
fn check(ctx: &Ctx, request: &Commit, open_request: &OpenWrite) -> Result<()> {
    if request.partial || request.keep_session || request.mode != CommitMode::Replace as i32 {
        return invalid("a commit that opens its file replaces it, as a whole, and ends");
    }
    if request.preallocated_ids.len() != open_request.chunks.len() {
        let (filled, chunks) = (request.preallocated_ids.len(), open_request.chunks.len());
        return invalid(format!("{filled} preallocated ids for {chunks} chunks; send one for each"));
    }
    dedup::check(&open_request.chunks)?;
    check_inlined(request, open_request)?;
    let mut ids = request.preallocated_ids.clone();
    ids.sort_unstable();
    ids.dedup();
    if ids.len() != request.preallocated_ids.len() {
        return invalid("a preallocated chunk is named twice; name each once");
    }
    if ids.iter().any(|id| !is_of_known(*id)) {
        sessions::writer(ctx.db, request.session_id)?;
    }
    Ok(())
}

/// Checks the bytes that a commit brings: they are what the names say (P2), and the file has all of them.
fn check_inlined(request: &Commit, open_request: &OpenWrite) -> Result<()> {
    let (brought, chunks) = (request.inlined.len(), open_request.chunks.len());
    if brought == 0 {
        return Ok(());
    }
    if brought != chunks || !request.preallocated_ids.iter().all(|id| is_of_known(*id)) {
        return invalid(format!(
            "the bytes of {brought} of {chunks} chunks; send those of each, under ids of your own"
        ));
    }
    let bytes: usize = request.inlined.iter().map(|bytes| bytes.len()).sum();
    if bytes > MOST_INLINED_OF_FILE || request.extents.len() > MOST_INLINED_EXTENTS {
        return refuse(Code::SessionExpired, "the file is not tiny; store its chunks");
    }
    for (at, (name, bytes)) in open_request.chunks.iter().zip(&request.inlined).enumerate() {
        let is_equal = name.len_bytes == bytes.len() as u64 && name.hash[..] == blake3::hash(bytes).as_bytes()[..];
        if !is_equal && !failpoint::is_active("manager.inlined_unlooked") {
            return invalid(format!("the bytes of chunk {at} are not what its name says; check this machine's memory"));
        }
        if !request.extents.iter().any(|extent| extent.chunk_id == request.preallocated_ids[at]) {
            return invalid(format!("no extent names chunk {at}, whose bytes the commit brings"));
        }
    }
    Ok(())
}

/// Refuses bytes that the metadata does not take: a pack would not, or there are too many already.
fn admit_inlined(ctx: &mut Ctx, policy: &Policy, request: &Commit) -> Result<()> {
    let bytes: u64 = request.inlined.iter().map(|bytes| bytes.len() as u64).sum();
    if !unpacked::gains(request.size_bytes, policy) {
        return refuse(Code::SessionExpired, "a file of this policy does not move into a pack; store its chunks");
    }
    let most_bytes = ctx.record(|_, live| Ok(live.config.inlined_bytes))?;
    match ctx.meta.inlined_bytes.saturating_add(bytes) > most_bytes {
        true => {
            refuse(Code::SessionExpired, "the metadata has as many bytes of tiny files as it takes; store the chunks")
        }
        false => Ok(()),
    }
}

/// The class of the packs that take small files of this policy.
fn class_of_packs(ctx: &mut Ctx, policy: &Policy) -> Result<u32> {
    match groups::class_for(ctx, &policy.scheme(u64::MAX).to_string()) {
        Ok(class) => Ok(class.class_id),
        Err(Failure::Refused(error)) if matches!(error.code(), Code::TooFewHosts | Code::NoSpace) => {
            refuse(Code::SessionExpired, format!("no pack could take the file ({}); store its chunks", error.message))
        }
        Err(failure) => Err(failure),
    }
}

/// Names the content of the preallocated chunks, and keeps what the commit brought.
fn fill(
    ctx: &mut Ctx,
    session: &Session,
    policy: &Policy,
    request: &Commit,
    open_request: &OpenWrite,
) -> Result<Filled> {
    let mut filled = Filled::default();
    if open_request.chunks.is_empty() {
        return Ok(filled);
    }
    let spec = open::scheme_spec(&open_request.redundancy, policy, request.size_bytes)?;
    let class = groups::class_for(ctx, &spec)?;
    if policy.placement != Placement::Spread || policy.scheme(request.size_bytes).to_string() != spec {
        return refuse(Code::SessionExpired, "the file's policy asks for another place or class; open the file");
    }
    if !open_request.chunking.is_empty() && open_request.chunking != policy.chunking.to_string() {
        return refuse(Code::SessionExpired, "the file's policy asks for other chunks; open the file");
    }
    let question = DedupQuery::new(ctx, session, policy, &class, &[])?;
    let scope = dedup::scope(policy, session.ino);
    let mut pack_class = 0;
    if !request.inlined.is_empty() {
        admit_inlined(ctx, policy, request)?;
        pack_class = class_of_packs(ctx, policy)?;
    }
    for (at, (&preallocated_id, name)) in request.preallocated_ids.iter().zip(&open_request.chunks).enumerate() {
        let preallocated = match is_of_known(preallocated_id) {
            true => None,
            false => Some(preallocated_group(ctx, session, class.class_id, preallocated_id)?),
        };
        if let Some(there) = question.reuse(ctx, name, None)?.filter(|a| a.state() == ChunkState::Durable) {
            filled.stored.insert(preallocated_id, there.chunk_id);
            filled.known.push(preallocated_id);
            continue;
        }
        if let Some(bytes) = request.inlined.get(at) {
            let kind = (session.domain, pack_class);
            // Bytes of rows decide, and a row may have rotted: all managers draw the ids that this one draws.
            let there = ctx.record(|ctx, _| Ok(contents::find_inlined(ctx.db, kind, name, bytes)?.unwrap_or(0)))?;
            let there = Some(there).filter(|id| *id != 0);
            let content_id = match there {
                Some(content_id) => content_id,
                None => contents::insert_inlined(ctx, kind, name, bytes.clone())?,
            };
            filled.stored.insert(preallocated_id, content_id);
            filled.known.extend(there.map(|_| preallocated_id));
            filled.inlined.entry(content_id).or_insert((name.clone(), there.is_none()));
            continue;
        }
        let Some(pg_id) = preallocated else {
            return refuse(
                Code::SessionExpired,
                "content that was stored before is gone, or not complete; open the file",
            );
        };
        table::name_preallocated(ctx, preallocated_id, (pg_id, class.class_id), name, scope)?;
    }
    Ok(filled)
}

/// Group of a preallocated chunk that has no name yet.
fn preallocated_group(ctx: &Ctx, session: &Session, class_id: u32, preallocated_id: u64) -> Result<u64> {
    let sql =
        "SELECT pg_id FROM chunks WHERE chunk_id = ?1 AND domain = ?2 AND class_id = ?3 AND state = ?4 AND hash = x''";
    let pg_id = ctx.db.first(sql, args![preallocated_id, session.domain, class_id, PENDING])?;
    let text =
        || format!("chunk {preallocated_id} is not preallocated in the class that the file asks for; open the file");
    pg_id.ok_or_else(|| Failure::refused(Code::SessionExpired, text()))
}
