//! Local files and directories: walks them, and restores them with their attributes.

use crate::exit::{At, Exit, Failure, Outcome, bail, failure};
use std::ffi::OsStr;
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use tempfile::NamedTempFile;
use tessera_client::Owner;
use tessera_wire::Attr;

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

impl LocalEntry {
    /// Length of a regular file in bytes; 0 for other kinds.
    pub fn len_bytes(&self) -> u64 {
        if let Kind::File(len) = self.kind { len } else { 0 }
    }

    fn new(path: PathBuf, names: Vec<Vec<u8>>, meta: &Metadata) -> io::Result<LocalEntry> {
        let kind = match meta.file_type() {
            t if t.is_file() => Kind::File(meta.len()),
            t if t.is_dir() => Kind::Directory,
            t if t.is_symlink() => Kind::Symlink(std::fs::read_link(&path)?.into_os_string().into_vec()),
            _ => Kind::Special,
        };
        let mtime_ns = meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec());
        let own = if is_root() { Owner { uid: meta.uid(), gid: meta.gid(), mode: 0 } } else { process_owner() };
        let owner = Owner { mode: meta.mode() & 0o7777, ..own };
        let sparse = meta.is_file() && super::holes::may_be_sparse(meta.len(), meta.blocks());
        Ok(LocalEntry { path, names, kind, owner, mtime_ns, sparse })
    }
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

/// The local path of names from the store, below `root`. The manager refuses names with `/` and the name `..`; this
/// function checks them again, because here such a name would do harm (P14).
///
/// # Errors
/// A name leads out of `root`.
pub fn below(root: &Path, names: &[Vec<u8>]) -> Outcome<PathBuf> {
    let mut path = root.to_path_buf();
    for name in names {
        let bad = name.is_empty() || name == b"." || name == b".." || name.iter().any(|b| matches!(b, b'/' | 0));
        if bad {
            bail!(Exit::Usage, "{:?} is no name for a local file", String::from_utf8_lossy(name));
        }
        path.push(OsStr::from_bytes(name));
    }
    Ok(path)
}

/// A file that appears under its name only when it is complete. A drop removes it.
pub struct PartialFile {
    file: NamedTempFile,
    target: PathBuf,
}

impl PartialFile {
    /// Starts writing beside `target`. If that is a symbolic link: beside the file that it points to.
    ///
    /// # Errors
    /// The name belongs to something other than a regular file, such as a device, which is not replaced.
    pub fn create(target: &Path) -> Outcome<PartialFile> {
        let target = match std::fs::symlink_metadata(target) {
            Ok(meta) if meta.is_symlink() => target.canonicalize().at(target)?,
            _ => target.to_path_buf(),
        };
        let place = target.display();
        if std::fs::metadata(&target).is_ok_and(|meta| !meta.is_file()) {
            bail!(Exit::Conflict, "{place}: is no regular file; write into it with `tessera cat TESS:/FILE > {place}`");
        }
        let name = target.file_name().ok_or_else(|| failure!(Exit::Usage, "{place} is no file name"))?;
        // A name may have the maximum length already, so the temporary name uses only part of it.
        let prefix = [b".", &name.as_bytes()[..name.len().min(200)], b"."].concat();
        let file = tempfile::Builder::new()
            .prefix(OsStr::from_bytes(&prefix))
            .suffix(".part")
            .permissions(Permissions::from_mode(0o666)) // The system applies the umask.
            .tempfile_in(target.parent().unwrap_or(Path::new("")))
            .at(&target)?;
        crate::cleanup::register_file(file.path());
        Ok(PartialFile { file, target })
    }

    /// The open file.
    pub fn file(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Its temporary path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Sets its attributes and gives it its name.
    ///
    /// # Errors
    /// The system's, with the name of the file.
    pub fn finish(self, attr: &Attr) -> Outcome {
        set_attributes(self.file.as_file(), attr).at(&self.target)?;
        self.place()
    }

    /// Gives it its name.
    ///
    /// # Errors
    /// The system's, with the name of the file.
    pub fn place(self) -> Outcome {
        let temporary = self.path().to_path_buf();
        self.file.persist(&self.target).map_err(|e| e.error).at(&self.target)?;
        crate::cleanup::unregister_file(&temporary);
        Ok(())
    }
}

/// Sets owner (if this process is root), mode and modification time. The owner comes before the mode: a change of owner
/// clears set-user-id bits.
fn set_attributes(file: &File, attr: &Attr) -> io::Result<()> {
    if is_root() {
        std::os::unix::fs::fchown(file, Some(attr.uid), Some(attr.gid))?;
    }
    file.set_permissions(Permissions::from_mode(attr.mode & 0o7777))?;
    let duration = Duration::from_nanos(attr.mtime_ns.unsigned_abs());
    file.set_modified(if attr.mtime_ns < 0 { UNIX_EPOCH - duration } else { UNIX_EPOCH + duration })
}

/// Sets mode, time and owner of a directory whose entries are complete.
///
/// # Errors
/// The system's, with the name of the directory.
pub fn finish_directory(path: &Path, attr: &Attr) -> Outcome {
    File::open(path).and_then(|directory| set_attributes(&directory, attr)).at(path)
}

/// Makes a symbolic link. Replaces a link or file of that name.
///
/// # Errors
/// The system's, with the name of the link.
pub fn make_symlink(path: &Path, target: &[u8]) -> Outcome {
    let target = OsStr::from_bytes(target);
    let made = match std::os::unix::fs::symlink(target, path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && !path.is_dir() => {
            std::fs::remove_file(path).and_then(|()| std::os::unix::fs::symlink(target, path))
        }
        made => made,
    };
    made.at(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let (file, link, gone) = (scratch.path().join("f"), scratch.path().join("l"), scratch.path().join("gone"));
        std::fs::write(&file, b"old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        std::os::unix::fs::symlink(scratch.path().join("nothing"), &gone).unwrap();
        let mut partial = PartialFile::create(&link).unwrap();
        std::io::Write::write_all(partial.file(), b"new").unwrap();
        partial.place().unwrap();
        assert_eq!((std::fs::read(&file).unwrap(), std::fs::read_link(&link).unwrap()), (b"new".to_vec(), file));
        assert!(PartialFile::create(&gone).is_err());
        for special in [Path::new("/dev/null"), scratch.path()] {
            assert_eq!(PartialFile::create(special).err().unwrap().exit, Exit::Conflict);
        }
    }

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

    /// P14: names from the store cannot lead out of the target.
    #[test]
    fn names_that_escape_are_refused() {
        for name in [&b".."[..], b".", b"", b"a/b", b"/etc", b"a\0"] {
            assert!(below(Path::new("root"), &[b"ok".to_vec(), name.to_vec()]).is_err(), "{name:?}");
        }
        assert_eq!(below(Path::new("x"), &[b"a".to_vec(), b"b".to_vec()]).unwrap(), Path::new("x/a/b"));
    }

    #[test]
    fn a_file_that_is_given_up_leaves_nothing_and_an_old_one_alone() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("f");
        std::fs::write(&target, "old").unwrap();
        drop(PartialFile::create(&target).unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read(&target).unwrap(), b"old");
        let Owner { uid, gid, .. } = process_owner();
        let attr = Attr { mode: 0o640, mtime_ns: 5_000_000_007, uid, gid, ..Attr::default() };
        PartialFile::create(&target).unwrap().finish(&attr).unwrap();
        let meta = std::fs::metadata(&target).unwrap();
        assert_eq!((meta.len(), meta.mode() & 0o7777, meta.mtime(), meta.mtime_nsec()), (0, 0o640, 5, 7));
    }
}
