//! The manager's database rots at rest, where only the readers' comparison of names can see it: an extent names another
//! chunk, becomes a hole, or the row of a chunk gets another chunk's name.

use super::*;
use prost::Message;
use rusqlite::{Connection, params};
use tessera_wire::manager::PageExtents;

/// A page of extents: inode, start, born, extents.
type PageRow = (i64, i64, i64, Vec<u8>);

impl World {
    /// Damages the database in a few places, then reads every file: the right bytes, or an error (P2).
    pub(super) fn read_from_rotten_metadata(&mut self, deadline: i64) -> Result<(), Violation> {
        self.record("rot of the metadata");
        self.group.is_rotten = true;
        let Some(db) = self.leader().db() else { return Ok(()) };
        let mut rng = Rng::new(self.plan.seed ^ 0x0dd5);
        rot(db.conn(), &mut rng).expect("the schema is fixed");
        for path in self.oracle.paths().into_iter().chain(self.oracle.logs()) {
            self.read(&path, deadline)?;
        }
        Ok(())
    }
}

fn rot(db: &Connection, rng: &mut Rng) -> rusqlite::Result<()> {
    for _ in 0..rng.between(1, 4) {
        match rng.percent(70) {
            true => rot_page(db, rng)?,
            false => rot_name(db)?,
        }
    }
    Ok(())
}

/// An extent of a page names another chunk, or none.
fn rot_page(db: &Connection, rng: &mut Rng) -> rusqlite::Result<()> {
    let page = "SELECT ino, start, born, extents FROM pages WHERE died IS NULL ORDER BY abs(ino * 7919 + start + ?1) % 1009 LIMIT 1";
    let row = |r: &rusqlite::Row<'_>| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?));
    let row: rusqlite::Result<PageRow> = db.query_row(page, [rng.between(0, 1008) as i64], row);
    let Ok((ino, start, born, extents)) = row else { return Ok(()) };
    let mut extents = PageExtents::decode(&extents[..]).expect("a page of the manager");
    let at = rng.between(0, extents.chunks.len() as u64 - 1) as usize;
    let like = "SELECT o.chunk_id FROM chunks c JOIN chunks o ON o.len_bytes = c.len_bytes
                WHERE c.chunk_id = ?1 AND o.chunk_id != ?1 ORDER BY o.chunk_id LIMIT 1";
    let other: Result<i64, _> = db.query_row(like, [extents.chunks[at] as i64], |r| r.get(0));
    extents.chunks[at] = other.unwrap_or(0) as u64;
    let sql = "UPDATE pages SET extents = ?4 WHERE ino = ?1 AND start = ?2 AND born = ?3";
    db.execute(sql, params![ino, start, born, extents.encode_to_vec()]).map(|_| ())
}

/// The newest chunk gets the name of another one.
fn rot_name(db: &Connection) -> rusqlite::Result<()> {
    let sql = "UPDATE chunks SET hash = (SELECT hash FROM chunks ORDER BY chunk_id LIMIT 1)
               WHERE chunk_id = (SELECT max(chunk_id) FROM chunks)";
    db.execute(sql, []).map(|_| ())
}
