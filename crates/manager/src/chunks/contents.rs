//! The only writer of the tables `contents` and `inlined`: named ranges of packs, and the bytes of tiny files that no pack has yet.
//!
//! A pack is a chunk whose bytes many small files share. Extents name a content by an id of its own, and its row says where it lies. The row
//! counts one reference of the pack, and goes with the last extent that names it. A content without a pack has its bytes in the table `inlined`.

use crate::ctx::Ctx;
use crate::db::Db;
use crate::db::meta::{draw, uncount};
use crate::db::sql::{FromRow, TableRow, args, row};
use crate::error::{Result, corrupt_row};
use bytes::Bytes;
use rusqlite::{OptionalExtension, params_from_iter};
use std::collections::HashMap;
use tessera_failpoint as failpoint;
pub use tessera_wire::meta::FIRST_CONTENT;
use tessera_wire::meta::{ChunkName, ContentInfo, PackedContent, SHARE_RUN};

row! { for ContentInfo { content_id, hash, len_bytes, chunk_id, chunk_offset } }

row! {
    /// A content that lies in no pack yet.
    #[derive(Debug, Clone)]
    pub struct Inlined {
        pub content_id: u64,
        pub domain: u32,
        /// Class of the pack that will take it.
        pub class_id: u32,
        /// When it was written.
        pub since_ns: i64,
        pub bytes: Bytes,
    }
}

/// Whether an extent that names `id` names a content.
pub fn is_content(id: u64) -> bool {
    id >= FIRST_CONTENT
}

/// Draws an id for a content of the pack `chunk_id`, and inserts it without references.
///
/// # Errors
/// The database fails.
pub fn insert(ctx: &mut Ctx<'_>, chunk_id: u64, content: &PackedContent) -> Result<u64> {
    assert!(chunk_id != 0 && !is_content(chunk_id), "{chunk_id} is no chunk");
    assert!(content.hash.len() == 32 && content.len_bytes > 0, "the request was checked: {content:?}");
    let content_id = draw(&mut ctx.meta.next_content);
    ctx.db.run(
        "INSERT INTO contents (content_id, chunk_id, chunk_offset, len_bytes, hash, refs) VALUES (?1, ?2, ?3, ?4, ?5, 0)",
        args![content_id, chunk_id, content.offset, content.len_bytes, content.hash],
    )?;
    Ok(content_id)
}

/// Draws an id for a content of a domain that no pack has, and inserts it with its bytes, without references. A pack of this class will take it.
///
/// # Errors
/// The database fails.
pub fn insert_inlined(
    ctx: &mut Ctx<'_>,
    (domain, class_id): (u32, u32),
    name: &ChunkName,
    bytes: Bytes,
) -> Result<u64> {
    let content_id = draw(&mut ctx.meta.next_content);
    ctx.db.run(
        "INSERT INTO contents (content_id, chunk_id, chunk_offset, len_bytes, hash, refs) VALUES (?1, 0, 0, ?2, ?3, 0)",
        args![content_id, name.len_bytes, name.hash],
    )?;
    let row = Inlined { content_id, domain, class_id, since_ns: ctx.now_ns, bytes };
    let sql = "INSERT INTO inlined (content_id, domain, class_id, since_ns, bytes) VALUES (?1, ?2, ?3, ?4, ?5)";
    ctx.db.exec(sql, params_from_iter(row.values()))?;
    ctx.meta.inlined_bytes += name.len_bytes;
    Ok(content_id)
}

/// The query of [`find_inlined`]. Without the index SQLite would go through all contents of this length.
pub(crate) const FIND_INLINED: &str = "SELECT content_id FROM contents INDEXED BY contents_inlined JOIN inlined USING (content_id)
     WHERE chunk_id = 0 AND hash = ?1 AND len_bytes = ?2 AND domain = ?3 AND class_id = ?4 AND bytes = ?5 ORDER BY content_id LIMIT 1";

/// The content of this name and these bytes that lies in no pack, if the domain has one for packs of this class. The bytes are compared, so that
/// a row that rotted is not found.
///
/// # Errors
/// The database fails.
pub fn find_inlined(
    db: &Db,
    (domain, class_id): (u32, u32),
    name: &ChunkName,
    bytes: &Bytes,
) -> rusqlite::Result<Option<u64>> {
    db.first(FIND_INLINED, args![name.hash, name.len_bytes, domain, class_id, bytes])
}

/// The row of a content that lies in no pack.
///
/// # Errors
/// The database fails.
pub fn inlined(db: &Db, content_id: u64) -> rusqlite::Result<Option<Inlined>> {
    let mut select = db.stmt(&Inlined::select("FROM inlined WHERE content_id = ?1"))?;
    select.query_row(args![content_id], Inlined::of).optional()
}

/// Rows of `inlined` that one question looks at.
const LOOKED_AT: u64 = 4_096;

