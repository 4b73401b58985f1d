//! The only writer of the table `missing_fragments`: fragments that are not on the disk that should hold them.
//!
//! A row's `incoming` is 0 if the disk that readers use lacks the fragment, 1 if only the incoming disk of a moving member
//! lacks it.
//!
//! A fragment that is found bad or absent raises its group's epoch, and its row says so in `since_epoch`: no put of before, which a
//! client or a node may still report, stands for it any more (P11).

use crate::ctx::Ctx;
use crate::db::Db;
use crate::db::rows::{Missing, MissingCursor};
use crate::db::sql::args;
use crate::map::tables;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::LazyLock;

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

/// Records a fragment as missing, unless it already is. For fragments that were there, see [`lose`].
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

/// Records fragments that were found bad or absent. What was put before does not count any more.
///
/// # Errors
/// The database fails.
pub fn lose(ctx: &mut Ctx<'_>, lost: &[Missing]) -> rusqlite::Result<()> {
    let mut epochs = BTreeMap::new();
    for &Missing { chunk_id, fragment, incoming, pg_id } in lost {
        assert!(chunk_id < ctx.meta.next_chunk, "chunk {chunk_id} was never drawn");
        let epoch = match epochs.entry(pg_id) {
            Entry::Occupied(raised) => *raised.get(),
            Entry::Vacant(group) => *group.insert(tables::raise_epoch(ctx, pg_id)?),
        };
        ctx.db.exec(
            "INSERT INTO missing_fragments (chunk_id, fragment, incoming, pg_id, cause, since_ns, since_epoch)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (chunk_id, fragment, incoming) DO UPDATE SET cause = ?5, since_epoch = ?7",
            args![chunk_id, fragment, incoming, pg_id, Cause::Bad as i64, ctx.now_ns, epoch],
        )?;
    }
    Ok(())
}

/// The fragments of a chunk that are missing for readers, each with the epoch since which puts of it count; 0: all do.
///
/// # Errors
/// The database fails.
pub fn since(db: &Db, chunk_id: u64) -> rusqlite::Result<BTreeMap<u32, u64>> {
    let sql = "SELECT fragment, since_epoch FROM missing_fragments WHERE chunk_id = ?1 AND incoming = 0";
    db.all(sql, args![chunk_id])
}

/// Deletes the row of a fragment that was put in place under this epoch, unless it was lost since.
///
/// # Errors
/// The database fails.
pub fn delete_put(ctx: &Ctx<'_>, (chunk_id, fragment): (u64, u32), incoming: u8, epoch: u64) -> rusqlite::Result<()> {
    assert!(matches!(incoming, 0 | 1), "chunk {chunk_id}, fragment {fragment}: incoming is {incoming}");
    let sql =
        "DELETE FROM missing_fragments WHERE chunk_id = ?1 AND fragment = ?2 AND incoming = ?3 AND since_epoch <= ?4";
    ctx.db.exec(sql, args![chunk_id, fragment, incoming, epoch])
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
        "INSERT OR IGNORE INTO missing_fragments (chunk_id, fragment, incoming, pg_id, cause, since_ns, since_epoch)
         SELECT chunk_id, fragment, 0, pg_id, cause, since_ns, since_epoch FROM missing_fragments
         WHERE pg_id = ?1 AND fragment = ?2 AND incoming = 1",
        args![pg_id, position],
    )?;
    delete_of_member(ctx, pg_id, position, 1)
}

/// Uses `missing_unacknowledged`, which the constant in `WHERE` selects.
static NEWEST: LazyLock<String> = LazyLock::new(|| {
    let cause = Cause::Unacknowledged as i64;
    format!(
        "SELECT chunk_id, fragment, incoming, pg_id FROM missing_fragments WHERE cause = {cause} AND since_ns < ?1
         ORDER BY since_ns DESC, chunk_id DESC LIMIT ?2"
    )
});
static IN_ORDER: LazyLock<String> = LazyLock::new(|| {
    let cause = Cause::Unacknowledged as i64;
    format!(
        "SELECT chunk_id, fragment, incoming, pg_id, cause = {cause} AND since_ns >= ?5 FROM missing_fragments
         WHERE (pg_id, fragment, chunk_id, incoming) > (?1, ?2, ?3, ?4)
         ORDER BY pg_id, fragment, chunk_id, incoming LIMIT ?6"
    )
});

