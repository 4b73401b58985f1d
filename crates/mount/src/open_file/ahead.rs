//! Contents of small files that programs will open next, fetched ahead: described by the hundred, and read without a session. They are
//! verified bytes in memory, so no chunk need be kept for them. An open takes one if its version is the current one, which
//! mostly a lease says: then neither the open nor the reads nor the close ask anyone.

use crate::backend::{Backend, Reader};
use crate::mount::Mount;
use crate::namespace::{Batch, Namespace};
use crate::race::race;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tessera_failpoint as failpoint;
use tessera_wire::meta::{Entry, OpenReadReply};
use tokio::sync::Notify;

/// A content that nobody opens is kept for so long, ns.
const KEPT_NS: i64 = 5_000_000_000;
/// Most bytes that are kept.
const MOST_BYTES: u64 = 32 << 20;
/// Most bytes that programs have open. Beyond that, files are opened in sessions, whose contents need not be in memory.
const MOST_OPEN_BYTES: u64 = 64 << 20;
/// Contents after which it is looked which of them are closed, and time between two looks, ns.
const MANY: usize = 4_096;
const LOOK_NS: i64 = 100_000_000;
/// What a content takes besides its bytes.
const EACH_BYTES: u64 = 1 << 10;
/// An open waits for so long for a content that is on its way.
const WAIT: Duration = Duration::from_millis(100);

/// See the module.
pub struct ContentsAhead<B: Backend> {
    state: Mutex<State<B>>,
    /// A batch has come.
    fetched: Notify,
}

struct State<B: Backend> {
    /// By file.
    contents: HashMap<u64, Content<B>>,
    /// Files and numbers of their contents, in the order in which these came. Some are gone.
    order: VecDeque<(u64, u64)>,
    bytes: u64,
    last: u64,
    /// Contents that were given to opens, their bytes, and when those were left out that are closed.
    open: Vec<Weak<B::Reader>>,
    open_bytes: u64,
    looked_ns: i64,
    /// To be fetched.
    batches: VecDeque<Batch>,
    /// Files of these batches, and of those that are on their way.
    coming: HashSet<u64>,
}

struct Content<B: Backend> {
    version: Arc<B::Reader>,
    number: u64,
    fetched_ns: i64,
}

impl<B: Backend> Default for ContentsAhead<B> {
    fn default() -> ContentsAhead<B> {
        let (contents, order, open, batches, coming) = Default::default();
        let (bytes, last, open_bytes, looked_ns) = (0, 0, 0, i64::MIN);
        let state = State { contents, order, bytes, last, open, open_bytes, looked_ns, batches, coming };
        ContentsAhead { state: Mutex::new(state), fetched: Notify::new() }
    }
}

impl<B: Backend> ContentsAhead<B> {
    /// These files may change or are gone; none: any may. Sends nothing.
    pub fn forget(&self, inos: Option<&[u64]>) {
        let state = &mut *self.state.lock();
        match inos {
            Some(inos) => inos.iter().for_each(|ino| drop(state.remove(*ino))),
            None => {
                state.contents.clear();
                state.order.clear();
                state.bytes = 0;
            }
        }
    }

    /// Drops what nobody has opened for long.
    pub fn expire(&self, now_ns: i64) {
        let state = &mut *self.state.lock();
        while let Some((ino, number)) = state.order.front().copied() {
            let content = state.contents.get(&ino).filter(|content| content.number == number);
            if content.is_some_and(|content| now_ns.saturating_sub(content.fetched_ns) < KEPT_NS) {
                return;
            }
            state.drop_oldest();
        }
    }

    /// Bytes that are kept.
    #[cfg(test)]
    pub fn held_bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Waits a while for the content of a file that is on its way.
    async fn until_fetched(&self, backend: &B, ino: u64) {
        let fetched = async {
            loop {
                // Made before the look, so that no batch is missed.
                let fetched = self.fetched.notified();
                if !self.state.lock().coming.contains(&ino) {
                    return;
                }
                fetched.await;
            }
        };
        if self.state.lock().coming.contains(&ino) {
            let _ = race(fetched, backend.sleep(WAIT)).await;
        }
    }
}

impl<B: Backend> State<B> {
    fn remove(&mut self, ino: u64) -> Option<Arc<B::Reader>> {
        let Content { version, .. } = self.contents.remove(&ino)?;
        self.bytes -= EACH_BYTES + version.len_bytes();
        Some(version)
    }

