//! Where fetched entries go. What the user named is used as named; below it no link is followed, because every name there
//! comes from the store (P14).

use super::local::is_root;
use super::stale;
use crate::cleanup;
use crate::exit::{At, Exit, Outcome, bail, failure};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tessera_wire::Attr;

/// How a directory is opened whose entries are made.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// How a name is resolved that the user did not give.
pub(super) const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);
/// Permission bits that make a program run as its owner.
const SET_ID: u32 = 0o6000;

/// A path that the user named, and names from the store below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    base: PathBuf,
    names: PathBuf,
}

impl Target {
    /// `names` below `base`. The manager refuses names with `/` and the name `..`; this function checks them again,
    /// because here such a name would do harm (P14).
    ///
    /// # Errors
    /// A name is no name of a local file.
    pub fn new(base: &Path, names: &[Vec<u8>]) -> Outcome<Target> {
        Target { base: base.to_path_buf(), names: PathBuf::new() }.below(names)
    }

    /// `names` below this target.
    ///
    /// # Errors
    /// As [`Target::new`].
    pub fn below(&self, names: &[Vec<u8>]) -> Outcome<Target> {
        let mut target = self.clone();
        for name in names {
            let bad = name.is_empty() || name == b"." || name == b".." || name.iter().any(|b| matches!(b, b'/' | 0));
            if bad {
                bail!(Exit::Usage, "{:?} is no name for a local file", String::from_utf8_lossy(name));
            }
            target.names.push(OsStr::from_bytes(name));
        }
        Ok(target)
    }

    /// The whole path.
    pub fn path(&self) -> PathBuf {
        match self.names.as_os_str().is_empty() {
            true => self.base.clone(),
            false => self.base.join(&self.names),
        }
    }

    /// The directory that the last name is in, open, and that name.
    ///
    /// # Errors
    /// The directory does not exist, or a link is on the way to it.
    pub fn place(&self) -> Outcome<Place> {
        if self.names.as_os_str().is_empty() {
            return Place::named(&self.base);
        }
        let path = self.path();
        let base = open_named(&self.base).at(&self.base)?;
        let directory = match self.names.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => {
                rustix::fs::openat2(&base, parent, DIRECTORY, Mode::empty(), BENEATH)
                    .map_err(|e| through_link(e, &path))?
            }
            _ => base,
        };
        let name = self.names.file_name().unwrap_or_default().to_os_string();
        Ok(Place { directory: Arc::new(directory), name, path })
    }

    /// Makes the directory, or uses the existing one. A link of that name is not followed.
    ///
    /// # Errors
    /// The system's, or something other than a directory has the name.
    pub fn make_directory(&self) -> Outcome {
        let Place { directory, name, path } = self.place()?;
        match rustix::fs::mkdirat(&directory, &name, Mode::from_raw_mode(0o700)) {
            Err(rustix::io::Errno::EXIST) => match kind(&directory, &name).at(&path)? {
                FileType::Directory => Ok(()),
                _ => bail!(
                    Exit::Conflict,
                    "{}: a directory must go here and a file is in its place; move it away",
                    path.display()
                ),
            },
            made => made.map_err(io::Error::from).at(&path),
        }
    }

    /// Sets the attributes of a directory whose entries are complete.
    ///
    /// # Errors
    /// The system's, with the name of the directory.
    pub fn finish_directory(&self, attr: &Attr, set_id: bool) -> Outcome {
        let Place { directory, name, path } = self.place()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&directory, &name, flags, Mode::empty()).map_err(io::Error::from);
        opened.and_then(|directory| set_attributes(&File::from(directory), attr, set_id)).at(&path)
    }

    /// Makes a symbolic link. Replaces a link or file of that name.
    ///
    /// # Errors
    /// The system's, with the name of the link.
    pub fn make_symlink(&self, target: &[u8]) -> Outcome {
        let Place { directory, name, path } = self.place()?;
        let make = || rustix::fs::symlinkat(OsStr::from_bytes(target), &directory, &name);
        let made = match make() {
            Err(rustix::io::Errno::EXIST) if kind(&directory, &name).is_ok_and(|kind| kind != FileType::Directory) => {
                rustix::fs::unlinkat(&directory, &name, AtFlags::empty()).and_then(|()| make())
            }
            made => made,
        };
        made.map_err(io::Error::from).at(&path)
    }
}

/// Opens a directory that the user named; links are followed.
pub(super) fn open_named(path: &Path) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    Ok(rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty())?)
}

