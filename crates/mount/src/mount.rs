//! The mount: its parts, and the operations that concern all of them.

use crate::backend::Backend;
use crate::errno::Errno;
use crate::kernel_cache::KernelCache;
use crate::lockers::Lockers;
use crate::locks::Locks;
use crate::namespace::driver::NamespaceDriver;
use crate::namespace::{CacheStats, KeptNames, ListingLease, NameRef, Scope};
use crate::open_file::{ContentsAhead, Files, RecentReaders};
use crate::ops::history::History;
use crate::ops::opening::Handle;
use crate::ops::rewrites::Rewrites;
use crate::spool::speed::SpeedTable;
use crate::spool::{Spool, SpoolConfig, SpoolStats};
use crate::synthetic::SyntheticInode;
use crate::under_way::UnderWay;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

/// Inodes that wait for a background task. Several tasks may share a queue.
#[derive(Clone)]
pub struct Queue(Arc<tokio::sync::Mutex<UnboundedReceiver<u64>>>);

impl Queue {
    fn new(receiver: UnboundedReceiver<u64>) -> Queue {
        Queue(Arc::new(tokio::sync::Mutex::new(receiver)))
    }

    /// The next inode; none: the mount is gone.
    pub async fn next(&self) -> Option<u64> {
        self.0.lock().await.recv().await
    }
}

/// Options of a mount.
#[derive(Clone)]
pub struct Options {
    /// The kernel may answer from its cache, so this mount may create files without asking.
    pub defers_creates: bool,
    /// The kernel has its write-back cache. It then sends the times of files that are written, so the mount sets none; and it
    /// trusts its own length of a file.
    pub write_back: bool,
    /// The kernel keeps no name longer than that.
    pub keeps_names_for: Duration,
    /// So many small files of a directory are opened in order before the contents of those that follow are fetched.
    pub ahead_after: u32,
    /// Locks that the manager grants on a file in a row before this mount asks to decide about them by itself: [`crate::locks::REQUEST_AFTER`].
    pub delegates_locks_after: u32,
    /// The spool for files whose write mode asks for it; none: they are written like all other files.
    pub spool: Option<SpoolConfig>,
}

/// Work for background tasks.
pub struct Queues {
    /// Files to push: for [`crate::spool::push::work`].
    pub pushes: Option<Queue>,
    /// Files to rewrite: for [`crate::ops::rewrites::work`].
    pub rewrites: Queue,
}

/// State of a mount, for metrics.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stats {
    /// The cache of names and attributes.
    pub names: CacheStats,
    /// Files that are open or wait in the spool.
    pub open_files: u64,
    /// Those of them with uncommitted changes.
    pub uncommitted_files: u64,
    /// The spool, if there is one.
    pub spool: Option<SpoolStats>,
}

/// A mounted store. Its methods are the operations that a kernel asks for ([`crate::ops`]).
///
/// The shell, or the simulator, also runs the background tasks: [`crate::namespace::driver::work`],
/// [`crate::locks::work`], [`crate::locks::return_delegations`], [`crate::spool::push::work`] and [`crate::ops::rewrites::work`]; and it reports recalls of
/// leases to [`Mount::leases_recalled`], of delegated directories to [`Mount::namespace`], of delegated locks to [`Mount::locks_recalled`].
pub struct Mount<B: Backend> {
    /// What the mount runs on.
    pub backend: Arc<B>,
    /// Cached attributes, delegations, deferred creates.
    pub namespace: Arc<NamespaceDriver<B>>,
    /// What the kernel caches of each inode.
    pub(crate) kernel: Mutex<KernelCache>,
    pub(crate) files: Files<B>,
    /// Versions that were open a moment ago.
    pub(crate) recent: RecentReaders<B>,
    /// Contents of files that programs will open next.
    pub(crate) ahead: ContentsAhead<B>,
    pub(crate) handles: Mutex<HashMap<u64, Arc<Handle<B>>>>,
    pub(crate) last_handle: AtomicU64,
    pub(crate) history: History,
    pub(crate) rewrites: Rewrites,
    /// Handles that are being closed, whose owners hold locks.
    pub(crate) closing: UnderWay,
    pub(crate) lockers: Lockers,
    pub(crate) locks: Arc<Locks<B>>,
    pub(crate) spool: Option<Arc<Spool>>,
    /// Write speeds of recent files.
    pub(crate) speeds: Mutex<SpeedTable>,
    pub(crate) defers_creates: bool,
}

impl<B: Backend> Mount<B> {
    /// A mount of the store behind `backend`. Call [`Mount::recover`] before the first operation.
    pub fn new(backend: Arc<B>, options: Options) -> (Mount<B>, Queues) {
        let (rewrites, to_rewrite) = Rewrites::new();
        let (spool, to_push) = options.spool.map(Spool::new).unzip();
        let mount = Mount {
            namespace: Arc::new(NamespaceDriver::new(backend.clone(), options.keeps_names_for)),
            locks: Arc::new(Locks::new(backend.clone(), options.delegates_locks_after)),
            backend,
            kernel: Mutex::new(KernelCache::new(options.write_back)),
            files: Files::default(),
            recent: RecentReaders::default(),
            ahead: ContentsAhead::default(),
            handles: Mutex::default(),
            last_handle: AtomicU64::new(0),
            history: History::default(),
            rewrites,
            closing: UnderWay::default(),
            lockers: Lockers::default(),
            spool: spool.map(Arc::new),
            speeds: Mutex::default(),
            defers_creates: options.defers_creates,
        };
        mount.namespace.with(|core, _| core.following.after = options.ahead_after);
        (mount, Queues { pushes: to_push.map(Queue::new), rewrites: Queue::new(to_rewrite) })
    }

