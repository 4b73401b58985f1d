//! Versions of a file as intervals of pages: makes the next version, reads any, drops those beyond the file's lifetime.
//!
//! Version v consists of the pages with born <= v and (died is null or died > v). A change therefore writes only the pages
//! it touches: the old ones get `died = v`, the new ones `born = v`. A page is deleted when no kept version lies in
//! [born, died).

use crate::chunks::refs::{self, RefChanges};
use crate::ctx::Ctx;
use crate::db::Db;
use crate::db::meta::{draw, uncount};
use crate::db::pages::{self, MAX_PAGE_EXTENTS};
use crate::db::sessions::Session;
use crate::db::sql::{TableRow, args, row};
use crate::error::{Result, corrupt_row};
use crate::files::{expiry, staged, unpacked};
use crate::internal::{ReleaseOrphans, TrimVersions};
use crate::namespace::hints::HintSet;
use crate::namespace::inodes::{self, Inode};
use crate::soft::Effect;
use tessera_failpoint as failpoint;
use tessera_policy::Lifetime;
use tessera_wire::Extent;
use tessera_wire::meta::VersionInfo;

row! {
    /// A row of `pages`, without the inode number that the query was for.
    struct PageRow {
        /// Offset of the first extent.
        start: u64,
        /// First version the page belongs to.
        born: u64,
        /// End of the last extent.
        end: u64,
        /// Encoded extents.
        extents: Vec<u8>,
    }
}

impl PageRow {
    /// Decodes the extents.
    ///
    /// # Errors
    /// The row is damaged: its extents are out of order, or do not end where the row says.
    fn pieces(&self) -> Result<Vec<Extent>> {
        let pieces = pages::decode(self.start, &self.extents);
        let row = || format!("pages, row (start {}, born {})", self.start, self.born);
        if !pages::are_ordered(&pieces) {
            return Err(corrupt_row(row(), "its extents are out of order").into());
        }
        match pieces.last().map(Extent::end) {
            Some(end) if end == self.end => Ok(pieces),
            end => Err(corrupt_row(row(), format!("its extents end at {end:?}, not at {}", self.end)).into()),
        }
    }
}

/// The last page of version `number` that starts at or before `at`.
fn floor_page(db: &Db, ino: u64, number: u64, at: u64) -> rusqlite::Result<Option<PageRow>> {
    db.first(
        "SELECT start, born, end, extents FROM pages WHERE ino = ?1 AND start <= ?2 AND born <= ?3 AND (died IS NULL OR died > ?3)
         ORDER BY start DESC LIMIT 1",
        args![ino, at, number],
    )
}

/// Pages of version `number` that start after `from` and before `to`, at most `limit`.
fn pages_between(db: &Db, ino: u64, number: u64, from: u64, to: u64, limit: i64) -> rusqlite::Result<Vec<PageRow>> {
    db.all(
        "SELECT start, born, end, extents FROM pages WHERE ino = ?1 AND start > ?2 AND start < ?3 AND born <= ?4
         AND (died IS NULL OR died > ?4) ORDER BY start LIMIT ?5",
        args![ino, from, to, number, limit],
    )
}

/// Offsets stay below this, because the database stores them as signed numbers.
pub const MAX_FILE_BYTES: u64 = i64::MAX as u64;

/// Adjacent pages, and the new extents that fall among them.
struct Cluster {
    pages: Vec<PageRow>,
    new: Vec<Extent>,
    /// Start of the last page at or before the last new extent, whether or not that page is rewritten.
    last_page: Option<u64>,
}

/// Makes version `number` from the version before it, with `new` (absolute, in order, holes included) laid over it.
/// Returns the growth of the data bytes (holes do not count).
///
/// # Errors
/// The database fails, or pages of the version before are damaged.
pub fn overlay(ctx: &mut Ctx, ino: u64, number: u64, new: &[Extent], refs: &mut RefChanges) -> Result<i64> {
    assert!(number > 0, "inode {ino}: versions count from 1");
    assert!(pages::are_ordered(new), "inode {ino}: a commit's extents are in order, the request was checked");
    let mut grown = 0i64;
    for cluster in clusters(ctx.db, ino, number - 1, new)? {
        let mut old: Vec<Extent> = Vec::new();
        for page in &cluster.pages {
            old.extend(page.pieces()?);
        }
        if !pages::are_ordered(&old) {
            let why = format!("pages of version {} overlap", number - 1);
            return Err(corrupt_row(format!("pages of inode {ino}"), why).into());
        }
        let packed = pages::pack(&pages::overlay(&old, &cluster.new));
        for page in &cluster.pages {
            assert!(page.born < number, "inode {ino}: page of version {} dies in version {number}", page.born);
            let sql = "UPDATE pages SET died = ?4 WHERE ino = ?1 AND start = ?2 AND born = ?3";
            ctx.db.run(sql, args![ino, page.start, page.born, number])?;
        }
        grown -= pages::data_bytes(&old) as i64;
        for pieces in &packed {
            grown += pages::data_bytes(pieces) as i64;
            insert_page(ctx.db, ino, number, pieces)?;
            refs.add(pieces);
        }
    }
    Ok(grown)
}

