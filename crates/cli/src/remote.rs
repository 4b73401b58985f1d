//! Reaches the cluster: the client library with this program's options, and its errors in one line.

use crate::args::{Common, MemoryArgs};
use crate::exit::{Failure, Outcome, bail};
use crate::term::{Out, units};
use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_client::path::StorePath;
use tessera_client::{Client, Error, Options};
use tessera_net::{BufferPool, Dialer, dialer::NoService};
use tessera_wire::meta::{ClusterStatus, Dirent, GetStatus};
use tessera_wire::{Attr, Hello, Role};

/// An inode and its path.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Path.
    pub path: StorePath,
    /// Its attributes.
    pub attr: Attr,
}

impl Item {
    fn of(directory: &StorePath, entry: Dirent) -> Outcome<Item> {
        Ok(Item { path: directory.join(&entry.name)?, attr: entry.attr.unwrap_or_default() })
    }
}

impl Deref for Item {
    type Target = Attr;
    fn deref(&self) -> &Attr {
        &self.attr
    }
}

/// A connection to the cluster: a [`Client`] with the command's options.
pub struct Store {
    client: Client,
    _notice: Option<WaitNotice>,
}

impl Drop for Store {
    /// Reports the client's computation for `tessera status`, and ends sessions that failed at the manager, too.
    fn drop(&mut self) {
        self.client.close(crate::cleanup::CLOSE_TIMEOUT);
        self.client.report_work();
    }
}

/// A command that has waited this long for the manager says so.
const NOTICE_AFTER: Duration = Duration::from_secs(3);

/// Tells the user that a command waits for the manager, and for which. Ends when dropped.
pub struct WaitNotice {
    _stop: Sender<()>,
}

impl WaitNotice {
    /// `silence` says how long the manager has not answered.
    fn of_manager(common: &Common, silence: impl Fn() -> Duration + Send + 'static) -> Option<WaitNotice> {
        let Common { manager, wait, .. } = common;
        let whom = match is_list(manager) {
            false => format!("the manager at {manager}, which does not answer"),
            true => format!("the managers at {manager}, none of which answers and leads"),
        };
        let text = format!("waiting for {whom} ... (for {wait} s at most; --wait changes it)");
        WaitNotice::start(common.output, text, silence)
    }

    /// Prints `text` once the wait that `silence` measures has lasted. `None`: nobody is to be told.
    pub fn start(out: Out, text: String, silence: impl Fn() -> Duration + Send + 'static) -> Option<WaitNotice> {
        let (stop, stopped) = bounded::<()>(0);
        let mut said = false;
        let watch = move || {
            while stopped.recv_timeout(NOTICE_AFTER / 6) == Err(RecvTimeoutError::Timeout) {
                let silence = silence();
                if silence >= NOTICE_AFTER && !said {
                    out.note(&text);
                }
                said = silence >= NOTICE_AFTER;
            }
        };
        let watching = out.has_notes().then(|| std::thread::Builder::new().name("wait-notice".into()).spawn(watch));
        watching?.ok()?;
        Some(WaitNotice { _stop: stop })
    }
}

