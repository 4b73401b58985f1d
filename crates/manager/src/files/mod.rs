//! Files: write and read sessions, commits, versions and their extents, lifetimes.

mod acks;
pub mod commit;
pub mod compare;
pub mod expiry;
pub mod one_shot;
pub mod open;
pub(crate) mod packs;
pub mod reads;
mod receipts;
pub mod sessions;
pub mod staged;
mod unfinished;
pub mod unpacked;
pub mod versions;

use crate::ctx::Ctx;
use crate::error::Result;
use crate::namespace::inodes;

/// Ends a command: releases the files whose last name it removed and records the lifetimes that it changed.
///
/// The namespace only lists them ([`Ctx::orphans`], [`Ctx::hints_changed`]): it does not know what files contain.
pub fn settle(ctx: &mut Ctx) -> Result<()> {
    for ino in std::mem::take(&mut ctx.hints_changed) {
        if let Some(inode) = inodes::find(ctx.db, ino)? {
            expiry::hints_changed(ctx, &inode)?;
            unpacked::hints_changed(ctx, &inode)?;
        }
    }
    for ino in std::mem::take(&mut ctx.orphans) {
        versions::release_inode(ctx, ino)?;
    }
    assert!(ctx.orphans.is_empty() && ctx.hints_changed.is_empty(), "releasing files changes no names");
    Ok(())
}
