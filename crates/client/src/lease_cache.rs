//! Directories cached under leases, and the service that answers the manager's recalls.

use crate::path::StorePath;
use parking_lot::{Mutex, MutexGuard};
use prost::Message;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tessera_net::{Connection, Service, boot_ns};
use tessera_wire::meta::{Entry, RecallLease};
use tessera_wire::{Ack, Code, Error, Frame, Hint, Kind};

/// A directory as the manager returned it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Directory {
    pub ino: u64,
    pub hints: Vec<Hint>,
}

/// See the module.
pub(crate) struct DirectoryCache {
    entries: Mutex<Entries>,
    /// Threads that need the same directory ask for it one after another: the first one's answer serves the others.
    turns: [Mutex<()>; TURNS],
    pub recall_hook: OnceLock<RecallHook>,
    pub delegation_recall_hook: OnceLock<DelegationRecallHook>,
    pub lock_recall_hook: OnceLock<LockRecallHook>,
}

/// Tells the manager that what it recalls is given back.
pub type RecallAnswer = Box<dyn FnOnce() + Send>;

/// Called with the recalled inodes, `None`: all; the closure reports that they are given back.
type RecallHook = Box<dyn Fn(Option<&[u64]>, RecallAnswer) + Send + Sync>;

/// Called with the directories whose delegation is recalled; the closure reports that it is given back.
type DelegationRecallHook = Box<dyn Fn(Vec<u64>, RecallAnswer) + Send + Sync>;

/// Called with the files whose locks are no longer to be decided about here.
type LockRecallHook = Box<dyn Fn(&[u64]) + Send + Sync>;

#[derive(Debug, Default)]
struct Entries {
    by_path: HashMap<StorePath, CachedDirectory>,
    /// Grows with every recall: an answer that was in flight during a recall is used once and not cached.
    recalls: u64,
}

#[derive(Debug)]
struct CachedDirectory {
    directory: Directory,
    /// The directory itself, and those on its path.
    inos: Vec<u64>,
    /// By [`boot_ns`].
    until_ns: i64,
}

/// Directories that are asked for side by side.
const TURNS: usize = 64;
/// A thread waits so long for another one's answer. Then the manager may be away, and nobody waits for it twice.
const TURN: Duration = Duration::from_millis(200);

/// Most cached directories; when there are more, the cache is emptied.
const MAX_DIRECTORIES: usize = 100_000;

impl Default for DirectoryCache {
    fn default() -> DirectoryCache {
        let turns = std::array::from_fn(|_| Mutex::default());
        let (recall_hook, delegation_recall_hook, lock_recall_hook) = Default::default();
        DirectoryCache { entries: Mutex::default(), turns, recall_hook, delegation_recall_hook, lock_recall_hook }
    }
}

impl DirectoryCache {
    /// The directory, if it is cached and its lease runs; else the number to pass to [`DirectoryCache::insert`].
    pub fn find(&self, path: &StorePath) -> Result<Directory, u64> {
        let entries = self.entries.lock();
        match entries.by_path.get(path).filter(|cached| cached.until_ns > boot_ns()) {
            Some(cached) => Ok(cached.directory.clone()),
            None => Err(entries.recalls),
        }
    }

