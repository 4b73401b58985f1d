//! The spool: files that are written to a local disk first, and pushed into the store after the close (stdchk's
//! complete local writes; dissertation, section 3.5.3.2), or through a few bounded local files while they are written
//! ([`staged`], its incremental writes).
//!
//! A waiting file is a [`log::Log`]. Its format, the file it describes and its replay after a crash are in
//! [`tessera_mount::spool`]. [`push`] brings logs into the store in the background; [`crate::files`] decides which file
//! has a log, and reads through it. This module does not talk to the kernel.

pub mod log;
pub mod logfile;
pub mod push;
mod recover;
pub mod staged;

pub use recover::recover;

use crate::mount::Store;
use crossbeam_channel::{Receiver, Sender, unbounded};
use log::{Log, LogError};
use serde_json::{Value, json};
use staged::{Staged, Told};
use std::fs::{DirBuilder, File};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tessera_client::WriteHandle;
use tessera_mount::spool::budget::Budget;
use tessera_mount::spool::replay::LogOrigin;
use thiserror::Error;

/// Extension of logs that cannot be read.
const EXTENSION_DAMAGED: &str = "damaged";

/// Where a mount spools, and how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolOptions {
    /// The directory; created if missing.
    pub dir: PathBuf,
    /// Limit of the bytes of all files in the spool.
    pub limit_bytes: u64,
}

/// Why there is no spool.
#[derive(Debug, Error)]
pub enum SpoolError {
    /// The system refuses.
    #[error("spool {dir}: {error}")]
    Io {
        /// The spool.
        dir: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The spool would be inside the mount.
    #[error("spool {dir} is in the mount itself; give a directory on a local disk")]
    InMount {
        /// The spool.
        dir: PathBuf,
    },
    /// Other users may read it.
    #[error(
        "spool {dir} is not this user's alone (owner {uid}, mode {mode:o}); it holds files of all users: chown it, and chmod 700"
    )]
    NotPrivate {
        /// The spool.
        dir: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its mode.
        mode: u32,
    },
    /// Another mount uses it.
    #[error("spool {dir} is another mount's; give each mount its own")]
    InUse {
        /// The spool.
        dir: PathBuf,
    },
}

/// Events since the mount began.
#[derive(Debug, Default)]
pub struct Counts {
    /// Versions pushed.
    pub pushed: AtomicU64,
    /// Local files of incremental writes.
    pub segments: AtomicU64,
    /// Files written by sliding window although their policy asks for the spool.
    pub fallbacks: AtomicU64,
    /// Files kept under another name because another client replaced them.
    pub conflicts: AtomicU64,
    /// Files removed before they were pushed.
    pub dropped: AtomicU64,
    /// Logs that cannot be read.
    pub set_aside: AtomicU64,
    /// Failed pushes that are retried.
    pub retries: AtomicU64,
}

/// State of a spool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpoolFigures {
    /// Limit in bytes.
    pub limit_bytes: u64,
    /// Bytes used.
    pub used_bytes: u64,
    /// Files that wait.
    pub waiting_files: u64,
    /// Versions pushed, since the mount began.
    pub pushed: u64,
    /// Local files of incremental writes.
    pub segments: u64,
    /// Files written by sliding window although their policy asks for the spool.
    pub fallbacks: u64,
    /// Files kept under another name because another client replaced them.
    pub conflicts: u64,
    /// Files removed before they were pushed.
    pub dropped: u64,
    /// Logs that cannot be read.
    pub set_aside: u64,
    /// Failed pushes that are retried.
    pub retries: u64,
}

/// The version below a log.
#[derive(Debug, Clone, Copy)]
pub struct Base {
    /// The version; 0: none.
    pub version: u64,
    /// Its length.
    pub len_bytes: u64,
    /// The store's name of its content ([`tessera_wire::Attr::content`]); 0: unknown.
    pub content: u64,
}

