//! [`Client`]: everything a front end can ask for.

use crate::config::Options;
use crate::context::Context;
use crate::error::{Error, PathOpError, ReadError, WriteError, by_name};
use crate::inodes::Inodes;
use crate::lease_cache::{Directory, DirectoryCache, RecallService};
use crate::locks::Locks;
use crate::path::StorePath;
use crate::read::core::{Opened, ReadParams, ReadReport};
use crate::read::{ReadHandle, Sink};
use crate::transport::{NetTransport, Transport};
use crate::view::{SharedView, View};
use crate::write::core::{Owner, Target, WriteDone, WriteParams};
use crate::write::input::Source;
use crate::write::{Cancel, Progress, ProgressFn, WriteHandle};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_accel::device::Work;
use tessera_net::{BufferPool, Dialer, DialerOptions, Endpoint};
use tessera_policy::Policy;
use tessera_wire::data::{GetNodeStatus, NodeStatus};
use tessera_wire::meta::*;
use tessera_wire::rpc::Peer;
use tessera_wire::{Attr, Code, Error as WireError, Hello, Hint, PROTOCOL_VERSION, Request, Role};

/// Idle buffers kept for input, parity and received payloads, in bytes.
const POOL_BYTES: usize = 384 << 20;

/// A connection to a cluster. Threads may share it; clones share everything.
#[derive(Clone)]
pub struct Client {
    pub(crate) context: Arc<Context>,
    directories: Arc<DirectoryCache>,
    locks: Arc<Locks>,
}

/// How a file is written.
#[derive(Default)]
pub struct PutOptions<'a> {
    /// Hints (name without `user.tessera.`, value) over the file's own; kept with a new file.
    pub hints: Vec<(String, String)>,
    /// What happens to the content there is.
    pub mode: PutMode,
    /// Refuse unless this version is current (0: unless there is no file): compare and swap.
    pub if_version: Option<u64>,
    /// Modification time to record, ns since 1970; 0: now.
    pub mtime_ns: i64,
    /// Permission bits, owner and group of a new file.
    pub owner: Owner,
    /// Hears how many bytes have been read of the source.
    pub progress: Option<ProgressFn<'a>>,
    /// Stops the write.
    pub cancel: Cancel,
}

/// What happens to the content there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PutMode {
    /// It is replaced.
    #[default]
    Replace,
    /// The source goes over it from `offset` bytes on.
    Patch {
        /// First byte that is written.
        offset: u64,
    },
    /// The source goes behind it.
    Append,
}

/// Which bytes of which version are read.
#[derive(Default)]
pub struct GetOptions<'a> {
    /// Version number within the file; 0: the current one.
    pub version: u64,
    /// Bytes wanted; none for all.
    pub range: Option<std::ops::Range<u64>>,
    /// Hears how many bytes have arrived.
    pub progress: Option<ProgressFn<'a>>,
    /// Stops the read.
    pub cancel: Cancel,
}

impl Client {
    /// Connects to the manager at `address` (`HOST:PORT` or `unix:PATH`).
    ///
    /// # Errors
    /// The address is none, nobody answers there, or it is not a manager of this release; or there is no such device.
    pub fn connect(address: &str, options: Options) -> Result<Self, Error> {
        options.use_device()?;
        let failed = |error| Error::Connect { address: address.to_string(), error };
        let manager: Endpoint =
            address.parse().map_err(|message: String| failed(WireError::new(Code::Invalid, message)))?;
        let (view, directories, pool) = (View::shared(), Arc::<DirectoryCache>::default(), BufferPool::new(POOL_BYTES));
        let hello = Hello {
            protocol_version: PROTOCOL_VERSION,
            role: Role::Client as i32,
            cluster_id: Vec::new(),
            release: env!("CARGO_PKG_VERSION").to_string(),
            client_id: rand::random::<u64>().max(1),
            host: options.host.clone(),
        };
        let service = Arc::new(RecallService(directories.clone()));
        let dialer = Dialer::new(hello, service, pool.clone(), DialerOptions::default());
        // A first question without repetition: a wrong address is said at once.
        let first = GetMap { known_version: 0, pg_ids: Vec::new(), all_nodes: true };
        let timeout = Duration::from_millis(options.manager_timeout_ms);
        let (map, _) = dialer.call_wait(&manager, &first, Vec::new(), timeout).map_err(failed)?;
        view.write().merge(&map, true);
        let transport = NetTransport::new(dialer, manager, view.clone());
        Self::with_transport(Arc::new(transport), pool, view, directories, options)
            .map_err(|e| failed(WireError::new(Code::Io, format!("cannot start threads: {e}"))))
    }

