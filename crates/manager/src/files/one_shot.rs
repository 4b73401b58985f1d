//! One-shot commits: a client stores the fragments of a small file under preallocated chunk ids, then one request
//! ([`tessera_wire::meta::Commit::open`]) opens the file, names the content of the chunks and commits. So a small file costs one
//! logged command instead of two.
//!
//! A preallocated id is a pending chunk with a group and without a name. The session that drew it protects it from garbage
//! collection like any pending chunk (P4). The commit does the dedup lookup: if the content is already stored, the file gets
//! the stored chunk, and the preallocated chunk becomes garbage.

use crate::chunks::dedup::{self, DedupQuery};
use crate::chunks::table::{self, NewChunk, PENDING, SCOPE_NONE};
use crate::ctx::Ctx;
use crate::db::meta::draw;
use crate::db::sessions::{Session, WRITER};
use crate::db::sql::args;
use crate::error::{Failure, Result, invalid, refuse};
use crate::files::open::{self, OpenedWriter};
use crate::files::{commit, sessions};
use crate::map::delta;
use crate::namespace::names;
use crate::placement::groups;
use crate::placement::room::Purpose;
use crate::placement::select::{self, ChunkSpec};
use std::collections::HashMap;
use tessera_policy::{Placement, Policy};
use tessera_wire::Code;
use tessera_wire::meta::*;

/// Most preallocated chunks in one reply.
const MAX_PREALLOCATED: u32 = 256;
/// Expected length of a preallocated chunk, for the choice of its group.
const EXPECTED_BYTES: u64 = 64 << 10;

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
    let known = fill(ctx, &session, &policy, request, open_request)?;
    let mut request = request.clone();
    for extent in &mut request.extents {
        extent.chunk_id = known.get(&extent.chunk_id).copied().unwrap_or(extent.chunk_id);
    }
    request.acks.retain(|ack| !known.contains_key(&ack.chunk_id));
    let spec = open::scheme_spec(&open_request.redundancy, &policy, request.size_bytes)?;
    let writer = session.clone();
    let mut reply = commit::commit_in(ctx, &request, session, &policy)?;
    if reply.stale.is_empty() && open_request.preallocate > 0 {
        reply.preallocated = preallocate(ctx, &writer, &policy, &spec, open_request)?;
    }
    if reply.stale.is_empty() {
        reply.inos = names::draw_inos(ctx, open_request.inos);
    }
    reply.known = known.into_keys().collect();
    reply.known.sort_unstable();
    assert!(reply.known.len() <= open_request.chunks.len(), "known chunks are some of those that the request names");
    Ok(reply)
}

/// Whether the client has stored nothing under an id: it names content that it believes to be here.
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

/// Names the content of the preallocated chunks. Returns those whose content is already stored, with the stored chunk.
fn fill(
    ctx: &mut Ctx,
    session: &Session,
    policy: &Policy,
    request: &Commit,
    open_request: &OpenWrite,
) -> Result<HashMap<u64, u64>> {
    if open_request.chunks.is_empty() {
        return Ok(HashMap::new());
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
    let mut known = HashMap::new();
    for (&preallocated_id, name) in request.preallocated_ids.iter().zip(&open_request.chunks) {
        let preallocated = match is_of_known(preallocated_id) {
            true => None,
            false => Some(preallocated_group(ctx, session, class.class_id, preallocated_id)?),
        };
        if let Some(there) = question.reuse(ctx, name, None)?.filter(|a| a.state() == ChunkState::Durable) {
            known.insert(preallocated_id, there.chunk_id);
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
    Ok(known)
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
