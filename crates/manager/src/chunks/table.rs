//! The only writer of the table `chunks`.
//!
//! A chunk is *pending* from the time its id is drawn until a commit names it or its writer has proven that it is stored whole, then
//! *committed* until it is removed. It is *kept* while it has no references because its writer did not commit: garbage collection
//! leaves it alone for a while.

use crate::ctx::{Ctx, GroupBytes};
use crate::db::Db;
use crate::db::meta::draw;
use crate::db::sql::args;
use crate::error::{Result, corrupt_row};
use tessera_policy::MAX_CHUNK_BYTES;
use tessera_stripe::ClassLayout;
use tessera_wire::meta::ChunkName;

/// `chunks.state`: allocated, not yet named by a commit.
pub const PENDING: i64 = 1;
/// `chunks.state`: named by a commit at least once.
pub const COMMITTED: i64 = 2;
/// `chunks.proof`: nothing is known of its content.
pub const UNPROVEN: i64 = 0;
/// `chunks.proof`: copies and slices were checked on arrival, parity was not.
pub const CONTENT_PROVEN: i64 = 1;
/// `chunks.proof`: every fragment was checked.
pub const PROVEN: i64 = 2;
/// `chunks.scope` of a chunk that no other file may share.
pub const SCOPE_NONE: i64 = -1;

/// Where a new chunk belongs.
#[derive(Debug, Clone, Copy)]
pub struct NewChunk {
    /// Domain of its file.
    pub domain: u32,
    pub class_id: u32,
    pub pg_id: u64,
}

/// Draws an id for a chunk and inserts it as pending. `None`: its content is unknown; [`name_preallocated`] names it later.
///
/// # Errors
/// The database fails.
pub fn insert(ctx: &mut Ctx<'_>, new: NewChunk, name: Option<&ChunkName>, scope: i64) -> Result<u64> {
    assert!(new.pg_id != 0 && new.class_id != 0, "a chunk needs a group and a class: {new:?}");
    name.into_iter().for_each(check_name);
    let (hash, len_bytes) = name.map_or((&[][..], 0), |name| (&name.hash[..], name.len_bytes));
    let chunk_id = draw(&mut ctx.meta.next_chunk);
    ctx.db.run(
        "INSERT INTO chunks (chunk_id, domain, class_id, hash, len_bytes, pg_id, state, refs, zero_since_ns, scope)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1, 0, ?7, ?8)",
        args![chunk_id, new.domain, new.class_id, hash, len_bytes, new.pg_id, ctx.now_ns, scope],
    )?;
    count(ctx, (new.pg_id, new.class_id), len_bytes, 1)?;
    Ok(chunk_id)
}

/// Names the content of a preallocated chunk of this group and class.
///
/// # Errors
/// The database fails.
pub fn name_preallocated(
    ctx: &mut Ctx<'_>,
    chunk_id: u64,
    (pg_id, class_id): (u64, u32),
    name: &ChunkName,
    scope: i64,
) -> Result<()> {
    check_name(name);
    let changed = ctx.db.run(
        "UPDATE chunks SET hash = ?2, len_bytes = ?3, scope = ?4 WHERE chunk_id = ?1 AND state = 1 AND hash = x''",
        args![chunk_id, name.hash, name.len_bytes, scope],
    )?;
    assert_eq!(changed, 1, "chunk {chunk_id}: the caller has seen that it is preallocated");
    count(ctx, (pg_id, class_id), name.len_bytes, 1)
}

/// Counts bytes of `chunks` more chunks of this length in a group.
fn count(ctx: &mut Ctx<'_>, (pg_id, class_id): (u64, u32), len_bytes: u64, chunks: i64) -> Result<()> {
    let class = ctx.class(class_id)?;
    let held = |position| chunks * class.room_bytes(len_bytes, position) as i64;
    let more = GroupBytes { chunks: chunks * len_bytes as i64, first: held(0), other: held(1) };
    *ctx.pg_bytes.entry(pg_id).or_default() += more;
    Ok(())
}

/// Asserts what the check of the request guarantees.
fn check_name(name: &ChunkName) {
    assert_eq!(name.hash.len(), 32, "the name of a chunk is a BLAKE3-256");
    assert!((1..=MAX_CHUNK_BYTES).contains(&name.len_bytes), "a chunk of {} bytes", name.len_bytes);
}

