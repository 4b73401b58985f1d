//! Rows of `inodes`, `dentries` and `xattrs`: reading and writing them, no rules.

use crate::db::Db;
use crate::db::sql::{TableRow, args, row};
use crate::error::{Failure, Result, corrupt_row, refuse};
use crate::namespace::hints::HintSet;
use rusqlite::params_from_iter;
use std::sync::LazyLock;
use tessera_wire::meta::Entry;
use tessera_wire::{Attr, Code, InodeKind};

/// The root directory.
pub const ROOT: u64 = 1;
/// Longest name of a directory entry, bytes.
pub const MAX_NAME_BYTES: usize = 255;

row! {
    /// A row of `inodes`.
    #[derive(Debug, Clone, PartialEq, Default)]
    pub struct Inode {
        pub ino: u64,
        /// A [`InodeKind`].
        pub kind: i32,
        /// Permission bits.
        pub mode: u32,
        pub uid: u32,
        pub gid: u32,
        pub nlink: u32,
        /// Directories: their parent.
        pub parent: u64,
        /// Files: domain.
        pub domain: u32,
        /// Length of the current version.
        pub size_bytes: u64,
        pub mtime_ns: i64,
        pub ctime_ns: i64,
        /// Access time as last set; 0: never set.
        pub atime_ns: i64,
        /// Devices: the device number.
        pub rdev: u32,
        /// Current version id.
        pub version_id: u64,
        pub version_number: u64,
        /// Identifies the bytes.
        pub content: u64 as Bits,
        pub symlink_target: Option<Vec<u8>>,
        /// Encoded [`HintSet`].
        pub hints: Vec<u8>,
    }
}

impl Inode {
    /// Checks the invariants of an inode before it is written.
    fn assert_consistent(&self) {
        let ino = self.ino;
        assert!(self.kind != InodeKind::Unknown as i32, "inode {ino}: is of no kind");
        assert_eq!(self.version_id == 0, self.version_number == 0, "inode {ino}: a version has an id and a number");
        assert!(self.version_id == 0 || self.is_file(), "inode {ino}: only files have versions");
        assert!(self.symlink_target.is_none() || self.kind == InodeKind::Symlink as i32, "inode {ino}: has a target");
        assert!(!self.is_directory() || self.parent != 0, "inode {ino}: a directory has a parent");
    }

    /// Whether this is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == InodeKind::Directory as i32
    }

    /// Whether this is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == InodeKind::File as i32
    }

    /// The attributes as sent on the wire.
    pub fn attr(&self) -> Attr {
        Attr {
            ino: self.ino,
            kind: self.kind,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            size_bytes: match &self.symlink_target {
                Some(target) => target.len() as u64,
                None => self.size_bytes,
            },
            mtime_ns: self.mtime_ns,
            ctime_ns: self.ctime_ns,
            version: self.version_id,
            version_number: self.version_number,
            symlink_target: self.symlink_target.clone().unwrap_or_default(),
            atime_ns: if self.atime_ns == 0 { self.mtime_ns } else { self.atime_ns },
            rdev: self.rdev,
            content: self.content,
        }
    }

    /// The reply to a lookup, without a lease.
    pub fn entry(&self) -> Entry {
        Entry { attr: Some(self.attr()), hints: HintSet::read(&self.hints).hints, ..Entry::default() }
    }

    /// Writes a new row.
    pub fn insert(&self, db: &Db) -> rusqlite::Result<()> {
        assert!(self.ino > ROOT, "inode {}: the root is made with the database", self.ino);
        assert!(self.nlink >= 1, "inode {}: a new inode has a name", self.ino);
        self.assert_consistent();
        self.add(db, "INSERT INTO inodes")
    }

    /// Writes the row back.
    ///
    /// # Errors
    /// SQLite fails.
    pub fn update(&self, db: &Db) -> rusqlite::Result<()> {
        static UPDATE: LazyLock<String> = LazyLock::new(|| <Inode as TableRow>::update("UPDATE inodes", 1));
        assert!(self.ino >= ROOT, "inodes count from 1");
        self.assert_consistent();
        db.exec(&UPDATE, params_from_iter(self.values()))
    }
}

/// The inode `ino`, if it exists.
pub fn find(db: &Db, ino: u64) -> rusqlite::Result<Option<Inode>> {
    static SELECT: LazyLock<String> = LazyLock::new(|| Inode::select("FROM inodes WHERE ino = ?1"));
    db.first(&SELECT, args![ino])
}

/// The inode `ino`.
///
/// # Errors
/// `NotFound` if it does not exist.
pub fn get(db: &Db, ino: u64) -> Result<Inode> {
    let text = || format!("there is no inode {ino}; it may have been removed meanwhile");
    find(db, ino)?.ok_or_else(|| Failure::refused(Code::NotFound, text()))
}

/// The inode that `name` in `parent` refers to, if the name exists.
///
/// # Errors
/// As [`get`].
pub fn named(db: &Db, parent: u64, name: &[u8]) -> Result<Option<Inode>> {
    lookup(db, parent, name)?.map(|ino| get(db, ino)).transpose()
}

