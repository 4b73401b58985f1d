//! Mounts a store, serves it until it is unmounted, and leaves nothing uncommitted behind.

use crate::attached::{Attached, SOURCE, is_dead, is_mounted};
use crate::backend::{FuseBackend, NoticeQueues, hear_recalls};
use crate::block_on::block_on;
use crate::counts::{Counts, MountMetrics};
use crate::expiry::{Expiry, Lookups};
use crate::fs::TesseraFs;
use crate::guard::Guard;
use crate::loopback::Loopback;
use crate::spool::{SpoolDirectory, SpoolError, SpoolOptions};
use fuser::{Config, INodeNo, MountOption, Notifier, SessionACL};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tessera_client::Client;
use tessera_mount::mount::{Mount as Core, Options as CoreOptions};
use tessera_mount::namespace::Name;
use tessera_mount::spool::SpoolConfig;
use tessera_mount::{locks, namespace, ops, spool};
use thiserror::Error;

/// Options of a mount.
#[derive(Debug, Clone)]
pub struct Options {
    /// Longest time for which the kernel answers from its cache; 0: it always asks (strict). When another client
    /// changes something, the manager's recall ends the caching earlier.
    pub cache_ttl: Duration,
    /// The kernel collects small writes (FUSE's write-back cache), and sends whole pages: bytes of a page that another mount
    /// wrote meanwhile are lost.
    pub write_back: bool,
    /// Users other than the one that mounts may use the mount.
    pub allow_other: bool,
    /// The mount rejects every change.
    pub read_only: bool,
    /// Number of requests served at a time.
    pub threads: usize,
    /// The spool for files whose write mode asks for it; none: they are written like all other files.
    pub spool: Option<SpoolOptions>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            cache_ttl: Duration::from_secs(1),
            write_back: false,
            allow_other: rustix::process::geteuid().is_root(),
            read_only: false,
            threads: 32,
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
    /// A mount whose process has ended is there.
    #[error(
        "{path}: a mount whose process has ended is still there; remove it with `fusermount3 -u {path}` or `umount -l {path}`"
    )]
    Dead {
        /// Mount point.
        path: PathBuf,
    },
    /// A store is mounted there.
    #[error("{path}: a store is mounted there; unmount it first, or give another directory")]
    Mounted {
        /// Mount point.
        path: PathBuf,
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

/// KiB that the kernel reads ahead of a sequential reader.
pub(crate) const READ_AHEAD_KIB: u32 = 8 << 10;
/// Two files are opened in order half of the time, three seldom are.
const AHEAD_AFTER: u32 = 2;
/// Longest wait until the manager has closed the sessions of a mount that ends.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// Longest wait after the unmount for requests in progress.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// A mounted store.
pub struct Mount {
    attached: Attached,
    core: Arc<Core<FuseBackend>>,
    counts: Arc<Counts>,
    _notifying: Vec<JoinHandle<()>>,
    /// The last field: it ends the connection when it is dropped.
    _guard: Guard,
}

impl Mount {
    /// Mounts the store `client` is connected to at `path`.
    ///
    /// # Errors
    /// [`MountError`], which names the way out.
    pub fn new(client: Client, path: &Path, options: Options) -> Result<Mount, MountError> {
        let refused = |error| MountError::Refused { path: path.to_path_buf(), error };
        let found = path.canonicalize().and_then(|p| match p.metadata()?.is_dir() {
            true => Ok(p),
            false => Err(std::io::ErrorKind::NotADirectory.into()),
        });
        let path = found.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotConnected => MountError::Dead { path: path.to_path_buf() },
            _ => MountError::NoDirectory { path: path.to_path_buf(), error },
        })?;
        if is_mounted(&path).map_err(refused)? {
            return Err(if is_dead(&path) { MountError::Dead { path } } else { MountError::Mounted { path } });
        }
        std::fs::metadata("/dev/fuse").map_err(MountError::NoFuse)?;
        let config = config(&options);
        // Both must come before the mount's device is opened.
        let loopback = Loopback::start(&path).map_err(refused)?;
        let guard = Guard::start().map_err(refused)?;
        let (spool, directory) = open_spool(&client, &options, &path)?.unzip();
        let (backend, notices) = FuseBackend::new(client, loopback, directory);
        // The kernel caches nothing if its time is 0; then no name may be made without asking either.
        let core_options = CoreOptions {
            defers_creates: !options.cache_ttl.is_zero(),
            write_back: options.write_back,
            keeps_names_for: options.cache_ttl,
            ahead_after: AHEAD_AFTER,
            delegates_locks_after: locks::REQUEST_AFTER,
            spool,
        };
        let (core, queues) = Core::new(Arc::new(backend), core_options);
        let (core, counts) = (Arc::new(core), Arc::<Counts>::default());
        hear_recalls(&core);
        block_on(core.recover());
        let lookups = Arc::<Lookups>::default();
        let fs = TesseraFs::new(core.clone(), counts.clone(), lookups.clone(), options);
        let session = fuser::Session::new(fs, &path, &config).map_err(refused)?;
        let (attached, notifier) = Attached::new(session, &path).map_err(refused)?;
        if let Err(error) = guard.watch(attached.minor()) {
            tracing::warn!(%error, "if this process is killed, the mount may hang: nobody can end the kernel's connection then");
        }
        let _ = core.backend.notifier.set(notifier.clone());
        read_ahead(&path);
        let expiry = Expiry::new(attached.device().map_err(refused)?);
        let notifying = notify(&notifier, (expiry, lookups), notices).map_err(refused)?;
        let (weak, queue) = (Arc::downgrade(&core), queues.rewrites);
        spawn("rewrite", move || block_on(ops::rewrites::work(weak, queue))).map_err(refused)?;
        let weak = Arc::downgrade(&core);
        spawn("settle", move || block_on(namespace::driver::work(weak))).map_err(refused)?;
        let weak = Arc::downgrade(&core);
        spawn("locks", move || block_on(locks::work(weak))).map_err(refused)?;
        let weak = Arc::downgrade(&core);
        spawn("lock returns", move || block_on(locks::return_delegations(weak))).map_err(refused)?;
        for queue in std::iter::repeat_n(queues.pushes, spool::push::TASKS).flatten() {
            let weak = Arc::downgrade(&core);
            spawn("push", move || block_on(spool::push::work(weak, queue))).map_err(refused)?;
        }
        Ok(Mount { attached, core, counts, _notifying: notifying, _guard: guard })
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        self.attached.path()
    }

    /// Returns a function that gives the metrics until the mount is gone.
    pub fn metrics(&self) -> impl Fn() -> Option<MountMetrics> + Send + Sync + 'static {
        let (core, counts) = (Arc::downgrade(&self.core), self.counts.clone());
        move || core.upgrade().map(|core| MountMetrics::of(&core, &counts))
    }

    /// Whether the mount was unmounted from outside.
    pub fn is_over(&self) -> bool {
        self.attached.is_over()
    }

    /// Makes the kernel write back the dirty pages of open files. The first step starts the writes but does not wait
    /// for them to arrive here; the `fsync` of each file waits, and commits the file. A failed commit is recorded in
    /// the file, and reported when the file is committed once more.
    fn write_back(&self) {
        if let Err(error) = self.core.backend.loopback.flush_all() {
            tracing::warn!(%error, "what the kernel holds cannot be written back at once");
        }
        for ino in block_on(self.core.unsafe_files()) {
            if let Err(error) = self.core.backend.loopback.flush(ino) {
                tracing::warn!(ino, %error, "what the kernel holds of a file that is open cannot be written back");
            }
        }
    }

    /// Commits open files and unmounts. Returns how many files could not be committed, including those that the spool
    /// lost since the mount began.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn unmount(mut self) -> std::io::Result<usize> {
        if !self.is_over() {
            self.write_back();
        }
        self.core.stop_rewrites();
        let mut failed = block_on(self.core.store_all());
        let was_over = self.is_over();
        self.attached.detach()?;
        if !was_over && failed == 0 {
            // Commits what programs wrote and closed meanwhile.
            failed = block_on(self.core.store_all());
        }
        failed += self.core.lost_files();
        self.core.backend.client.report_work();
        let deadline = Instant::now() + LEAVE_WITHIN;
        while !self.is_over() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        // A program that still has files open keeps it alive until this process ends; then the program gets ENOTCONN.
        if self.is_over() {
            match self.attached.join() {
                // A request was being handed over while the kernel ended the connection.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted && !was_over => {}
                done => done?,
            }
        }
        // Sessions of files that were open a moment ago. An answer that nobody reads would break the connection off, and the manager would
        // take the leases of this mount for used until they are over.
        self.core.backend.client.close(CLOSE_WITHIN);
        Ok(failed)
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(run)
}