    /// To be held while a directory is asked for.
    pub fn turn(&self, path: &StorePath) -> Option<MutexGuard<'_, ()>> {
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        self.turns[hasher.finish() as usize % TURNS].try_lock_for(TURN)
    }

    /// Caches an answer to a request sent at `asked_ns` ([`boot_ns`]); `recalls` is what [`DirectoryCache::find`] returned.
    pub fn insert(&self, path: &StorePath, entry: &Entry, asked_ns: i64, recalls: u64) {
        let Some(attr) = &entry.attr else { return };
        let mut entries = self.entries.lock();
        if entry.lease_ms == 0 || entries.recalls != recalls {
            return;
        }
        if entries.by_path.len() >= MAX_DIRECTORIES {
            entries.by_path.clear();
        }
        let mut inos = entry.path.clone();
        inos.push(attr.ino);
        // The lease runs from when the manager granted it, which was not before `asked_ns`.
        let lease_ns = i64::try_from(entry.lease_ms).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        let until_ns = asked_ns.saturating_add(lease_ns);
        let directory = Directory { ino: attr.ino, hints: entry.hints.clone() };
        entries.by_path.insert(path.clone(), CachedDirectory { directory, inos, until_ns });
        assert!(entries.by_path.len() <= MAX_DIRECTORIES, "{} directories are cached", entries.by_path.len());
    }

    /// Drops every entry that depends on these inodes.
    pub fn recall(&self, inos: &[u64]) {
        let mut entries = self.entries.lock();
        entries.recalls += 1;
        entries.by_path.retain(|_, cached| !cached.inos.iter().any(|ino| inos.contains(ino)));
    }

    fn notify(&self, inos: Option<&[u64]>, answer: RecallAnswer) {
        match self.recall_hook.get() {
            Some(recall_hook) => recall_hook(inos, answer),
            None => answer(),
        }
    }

    /// The holder gives back these leases, then the delegations of these directories.
    fn give_back(self: &Arc<Self>, request: RecallLease, answer: RecallAnswer) {
        if let Some(recall_hook) = self.lock_recall_hook.get().filter(|_| !request.delegated_files.is_empty()) {
            recall_hook(&request.delegated_files);
        }
        self.recall(&request.inos);
        let (cache, directories) = (self.clone(), request.delegated_dirs);
        let then = move || match cache.delegation_recall_hook.get().filter(|_| !directories.is_empty()) {
            Some(recall_hook) => recall_hook(directories, answer),
            None => answer(),
        };
        self.notify(Some(&request.inos), Box::new(then));
    }

    /// Drops everything that came under leases.
    fn recall_all(&self) {
        self.clear();
        self.notify(None, Box::new(|| ()));
    }

    /// Empties the cache: this client changed names itself, and the manager recalls no leases for its own changes.
    pub fn clear(&self) {
        let mut entries = self.entries.lock();
        entries.recalls += 1;
        entries.by_path.clear();
    }
}

/// Answers the manager's recalls.
pub(crate) struct RecallService(pub Arc<DirectoryCache>);

impl Service for RecallService {
    fn request(&self, connection: &Arc<Connection>, frame: Frame) {
        let (kind, id) = (frame.header.kind, frame.header.request_id);
        if kind != Kind::RecallLease as u16 {
            let error = Error::new(Code::Unsupported, format!("a client answers no requests of kind {kind:#06x}"));
            return connection.reply(kind, id, Err(error));
        }
        let connection = connection.clone();
        let answer = move || connection.reply(kind, id, Ok((Ack {}.encode_to_vec().into(), Vec::new())));
        match RecallLease::decode(&frame.body[..]) {
            Ok(request) => self.0.give_back(request, Box::new(answer)),
            Err(_) => {
                self.0.recall_all();
                answer();
            }
        }
    }

    /// The manager counts all leases as given back when the stream ends, so the cache must be empty before.
    fn closing(&self) {
        self.0.recall_all();
    }

    fn closed(&self, _connection: &Arc<Connection>) {
        // The manager may have closed it, with a recall in flight.
        self.0.recall_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_wire::Attr;

    #[test]
    fn leases_end_by_time_by_recall_and_by_a_recall_that_overtook_the_answer() {
        let (directories, path) = (DirectoryCache::default(), StorePath::parse("tess:/a/b").unwrap());
        let attr = Some(Attr { ino: 7, ..Default::default() });
        let entry = Entry { attr, path: vec![1, 5], lease_ms: 60_000, ..Default::default() };
        let keep = |recalls| directories.insert(&path, &entry, boot_ns(), recalls);
        let recalls = directories.find(&path).unwrap_err();
        keep(recalls);
        assert_eq!(directories.find(&path).unwrap().ino, 7);
        directories.recall(&[6]);
        assert!(directories.find(&path).is_ok());
        // A directory on the path changed.
        directories.recall(&[5]);
        assert!(directories.find(&path).is_err());
        keep(recalls);
        assert!(directories.find(&path).is_err(), "the answer is older than the recall");
        keep(directories.find(&path).unwrap_err());
        assert!(directories.find(&path).is_ok());
        directories.clear();
        let old = boot_ns() - 61_000_000_000;
        directories.insert(&path, &entry, old, directories.find(&path).unwrap_err());
        assert!(directories.find(&path).is_err(), "the lease ran out");
    }
}