    pub(crate) fn with_transport(
        transport: Arc<dyn Transport>,
        pool: BufferPool,
        view: SharedView,
        directories: Arc<DirectoryCache>,
        options: Options,
    ) -> std::io::Result<Self> {
        let context = Context::start(transport, pool, view, Arc::new(options))?;
        let locks = Locks::new(&context);
        let held = Arc::downgrade(&locks);
        directories.on_disconnect(Box::new(move || _ = held.upgrade().map(|locks| locks.cut_off())));
        Ok(Client { context, directories, locks })
    }

    /// Locks on files.
    pub fn locks(&self) -> &Arc<Locks> {
        &self.locks
    }

    /// By inode number instead of path.
    pub fn inodes(&self) -> Inodes<'_> {
        Inodes(self)
    }

    /// Hears of inodes whose leases the manager takes back, before it is answered; none: all are over, the connection
    /// was lost. What is done there must not ask the cluster anything.
    pub fn on_recall(&self, hear: impl Fn(Option<&[u64]>) + Send + Sync + 'static) {
        self.directories.on_recall(Box::new(hear));
    }

    /// Hears of directories whose names are not this client's alone any more, but not when the connection is lost, which
    /// [`Client::on_recall`] tells. The manager waits until the function it comes with is called: what was made in there is to be made
    /// known first, on another thread.
    pub fn on_delegation_recall(&self, hear: impl Fn(Vec<u64>, Box<dyn FnOnce() + Send>) + Send + Sync + 'static) {
        self.directories.on_delegation_recall(Box::new(hear));
    }

    fn ask<R: Request>(&self, operation: &'static str, path: &StorePath, request: &R) -> Result<R::Reply, PathOpError> {
        self.context.ask(request).map_err(|error| refused(operation, path, error))
    }

    /// What a path names, with its hints.
    pub fn resolve(&self, path: &StorePath) -> Result<Entry, Error> {
        let request = Resolve { start: 1, components: path.components().to_vec(), want_lease: false };
        Ok(self.ask("resolve", path, &request)?)
    }

    /// Attributes of what a path names.
    pub fn stat(&self, path: &StorePath) -> Result<Attr, Error> {
        Ok(self.resolve(path)?.attr.unwrap_or_default())
    }

    /// A directory by path: from the leases held, or asked for.
    fn directory(&self, path: &StorePath) -> Result<Directory, PathOpError> {
        let recalls = match self.directories.find(path) {
            Ok(known) => return Ok(known),
            Err(recalls) => recalls,
        };
        let asked = Instant::now();
        let request = Resolve { start: 1, components: path.components().to_vec(), want_lease: true };
        let entry = self.ask("resolve", path, &request)?;
        self.directories.insert(path, &entry, asked, recalls);
        let ino = entry.attr.as_ref().map_or(0, |attr| attr.ino);
        Ok(Directory { ino, hints: entry.hints })
    }

    /// The directory above a path, and the path's last name.
    fn place(&self, path: &StorePath) -> Result<(Directory, Vec<u8>), PathOpError> {
        let (parent, name) = path.split_last()?;
        Ok((self.directory(&parent)?, name.to_vec()))
    }

    /// A page of a directory: names after `after` in byte order, and whether there are more.
    pub fn list_page(&self, path: &StorePath, after: &[u8]) -> Result<(Vec<Dirent>, bool), Error> {
        let ino = self.directory(path)?.ino;
        let reply = self.ask("list", path, &List { ino, after: after.to_vec(), limit: 4096 })?;
        Ok((reply.entries, reply.more))
    }

    /// All of a directory, in byte order of names.
    pub fn list(&self, path: &StorePath) -> Result<Vec<Dirent>, Error> {
        let (mut all, mut after) = (Vec::<Dirent>::new(), Vec::new());
        loop {
            let (entries, more) = self.list_page(path, &after)?;
            let empty = entries.is_empty();
            all.extend(entries);
            match all.last().filter(|_| more && !empty) {
                Some(last) => after = last.name.clone(),
                None => return Ok(all),
            }
        }
    }

    /// A new directory, with its parent's hints.
    pub fn mkdir(&self, path: &StorePath) -> Result<Attr, Error> {
        self.make_dir(path, false)
    }

    /// A directory and those above it, where they are not there yet.
    pub fn mkdir_all(&self, path: &StorePath) -> Result<Attr, Error> {
        let mut here = StorePath::root();
        let mut attr = None;
        for name in path.components() {
            here = here.join(name)?;
            attr = Some(self.make_dir(&here, true)?);
        }
        match attr {
            Some(attr) => Ok(attr),
            None => self.stat(&here),
        }
    }

    fn make_dir(&self, path: &StorePath, exist_ok: bool) -> Result<Attr, Error> {
        let (parent, name) = self.place(path)?;
        let request = MakeDir {
            op_id: self.context.op_id(),
            parent: parent.ino,
            name,
            mode: 0o755,
            exist_ok,
            ..MakeDir::default()
        };
        Ok(self.ask("mkdir", path, &request)?.attr.unwrap_or_default())
    }

    /// Removes a file's name, or an empty directory.
    pub fn unlink(&self, path: &StorePath, directory: bool) -> Result<(), Error> {
        let (parent, name) = self.place(path)?;
        let request = Unlink { op_id: self.context.op_id(), parent: parent.ino, name, directory };
        let answer = self.ask("remove", path, &request);
        self.directories.clear();
        answer?;
        Ok(())
    }

    /// Removes a file, or a directory with all below it; `progress` hears of entries removed.
    pub fn remove_all(
        &self,
        path: &StorePath,
        mut progress: Option<ProgressFn<'_>>,
        cancel: &Cancel,
    ) -> Result<u64, Error> {
        let mut removed = 0;
        let directory = self.stat(path)?.kind() == tessera_wire::InodeKind::Directory;
        self.remove_tree(path, directory, &mut removed, &mut progress, cancel)?;
        Ok(removed)
    }

    fn remove_tree(
        &self,
        path: &StorePath,
        directory: bool,
        removed: &mut u64,
        progress: &mut Option<ProgressFn<'_>>,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        if directory {
            for entry in self.list(path)? {
                let below = path.join(&entry.name)?;
                let kind = entry.attr.map(|attr| attr.kind());
                let is_directory = kind == Some(tessera_wire::InodeKind::Directory);
                self.remove_tree(&below, is_directory, removed, progress, cancel)?;
            }
        }
        if cancel.is_cancelled() {
            return Err(PathOpError::Cancelled { operation: "remove", path: path.to_string() }.into());
        }
        self.unlink(path, directory)?;
        *removed += 1;
        if let Some(progress) = progress.as_mut() {
            progress(Progress { done: *removed, total: None });
        }
        Ok(())
    }

    /// Moves a name; what stands at the target is replaced unless `no_replace`. Hints stay with the file.
    pub fn rename(&self, from: &StorePath, to: &StorePath, no_replace: bool) -> Result<(), Error> {
        let (from_parent, from_name) = self.place(from)?;
        let (to_parent, to_name) = self.place(to)?;
        let request = Rename {
            op_id: self.context.op_id(),
            from_parent: from_parent.ino,
            from_name,
            to_parent: to_parent.ino,
            to_name,
            no_replace,
            exchange: false,
        };
        let answer = self.ask("rename", from, &request);
        self.directories.clear();
        answer?;
        Ok(())
    }

    /// Another name for a file.
    pub fn link(&self, file: &StorePath, path: &StorePath) -> Result<Attr, Error> {
        let ino = self.stat(file)?.ino;
        let (parent, name) = self.place(path)?;
        let request = Link { op_id: self.context.op_id(), ino, parent: parent.ino, name };
        Ok(self.ask("link", path, &request)?.attr.unwrap_or_default())
    }

    /// A symbolic link at `path` to `target`.
    pub fn symlink(&self, target: &[u8], path: &StorePath) -> Result<Attr, Error> {
        let (parent, name) = self.place(path)?;
        let target = target.to_vec();
        let request = Symlink { op_id: self.context.op_id(), parent: parent.ino, name, target, uid: 0, gid: 0 };
        Ok(self.ask("symlink", path, &request)?.attr.unwrap_or_default())
    }

    /// Changes permission bits, owner, group or modification time; what is none stays.
    pub fn set_attr(
        &self,
        path: &StorePath,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        mtime_ns: Option<i64>,
    ) -> Result<Attr, Error> {
        let ino = self.stat(path)?.ino;
        let request = SetAttr { op_id: self.context.op_id(), ino, mode, uid, gid, mtime_ns, ..SetAttr::default() };
        Ok(self.ask("change", path, &request)?.attr.unwrap_or_default())
    }

    /// All extended attributes, hints included.
    pub fn xattrs(&self, path: &StorePath) -> Result<Vec<Xattr>, Error> {
        let ino = self.stat(path)?.ino;
        Ok(self.ask("list attributes of", path, &ListXattrs { ino })?.xattrs)
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, path: &StorePath, name: &str, value: &[u8]) -> Result<(), Error> {
        let ino = self.stat(path)?.ino;
        let (op_id, name, value) = (self.context.op_id(), name.to_string(), value.to_vec());
        let request = SetXattr { op_id, ino, name, value, create_only: false, replace_only: false };
        let answer = self.ask("set an attribute of", path, &request);
        self.directories.clear();
        answer?;
        Ok(())
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, path: &StorePath, name: &str) -> Result<(), Error> {
        let ino = self.stat(path)?.ino;
        let request = RemoveXattr { op_id: self.context.op_id(), ino, name: name.to_string() };
        let answer = self.ask("remove an attribute of", path, &request);
        self.directories.clear();
        answer?;
        Ok(())
    }

    /// The policy of a file or directory: its hints, and defaults for the rest.
    pub fn policy(&self, path: &StorePath) -> Result<Policy, Error> {
        let hints = self.resolve(path)?.hints;
        let pairs = hints.iter().map(|h| (h.name.as_str(), h.value.as_str()));
        Ok(Policy::from_hints(pairs).map_err(|e| hint_error(path, e))?)
    }

    /// Sets hints (name without `user.tessera.`, value). They are checked before anything is changed (P14).
    pub fn set_policy(&self, path: &StorePath, hints: &[(String, String)]) -> Result<(), Error> {
        let checked = canonical(path, hints)?;
        for hint in checked {
            self.set_xattr(path, &format!("{}{}", tessera_policy::PREFIX, hint.name), hint.value.as_bytes())?;
        }
        Ok(())
    }

    /// Versions of a file, oldest first.
    pub fn versions(&self, path: &StorePath) -> Result<Vec<VersionInfo>, Error> {
        let ino = self.stat(path)?.ino;
        Ok(self.ask("list versions of", path, &ListVersions { ino })?.versions)
    }

    /// Writes a source as a new version, which appears whole or not at all.
    pub fn put<'a>(
        &self,
        path: &StorePath,
        source: impl Into<Source<'a>>,
        options: PutOptions<'_>,
    ) -> Result<WriteDone, Error> {
        let source = source.into();
        let params = self.write_params(path, &options, source.len_bytes())?;
        let base = if let PutMode::Patch { offset } = options.mode { offset } else { 0 };
        Ok(crate::write::put(&self.context, params, source, base, options.progress, options.cancel)?)
    }

    /// Opens a file for writing piece by piece; created when the first version is committed.
    pub fn open_write(&self, path: &StorePath, options: PutOptions<'_>) -> Result<WriteHandle, Error> {
        let params = self.write_params(path, &options, None)?;
        Ok(WriteHandle::open(&self.context, params, options.cancel)?)
    }

    fn write_params(
        &self,
        path: &StorePath,
        options: &PutOptions<'_>,
        size: Option<u64>,
    ) -> Result<WriteParams, Error> {
        let hints = canonical(path, &options.hints)?;
        let (parent, name) = self.place(path)?;
        let all = parent.hints.iter().chain(&hints).map(|h| (h.name.as_str(), h.value.as_str()));
        Ok(WriteParams {
            want_lease: false,
            content: 0,
            file: path.to_string(),
            target: Target::Name { parent: parent.ino, name },
            mode: match options.mode {
                PutMode::Replace => CommitMode::Replace,
                PutMode::Patch { .. } => CommitMode::Patch,
                PutMode::Append => CommitMode::Append,
            },
            if_version: options.if_version,
            size_hint_bytes: size,
            // A directory with hints of a newer release is no reason to fail: the manager knows them.
            expect_policy: Policy::from_hints(all).ok(),
            hints,
            mtime_ns: options.mtime_ns,
            owner: options.owner,
        })
    }

    /// Reads a version, or a range of it, into a sink; what was read and how many bytes. Verified (P2).
    pub fn get(&self, path: &StorePath, mut sink: Sink<'_>, options: GetOptions<'_>) -> Result<(Opened, u64), Error> {
        let range = options.range.unwrap_or(0..u64::MAX);
        let params = self.read_params(path, options.version, range)?;
        Ok(crate::read::get(&self.context, params, &mut sink, options.progress, &options.cancel)?)
    }

    /// What all reads of this client that have ended had to do without, together.
    pub fn read_report(&self) -> ReadReport {
        self.context.read_report()
    }

    /// Opens a version (its number; 0: the current one) for reads at any offset.
    pub fn open_read(&self, path: &StorePath, version: u64) -> Result<ReadHandle, Error> {
        let params = self.read_params(path, version, 0..64 << 20)?;
        Ok(ReadHandle::open(&self.context, params, &Cancel::default())?)
    }

    fn read_params(&self, path: &StorePath, number: u64, first: std::ops::Range<u64>) -> Result<ReadParams, Error> {
        let (parent, name) = self.place(path)?;
        let (file, parent) = (path.to_string(), parent.ino);
        Ok(ReadParams { file, parent, name, ino: 0, version: 0, number, first })
    }

    /// The state of the cluster at a glance.
    pub fn status(&self) -> Result<ClusterStatus, Error> {
        Ok(self.ask("status of", &StorePath::root(), &GetStatus {})?)
    }

    /// Empties a node (by id or name), or one of its disks, or takes that back.
    pub fn drain(&self, node: &str, disk_id: u64, undo: bool) -> Result<(), Error> {
        let node_id = if disk_id == 0 { self.node_id(node)? } else { 0 };
        let request = Drain { op_id: self.context.op_id(), node_id, disk_id, undo };
        self.ask("drain", &StorePath::root(), &request)?;
        Ok(())
    }

    /// Starts a pass of upkeep, or looks at the one that runs.
    pub fn maintain(&self, what: MaintenanceJob, start: bool) -> Result<MaintainReply, Error> {
        Ok(self.ask("maintain", &StorePath::root(), &Maintain { what: what as i32, start })?)
    }

    /// Tells the manager what this process's devices computed since the last call, for `tessera status`. A manager that
    /// cannot be told is not told.
    pub fn report_work(&self) {
        // Of this process, whatever clients it has: devices are the process's, too.
        static REPORTED: Mutex<BTreeMap<(String, &str), Work>> = Mutex::new(BTreeMap::new());
        let mut reported = REPORTED.lock();
        let mut device_work = Vec::new();
        for (device, primitive, work) in tessera_accel::work_done() {
            let known = reported.entry((device.clone(), primitive)).or_default();
            let (jobs, bytes) = (work.jobs.saturating_sub(known.jobs), work.bytes.saturating_sub(known.bytes));
            if jobs > 0 {
                device_work.push(DeviceWork::of_process(device, primitive, jobs, bytes));
                *known = work;
            }
        }
        if !device_work.is_empty() {
            let timeout_ms = self.context.options.manager_timeout_ms;
            if let Err(error) = self.context.ask_once(Peer::Manager, &ReportWork { device_work }, timeout_ms) {
                tracing::debug!(%error, "the manager was not told what was computed");
            }
        }
    }

    /// What a node (by id or name) holds and does, as it says itself.
    pub fn node_status(&self, node: &str) -> Result<NodeStatus, Error> {
        let node_id = self.node_id(node)?;
        let timeout_ms = self.context.options.get_timeout_ms;
        let answer = self.context.ask_once(Peer::Node(node_id), &GetNodeStatus {}, timeout_ms);
        Ok(answer.map_err(|error| refused("status of node", &StorePath::root(), error))?)
    }

    fn node_id(&self, id_or_name: &str) -> Result<u64, Error> {
        let root = StorePath::root();
        self.context.refresh_map().map_err(|error| refused("find a node in", &root, error))?;
        let found = self.context.view.read().find_node(id_or_name).map(|node| node.node_id);
        Ok(found.ok_or_else(|| {
            let error =
                WireError::new(Code::NotFound, format!("there is no node {id_or_name:?}; see `tessera node list`"));
            refused("find a node in", &root, error)
        })?)
    }

    /// Gives up whatever is under way, and waits, at most `limit`, until the manager knows of every session that it has
    /// ended; whether it does. A process that is about to end calls this: else its sessions are kept until they expire. Reads
    /// that other threads wait for never end after it.
    pub fn close(&self, limit: Duration) -> bool {
        self.context.close_all(limit)
    }

    /// Waits until redundancy of optimistic writes has followed, at most `limit`; whether all has.
    pub fn flush(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.context.in_background() > 0 {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

fn refused(operation: &'static str, path: &StorePath, error: WireError) -> PathOpError {
    PathOpError::Refused { operation, path: path.brief(), error: by_name(error) }
}

fn hint_error(path: &StorePath, error: tessera_policy::HintError) -> PathOpError {
    PathOpError::Hint { path: path.brief(), message: error.to_string() }
}

/// Hints in canonical form, or which of them is wrong, or says other than one before it.
fn canonical(path: &StorePath, hints: &[(String, String)]) -> Result<Vec<Hint>, PathOpError> {
    let mut all: Vec<Hint> = Vec::with_capacity(hints.len());
    for (name, value) in hints {
        let (own, value) = tessera_policy::canonical(name, value).map_err(|e| hint_error(path, e))?;
        match all.iter().find(|hint| hint.name == own) {
            Some(said) if said.value != value => {
                let message =
                    format!("{own}={} and {own}={value} (as {name}) exclude each other; give one", said.value);
                return Err(PathOpError::Hint { path: path.brief(), message });
            }
            Some(_) => {}
            None => all.push(Hint { name: own.to_string(), value }),
        }
    }
    Ok(all)
}

// The enums say which operation failed; callers that only pass errors on need not.
impl From<WriteError> for std::io::Error {
    fn from(error: WriteError) -> Self {
        std::io::Error::other(error)
    }
}

impl From<ReadError> for std::io::Error {
    fn from(error: ReadError) -> Self {
        std::io::Error::other(error)
    }
}
