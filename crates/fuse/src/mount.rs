//! Mounts a store, serves it until it is unmounted, and leaves nothing uncommitted behind.

use crate::beside::Beside;
use crate::counts::{Counts, MountMetrics};
use crate::files::Files;
use crate::fs::TesseraFs;
use crate::locking::Locking;
use crate::namespace::{self, NamespaceShell};
use crate::rewrites::{self, Rewrites};
use crate::spool::{self, Spool, SpoolError, SpoolOptions};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use fuser::{BackgroundSession, Config, Errno, INodeNo, MountOption, Notifier, SessionACL};
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tessera_client::Client;
use tessera_mount::kernel_cache::KernelCache;
use tessera_mount::namespace::{Name, Scope};
use tessera_mount::spool::speed::SpeedTable;
use thiserror::Error;

/// Options of a mount.
#[derive(Debug, Clone)]
pub struct Options {
    /// Longest time for which the kernel answers from its cache; 0: it always asks (strict). When another client
    /// changes something, the manager's recall ends the caching earlier.
    pub cache_ttl: Duration,
    /// The kernel collects small writes (FUSE's write-back cache).
    pub write_back: bool,
    /// Users other than the one that mounts may use the mount.
    pub allow_other: bool,
    /// The mount rejects every change.
    pub read_only: bool,
    /// Number of requests served at a time.
    pub threads: usize,
    /// KiB that the kernel reads ahead of a sequential reader.
    pub read_ahead_kib: u64,
    /// The spool for files whose write mode asks for it; none: they are written like all other files.
    pub spool: Option<SpoolOptions>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            cache_ttl: Duration::from_secs(1),
            write_back: true,
            allow_other: rustix::process::geteuid().is_root(),
            read_only: false,
            threads: 16,
            read_ahead_kib: 8 << 10,
            spool: None,
        }
    }
}

/// Why the mount failed.
#[derive(Debug, Error)]
pub enum MountError {
    /// The mount point is not a directory.
    #[error("{path}: {error}; make the directory first")]
    NoDirectory {
        /// Mount point.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// FUSE is not available.
    #[error("/dev/fuse: {0}; load the fuse module, or give the container the device")]
    NoFuse(std::io::Error),
    /// The spool cannot be used.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The cluster id, to which a spool belongs, cannot be fetched.
    #[error("the store's identity is not known: {0}")]
    Unknown(tessera_client::Error),
    /// The kernel or `fusermount3` refused.
    #[error("{path}: cannot be mounted: {error}")]
    Refused {
        /// Mount point.
        path: PathBuf,
        /// The error.
        error: std::io::Error,
    },
}

/// Everything that an operation needs.
pub struct Store {
    /// Connection to the cluster.
    pub client: Client,
    /// Cached attributes, delegations, deferred creates.
    pub namespace: Arc<NamespaceShell>,
    /// What the kernel caches of each inode.
    pub kernel: Mutex<KernelCache>,
    /// Open files.
    pub files: Files,
    /// Background rewrites.
    pub rewrites: Rewrites,
    /// Locks.
    pub locking: Locking,
    /// Threads that use the mount as programs do.
    pub beside: Beside,
    /// The spool, if there is one.
    pub spool: Option<Spool>,
    /// Write speeds of recent files.
    pub speeds: Mutex<SpeedTable>,
    /// Request counters.
    pub counts: Counts,
    /// The options of this mount.
    pub options: Options,
    stale: Sender<Stale>,
}

impl Store {
    /// Makes sure that the manager knows a file, which may be a deferred create.
    ///
    /// # Errors
    /// As [`NamespaceShell::settle`].
    pub fn settle(&self, ino: u64) -> Result<(), Errno> {
        self.namespace.settle(&self.client, Scope::File(ino))
    }

