//! Opening a writer, and the batched dedup question: which chunks exist, and where do new ones go?
//!
//! A chunk is *durable* when it is committed, misses no fragment and no member of its group was lost: then nothing is
//! sent. It is *incomplete* when its missing fragments can be put where they belong. Else a new row is made: a chunk may
//! live in more than one group. Whatever is handed out at zero references counts as used now (P4).

use crate::chunks::prealloc;
use crate::chunks::refs::{COMMITTED, PENDING};
use crate::db::cache::Pg;
use crate::db::meta::draw;
use crate::error::{Result, invalid, refuse};
use crate::files::sessions::{self, Session, WRITER};
use crate::namespace::hints::{self, HintSet};
use crate::namespace::inodes::{self, check_name};
use crate::namespace::names;
use crate::placement::affinity::{Affinity, HostChoice};
use crate::placement::groups;
use crate::placement::select::{self, ChunkSpec, HostWish};
use crate::state::Ctx;
use rusqlite::params;
use std::cell::Cell;
use std::collections::HashMap;
use tessera_policy::{Dedup, MAX_CHUNK_BYTES, Policy, Redundancy, SCHEMES};
use tessera_stripe::ClassLayout;
use tessera_wire::meta::*;
use tessera_wire::{ClassInfo, Code};

/// `chunks.scope` of a chunk that is nobody's dedup hit.
pub(crate) const SCOPE_NOBODY: i64 = -1;

/// Longest host label.
const MAX_HOST_BYTES: usize = 255;

/// Opens a write session.
pub fn open_write(ctx: &mut Ctx, request: &OpenWrite) -> Result<OpenWriteReply> {
    let OpenedWriter { mut session, policy, base_size_bytes } = begin(ctx, request)?;
    let granted_bytes = reserve(ctx, &policy, request.size_hint_bytes)?;
    session.session_id = draw(&mut ctx.meta.next_session);
    let spec = || scheme_spec(&request.redundancy, &policy, request.size_hint_bytes);
    let allocated = match request.chunks.is_empty() {
        true => None,
        false => {
            let asked = DedupRequest {
                spec: &spec()?,
                chunks: &request.chunks,
                avoid: &[],
                known_map_version: request.known_map_version,
            };
            Some(answer(ctx, &session, &policy, &asked)?)
        }
    };
    let preallocated = match request.preallocate {
        0 => None,
        _ => prealloc::preallocate(ctx, &session, &policy, &spec()?, request)?,
    };
    session.write(ctx.db)?;
    let reply = OpenWriteReply {
        session_id: session.session_id,
        ino: if session.created { session.ino } else { 0 },
        base_version: session.base_version,
        base_size_bytes,
        policy: hints::all(&policy),
        session_ms: ctx.config.session_ms,
        domain: session.domain,
        allocated,
        preallocated,
    };
    let (now_ns, ahead_bytes) = (ctx.now_ns, granted_bytes.saturating_sub(len_of(&request.chunks)));
    ctx.after_commit(move |soft| soft.sessions.opened(&session, now_ns, ahead_bytes));
    Ok(reply)
}

/// A write session that has no id, and no row, yet.
pub(crate) struct OpenedWriter {
    pub session: Session,
    pub policy: Policy,
    /// Length of the version that is current.
    pub base_size_bytes: u64,
}

/// What opening a file for writing finds.
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

/// Files expected to be shorter are not worth a look at all disks: their chunks' groups are asked for room anyway.
const RESERVE_FROM_BYTES: u64 = 1 << 20;

/// Reserves room for a writer: as much as there is beside what others have reserved. Whether that is enough shows when
/// new chunks want room ([`DedupQuery::check_room`]), for nobody knows yet which of its chunks are stored already; a file whose chunks are
/// never anybody else's is refused here.
fn reserve(ctx: &mut Ctx, policy: &Policy, bytes: u64) -> Result<u64> {
    if bytes < RESERVE_FROM_BYTES {
        return Ok(bytes);
    }
    let scheme = policy.scheme(bytes);
    ctx.record(|ctx| {
        let reserved_bytes = ctx.soft.sessions.reserved_bytes();
        let room = groups::room((ctx.db, ctx.caches), &ctx.soft.cluster.stats, scheme, reserved_bytes)?;
        match policy.dedup {
            Dedup::Off if room.unreserved_bytes() < bytes => Err(room.refusal(&scheme.to_string(), bytes).into()),
            _ => Ok(room.unreserved_bytes().min(bytes)),
        }
    })
}