    /// Leases on these inodes end. `None`: the connection to the manager is lost, and with it all leases. Returns how long the kernel may
    /// keep their names.
    pub fn leases_recalled(&self, inos: Option<&[u64]>) -> KeptNames {
        // Before the kernel is told, which may get the answer to an earlier request right after that.
        self.changed_elsewhere(inos.unwrap_or_default());
        self.recent.forget(inos);
        self.ahead.forget(inos);
        let kept = self.namespace.recalled(inos);
        match inos {
            // For requests that arrived since, and were answered by what was cached here.
            Some(inos) => self.changed_elsewhere(inos),
            None => self.locks.cut_off(),
        }
        kept
    }

    /// Other clients want locks on these files, whose locks are delegated to this mount.
    pub fn locks_recalled(&self, files: &[u64]) {
        self.locks.recalled(files);
    }

    fn changed_elsewhere(&self, inos: &[u64]) {
        // The mode may have changed, too.
        inos.iter().filter_map(|ino| self.files.get(*ino)).for_each(|file| file.mode_may_change());
        let now_ns = self.backend.now_ns();
        let mut kernel = self.kernel.lock();
        inos.iter().for_each(|ino| kernel.changed_elsewhere(*ino, now_ns));
    }

    /// Whether the lease on an inode was recalled since a request about it arrived. The answer may be from before the recall, and the
    /// kernel was told to drop what it had before it gets it, so it must not cache the answer.
    pub fn was_recalled_since(&self, ino: u64, since_ns: i64) -> bool {
        self.kernel.lock().was_changed_since(ino, since_ns)
    }

    /// How long a kernel that may cache names for `ttl` may cache the one in `parent` that stands for this inode.
    pub fn name_ttl(&self, parent: u64, ino: u64, ttl: Duration) -> Duration {
        // What the mount computes has no lease.
        if SyntheticInode::of(ino).is_some() {
            return ttl;
        }
        let left_ns = self.namespace.with(|core, now_ns| core.recalled_for_ns(now_ns, parent, ino));
        left_ns.map_or(ttl, |left_ns| ttl.min(Duration::from_nanos(u64::try_from(left_ns).unwrap_or(0))))
    }

    /// How long the kernel may keep a name of a listing that `lease` covers. From here on a recall tells it.
    pub(crate) fn keeps_listed(&self, lease: Option<ListingLease>, name: NameRef<'_>) -> Duration {
        let kept_ns =
            lease.map(|lease| self.namespace.with(|core, now_ns| core.cache.keep_listed(now_ns, lease, name)));
        Duration::from_nanos(kept_ns.unwrap_or(0))
    }

    /// The state now. Waits for nothing.
    pub fn stats(&self) -> Stats {
        let (open_files, uncommitted_files, waiting) = self.files.count();
        let spool = self.spool.as_ref().map(|spool| spool.stats(waiting));
        Stats {
            names: self.namespace.with(|core, now_ns| core.cache.stats(now_ns)),
            open_files,
            uncommitted_files,
            spool,
        }
    }

    /// Counts an event of the spool.
    pub(crate) fn count(&self, event: impl FnOnce(&mut SpoolStats)) {
        if let Some(spool) = &self.spool {
            event(&mut spool.counts.lock());
        }
    }

    /// Number of files, since the mount began, whose close succeeded and whose content cannot be stored: the spool has
    /// lost it, or keeps it in a log that cannot be read.
    pub fn lost_files(&self) -> usize {
        let spool = self.spool.as_ref().map(|spool| spool.stats(0));
        spool.map_or(0, |stats| (stats.set_aside + stats.lost) as usize)
    }

    /// Open files that are not safe in the spool.
    pub async fn unsafe_files(&self) -> Vec<u64> {
        self.files.unsafe_now().await.iter().map(|file| file.ino).collect()
    }

    /// Pushes what waits in the spool, commits all open files, and returns delegations of locks. Returns how many files failed, without
    /// those of [`Mount::lost_files`].
    pub async fn store_all(&self) -> usize {
        let mut failed = self.push_all().await;
        for file in self.files.unsafe_now().await {
            failed += usize::from(file.commit(self).await.is_err());
        }
        self.locks.return_all().await;
        failed
    }

    /// Abandons the running rewrite and all that wait.
    pub fn stop_rewrites(&self) {
        self.rewrites.cancel.cancel();
    }

    /// Bytes written here are lost: no later look-up or open shows them or their length. To be called before the file's
    /// handle is dropped; programs that have the file open go on seeing them.
    pub(crate) fn forget_unstored(&self, ino: u64) {
        self.kernel.lock().holds_uncommitted(ino);
        self.namespace.forget(&[ino]);
    }

    /// Makes sure that the manager knows a file, which may be a deferred create.
    pub(crate) async fn settle(&self, ino: u64) -> Result<(), Errno> {
        self.namespace.settle(Scope::File(ino)).await
    }
}
