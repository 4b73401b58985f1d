//! Reaching the cluster: the client library with this program's options, and its errors in one line.

use crate::args::Common;
use crate::exit::{Exit, Failure, Outcome};
use crate::files::holes;
use crate::term::Out;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_client::locate::Located;
use tessera_client::path::StorePath;
use tessera_client::similarity::Similarity;
use tessera_client::{
    Cancel, Client, Error, GetOptions, Options, Owner, PathOpError, Progress, PutMode, PutOptions, ReadReport, Sink,
    Source, WriteDone,
};
use tessera_net::{BufferPool, Dialer, DialerOptions, dialer::NoService};
use tessera_wire::meta::{ClusterStatus, Dirent, GetStatus, MaintainReply, MaintenanceJob, VersionInfo};
use tessera_wire::{Attr, Hello, InodeKind, Request, Role};

/// An inode and the path it was found at.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Where.
    pub path: StorePath,
    /// File, directory or symbolic link.
    pub kind: InodeKind,
    /// Inode number.
    pub ino: u64,
    /// Length of the current version.
    pub size_bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names it has.
    pub nlink: u32,
    /// Modification time, ns since 1970.
    pub mtime_ns: i64,
    /// Change time, ns since 1970.
    pub ctime_ns: i64,
    /// Current version id.
    pub version: u64,
    /// Its number within the file.
    pub version_number: u64,
    /// Target of a symbolic link.
    pub symlink_target: Vec<u8>,
}

/// What a file is stored with.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// Hints over those of the directory.
    pub hints: Vec<(String, String)>,
    /// Only over this version.
    pub if_version: Option<u64>,
    /// Permission bits.
    pub mode: u32,
    /// Modification time, ns since 1970; 0: now.
    pub mtime_ns: i64,
    /// User and group; none: this process's.
    pub owner: Option<(u32, u32)>,
}

/// What of a file is wanted.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Number of the version; none: the current one.
    pub version: Option<u64>,
    /// From, and up to.
    pub range: Option<(u64, Option<u64>)>,
}

/// What came of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Id of the new version.
    pub version: u64,
    /// Its length.
    pub bytes: u64,
    /// Bytes of chunks that the cluster did not have.
    pub new_bytes: u64,
}

/// A connection to the cluster.
pub struct Store {
    client: Client,
}

impl Drop for Store {
    /// `tessera status` tells what clients computed; sessions that failed are over for the manager, too.
    fn drop(&mut self) {
        self.client.close(crate::cleanup::CLOSE_TIMEOUT);
        self.client.report_work();
    }
}

/// Bytes read at a time of a file with holes.
const SPARSE_BUFFER: usize = 1 << 20;
/// Between two attempts to reach a manager that is starting.
const RETRY: Duration = Duration::from_millis(200);
/// Redundancy of optimistic writes gets this long to follow before a command ends.
const SETTLE: Duration = Duration::from_secs(120);

impl Store {
    /// Connects. A manager that does not answer is asked again until `--wait` is over.
    pub fn connect(common: &Common) -> Outcome<Store> {
        let wait_ms = common.wait.saturating_mul(1000);
        let options = Options {
            manager_timeout_ms: Options::default().manager_timeout_ms.min(wait_ms.max(1000)),
            manager_deadline_ms: wait_ms,
            ..Options::default()
        };
        Ok(Store { client: Store::client(common, options)? })
    }

