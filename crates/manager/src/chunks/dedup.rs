//! The batched dedup query: which chunks exist, and which groups take new ones.
//!
//! A chunk is *durable* when it is committed and proven, misses no fragment and no member of its group was lost: the client sends
//! nothing. It is *incomplete* when its missing fragments can be put where they belong. Otherwise the query makes a new
//! row, so a chunk may be in more than one group. A chunk without references whose id is returned counts as used now (P4).

use crate::chunks::missing;
use crate::chunks::table::{self, COMMITTED, NewChunk, PENDING, SCOPE_NONE, UNPROVEN};
use crate::ctx::{Ctx, Live};
use crate::db::cache::Pg;
use crate::db::sessions::Session;
use crate::db::sql::{args, row};
use crate::error::{Result, invalid};
use crate::map::delta;
use crate::placement::affinity::Affinity;
use crate::placement::groups;
use crate::placement::room::Purpose;
use crate::placement::select::{self, ChunkSpec, HostWish};
use crate::soft::Effect;
use std::cell::Cell;
use std::collections::HashMap;
use tessera_failpoint as failpoint;
use tessera_policy::{Dedup, MAX_CHUNK_BYTES, Policy};
use tessera_stripe::ClassLayout;
use tessera_wire::ClassInfo;
use tessera_wire::meta::*;

pub(crate) struct DedupQuery<'a> {
    session: &'a Session,
    class: &'a ClassInfo,
    scope: i64,
    dedup: bool,
    avoid: &'a [u64],
    degraded: bool,
    affinity: Affinity,
    /// Whether any fragment of any chunk is missing. Usually none is, which saves lookups.
    any_missing: bool,
    /// Bytes of new chunks that this query may still place; `None` until computed.
    space_bytes: Cell<Option<u64>>,
}

/// Answers a query of `session` about `chunks` of class `spec`. New chunks go to no group in `avoid`.
pub(crate) fn answer(
    ctx: &mut Ctx,
    session: &Session,
    policy: &Policy,
    spec: &str,
    chunks: &[ChunkName],
    avoid: &[u64],
    known_map_version: u64,
) -> Result<AllocateChunksReply> {
    check(chunks)?;
    let class = groups::class_for(ctx, spec)?;
    let question = DedupQuery::new(ctx, session, policy, &class, avoid)?;
    let mut answers: Vec<ChunkAnswer> = Vec::with_capacity(chunks.len());
    let mut seen: HashMap<(&[u8], u64), usize> = HashMap::new();
    let mut pgs: Vec<u64> = Vec::new();
    for chunk in chunks {
        let repeated = if chunks.len() > 1 { seen.get(&(&chunk.hash[..], chunk.region)).copied() } else { None };
        let answer = match repeated {
            Some(at) => answers[at].clone(),
            None => question.answer(ctx, chunk)?,
        };
        seen.insert((&chunk.hash, chunk.region), answers.len());
        pgs.push(answer.pg_id);
        answers.push(answer);
    }
    assert_eq!(answers.len(), chunks.len(), "each chunk of the query has one answer");
    let map = delta::map_since(ctx.db, ctx.meta.map_version, ctx.caches, known_map_version, pgs)?;
    Ok(AllocateChunksReply { answers, class: Some(class.as_ref().clone()), map: Some(map) })
}

/// `chunks.scope` of the chunks of a file with this policy.
pub(crate) fn scope(policy: &Policy, ino: u64) -> i64 {
    match policy.dedup {
        Dedup::All => 0,
        Dedup::Version => ino as i64,
        Dedup::Off => SCOPE_NONE,
    }
}

pub(crate) fn check(chunks: &[ChunkName]) -> Result<()> {
    for chunk in chunks {
        if chunk.hash.len() != 32 {
            return invalid(format!("a chunk's hash has {} bytes, BLAKE3-256 has 32", chunk.hash.len()));
        }
        if chunk.len_bytes == 0 || chunk.len_bytes > MAX_CHUNK_BYTES {
            return invalid(format!("a chunk of {} bytes; chunks have 1 to {MAX_CHUNK_BYTES} bytes", chunk.len_bytes));
        }
    }
    Ok(())
}

row! {
    /// A row that may answer the query.
    struct Candidate {
        chunk_id: u64,
        pg_id: u64,
        state: i64,
        refs: i64,
        len_bytes: u64,
        scope: i64,
        proof: i64,
    }
}

