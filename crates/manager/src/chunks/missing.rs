//! The only writer of the table `missing_fragments`: fragments that are not on the disk that should hold them.
//!
//! A row's `incoming` is 0 if the disk that readers use lacks the fragment, 1 if only the incoming disk of a moving member
//! lacks it.

use crate::ctx::Ctx;
use crate::db::Db;
use crate::db::rows::Missing;
use crate::db::sql::args;

/// `missing_fragments.cause`: why a fragment is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i64)]
pub enum Cause {
    /// Not acknowledged at commit.
    Unacknowledged = 1,
    /// Found bad or absent.
    Bad = 2,
    /// Committed after the backfill's cursor had passed the chunk.
    Passed = 3,
}

/// Records a fragment as missing, unless it already is.
///
/// # Errors
/// The database fails.
pub fn insert(ctx: &Ctx<'_>, missing: Missing, cause: Cause) -> rusqlite::Result<()> {
    let Missing { chunk_id, fragment, incoming, pg_id } = missing;
    assert!(matches!(incoming, 0 | 1), "chunk {chunk_id}, fragment {fragment}: incoming is {incoming}");
    assert!(chunk_id < ctx.meta.next_chunk, "chunk {chunk_id} was never drawn");
    ctx.db.exec(
        "INSERT OR IGNORE INTO missing_fragments (chunk_id, fragment, incoming, pg_id, cause, since_ns)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        args![chunk_id, fragment, incoming, pg_id, cause as i64, ctx.now_ns],
    )
}

/// Deletes the row of a fragment that is in place.
///
/// # Errors
/// The database fails.
pub fn delete(ctx: &Ctx<'_>, chunk_id: u64, fragment: u32, incoming: u8) -> rusqlite::Result<()> {
    assert!(matches!(incoming, 0 | 1), "chunk {chunk_id}, fragment {fragment}: incoming is {incoming}");
    let sql = "DELETE FROM missing_fragments WHERE chunk_id = ?1 AND fragment = ?2 AND incoming = ?3";
    ctx.db.exec(sql, args![chunk_id, fragment, incoming])
}

/// As [`delete`], if the row belongs to that group.
///
/// # Errors
/// The database fails.
pub fn delete_in_group(ctx: &Ctx<'_>, missing: Missing) -> rusqlite::Result<()> {
    let Missing { chunk_id, fragment, incoming, pg_id } = missing;
    let sql = "DELETE FROM missing_fragments WHERE chunk_id = ?1 AND fragment = ?2 AND incoming = ?3 AND pg_id = ?4";
    ctx.db.exec(sql, args![chunk_id, fragment, incoming, pg_id])
}

/// Deletes all rows of a removed chunk.
///
/// # Errors
/// The database fails.
pub fn delete_of_chunk(ctx: &Ctx<'_>, chunk_id: u64) -> rusqlite::Result<()> {
    ctx.db.exec("DELETE FROM missing_fragments WHERE chunk_id = ?1", args![chunk_id])
}

/// Deletes all rows of a member's disk (`incoming` 0) or incoming disk (1).
///
/// # Errors
/// The database fails.
pub fn delete_of_member(ctx: &Ctx<'_>, pg_id: u64, position: u32, incoming: u8) -> rusqlite::Result<()> {
    assert!(matches!(incoming, 0 | 1), "group {pg_id}, member {position}: incoming is {incoming}");
    let sql = "DELETE FROM missing_fragments WHERE pg_id = ?1 AND fragment = ?2 AND incoming = ?3";
    ctx.db.exec(sql, args![pg_id, position, incoming])
}

/// Updates the rows when a moving member's disk is lost and its incoming disk takes over, with a backfill that has passed
/// `cursor`. Fragments that the backfill supplied are no longer missing. Fragments that the incoming disk lacks are now
/// missing for readers.
///
/// # Errors
/// The database fails.
pub fn incoming_takes_over(ctx: &Ctx<'_>, pg_id: u64, position: u32, cursor: u64) -> rusqlite::Result<()> {
    ctx.db.run(
        "DELETE FROM missing_fragments WHERE pg_id = ?1 AND fragment = ?2 AND incoming = 0 AND chunk_id <= ?3
         AND NOT EXISTS (SELECT 1 FROM missing_fragments i WHERE i.chunk_id = missing_fragments.chunk_id
                         AND i.fragment = ?2 AND i.incoming = 1)",
        args![pg_id, position, cursor],
    )?;
    ctx.db.run(
        "INSERT OR IGNORE INTO missing_fragments (chunk_id, fragment, incoming, pg_id, cause, since_ns)
         SELECT chunk_id, fragment, 0, pg_id, cause, since_ns FROM missing_fragments
         WHERE pg_id = ?1 AND fragment = ?2 AND incoming = 1",
        args![pg_id, position],
    )?;
    delete_of_member(ctx, pg_id, position, 1)
}

/// Whether any fragment of any chunk is missing.
///
/// # Errors
/// The database fails.
pub fn any(db: &Db) -> rusqlite::Result<bool> {
    db.any("SELECT 1 FROM missing_fragments LIMIT 1", [])
}

/// Fragments of a chunk that are missing for readers, in order.
///
/// # Errors
/// The database fails.
pub fn of_chunk(db: &Db, chunk_id: u64) -> rusqlite::Result<Vec<u32>> {
    of_chunk_before(db, chunk_id, i64::MAX)
}

/// As [`of_chunk`], but only fragments that went missing before `before_ns`.
///
/// # Errors
/// The database fails.
pub fn of_chunk_before(db: &Db, chunk_id: u64, before_ns: i64) -> rusqlite::Result<Vec<u32>> {
    db.all(
        "SELECT fragment FROM missing_fragments WHERE chunk_id = ?1 AND incoming = 0 AND since_ns < ?2 ORDER BY fragment",
        args![chunk_id, before_ns],
    )
}