    /// Waits until the kernel has dropped every name that was recalled so far.
    pub fn wait_for_kernel(&self) {
        let (done, forgotten) = bounded(1);
        if self.stale.send(Stale::Tell(done)).is_ok() {
            let _ = forgotten.recv_timeout(LEAVE_WITHIN);
        }
    }
}

/// Longest wait after the unmount for requests in progress.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// What to tell the kernel, in order.
pub enum Stale {
    /// The kernel must drop these names.
    Names(Vec<Name>),
    /// Reply once everything before is done.
    Tell(Sender<()>),
}

/// A mounted store.
pub struct Mount {
    session: BackgroundSession,
    store: Arc<Store>,
    path: PathBuf,
    _forgetting: JoinHandle<()>,
}

impl Mount {
    /// Mounts the store `client` is connected to at `path`.
    ///
    /// # Errors
    /// [`MountError`], which names the way out.
    pub fn new(client: Client, path: &Path, options: Options) -> Result<Mount, MountError> {
        let refused = |error| MountError::Refused { path: path.to_path_buf(), error };
        let found = path
            .canonicalize()
            .and_then(|p| if p.is_dir() { Ok(p) } else { Err(std::io::ErrorKind::NotADirectory.into()) });
        let path = found.map_err(|error| MountError::NoDirectory { path: path.to_path_buf(), error })?;
        std::fs::metadata("/dev/fuse").map_err(MountError::NoFuse)?;
        let config = config(&options);
        let (rewrites, to_rewrite) = Rewrites::new();
        // Must come before the mount's device is opened.
        let beside = Beside::start(&path).map_err(refused)?;
        let (stale, to_forget) = unbounded();
        let (spool, to_push) = open_spool(&client, &options, &path)?.unzip();
        let store = Arc::new(Store {
            client,
            namespace: Arc::new(NamespaceShell::new(stale.clone())),
            kernel: Mutex::default(),
            files: Files::default(),
            rewrites,
            locking: Locking::default(),
            beside,
            spool,
            speeds: Mutex::default(),
            counts: Counts::default(),
            options,
            stale,
        });
        hear_recalls(&store);
        spool::recover(&store);
        let session = fuser::Session::new(TesseraFs::new(store.clone()), &path, &config).map_err(refused)?;
        let session = session.spawn().map_err(refused)?;
        read_ahead(&path, store.options.read_ahead_kib);
        let notifier = session.notifier();
        let forgetting = std::thread::Builder::new().name("forget".into());
        let forgetting = forgetting.spawn(move || forget(&notifier, &to_forget)).map_err(refused)?;
        let weak = Arc::downgrade(&store);
        let rewriting = std::thread::Builder::new().name("rewrite".into());
        rewriting.spawn(move || rewrites::work(&weak, &to_rewrite)).map_err(refused)?;
        let weak = Arc::downgrade(&store);
        let settling = std::thread::Builder::new().name("settle".into());
        let shell = store.namespace.clone();
        settling.spawn(move || namespace::work(&shell, &weak)).map_err(refused)?;
        for _ in 0..spool::push::THREADS {
            let (Some(to_push), weak) = (to_push.clone(), Arc::downgrade(&store)) else { break };
            let pushing = std::thread::Builder::new().name("push".into());
            pushing.spawn(move || spool::push::work(&weak, &to_push)).map_err(refused)?;
        }
        Ok(Mount { session, store, path, _forgetting: forgetting })
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a function that gives the metrics until the mount is gone.
    pub fn metrics(&self) -> impl Fn() -> Option<MountMetrics> + Send + Sync + 'static {
        let store = Arc::downgrade(&self.store);
        move || store.upgrade().map(|store| MountMetrics::of(&store))
    }

    /// Whether the mount was unmounted from outside.
    pub fn is_over(&self) -> bool {
        self.session.guard.is_finished()
    }

    /// Makes the kernel write back the dirty pages of open files. The first step starts the writes but does not wait
    /// for them to arrive here; the `fsync` of each file waits, and commits the file. A failed commit is recorded in
    /// the file, and reported when the file is committed once more.
    fn write_back(&self) {
        if let Err(error) = self.store.beside.flush_all() {
            tracing::warn!(%error, "what the kernel holds cannot be written back at once");
        }
        for file in self.store.files.unsafe_now() {
            if let Err(error) = self.store.beside.flush(file.ino()) {
                tracing::warn!(ino = file.ino(), %error, "what the kernel holds of a file that is open cannot be written back");
            }
        }
    }

