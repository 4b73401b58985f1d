//! Reaches the cluster: the client library with this program's options, and its errors in one line.

use crate::args::Common;
use crate::exit::{Exit, Failure, Outcome};
use crate::term::Out;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_client::inodes::NewAttr;
use tessera_client::path::StorePath;
use tessera_client::{
    Cancel, Client, Error, GetOptions, Options, Owner, Progress, PutOptions, Sink, Source, WriteDone,
};
use tessera_net::{BufferPool, Dialer, DialerOptions, dialer::NoService};
use tessera_wire::meta::{ClusterStatus, Dirent, GetStatus};
use tessera_wire::{Attr, Hello, Request, Role};

/// An inode and its path.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Path.
    pub path: StorePath,
    /// Its attributes.
    pub attr: Attr,
}

impl Deref for Item {
    type Target = Attr;
    fn deref(&self) -> &Attr {
        &self.attr
    }
}

/// Attributes and conditions of a file to store.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// Hints; they override those of the directory.
    pub hints: Vec<(String, String)>,
    /// Store only if this is the current version.
    pub if_version: Option<u64>,
    /// Permission bits.
    pub mode: u32,
    /// Modification time, ns since 1970; 0: now.
    pub mtime_ns: i64,
    /// User and group; `None`: this process's.
    pub owner: Option<(u32, u32)>,
}

/// The part of a file to read.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Version number; `None`: the current one.
    pub version: Option<u64>,
    /// Start, and end if there is one.
    pub range: Option<(u64, Option<u64>)>,
}

/// A connection to the cluster: a [`Client`] with the command's options.
pub struct Store {
    client: Client,
}

impl Drop for Store {
    /// Reports the client's computation for `tessera status`, and ends sessions that failed at the manager, too.
    fn drop(&mut self) {
        self.client.close(crate::cleanup::CLOSE_TIMEOUT);
        self.client.report_work();
    }
}

/// Pause between two attempts to reach a manager that is starting.
const RETRY: Duration = Duration::from_millis(200);
/// A command waits this long for the redundancy of optimistic writes before it ends.
const SETTLE: Duration = Duration::from_secs(120);

impl Store {
    /// Connects. Retries a manager that does not answer until `--wait` is over.
    ///
    /// # Errors
    /// The manager cannot be reached in time, or refuses.
    pub fn connect(common: &Common) -> Outcome<Store> {
        let wait_ms = common.wait.saturating_mul(1000);
        let options = Options {
            manager_timeout_ms: Options::default().manager_timeout_ms.min(wait_ms.max(1000)),
            manager_deadline_ms: wait_ms,
            ..Options::default()
        };
        Ok(Store { client: Store::client(common, options)? })
    }

    /// A client of the cluster, with the timeouts of `options`; connects as [`Store::connect`] does.
    ///
    /// # Errors
    /// As [`Store::connect`].
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

    /// If this command is interrupted, it tells the manager that its sessions have ended.
    pub fn give_up_when_interrupted(&self) {
        crate::cleanup::give_up(&self.client);
    }

    /// The inode at a path.
    ///
    /// # Errors
    /// The path does not exist, or the manager cannot be reached.
    pub fn item(&self, path: &StorePath) -> Outcome<Item> {
        Ok(Item { path: path.clone(), attr: self.stat(path)? })
    }

    /// Entries of a directory, in byte order of names.
    ///
    /// # Errors
    /// The path is no directory, or the manager cannot be reached.
    pub fn items(&self, path: &StorePath) -> Outcome<Vec<Item>> {
        let item = |entry: Dirent| {
            let path = path.join(&entry.name).map_err(|e| Failure::usage(e.to_string()))?;
            Ok(Item { path, attr: entry.attr.unwrap_or_default() })
        };
        self.list(path)?.into_iter().map(item).collect()
    }

    /// Changes mode, time and owner. Owner `None`: this process's user.
    ///
    /// # Errors
    /// The path does not exist, or the manager refuses.
    pub fn set_attributes(&self, path: &StorePath, mode: u32, mtime_ns: i64, of: Option<(u32, u32)>) -> Outcome {
        let Owner { mode, uid, gid } = owner(mode, of);
        let (mode, uid, gid, mtime_ns) = (Some(mode), Some(uid), Some(gid), Some(mtime_ns));
        self.set_attr(path, NewAttr { mode, uid, gid, mtime_ns, atime_ns: None })?;
        Ok(())
    }

    /// Stores a file again under its current policy. `progress` receives the number of further bytes done.
    ///
    /// # Errors
    /// The file cannot be read, or the store refuses the new version.
    pub fn rewrite(&self, item: &Item, progress: &(dyn Fn(u64) + Sync)) -> Outcome<WriteDone> {
        let mut told = 0;
        let mut hear = |p: Progress| {
            progress(p.done.saturating_sub(told));
            told = told.max(p.done);
        };
        let done = self.inodes().rewrite(item.attr.ino, &mut hear, &Cancel::default());
        done.map_err(|e| Failure::from(e).of(&item.path))
    }

    /// Stores a file. `progress` receives the number of further bytes read.
    ///
    /// # Errors
    /// The source cannot be read, or the store refuses the file.
    pub fn store(
        &self,
        path: &StorePath,
        source: Source<'_>,
        given: &Given,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Outcome<WriteDone> {
        let mut hear = steps(progress);
        let options = PutOptions {
            hints: given.hints.clone(),
            if_version: given.if_version,
            mtime_ns: given.mtime_ns,
            owner: owner(given.mode, given.owner),
            progress: Some(&mut hear),
            ..PutOptions::default()
        };
        Ok(self.put(path, source, options)?)
    }

    /// Fetches a file and returns its number of bytes. `progress` receives the number of further bytes that arrived.
    ///
    /// # Errors
    /// The file cannot be read or verified, or the sink cannot be written.
    pub fn fetch(
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
        Ok(self.get(path, sink, options)?.1)
    }

    /// Waits for the redundancy of optimistic writes.
    ///
    /// # Errors
    /// It does not arrive within two minutes.
    pub fn settle(&self) -> Outcome {
        match self.client.flush(SETTLE) {
            true => Ok(()),
            false => Err(Failure::new(
                Exit::Unavailable,
                "everything is stored and can be read, but not all redundancy has followed; the cluster repairs it",
            )),
        }
    }
}

impl Deref for Store {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

/// Converts cumulative progress into steps.
fn steps(hear: &(dyn Fn(u64) + Sync)) -> impl FnMut(Progress) + Send + '_ {
    let mut last = 0;
    move |progress: Progress| {
        hear(progress.done.saturating_sub(last));
        last = progress.done;
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

/// Sends one request, without the client library's retries.
///
/// # Errors
/// The peer does not answer within `timeout`, or answers with an error.
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

/// The state of the cluster, in one attempt.
///
/// # Errors
/// The manager does not answer.
pub fn status_once(address: &str) -> Outcome<ClusterStatus> {
    ask_once(address, &GetStatus {}, Duration::from_secs(5))
}
