//! What of a local tree the store has already, by size, modification time, mode and owner: no file is read.

use super::local::{Kind, LocalEntry};
use super::pool;
use crate::exit::{Failure, Outcome};
use crate::remote::Store;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use tessera_client::Error;
use tessera_client::path::StorePath;
use tessera_wire::{Attr, Code, InodeKind};

/// A file that was stored so soon after its last change, ns, is stored again: its time may not tell a change that followed at once.
const SETTLED_NS: i64 = 2_000_000_000;

/// Directories that one request lists: a level is shared by the jobs.
const LISTED_AT_ONCE: usize = 64;

fn is_missing(code: Code) -> bool {
    matches!(code, Code::NotFound | Code::NotDirectory)
}

/// The entries of directories in the store, by directory and name.
pub struct Known {
    directories: BTreeMap<StorePath, BTreeMap<Vec<u8>, Attr>>,
}

impl Known {
    /// Lists directories, level by level, `jobs` requests at once. One that is missing, or is no directory, has no entries.
    ///
    /// # Errors
    /// The manager does not answer.
    pub fn list(store: &Store, directories: BTreeSet<StorePath>, jobs: usize) -> Outcome<Known> {
        let mut levels = BTreeMap::<usize, Vec<StorePath>>::new();
        for path in directories {
            levels.entry(path.components().len()).or_default().push(path);
        }
        let mut known = Known { directories: BTreeMap::new() };
        for level in levels.into_values() {
            let mut there = Vec::new();
            for path in level {
                match known.directory(store, &path)? {
                    Some(ino) => there.push((path, ino)),
                    // Nothing below it is asked for.
                    None => _ = known.directories.insert(path, BTreeMap::new()),
                }
            }
            let listed = Mutex::new(Vec::new());
            let list = |some: &[(StorePath, u64)]| {
                let inos: Vec<u64> = some.iter().map(|(_, ino)| *ino).collect();
                for ((path, _), entries) in some.iter().zip(store.list_many(&inos)?) {
                    match entries {
                        Ok(entries) => listed.lock().push((path.clone(), entries)),
                        Err(error) if is_missing(error.code()) => {}
                        Err(error) => return Err(Error::refused("list", path, error).into()),
                    }
                }
                Ok(())
            };
            pool::run(there.chunks(LISTED_AT_ONCE).collect(), |_| 0, jobs, list, |_| ()).first_failure()?;
            for (path, entries) in listed.into_inner() {
                let named = entries.into_iter().map(|entry| (entry.name, entry.attr.unwrap_or_default()));
                known.directories.insert(path, named.collect());
            }
        }
        Ok(known)
    }

    /// The inode of a directory, if there is one: from the list of the one above, or from the store.
    fn directory(&self, store: &Store, path: &StorePath) -> Outcome<Option<u64>> {
        let above = path.split_last().ok().and_then(|(parent, name)| Some((self.directories.get(&parent)?, name)));
        let attr = match above {
            Some((entries, name)) => entries.get(name).cloned(),
            None => match store.stat(path) {
                Ok(attr) => Some(attr),
                // The command says itself why nothing can be stored there.
                Err(error) if is_missing(error.code()) => None,
                Err(error) => return Err(Failure::from(error)),
            },
        };
        Ok(attr.filter(|attr| attr.kind() == InodeKind::Directory).map(|attr| attr.ino))
    }

    /// The attributes of what has this path.
    pub fn attr(&self, path: &StorePath) -> Option<&Attr> {
        let (parent, name) = path.split_last().ok()?;
        self.directories.get(&parent)?.get(name)
    }

    /// Whether the store has this entry at a path, with these attributes.
    pub fn has(&self, found: &LocalEntry, to: &StorePath) -> bool {
        to.is_root() || self.attr(to).is_some_and(|attr| is_same(found, attr))
    }

    /// Whether a path is a directory.
    pub fn has_directory(&self, path: &StorePath) -> bool {
        path.is_root() || self.attr(path).is_some_and(|attr| attr.kind() == InodeKind::Directory)
    }
}

/// Whether mode, owner and modification time are these.
pub fn has_attributes(found: &LocalEntry, attr: &Attr) -> bool {
    has_owner(found, attr) && attr.mode == found.owner.mode && attr.mtime_ns == found.mtime_ns
}

fn has_owner(found: &LocalEntry, attr: &Attr) -> bool {
    (attr.uid, attr.gid) == (found.owner.uid, found.owner.gid)
}

fn is_same(found: &LocalEntry, attr: &Attr) -> bool {
    let has_attributes = has_attributes(found, attr);
    match &found.kind {
        Kind::File(len) => {
            let is_settled = attr.ctime_ns.saturating_sub(found.mtime_ns) >= SETTLED_NS;
            attr.kind() == InodeKind::File && attr.size_bytes == *len && has_attributes && is_settled
        }
        Kind::Directory => attr.kind() == InodeKind::Directory && has_attributes,
        Kind::Symlink(target) => {
            let is_there = attr.kind() == InodeKind::Symlink && attr.symlink_target == *target;
            is_there && has_owner(found, attr) && attr.mtime_ns == found.mtime_ns
        }
        Kind::Special => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_client::Owner;

    fn file() -> (LocalEntry, Attr) {
        let owner = Owner { mode: 0o644, uid: 7, gid: 8 };
        let found = LocalEntry {
            path: "f".into(),
            names: vec![],
            kind: Kind::File(100),
            owner,
            mtime_ns: 5_000_000_000,
            sparse: false,
        };
        let attr = Attr {
            kind: InodeKind::File.into(),
            mode: 0o644,
            uid: 7,
            gid: 8,
            size_bytes: 100,
            mtime_ns: 5_000_000_000,
            ctime_ns: 9_000_000_000,
            ..Attr::default()
        };
        (found, attr)
    }

    #[test]
    fn a_file_is_the_same_only_if_every_attribute_is() {
        let (found, attr) = file();
        assert!(is_same(&found, &attr));
        let others = [
            Attr { size_bytes: 101, ..attr.clone() },
            Attr { mtime_ns: 5_000_000_001, ..attr.clone() },
            Attr { mode: 0o600, ..attr.clone() },
            Attr { uid: 0, ..attr.clone() },
            Attr { gid: 0, ..attr.clone() },
            Attr { kind: InodeKind::Symlink.into(), ..attr.clone() },
            Attr { ctime_ns: 5_500_000_000, ..attr },
        ];
        for other in others {
            assert!(!is_same(&found, &other), "{other:?}");
        }
    }

    #[test]
    fn a_link_is_the_same_only_if_it_leads_there() {
        let (mut found, mut attr) = file();
        found.kind = Kind::Symlink(b"there".to_vec());
        (attr.kind, attr.mode, attr.symlink_target) = (InodeKind::Symlink.into(), 0o777, b"there".to_vec());
        assert!(is_same(&found, &attr));
        attr.symlink_target = b"elsewhere".to_vec();
        assert!(!is_same(&found, &attr));
    }
}
