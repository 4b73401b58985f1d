//! Rows of `inodes`, `dentries` and `xattrs`: reading and writing them, no rules.

use crate::db::Db;
use crate::error::{Result, corrupt_row, refuse};
use crate::namespace::hints::HintSet;
use rusqlite::{OptionalExtension, params};
use tessera_wire::meta::Entry;
use tessera_wire::{Attr, Code, InodeKind};

/// The root directory.
pub const ROOT: u64 = 1;
/// Longest name of a directory entry, bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// A row of `inodes`.
#[derive(Debug, Clone, PartialEq)]
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
    pub content: u64,
    pub symlink_target: Option<Vec<u8>>,
    /// Encoded [`HintSet`].
    pub hints: Vec<u8>,
}

const SELECT: &str = "SELECT i.ino, i.kind, i.mode, i.uid, i.gid, i.nlink, i.parent, i.domain, i.size_bytes, i.mtime_ns, \
                      i.ctime_ns, i.version_id, i.version_number, i.symlink_target, i.hints, i.atime_ns, i.rdev, i.content FROM inodes i WHERE i.ino = ?1";

impl Inode {
    /// Reads the columns of a row, in the order of `SELECT`, from position `at` on.
    pub fn read(row: &rusqlite::Row, at: usize) -> rusqlite::Result<Inode> {
        let number = |i: usize| row.get::<_, i64>(at + i).map(|n| n as u64);
        Ok(Inode {
            ino: number(0)?,
            kind: row.get(at + 1)?,
            mode: row.get(at + 2)?,
            uid: row.get(at + 3)?,
            gid: row.get(at + 4)?,
            nlink: row.get(at + 5)?,
            parent: number(6)?,
            domain: row.get(at + 7)?,
            size_bytes: number(8)?,
            mtime_ns: row.get(at + 9)?,
            ctime_ns: row.get(at + 10)?,
            version_id: number(11)?,
            version_number: number(12)?,
            symlink_target: row.get(at + 13)?,
            hints: row.get(at + 14)?,
            atime_ns: row.get(at + 15)?,
            rdev: row.get(at + 16)?,
            content: number(17)?,
        })
    }

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
        db.stmt(
            "INSERT INTO inodes (ino, kind, mode, uid, gid, nlink, parent, domain, size_bytes, mtime_ns, ctime_ns,
                                 version_id, version_number, symlink_target, hints, atime_ns, rdev, content)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)",
        )?
        .execute(params![
            self.ino as i64,
            self.kind,
            self.mode,
            self.uid,
            self.gid,
            self.nlink,
            self.parent as i64,
            self.domain,
            self.size_bytes as i64,
            self.mtime_ns,
            self.ctime_ns,
            self.version_id as i64,
            self.version_number as i64,
            self.symlink_target,
            self.hints,
            self.atime_ns,
            self.rdev,
            self.content as i64
        ])?;
        Ok(())
    }

    /// Writes the mutable columns of the row.
    pub fn update(&self, db: &Db) -> rusqlite::Result<()> {
        assert!(self.ino >= ROOT, "inodes count from 1");
        self.assert_consistent();
        db.stmt(
            "UPDATE inodes SET mode = ?2, uid = ?3, gid = ?4, nlink = ?5, parent = ?6, size_bytes = ?7, mtime_ns = ?8,
                               ctime_ns = ?9, version_id = ?10, version_number = ?11, hints = ?12, atime_ns = ?13, content = ?14
             WHERE ino = ?1",
        )?
        .execute(params![
            self.ino as i64,
            self.mode,
            self.uid,
            self.gid,
            self.nlink,
            self.parent as i64,
            self.size_bytes as i64,
            self.mtime_ns,
            self.ctime_ns,
            self.version_id as i64,
            self.version_number as i64,
            self.hints,
            self.atime_ns,
            self.content as i64
        ])?;
        Ok(())
    }
}

/// The inode `ino`, if it exists.
pub fn find(db: &Db, ino: u64) -> rusqlite::Result<Option<Inode>> {
    db.stmt(SELECT)?.query_row([ino as i64], |row| Inode::read(row, 0)).optional()
}