fn clusters(db: &Db, ino: u64, base: u64, new: &[Extent]) -> Result<Vec<Cluster>> {
    let mut clusters: Vec<Cluster> = Vec::new();
    for run in new.chunk_by(|a, b| a.end() == b.offset) {
        let (from, to) = (run[0].offset, run[run.len() - 1].end());
        let floor = if base == 0 { None } else { floor_page(db, ino, base, from)? };
        let floor_start = floor.as_ref().map(|page| page.start);
        let behind = if base == 0 { Vec::new() } else { pages_between(db, ino, base, from, to, i64::MAX)? };
        let cluster = match clusters.last_mut() {
            Some(last) if last.last_page == floor_start => last,
            _ => {
                // A neighbour that is not full is rewritten together with the appended extents; otherwise many small appends would
                // make many small pages.
                let adopt = |page: &PageRow| {
                    page.end > from || behind.is_empty() && pages::count(&page.extents) + run.len() <= MAX_PAGE_EXTENTS
                };
                clusters.push(Cluster {
                    pages: floor.into_iter().filter(adopt).collect(),
                    new: Vec::new(),
                    last_page: floor_start,
                });
                clusters.last_mut().expect("just pushed")
            }
        };
        cluster.last_page = behind.last().map(|page| page.start).or(cluster.last_page);
        cluster.pages.extend(behind);
        cluster.new.extend_from_slice(run);
    }
    Ok(clusters)
}

fn insert_page(db: &Db, ino: u64, born: u64, pieces: &[Extent]) -> rusqlite::Result<()> {
    pages::assert_page(pieces);
    assert!(pieces.iter().all(|p| p.chunk_id != 0), "inode {ino}: a page of a version holds no holes");
    assert!(born > 0, "inode {ino}: versions count from 1");
    let (start, end) = (pieces[0].offset, pieces[pieces.len() - 1].end());
    assert!(end <= MAX_FILE_BYTES, "inode {ino}: a page ends at {end}");
    let sql = "INSERT INTO pages (ino, start, born, died, end, extents) VALUES (?1, ?2, ?3, NULL, ?4, ?5)";
    db.exec(sql, args![ino, start, born, end, pages::encode(pieces)])
}

/// Ends every page of the version before `number`, because a replacing commit starts from an empty file.
///
/// # Errors
/// The database fails.
pub fn end_pages(ctx: &Ctx, ino: u64, number: u64) -> Result<()> {
    if number > 1 {
        ctx.db.run("UPDATE pages SET died = ?2 WHERE ino = ?1 AND died IS NULL", args![ino, number])?;
    }
    Ok(())
}

/// Adds pages to version `number`; returns their data bytes.
///
/// # Errors
/// The database fails.
pub fn add_pages(ctx: &Ctx, ino: u64, number: u64, pieces: &[Extent], refs: &mut RefChanges) -> Result<u64> {
    for page in pages::pack(pieces) {
        insert_page(ctx.db, ino, number, &page)?;
        refs.add(&page);
    }
    Ok(pages::data_bytes(pieces))
}

/// Turns the session's staged pages into pages of version `number`; their references are already counted. Returns their
/// data bytes.
///
/// # Errors
/// The database fails.
pub fn adopt_staged(ctx: &Ctx, session: &Session, ino: u64, number: u64) -> Result<u64> {
    let id = session.session_id;
    let staged_pages = staged::load(ctx.db, id)?;
    let data = staged_pages.iter().map(|(start, column)| pages::data_bytes(&pages::decode(*start, column))).sum();
    let moved = ctx.db.run(
        "INSERT INTO pages (ino, start, born, died, end, extents)
         SELECT ?2, start, ?3, NULL, end, extents FROM staged_pages WHERE session_id = ?1",
        args![id, ino, number],
    )?;
    assert_eq!(moved, staged_pages.len(), "session {id}: each staged page becomes one page");
    staged::delete(ctx.db, id)?;
    Ok(data)
}

