//! Everything that the mount needs from outside: the store, the kernel, clocks and randomness.
//!
//! The operations of the mount are `async fn`s over this trait. In production every method calls the blocking client
//! and its future is ready at once. In the simulator a call is pending until its answer arrives, so other mounts,
//! recalls, kills and lost connections interleave at each `.await`. The core holds a lock across an `.await` only where
//! ARCHITECTURE.md says so. The spool's disk is no part of this trait: [`tessera_disk::Disk`] is synchronous, and
//! [`crate::spool::SpoolConfig`] names it.
//!
//! Futures need not be `Send`: the thread that starts an operation also finishes it. Types of `tessera_client` that
//! occur here are plain data; a backend need not use the client library.

use crate::namespace::Name;
use bytes::Bytes;
use std::io;
use std::ops::Range;
use std::time::Duration;
use tessera_client::inodes::{NewAttr, NewFile, NewNode, RenameMode};
use tessera_client::locate::Located;
use tessera_client::{Cancel, FileError, Opened, Owner, ProgressFn, WriteDone};
use tessera_policy::Policy;
use tessera_wire::meta::{ClusterStatus, Dirent, Entry, VersionInfo, Xattr};
use tessera_wire::{Attr, Error, Request};

/// An open write session. Dropping it discards everything written since the last commit.
#[allow(async_fn_in_trait, reason = "see the module: futures need not be Send")]
pub trait Writer: 'static {
    /// Writes `bytes` at `offset`. A session that replaces the file can only go forward.
    ///
    /// # Errors
    /// Bytes written since the last commit are lost.
    async fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError>;

    /// Leaves a hole up to `offset`.
    ///
    /// # Errors
    /// As [`Writer::write_at`].
    async fn skip_to(&mut self, offset: u64) -> Result<(), FileError>;

    /// Changes the length of the file, bytes. Only a session that patches can.
    ///
    /// # Errors
    /// As [`Writer::write_at`].
    async fn set_len(&mut self, size_bytes: u64) -> Result<(), FileError>;

    /// Sets the modification time of the next commit, ns since 1970; 0: the time of the commit.
    fn set_mtime(&mut self, mtime_ns: i64);

    /// Sets the name of the content of the next commit ([`Attr::content`]); 0: the store chooses it.
    fn set_content(&mut self, content: u64);

    /// Commits what was written, as one version, and keeps the session.
    ///
    /// # Errors
    /// As [`Writer::write_at`]; [`tessera_wire::Code::VersionConflict`] from a session of [`Backend::open_write_if`]. After an
    /// error that says that there was no answer, the store may have committed.
    async fn sync(&mut self) -> Result<WriteDone, FileError>;

    /// As [`Writer::sync`], and ends the session.
    ///
    /// # Errors
    /// As [`Writer::sync`].
    async fn finish(self) -> Result<WriteDone, FileError>
    where
        Self: Sized;

    /// Length of the file as written so far, bytes.
    fn len_bytes(&self) -> u64;
}

/// An open version of a file. It stays readable while the value lives, even if the file loses its last name.
#[allow(async_fn_in_trait, reason = "see the module: futures need not be Send")]
pub trait Reader: 'static {
    /// Reads at `offset` as many bytes as there are and fit; returns how many.
    ///
    /// # Errors
    /// The bytes cannot be read or verified (P2).
    async fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, FileError>;

    /// The version, and the attributes and hints of the file when it was opened.
    fn opened(&self) -> &Opened;

    /// Length of the version, bytes.
    fn len_bytes(&self) -> u64 {
        self.opened().version.size_bytes
    }
}

/// A background task that the shell runs until it ends: [`crate::spool::staged::Drain`].
pub type Drain<B> = crate::spool::staged::Drain<<B as Backend>::Writer>;