/// A random number, for names that must be unique.
fn draw() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// See the module.
pub struct Spool {
    dir: PathBuf,
    /// The lock on the directory, held while this value lives.
    _lock: File,
    budget: Arc<Budget>,
    cluster_id: Vec<u8>,
    wanted: Sender<u64>,
    stopping: AtomicBool,
    /// Events so far.
    pub counts: Arc<Counts>,
}

impl Spool {
    /// Opens the directory for a mount at `mount`. The receiver yields the inodes to push.
    ///
    /// # Errors
    /// [`SpoolError`].
    pub fn open(
        options: &SpoolOptions,
        mount: &Path,
        cluster_id: Vec<u8>,
    ) -> Result<(Spool, Receiver<u64>), SpoolError> {
        let failed = |error| SpoolError::Io { dir: options.dir.clone(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(&options.dir).map_err(failed)?;
        let dir = options.dir.canonicalize().map_err(failed)?;
        if dir.starts_with(mount) {
            return Err(SpoolError::InMount { dir });
        }
        let meta = dir.metadata().map_err(failed)?;
        if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o077 != 0 {
            return Err(SpoolError::NotPrivate { dir, uid: meta.uid(), mode: meta.mode() & 0o7777 });
        }
        let lock = File::options().create(true).truncate(false).write(true).open(dir.join("lock")).map_err(failed)?;
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(SpoolError::InUse { dir }),
            done => done.map_err(|error| failed(error.into()))?,
        }
        let (wanted, work) = unbounded();
        let (budget, stopping) = (Arc::new(Budget::new(options.limit_bytes)), AtomicBool::new(false));
        let spool = Spool { dir, _lock: lock, budget, cluster_id, wanted, stopping, counts: Arc::default() };
        Ok((spool, work))
    }

    /// Begins a log for a file, over a version of it.
    ///
    /// # Errors
    /// As [`Log::create`].
    pub fn begin(&self, store: &Store, ino: u64, base: Base) -> Result<Log, LogError> {
        let (parent, name) = store.namespace.with(|core, _| core.last_name(ino)).unwrap_or_default();
        let Base { version: base_version, len_bytes: base_bytes, content: base_content } = base;
        let cluster_id = self.cluster_id.clone();
        let origin = LogOrigin { cluster_id, ino, parent, name, base_version, base_bytes, base_content };
        Log::create(&self.dir, draw(), self.budget.clone(), origin)
    }

    /// Puts local files before a write session.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn stage(&self, ino: u64, session: WriteHandle) -> io::Result<Staged> {
        let counts = self.counts.clone();
        Staged::new(session, &self.dir, self.budget.clone(), move |told| match told {
            Told::Segment => drop(counts.segments.fetch_add(1, Ordering::Relaxed)),
            Told::FallsBack(why) => {
                counts.fallbacks.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(ino, why, "a file is written without the spool");
            }
        })
    }

    /// Queues a file for a push.
    pub fn push(&self, ino: u64) {
        let _ = self.wanted.send(ino);
    }

    /// Counts a file that is written by sliding window instead.
    pub fn falls_back(&self, ino: u64, error: &LogError) {
        self.counts.fallbacks.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(ino, %error, "a file is written without the spool");
    }

    /// Stops retries of failed pushes.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The spool's state; `waiting`: number of files that wait.
    pub fn figures(&self, waiting: usize) -> SpoolFigures {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SpoolFigures {
            limit_bytes: self.budget.limit_bytes(),
            used_bytes: self.budget.used_bytes(),
            waiting_files: waiting as u64,
            pushed: count(&self.counts.pushed),
            segments: count(&self.counts.segments),
            fallbacks: count(&self.counts.fallbacks),
            conflicts: count(&self.counts.conflicts),
            dropped: count(&self.counts.dropped),
            set_aside: count(&self.counts.set_aside),
            retries: count(&self.counts.retries),
        }
    }