/// A version about to be published.
pub struct NewVersion {
    pub size_bytes: u64,
    /// Size without holes.
    pub data_bytes: u64,
    /// Bytes of chunks that this version stored first.
    pub new_bytes: u64,
    /// Modification time to record.
    pub mtime_ns: i64,
    /// Change time to record.
    pub ctime_ns: i64,
    /// Identifies the content; 0: the version id does.
    pub content: u64,
}

/// Makes version `number` of `inode` the current one. Its pages are in place; the caller writes `inode` afterwards.
///
/// # Errors
/// The database fails, or the inode's version id is not below the next one.
pub fn publish(ctx: &mut Ctx, inode: &mut Inode, number: u64, version: &NewVersion) -> Result<u64> {
    assert_eq!(number, inode.version_number + 1, "inode {}: versions are numbered without gaps", inode.ino);
    assert!(version.size_bytes <= MAX_FILE_BYTES, "inode {}: {} bytes", inode.ino, version.size_bytes);
    let id = draw(&mut ctx.meta.next_version);
    if id <= inode.version_id {
        let why = format!("its version id is {}, the next to be drawn was {id}", inode.version_id);
        return Err(corrupt_row(format!("inodes, row {}", inode.ino), why).into());
    }
    let NewVersion { size_bytes, data_bytes, new_bytes, .. } = *version;
    ctx.db.run(
        "INSERT INTO versions (ino, number, version_id, size_bytes, data_bytes, new_bytes, committed_ns, clock_ns)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        args![inode.ino, number, id, size_bytes, data_bytes, new_bytes, ctx.wall_ns, ctx.now_ns],
    )?;
    ctx.meta.versions += 1;
    ctx.meta.logical_bytes += data_bytes;
    inode.version_id = id;
    inode.version_number = number;
    inode.content = if version.content == 0 { id } else { version.content };
    inode.size_bytes = size_bytes;
    inode.mtime_ns = version.mtime_ns;
    inode.ctime_ns = version.ctime_ns;
    Ok(id)
}

/// Data bytes of a version.
///
/// # Errors
/// The database fails.
pub fn data_bytes(db: &Db, ino: u64, number: u64) -> rusqlite::Result<u64> {
    let found = db.first("SELECT data_bytes FROM versions WHERE ino = ?1 AND number = ?2", args![ino, number])?;
    Ok(found.unwrap_or(0))
}

/// Drops versions beyond the `lifetime`, except those that a reader's session holds: they are dropped on its release.
///
/// # Errors
/// The database fails, or a page is damaged.
pub fn trim(ctx: &mut Ctx, inode: &Inode, lifetime: Lifetime, refs: &mut RefChanges) -> Result<()> {
    let Some(keep) = lifetime.versions_kept() else { return Ok(()) };
    if inode.version_number <= 1 {
        return Ok(());
    }
    assert!(keep >= 1, "the current version is always kept");
    let (ino, keep) = (inode.ino, keep.min(i64::MAX as u64));
    let sql = "SELECT number, version_id FROM versions WHERE ino = ?1 ORDER BY number DESC LIMIT -1 OFFSET ?2";
    let excess: Vec<(u64, u64)> = ctx.db.all(sql, args![ino, keep])?;
    for (number, version_id) in excess {
        if ctx.record(|_, live| Ok(u64::from(live.soft.sessions.is_read(version_id))))? == 0 {
            drop_version(ctx, ino, number, refs)?;
        } else {
            ctx.db.run("INSERT OR IGNORE INTO overdue (ino) VALUES (?1)", args![ino])?;
            ctx.after_commit(Effect::TrimLater { ino });
        }
    }
    Ok(())
}

/// Drops a version that is not current, and the pages that no kept version needs.
fn drop_version(ctx: &mut Ctx, ino: u64, number: u64, refs: &mut RefChanges) -> Result<()> {
    assert!(number > 0, "inode {ino}: versions count from 1");
    uncount(&mut ctx.meta.versions, 1, "versions")?;
    uncount(&mut ctx.meta.logical_bytes, data_bytes(ctx.db, ino, number)?, "logical_bytes")?;
    ctx.db.run("DELETE FROM versions WHERE ino = ?1 AND number = ?2", args![ino, number])?;
    let kept = |sql: &str| ctx.db.one::<u64>(sql, args![ino, number]);
    let before = kept("SELECT ifnull(max(number), 0) FROM versions WHERE ino = ?1 AND number < ?2")?;
    let before = if failpoint::is_active("manager.pages_dropped_early") { 0 } else { before };
    let behind = kept("SELECT ifnull(min(number), 0) FROM versions WHERE ino = ?1 AND number > ?2")?;
    let rows: Vec<PageRow> = ctx.db.all(
        "SELECT start, born, end, extents FROM pages WHERE ino = ?1 AND died > ?2 AND died <= ?3 AND born > ?4",
        args![ino, number, behind, before],
    )?;
    for page in rows {
        let sql = "DELETE FROM pages WHERE ino = ?1 AND start = ?2 AND born = ?3";
        ctx.db.run(sql, args![ino, page.start, page.born])?;
        refs.release(ctx, &page.extents)?;
    }
    Ok(())
}

