//! Local files and directories: walks them with their attributes.

use super::place::{BENEATH, open_named};
use crate::exit::{At, Exit, Failure, Outcome, bail, failure};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tessera_client::Owner;

/// What a local path is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Regular file of this many bytes.
    File(u64),
    /// Directory.
    Directory,
    /// Symbolic link with this target.
    Symlink(Vec<u8>),
    /// Socket, pipe or device: not stored.
    Special,
}

/// An entry of a local tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalEntry {
    /// Path of the entry.
    pub path: PathBuf,
    /// Names from the root of the walk down to it; empty for the root itself.
    pub names: Vec<Vec<u8>>,
    /// Kind of the entry.
    pub kind: Kind,
    /// Permission bits; user and group if this process is root, else those of this process.
    pub owner: Owner,
    /// Modification time, ns since 1970.
    pub mtime_ns: i64,
    /// Whether the file may have holes.
    pub sparse: bool,
}

/// The system ends a file lease by force after 45 s.
const LEASE_PAUSE: Duration = Duration::from_millis(100);
const LEASE_TRIES: u32 = 500;

impl LocalEntry {
    /// Length of a regular file in bytes; 0 for other kinds.
    pub fn len_bytes(&self) -> u64 {
        if let Kind::File(len) = self.kind { len } else { 0 }
    }

    /// Opens a regular file for reading. What took its place since it was examined is not followed or waited for, if it is a link, also to a
    /// directory on the way from the root of the walk, or a pipe.
    ///
    /// # Errors
    /// The system's; or something else is there now.
    pub fn open(&self) -> Outcome<File> {
        let mut file = self.open_once()?;
        for _ in 0..LEASE_TRIES {
            // Another program holds a lease on it, and has been asked to give it up.
            if !matches!(file, Err(Errno::AGAIN)) {
                break;
            }
            std::thread::sleep(LEASE_PAUSE);
            file = self.open_once()?;
        }
        let path = self.path.display();
        let other =
            || failure!(Exit::Failed, "{path}: was a file when the command began and is none now; store it again");
        let file = match file {
            Err(Errno::LOOP | Errno::XDEV | Errno::NOTDIR | Errno::NXIO) => return Err(other()),
            file => File::from(file.map_err(io::Error::from).at(&self.path)?),
        };
        let meta = file.metadata().at(&self.path)?;
        if !meta.is_file() {
            return Err(other());
        }
        if owner_of(&meta) != self.owner {
            bail!(Exit::Failed, "{path}: has another owner or mode than when the command began; store it again");
        }
        Ok(file)
    }

    fn open_once(&self) -> Outcome<rustix::io::Result<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let depth = self.names.len();
        if depth == 0 {
            return Ok(rustix::fs::open(&self.path, flags, Mode::empty()));
        }
        let root = self.path.ancestors().nth(depth).unwrap_or(Path::new(""));
        let below: PathBuf = self.names.iter().map(|name| OsStr::from_bytes(name)).collect();
        let root = open_named(root).at(root)?;
        Ok(rustix::fs::openat2(&root, below, flags, Mode::empty(), BENEATH))
    }

    fn new(path: PathBuf, names: Vec<Vec<u8>>, meta: &Metadata) -> io::Result<LocalEntry> {
        let kind = match meta.file_type() {
            t if t.is_file() => Kind::File(meta.len()),
            t if t.is_dir() => Kind::Directory,
            t if t.is_symlink() => Kind::Symlink(std::fs::read_link(&path)?.into_os_string().into_vec()),
            _ => Kind::Special,
        };
        let mtime_ns = meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec());
        let owner = owner_of(meta);
        let sparse = meta.is_file() && super::holes::may_be_sparse(meta.len(), meta.blocks());
        Ok(LocalEntry { path, names, kind, owner, mtime_ns, sparse })
    }
}

/// Permission bits of an entry; its user and group if this process is root, else those of this process.
fn owner_of(meta: &Metadata) -> Owner {
    let own = if is_root() { Owner { uid: meta.uid(), gid: meta.gid(), mode: 0 } } else { process_owner() };
    Owner { mode: meta.mode() & 0o7777, ..own }
}