    fn insert(&mut self, version: B::Reader, fetched_ns: i64) {
        let ino = version.opened().attr.ino;
        self.remove(ino);
        self.last += 1;
        self.bytes += EACH_BYTES + version.len_bytes();
        self.order.push_back((ino, self.last));
        self.contents.insert(ino, Content { version: Arc::new(version), number: self.last, fetched_ns });
        while self.bytes > MOST_BYTES {
            self.drop_oldest();
        }
    }

    /// Takes a content for an open, if there is room for it.
    fn give(&mut self, ino: u64, now_ns: i64) -> Option<Arc<B::Reader>> {
        let version = self.remove(ino)?;
        let are_many = self.open_bytes > MOST_OPEN_BYTES || self.open.len() >= MANY;
        if are_many && now_ns.saturating_sub(self.looked_ns) >= LOOK_NS {
            self.open.retain(|version| version.strong_count() > 0);
            let open = self.open.iter().filter_map(Weak::upgrade);
            (self.open_bytes, self.looked_ns) = (open.map(|version| EACH_BYTES + version.len_bytes()).sum(), now_ns);
        }
        if self.open_bytes > MOST_OPEN_BYTES {
            return None;
        }
        self.open_bytes += EACH_BYTES + version.len_bytes();
        self.open.push(Arc::downgrade(&version));
        Some(version)
    }

    fn drop_oldest(&mut self) {
        let Some((ino, number)) = self.order.pop_front() else { return };
        if self.contents.get(&ino).is_some_and(|content| content.number == number) {
            self.remove(ino);
        }
    }
}

impl<B: Backend> Mount<B> {
    /// The current version of a file, if its content was fetched ahead.
    pub(super) async fn content_ahead(&self, ino: u64) -> Option<Arc<B::Reader>> {
        self.ahead.until_fetched(&self.backend, ino).await;
        let opened_ns = self.backend.now_ns();
        let version = self.ahead.state.lock().give(ino, opened_ns)?;
        let current = self.namespace.get(ino).await.ok()?.attr.version;
        if version.opened().version.version != current && !failpoint::is_active("mount.content_ahead_is_stale") {
            return None;
        }
        self.recent.keep(ino, &version, opened_ns);
        Some(version)
    }

    /// A program has opened a file to read it: others may follow.
    pub(crate) fn plan_ahead(&self, ino: u64) {
        if let Some(batch) = self.namespace.with(|core, now_ns| core.following.opened(now_ns, ino)) {
            self.fetch_later(batch);
        }
    }

    /// [`Mount::read_ahead`] fetches these.
    pub(crate) fn fetch_later(&self, batch: Batch) {
        let mut state = self.ahead.state.lock();
        state.coming.extend(batch.files.iter().map(|(_, ino)| *ino));
        state.batches.push_back(batch);
    }

    /// Fetches the contents of files that programs will open next, if there are any. To be called after an open or a
    /// page of a listing, when the kernel has its answer.
    pub async fn read_ahead(&self) {
        loop {
            let Some(batch) = self.ahead.state.lock().batches.pop_front() else { return };
            self.fetch_ahead(&batch).await;
            let mut state = self.ahead.state.lock();
            for (_, ino) in &batch.files {
                state.coming.remove(ino);
            }
            drop(state);
            self.ahead.fetched.notify_waiters();
            self.namespace.with(|core, _| core.following.asked(batch.directory));
        }
    }

    async fn fetch_ahead(&self, batch: &Batch) {
        let is_wanted = |ino: u64| !self.files.is_open(ino) && !self.ahead.state.lock().contents.contains_key(&ino);
        let files = batch.files.iter().filter(|(_, ino)| is_wanted(*ino));
        let names: Vec<Vec<u8>> = files.map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            return;
        }
        let (stamp, fetched_ns) = (self.namespace.with(Namespace::stamp), self.backend.now_ns());
        let described = match self.backend.describe(batch.directory, &names).await {
            Ok(described) => described,
            Err(error) => return tracing::debug!(%error, "files are opened one by one: they are not described"),
        };
        self.namespace.with(|core, _| {
            for (name, OpenReadReply { attr, policy, lease_ms, .. }) in names.iter().zip(&described) {
                // What a file's own hints leave open, its policy says.
                let (attr, hints, lease_ms) = (attr.clone(), policy.clone(), *lease_ms);
                let entry = Entry { attr, hints, lease_ms, ..Entry::default() };
                core.cache.fetched_ahead(stamp, (batch.directory, name), &entry);
            }
        });
        let may_be_kept = |file: &OpenReadReply| super::recent::may_be_kept(&file.policy);
        let described = described.into_iter().filter(may_be_kept).collect();
        let versions = self.backend.read_described(described).await;
        let mut state = self.ahead.state.lock();
        versions.into_iter().flatten().for_each(|version| state.insert(version, fetched_ns));
    }
}