/// Whether `managers` names several.
fn is_list(managers: &str) -> bool {
    managers.contains(',')
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
        Store::connect_with(common, Options::default())
    }

    /// As [`Store::connect`], for a command that writes or reads files.
    ///
    /// # Errors
    /// As [`Store::connect`].
    pub fn connect_for_files(common: &Common, memory: MemoryArgs) -> Outcome<Store> {
        Store::connect_with(common, Options { memory_bytes: memory.memory, ..Options::default() })
    }

    fn connect_with(common: &Common, options: Options) -> Outcome<Store> {
        let wait_ms = common.wait.saturating_mul(1000);
        let options = Options {
            manager_timeout_ms: options.manager_timeout_ms.min(wait_ms.max(1000)),
            manager_deadline_ms: wait_ms,
            ..options
        };
        let client = Store::client(common, options)?;
        let watched = client.clone();
        let _notice = WaitNotice::of_manager(common, move || watched.manager_silence());
        Ok(Store { client, _notice })
    }

    /// A client of the cluster, with the timeouts of `options`; connects as [`Store::connect`] does.
    ///
    /// # Errors
    /// As [`Store::connect`].
    pub fn client(common: &Common, options: Options) -> Outcome<Client> {
        let host = common.host.clone().unwrap_or_else(crate::daemon::config::host_name);
        let options = Options { host, device: common.device, ..options };
        let deadline = Instant::now() + Duration::from_secs(common.wait);
        let started = Instant::now();
        let _notice = WaitNotice::of_manager(common, move || started.elapsed());
        loop {
            let (managers, error) = match Client::connect(&common.manager, options.clone()) {
                Err(Error::Connect { managers, error }) => (managers, error),
                other => {
                    let client = other?;
                    if let Some(doubt) = client.cluster_doubt() {
                        common.output.caution(doubt.to_string());
                    }
                    return Ok(client);
                }
            };
            if !error.is_retryable() {
                return Err(Failure::from(error).of(format!("manager {managers}")));
            }
            if Instant::now() + RETRY >= deadline {
                let Failure { exit, message } = error.into();
                let runs = if is_list(&managers) { "a majority of them runs" } else { "it runs" };
                bail!(
                    exit,
                    "manager {managers}: {message}; check that {runs}, or name it with --manager or TESSERA_MANAGER"
                );
            }
            std::thread::sleep(RETRY);
        }
    }

    /// If this command is interrupted, it tells the manager that its sessions have ended.
    pub fn end_sessions_on_interrupt(&self) {
        crate::cleanup::register_client(&self.client);
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
        self.list(path)?.into_iter().map(|entry| Item::of(path, entry)).collect()
    }

    /// As [`Store::items`], some thousands at a time, so that a long directory is never in memory as a whole. The first failure ends it.
    ///
    /// # Errors
    /// As [`Store::items`].
    pub fn item_pages(&self, path: &StorePath) -> Outcome<impl Iterator<Item = Outcome<Vec<Item>>> + '_> {
        let directory = path.clone();
        let items = move |page: Vec<Dirent>| page.into_iter().map(|entry| Item::of(&directory, entry)).collect();
        Ok(self.list_pages(path)?.map(move |page| items(page?)))
    }

    /// Waits for the redundancy of optimistic writes. Returns how many chunks have less than they should: nodes did not
    /// take the rest in time, and repair stores it.
    pub fn settle(&self) -> u64 {
        self.client.flush(SETTLE)
    }

    /// Tells the user of the chunks that [`Store::settle`] counted. This is no failure: the hint `optimistic` asks for it.
    pub fn note_reduced(out: Out, chunks: u64) {
        if chunks > 0 {
            let have = if chunks == 1 { "has" } else { "have" };
            out.note(format!("{} {have} reduced redundancy; repair completes it", units::plural(chunks, "chunk")));
        }
    }
}

impl Deref for Store {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

/// The state of the cluster, in one attempt, without the client library's retries.
///
/// # Errors
/// The manager does not answer within five seconds.
pub fn status_once(address: &str) -> Outcome<ClusterStatus> {
    let endpoint = crate::daemon::config::endpoint(address)?;
    let hello = Hello {
        protocol_version: tessera_wire::PROTOCOL_VERSION,
        role: Role::Client as i32,
        release: env!("CARGO_PKG_VERSION").into(),
        client_id: rand::random(),
        ..Hello::default()
    };
    let dialer = Dialer::new(hello, Arc::new(NoService), BufferPool::new(1 << 20));
    let answer = dialer.call_wait(&endpoint, &GetStatus {}, Vec::new(), Duration::from_secs(5));
    dialer.close();
    Ok(answer?.0)
}
