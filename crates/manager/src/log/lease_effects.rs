//! How commands affect leases, for the table in [`crate::log::registry`]: the leases recalled before a command is applied and
//! the leases that its reply may grant.

use crate::coherence::leases::LeaseTarget::{self, Inode, Listing, Names};
use crate::coherence::leases::{GrantedNames, LeaseGrants};
use crate::db::sql::args;
use crate::db::{Db, sessions};
use crate::error::Result;
use crate::namespace::inodes;
use crate::namespace::names::MAX_REMOVED_NAMES;
use std::collections::HashSet;
use tessera_wire::meta::{
    Commit, Link, MAX_AT_ONCE, MAX_LISTINGS_RECALLED, MakeDir, MakeEntries, MakeNode, RemoveNames, Rename, SetAttrs,
};

/// The command changes nothing that is leased.
pub fn nothing<C>(_: &Db, _: &C) -> Result<Vec<LeaseTarget>> {
    Ok(Vec::new())
}

/// The command creates a name in a directory.
pub fn names_in(directory: u64) -> Result<Vec<LeaseTarget>> {
    Ok(vec![Names(inodes::root_if_none(directory))])
}

/// The command changes an inode, which may be a directory, and which may have been listed.
///
/// # Errors
/// The database fails.
pub fn inode(db: &Db, ino: u64) -> Result<Vec<LeaseTarget>> {
    let mut changes = inodes(&[ino])?;
    changes.extend(listings_with(db, ino, MOST_LISTINGS)?);
    Ok(changes)
}

/// Listings that show this many names of one inode are recalled when it changes.
const MOST_LISTINGS: i64 = MAX_LISTINGS_RECALLED as i64;
/// No limit of them: each loses a name.
const ALL_LISTINGS: i64 = -1;

/// The listings of the directories in which an inode has names: they show its attributes.
fn listings_with(db: &Db, ino: u64, most: i64) -> rusqlite::Result<Vec<LeaseTarget>> {
    let parents: Vec<u64> = db.all("SELECT DISTINCT parent FROM dentries WHERE ino = ?1 LIMIT ?2", args![ino, most])?;
    Ok(parents.into_iter().map(Listing).collect())
}

/// The command changes these inodes, some of which may be directories.
pub fn inodes(inos: &[u64]) -> Result<Vec<LeaseTarget>> {
    Ok(inos.iter().copied().map(Inode).chain(inos.iter().copied().map(Names)).collect())
}

/// The command removes a name, if it exists, and changes its inode.
///
/// # Errors
/// The database fails.
pub fn entry(db: &Db, parent: u64, name: &[u8]) -> Result<Vec<LeaseTarget>> {
    removed(db, parent, &named(db, parent, name)?.into_iter().collect::<Vec<_>>())
}

/// Other names of the inodes show that they have fewer.
fn removed(db: &Db, parent: u64, inos: &[u64]) -> Result<Vec<LeaseTarget>> {
    let mut changes = inodes(inos)?;
    changes.push(Listing(inodes::root_if_none(parent)));
    for ino in inos {
        changes.extend(listings_with(db, *ino, MOST_LISTINGS)?);
    }
    Ok(distinct(changes))
}

/// Each target once: many files may have names in one directory.
fn distinct(mut changes: Vec<LeaseTarget>) -> Vec<LeaseTarget> {
    let mut seen = HashSet::with_capacity(changes.len());
    changes.retain(|target| seen.insert(*target));
    changes
}

/// As [`entry`], for each name of [`RemoveNames`].
///
/// # Errors
/// The database fails.
pub fn entries(db: &Db, r: &RemoveNames) -> Result<Vec<LeaseTarget>> {
    let mut inos = Vec::with_capacity(r.names.len().min(MAX_REMOVED_NAMES));
    for name in r.names.iter().take(MAX_REMOVED_NAMES) {
        inos.extend(named(db, r.parent, name)?);
    }
    removed(db, r.parent, &inos)
}

/// The directories in which [`MakeEntries`] makes names.
pub fn new_entries(_: &Db, r: &MakeEntries) -> Result<Vec<LeaseTarget>> {
    let parents = r.entries.iter().take(MAX_AT_ONCE).map(|entry| Names(inodes::root_if_none(entry.parent)));
    Ok(distinct(parents.collect()))
}

/// As [`inode`], for each of [`SetAttrs`].
///
/// # Errors
/// The database fails.
pub fn attributes(db: &Db, r: &SetAttrs) -> Result<Vec<LeaseTarget>> {
    let mut changes = Vec::new();
    for of in r.inodes.iter().take(MAX_AT_ONCE) {
        changes.extend(inode(db, of.ino)?);
    }
    Ok(distinct(changes))
}