/// See the module. Requests that change something carry an operation id of their own: the backend repeats a request
/// whose answer was lost, and the store carries it out once. An error [`tessera_wire::Code::Unavailable`] or `Timeout`
/// means that the request may or may not have had its effect.
#[allow(async_fn_in_trait, reason = "see the module: futures need not be Send")]
pub trait Backend: 'static {
    /// An open write session.
    type Writer: Writer;
    /// An open version.
    type Reader: Reader;

    // --- names and attributes -----------------------------------------------------------------------------------

    /// The inode of a name, under a lease if the manager grants one.
    ///
    /// # Errors
    /// [`tessera_wire::Code::NotFound`], or the manager does not answer.
    async fn lookup(&self, parent: u64, name: &[u8]) -> Result<Entry, Error>;

    /// An inode, under a lease if the manager grants one.
    ///
    /// # Errors
    /// As [`Backend::lookup`].
    async fn get(&self, ino: u64) -> Result<Entry, Error>;

    /// A page of a directory: entries with names after `after` in byte order, and whether there are more.
    ///
    /// # Errors
    /// There is no such directory, or the manager does not answer.
    async fn list(&self, ino: u64, after: &[u8]) -> Result<(Vec<Dirent>, bool), Error>;

    /// Makes a directory, and requests its delegation together with `inos` inode numbers.
    ///
    /// # Errors
    /// The manager refuses, or does not answer.
    async fn make_directory(&self, parent: u64, name: &[u8], owner: Owner, inos: u32) -> Result<Entry, Error>;

    /// Makes an empty file, named pipe, socket or device.
    ///
    /// # Errors
    /// [`tessera_wire::Code::Exists`], or the manager refuses or does not answer.
    async fn make_node(&self, parent: u64, name: &[u8], new: NewNode) -> Result<Entry, Error>;

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As [`Backend::make_node`].
    async fn symlink(&self, parent: u64, name: &[u8], target: &[u8], uid: u32, gid: u32) -> Result<Attr, Error>;

    /// Adds a name to a file.
    ///
    /// # Errors
    /// As [`Backend::make_node`].
    async fn link(&self, ino: u64, parent: u64, name: &[u8]) -> Result<Attr, Error>;

    /// Removes a name (`directory`: that of a directory). Returns the inode after that.
    ///
    /// # Errors
    /// There is no such name, or the manager refuses or does not answer.
    async fn unlink(&self, parent: u64, name: &[u8], directory: bool) -> Result<Attr, Error>;

    /// Moves a name.
    ///
    /// # Errors
    /// The manager refuses, or does not answer.
    async fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), mode: RenameMode) -> Result<(), Error>;

    /// Changes attributes. Returns the inode after that.
    ///
    /// # Errors
    /// There is no such inode, or the manager does not answer.
    async fn set_attr(&self, ino: u64, new: NewAttr) -> Result<Entry, Error>;

    /// Extended attributes, hints included.
    ///
    /// # Errors
    /// As [`Backend::set_attr`].
    async fn xattrs(&self, ino: u64) -> Result<Vec<Xattr>, Error>;

    /// Sets an extended attribute (`create`: it must be new, `replace`: it must exist).
    ///
    /// # Errors
    /// The manager refuses the attribute or its value, or does not answer.
    async fn set_xattr(&self, ino: u64, name: &str, value: &[u8], create: bool, replace: bool) -> Result<(), Error>;

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// There is no such attribute, or the manager does not answer.
    async fn remove_xattr(&self, ino: u64, name: &str) -> Result<(), Error>;

    /// Where the fragments of a file's current version are.
    ///
    /// # Errors
    /// There is no such file, or the manager does not answer.
    async fn locate(&self, ino: u64) -> Result<Located, Error>;

    /// Versions of a file, oldest first.
    ///
    /// # Errors
    /// As [`Backend::locate`].
    async fn versions(&self, ino: u64) -> Result<Vec<VersionInfo>, Error>;

    /// A summary of the cluster: its space and its number of files.
    ///
    /// # Errors
    /// The manager does not answer.
    async fn status(&self) -> Result<ClusterStatus, Error>;

    // --- content --------------------------------------------------------------------------------------------------

    /// Opens a version (its id; 0: the current one), and fetches the extents of the bytes `first`.
    ///
    /// # Errors
    /// There is no such version, or the manager does not answer.
    async fn open_read(&self, ino: u64, version: u64, first: Range<u64>) -> Result<Self::Reader, FileError>;

    /// Opens a write session: what is written overwrites parts of the current version (`patch`), or replaces all of it.
    ///
    /// # Errors
    /// There is no such file, or the manager refuses or does not answer.
    async fn open_write(&self, ino: u64, patch: bool) -> Result<Self::Writer, FileError>;

    /// As [`Backend::open_write`]; the session commits only while `version` (0: none) is the current one.
    ///
    /// # Errors
    /// As [`Backend::open_write`].
    async fn open_write_if(&self, ino: u64, patch: bool, version: u64) -> Result<Self::Writer, FileError>;

    /// Replaces a file's content by `bytes`, as one version. `policy`: the file's, if known. `mtime_ns` 0: now.
    ///
    /// # Errors
    /// No part of the write is visible, unless there was no answer.
    async fn write_whole(
        &self,
        ino: u64,
        bytes: Bytes,
        policy: Option<Policy>,
        mtime_ns: i64,
    ) -> Result<WriteDone, FileError>;

    /// As [`Backend::write_whole`], for a file that the write creates.
    ///
    /// # Errors
    /// [`tessera_wire::Code::VersionConflict`] if the name is taken; else as [`Backend::write_whole`].
    async fn write_new(&self, new: NewFile<'_>, bytes: Bytes, mtime_ns: i64) -> Result<WriteDone, FileError>;

    /// Rewrites a file's current version under its current policy. A version of 0 in the answer: there was nothing to
    /// do.
    ///
    /// # Errors
    /// Reading or writing failed, or other clients change the file faster than it can be rewritten.
    async fn rewrite(
        &self,
        ino: u64,
        progress: ProgressFn<'_>,
        cancel: &Cancel,
    ) -> Result<WriteDone, tessera_client::Error>;

    // --- locks: requests that [`crate::locks`] repeats itself ---------------------------------------------------------

    /// Sends a request to the manager once, and waits for the answer: `wait_ms` longer than for others, milliseconds.
    /// The future can be raced against others: it must not block the thread.
    ///
    /// # Errors
    /// The manager's; [`tessera_wire::Code::Unavailable`] or `Timeout` without an answer.
    async fn ask_manager<R: Request>(&self, request: &R, wait_ms: u64) -> Result<R::Reply, Error>;

    /// Sends a request to the manager once, and waits for nothing.
    fn tell_manager<R: Request>(&self, request: &R);

    /// A request that the manager does not answer is repeated for this long.
    fn manager_deadline(&self) -> Duration;

    /// The machine as programs know it: equal for all mounts of one machine.
    fn machine(&self) -> String;

    // --- the kernel -----------------------------------------------------------------------------------------------

    /// Makes the kernel forget these names, in order, and does not wait: the kernel may be waiting for this mount.
    fn invalidate_names(&self, names: Vec<Name>);

    /// Waits until the kernel has forgotten all names handed to [`Backend::invalidate_names`] so far.
    async fn names_invalidated(&self);

    /// Makes the kernel write back the dirty pages of a file: it sends writes, and then a request to sync the file,
    /// which this call waits for. The caller holds no lock of the file.
    ///
    /// # Errors
    /// The kernel's. `NotFound`, `NotConnected` and `BrokenPipe`: the file or the mount is gone.
    async fn write_back_pages(&self, ino: u64) -> io::Result<()>;

    /// Makes the kernel drop its pages of a file, and take `size_bytes` as the file's length. The caller holds no lock
    /// of the file, and the kernel is not waiting for the caller's operation.
    ///
    /// # Errors
    /// As [`Backend::write_back_pages`].
    async fn drop_pages(&self, ino: u64, size_bytes: u64) -> io::Result<()>;

    // --- time, randomness, tasks ----------------------------------------------------------------------------------

    /// Monotonic time since the mount began, ns.
    fn now_ns(&self) -> i64;

    /// Time since 1970, ns.
    fn wall_ns(&self) -> i64;

    /// Waits. The future can be raced against others: it must not block the thread.
    async fn sleep(&self, duration: Duration);

    /// A random number.
    fn random(&self) -> u64;

    /// Runs a task until it ends, next to the operations: on a thread of its own, or as a task of the simulator.
    ///
    /// # Errors
    /// The system has no thread for it.
    fn start_drain(&self, task: Drain<Self>) -> io::Result<()>
    where
        Self: Sized;
}
