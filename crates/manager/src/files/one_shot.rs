//! PreallocatedChunks: chunk ids with a group and no content yet, drawn in advance. A client stores the fragments of a small file
//! under them and then asks one thing of the manager ([`tessera_wire::meta::Commit::open`]): open the file, this is what
//! the preallocated hold, commit. So a small file costs one logged command instead of two.
//!
//! The row of a blank is a pending chunk without a name, and the session they were drawn with keeps them like any pending
//! chunk (P4). What a blank was filled with is looked for only now: if it is stored already, the file gets the
//! chunk that is there, and the blank goes the way of everything pending.

use crate::chunks::dedup::{self, DedupQuery};
use crate::chunks::table::{self, NewChunk, PENDING};
use crate::ctx::Ctx;
use crate::db::meta::draw;
use crate::db::sessions::{Session, WRITER};
use crate::error::{Result, invalid, refuse};
use crate::files::open::{self, OpenedWriter};
use crate::files::{commit, sessions};
use crate::map::delta;
use crate::namespace::names;
use crate::placement::groups;
use crate::placement::select::{self, ChunkSpec};
use crate::soft::Effect;
use rusqlite::OptionalExtension;
use std::collections::HashMap;
use tessera_policy::{Placement, Policy};
use tessera_wire::Code;
use tessera_wire::meta::*;

/// Most preallocated that one answer brings.
const MAX_PREALLOCATED: u32 = 256;
/// What a blank is expected to hold, for the choice of its group.
const EXPECTED_BYTES: u64 = 64 << 10;

/// PreallocatedChunks of class `spec`, as asked for in `request`; none where a file's chunks belong in certain places, or nowhere is room.
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
    let wanted = ChunkSpec { class: &class, len_bytes: EXPECTED_BYTES, avoid: &[], degraded: policy.degraded_writes };
    let mut chunks = Vec::new();
    for _ in 0..request.preallocate.min(MAX_PREALLOCATED) {
        let pg_id = ctx.record(|ctx| Ok(select::select_group(ctx, &wanted).unwrap_or(0)))?;
        if pg_id == 0 {
            break;
        }
        let pg = ctx.caches.pg(ctx.db, pg_id)?;
        let new = NewChunk { domain: writer.domain, class_id: class.class_id, pg_id };
        let chunk_id = table::insert_preallocated(ctx, new)?;
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
    let mut pgs: Vec<u64> = chunks.iter().map(|c| c.pg_id).collect();
    pgs.sort_unstable();
    pgs.dedup();
    let map = delta::map_since(ctx.db, ctx.meta.map_version, ctx.caches, request.known_map_version, &pgs)?;
    let preallocated = PreallocatedChunks {
        session_id: session.session_id,
        session_ms: ctx.config.session_ms,
        chunks,
        class: Some(class.as_ref().clone()),
        domain: session.domain,
        map: Some(map),
    };
    ctx.after_commit(Effect::SessionOpened {
        session_id: session.session_id,
        client_id: session.client_id,
        now_ns: ctx.now_ns,
        reserved_bytes: 0,
    });
    Ok(Some(preallocated))
}

/// Opens a file, fills preallocated and commits.
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

/// What is wrong with the request itself (P14), and whether its preallocated can still be there.
fn check(ctx: &Ctx, request: &Commit, open_request: &OpenWrite) -> Result<()> {
    if request.partial || request.keep_session || request.mode != CommitMode::Replace as i32 {
        return invalid("a commit that opens its file replaces it, as a whole, and ends");
    }
    if request.preallocated_ids.len() != open_request.chunks.len() {
        let (filled, chunks) = (request.preallocated_ids.len(), open_request.chunks.len());
        return invalid(format!("{filled} preallocated for {chunks} chunks; send one for each"));
    }
    dedup::check(ctx, &open_request.chunks)?;
    let mut ids = request.preallocated_ids.clone();
    ids.sort_unstable();
    ids.dedup();
    if ids.len() != request.preallocated_ids.len() {
        return invalid("a blank holds one chunk; one is named twice");
    }
    if !ids.is_empty() {
        sessions::writer(ctx.db, request.session_id)?;
    }
    Ok(())
}

/// Names what the preallocated hold. Those whose content is stored already, and as what.
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
    for (&blank, name) in request.preallocated_ids.iter().zip(&open_request.chunks) {
        let pg_id = preallocated_group(ctx, session, class.class_id, blank)?;
        if let Some(there) = question.reuse(ctx, name, None)?.filter(|a| a.state() == ChunkState::Durable) {
            known.insert(blank, there.chunk_id);
            continue;
        }
        table::name_preallocated(ctx, blank, pg_id, name, scope)?;
    }
    Ok(known)
}

/// Group of a blank that is there, and blank.
fn preallocated_group(ctx: &Ctx, session: &Session, class_id: u32, blank: u64) -> Result<u64> {
    let row: Option<(i64, u32, u32, i64, bool)> = ctx
        .db
        .stmt("SELECT pg_id, domain, class_id, state, hash = x'' FROM chunks WHERE chunk_id = ?1")?
        .query_row([blank as i64], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)))
        .optional()?;
    match row {
        Some((pg_id, domain, class, PENDING, true)) if (domain, class) == (session.domain, class_id) => {
            Ok(pg_id as u64)
        }
        _ => refuse(
            Code::SessionExpired,
            format!("chunk {blank} is no blank of the class that the file asks for, or no more; open the file"),
        ),
    }
}