    /// As [`Spool::figures`], in JSON.
    pub fn shown(&self, waiting: usize) -> Value {
        let f = self.figures(waiting);
        json!({
            "directory": self.dir.to_string_lossy(),
            "limit_bytes": f.limit_bytes,
            "used_bytes": f.used_bytes,
            "waiting_files": f.waiting_files,
            "pushed": f.pushed,
            "segments": f.segments,
            "fallbacks": f.fallbacks,
            "conflicts": f.conflicts,
            "dropped": f.dropped,
            "set_aside": f.set_aside,
            "retries": f.retries,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tessera_mount::spool::budget::BudgetError;

    /// A directory that cannot be used is refused, with the way out, and left as it is (P14).
    #[test]
    fn a_spool_is_one_mounts_own_private_directory_elsewhere() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let options = |name: &str| SpoolOptions { dir: place.join(name), limit_bytes: 1000 };
        let open = |name: &str| Spool::open(&options(name), &place.join("mnt"), vec![1]);
        let first = open("a/b").unwrap();
        assert_eq!(place.join("a/b").metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert!(matches!(open("a/b"), Err(SpoolError::InUse { .. })));
        drop(first);
        open("a/b").unwrap();
        std::fs::create_dir(place.join("mnt")).unwrap();
        assert!(matches!(open("mnt/x"), Err(SpoolError::InMount { .. })));
        std::fs::create_dir(place.join("open")).unwrap();
        std::fs::set_permissions(place.join("open"), PermissionsExt::from_mode(0o750)).unwrap();
        let said = open("open").err().unwrap().to_string();
        assert!(said.contains("750") && said.contains("chmod 700"), "{said}");
        std::fs::write(place.join("file"), b"").unwrap();
        assert!(matches!(open("file"), Err(SpoolError::Io { .. })));
    }

    #[test]
    fn a_spool_that_is_full_takes_nothing_more_until_something_went() {
        let place = tempfile::tempdir().unwrap();
        let budget = Arc::new(Budget::new(3000));
        let origin = |ino| LogOrigin {
            cluster_id: vec![],
            ino,
            parent: 1,
            name: vec![],
            base_version: 0,
            base_bytes: 0,
            base_content: 5,
        };
        let mut one = Log::create(place.path(), 1, budget.clone(), origin(1)).unwrap();
        one.write(0, &[1; 1000]).unwrap();
        let before = (one.len_bytes(), budget.used_bytes());
        assert_eq!(before.0, before.1);
        assert!(matches!(
            one.write(1000, &[2; 3000]),
            Err(LogError::Budget(BudgetError::Bytes { limit_bytes: 3000, .. }))
        ));
        assert_eq!((one.len_bytes(), budget.used_bytes(), one.size_bytes()), (before.0, before.1, 1000));
        let view = one.view();
        one.remove();
        let mut out = [0; 10];
        view.read_over(990, &mut out).unwrap();
        assert_eq!(out, [1; 10], "who still reads it can");
        drop(view);
        assert_eq!(budget.used_bytes(), 0);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        let (mut many, roomy) = (Vec::new(), Arc::new(Budget::new(1 << 20)));
        let refused = loop {
            match Log::create(place.path(), many.len() as u64, roomy.clone(), origin(1)) {
                Ok(log) => many.push(log),
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, LogError::Budget(BudgetError::Logs)) && many.len() > 100);
        many.pop();
        Log::create(place.path(), 1 << 40, roomy, origin(2)).unwrap();
    }

    /// A read from a log is checked (P2).
    #[test]
    fn a_log_that_rots_is_not_read() {
        let place = tempfile::tempdir().unwrap();
        let origin = LogOrigin {
            cluster_id: vec![],
            ino: 3,
            parent: 1,
            name: vec![],
            base_version: 0,
            base_bytes: 0,
            base_content: 5,
        };
        let mut log = Log::create(place.path(), 9, Arc::new(Budget::new(1 << 20)), origin).unwrap();
        log.write(0, &[7; 200_000]).unwrap();
        let mut bytes = std::fs::read(log.path()).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(log.path(), &bytes).unwrap();
        let mut out = [0; 100];
        log.view().read_over(0, &mut out).unwrap();
        assert!(matches!(log.view().read_over(140_000, &mut out), Err(LogError::Damaged { .. })));
    }
}
