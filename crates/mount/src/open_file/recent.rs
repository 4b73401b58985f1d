//! Versions that were open a moment ago. A compiler opens the same headers again and again: while a lease says that a version is the
//! current one, it is read on without a request, and its session stays.

use crate::backend::{Backend, Reader};
use crate::mount::Mount;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tessera_failpoint as failpoint;
use tessera_policy::Cache;

/// A version that was opened once is kept for so long, ns: the manager records sessions that last for a second.
const ONCE_NS: i64 = 800_000_000;
/// One that was opened again meanwhile is kept for so long, ns. Much shorter than a session lasts of which the manager hears nothing.
const AGAIN_NS: i64 = 5_000_000_000;
/// Versions that are kept.
const MAX_KEPT: usize = 1_024;

/// See the module.
pub struct RecentReaders<B: Backend>(Mutex<Kept<B>>);

struct Kept<B: Backend> {
    /// By file.
    readers: HashMap<u64, Recent<B>>,
    /// To be dropped by [`RecentReaders::expire`].
    ended: Vec<Arc<B::Reader>>,
}

struct Recent<B: Backend> {
    reader: Arc<B::Reader>,
    opened_ns: i64,
    /// It was opened again since.
    again: bool,
}

impl<B: Backend> Recent<B> {
    fn is_over(&self, now_ns: i64) -> bool {
        now_ns.saturating_sub(self.opened_ns) >= if self.again { AGAIN_NS } else { ONCE_NS }
    }
}

impl<B: Backend> Default for RecentReaders<B> {
    fn default() -> RecentReaders<B> {
        RecentReaders(Mutex::new(Kept { readers: HashMap::new(), ended: Vec::new() }))
    }
}

impl<B: Backend> RecentReaders<B> {
    /// The current version of a file, if it was open a moment ago and a lease says that it is the current one still.
    pub fn current(&self, mount: &Mount<B>, ino: u64) -> Option<Arc<B::Reader>> {
        let current = mount.namespace.attr(ino)?.attr.version;
        let now_ns = mount.backend.now_ns();
        let mut kept = self.0.lock();
        let recent = kept.readers.get_mut(&ino).filter(|recent| !recent.is_over(now_ns))?;
        let is_current =
            recent.reader.opened().version.version == current || failpoint::is_active("mount.recent_version_is_stale");
        is_current.then(|| {
            recent.again = true;
            recent.reader.clone()
        })
    }

    /// A version was opened as the current one at that time. Not of a file whose hints limit what clients keep in memory: a reader has
    /// what it has read.
    pub fn keep(&self, ino: u64, reader: &Arc<B::Reader>, opened_ns: i64) {
        if reader.opened().policy.iter().any(|hint| hint.name == "cache" && hint.value != Cache::Auto.to_string()) {
            return;
        }
        let mut kept = self.0.lock();
        let replaced = kept.readers.insert(ino, Recent { reader: reader.clone(), opened_ns, again: false });
        kept.ended.extend(replaced.map(|recent| recent.reader));
        if kept.readers.len() > MAX_KEPT {
            kept.end_oldest();
        }
    }

    /// These files change or are gone; none: the connection is lost, and perhaps the sessions with it. Sends nothing: who is told that
    /// leases end must not.
    pub fn forget(&self, inos: Option<&[u64]>) {
        let kept = &mut *self.0.lock();
        match inos {
            Some(inos) => kept.ended.extend(inos.iter().filter_map(|ino| kept.readers.remove(ino)).map(|r| r.reader)),
            None => kept.ended.extend(kept.readers.drain().map(|(_, recent)| recent.reader)),
        }
    }

    /// Drops what was not opened for long, or was forgotten: their sessions end.
    pub fn expire(&self, now_ns: i64) {
        // Each tells the manager, without the lock.
        let _dropped = {
            let mut kept = self.0.lock();
            let over: Vec<u64> = kept.readers.iter().filter(|(_, r)| r.is_over(now_ns)).map(|(ino, _)| *ino).collect();
            let ended: Vec<_> = over.iter().filter_map(|ino| kept.readers.remove(ino)).map(|r| r.reader).collect();
            kept.ended.extend(ended);
            std::mem::take(&mut kept.ended)
        };
    }
}

impl<B: Backend> Kept<B> {
    fn end_oldest(&mut self) {
        let oldest = self.readers.iter().min_by_key(|(_, recent)| recent.opened_ns).map(|(ino, _)| *ino);
        self.ended.extend(oldest.and_then(|ino| self.readers.remove(&ino)).map(|recent| recent.reader));
    }
}