/// Contents of a share that lie in no pack and were written at `until_ns` or before, from the one after `after` on: so many that `limit` are
/// reached, or `limit_bytes`, or that some thousands were looked at. The second value: where to go on, if there may be more.
///
/// # Errors
/// The database fails.
pub fn inlined_until(
    db: &Db,
    after: u64,
    (until_ns, own, all): (i64, u64, u64),
    (limit, limit_bytes): (usize, usize),
) -> rusqlite::Result<(Vec<Inlined>, Option<u64>)> {
    // Ids and times grow together.
    let sql =
        "SELECT content_id, since_ns <= ?2 FROM inlined WHERE content_id > ?1 ORDER BY content_id LIMIT 1 OFFSET ?3";
    let last: Option<(u64, bool)> = db.first(sql, args![after, until_ns, LOOKED_AT - 1])?;
    let (until, is_old) = last.unwrap_or((i64::MAX as u64, false));
    let sql = "FROM inlined WHERE content_id > ?1 AND content_id <= ?2 AND since_ns <= ?3 AND content_id / ?4 % ?5 = ?6 ORDER BY content_id";
    let mut select = db.stmt(&Inlined::select(sql))?;
    let mut rows = select.query_map(args![after, until, until_ns, SHARE_RUN, all, own], Inlined::of)?;
    let (mut found, mut bytes) = (Vec::new(), 0);
    while found.len() < limit && bytes < limit_bytes {
        let Some(row) = rows.next().transpose()? else { return Ok((found, is_old.then_some(until))) };
        bytes += row.bytes.len();
        found.push(row);
    }
    let next = found.last().map(|row: &Inlined| row.content_id);
    Ok((found, next))
}

/// A content lies in the metadata no more.
fn forget_inlined(ctx: &mut Ctx<'_>, content_id: u64, len_bytes: u64) -> Result<()> {
    ctx.db.run("DELETE FROM inlined WHERE content_id = ?1", args![content_id])?;
    if !failpoint::is_active("manager.inlined_leak") {
        uncount(&mut ctx.meta.inlined_bytes, len_bytes, "inlined_bytes")?;
    }
    Ok(())
}

/// Adds `change` to the references of a content. If none is left, removes the row and returns its pack, if it has one.
///
/// # Errors
/// The database fails, or the row cannot have that count.
pub fn change_refs(ctx: &mut Ctx<'_>, content_id: u64, change: i64) -> Result<Option<u64>> {
    let sql = "UPDATE contents SET refs = refs + ?2 WHERE content_id = ?1 AND refs + ?2 > 0";
    if change != 0 && ctx.db.run(sql, args![content_id, change])? == 1 {
        return Ok(None);
    }
    let sql = "DELETE FROM contents WHERE content_id = ?1 AND refs + ?2 = 0 RETURNING chunk_id, len_bytes";
    match ctx.db.first(sql, args![content_id, change])? {
        Some((0u64, len_bytes)) => {
            forget_inlined(ctx, content_id, len_bytes)?;
            return Ok(None);
        }
        Some((chunk_id, _)) => return Ok(Some(chunk_id)),
        None => {}
    }
    match change == 0 && find(ctx.db, content_id)?.is_some() {
        true => Ok(None),
        false => {
            let row = format!("contents, row {content_id}");
            Err(corrupt_row(row, format!("{change} references more cannot be")).into())
        }
    }
}

/// The content `content_id`, if it has a row.
///
/// # Errors
/// The database fails.
pub fn find(db: &Db, content_id: u64) -> rusqlite::Result<Option<ContentInfo>> {
    let mut select = db.stmt(&ContentInfo::select("FROM contents WHERE content_id = ?1"))?;
    select.query_row(args![content_id], ContentInfo::of).optional()
}

/// Ids of contents by offset, length and name.
pub type ByPlace = HashMap<(u64, u64, Vec<u8>), u64>;

/// The contents of a pack. Of several that are alike, the first.
///
/// # Errors
/// The database fails.
pub fn by_place(db: &Db, chunk_id: u64) -> rusqlite::Result<ByPlace> {
    let mut found = HashMap::new();
    for content in of_pack(db, chunk_id)? {
        found.entry((content.chunk_offset, content.len_bytes, content.hash)).or_insert(content.content_id);
    }
    Ok(found)
}

/// Moves a content to a place in a pack, if it lies in the pack `from` still (0: in the metadata) and has this name and length there.
///
/// # Errors
/// The database fails.
pub fn relocate(ctx: &mut Ctx<'_>, content_id: u64, from: u64, (chunk_id, to): (u64, &PackedContent)) -> Result<bool> {
    assert!(from != chunk_id && !is_content(chunk_id), "content {content_id}: moved from {from} to {chunk_id}");
    let sql = "UPDATE contents SET chunk_id = ?3, chunk_offset = ?4
               WHERE content_id = ?1 AND (chunk_id = ?2 OR ?7) AND hash = ?5 AND len_bytes = ?6";
    let anywhere = failpoint::is_active("manager.moved_from_anywhere");
    let moved = ctx.db.run(sql, args![content_id, from, chunk_id, to.offset, to.hash, to.len_bytes, anywhere])?;
    assert!(moved <= 1, "content {content_id}: ids are unique");
    if moved == 1 && from == 0 {
        forget_inlined(ctx, content_id, to.len_bytes)?;
    }
    Ok(moved == 1)
}

/// Bytes of the contents of the packs after `after`, at most `limit` packs: (pack, bytes).
///
/// # Errors
/// The database fails.
pub fn living(db: &Db, after: u64, limit: usize) -> rusqlite::Result<Vec<(u64, u64)>> {
    let sql = "SELECT chunk_id, sum(len_bytes) FROM contents WHERE chunk_id > ?1 GROUP BY chunk_id ORDER BY chunk_id LIMIT ?2";
    db.all(sql, args![after, limit])
}

/// The contents of a pack, in order of their places.
///
/// # Errors
/// The database fails.
pub fn of_pack(db: &Db, chunk_id: u64) -> rusqlite::Result<Vec<ContentInfo>> {
    db.all(&ContentInfo::select("FROM contents WHERE chunk_id = ?1 ORDER BY chunk_offset, content_id"), args![chunk_id])
}