/// The kind of an entry. A link is not followed.
fn kind(directory: &OwnedFd, name: &OsStr) -> io::Result<FileType> {
    let meta = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(meta.st_mode))
}

/// The failure of a look-up below a target.
fn through_link(error: rustix::io::Errno, path: &Path) -> crate::exit::Failure {
    match error {
        rustix::io::Errno::LOOP | rustix::io::Errno::XDEV | rustix::io::Errno::NOTDIR => failure!(
            Exit::Conflict,
            "{}: a directory on the way to it is a link or a file here; move that away",
            path.display()
        ),
        error => crate::exit::Failure::io(path, &error.into()),
    }
}

/// An entry of an open directory.
pub struct Place {
    directory: Arc<OwnedFd>,
    name: OsString,
    /// The path, for messages.
    path: PathBuf,
}

impl Place {
    /// The entry at a path that the user named: links are followed, except the last name.
    fn named(path: &Path) -> Outcome<Place> {
        let name = path.file_name().ok_or_else(|| failure!(Exit::Usage, "{} is no file name", path.display()))?;
        let directory = open_named(path.parent().unwrap_or(Path::new(""))).at(path)?;
        Ok(Place { directory: Arc::new(directory), name: name.to_os_string(), path: path.to_path_buf() })
    }
}

/// A file that appears under its name only when it is complete. A drop removes it.
pub struct PartialFile {
    file: File,
    temporary: cleanup::Temporary,
    place: Place,
}

impl PartialFile {
    /// Starts writing beside the path that the user named. If that is a symbolic link: beside the file that it points to.
    ///
    /// # Errors
    /// The name belongs to something other than a regular file, such as a device, which is not replaced.
    pub fn create(path: &Path) -> Outcome<PartialFile> {
        let path = match std::fs::symlink_metadata(path) {
            Ok(meta) if meta.is_symlink() => path.canonicalize().at(path)?,
            _ => path.to_path_buf(),
        };
        let place = path.display();
        if std::fs::metadata(&path).is_ok_and(|meta| !meta.is_file()) {
            bail!(Exit::Conflict, "{place}: is no regular file; write into it with `tessera cat TESS:/FILE > {place}`");
        }
        PartialFile::beside(Place::named(&path)?)
    }

    /// Starts writing beside `target`. A link below what the user named is replaced, never followed.
    ///
    /// # Errors
    /// As [`PartialFile::create`].
    pub fn create_at(target: &Target) -> Outcome<PartialFile> {
        if target.names.as_os_str().is_empty() {
            return PartialFile::create(&target.base);
        }
        let place = target.place()?;
        match kind(&place.directory, &place.name) {
            Ok(FileType::RegularFile | FileType::Symlink) => {}
            Ok(_) => bail!(Exit::Conflict, "{}: is no regular file; move it away", place.path.display()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).at(&place.path),
        }
        PartialFile::beside(place)
    }

    fn beside(place: Place) -> Outcome<PartialFile> {
        stale::sweep(&place.directory);
        loop {
            let name = stale::temporary_name(&place.name);
            let (file, temporary) = cleanup::create(&place.directory, &name).at(&place.path)?;
            if stale::lock(&file).at(&place.path)? {
                return Ok(PartialFile { file, temporary, place });
            }
        }
    }

    /// The open file.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Its temporary path.
    pub fn path(&self) -> PathBuf {
        self.place.path.with_file_name(self.temporary.name())
    }

    /// Sets its attributes and gives it its name. Set-user-id and set-group-id bits count only with `set_id`.
    ///
    /// # Errors
    /// The system's, with the name of the file.
    pub fn finish(self, attr: &Attr, set_id: bool) -> Outcome {
        set_attributes(&self.file, attr, set_id).at(&self.place.path)?;
        self.place()
    }

    /// Gives it its name.
    ///
    /// # Errors
    /// The system's, with the name of the file.
    pub fn place(self) -> Outcome {
        self.temporary.rename(&self.place.name).at(&self.place.path)
    }
}

/// Sets owner (if this process is root), mode and modification time. The owner comes before the mode: a change of owner
/// clears set-user-id bits.
fn set_attributes(file: &File, attr: &Attr, set_id: bool) -> io::Result<()> {
    if is_root() {
        std::os::unix::fs::fchown(file, Some(attr.uid), Some(attr.gid))?;
    }
    let mode = attr.mode & if set_id { 0o7777 } else { 0o7777 & !SET_ID };
    file.set_permissions(Permissions::from_mode(mode))?;
    let duration = Duration::from_nanos(attr.mtime_ns.unsigned_abs());
    file.set_modified(if attr.mtime_ns < 0 { UNIX_EPOCH - duration } else { UNIX_EPOCH + duration })
}