/// The inode `ino`.
///
/// # Errors
/// `NotFound` if it does not exist.
pub fn get(db: &Db, ino: u64) -> Result<Inode> {
    match find(db, ino)? {
        Some(inode) => Ok(inode),
        None => refuse(Code::NotFound, format!("there is no inode {ino}; it may have been removed meanwhile")),
    }
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
    db.stmt("SELECT ino FROM dentries WHERE parent = ?1 AND name = ?2")?
        .query_row(params![parent as i64, name], |row| row.get::<_, i64>(0))
        .optional()
        .map(|ino| ino.map(|ino| ino as u64))
}

/// Adds a name.
pub fn add_name(db: &Db, parent: u64, name: &[u8], ino: u64) -> rusqlite::Result<()> {
    assert!((1..=MAX_NAME_BYTES).contains(&name.len()), "a name of {} bytes; it was checked", name.len());
    assert!(ino > ROOT && parent >= ROOT, "name of inode {ino} in {parent}");
    db.stmt("INSERT INTO dentries (parent, name, ino) VALUES (?1, ?2, ?3)")?.execute(params![
        parent as i64,
        name,
        ino as i64
    ])?;
    Ok(())
}

/// Removes a name.
pub fn remove_name(db: &Db, parent: u64, name: &[u8]) -> rusqlite::Result<()> {
    let sql = "DELETE FROM dentries WHERE parent = ?1 AND name = ?2";
    let removed = db.stmt(sql)?.execute(params![parent as i64, name])?;
    assert_eq!(removed, 1, "directory {parent}: a name is removed after it was looked up");
    Ok(())
}

/// Records that a directory's entries changed.
pub fn touch(db: &Db, directory: u64, now_ns: i64) -> rusqlite::Result<()> {
    db.stmt("UPDATE inodes SET mtime_ns = ?2, ctime_ns = ?2 WHERE ino = ?1")?.execute([directory as i64, now_ns])?;
    Ok(())
}

/// Links of a directory without subdirectories: its name and its `.`; each subdirectory's `..` is one more.
pub const EMPTY_DIRECTORY_LINKS: u32 = 2;

/// Adjusts a directory's links by the subdirectories it gained or lost.
pub fn count_subdirectories(db: &Db, directory: u64, by: i64) -> rusqlite::Result<()> {
    assert!(matches!(by, 1 | -1), "directory {directory}: {by} subdirectories at once");
    let sql = "UPDATE inodes SET nlink = nlink + ?2 WHERE ino = ?1 AND nlink + ?2 >= 2";
    match db.stmt(sql)?.execute([directory as i64, by])? {
        1 => Ok(()),
        _ => Err(corrupt_row(format!("inodes, row {directory}"), "its count of links has no room for a subdirectory")),
    }
}

/// Removes an inode's row and its attributes.
pub fn remove(db: &Db, ino: u64) -> rusqlite::Result<()> {
    assert!(ino > ROOT, "the root stays");
    db.stmt("DELETE FROM xattrs WHERE ino = ?1")?.execute([ino as i64])?;
    db.stmt("DELETE FROM inodes WHERE ino = ?1")?.execute([ino as i64])?;
    Ok(())
}

/// Sets an extended attribute.
pub fn set_xattr(db: &Db, ino: u64, name: &str, value: &[u8]) -> rusqlite::Result<()> {
    db.stmt("INSERT OR REPLACE INTO xattrs (ino, name, value) VALUES (?1, ?2, ?3)")?
        .execute(params![ino as i64, name, value])?;
    Ok(())
}

/// Removes an extended attribute; returns false if it was not set.
pub fn remove_xattr(db: &Db, ino: u64, name: &str) -> rusqlite::Result<bool> {
    let removed = db.stmt("DELETE FROM xattrs WHERE ino = ?1 AND name = ?2")?.execute(params![ino as i64, name])?;
    Ok(removed > 0)
}

/// Sets the root's times from the first log entry.
pub fn date_root(db: &Db, now_ns: i64) -> rusqlite::Result<()> {
    db.stmt("UPDATE inodes SET mtime_ns = ?1, ctime_ns = ?1 WHERE ino = ?2 AND ctime_ns = 0")?
        .execute([now_ns, ROOT as i64])?;
    Ok(())
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
