//! Versions that were open a moment ago. A compiler opens the same headers again and again: while a lease says that a version is the
//! current one, it is read on without a request, and its session stays.

use crate::backend::{Backend, Reader};
use crate::mount::Mount;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tessera_failpoint as failpoint;

/// A version that was opened longer ago is opened again, ns. Much shorter than a session lasts of which the manager hears nothing.
const KEPT_NS: i64 = 5_000_000_000;
/// Versions that are kept.
const MAX_KEPT: usize = 1_024;

/// See the module.
pub struct RecentReaders<B: Backend>(Mutex<Kept<B>>);

struct Kept<B: Backend> {
    /// By file: the reader, and when it was opened.
    readers: HashMap<u64, (Arc<B::Reader>, i64)>,
    /// The same, the oldest first; those that were replaced or dropped, too.
    order: VecDeque<(u64, i64)>,
}

impl<B: Backend> Default for RecentReaders<B> {
    fn default() -> RecentReaders<B> {
        RecentReaders(Mutex::new(Kept { readers: HashMap::new(), order: VecDeque::new() }))
    }
}

impl<B: Backend> RecentReaders<B> {
    /// The current version of a file, if it was open a moment ago and a lease says that it is the current one still.
    pub fn current(&self, mount: &Mount<B>, ino: u64) -> Option<Arc<B::Reader>> {
        let current = mount.namespace.attr(ino)?.attr.version;
        let now_ns = mount.backend.now_ns();
        let kept = self.0.lock();
        let (reader, opened_ns) = kept.readers.get(&ino)?;
        let is_current =
            reader.opened().version.version == current || failpoint::is_active("mount.recent_version_is_stale");
        (is_current && now_ns.saturating_sub(*opened_ns) < KEPT_NS).then(|| reader.clone())
    }

    /// A version was opened as the current one at that time.
    pub fn keep(&self, ino: u64, reader: &Arc<B::Reader>, opened_ns: i64) {
        // Those that are dropped tell the manager so, without the lock.
        let _dropped = {
            let mut kept = self.0.lock();
            let replaced = kept.readers.insert(ino, (reader.clone(), opened_ns));
            kept.order.push_back((ino, opened_ns));
            (replaced, kept.drop_older(opened_ns.saturating_sub(KEPT_NS), MAX_KEPT))
        };
    }

    /// These files change or are gone; none: the connection is lost, and perhaps the sessions with it.
    pub fn forget(&self, inos: Option<&[u64]>) {
        let _dropped: Vec<_> = {
            let mut kept = self.0.lock();
            match inos {
                Some(inos) => inos.iter().filter_map(|ino| kept.readers.remove(ino)).collect(),
                None => kept.readers.drain().map(|(_, reader)| reader).collect(),
            }
        };
    }

    /// Time passes.
    pub fn expire(&self, now_ns: i64) {
        let _dropped = self.0.lock().drop_older(now_ns.saturating_sub(KEPT_NS), MAX_KEPT);
    }
}

impl<B: Backend> Kept<B> {
    /// Drops what was opened before `since_ns`, and the oldest beyond `most`.
    fn drop_older(&mut self, since_ns: i64, most: usize) -> Vec<Arc<B::Reader>> {
        let mut dropped = Vec::new();
        while let Some((ino, opened_ns)) = self.order.front().copied() {
            if opened_ns > since_ns && self.order.len() <= most {
                break;
            }
            self.order.pop_front();
            if self.readers.get(&ino).is_some_and(|(_, kept_ns)| *kept_ns == opened_ns) {
                dropped.extend(self.readers.remove(&ino).map(|(reader, _)| reader));
            }
        }
        dropped
    }
}
