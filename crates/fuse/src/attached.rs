//! The mount as the kernel has it: whether it is still at its path, and how it is removed from there.
//!
//! By the time a mount ends, its path may hold another file system: a user unmounts, then mounts something else. Thus
//! the mount is unmounted only if it is still at its path, and at most once.

use fuser::{BackgroundSession, Filesystem, Notifier, Session};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// Source of this program's mounts in the kernel's table.
pub const SOURCE: &str = "tessera";

/// A served mount; unmounted when dropped.
pub struct Attached {
    path: PathBuf,
    /// Tells whether the kernel has ended the connection.
    device: OwnedFd,
    serving: Option<JoinHandle<io::Result<()>>>,
    /// Number of the file system's device.
    minor: u32,
    /// `None` once it was unmounted.
    entry: Option<Entry>,
}

impl Attached {
    /// Serves the session mounted at `path`, which is canonical.
    ///
    /// # Errors
    /// The system's.
    pub fn new<F: Filesystem + Send + 'static>(session: Session<F>, path: &Path) -> io::Result<(Attached, Notifier)> {
        let device = session.as_fd().try_clone_to_owned()?;
        let mut session = session.spawn()?;
        let entry = Entry::at(path)?.filter(Entry::is_tessera);
        let entry = entry.ok_or_else(|| io::Error::other("/proc/self/mountinfo does not list the mount"))?;
        let minor =
            entry.minor().ok_or_else(|| io::Error::other("/proc/self/mountinfo lists no device of the mount"))?;
        let notifier = session.notifier();
        let serving = take_thread(&mut session)?;
        // Its drop would unmount whatever is at the path. What stays is the device, until the process ends.
        std::mem::forget(session);
        Ok((Attached { path: path.to_path_buf(), device, serving: Some(serving), minor, entry: Some(entry) }, notifier))
    }

    /// Another handle of the kernel's connection.
    ///
    /// # Errors
    /// The system's.
    pub fn device(&self) -> io::Result<OwnedFd> {
        self.device.try_clone()
    }

    /// The minor number of the file system's device.
    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether no thread serves it any more.
    pub fn is_over(&self) -> bool {
        self.serving.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until no thread serves it.
    ///
    /// # Errors
    /// With which serving ended.
    pub fn join(&mut self) -> io::Result<()> {
        let Some(serving) = self.serving.take() else { return Ok(()) };
        serving.join().map_err(|_| io::Error::other("a thread that serves the mount panicked"))?
    }

    /// Removes the mount from its path, even while programs use it; does nothing if it is no longer there.
    ///
    /// # Errors
    /// The system's.
    pub fn detach(&mut self) -> io::Result<()> {
        let Some(entry) = self.entry.take() else { return Ok(()) };
        // The kernel gives the numbers of a file system that is gone to the next one.
        let is_own =
            Entry::at(&self.path)?.is_some_and(|now| now == entry) && (self.is_connected() || is_dead(&self.path));
        if is_own { detach(&self.path) } else { Ok(()) }
    }

    /// Whether the kernel still sends requests. The file system exists at least that long.
    fn is_connected(&self) -> bool {
        let mut device = [PollFd::new(&self.device, PollFlags::empty())];
        let polled = poll(&mut device, Some(&rustix::event::Timespec::default()));
        polled.is_ok() && !device[0].revents().contains(PollFlags::ERR)
    }
}

/// Whether a mount is at the path whose process has ended, or whose connection was aborted. The kernel may still know the attributes of its
/// root, so it must be told to ask.
pub fn is_dead(path: &Path) -> bool {
    let asked = statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
    matches!(asked, Err(Errno::NOTCONN | Errno::CONNABORTED))
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            tracing::warn!(path = %self.path.display(), %error, "cannot unmount");
        }
    }
}

/// Whether a mount of this program is at `path`, which is canonical.
pub(crate) fn is_mounted(path: &Path) -> io::Result<bool> {
    Ok(Entry::at(path)?.is_some_and(|entry| entry.is_tessera()))
}

/// Takes the thread out of a session, which cannot be taken apart.
fn take_thread(session: &mut BackgroundSession) -> io::Result<JoinHandle<io::Result<()>>> {
    let none = std::thread::Builder::new().spawn(|| Ok(()))?;
    Ok(std::mem::replace(&mut session.guard, none))
}

/// Without the permission to unmount, runs `fusermount3`.
fn detach(path: &Path) -> io::Result<()> {
    let plain = unmount(path, UnmountFlags::empty());
    let done = if plain == Err(Errno::BUSY) { unmount(path, UnmountFlags::DETACH) } else { plain };
    match done {
        Err(Errno::PERM) => {
            let ended = std::process::Command::new("fusermount3").args(["-u", "-z"]).arg(path).status()?;
            if ended.success() { Ok(()) } else { Err(io::Error::other(format!("fusermount3 ended with {ended}"))) }
        }
        done => Ok(done?),
    }
}

/// What identifies a mount in the kernel's table.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    mount_id: String,
    device: String,
    kind: String,
    source: String,
}

impl Entry {
    /// The topmost mount at `path`. Asks no file system.
    fn at(path: &Path) -> io::Result<Option<Entry>> {
        Ok(Entry::find(&std::fs::read("/proc/self/mountinfo")?, path))
    }

    fn find(table: &[u8], path: &Path) -> Option<Entry> {
        let path = escaped(path);
        let mut entries = table.split(|b| *b == b'\n').filter_map(|line| {
            let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
            let text = |at: usize| fields.get(at).map(|field| String::from_utf8_lossy(field).into_owned());
            // Optional fields end with a dash.
            let dash = 6 + fields.iter().skip(6).position(|field| *field == b"-")?;
            let entry = Entry { mount_id: text(0)?, device: text(2)?, kind: text(dash + 1)?, source: text(dash + 2)? };
            (*fields.get(4)? == path).then_some(entry)
        });
        entries.next_back()
    }

    fn minor(&self) -> Option<u32> {
        self.device.split_once(':')?.1.parse().ok()
    }

    fn is_tessera(&self) -> bool {
        // `fuse` if this process mounted it, `fuse.tessera` if `fusermount3` did.
        self.kind.starts_with("fuse") && self.source == SOURCE
    }
}

/// `path` as the kernel's table shows it.
fn escaped(path: &Path) -> Vec<u8> {
    let escape = |b: &u8| match b {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{b:03o}").into_bytes(),
        b => vec![*b],
    };
    path.as_os_str().as_bytes().iter().flat_map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_mount_at_a_path_is_found() {
        let table = b"22 27 0:21 / /proc rw - proc proc rw\n\
            40 27 0:50 / /mnt/a\\040b rw,noatime shared:1 - fuse.tessera tessera rw\n\
            41 40 0:51 / /mnt/a\\040b rw - tmpfs none rw\n\
            42 27 0:52 / /mnt/c rw shared:1 master:2 - fuse.tessera tessera rw\n";
        let found = |path: &str| Entry::find(table, Path::new(path)).map(|e| (e.is_tessera(), e.mount_id, e.device));
        assert_eq!(found("/mnt/a b"), Some((false, "41".into(), "0:51".into())));
        assert_eq!(found("/mnt/c"), Some((true, "42".into(), "0:52".into())));
        assert_eq!(found("/mnt"), None);
    }
}
