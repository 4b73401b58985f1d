//! References: how many extents in living, staged and dropped pages name each chunk (P4).
//!
//! A command sums its changes up in [`RefChanges`], so that a page that is rewritten with one extent changed costs
//! two chunk rows and not two hundred and fifty.

use crate::error::Result;
use crate::files::pages::{self, FileExtent};
use crate::planted::{self, Bug};
use crate::state::Ctx;
use std::collections::BTreeMap;
use tessera_stripe::ClassLayout;

/// `chunks.state`: allocated, not yet named by a commit.
pub const PENDING: i64 = 1;
/// `chunks.state`: named by a commit at least once.
pub const COMMITTED: i64 = 2;

/// References a command adds and takes off.
#[derive(Debug, Default)]
pub struct RefChanges {
    /// Chunk to (change of its count, whether it leaves the pending state).
    sums: BTreeMap<u64, (i64, bool)>,
    extents_taken: usize,
}

/// What one command takes off by itself; pages beyond are queued for sweeps.
const TAKE_OFF_EXTENTS: usize = 8 << 10;

impl RefChanges {
    /// The extents of a page are there now.
    pub fn add(&mut self, pieces: &[FileExtent]) {
        for piece in pieces.iter().filter(|p| p.chunk != 0) {
            self.sums.entry(piece.chunk).or_default().0 += 1;
        }
    }

    /// A pending chunk is named by a commit for the first time.
    pub fn commit(&mut self, ctx: &mut Ctx, chunk_id: u64, len_bytes: u64, class_id: u32) -> Result<()> {
        let class = ctx.class(class_id)?;
        ctx.meta.chunks += 1;
        ctx.meta.unique_bytes += len_bytes;
        ctx.meta.stored_bytes += class.stored_bytes(len_bytes);
        self.sums.entry(chunk_id).or_default().1 = true;
        Ok(())
    }

    /// A page's row is gone: its references are taken off now, or (when there are many) later, in slices.
    pub fn release(&mut self, ctx: &Ctx, extents: &[u8]) -> Result<()> {
        if planted::is(Bug::ReferencesLeak) {
            return Ok(());
        }
        if self.extents_taken > TAKE_OFF_EXTENTS {
            ctx.db.stmt("INSERT INTO dropped_pages (extents) VALUES (?1)")?.execute([extents])?;
            return Ok(());
        }
        pages::for_each_chunk(extents, |chunk| {
            self.extents_taken += 1;
            self.sums.entry(chunk).or_default().0 -= 1;
        });
        Ok(())
    }

    /// Writes the sums.
    pub fn apply(self, ctx: &mut Ctx) -> Result<()> {
        for (chunk, (change, commits)) in self.sums {
            let sql = match (change, commits) {
                (0, false) => continue,
                (_, false) => {
                    "UPDATE chunks SET refs = refs + ?2, zero_since_ns = iif(refs + ?2 = 0, ?3, zero_since_ns)
                     WHERE chunk_id = ?1"
                }
                (_, true) => {
                    "UPDATE chunks SET refs = refs + ?2, zero_since_ns = iif(refs + ?2 = 0, ?3, zero_since_ns), state = 2
                     WHERE chunk_id = ?1"
                }
            };
            ctx.db.stmt(sql)?.execute([chunk as i64, change, ctx.now_ns])?;
        }
        Ok(())
    }
}

/// The totals after a committed chunk's row was removed.
pub fn forget_chunk(ctx: &mut Ctx, len_bytes: u64, class_id: u32) -> Result<()> {
    let class = ctx.class(class_id)?;
    ctx.meta.chunks -= 1;
    ctx.meta.unique_bytes -= len_bytes;
    ctx.meta.stored_bytes -= class.stored_bytes(len_bytes);
    Ok(())
}

/// Takes the references of at most `limit` queued pages off; whether more are queued.
pub fn sweep(ctx: &mut Ctx, limit: u32) -> Result<bool> {
    let mut changes = RefChanges::default();
    let rows = ctx
        .db
        .stmt("SELECT id, extents FROM dropped_pages ORDER BY id LIMIT ?1")?
        .query_map([limit], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)))?
        .collect::<Result<Vec<_>, _>>()?;
    for (id, extents) in &rows {
        ctx.db.stmt("DELETE FROM dropped_pages WHERE id = ?1")?.execute([id])?;
        pages::for_each_chunk(extents, |chunk| changes.sums.entry(chunk).or_default().0 -= 1);
    }
    changes.apply(ctx)?;
    Ok(rows.len() as u32 == limit)
}