/// Applies [`TrimVersions`].
///
/// # Errors
/// The database fails, or a page is damaged.
pub fn trim_versions(ctx: &mut Ctx, command: &TrimVersions) -> Result<()> {
    let mut refs = RefChanges::default();
    for &ino in &command.inos {
        ctx.db.run("DELETE FROM overdue WHERE ino = ?1", args![ino])?;
        let Some(inode) = inodes::find(ctx.db, ino)? else { continue };
        let Ok(policy) = HintSet::read(&inode.hints).policy() else { continue };
        trim(ctx, &inode, policy.lifetime, &mut refs)?;
    }
    refs.apply(ctx)
}

/// Applies [`ReleaseOrphans`].
///
/// # Errors
/// The database fails, or a page is damaged.
pub fn release_orphans(ctx: &mut Ctx, command: &ReleaseOrphans) -> Result<()> {
    for &ino in &command.inos {
        match inodes::find(ctx.db, ino)? {
            Some(inode) if inode.nlink == 0 => release_inode(ctx, ino)?,
            _ => {}
        }
    }
    Ok(())
}

/// A page of a file's current version.
pub struct LivingPage {
    pub start: u64,
    born: u64,
    /// As in the column.
    pub extents: Vec<u8>,
}

/// The page of a file's current version, if it is one page.
///
/// # Errors
/// The database fails.
pub fn only_page(db: &Db, ino: u64) -> rusqlite::Result<Option<LivingPage>> {
    let sql = "SELECT start, born, extents FROM pages WHERE ino = ?1 AND died IS NULL LIMIT 2";
    let mut found: Vec<(u64, u64, Vec<u8>)> = db.all(sql, args![ino])?;
    let only = found.pop().filter(|_| found.is_empty());
    Ok(only.map(|(start, born, extents)| LivingPage { start, born, extents }))
}

/// The same bytes of a page lie elsewhere: its extents, which stay as long as they are, name other chunks or contents. The caller counts
/// references.
///
/// # Errors
/// The database fails.
pub fn name_elsewhere(db: &Db, ino: u64, page: &LivingPage, extents: &[Extent]) -> rusqlite::Result<()> {
    pages::assert_page(extents);
    let lens = |extents: &[Extent]| extents.iter().map(|e| (e.offset, e.len_bytes)).collect::<Vec<_>>();
    assert_eq!(lens(&pages::decode(page.start, &page.extents)), lens(extents), "inode {ino}: the bytes stay the same");
    let sql = "UPDATE pages SET extents = ?4 WHERE ino = ?1 AND start = ?2 AND born = ?3";
    let updated = db.run(sql, args![ino, page.start, page.born, pages::encode(extents)])?;
    assert_eq!(updated, 1, "inode {ino}: its page was just read");
    Ok(())
}

/// Removes a file without names, unless a session still holds it.
///
/// # Errors
/// The database fails, or a page is damaged.
pub fn release_inode(ctx: &mut Ctx, ino: u64) -> Result<()> {
    let held = ctx.db.any("SELECT 1 FROM sessions WHERE ino = ?1 LIMIT 1", args![ino])?;
    if held || ctx.record(|_, live| Ok(u64::from(live.soft.sessions.is_file_read(ino))))? != 0 {
        ctx.after_commit(Effect::CheckOrphan { ino });
        return Ok(());
    }
    ctx.db.run("DELETE FROM overdue WHERE ino = ?1", args![ino])?;
    expiry::forget(ctx.db, ino)?;
    unpacked::forget(ctx.db, ino)?;
    let sql = "SELECT count(*), ifnull(sum(data_bytes), 0) FROM versions WHERE ino = ?1";
    let (count, bytes) = ctx.db.one(sql, args![ino])?;
    uncount(&mut ctx.meta.versions, count, "versions")?;
    uncount(&mut ctx.meta.logical_bytes, bytes, "logical_bytes")?;
    ctx.db.run("DELETE FROM versions WHERE ino = ?1", args![ino])?;
    release_pages(ctx, ino)?;
    inodes::remove(ctx.db, ino)?;
    Ok(())
}