    /// Commits open files and unmounts. Returns how many files could not be committed, plus the logs that could not be
    /// read since the mount began.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn unmount(self) -> std::io::Result<usize> {
        if !self.is_over() {
            self.write_back();
        }
        self.store.rewrites.stop();
        let store_all = || spool::push::push_all(&self.store) + self.store.files.commit_all(&self.store);
        let mut failed = store_all();
        if !self.is_over() {
            detach(&self.path)?;
            if failed == 0 {
                // Commits what programs wrote and closed meanwhile.
                failed = store_all();
            }
        }
        failed += self.store.spool.as_ref().map_or(0, |spool| spool.figures(0).set_aside as usize);
        self.store.client.report_work();
        let deadline = Instant::now() + LEAVE_WITHIN;
        while !self.is_over() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        if self.is_over() {
            return self.session.join().map(|()| failed);
        }
        // A program that still has files open keeps the session alive until this process ends; then the program gets
        // ENOTCONN. Dropping the session earlier would unmount whatever is mounted at this path by then.
        std::mem::forget(self.session);
        Ok(failed)
    }
}

fn open_spool(client: &Client, options: &Options, mount: &Path) -> Result<Option<(Spool, Receiver<u64>)>, MountError> {
    let Some(spool) = &options.spool else { return Ok(None) };
    let cluster_id = client.status().map_err(MountError::Unknown)?.cluster_id;
    Ok(Some(Spool::open(spool, mount, cluster_id)?))
}

/// Detaches the mount, even while programs use it. Without the permission to, runs `fusermount3`.
fn detach(path: &Path) -> std::io::Result<()> {
    use rustix::mount::{UnmountFlags, unmount};
    let plain = unmount(path, UnmountFlags::empty());
    let done = if plain == Err(rustix::io::Errno::BUSY) { unmount(path, UnmountFlags::DETACH) } else { plain };
    match done {
        Err(rustix::io::Errno::PERM) => {
            let ended = std::process::Command::new("fusermount3").args(["-u", "-z"]).arg(path).status()?;
            if ended.success() { Ok(()) } else { Err(std::io::Error::other(format!("fusermount3 ended with {ended}"))) }
        }
        done => Ok(done?),
    }
}

fn config(options: &Options) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("tessera".into()),
        MountOption::Subtype("tessera".into()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
        if options.read_only { MountOption::RO } else { MountOption::RW },
    ];
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = true;
    config
}

/// The core answers recalls at once, and another thread tells the kernel: a recall must not wait for the kernel, which
/// may be waiting for this mount.
fn hear_recalls(store: &Arc<Store>) {
    let namespace = Arc::downgrade(&store.namespace);
    store.client.on_recall(move |inos| {
        if let Some(namespace) = namespace.upgrade() {
            namespace.recalled(inos);
        }
    });
    let namespace = Arc::downgrade(&store.namespace);
    store.client.on_delegation_recall(move |directories, answer| match namespace.upgrade() {
        Some(namespace) => namespace.delegation_recalled(directories, answer),
        None => answer(),
    });
}

fn forget(notifier: &Notifier, stale: &Receiver<Stale>) {
    for stale in stale {
        match stale {
            // Fails if the kernel does not have the name; that is no error.
            Stale::Names(names) => names.iter().for_each(|(parent, name)| {
                let _ = notifier.inval_entry(INodeNo(*parent), OsStr::from_bytes(name));
            }),
            Stale::Tell(done) => drop(done.send(())),
        }
    }
}

/// Sets the kernel's read-ahead, 128 KiB by default. A failure leaves the default.
fn read_ahead(path: &Path, kib: u64) {
    let Ok(meta) = std::fs::metadata(path) else { return };
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&knob, kib.to_string()) {
        tracing::debug!(%error, knob, "read-ahead stays at the kernel's default");
    }
}