/// The command may remove all names of these files.
///
/// # Errors
/// The database fails.
pub fn expired(db: &Db, inos: &[u64]) -> Result<Vec<LeaseTarget>> {
    let mut changes = inodes(inos)?;
    for ino in inos {
        changes.extend(listings_with(db, *ino, ALL_LISTINGS)?);
    }
    Ok(distinct(changes))
}

fn named(db: &Db, parent: u64, name: &[u8]) -> rusqlite::Result<Option<u64>> {
    inodes::lookup(db, inodes::root_if_none(parent), name)
}

/// Lease targets that [`Rename`] changes.
///
/// # Errors
/// The database fails.
pub fn renamed(db: &Db, r: &Rename) -> Result<Vec<LeaseTarget>> {
    let from = named(db, r.from_parent, &r.from_name)?;
    let to = named(db, r.to_parent, &r.to_name)?;
    let mut changes = removed(db, r.from_parent, &from.into_iter().chain(to).collect::<Vec<_>>())?;
    changes.extend(names_in(r.to_parent)?);
    changes.push(Listing(inodes::root_if_none(r.to_parent)));
    Ok(changes)
}

/// Lease targets that [`Link`] changes.
///
/// # Errors
/// The database fails.
pub fn linked(db: &Db, r: &Link) -> Result<Vec<LeaseTarget>> {
    let mut changes = inode(db, r.ino)?;
    changes.extend(names_in(r.parent)?);
    Ok(changes)
}

/// Lease targets that [`Commit`] changes: none until the last commit of its session.
pub fn committed(db: &Db, commit: &Commit) -> Result<Vec<LeaseTarget>> {
    if commit.partial {
        return Ok(Vec::new());
    }
    if let Some(pack) = &commit.pack {
        let of_files: Vec<Vec<LeaseTarget>> =
            pack.files.iter().map(|file| committed(db, file)).collect::<Result<_>>()?;
        return Ok(distinct(of_files.concat()));
    }
    let Some((ino, parent, name)) = commit_target(db, commit)? else { return Ok(Vec::new()) };
    let (written, names) = match parent {
        0 => (Some(ino), None),
        parent => (named(db, parent, &name)?, Some(Names(inodes::root_if_none(parent)))),
    };
    let mut changes: Vec<LeaseTarget> = written.map(Inode).into_iter().chain(names).collect();
    if let Some(ino) = written {
        changes.extend(listings_with(db, ino, MOST_LISTINGS)?);
    }
    Ok(changes)
}

/// The file that a commit writes: inode number, directory and name; directory 0: by its inode number.
fn commit_target(db: &Db, commit: &Commit) -> rusqlite::Result<Option<(u64, u64, Vec<u8>)>> {
    if let Some(open) = &commit.open {
        return Ok(Some((open.ino, open.parent, open.name.clone())));
    }
    Ok(sessions::find(db, commit.session_id)?.map(|session| (session.ino, session.parent, session.name)))
}

/// The reply grants no lease.
pub fn no_grant<C>(_: &Db, _: &C) -> LeaseGrants {
    LeaseGrants::default()
}

/// The reply grants a lease on the inode if `wanted`.
pub fn on_inode(wanted: bool) -> LeaseGrants {
    LeaseGrants { inode: wanted, names: None }
}

/// Leases granted with a new directory.
pub fn new_directory(_: &Db, r: &MakeDir) -> LeaseGrants {
    LeaseGrants { inode: r.want_lease, names: (r.inos > 0).then_some(GrantedNames::OfNewDirectory) }
}

/// Leases granted with a new node: if the client wants it, a delegation of the directory with its names.
pub fn new_node(_: &Db, r: &MakeNode) -> LeaseGrants {
    let names = r.want_delegation.then_some(GrantedNames::Listed(inodes::root_if_none(r.parent)));
    LeaseGrants { inode: r.want_lease, names }
}

/// Leases granted with a commit: the client keeps its delegation of the file's directory.
pub fn with_commit(db: &Db, r: &Commit) -> LeaseGrants {
    let target = if r.partial { None } else { commit_target(db, r).ok().flatten() };
    let parent = target.map(|(_, parent, _)| parent).filter(|&parent| parent != 0);
    LeaseGrants { inode: r.want_lease, names: parent.map(GrantedNames::Kept) }
}
