//! Synthetic inodes: `.tessera/versions/` mirrors the store's directories, and shows each file as a directory of its
//! versions.
//!
//! Their numbers have the highest bit set, which no inode of the store has. The number of a directory or of a file's
//! version list contains the number of the real inode. Versions are numbered as they are shown, and keep their number
//! until the mount ends.

use std::collections::HashMap;
use tessera_wire::meta::VersionInfo;
use tessera_wire::{Attr, InodeKind};

/// Name of the synthetic root, in the mount's root.
pub const ROOT_NAME: &[u8] = b".tessera";
/// Name of the tree of versions, in the synthetic root.
pub const VERSIONS_NAME: &[u8] = b"versions";
/// Inode of the synthetic root.
pub const ROOT_INO: u64 = SYNTHETIC;

/// Inode of the store's root.
pub const STORE_ROOT: u64 = 1;
const SYNTHETIC: u64 = 1 << 63;
/// With [`SYNTHETIC`]: the mirror of the directory whose number the lower bits hold.
const DIRECTORY: u64 = 1 << 62;
/// With [`SYNTHETIC`]: the versions of the file whose number the lower bits hold.
const FILE: u64 = 1 << 61;
/// With [`SYNTHETIC`] alone: a version, counted from 1; 0 is the synthetic root.
const NUMBER: u64 = FILE - 1;

const _: () = assert!(SYNTHETIC & DIRECTORY & FILE == 0 && NUMBER & (SYNTHETIC | DIRECTORY | FILE) == 0);

/// What a synthetic inode stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyntheticInode {
    /// `.tessera`.
    Root,
    /// The mirror of a directory of the store.
    Directory(u64),
    /// The versions of a file of the store.
    File(u64),
    /// A version, by its count.
    Version(u64),
}

impl SyntheticInode {
    /// What inode `ino` stands for; none: it is an inode of the store.
    pub fn of(ino: u64) -> Option<SyntheticInode> {
        if ino & SYNTHETIC == 0 {
            return None;
        }
        Some(match (ino & DIRECTORY != 0, ino & FILE != 0, ino & NUMBER) {
            (true, _, real) => SyntheticInode::Directory(real),
            (_, true, real) => SyntheticInode::File(real),
            (_, _, 0) => SyntheticInode::Root,
            (_, _, count) => SyntheticInode::Version(count),
        })
    }

    /// Inode of the root of the tree of versions.
    pub fn versions_root() -> u64 {
        SYNTHETIC | DIRECTORY | STORE_ROOT
    }

    /// The synthetic directory for an inode of the store; only directories and files have one.
    pub fn mirror(real: u64, kind: InodeKind) -> Option<u64> {
        match kind {
            _ if real & !NUMBER != 0 => None,
            InodeKind::Directory => Some(SYNTHETIC | DIRECTORY | real),
            InodeKind::File => Some(SYNTHETIC | FILE | real),
            _ => None,
        }
    }
}

/// Attributes of synthetic inode `ino`, derived from those of the inode behind it. `version`: the version that `ino`
/// shows.
pub fn attr(ino: u64, of: &Attr, version: Option<&VersionInfo>) -> Attr {
    let of = of.clone();
    match (version, SyntheticInode::of(ino)) {
        (Some(version), _) => {
            let (size_bytes, mtime_ns) = (version.size_bytes, version.committed_ns);
            let (ctime_ns, atime_ns) = (mtime_ns, mtime_ns);
            Attr { ino, mode: of.mode & 0o444, nlink: 1, size_bytes, mtime_ns, ctime_ns, atime_ns, ..of }
        }
        // A user that may read the file may list its versions.
        (None, Some(SyntheticInode::File(_))) => {
            let (kind, read) = (InodeKind::Directory as i32, of.mode & 0o444);
            Attr { ino, kind, mode: read | read >> 2, nlink: 2, size_bytes: 0, ..of }
        }
        _ => Attr { ino, mode: of.mode & 0o555, ..of },
    }
}

/// The numbers of versions.
#[derive(Debug, Default)]
pub struct VersionNumbers {
    /// File and version.
    shown: Vec<(u64, VersionInfo)>,
    by_version: HashMap<u64, u64>,
}

impl VersionNumbers {
    /// The inode of a version; always the same number.
    pub fn number(&mut self, file: u64, version: &VersionInfo) -> u64 {
        let next = self.shown.len() as u64 + 1;
        let count = *self.by_version.entry(version.version).or_insert(next);
        if count == next {
            self.shown.push((file, *version));
        }
        SYNTHETIC | count
    }

    /// The file and the version of this number; none: this mount did not show it.
    pub fn get(&self, count: u64) -> Option<(u64, VersionInfo)> {
        self.shown.get(usize::try_from(count).ok()?.checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_say_what_they_stand_for_and_versions_keep_theirs() {
        assert_eq!(SyntheticInode::of(ROOT_INO), Some(SyntheticInode::Root));
        for real in [1, 77, 1 << 48] {
            let mirror = |kind| SyntheticInode::of(SyntheticInode::mirror(real, kind).unwrap());
            assert_eq!(mirror(InodeKind::Directory), Some(SyntheticInode::Directory(real)));
            assert_eq!(mirror(InodeKind::File), Some(SyntheticInode::File(real)));
            assert_eq!(SyntheticInode::of(real), None);
        }
        assert_eq!(SyntheticInode::mirror(5, InodeKind::Symlink), None);
        assert_eq!(SyntheticInode::mirror(NUMBER + 1, InodeKind::File), None);
        let mut numbers = VersionNumbers::default();
        let version = |version| VersionInfo { version, number: 3, ..Default::default() };
        let first = numbers.number(9, &version(100));
        assert_eq!(SyntheticInode::of(first), Some(SyntheticInode::Version(1)));
        assert_eq!(numbers.number(9, &version(100)), first);
        assert_ne!(numbers.number(9, &version(101)), first);
        assert_eq!(numbers.get(2).unwrap().1.version, 101);
        assert_eq!((numbers.get(3), numbers.get(0)), (None, None));
    }
}