/// The newest fragments that were not acknowledged at commit, of commits before `before_ns`. Reads `limit` rows, however
/// many there are.
///
/// # Errors
/// The database fails.
pub fn newest(db: &Db, before_ns: i64, limit: usize) -> rusqlite::Result<Vec<Missing>> {
    db.all(&NEWEST, args![before_ns, limit])
}

/// The next rows behind `cursor`, which moves behind them, and to the beginning after the last. Leaves out fragments that
/// were not acknowledged at commits since `young_ns`. Reads `limit` rows, however many there are.
///
/// # Errors
/// The database fails.
pub fn next(db: &Db, cursor: &mut MissingCursor, young_ns: i64, limit: usize) -> rusqlite::Result<Vec<Missing>> {
    let (pg_id, fragment, chunk_id, incoming) = *cursor;
    let rows: Vec<(Missing, bool)> = db.all(&IN_ORDER, args![pg_id, fragment, chunk_id, incoming, young_ns, limit])?;
    assert!(rows.len() <= limit, "{} rows, {limit} were asked for", rows.len());
    *cursor = match rows.last() {
        Some((last, _)) if rows.len() == limit => (last.pg_id, last.fragment, last.chunk_id, last.incoming),
        _ => MissingCursor::default(),
    };
    Ok(rows.into_iter().filter(|(_, young)| !young).map(|(row, _)| row).collect())
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

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::StatementStatus::{FullscanStep, Sort, VmStep};
    use std::collections::BTreeSet;

    const ROWS: u64 = 50_000;

    /// Fragments of 20 groups. Every second one was not acknowledged, at the time of its chunk's number.
    fn database() -> Db {
        let db = Db::in_memory([7; 16]).unwrap();
        let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
                   INSERT INTO missing_fragments (chunk_id, fragment, incoming, pg_id, cause, since_ns)
                   SELECT i, i % 3, 0, 1 + i % 20, 1 + i % 2, i FROM n";
        db.conn().execute(sql, [ROWS as i64]).unwrap();
        db
    }

    /// A tick reads a bounded number of rows, in the order of an index: a cluster that lost a rack has millions.
    #[test]
    fn a_tick_reads_a_bounded_number_of_rows() {
        let db = database();
        for (sql, args) in [(&*NEWEST, &[i64::MAX, 100][..]), (&*IN_ORDER, &[7, 1, 20_000, 0, i64::MAX, 100])] {
            let mut statement = db.conn().prepare(sql).unwrap();
            let rows = statement.query_map(rusqlite::params_from_iter(args), |_| Ok(())).unwrap().count();
            assert_eq!(rows, 100);
            let work = [FullscanStep, Sort].map(|status| statement.get_status(status));
            assert_eq!(work, [0, 0], "full scans and sorts of {sql}");
            assert!(statement.get_status(VmStep) < 10_000, "steps of {sql}");
        }
    }

    #[test]
    fn every_row_has_its_turn() {
        let db = database();
        let found = newest(&db, ROWS as i64, 3).unwrap();
        let chunks: Vec<u64> = found.iter().map(|row| row.chunk_id).collect();
        assert_eq!(chunks, [ROWS - 2, ROWS - 4, ROWS - 6]);
        let (mut seen, mut cursor) = (BTreeSet::new(), MissingCursor::default());
        loop {
            let rows = next(&db, &mut cursor, 40_000, 999).unwrap();
            assert!(rows.iter().all(|row| seen.insert(row.key())), "a row came twice");
            if cursor == MissingCursor::default() {
                break;
            }
        }
        let young = (40_000..=ROWS).filter(|i| i % 2 == 0).count();
        assert_eq!(seen.len(), ROWS as usize - young);
    }
}