    /// A client of the cluster, with its patience in `options`; reached as [`Store::connect`] does.
    pub fn client(common: &Common, options: Options) -> Outcome<Client> {
        let host = common.host.clone().unwrap_or_else(crate::daemon::config::host_name);
        let options = Options { host, device: common.device, ..options };
        let deadline = Instant::now() + Duration::from_secs(common.wait);
        let mut told = false;
        loop {
            match Client::connect(&common.manager, options.clone()) {
                Ok(client) => return Ok(client),
                Err(Error::Connect { address, error }) => {
                    if error.is_retryable() && Instant::now() + RETRY < deadline {
                        if !std::mem::replace(&mut told, true) {
                            Out::new(common.output).note(format!("waiting for the manager at {} ...", common.manager));
                        }
                        std::thread::sleep(RETRY);
                        continue;
                    }
                    return Err(unreachable_manager(&address, &error));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// An interrupted command tells the manager that nothing more will come of its sessions.
    pub fn give_up_when_interrupted(&self) {
        crate::cleanup::give_up(&self.client);
    }

    /// What a path names.
    pub fn resolve(&self, path: &StorePath) -> Outcome<Item> {
        let entry = self.client.resolve(path)?;
        Ok(Item::new(path.clone(), entry.attr.unwrap_or_default()))
    }

    /// Entries of a directory, in byte order of names.
    pub fn list(&self, path: &StorePath) -> Outcome<Vec<Item>> {
        let item = |entry: Dirent| {
            let path = path.join(&entry.name).map_err(|e| Failure::usage(e.to_string()))?;
            Ok(Item::new(path, entry.attr.unwrap_or_default()))
        };
        self.client.list(path)?.into_iter().map(item).collect()
    }

    /// Makes a directory; with `exist_ok` one that is there will do.
    pub fn make_directory(&self, path: &StorePath, exist_ok: bool) -> Outcome {
        if path.is_root() && exist_ok {
            return Ok(());
        }
        match self.client.mkdir(path).map_err(Failure::from) {
            Ok(_) => Ok(()),
            Err(failure) if failure.exit == Exit::Conflict && exist_ok => match self.resolve(path)?.kind {
                InodeKind::Directory => Ok(()),
                _ => Err(Failure::new(Exit::Conflict, format!("{path}: is in the way of a directory and is none"))),
            },
            Err(failure) => Err(failure),
        }
    }

    /// Makes a directory and those above it.
    pub fn make_all(&self, path: &StorePath) -> Outcome {
        self.client.mkdir_all(path)?;
        Ok(())
    }

    /// Removes a file or symbolic link.
    pub fn unlink(&self, path: &StorePath) -> Outcome {
        Ok(self.client.unlink(path, false)?)
    }

    /// Removes everything below a directory and it; how many entries that were.
    pub fn remove_all(&self, path: &StorePath) -> Outcome<u64> {
        Ok(self.client.remove_all(path, None, &Cancel::default())?)
    }

    /// Moves a name.
    pub fn rename(&self, from: &StorePath, to: &StorePath, no_replace: bool) -> Outcome {
        Ok(self.client.rename(from, to, no_replace)?)
    }

    /// Makes a symbolic link; a link or file of that name gives way.
    pub fn symlink(&self, path: &StorePath, target: &[u8]) -> Outcome {
        match self.client.symlink(target, path).map_err(Failure::from) {
            Ok(_) => Ok(()),
            Err(failure) if failure.exit == Exit::Conflict => {
                let item = self.resolve(path)?;
                if item.kind == InodeKind::Symlink && item.symlink_target == target {
                    return Ok(());
                }
                self.unlink(path)?;
                self.client.symlink(target, path)?;
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// Changes mode and time, and makes somebody the owner; none: this process's user.
    pub fn set_attributes(&self, path: &StorePath, mode: u32, mtime_ns: i64, of: Option<(u32, u32)>) -> Outcome {
        let owner = owner(mode, of);
        self.client.set_attr(path, Some(mode), Some(owner.uid), Some(owner.gid), Some(mtime_ns))?;
        Ok(())
    }

    /// Hints that are set on a path: name and value.
    pub fn hints(&self, path: &StorePath) -> Outcome<Vec<(String, String)>> {
        let entry = self.client.resolve(path)?;
        Ok(entry.hints.into_iter().map(|h| (h.name, h.value)).collect())
    }

    /// Sets hints; an empty value takes one away.
    pub fn set_hints(&self, path: &StorePath, hints: &[(String, String)]) -> Outcome {
        let (gone, set): (Vec<_>, Vec<_>) = hints.iter().cloned().partition(|(_, value)| value.is_empty());
        self.client.set_policy(path, &set)?;
        let there = if gone.is_empty() { Vec::new() } else { self.hints(path)? };
        for (name, _) in gone.iter().filter(|(name, _)| there.iter().any(|(n, _)| n == name)) {
            self.client.remove_xattr(path, &format!("{}{name}", tessera_policy::PREFIX))?;
        }
        Ok(())
    }

    /// Stores a file anew as its policy asks now; `progress` hears how many bytes more are done.
    pub fn rewrite(&self, item: &Item, progress: &(dyn Fn(u64) + Sync)) -> Outcome<WriteDone> {
        let mut told = 0;
        let mut hear = |p: Progress| {
            progress(p.done.saturating_sub(told));
            told = told.max(p.done);
        };
        let done = self.client.inodes().rewrite(item.ino, &mut hear, &Cancel::default());
        done.map_err(|e| Failure::from(e).of(&item.path))
    }

    /// Where a file lies.
    pub fn locate(&self, path: &StorePath) -> Outcome<Located> {
        Ok(self.client.locate(path)?)
    }

    /// Versions of a file, oldest first.
    pub fn versions(&self, path: &StorePath) -> Outcome<Vec<VersionInfo>> {
        Ok(self.client.versions(path)?)
    }

    /// The same, each beside what was there before it.
    pub fn similarity(&self, path: &StorePath) -> Outcome<Vec<Similarity>> {
        Ok(self.client.similarity(path)?)
    }

    /// Stores a file; `progress` hears how many bytes more have been read.
    pub fn put(
        &self,
        path: &StorePath,
        mut source: impl Read + Send,
        given: &Given,
        len_bytes: Option<u64>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Outcome<Stored> {
        let mut hear = steps(progress);
        let options = PutOptions { progress: Some(&mut hear), ..put_options(given) };
        let done = self.client.put(path, Source::Reader { reader: &mut source, len_bytes }, options)?;
        Ok(Stored { version: done.version, bytes: done.input_bytes, new_bytes: done.new_bytes })
    }

    /// Stores a file that has holes: they are not read, and stay holes.
    pub fn put_sparse(
        &self,
        path: &StorePath,
        file: &mut File,
        given: &Given,
        len_bytes: u64,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Outcome<Stored> {
        let io = |e: std::io::Error| Failure::io(path, &e);
        let mut handle = self.client.open_write(path, put_options(given))?;
        let (mut buffer, mut at) = (vec![0; SPARSE_BUFFER], 0);
        while let Some(stretch) = holes::next_data(file, at, len_bytes).map_err(io)? {
            progress(stretch.start - at);
            handle.skip_to(stretch.start).map_err(Error::from)?;
            file.seek(SeekFrom::Start(stretch.start)).map_err(io)?;
            at = stretch.start;
            while at < stretch.end {
                let room = buffer.len().min(usize::try_from(stretch.end - at).unwrap_or(usize::MAX));
                match file.read(&mut buffer[..room]).map_err(io)? {
                    // It became shorter meanwhile.
                    0 => break,
                    n => {
                        handle.write(&buffer[..n]).map_err(Error::from)?;
                        progress(n as u64);
                        at += n as u64;
                    }
                }
            }
        }
        progress(len_bytes.saturating_sub(at));
        handle.skip_to(len_bytes.max(at)).map_err(Error::from)?;
        let done = handle.finish().map_err(Error::from)?;
        Ok(Stored { version: done.version, bytes: len_bytes.max(at), new_bytes: done.new_bytes })
    }

    /// Fetches a file; `progress` hears how many bytes more have arrived. How many there were.
    pub fn get(
        &self,
        path: &StorePath,
        sink: Sink<'_>,
        wanted: &Wanted,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Outcome<u64> {
        let mut hear = steps(progress);
        let options = GetOptions {
            version: wanted.version.unwrap_or(0),
            range: wanted.range.map(|(start, end)| start..end.unwrap_or(u64::MAX)),
            progress: Some(&mut hear),
            cancel: Cancel::default(),
        };
        Ok(self.client.get(path, sink, options)?.1)
    }

    /// What the reads so far had to do without.
    pub fn read_report(&self) -> ReadReport {
        self.client.read_report()
    }

    /// Waits for the redundancy of optimistic writes; says so if it does not come.
    pub fn settle(&self) -> Outcome {
        match self.client.flush(SETTLE) {
            true => Ok(()),
            false => Err(Failure::new(
                Exit::Unavailable,
                "everything is stored and can be read, but not all redundancy has followed; the cluster repairs it",
            )),
        }
    }

    /// The state of the cluster.
    pub fn status(&self) -> Outcome<ClusterStatus> {
        self.client.status().map_err(of_cluster)
    }

    /// Empties a node or one of its disks (0: all), or takes that back.
    pub fn drain(&self, node: u64, disk: u64, undo: bool) -> Outcome {
        self.client.drain(&node.to_string(), disk, undo).map_err(of_cluster)
    }

    /// Starts or looks at a pass of upkeep.
    pub fn maintain(&self, what: MaintenanceJob, start: bool) -> Outcome<MaintainReply> {
        self.client.maintain(what, start).map_err(of_cluster)
    }
}

impl Item {
    fn new(path: StorePath, attr: Attr) -> Item {
        Item {
            path,
            kind: attr.kind(),
            ino: attr.ino,
            size_bytes: attr.size_bytes,
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            nlink: attr.nlink,
            mtime_ns: attr.mtime_ns,
            ctime_ns: attr.ctime_ns,
            version: attr.version,
            version_number: attr.version_number,
            symlink_target: attr.symlink_target,
        }
    }
}

/// A failure of what is about no path.
fn of_cluster(error: Error) -> Failure {
    match error {
        Error::PathOp(PathOpError::Refused { error, .. }) => error.into(),
        error => error.into(),
    }
}

/// Progress in steps, from progress in sums.
fn steps(hear: &(dyn Fn(u64) + Sync)) -> impl FnMut(Progress) + Send + '_ {
    let mut last = 0;
    move |progress: Progress| {
        hear(progress.done.saturating_sub(last));
        last = progress.done;
    }
}

fn put_options(given: &Given) -> PutOptions<'static> {
    PutOptions {
        hints: given.hints.clone(),
        mode: PutMode::Replace,
        if_version: given.if_version,
        mtime_ns: given.mtime_ns,
        owner: owner(given.mode, given.owner),
        progress: None,
        cancel: Cancel::default(),
    }
}

fn owner(mode: u32, owner: Option<(u32, u32)>) -> Owner {
    let ours = || (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let (uid, gid) = owner.unwrap_or_else(ours);
    Owner { mode, uid, gid }
}

fn unreachable_manager(address: &str, error: &tessera_wire::Error) -> Failure {
    let failure = Failure::from(error.clone()).of(format!("manager {address}"));
    match error.is_retryable() {
        true => Failure {
            message: format!("{}; check that it runs, or name it with --manager or TESSERA_MANAGER", failure.message),
            ..failure
        },
        false => failure,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::new(Exit::of_code(error.code()), error.to_string())
    }
}

/// Asks once, without the client library's patience.
pub fn ask_once<R: Request>(address: &str, message: &R, timeout: Duration) -> Outcome<R::Reply> {
    let endpoint = crate::daemon::config::endpoint(address)?;
    let hello = Hello {
        protocol_version: tessera_wire::PROTOCOL_VERSION,
        role: Role::Client as i32,
        release: env!("CARGO_PKG_VERSION").into(),
        client_id: rand::random(),
        ..Hello::default()
    };
    let dialer = Dialer::new(hello, Arc::new(NoService), BufferPool::new(1 << 20), DialerOptions::default());
    let answer = dialer.call_wait(&endpoint, message, Vec::new(), timeout);
    dialer.close();
    Ok(answer.map_err(Failure::from)?.0)
}

/// The state of the cluster, asked once.
pub fn status_once(address: &str) -> Outcome<ClusterStatus> {
    ask_once(address, &GetStatus {}, Duration::from_secs(5))
}