/// Whether owners are kept: only root may change the owner of a file.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// User and group of this process, without permission bits.
pub fn process_owner() -> Owner {
    Owner { mode: 0, uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

/// The entry at `path`. A symbolic link is followed.
///
/// # Errors
/// Nothing is there, or it cannot be examined.
pub fn look(path: &Path) -> Outcome<LocalEntry> {
    let meta = std::fs::metadata(path).at(path)?;
    LocalEntry::new(path.to_path_buf(), Vec::new(), &meta).at(path)
}

/// Everything below `root`, parents before children, in byte order of names; and failures of entries that cannot be
/// examined. `root` itself is followed if it is a symbolic link; links below it are kept as links.
///
/// # Errors
/// `root` cannot be examined.
pub fn walk(root: &Path) -> Outcome<(Vec<LocalEntry>, Vec<Failure>)> {
    let (mut found, mut failures, mut todo) = (Vec::new(), Vec::new(), vec![look(root)?]);
    while let Some(next) = todo.pop() {
        if next.kind == Kind::Directory {
            for child in children(&next) {
                match child {
                    Ok(child) => todo.push(child),
                    Err(failure) => failures.push(failure),
                }
            }
        }
        found.push(next);
    }
    Ok((found, failures))
}

/// The entries of a directory, the last name first.
fn children(parent: &LocalEntry) -> Vec<Outcome<LocalEntry>> {
    let entries = std::fs::read_dir(&parent.path);
    let names = entries.and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>());
    match names.at(&parent.path) {
        Ok(mut names) => {
            names.sort();
            names.iter().rev().map(|name| child(parent, name)).collect()
        }
        Err(failure) => vec![Err(failure)],
    }
}

fn child(parent: &LocalEntry, name: &OsStr) -> Outcome<LocalEntry> {
    let path = parent.path.join(name);
    let names = [&parent.names[..], &[name.as_bytes().to_vec()]].concat();
    let meta = std::fs::symlink_metadata(&path).at(&path)?;
    LocalEntry::new(path.clone(), names, &meta).at(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_goes_parents_first_and_keeps_links() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("b")).unwrap();
        std::fs::write(dir.path().join("b/file"), "12345").unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("a")).unwrap();
        let (found, failures) = walk(dir.path()).unwrap();
        assert!(failures.is_empty());
        let seen: Vec<_> = found.iter().map(|f| (f.names.join(&b'/'), f.kind.clone())).collect();
        assert_eq!(
            seen,
            [
                (b"".to_vec(), Kind::Directory),
                (b"a".to_vec(), Kind::Symlink(b"nowhere".to_vec())),
                (b"b".to_vec(), Kind::Directory),
                (b"b/file".to_vec(), Kind::File(5)),
            ]
        );
    }

    /// What takes a file's place after the walk is not read: a link may lead anywhere, and a pipe waits for ever.
    #[test]
    fn only_what_is_still_a_file_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (root, secret) = (dir.path().join("root"), dir.path().join("secret"));
        std::fs::create_dir_all(root.join("d")).unwrap();
        std::fs::create_dir(&secret).unwrap();
        for path in [root.join("d/f"), root.join("g"), secret.join("f")] {
            std::fs::write(path, "text").unwrap();
        }
        let (found, _) = walk(&root).unwrap();
        let entry = |name: &str| found.iter().find(|e| e.path == root.join(name)).unwrap();
        assert!(entry("d/f").open().is_ok() && entry("g").open().is_ok());
        std::fs::rename(root.join("d"), root.join("old")).unwrap();
        std::os::unix::fs::symlink(&secret, root.join("d")).unwrap();
        let place = |make: &dyn Fn(&Path)| {
            std::fs::remove_file(root.join("g")).unwrap();
            make(&root.join("g"));
        };
        assert_eq!(entry("d/f").open().unwrap_err().exit, Exit::Failed);
        place(&|path| std::os::unix::fs::symlink(secret.join("f"), path).unwrap());
        assert_eq!(entry("g").open().unwrap_err().exit, Exit::Failed);
        place(&|path| rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap());
        assert_eq!(entry("g").open().unwrap_err().exit, Exit::Failed);
        place(&|path| std::fs::write(path, "another").unwrap());
        assert!(entry("g").open().is_ok());
        std::fs::set_permissions(root.join("g"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(
            entry("g").open().unwrap_err().exit,
            Exit::Failed,
            "what it is now is not for the readers of before"
        );
        // What the user names may be a link.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(secret.join("f"), &link).unwrap();
        assert!(look(&link).unwrap().open().is_ok());
    }
}
