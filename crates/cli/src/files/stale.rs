//! Half-written files of commands that were killed. A command holds a lock on each that it writes, and the system drops it when the
//! process ends, however it does.

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

/// Temporary names are `.NAME.tessera-RANDOM.part`: no other program's.
const MARK: &[u8] = b".tessera-";
const END: &[u8] = b".part";
/// Digits of the random part.
const DIGITS: usize = 8;
/// Bytes of the name that are used: it may have the maximum length already.
const NAME_BYTES: usize = 200;

/// Directories that this process has looked through, by device and inode.
static SWEPT: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

/// A temporary name for a file that will be called `name`.
pub fn temporary_name(name: &OsStr) -> OsString {
    let name = name.as_bytes();
    let mut all = [b".", &name[..name.len().min(NAME_BYTES)], MARK].concat();
    all.extend(format!("{:01$x}", rand::random::<u32>(), DIGITS).bytes());
    all.extend(END);
    OsStr::from_bytes(&all).to_os_string()
}

fn is_temporary(name: &[u8]) -> bool {
    let random = name.strip_suffix(END).and_then(|name| name.split_at_checked(name.len().checked_sub(DIGITS)?));
    random.is_some_and(|(before, random)| {
        before.starts_with(b".")
            && before.ends_with(MARK)
            && random.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Locks a file that was just made. False: somebody took it for stale before, and it is gone.
///
/// # Errors
/// The system's, but for a file system without locks: there the file is not locked, and nobody takes it for stale.
pub fn lock(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(rustix::io::Errno::INTR) => Err(io::ErrorKind::Interrupted.into()),
        _ => Ok(rustix::fs::fstat(file)?.st_nlink > 0),
    }
}

/// Removes half-written files in a directory that no process holds, once in the life of this process. Failures leave them.
pub fn sweep(directory: &OwnedFd) {
    let Ok(meta) = rustix::fs::fstat(directory) else { return };
    if SWEPT.lock().insert((meta.st_dev, meta.st_ino)) {
        let _ = remove_stale(directory);
    }
}

fn remove_stale(directory: &OwnedFd) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let entries = Dir::new(rustix::fs::openat(directory, ".", flags, Mode::empty())?)?;
    for entry in entries {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let may_be_file = matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown);
        if may_be_file && is_temporary(name.as_bytes()) {
            let _ = remove_unless_held(directory, name);
        }
    }
    Ok(())
}

fn remove_unless_held(directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(directory, name, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        // Its writer, if it has not locked it yet, finds it gone and makes another.
        rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn open(dir: &Path) -> OwnedFd {
        rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn only_temporary_names_are_temporary() {
        for name in ["a", &"x".repeat(255)] {
            let temporary = temporary_name(OsStr::new(name));
            assert!(is_temporary(temporary.as_bytes()) && temporary.len() <= 255, "{temporary:?}");
        }
        for name in
            [".a.tessera-0123456.part", ".a.tessera-0123456g.part", ".a.01234567.part", "a.tessera-01234567.part"]
        {
            assert!(!is_temporary(name.as_bytes()), "{name}");
        }
        assert!(!is_temporary(b"") && !is_temporary(b".part") && !is_temporary(b".tessera-01234567.par"));
    }

    #[test]
    fn what_nobody_holds_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let [held, left] = ["held", "left"].map(|name| dir.path().join(temporary_name(OsStr::new(name))));
        let mine = dir.path().join(".mine.part");
        let file = File::create(&held).unwrap();
        assert!(lock(&file).unwrap());
        std::fs::write(&left, "half").unwrap();
        std::fs::write(&mine, "whole").unwrap();
        std::fs::create_dir(dir.path().join(".d.tessera-01234567.part")).unwrap();
        remove_stale(&open(dir.path())).unwrap();
        assert!(
            held.exists() && !left.exists() && mine.exists() && dir.path().join(".d.tessera-01234567.part").exists()
        );
        drop(file);
        // A directory of another test may have had this number.
        let meta = rustix::fs::fstat(open(dir.path())).unwrap();
        SWEPT.lock().remove(&(meta.st_dev, meta.st_ino));
        sweep(&open(dir.path()));
        assert!(!held.exists());
        std::fs::write(&left, "half").unwrap();
        sweep(&open(dir.path()));
        assert!(left.exists(), "a directory is looked through once");
    }

    /// Between making a file and locking it, another process may take it for stale.
    #[test]
    fn a_file_that_was_taken_for_stale_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(temporary_name(OsStr::new("f")));
        let file = File::create(&path).unwrap();
        remove_stale(&open(dir.path())).unwrap();
        assert!(!lock(&file).unwrap());
        let file = File::create(&path).unwrap();
        let other = File::open(&path).unwrap();
        rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(!lock(&file).unwrap(), "it is being removed");
    }
}