/// Most pages that one command releases. SQL moves the rows of a longer file to a queue.
const RELEASE_PAGES: u64 = 32;

fn release_pages(ctx: &mut Ctx, ino: u64) -> Result<()> {
    let count: u64 = ctx.db.one("SELECT count(*) FROM pages WHERE ino = ?1", args![ino])?;
    if count > RELEASE_PAGES {
        refs::queue_file(ctx.db, ino)?;
    } else if count > 0 {
        let mut changes = RefChanges::default();
        let rows: Vec<Vec<u8>> = ctx.db.all("SELECT extents FROM pages WHERE ino = ?1", args![ino])?;
        rows.iter().try_for_each(|extents| changes.release(ctx, extents))?;
        changes.apply(ctx)?;
    }
    Ok(ctx.db.exec("DELETE FROM pages WHERE ino = ?1", args![ino])?)
}

row! { for VersionInfo { version = "version_id", number, size_bytes, committed_ns, new_bytes } }

/// Versions of a file that the clause `which` selects (`?1` is the file, `?2` is `key`).
fn select(db: &Db, which: &str, ino: u64, key: u64) -> rusqlite::Result<Vec<VersionInfo>> {
    db.all(&VersionInfo::select(&format!("FROM versions WHERE ino = ?1 {which}")), args![ino, key])
}

/// Versions of a file, oldest first.
///
/// # Errors
/// The database fails.
pub fn list(db: &Db, ino: u64) -> rusqlite::Result<Vec<VersionInfo>> {
    select(db, "AND number >= ?2 ORDER BY number", ino, 0)
}

/// The version with this number, or `None` if it is not kept.
///
/// # Errors
/// The database fails.
pub fn by_number(db: &Db, ino: u64, number: u64) -> rusqlite::Result<Option<VersionInfo>> {
    Ok(select(db, "AND number = ?2", ino, number)?.pop())
}

/// The version with this id, or `None` if it is not kept.
///
/// # Errors
/// The database fails.
pub fn by_id(db: &Db, ino: u64, version_id: u64) -> rusqlite::Result<Option<VersionInfo>> {
    Ok(select(db, "AND version_id = ?2", ino, version_id)?.pop())
}

/// Extents of version `number` (of `size` bytes), holes included, from the one that contains `offset` until `len` bytes
/// are covered or there are `max` of them. The first extent may start before `offset`.
///
/// # Errors
/// The database fails, or a page is damaged.
pub fn read(db: &Db, ino: u64, number: u64, size: u64, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>> {
    let end = offset.saturating_add(len).min(size);
    let mut pieces: Vec<Extent> = Vec::new();
    let mut covered = offset.min(size);
    let mut next: Vec<PageRow> = floor_page(db, ino, number, offset)?.into_iter().collect();
    let mut from = offset;
    while covered < end && pieces.len() < max {
        if next.is_empty() {
            next = pages_between(db, ino, number, from, end, 16)?;
            if next.is_empty() {
                let (at, to) = (covered, hole_end(db, ino, number, from, size)?);
                push_hole(&mut pieces, &mut covered, at, to);
                break;
            }
        }
        for page in next.drain(..) {
            from = from.max(page.start);
            for piece in page.pieces()? {
                if piece.end() <= offset || piece.offset >= size || covered >= end || pieces.len() >= max {
                    continue;
                }
                if piece.offset > covered {
                    let at = covered;
                    push_hole(&mut pieces, &mut covered, at, piece.offset);
                    if covered >= end || pieces.len() >= max {
                        continue;
                    }
                }
                covered = piece.end().min(size);
                pieces.push(Extent { len_bytes: covered - piece.offset, ..piece });
            }
        }
    }
    if !pages::are_ordered(&pieces) {
        return Err(corrupt_row(format!("pages of inode {ino}"), format!("extents of version {number} overlap")).into());
    }
    Ok(pieces)
}

/// End of the hole that follows the page at `from`.
fn hole_end(db: &Db, ino: u64, number: u64, from: u64, size: u64) -> rusqlite::Result<u64> {
    let next = pages_between(db, ino, number, from, size, 1)?;
    Ok(next.first().map_or(size, |page| page.start.min(size)))
}

fn push_hole(pieces: &mut Vec<Extent>, covered: &mut u64, from: u64, to: u64) {
    if to > from {
        pieces.push(Extent::hole(from, to - from));
        *covered = to;
    }
}