fn open_spool(
    client: &Client,
    options: &Options,
    mount: &Path,
) -> Result<Option<(SpoolConfig, SpoolDirectory)>, MountError> {
    let Some(spool) = &options.spool else { return Ok(None) };
    let cluster_id = client.status().map_err(MountError::Unknown)?.cluster_id;
    let directory = SpoolDirectory::open(spool, mount)?;
    let disk = Arc::new(directory.disk.clone());
    Ok(Some((SpoolConfig { disk, limit_bytes: spool.limit_bytes, cluster_id }, directory)))
}

fn config(options: &Options) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(SOURCE.into()),
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

/// Starts the threads that tell the kernel what to drop, or to ask for again.
fn notify(
    notifier: &Notifier,
    (expiry, lookups): (Expiry, Arc<Lookups>),
    queues: NoticeQueues,
) -> std::io::Result<Vec<JoinHandle<()>>> {
    // A notice fails if the kernel does not have the name or the inode; that is no error.
    let to = notifier.clone();
    let forget_name = move |name: Name, ()| match lookups.may_expire(&name, Instant::now()) {
        true => _ = expiry.expire(name.0, &name.1),
        false => _ = to.inval_entry(INodeNo(name.0), OsStr::from_bytes(&name.1)),
    };
    let names = spawn("notify", move || queues.names.run(forget_name));
    let pages = queues.pages.into_iter().map(|queue| {
        let to = notifier.clone();
        let drop_pages = move |ino, bytes: Range<u64>| {
            // A length of 0 is that of everything behind the offset.
            let len = i64::try_from(bytes.end - bytes.start).ok().filter(|_| bytes.end != u64::MAX).unwrap_or(0);
            let _ = to.inval_inode(INodeNo(ino), bytes.start as i64, len);
        };
        spawn("notify", move || queue.run(drop_pages))
    });
    std::iter::once(names).chain(pages).collect()
}

/// Sets the kernel's read-ahead, 128 KiB by default. A failure leaves the default.
fn read_ahead(path: &Path) {
    let Ok(meta) = std::fs::metadata(path) else { return };
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&knob, READ_AHEAD_KIB.to_string()) {
        tracing::debug!(%error, knob, "read-ahead stays at the kernel's default");
    }
}