#[cfg(test)]
mod tests {
    use super::super::local::process_owner;
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{MetadataExt, symlink};
    use tessera_client::Owner;

    fn target(base: &Path, names: &str) -> Target {
        let names: Vec<Vec<u8>> = names.split('/').map(|name| name.as_bytes().to_vec()).collect();
        Target::new(base, &names).unwrap()
    }

    fn write(mut partial: PartialFile, bytes: &[u8]) {
        partial.file().write_all(bytes).unwrap();
        partial.place().unwrap();
    }

    #[test]
    fn only_regular_files_are_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let (file, link, gone) = (scratch.path().join("f"), scratch.path().join("l"), scratch.path().join("gone"));
        std::fs::write(&file, b"old").unwrap();
        symlink(&file, &link).unwrap();
        symlink(scratch.path().join("nothing"), &gone).unwrap();
        write(PartialFile::create(&link).unwrap(), b"new");
        assert_eq!((std::fs::read(&file).unwrap(), std::fs::read_link(&link).unwrap()), (b"new".to_vec(), file));
        assert!(PartialFile::create(&gone).is_err());
        for special in [Path::new("/dev/null"), scratch.path()] {
            assert_eq!(PartialFile::create(special).err().unwrap().exit, Exit::Conflict);
        }
    }

    /// P14: links that an earlier fetch left below the target are replaced or refused, never followed.
    #[test]
    fn links_below_a_target_lead_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let (base, outside) = (dir.path().join("base"), dir.path().join("outside"));
        std::fs::create_dir(&base).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("f"), "precious").unwrap();
        symlink(outside.join("f"), base.join("f")).unwrap();
        symlink(&outside, base.join("d")).unwrap();
        symlink("gone", base.join("dangling")).unwrap();
        for name in ["f", "dangling"] {
            write(PartialFile::create_at(&target(&base, name)).unwrap(), b"payload");
            assert_eq!(std::fs::symlink_metadata(base.join(name)).unwrap().len(), 7, "{name} is a file now");
        }
        let through = target(&base, "d/f");
        assert_eq!(PartialFile::create_at(&through).err().unwrap().exit, Exit::Conflict);
        assert_eq!(through.make_symlink(b"x").unwrap_err().exit, Exit::Conflict);
        assert_eq!(target(&base, "d/new").make_directory().unwrap_err().exit, Exit::Conflict);
        assert_eq!(target(&base, "d").make_directory().unwrap_err().exit, Exit::Conflict);
        assert!(target(&base, "d").finish_directory(&Attr { mode: 0o777, ..Attr::default() }, true).is_err());
        assert_eq!(std::fs::read(outside.join("f")).unwrap(), b"precious");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
        // The target itself is what the user named: a link there is followed.
        let link = dir.path().join("link");
        symlink(&base, &link).unwrap();
        target(&link, "sub").make_directory().unwrap();
        target(&link, "sub").make_directory().unwrap();
        write(PartialFile::create_at(&target(&link, "sub/g")).unwrap(), b"g");
        target(&link, "sub/g").make_symlink(b"target").unwrap();
        assert_eq!(std::fs::read_link(base.join("sub/g")).unwrap(), Path::new("target"));
        assert!(target(&link, "sub").make_symlink(b"target").is_err(), "a directory is not replaced");
    }

    /// P14: names from the store cannot lead out of the target.
    #[test]
    fn names_that_escape_are_refused() {
        for name in [&b".."[..], b".", b"", b"a/b", b"/etc", b"a\0"] {
            assert!(Target::new(Path::new("root"), &[b"ok".to_vec(), name.to_vec()]).is_err(), "{name:?}");
        }
        assert_eq!(target(Path::new("x"), "a/b").path(), Path::new("x/a/b"));
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
        for (set_id, mode) in [(false, 0o1640), (true, 0o7640)] {
            let attr = Attr { mode: 0o7640, mtime_ns: 5_000_000_007, uid, gid, ..Attr::default() };
            PartialFile::create(&target).unwrap().finish(&attr, set_id).unwrap();
            let meta = std::fs::metadata(&target).unwrap();
            assert_eq!((meta.len(), meta.mode() & 0o7777, meta.mtime(), meta.mtime_nsec()), (0, mode, 5, 7));
        }
    }
}