impl<'a> DedupQuery<'a> {
    pub(crate) fn new(
        ctx: &Ctx,
        session: &'a Session,
        policy: &Policy,
        class: &'a ClassInfo,
        avoid: &'a [u64],
    ) -> Result<DedupQuery<'a>> {
        Ok(DedupQuery {
            session,
            class,
            scope: scope(policy, session.ino),
            dedup: policy.dedup != Dedup::Off,
            avoid,
            degraded: policy.degraded_writes,
            affinity: Affinity::of(policy, session, &*ctx.caches.node_map(ctx.db)?),
            any_missing: missing::any(ctx.db)?,
            space_bytes: Cell::new(None),
        })
    }

    /// Answers for one chunk. A chunk without a placement hint uses any stored copy. A chunk with one prefers a copy on the
    /// asked host, then a new chunk there, because sharing moves no data.
    fn answer(&self, ctx: &mut Ctx, chunk: &ChunkName) -> Result<ChunkAnswer> {
        let near = self.affinity.host(chunk.region);
        if near.is_none() && self.affinity.asked {
            not_met(ctx);
        }
        if let Some(known) = self.reuse(ctx, chunk, near)? {
            return Ok(known);
        }
        let Some(host) = near else { return self.allocate(ctx, chunk) };
        let pg_id = ctx.record(|ctx, live| {
            self.check_space(ctx, live, chunk.len_bytes)?;
            Ok(select::select_group_near(
                ctx,
                live,
                &self.wanted(chunk),
                HostWish { host, writer: &self.session.host },
            )?
            .unwrap_or(0))
        })?;
        if pg_id != 0 {
            return self.allocate_in(ctx, chunk, pg_id);
        }
        not_met(ctx);
        match self.reuse(ctx, chunk, None)? {
            Some(known) => Ok(known),
            None => self.allocate(ctx, chunk),
        }
    }

    fn wanted(&self, chunk: &ChunkName) -> ChunkSpec<'_> {
        let purpose = if self.session.rewrites { Purpose::Rewrite } else { Purpose::NewChunks };
        ChunkSpec { class: self.class, len_bytes: chunk.len_bytes, avoid: self.avoid, degraded: self.degraded, purpose }
    }

    /// The answer from a stored chunk (on host `near`, if given), if there is one.
    pub(crate) fn reuse(&self, ctx: &mut Ctx, chunk: &ChunkName, near: Option<&str>) -> Result<Option<ChunkAnswer>> {
        let mut incomplete = None;
        if self.dedup {
            for candidate in self.candidates(ctx, chunk)? {
                let pg = ctx.caches.pg(ctx.db, candidate.pg_id)?;
                if let Some(host) = near
                    && !self.is_on(ctx, &pg, host)?
                {
                    continue;
                }
                let missing = self.missing(ctx, &candidate)?;
                // Nobody may rely on what is left of a chunk that a reader could not read (P2): what is supplied must suffice.
                let is_read = candidate.state != COMMITTED || candidate.proof != UNPROVEN;
                let suffices = || self.class.suffices(missing.iter().copied());
                if !is_read && !suffices() && !failpoint::is_active("manager.unproven_is_durable") {
                    continue;
                }
                if missing.is_empty() && pg.in_place {
                    touch(ctx, &candidate)?;
                    return Ok(Some(reply(ChunkState::Durable, candidate.chunk_id, &pg, Vec::new())));
                }
                let can_be_supplied = !missing.is_empty() && pg.puttable && !self.avoid.contains(&candidate.pg_id);
                let rest_in_place = candidate.state == PENDING || pg.in_place;
                if incomplete.is_none() && can_be_supplied && rest_in_place {
                    incomplete = Some((candidate, pg, missing));
                }
            }
        }
        if let Some((candidate, pg, missing)) = incomplete {
            // A disk that has filled up since then does not take the missing fragments.
            if ctx.record(|_, live| Ok(select::pg_has_space(live, self.class, chunk.len_bytes, &pg).into()))? != 0 {
                touch(ctx, &candidate)?;
                return Ok(Some(reply(ChunkState::Incomplete, candidate.chunk_id, &pg, missing)));
            }
        }
        Ok(None)
    }

    /// Whether `host` holds plain bytes of this group's chunks.
    fn is_on(&self, ctx: &Ctx, pg: &Pg, host: &str) -> Result<bool> {
        let node_map = ctx.caches.node_map(ctx.db)?;
        let plain = pg.members.iter().take(self.class.hinted_fragments() as usize);
        let mut hosts = plain.filter_map(|m| node_map.disks.get(&m.put_disk()));
        Ok(hosts.any(|disk| disk.host == host))
    }

    fn candidates(&self, ctx: &Ctx, chunk: &ChunkName) -> Result<Vec<Candidate>> {
        let mut found: Vec<Candidate> = ctx.db.all(
            "SELECT chunk_id, pg_id, state, refs, len_bytes, scope, proof FROM chunks
             WHERE domain = ?1 AND class_id = ?2 AND hash = ?3 ORDER BY chunk_id",
            args![self.session.domain, self.class.class_id, chunk.hash],
        )?;
        found.retain(|candidate| (candidate.len_bytes, candidate.scope) == (chunk.len_bytes, self.scope));
        Ok(found)
    }

    /// Missing fragments: all fragments of a pending chunk, else those with a row.
    fn missing(&self, ctx: &Ctx, candidate: &Candidate) -> Result<Vec<u32>> {
        match candidate.state {
            COMMITTED if !self.any_missing => Ok(Vec::new()),
            COMMITTED => Ok(missing::of_chunk(ctx.db, candidate.chunk_id)?),
            _ => Ok((0..self.class.fragments()).collect()),
        }
    }

    /// Checks that a new chunk fits into its session's reservation or into unreserved space. Chunks in the request that opens
    /// the session pass unchecked: they are few, and a check of all disks would cost more than the space they take.
    fn check_space(&self, ctx: &Ctx, live: Live, len_bytes: u64) -> Result<()> {
        let sessions = &live.soft.sessions;
        let own_bytes = sessions.reserved_by(self.session.session_id);
        let others_bytes = sessions.reserved_bytes().saturating_sub(own_bytes);
        if others_bytes == 0 || !sessions.is_writer(self.session.session_id) || self.session.rewrites {
            return Ok(());
        }
        let space = || {
            let Ok(scheme) = self.class.spec.parse() else {
                return invalid(format!("class {} is of a kind that this release does not know", self.class.spec));
            };
            groups::space((ctx.db, ctx.caches), &live.soft.cluster.stats, scheme, others_bytes)
        };
        let left = match self.space_bytes.get() {
            Some(left) => left,
            None => space()?.unreserved_bytes().max(own_bytes),
        };
        if left < len_bytes {
            return Err(space()?.refusal(&self.class.spec, len_bytes).into());
        }
        self.space_bytes.set(Some(left - len_bytes));
        Ok(())
    }

    fn allocate(&self, ctx: &mut Ctx, chunk: &ChunkName) -> Result<ChunkAnswer> {
        let pg_id = ctx.record(|ctx, live| {
            self.check_space(ctx, live, chunk.len_bytes)?;
            select::select_group(ctx, live, &self.wanted(chunk))
        })?;
        self.allocate_in(ctx, chunk, pg_id)
    }

    fn allocate_in(&self, ctx: &mut Ctx, chunk: &ChunkName, pg_id: u64) -> Result<ChunkAnswer> {
        let pg = ctx.caches.pg(ctx.db, pg_id)?;
        assert_eq!(pg.members.len(), self.class.fragments() as usize, "group {pg_id}: one member for each fragment");
        let new = NewChunk { domain: self.session.domain, class_id: self.class.class_id, pg_id };
        let chunk_id = table::insert(ctx, new, Some(chunk), self.scope)?;
        Ok(reply(ChunkState::New, chunk_id, &pg, Vec::new()))
    }
}

/// Counts a placement hint that the manager could not follow.
fn not_met(ctx: &mut Ctx) {
    ctx.after_commit(Effect::PlacementNotMet);
}

/// See [`table::touch`].
fn touch(ctx: &Ctx, candidate: &Candidate) -> rusqlite::Result<()> {
    match candidate.refs {
        0 => table::touch(ctx, candidate.chunk_id),
        _ => Ok(()),
    }
}

/// A chunk as an answer to a dedup query.
pub(crate) fn reply(state: ChunkState, chunk_id: u64, pg: &Pg, missing: Vec<u32>) -> ChunkAnswer {
    ChunkAnswer { state: state as i32, chunk_id, pg_id: pg.pg_id, epoch: pg.epoch, missing }
}
