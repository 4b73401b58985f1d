//! References: how many extents in live, staged and dropped pages name each chunk or content, and how many contents lie in a chunk (P4).
//!
//! A command sums its changes in [`RefChanges`], so that rewriting a page with one extent changed writes two chunk rows and
//! not 250.

use crate::chunks::{contents, table};
use crate::ctx::Ctx;
use crate::db::Db;
use crate::db::meta::uncount;
use crate::db::pages;
use crate::db::sql::args;
use crate::error::Result;
use crate::internal::SweepPages;
use std::collections::BTreeMap;
use tessera_failpoint as failpoint;
use tessera_stripe::ClassLayout;
use tessera_wire::Extent;

/// References that a command adds and subtracts.
#[derive(Debug, Default)]
pub struct RefChanges {
    /// Chunk or content to (change of its count, proof with which it leaves the pending state).
    sums: BTreeMap<u64, (i64, Option<i64>)>,
    extents_taken: usize,
    /// Chunks that are left without references are kept for a write that may be repeated.
    keeps: bool,
}

/// Extents whose references one command subtracts itself; sweeps handle the pages beyond.
const TAKE_OFF_EXTENTS: usize = 8 << 10;

impl RefChanges {
    /// Changes by a writer that has not committed: the chunks that they leave without references are kept for a while.
    pub fn of_unfinished() -> RefChanges {
        RefChanges { keeps: true, ..RefChanges::default() }
    }

    /// Adds the references of a new page.
    pub fn add(&mut self, pieces: &[Extent]) {
        for piece in pieces.iter().filter(|p| p.chunk_id != 0) {
            self.sums.entry(piece.chunk_id).or_default().0 += 1;
        }
    }

    /// Adds the reference of a new content to its pack.
    pub fn add_content(&mut self, chunk_id: u64) {
        self.sums.entry(chunk_id).or_default().0 += 1;
    }

    /// Moves the reference of a content from one pack to another.
    pub fn move_content(&mut self, from: u64, to: u64) {
        self.sums.entry(from).or_default().0 -= 1;
        self.add_content(to);
    }

    /// Commits a pending chunk, of which receipts prove enough fragments, and adds it to the totals.
    pub fn commit(&mut self, ctx: &mut Ctx, chunk_id: u64, len_bytes: u64, class_id: u32) -> Result<()> {
        assert!(len_bytes > 0, "chunk {chunk_id}: a commit names a chunk without bytes");
        let class = ctx.class(class_id)?;
        assert!(class.stored_bytes(len_bytes) >= len_bytes, "class {}: stores less than it is given", class.spec);
        ctx.meta.chunks += 1;
        ctx.meta.unique_bytes += len_bytes;
        ctx.meta.stored_bytes += class.stored_bytes(len_bytes);
        let has_parity = (0..class.fragments()).any(|fragment| !class.is_plain(fragment));
        let sum = self.sums.entry(chunk_id).or_default();
        assert!(sum.1.is_none(), "chunk {chunk_id}: committed twice by one command");
        let unproven = has_parity && !failpoint::is_active("manager.parity_never_proven");
        sum.1 = Some(if unproven { table::CONTENT_PROVEN } else { table::PROVEN });
        Ok(())
    }

    /// Subtracts the references of a removed page. If the command has subtracted many, queues the page for sweeps instead.
    ///
    /// # Errors
    /// The database fails.
    pub fn release(&mut self, ctx: &Ctx, extents: &[u8]) -> Result<()> {
        if failpoint::is_active("manager.references_leak") {
            return Ok(());
        }
        if self.extents_taken > TAKE_OFF_EXTENTS {
            ctx.db.run("INSERT INTO dropped_pages (extents, kept) VALUES (?1, ?2)", args![extents, self.keeps])?;
            return Ok(());
        }
        pages::for_each_chunk(extents, |chunk| {
            self.extents_taken += 1;
            self.sums.entry(chunk).or_default().0 -= 1;
        });
        Ok(())
    }

    /// Writes the sums.
    ///
    /// # Errors
    /// The database fails, or a count is damaged.
    pub fn apply(mut self, ctx: &mut Ctx) -> Result<()> {
        // First the contents: a pack loses a reference with each that goes.
        for (content, (change, commits)) in self.sums.split_off(&contents::FIRST_CONTENT) {
            assert!(commits.is_none(), "content {content} is no chunk that a commit stores");
            if let Some(pack) = contents::change_refs(ctx, content, change)?
                && !failpoint::is_active("manager.packs_leak")
            {
                self.sums.entry(pack).or_default().0 -= 1;
            }
        }
        for (chunk, (change, commits)) in self.sums {
            if (change, commits) != (0, None) {
                table::change_refs(ctx, chunk, change, commits, self.keeps)?;
            }
        }
        Ok(())
    }
}

/// Subtracts a removed committed chunk from the totals.
pub fn forget_chunk(ctx: &mut Ctx, len_bytes: u64, class_id: u32) -> Result<()> {
    let class = ctx.class(class_id)?;
    uncount(&mut ctx.meta.chunks, 1, "chunks")?;
    uncount(&mut ctx.meta.unique_bytes, len_bytes, "unique_bytes")?;
    uncount(&mut ctx.meta.stored_bytes, class.stored_bytes(len_bytes), "stored_bytes")?;
    Ok(())
}

/// Queues all pages of a file for sweeps, which subtract their references.
///
/// # Errors
/// The database fails.
pub fn queue_file(db: &Db, ino: u64) -> rusqlite::Result<()> {
    let sql = "INSERT INTO dropped_pages (extents) SELECT extents FROM pages WHERE ino = ?1 ORDER BY start, born";
    db.exec(sql, args![ino])
}

/// Queues the staged pages of a session that ends without a commit for sweeps, which subtract their references.
///
/// # Errors
/// The database fails.
pub fn queue_staged(db: &Db, session_id: u64) -> rusqlite::Result<()> {
    let sql = "INSERT INTO dropped_pages (extents, kept) SELECT extents, 1 FROM staged_pages WHERE session_id = ?1 ORDER BY start";
    db.exec(sql, args![session_id])
}

/// Applies [`SweepPages`]: subtracts the references of queued pages.
///
/// # Errors
/// The database fails, or a count is damaged.
pub fn sweep(ctx: &mut Ctx, command: &SweepPages) -> Result<()> {
    let (mut dropped, mut unfinished) = (RefChanges::default(), RefChanges::of_unfinished());
    let sql = "SELECT id, extents, kept FROM dropped_pages ORDER BY id LIMIT ?1";
    let rows: Vec<(u64, Vec<u8>, bool)> = ctx.db.all(sql, args![command.limit])?;
    for (id, extents, kept) in rows {
        ctx.db.run("DELETE FROM dropped_pages WHERE id = ?1", args![id])?;
        let changes = if kept { &mut unfinished } else { &mut dropped };
        pages::for_each_chunk(&extents, |chunk| changes.sums.entry(chunk).or_default().0 -= 1);
    }
    dropped.apply(ctx)?;
    unfinished.apply(ctx)
}