/// Restarts a chunk's time at zero references, because a dedup hit counts as use (P4).
///
/// # Errors
/// The database fails.
pub fn touch(ctx: &Ctx<'_>, chunk_id: u64) -> rusqlite::Result<()> {
    ctx.db.exec("UPDATE chunks SET zero_since_ns = ?2 WHERE chunk_id = ?1", args![chunk_id, ctx.now_ns])
}

/// Adds `change` to the references of a chunk. `commits`: it leaves the pending state with this proof. `keep`: if no reference is
/// left, it is kept for a write that may be repeated, unless no other file may share it.
///
/// # Errors
/// The database fails, or the row cannot have that count.
pub fn change_refs(ctx: &Ctx<'_>, chunk_id: u64, change: i64, commits: Option<i64>, keep: bool) -> Result<()> {
    let sql = match commits {
        None => {
            "UPDATE chunks SET refs = refs + ?2, zero_since_ns = iif(refs + ?2 = 0, ?3, zero_since_ns),
                kept = refs + ?2 = 0 AND scope <> -1 AND ?4
             WHERE chunk_id = ?1 AND refs + ?2 >= 0 AND (state = 2 OR refs + ?2 = 0)"
        }
        Some(_) => {
            "UPDATE chunks SET refs = refs + ?2, zero_since_ns = iif(refs + ?2 = 0, ?3, zero_since_ns),
                kept = refs + ?2 = 0 AND scope <> -1 AND ?4, state = 2, proof = ?5
             WHERE chunk_id = ?1 AND refs + ?2 >= 0 AND state = 1"
        }
    };
    let changed = match commits {
        None => ctx.db.run(sql, args![chunk_id, change, ctx.now_ns, keep])?,
        Some(proof) => ctx.db.run(sql, args![chunk_id, change, ctx.now_ns, keep, proof])?,
    };
    match changed {
        1 => Ok(()),
        _ => Err(corrupt_row(format!("chunks, row {chunk_id}"), format!("{change} references more cannot be")).into()),
    }
}

/// Lowers the proof of a committed chunk to at most `proof`, and makes proofs that are under way void.
///
/// # Errors
/// The database fails.
pub fn lower_proof(ctx: &Ctx<'_>, chunk_id: u64, proof: i64) -> rusqlite::Result<()> {
    assert!((UNPROVEN..PROVEN).contains(&proof), "chunk {chunk_id}: lowered to {proof}");
    let sql =
        "UPDATE chunks SET proof = min(proof, ?2), proof_epoch = proof_epoch + 1 WHERE chunk_id = ?1 AND state = 2";
    ctx.db.exec(sql, args![chunk_id, proof])
}

/// Raises the proof of a committed chunk, unless its proof epoch has changed since the proof began.
///
/// # Errors
/// The database fails.
pub fn raise_proof(ctx: &Ctx<'_>, chunk_id: u64, proof: i64, proof_epoch: u64) -> rusqlite::Result<()> {
    assert!((CONTENT_PROVEN..=PROVEN).contains(&proof), "chunk {chunk_id}: raised to {proof}");
    let sql = "UPDATE chunks SET proof = ?2 WHERE chunk_id = ?1 AND state = 2 AND proof < ?2 AND proof_epoch = ?3";
    ctx.db.exec(sql, args![chunk_id, proof, proof_epoch])
}

/// Deletes the row of a chunk of this group and class without references.
///
/// # Errors
/// The database fails, or the chunk has references or no row.
pub fn delete(ctx: &mut Ctx<'_>, chunk_id: u64, (pg_id, class_id): (u64, u32), len_bytes: u64) -> Result<()> {
    let deleted = ctx.db.run("DELETE FROM chunks WHERE chunk_id = ?1 AND refs = 0", args![chunk_id])?;
    assert!(deleted <= 1, "chunk {chunk_id}: ids are unique");
    count(ctx, (pg_id, class_id), len_bytes, -1)?;
    match deleted {
        1 => Ok(()),
        _ => Err(corrupt_row(format!("chunks, row {chunk_id}"), "it has references, or is gone").into()),
    }
}

/// Group of a chunk, if it has a row.
///
/// # Errors
/// The database fails.
pub fn group_of(db: &Db, chunk_id: u64) -> rusqlite::Result<Option<u64>> {
    db.first("SELECT pg_id FROM chunks WHERE chunk_id = ?1", args![chunk_id])
}