/// Maps 0, which stands for the root in requests, to the root.
pub fn root_if_none(ino: u64) -> u64 {
    if ino == 0 { ROOT } else { ino }
}

/// The directory `ino`; 0 stands for the root.
///
/// # Errors
/// `NotFound` if it does not exist; `NotDirectory` if it is not a directory.
pub fn directory(db: &Db, ino: u64) -> Result<Inode> {
    let inode = get(db, root_if_none(ino))?;
    match inode.is_directory() {
        true => Ok(inode),
        false => refuse(Code::NotDirectory, format!("inode {ino} is not a directory")),
    }
}

/// The inode number of `name` in `parent`.
pub fn lookup(db: &Db, parent: u64, name: &[u8]) -> rusqlite::Result<Option<u64>> {
    db.first("SELECT ino FROM dentries WHERE parent = ?1 AND name = ?2", args![parent, name])
}

/// Adds a name.
pub fn add_name(db: &Db, parent: u64, name: &[u8], ino: u64) -> rusqlite::Result<()> {
    assert!((1..=MAX_NAME_BYTES).contains(&name.len()), "a name of {} bytes; it was checked", name.len());
    assert!(ino > ROOT && parent >= ROOT, "name of inode {ino} in {parent}");
    db.exec("INSERT INTO dentries (parent, name, ino) VALUES (?1, ?2, ?3)", args![parent, name, ino])
}

/// Removes a name.
pub fn remove_name(db: &Db, parent: u64, name: &[u8]) -> rusqlite::Result<()> {
    let removed = db.run("DELETE FROM dentries WHERE parent = ?1 AND name = ?2", args![parent, name])?;
    assert_eq!(removed, 1, "directory {parent}: a name is removed after it was looked up");
    Ok(())
}

/// Records that a directory's entries changed.
pub fn touch(db: &Db, directory: u64, now_ns: i64) -> rusqlite::Result<()> {
    db.exec("UPDATE inodes SET mtime_ns = ?2, ctime_ns = ?2 WHERE ino = ?1", args![directory, now_ns])
}

/// Links of a directory without subdirectories: its name and its `.`; each subdirectory's `..` is one more.
pub const EMPTY_DIRECTORY_LINKS: u32 = 2;

/// Adjusts a directory's links by the subdirectories it gained or lost.
pub fn count_subdirectories(db: &Db, directory: u64, by: i64) -> rusqlite::Result<()> {
    assert!(matches!(by, 1 | -1), "directory {directory}: {by} subdirectories at once");
    let sql = "UPDATE inodes SET nlink = nlink + ?2 WHERE ino = ?1 AND nlink + ?2 >= 2";
    match db.run(sql, args![directory, by])? {
        1 => Ok(()),
        _ => Err(corrupt_row(format!("inodes, row {directory}"), "its count of links cannot include a subdirectory")),
    }
}

/// Removes an inode's row and its attributes.
pub fn remove(db: &Db, ino: u64) -> rusqlite::Result<()> {
    assert!(ino > ROOT, "the root stays");
    db.run("DELETE FROM xattrs WHERE ino = ?1", args![ino])?;
    db.exec("DELETE FROM inodes WHERE ino = ?1", args![ino])
}

/// Sets an extended attribute.
pub fn set_xattr(db: &Db, ino: u64, name: &str, value: &[u8]) -> rusqlite::Result<()> {
    db.exec("INSERT OR REPLACE INTO xattrs (ino, name, value) VALUES (?1, ?2, ?3)", args![ino, name, value])
}

/// Removes an extended attribute; returns false if it was not set.
pub fn remove_xattr(db: &Db, ino: u64, name: &str) -> rusqlite::Result<bool> {
    Ok(db.run("DELETE FROM xattrs WHERE ino = ?1 AND name = ?2", args![ino, name])? > 0)
}

/// Sets the root's times from the first log entry.
pub fn date_root(db: &Db, now_ns: i64) -> rusqlite::Result<()> {
    db.exec("UPDATE inodes SET mtime_ns = ?1, ctime_ns = ?1 WHERE ino = ?2 AND ctime_ns = 0", args![now_ns, ROOT])
}

/// Rejects a name that no directory entry can have (P14).
///
/// # Errors
/// `NameTooLong`; `Invalid` if the name is empty, reserved, or contains a slash or NUL.
pub fn check_name(name: &[u8]) -> Result<()> {
    let shown = String::from_utf8_lossy(&name[..name.len().min(64)]).into_owned();
    if name.len() > MAX_NAME_BYTES {
        let text = format!("name {shown:?}… has {} bytes, at most {MAX_NAME_BYTES} are possible", name.len());
        return refuse(Code::NameTooLong, text);
    }
    let why = match name {
        b"" => "is empty",
        b"." | b".." => "is reserved; resolve paths before asking",
        _ if name.contains(&b'/') => "contains a slash; names are single path components",
        _ if name.contains(&0) => "contains a NUL byte",
        _ => return Ok(()),
    };
    refuse(Code::Invalid, format!("name {shown:?} {why}"))
}
