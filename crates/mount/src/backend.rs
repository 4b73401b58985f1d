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

use crate::namespace::{Name, NameRef};
use bytes::Bytes;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tessera_client::inodes::{NewFile, OnlyIf};
use tessera_client::locate::Located;
use tessera_client::{Cancel, FileError, Opened, Owner, ProgressFn, Times, WriteDone};
use tessera_policy::Policy;
use tessera_wire::meta::*;
use tessera_wire::{Attr, Code, Error, InodeKind, Request};

/// How a rename treats an existing target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// The target is replaced.
    #[default]
    Replace,
    /// The target must be free.
    NoReplace,
    /// The two names change places.
    Exchange,
}

/// Changes of attributes; absent ones stay as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Modification time, ns since 1970.
    pub mtime_ns: Option<i64>,
    /// Change time that the kernel shows, ns since 1970.
    pub ctime_ns: Option<i64>,
    /// Access time, ns since 1970.
    pub atime_ns: Option<i64>,
}

/// The request for a new entry that is neither a directory nor a symbolic link.
pub(crate) fn new_node((parent, name): NameRef<'_>, kind: InodeKind, owner: Owner) -> MakeNode {
    let (name, kind, Owner { mode, uid, gid }) = (name.to_vec(), kind as i32, owner);
    MakeNode { parent, name, kind, mode, uid, gid, ..MakeNode::default() }
}

/// An open write session. Dropping it discards everything written since the last commit.
#[allow(async_fn_in_trait, reason = "see the module: futures need not be Send")]
pub trait Writer: 'static {
    /// Writes `bytes` at `offset`. A session that replaces the file can only go forward.
    ///
    /// # Errors
    /// Bytes written since the last commit are lost.
    async fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError>;

    /// Makes bytes read as zeros, whatever is there when this is committed. Costs neither space nor time.
    ///
    /// # Errors
    /// As [`Writer::write_at`].
    async fn clear(&mut self, range: Range<u64>) -> Result<(), FileError>;

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

    /// Sets the fence of the locks that this mount holds on the file, for the commits of what is written from now on.
    fn set_lock_fence(&mut self, fence: Option<LockFence>);

    /// Commits what was written, as one version, and keeps the session. `content`: name of the content ([`Attr::content`]);
    /// 0: the store chooses it.
    ///
    /// # Errors
    /// As [`Writer::write_at`]; [`Code::VersionConflict`] if another version than `if_version` is current. After an
    /// error that says that there was no answer, the store may have committed.
    async fn sync(&mut self, times: Times, content: u64) -> Result<WriteDone, FileError>;

    /// As [`Writer::sync`], and ends the session.
    ///
    /// # Errors
    /// As [`Writer::sync`].
    async fn finish(mut self, times: Times, content: u64) -> Result<WriteDone, FileError>
    where
        Self: Sized,
    {
        self.sync(times, content).await
    }

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

    /// Whether all of the version is in memory: no session keeps the file, or the version in the store.
    fn is_in_memory(&self) -> bool {
        false
    }
}

/// A background task that the shell runs until it ends: [`crate::spool::staged::Drain`].
pub type Drain<B> = crate::spool::staged::Drain<<B as Backend>::Writer>;

