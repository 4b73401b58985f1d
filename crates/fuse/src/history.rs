//! `.tessera/versions/`: every kept version of every file, to be read as files.
//!
//! The tree mirrors the store's directories; where a file is, here is a directory of its versions, each a read-only file
//! called by its number. `.tessera` is in the mount's root and is not listed. Its inodes are made up: their numbers have the
//! highest bit set, which no inode of the store has; nothing of them outlives the mount.

use crate::attr::{explained, file_attr};
use crate::mount::Store;
use fuser::{Errno, FileAttr};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tessera_client::ReadHandle;
use tessera_wire::meta::VersionInfo;
use tessera_wire::{Attr, InodeKind};

/// Name of the door in the mount's root.
pub const DOOR: &[u8] = b".tessera";
/// Name of the tree behind it.
const TREE: &[u8] = b"versions";

const ROOT: u64 = 1;
const MADE_UP: u64 = 1 << 63;
/// With [`MADE_UP`]: the mirror of the directory with the number in the lower bits.
const DIRECTORY: u64 = 1 << 62;
/// With [`MADE_UP`]: the versions of the file with the number in the lower bits.
const FILE: u64 = 1 << 61;
/// With [`MADE_UP`] alone, and a count from 1: a version; 0 is the door.
const NUMBER: u64 = FILE - 1;

/// What a made-up inode stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Node {
    Door,
    Directory(u64),
    File(u64),
    Version(u64),
}

/// Whether an inode is one of these.
pub fn is_made_up(ino: u64) -> bool {
    ino & MADE_UP != 0
}

fn node(ino: u64) -> Node {
    match (ino & DIRECTORY != 0, ino & FILE != 0, ino & NUMBER) {
        (true, _, real) => Node::Directory(real),
        (_, true, real) => Node::File(real),
        (_, _, 0) => Node::Door,
        (_, _, count) => Node::Version(count),
    }
}

/// An entry of one of these directories.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its attributes, made up from those of what it stands for.
    pub attr: FileAttr,
    /// Its name.
    pub name: Vec<u8>,
}

/// A version the kernel was told of.
#[derive(Debug, Clone, PartialEq)]
struct Told {
    file: u64,
    version: VersionInfo,
}

/// Numbers given to versions.
#[derive(Default)]
pub struct History {
    told: Mutex<(Vec<Told>, HashMap<u64, u64>)>,
}

impl History {
    /// The number of a version; the same each time.
    fn number(&self, file: u64, version: &VersionInfo) -> u64 {
        let (told, by_version) = &mut *self.told.lock();
        let next = told.len() as u64 + 1;
        let count = *by_version.entry(version.version).or_insert(next);
        if count == next {
            told.push(Told { file, version: version.clone() });
        }
        MADE_UP | count
    }

    fn told(&self, count: u64) -> Result<Told, Errno> {
        self.told.lock().0.get(count as usize - 1).cloned().ok_or(Errno::ESTALE)
    }

    /// Attributes.
    pub fn attr(&self, store: &Store, ino: u64) -> Result<FileAttr, Errno> {
        let (real, version) = match node(ino) {
            Node::Door => (ROOT, None),
            Node::Directory(real) | Node::File(real) => (real, None),
            Node::Version(count) => self.told(count).map(|told| (told.file, Some(told.version)))?,
        };
        Ok(shown(ino, &real_attr(store, real)?, version.as_ref()))
    }

    /// Looks a name up in the mount's root (the door) or in one of these directories.
    pub fn lookup(&self, store: &Store, parent: u64, name: &[u8]) -> Result<FileAttr, Errno> {
        let found = match (is_made_up(parent), node(parent)) {
            (false, _) => MADE_UP,
            (_, Node::Door) if name == TREE => MADE_UP | DIRECTORY | ROOT,
            (_, Node::Directory(real)) => {
                let entry = store.client.inodes().lookup(real, name).map_err(|e| explained("look up", real, &e))?;
                let attr = entry.attr.unwrap_or_default();
                mirror(attr.ino, attr.kind()).ok_or(Errno::ENOENT)?
            }
            (_, Node::File(real)) => {
                let number: u64 = std::str::from_utf8(name).ok().and_then(|n| n.parse().ok()).ok_or(Errno::ENOENT)?;
                // `01` is no second name of 1.
                let version = versions(store, real)?.into_iter().find(|v| v.number == number);
                let version = version.filter(|v| v.number.to_string().as_bytes() == name).ok_or(Errno::ENOENT)?;
                self.number(real, &version)
            }
            _ => return Err(Errno::ENOENT),
        };
        self.attr(store, found)
    }