fn len_of(chunks: &[ChunkName]) -> u64 {
    chunks.iter().map(|c| c.len_bytes).fold(0, u64::saturating_add)
}

/// The directory (when asked by name) and the file (when it is there).
fn target(ctx: &Ctx, request: &OpenWrite) -> Result<(Option<inodes::Inode>, Option<inodes::Inode>)> {
    let (parent, inode) = match (request.parent, request.ino) {
        (0, 0) => return invalid("OpenWrite names neither a directory nor a file"),
        (0, ino) => (None, Some(inodes::get(ctx.db, ino)?)),
        (parent, _) => {
            check_name(&request.name)?;
            let parent = inodes::directory(ctx.db, parent)?;
            let inode = match inodes::lookup(ctx.db, parent.ino, &request.name)? {
                Some(ino) => Some(inodes::get(ctx.db, ino)?),
                None => None,
            };
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

/// The class that is meant: as asked, else as the policy says, `auto` resolved by the file's length and place.
pub(crate) fn scheme_spec(asked: &str, policy: &Policy, file_bytes: u64) -> Result<String> {
    let redundancy = match asked {
        "" => policy.redundancy,
        text => match text.parse::<Redundancy>() {
            Ok(redundancy) => redundancy,
            Err(error) => {
                return invalid(format!("redundancy {text:?}: {error}; allowed: {SCHEMES}"));
            }
        },
    };
    Ok(redundancy.scheme(file_bytes, &policy.placement).to_string())
}

/// The dedup question.
pub fn allocate_chunks(ctx: &mut Ctx, request: &AllocateChunks) -> Result<AllocateChunksReply> {
    let session = sessions::writer(ctx.db, request.session_id)?;
    let policy = HintSet::read(&session.hints).policy()?;
    if request.redundancy.is_empty() {
        return invalid(format!("AllocateChunks names no class; send one of {SCHEMES}"));
    }
    let spec = scheme_spec(&request.redundancy, &policy, u64::MAX)?;
    let asked = DedupRequest {
        spec: &spec,
        chunks: &request.chunks,
        avoid: &request.avoid_pgs,
        known_map_version: request.known_map_version,
    };
    let reply = answer(ctx, &session, &policy, &asked)?;
    // Stored already or not, for these nothing need be reserved any more.
    let (id, bytes) = (session.session_id, len_of(&request.chunks));
    ctx.after_commit(move |soft| soft.sessions.took(id, bytes));
    Ok(reply)
}

/// A dedup question as it was put.
struct DedupRequest<'a> {
    spec: &'a str,
    chunks: &'a [ChunkName],
    avoid: &'a [u64],
    known_map_version: u64,
}

pub(crate) struct DedupQuery<'a> {
    session: &'a Session,
    class: &'a ClassInfo,
    scope: i64,
    dedup: bool,
    avoid: &'a [u64],
    degraded: bool,
    anchors: Affinity,
    /// Whether any fragment is missing anywhere: nearly always not, and then nobody need look.
    any_missing: bool,
    /// Bytes of new chunks that this question may still have; none: nobody has looked yet.
    room_bytes: Cell<Option<u64>>,
}

fn answer(ctx: &mut Ctx, session: &Session, policy: &Policy, asked: &DedupRequest<'_>) -> Result<AllocateChunksReply> {
    let &DedupRequest { spec, chunks, avoid, known_map_version } = asked;
    check(ctx, chunks)?;
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
    pgs.sort_unstable();
    pgs.dedup();
    let map = groups::map_since(ctx.db, ctx.meta.map_version, ctx.caches, known_map_version, &pgs)?;
    Ok(AllocateChunksReply { answers, class: Some(class.as_ref().clone()), map: Some(map) })
}

/// `chunks.scope` of what a file with this policy stores.
pub(crate) fn scope(policy: &Policy, ino: u64) -> i64 {
    match policy.dedup {
        Dedup::All => 0,
        Dedup::Version => ino as i64,
        Dedup::Off => SCOPE_NOBODY,
    }
}

/// Whether the table of missing fragments has any row.
pub fn any_missing(ctx: &Ctx) -> Result<bool> {
    Ok(ctx.db.stmt("SELECT 1 FROM missing_fragments LIMIT 1")?.exists([])?)
}

pub(crate) fn check(ctx: &Ctx, chunks: &[ChunkName]) -> Result<()> {
    if chunks.len() > ctx.config.max_allocate_chunks {
        let (got, most) = (chunks.len(), ctx.config.max_allocate_chunks);
        return invalid(format!("{got} chunks in one question, at most {most} are answered; ask in parts"));
    }
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

/// A row that may answer the question.
struct Candidate {
    chunk_id: u64,
    pg_id: u64,
    state: i64,
    refs: i64,
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
            anchors: Affinity::of(policy, session, &*ctx.caches.node_map(ctx.db)?),
            any_missing: any_missing(ctx)?,
            room_bytes: Cell::new(None),
        })
    }

    /// What asks for no place takes any copy there is; what asks for one, only copies there: sharing never moves anybody's data.
    fn answer(&self, ctx: &mut Ctx, chunk: &ChunkName) -> Result<ChunkAnswer> {
        let near = match self.anchors.wish(chunk.region) {
            HostChoice::Anywhere => None,
            HostChoice::Host(host) => Some(host),
            HostChoice::Impossible => {
                not_met(ctx);
                None
            }
        };
        if let Some(known) = self.reuse(ctx, chunk, near)? {
            return Ok(known);
        }
        let Some(host) = near else { return self.allocate(ctx, chunk) };
        let pg_id = ctx.record(|ctx| {
            self.check_room(ctx, chunk.len_bytes)?;
            Ok(select::select_group_near(ctx, &self.wanted(chunk), HostWish { host, writer: &self.session.host })?
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
        ChunkSpec { class: self.class, len_bytes: chunk.len_bytes, avoid: self.avoid, degraded: self.degraded }
    }

    /// A known chunk (on `near`, if a host is given) as an answer, if there is one.
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
                if missing.is_empty() && pg.is_in_place() {
                    touch(ctx, &candidate)?;
                    return Ok(Some(reply(ChunkState::Durable, candidate.chunk_id, &pg, Vec::new())));
                }
                let can_be_supplied = !missing.is_empty() && pg.is_puttable() && !self.avoid.contains(&candidate.pg_id);
                let rest_in_place = candidate.state == PENDING || pg.is_in_place();
                if incomplete.is_none() && can_be_supplied && rest_in_place {
                    incomplete = Some((candidate, pg, missing));
                }
            }
        }
        if let Some((candidate, pg, missing)) = incomplete {
            // A disk that is full since will not take the rest.
            let room = |ctx: &mut Ctx<'_>| Ok(select::pg_has_room(ctx, self.class, chunk.len_bytes, &pg).into());
            if ctx.record(room)? != 0 {
                touch(ctx, &candidate)?;
                return Ok(Some(reply(ChunkState::Incomplete, candidate.chunk_id, &pg, missing)));
            }
        }
        Ok(None)
    }

    /// Whether `host` holds, in this group, bytes of chunks as they are.
    fn is_on(&self, ctx: &Ctx, pg: &Pg, host: &str) -> Result<bool> {
        let node_map = ctx.caches.node_map(ctx.db)?;
        let plain = pg.members.iter().take(self.class.anchors() as usize);
        let mut hosts = plain.filter_map(|m| node_map.disks.get(&m.wire.put_disk_id()));
        Ok(hosts.any(|disk| disk.host == host))
    }

    fn candidates(&self, ctx: &Ctx, chunk: &ChunkName) -> Result<Vec<Candidate>> {
        let mut rows = ctx.db.stmt(
            "SELECT chunk_id, pg_id, state, refs, len_bytes, scope FROM chunks
             WHERE domain = ?1 AND class_id = ?2 AND hash = ?3 ORDER BY chunk_id",
        )?;
        let mut rows = rows.query(params![self.session.domain, self.class.class_id, &chunk.hash[..]])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            if row.get::<_, i64>(4)? as u64 == chunk.len_bytes && row.get::<_, i64>(5)? == self.scope {
                found.push(Candidate {
                    chunk_id: row.get::<_, i64>(0)? as u64,
                    pg_id: row.get::<_, i64>(1)? as u64,
                    state: row.get(2)?,
                    refs: row.get(3)?,
                });
            }
        }
        Ok(found)
    }

    /// Fragments whose disk lacks them: all of a pending chunk, else those with a row.
    fn missing(&self, ctx: &Ctx, candidate: &Candidate) -> Result<Vec<u32>> {
        match candidate.state {
            COMMITTED if !self.any_missing => Ok(Vec::new()),
            COMMITTED => Ok(ctx
                .db
                .stmt("SELECT fragment FROM missing_fragments WHERE chunk_id = ?1 AND incoming = 0 ORDER BY fragment")?
                .query_map([candidate.chunk_id as i64], |row| row.get(0))?
                .collect::<Result<_, _>>()?),
            _ => Ok((0..self.class.fragments()).collect()),
        }
    }

    /// A new chunk takes what its session has reserved, or what nobody has. Chunks that come with the opening of their session are let
    /// through: they are few, and looking at all disks would cost more than they take.
    fn check_room(&self, ctx: &Ctx, len_bytes: u64) -> Result<()> {
        let sessions = &ctx.soft.sessions;
        let own_bytes = sessions.reserved_by(self.session.session_id);
        let others_bytes = sessions.reserved_bytes().saturating_sub(own_bytes);
        if others_bytes == 0 || !sessions.is_writer(self.session.session_id) {
            return Ok(());
        }
        let room = || {
            let Ok(scheme) = self.class.spec.parse() else {
                return invalid(format!("class {} is of a kind that this release does not know", self.class.spec));
            };
            groups::room((ctx.db, ctx.caches), &ctx.soft.cluster.stats, scheme, others_bytes)
        };
        let left = match self.room_bytes.get() {
            Some(left) => left,
            None => room()?.unreserved_bytes().max(own_bytes),
        };
        if left < len_bytes {
            return Err(room()?.refusal(&self.class.spec, len_bytes).into());
        }
        self.room_bytes.set(Some(left - len_bytes));
        Ok(())
    }

    fn allocate(&self, ctx: &mut Ctx, chunk: &ChunkName) -> Result<ChunkAnswer> {
        let pg_id = ctx.record(|ctx| {
            self.check_room(ctx, chunk.len_bytes)?;
            select::select_group(ctx, &self.wanted(chunk))
        })?;
        self.allocate_in(ctx, chunk, pg_id)
    }

    fn allocate_in(&self, ctx: &mut Ctx, chunk: &ChunkName, pg_id: u64) -> Result<ChunkAnswer> {
        let pg = ctx.caches.pg(ctx.db, pg_id)?;
        let chunk_id = draw(&mut ctx.meta.next_chunk);
        ctx.db
            .stmt(
                "INSERT INTO chunks (chunk_id, domain, class_id, hash, len_bytes, pg_id, state, refs, zero_since_ns, scope)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1, 0, ?7, ?8)",
            )?
            .execute(params![
                chunk_id as i64,
                self.session.domain,
                self.class.class_id,
                &chunk.hash[..],
                chunk.len_bytes as i64,
                pg_id as i64,
                ctx.now_ns,
                self.scope
            ])?;
        *ctx.pg_bytes.entry(pg_id).or_default() += chunk.len_bytes;
        Ok(reply(ChunkState::New, chunk_id, &pg, Vec::new()))
    }
}

/// A placement hint that could not be followed is counted.
fn not_met(ctx: &mut Ctx) {
    ctx.after_commit(|soft| soft.cluster.placements_not_met += 1);
}

/// A hit at zero references lives on as if it had just got there (P4).
fn touch(ctx: &Ctx, candidate: &Candidate) -> Result<()> {
    if candidate.refs == 0 {
        ctx.db
            .stmt("UPDATE chunks SET zero_since_ns = ?2 WHERE chunk_id = ?1")?
            .execute([candidate.chunk_id as i64, ctx.now_ns])?;
    }
    Ok(())
}

pub(crate) fn reply(state: ChunkState, chunk_id: u64, pg: &Pg, missing: Vec<u32>) -> ChunkAnswer {
    ChunkAnswer { state: state as i32, chunk_id, pg_id: pg.pg_id, epoch: pg.epoch, missing }
}
