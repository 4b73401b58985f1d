//! Small files that were written by themselves, and move into packs once they are cold.
//!
//! A file that is durable as soon as it is written has its content as copies (`redundancy=auto`). Once it was not written for a while, a node
//! moves what many such files hold into one pack, which is coded: first mirrored, later coded, as in GPU RAID. The table `unpacked` says
//! which files wait for that. A move changes the extents of a file's current version, and nothing that anybody sees.

use super::packs::{Places, Rules};
use crate::chunks::contents;
use crate::chunks::refs::RefChanges;
use crate::ctx::{Ctx, View};
use crate::db::Db;
use crate::db::pages;
use crate::db::sql::args;
use crate::error::Result;
use crate::files::acks::Chunk;
use crate::files::{packs, versions};
use crate::namespace::hints::HintSet;
use crate::namespace::inodes::{self, Inode};
use tessera_failpoint as failpoint;
use tessera_policy::{Lifetime, Policy};
use tessera_wire::Extent;
use tessera_wire::meta::*;

/// A longer file does not move.
pub(super) const MOST_BYTES: u64 = 128 << 10;
/// Files that one answer to [`ListUnpacked`] looks at.
const FILES_PER_ANSWER: usize = 4_096;

/// Notes after a commit that wrote `extents` whether the file waits for a pack.
///
/// # Errors
/// The database fails.
pub fn note(ctx: &Ctx, inode: &Inode, policy: &Policy, extents: &[Extent]) -> Result<()> {
    if extents.iter().all(|extent| extent.chunk_id == 0) && gains(inode.size_bytes, policy) {
        return Ok(()); // A cut, or a hole: what is left of the file waits as before.
    }
    let has_chunks = extents.iter().any(|extent| extent.chunk_id != 0 && !contents::is_content(extent.chunk_id));
    if has_chunks && gains(inode.size_bytes, policy) {
        let sql = "INSERT OR REPLACE INTO unpacked (ino, since_ns) VALUES (?1, ?2)";
        ctx.db.run(sql, args![inode.ino, ctx.now_ns])?;
    } else if inode.version_number > 1 {
        forget(ctx.db, inode.ino)?;
    }
    Ok(())
}

/// Whether a pack stores a file of this length in less space than its policy does for short files.
pub(super) fn gains(size_bytes: u64, policy: &Policy) -> bool {
    let is_small = (1..=MOST_BYTES).contains(&size_bytes);
    let stays = !matches!(policy.lifetime, Lifetime::Purge { .. });
    is_small && stays && packs::check_policy(policy).is_ok() && policy.scheme(size_bytes) != policy.scheme(u64::MAX)
}

/// Takes note of changed hints: a file that may share no chunk any more waits no more.
///
/// # Errors
/// The database fails, or the hints are damaged.
pub fn hints_changed(ctx: &Ctx, inode: &Inode) -> Result<()> {
    match inode.is_file() && gains(inode.size_bytes, &HintSet::read(&inode.hints).policy()?) {
        true => Ok(()),
        false => Ok(forget(ctx.db, inode.ino)?),
    }
}

/// The file does not wait for a pack.
///
/// # Errors
/// The database fails.
pub fn forget(db: &Db, ino: u64) -> rusqlite::Result<()> {
    db.exec("DELETE FROM unpacked WHERE ino = ?1", args![ino])
}

/// Answers [`ListUnpacked`].
///
/// # Errors
/// The database fails.
pub fn list(view: &View, request: &ListUnpacked) -> Result<ListUnpackedReply> {
    let sql = "SELECT ino, since_ns FROM unpacked WHERE ino > ?1 ORDER BY ino LIMIT ?2";
    let looked: Vec<(u64, i64)> = view.db.all(sql, args![request.after, FILES_PER_ANSWER])?;
    let unwritten_ns = i64::try_from(request.unwritten_ms).unwrap_or(i64::MAX).saturating_mul(1_000_000);
    let until_ns = view.now_ns.saturating_sub(unwritten_ns);
    let next_after = match looked.len() {
        FILES_PER_ANSWER => looked[FILES_PER_ANSWER - 1].0,
        _ => 0,
    };
    let inos = looked.into_iter().filter(|(_, since_ns)| *since_ns <= until_ns).map(|(ino, _)| ino).collect();
    Ok(ListUnpackedReply { inos, next_after })
}

/// Moves files into a pack: their extents name its contents from now on. Returns how many. One that was written since, or is not what the
/// request says, stays as it is. The chunks go into `left`: they stay for a while.
pub(super) fn move_files(
    ctx: &mut Ctx,
    rules: &Rules<'_>,
    files: &[MovedFile],
    places: &mut Places<'_>,
    (refs, left): (&mut RefChanges, &mut RefChanges),
) -> Result<u64> {
    let mut moved = 0;
    for file in files {
        let Some(inode) = inodes::find(ctx.db, file.ino)?.filter(|inode| inode.version_id == file.version) else {
            continue;
        };
        let policy = HintSet::read(&inode.hints).policy()?;
        if inode.is_file() && gains(inode.size_bytes, &policy) {
            if rules.admit(&policy, inode.domain).is_err() {
                continue; // It belongs into another pack.
            }
            moved += u64::from(move_file(ctx, file, places, (&mut *refs, &mut *left))?);
        }
        // What cannot move now cannot before it is written again.
        forget(ctx.db, file.ino)?;
    }
    Ok(moved)
}

/// Moves one file, if each extent of its current version is a whole chunk that the place named for it equals, or names a content and stays.
fn move_file(
    ctx: &mut Ctx,
    file: &MovedFile,
    places: &mut Places<'_>,
    (refs, left): (&mut RefChanges, &mut RefChanges),
) -> Result<bool> {
    let Some(page) = versions::only_page(ctx.db, file.ino)? else { return Ok(false) };
    let mut extents = pages::decode(page.start, &page.extents);
    if file.places.iter().all(|place| *place == 0) || extents.len() != file.places.len() {
        return Ok(false);
    }
    for (extent, place) in extents.iter().zip(&file.places) {
        let stays = contents::is_content(extent.chunk_id);
        if extent.chunk_id == 0 || stays != (*place == 0) {
            return Ok(false);
        }
        if stays {
            continue;
        }
        let content = places.content(*place);
        let chunk = Chunk::find(ctx, extent.chunk_id)?;
        let is_equal =
            chunk.is_some_and(|chunk| chunk.hash == content.hash[..] && chunk.len_bytes == content.len_bytes);
        if !is_equal && !failpoint::is_active("manager.moves_files_unlooked") {
            return Ok(false);
        }
    }
    for (extent, place) in extents.iter_mut().zip(&file.places).filter(|(_, place)| **place != 0) {
        extent.chunk_id = places.id(ctx, *place, refs)?;
    }
    versions::name_elsewhere(ctx.db, file.ino, &page, &extents)?;
    refs.add(&extents);
    if !failpoint::is_active("manager.moved_files_leak") {
        left.release(ctx, &page.extents)?;
    }
    Ok(true)
}
