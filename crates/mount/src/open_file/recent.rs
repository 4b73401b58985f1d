//! Versions that were open a moment ago. A compiler opens the same headers again and again: while a lease says that a version is the
//! current one, it is read on without a request, and its session stays.

use crate::backend::{Backend, Reader};
use crate::mount::Mount;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tessera_failpoint as failpoint;
use tessera_policy::Cache;
use tessera_wire::Hint;

/// A version that was opened once is kept for so long, ns: the manager records sessions that last for a second.
const ONCE_NS: i64 = 800_000_000;
/// One that was opened again meanwhile is kept for so long, ns. Much shorter than a session lasts of which the manager hears nothing.
const AGAIN_NS: i64 = 5_000_000_000;
/// Versions that are kept.
const MAX_KEPT: usize = 1_024;
/// Bytes of those of them that are in memory.
const MOST_BYTES: u64 = 16 << 20;

/// See the module.
pub struct RecentReaders<B: Backend>(Mutex<Kept<B>>);

struct Kept<B: Backend> {
    /// By file.
    readers: HashMap<u64, Recent<B>>,
    /// Bytes of those that are in memory.
    bytes: u64,
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
        RecentReaders(Mutex::new(Kept { readers: HashMap::new(), bytes: 0, ended: Vec::new() }))
    }
}

impl<B: Backend> RecentReaders<B> {
    /// The current version of a file, if it was open a moment ago and a lease says that it is the current one still.
    /// `must_keep`: by a session.
    pub fn current(&self, mount: &Mount<B>, ino: u64, must_keep: bool) -> Option<Arc<B::Reader>> {
        let current = mount.namespace.attr(ino)?.attr.version;
        let now_ns = mount.backend.now_ns();
        let mut kept = self.0.lock();
        let lacks_session = |recent: &Recent<B>| must_keep && recent.reader.is_in_memory();
        let recent = kept.readers.get_mut(&ino).filter(|recent| !recent.is_over(now_ns) && !lacks_session(recent))?;
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
        if !may_be_kept(&reader.opened().policy) {
            return;
        }
        let mut kept = self.0.lock();
        kept.end(ino);
        kept.bytes += memory_bytes(&**reader);
        kept.readers.insert(ino, Recent { reader: reader.clone(), opened_ns, again: false });
        while kept.readers.len() > MAX_KEPT || kept.bytes > MOST_BYTES {
            kept.end_oldest();
        }
    }

    /// These files change or are gone; none: the connection is lost, and perhaps the sessions with it. Sends nothing: who is told that
    /// leases end must not.
    pub fn forget(&self, inos: Option<&[u64]>) {
        let kept = &mut *self.0.lock();
        let mut all: Vec<u64> = if inos.is_none() { kept.readers.keys().copied().collect() } else { Vec::new() };
        // The simulator replays a seed.
        all.sort_unstable();
        inos.unwrap_or(&all).iter().for_each(|ino| kept.end(*ino));
    }

    /// Drops what was not opened for long, or was forgotten: their sessions end.
    pub fn expire(&self, backend: &B) {
        let now_ns = backend.now_ns();
        let ended = {
            let mut kept = self.0.lock();
            let over = kept.readers.iter().filter(|(_, recent)| recent.is_over(now_ns));
            let mut over: Vec<u64> = over.map(|(ino, _)| *ino).collect();
            over.sort_unstable();
            over.iter().for_each(|ino| kept.end(*ino));
            std::mem::take(&mut kept.ended)
        };
        // Without the lock.
        if !ended.is_empty() {
            backend.close_readers(ended);
        }
    }
}

impl<B: Backend> Kept<B> {
    fn end(&mut self, ino: u64) {
        if let Some(Recent { reader, .. }) = self.readers.remove(&ino) {
            self.bytes -= memory_bytes(&*reader);
            self.ended.push(reader);
        }
    }

    fn end_oldest(&mut self) {
        let oldest = self.readers.iter().min_by_key(|(_, recent)| recent.opened_ns).map(|(ino, _)| *ino);
        oldest.into_iter().for_each(|ino| self.end(ino));
    }
}

fn memory_bytes<R: Reader>(version: &R) -> u64 {
    if version.is_in_memory() { version.len_bytes() } else { 0 }
}

/// Whether clients may keep what they read of a file with this policy.
pub(super) fn may_be_kept(policy: &[Hint]) -> bool {
    !policy.iter().any(|hint| hint.name == "cache" && hint.value != Cache::Auto.to_string())
}