    /// Entries of one of these directories. With attributes: what the kernel is told first of a length it believes.
    pub fn entries(&self, store: &Store, ino: u64) -> Result<Vec<Entry>, Errno> {
        match node(ino) {
            Node::Door => {
                let tree = shown(MADE_UP | DIRECTORY | ROOT, &real_attr(store, ROOT)?, None);
                Ok(vec![Entry { attr: tree, name: TREE.to_vec() }])
            }
            Node::Directory(real) => mirrored(store, real),
            Node::File(real) => {
                let of = real_attr(store, real)?;
                let entry = |version: &VersionInfo| {
                    let attr = shown(self.number(real, version), &of, Some(version));
                    Entry { attr, name: version.number.to_string().into_bytes() }
                };
                Ok(versions(store, real)?.iter().map(entry).collect())
            }
            Node::Version(_) => Err(Errno::ENOTDIR),
        }
    }

    /// Opens a version.
    pub fn open(&self, store: &Store, ino: u64) -> Result<Arc<ReadHandle>, Errno> {
        let Node::Version(count) = node(ino) else { return Err(Errno::EISDIR) };
        let Told { file, version } = self.told(count)?;
        let opened = store.client.inodes().open_read(file, version.version, 0..version.size_bytes.min(64 << 20));
        opened.map(Arc::new).map_err(|error| {
            tracing::warn!(ino = file, version = version.number, %error, "a version cannot be opened");
            crate::attr::errno(error.code())
        })
    }
}

fn real_attr(store: &Store, ino: u64) -> Result<Attr, Errno> {
    let entry = store.client.inodes().get(ino).map_err(|e| explained("get", ino, &e))?;
    Ok(entry.attr.unwrap_or_default())
}

/// Attributes of `ino`, which stands for something of `of`, or for a version of it.
fn shown(ino: u64, of: &Attr, version: Option<&VersionInfo>) -> FileAttr {
    let of = of.clone();
    let made = match (version, node(ino)) {
        (Some(version), _) => {
            let (size_bytes, mtime_ns) = (version.size_bytes, version.committed_ns);
            let times = Attr { mtime_ns, ctime_ns: mtime_ns, atime_ns: mtime_ns, ..of };
            Attr { ino, mode: times.mode & 0o444, nlink: 1, size_bytes, ..times }
        }
        // Who may read the file may look at its versions.
        (None, Node::File(_)) => {
            let (kind, read) = (InodeKind::Directory as i32, of.mode & 0o444);
            Attr { ino, kind, mode: read | read >> 2, nlink: 2, size_bytes: 0, ..of }
        }
        _ => Attr { ino, mode: of.mode & 0o555, ..of },
    };
    file_attr(&made)
}

fn mirrored(store: &Store, real: u64) -> Result<Vec<Entry>, Errno> {
    let (mut entries, mut after) = (Vec::new(), Vec::new());
    loop {
        let (page, more) = store.client.inodes().list(real, &after).map_err(|e| explained("list", real, &e))?;
        after = page.last().map(|entry| entry.name.clone()).unwrap_or_default();
        let more = more && !page.is_empty();
        entries.extend(page.into_iter().filter_map(|entry| {
            let of = entry.attr?;
            Some(Entry { attr: shown(mirror(of.ino, of.kind())?, &of, None), name: entry.name })
        }));
        if !more {
            return Ok(entries);
        }
    }
}

/// The made-up directory for an entry of a mirrored one: only directories and files have one.
fn mirror(real: u64, kind: InodeKind) -> Option<u64> {
    match kind {
        InodeKind::Directory => Some(MADE_UP | DIRECTORY | real),
        InodeKind::File => Some(MADE_UP | FILE | real),
        _ => None,
    }
}

fn versions(store: &Store, ino: u64) -> Result<Vec<VersionInfo>, Errno> {
    store.client.inodes().versions(ino).map_err(|e| explained("list versions of", ino, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_say_what_they_stand_for_and_versions_keep_theirs() {
        assert_eq!(node(MADE_UP), Node::Door);
        for real in [1, 77, 1 << 48] {
            assert_eq!(node(mirror(real, InodeKind::Directory).unwrap()), Node::Directory(real));
            assert_eq!(node(mirror(real, InodeKind::File).unwrap()), Node::File(real));
            assert!(!is_made_up(real));
        }
        assert_eq!(mirror(5, InodeKind::Symlink), None);
        let history = History::default();
        let version = |version| VersionInfo { version, number: 3, ..Default::default() };
        let first = history.number(9, &version(100));
        assert_eq!((node(first), history.number(9, &version(100))), (Node::Version(1), first));
        assert_ne!(history.number(9, &version(101)), first);
        assert_eq!(history.told(2).unwrap().version.version, 101);
        assert_eq!(history.told(3), Err(Errno::ESTALE));
    }
}
