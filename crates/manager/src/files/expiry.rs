//! Files that expire: those whose `lifetime=purge:DURATION` is over, and checkpoint images (`A.Ni.Tj`) that newer
//! time steps have made obsolete in a directory with `lifetime=replace:N`.
//!
//! Ticks look up the files that are due and propose [`ExpireFiles`]. This command waits for leases as an unlink does and
//! checks each file again when it is applied: a file that was written, renamed or given another lifetime meanwhile stays.

use crate::ctx::Ctx;
use crate::db::Db;
use crate::db::sql::args;
use crate::error::Result;
use crate::internal::ExpireFiles;
use crate::namespace::hints::HintSet;
use crate::namespace::inodes::{self, Inode};
use crate::namespace::names::drop_name;
use crate::soft::Effect;
use std::collections::{BTreeSet, HashMap};
use tessera_policy::{Lifetime, Policy, StepName, obsolete_steps};

/// Most files that are purged after one tick.
const PURGES_A_TICK: usize = 256;
/// Most files in one command, which reads all images of the applications that its files are images of.
const FILES_PER_COMMAND: usize = 4_096;

#[cfg(test)]
thread_local! {
    /// Number of names of images that were read on this thread.
    pub static IMAGES_READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Records when a file expires, after a commit or a change of its hints.
///
/// # Errors
/// The database fails.
pub fn note(ctx: &mut Ctx, inode: &Inode, policy: &Policy) -> Result<()> {
    let ino = inode.ino;
    match policy.lifetime {
        Lifetime::Purge { after_s } => {
            let due_ns = written_ns(ctx, inode)?.saturating_add_unsigned(after_s.saturating_mul(1_000_000_000));
            ctx.db.run("INSERT OR REPLACE INTO purges (ino, due_ns) VALUES (?1, ?2)", args![ino, due_ns])?;
        }
        Lifetime::Replace { .. } if HintSet::read(&inode.hints).get("lifetime").is_some() => {
            ctx.after_commit(Effect::StepFileCommitted { ino });
        }
        _ => {}
    }
    Ok(())
}

/// Updates the recorded expiry of a file after a change of its hints.
pub fn hints_changed(ctx: &mut Ctx, inode: &Inode) -> Result<()> {
    forget(ctx.db, inode.ino)?;
    match inode.is_file() && inode.version_id != 0 {
        true => note(ctx, inode, &HintSet::read(&inode.hints).policy()?),
        false => Ok(()),
    }
}

/// Removes the recorded expiry of a file.
///
/// # Errors
/// The database fails.
pub fn forget(db: &Db, ino: u64) -> rusqlite::Result<()> {
    db.exec("DELETE FROM purges WHERE ino = ?1", args![ino])
}

/// When the current version was committed, by the cluster clock.
fn written_ns(ctx: &Ctx, inode: &Inode) -> Result<i64> {
    let sql = "SELECT clock_ns FROM versions WHERE ino = ?1 AND number = ?2";
    Ok(ctx.db.first(sql, args![inode.ino, inode.version_number])?.unwrap_or(ctx.now_ns))
}

/// Commands that remove the files that are due now. `committed`: files committed since the last call, whose names may follow
/// the convention.
pub fn due(db: &Db, now_ns: i64, committed: &[u64]) -> Result<Vec<ExpireFiles>> {
    let sql = "SELECT ino FROM purges WHERE due_ns <= ?1 ORDER BY due_ns LIMIT ?2";
    let mut inos: Vec<u64> = db.all(sql, args![now_ns, PURGES_A_TICK])?;
    let mut looked = BTreeSet::new();
    for &ino in committed {
        for (parent, name) in names(db, ino)? {
            if let Some(image) = StepName::parse(&name)
                && looked.insert((parent, image.application.to_vec()))
            {
                inos.extend(obsolete(db, parent, image.application)?);
            }
        }
    }
    inos.sort_unstable();
    inos.dedup();
    Ok(inos.chunks(FILES_PER_COMMAND).map(|inos| ExpireFiles { inos: inos.to_vec() }).collect())
}

/// The names of a file.
fn names(db: &Db, ino: u64) -> rusqlite::Result<Vec<(u64, Vec<u8>)>> {
    db.all("SELECT parent, name FROM dentries WHERE ino = ?1 ORDER BY parent, name", args![ino])
}

/// The first time step of an application that a directory still needs, if its lifetime removes steps.
fn first_needed(db: &Db, parent: u64, images: &[(Vec<u8>, u64)]) -> Result<Option<u64>> {
    let Some(directory) = inodes::find(db, parent)? else { return Ok(None) };
    let hints = HintSet::read(&directory.hints);
    let Lifetime::Replace { versions } = hints.policy()?.lifetime else { return Ok(None) };
    // By default a file's newest version replaces its older versions. Only an explicit hint lets files replace each other.
    if hints.get("lifetime").is_none() {
        return Ok(None);
    }
    let steps = images.iter().filter_map(|(name, _)| StepName::parse(name)).map(|image| (image.process, image.step));
    Ok(obsolete_steps(steps, versions))
}

/// Committed images of an application in a directory: name and file.
fn images(db: &Db, parent: u64, application: &[u8]) -> rusqlite::Result<Vec<(Vec<u8>, u64)>> {
    let (from, to) = ([application, b".N"].concat(), [application, b".O"].concat());
    let mut found: Vec<(Vec<u8>, u64)> = db.all(
        "SELECT d.name, d.ino FROM dentries d JOIN inodes i ON i.ino = d.ino
         WHERE d.parent = ?1 AND d.name >= ?2 AND d.name < ?3 AND i.version_id != 0",
        args![parent, from, to],
    )?;
    #[cfg(test)]
    IMAGES_READ.set(IMAGES_READ.get() + found.len());
    found.retain(|(name, _)| StepName::parse(name).is_some_and(|image| image.application == application));
    Ok(found)
}

fn obsolete(db: &Db, parent: u64, application: &[u8]) -> Result<Vec<u64>> {
    let images = images(db, parent, application)?;
    let Some(first) = first_needed(db, parent, &images)? else { return Ok(Vec::new()) };
    let older = |name: &[u8]| StepName::parse(name).is_some_and(|image| image.step < first);
    Ok(images.iter().filter(|(name, _)| older(name)).map(|(_, ino)| *ino).collect())
}

/// Applies [`ExpireFiles`].
pub fn expire_files(ctx: &mut Ctx, command: &ExpireFiles) -> Result<()> {
    let mut needed = NeededSteps::default();
    for &ino in &command.inos {
        let Some(inode) = inodes::find(ctx.db, ino)?.filter(Inode::is_file) else {
            forget(ctx.db, ino)?;
            continue;
        };
        let purged = purge_is_due(ctx, &inode)?;
        for (parent, name) in names(ctx.db, ino)? {
            let image = StepName::parse(&name);
            let obsolete = match &image {
                Some(image) if !purged => needed.is_obsolete(ctx.db, parent, image)?,
                _ => false,
            };
            if purged || obsolete {
                inodes::remove_name(ctx.db, parent, &name)?;
                inodes::touch(ctx.db, parent, ctx.wall_ns)?;
                drop_name(ctx, inodes::get(ctx.db, ino)?)?;
                ctx.after_commit(Effect::FileExpired);
            }
            if let Some(image) = image.filter(|_| purged) {
                needed.forget(parent, &image);
            }
        }
    }
    Ok(())
}

/// Whether the file has expired; if so, removes its recorded expiry.
fn purge_is_due(ctx: &Ctx, inode: &Inode) -> Result<bool> {
    let due = ctx.db.run("DELETE FROM purges WHERE ino = ?1 AND due_ns <= ?2", args![inode.ino, ctx.now_ns])? > 0;
    let policy = HintSet::read(&inode.hints).policy()?;
    Ok(due && matches!(policy.lifetime, Lifetime::Purge { .. }))
}

/// The first needed time steps of applications, by directory and application. They stay the same while only obsolete images are removed: the
/// first needed step is complete whatever is below it, and so is each later step that was.
#[derive(Default)]
struct NeededSteps(HashMap<(u64, Vec<u8>), Option<u64>>);

impl NeededSteps {
    fn is_obsolete(&mut self, db: &Db, parent: u64, image: &StepName<'_>) -> Result<bool> {
        let key = (parent, image.application.to_vec());
        let first = match self.0.get(&key) {
            Some(first) => *first,
            None => {
                let first = first_needed(db, parent, &images(db, parent, image.application)?)?;
                self.0.insert(key, first);
                first
            }
        };
        Ok(first.is_some_and(|first| image.step < first))
    }

    /// An image was purged, which may have been needed for a step to be complete.
    fn forget(&mut self, parent: u64, image: &StepName<'_>) {
        self.0.remove(&(parent, image.application.to_vec()));
    }
}
