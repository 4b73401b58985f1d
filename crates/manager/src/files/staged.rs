//! Writes the table `staged_pages`: the extents of partial commits, which stay with their session until the last commit.

use crate::chunks::refs::{self, RefChanges};
use crate::ctx::Ctx;
use crate::db::Db;
use crate::db::pages;
use crate::db::sql::args;
use crate::error::{Result, corrupt_row};
use tessera_failpoint as failpoint;
use tessera_wire::Extent;

/// Stages a page of extents, in order.
///
/// # Errors
/// The database fails.
pub fn insert(db: &Db, session_id: u64, page: &[Extent]) -> rusqlite::Result<()> {
    pages::assert_page(page);
    assert!(session_id != 0, "only a session with a row stages extents");
    let (start, end) = (page[0].offset, page[page.len() - 1].end());
    let sql = "INSERT INTO staged_pages (session_id, start, end, extents) VALUES (?1, ?2, ?3, ?4)";
    db.exec(sql, args![session_id, start, end, pages::encode(page)])
}

/// Start and encoded extents of each of a session's pages, in order.
///
/// # Errors
/// The database fails.
pub fn load(db: &Db, session_id: u64) -> rusqlite::Result<Vec<(u64, Vec<u8>)>> {
    db.all("SELECT start, extents FROM staged_pages WHERE session_id = ?1 ORDER BY start", args![session_id])
}

/// Deletes the pages of a session.
///
/// # Errors
/// The database fails.
pub fn delete(db: &Db, session_id: u64) -> rusqlite::Result<()> {
    db.exec("DELETE FROM staged_pages WHERE session_id = ?1", args![session_id])
}

/// Deletes a session's pages without a commit; sweeps subtract their references.
///
/// # Errors
/// The database fails.
pub fn discard(db: &Db, session_id: u64) -> rusqlite::Result<()> {
    refs::queue_staged(db, session_id)?;
    delete(db, session_id)
}

/// Removes the staged extents, subtracts their references, and returns them moved up by `shift` bytes.
///
/// # Errors
/// The database fails, or the staged pages are damaged.
pub fn take(ctx: &Ctx, session_id: u64, shift: u64, refs: &mut RefChanges) -> Result<Vec<Extent>> {
    let rows = load(ctx.db, session_id)?;
    delete(ctx.db, session_id)?;
    let mut extents = Vec::new();
    for (start, column) in rows {
        if !failpoint::is_active("manager.staged_counted_twice") {
            refs.release(ctx, &column)?;
        }
        extents.extend(pages::decode(start + shift, &column));
        if !pages::are_ordered(&extents) {
            return Err(corrupt_row(format!("staged_pages of session {session_id}"), "extents are out of order").into());
        }
    }
    Ok(extents)
}
