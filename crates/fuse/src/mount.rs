//! Mounting, serving until unmounted, and leaving nothing unwritten behind.

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

/// How a store is mounted.
#[derive(Debug, Clone)]
pub struct Options {
    /// The kernel may answer from its cache for so long without asking; 0: never (strict). What changes elsewhere is also
    /// taken back from it as soon as the manager says so.
    pub cache_ttl: Duration,
    /// The kernel collects small writes.
    pub write_back: bool,
    /// Other users than the one that mounts may use it.
    pub allow_other: bool,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Requests served at a time.
    pub threads: usize,
    /// The kernel reads ahead this many KiB of a file that is read in order.
    pub read_ahead_kib: u64,
    /// Where files whose write mode asks for it are written first; none: they are written as others.
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

/// Why nothing was mounted.
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
    /// There is no FUSE.
    #[error("/dev/fuse: {0}; load the fuse module, or give the container the device")]
    NoFuse(std::io::Error),
    /// The spool cannot be used.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The spool needs to know whose it is.
    #[error("the store's identity is not known: {0}")]
    Unknown(tessera_client::Error),
    /// The kernel or `fusermount3` refused.
    #[error("{path}: cannot be mounted: {error}")]
    Refused {
        /// Mount point.
        path: PathBuf,
        /// What was said.
        error: std::io::Error,
    },
}

/// What every operation needs.
pub struct Store {
    /// The cluster.
    pub client: Client,
    /// Cached attributes, delegations, deferred creates.
    pub namespace: Arc<NamespaceShell>,
    /// What the kernel knows.
    pub kernel: Mutex<KernelCache>,
    /// Open files.
    pub files: Files,
    /// Rewriting in the background.
    pub rewrites: Rewrites,
    /// Locks.
    pub locking: Locking,
    /// Threads that may use the mount.
    pub beside: Beside,
    /// Files on a local disk.
    pub spool: Option<Spool>,
    /// How fast files were written.
    pub speeds: Mutex<SpeedTable>,
    /// Requests.
    pub counts: Counts,
    /// As asked.
    pub options: Options,
    stale: Sender<Stale>,
}

impl Store {
    /// Makes the manager know a file that may be a deferred create.
    ///
    /// # Errors
    /// As [`NamespaceShell::settle`].
    pub fn settle(&self, ino: u64) -> Result<(), Errno> {
        self.namespace.settle(&self.client, Scope::File(ino))
    }

    /// Waits until the kernel has forgotten all that was taken back until now.
    pub fn wait_for_kernel(&self) {
        let (done, forgotten) = bounded(1);
        if self.stale.send(Stale::Tell(done)).is_ok() {
            let _ = forgotten.recv_timeout(LEAVE_WITHIN);
        }
    }
}

/// Requests under way get this long to end after the mount is gone.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// What the kernel is to be told, in order.
pub enum Stale {
    /// These names it is to forget.
    Names(Vec<Name>),
    /// Say when it has.
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
    /// Why not, with the way out.
    pub fn new(client: Client, path: &Path, options: Options) -> Result<Mount, MountError> {
        let refused = |error| MountError::Refused { path: path.to_path_buf(), error };
        let found = path
            .canonicalize()
            .and_then(|p| if p.is_dir() { Ok(p) } else { Err(std::io::ErrorKind::NotADirectory.into()) });
        let path = found.map_err(|error| MountError::NoDirectory { path: path.to_path_buf(), error })?;
        std::fs::metadata("/dev/fuse").map_err(MountError::NoFuse)?;
        let config = config(&options);
        let (rewrites, to_rewrite) = Rewrites::new();
        // Before the mount's device is opened.
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

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells how it stands, for as long as it is there.
    pub fn metrics(&self) -> impl Fn() -> Option<MountMetrics> + Send + Sync + 'static {
        let store = Arc::downgrade(&self.store);
        move || store.upgrade().map(|store| MountMetrics::of(&store))
    }

    /// Whether somebody else unmounted it.
    pub fn is_over(&self) -> bool {
        self.session.guard.is_finished()
    }

    /// Has the kernel write what it holds back of files that are open. The first step has it begin, but does not wait for FUSE's writes to arrive
    /// here; `fsync` of each file does (and commits it: a failure is the file's, and is told when it is committed once more).
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

    /// Commits what is open and unmounts; how many files could not be committed, or were in logs that could not be read since the mount began.
    ///
    /// # Errors
    /// The kernel's.
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
                // What programs wrote and closed meanwhile.
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
        // Programs that still have files open keep the session; it ends with this process, and they are told ENOTCONN. It
        // must not be dropped before: that would unmount whatever is mounted at this place by then.
        std::mem::forget(self.session);
        Ok(failed)
    }
}

fn open_spool(client: &Client, options: &Options, mount: &Path) -> Result<Option<(Spool, Receiver<u64>)>, MountError> {
    let Some(spool) = &options.spool else { return Ok(None) };
    let cluster_id = client.status().map_err(MountError::Unknown)?.cluster_id;
    Ok(Some(Spool::open(spool, mount, cluster_id)?))
}

/// Takes the mount out of the tree, also while programs use it; without the right to, `fusermount3` has it.
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

/// The core answers recalls at once, and the kernel is told from another thread: a recall must not wait for the kernel, which may be
/// waiting for this mount.
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
            // A name that the kernel does not know is no failure.
            Stale::Names(names) => names.iter().for_each(|(parent, name)| {
                let _ = notifier.inval_entry(INodeNo(*parent), OsStr::from_bytes(name));
            }),
            Stale::Tell(done) => drop(done.send(())),
        }
    }
}

/// The kernel's default is 128 KiB. Where it cannot be set, reading goes on at that.
fn read_ahead(path: &Path, kib: u64) {
    let Ok(meta) = std::fs::metadata(path) else { return };
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&knob, kib.to_string()) {
        tracing::debug!(%error, knob, "read-ahead stays at the kernel's default");
    }
}