/// See the module. Requests that change something carry an operation id of their own: the backend repeats a request
/// whose answer was lost, and the store carries it out once. An error [`Code::Unavailable`] or `Timeout`
/// means that the request may or may not have had its effect.
#[allow(async_fn_in_trait, reason = "see the module: futures need not be Send")]
pub trait Backend: 'static {
    /// An open write session.
    type Writer: Writer;
    /// An open version.
    type Reader: Reader;

    // --- the manager ----------------------------------------------------------------------------------------------

    /// Sends a request to the manager, and repeats it until the manager answers or [`Backend::manager_deadline`] is over.
    ///
    /// # Errors
    /// The manager refuses, or does not answer.
    async fn ask<R: Request>(&self, request: &R) -> Result<R::Reply, Error>;

    /// Sends a request to the manager once, and waits for the answer: `wait_ms` longer than for others, milliseconds.
    /// The future can be raced against others: it must not block the thread.
    ///
    /// # Errors
    /// The manager's; [`Code::Unavailable`] or `Timeout` without an answer.
    async fn ask_manager<R: Request>(&self, request: &R, wait_ms: u64) -> Result<R::Reply, Error>;

    /// Sends a request to the manager once, and waits for nothing.
    fn tell_manager<R: Request>(&self, request: &R);

    /// A fresh operation id.
    fn op_id(&self) -> u64;

    /// A request that the manager does not answer is repeated for this long.
    fn manager_deadline(&self) -> Duration;

    /// The machine as programs know it: equal for all mounts of one machine.
    fn machine(&self) -> String;

    // --- names and attributes: one request each -------------------------------------------------------------------

    /// The inode of a name, under a lease if the manager grants one, and those of up to `ahead` names that follow ([`Entry::ahead`]).
    ///
    /// # Errors
    /// [`Code::NotFound`], or the manager does not answer.
    async fn lookup(&self, parent: u64, name: &[u8], ahead: u32) -> Result<Entry, Error> {
        self.ask(&Lookup { parent, name: name.to_vec(), want_lease: true, ahead }).await
    }

    /// An inode, under a lease if the manager grants one.
    ///
    /// # Errors
    /// As [`Backend::lookup`].
    async fn get(&self, ino: u64) -> Result<Entry, Error> {
        self.ask(&GetAttr { ino, want_lease: true }).await
    }

    /// A page of a directory: entries with names after `after` in byte order, with a lease on the names if it can be granted.
    ///
    /// # Errors
    /// There is no such directory, or the manager does not answer.
    async fn list(&self, ino: u64, after: &[u8]) -> Result<ListReply, Error> {
        self.ask(&List { ino, after: after.to_vec(), want_lease: true, ..List::default() }).await
    }

    /// Makes a directory, and requests its delegation together with `inos` inode numbers.
    ///
    /// # Errors
    /// The manager refuses, or does not answer.
    async fn make_directory(&self, parent: u64, name: &[u8], owner: Owner, inos: u32) -> Result<Entry, Error> {
        let (op_id, name, Owner { mode, uid, gid }) = (self.op_id(), name.to_vec(), owner);
        self.ask(&MakeDir { op_id, parent, name, mode, uid, gid, exist_ok: false, inos, want_lease: true }).await
    }

    /// Makes an empty file, named pipe, socket or device. Its change time is also the directory's new modification
    /// time.
    ///
    /// # Errors
    /// [`Code::Exists`], or the manager refuses or does not answer.
    async fn make_node(&self, new: MakeNode) -> Result<Entry, Error> {
        self.ask(&MakeNode { op_id: self.op_id(), want_lease: true, ..new }).await
    }

    /// Removes a name (`directory`: that of a directory). Returns the inode after that; its change time is also the
    /// directory's new modification time.
    ///
    /// # Errors
    /// There is no such name, or the manager refuses or does not answer.
    async fn unlink(&self, parent: u64, name: &[u8], directory: bool) -> Result<Attr, Error> {
        attr(self.ask(&Unlink { op_id: self.op_id(), parent, name: name.to_vec(), directory }).await?)
    }

    /// Version of the cluster's map, which rises by [`RESTORE_JUMP`] when the group of managers is restored; 0: this client cannot tell.
    ///
    /// # Errors
    /// The manager does not answer.
    async fn map_version(&self) -> Result<u64, Error>;

    /// Where the fragments of a file's current version are.
    ///
    /// # Errors
    /// There is no such file, or the manager does not answer.
    async fn locate(&self, ino: u64) -> Result<Located, Error>;

    // --- content --------------------------------------------------------------------------------------------------

    /// Opens a version (its id; 0: the current one), and fetches the extents of the bytes `first`.
    ///
    /// # Errors
    /// There is no such version, or the manager does not answer.
    async fn open_read(&self, ino: u64, version: u64, first: Range<u64>) -> Result<Self::Reader, FileError>;

    /// Describes small files of a directory for [`Backend::read_described`], at most 128 of them, each under a lease if the manager grants
    /// one. One that is not described has no attributes. Asks once.
    ///
    /// # Errors
    /// The manager refuses, or does not answer.
    async fn describe(&self, directory: u64, names: &[Vec<u8>]) -> Result<Vec<OpenReadReply>, Error>;

    /// Reads files that were described into memory. None: the file must be opened; its chunks may be gone.
    async fn read_described(&self, files: Vec<OpenReadReply>) -> Vec<Option<Self::Reader>>;

    /// Versions are not needed any more; some may be in use still. Tells the manager of all at once, and waits for nothing.
    fn close_readers(&self, readers: Vec<Arc<Self::Reader>>) {
        drop(readers);
    }

    /// Opens a write session: what is written overwrites parts of the current version (`patch`), or replaces all of it.
    /// With `if_version` (0: none) the session commits only while this is the current version.
    ///
    /// # Errors
    /// There is no such file, or the manager refuses or does not answer.
    async fn open_write(&self, ino: u64, patch: bool, if_version: Option<u64>) -> Result<Self::Writer, FileError>;

    /// Replaces a file's content by `bytes`, as one version. `policy`: the file's, if known.
    ///
    /// # Errors
    /// [`Code::VersionConflict`]: another version is current than `only_if` names. No part of the write is visible,
    /// unless there was no answer.
    async fn write_whole(
        &self,
        ino: u64,
        bytes: Bytes,
        policy: Option<Policy>,
        times: Times,
        only_if: OnlyIf,
    ) -> Result<WriteDone, FileError>;

    /// As [`Backend::write_whole`], for a file that the write creates.
    ///
    /// # Errors
    /// [`Code::VersionConflict`] if the name is taken; else as [`Backend::write_whole`].
    async fn write_new(&self, new: NewFile<'_>, bytes: Bytes, times: Times) -> Result<WriteDone, FileError>;

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

    // --- the kernel -----------------------------------------------------------------------------------------------

    /// Makes the kernel forget these names, in order, and does not wait: the kernel may be waiting for this mount. False: it does not hear of
    /// some, and forgets them by itself.
    fn invalidate_names(&self, names: Vec<Name>) -> bool;

    /// Waits until the kernel has forgotten all names handed to [`Backend::invalidate_names`] so far.
    async fn names_invalidated(&self);

    /// Makes the kernel ask for a file's attributes before it uses them again. Never waits for the kernel.
    fn forget_attributes(&self, ino: u64);

    /// Makes the kernel drop the pages of a file that these bytes touch, and ask for the file's attributes before it uses them again:
    /// it ignores them in replies to earlier requests. Waits for the kernel, which waits for reads of these pages, but not long;
    /// false: the pages may be there still. The caller holds no lock of the file.
    async fn drop_pages_of(&self, ino: u64, bytes: Range<u64>) -> bool;

    /// Whether programs can map files that are read and written without the kernel's pages (Linux 6.6).
    fn maps_direct(&self) -> bool;

    /// Makes the kernel write back the dirty pages of a file: it sends writes, and then a request to sync the file,
    /// which this call waits for. The caller holds no lock of the file.
    ///
    /// # Errors
    /// The kernel's. `NotFound`, `NotConnected` and `BrokenPipe`: the file or the mount is gone.
    async fn write_back_pages(&self, ino: u64) -> io::Result<()>;

    /// Makes the kernel drop its pages of a file, and take over the file's length, which was `size_bytes` a moment ago.
    /// The caller holds no lock of the file, and the kernel is not waiting for the caller's operation.
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

/// The attributes of an entry, which every answer about an inode has.
pub(crate) fn attr(entry: Entry) -> Result<Attr, Error> {
    entry.attr.ok_or_else(|| Error::new(Code::Internal, "an answer without attributes"))
}
