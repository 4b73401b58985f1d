//! Simulated directories: the current name of each file, and which of the names are durable.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use super::inode::Inode;
use crate::path;
use crate::rng::SplitMix64;

/// What survives a power loss among unsynced changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashKind {
    /// Nothing.
    KeepNone,
    /// Everything, as if the cache had been written back.
    KeepAll,
    /// Each sector, length and name independently.
    KeepSome,
    /// The oldest writes of each file; the next write is torn at a sector, later ones are lost. Names as in `KeepSome`.
    Torn,
}

type File = Arc<Mutex<Inode>>;

/// A change of names that is not yet durable: `from` is removed, `to` names the file; a rename does both.
#[derive(Clone)]
struct Change {
    from: Option<String>,
    to: Option<(String, File)>,
}

#[derive(Clone, Default)]
pub(super) struct Names {
    now: BTreeMap<String, File>,
    durable: BTreeMap<String, File>,
    unsynced: Vec<Change>,
    /// Creating a directory is durable at once, so one set is enough.
    dirs: BTreeSet<String>,
}

impl Names {
    pub(super) fn get(&self, path: &str) -> Option<&File> {
        self.now.get(path)
    }

    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &File)> {
        self.now.iter().map(|(path, file)| (path.as_str(), file))
    }

    pub(super) fn has_dir(&self, dir: &str) -> bool {
        dir.is_empty() || self.dirs.contains(dir)
    }

    pub(super) fn dirs_in(&self, dir: &str) -> Vec<String> {
        self.dirs.iter().filter_map(|d| path::name_in(dir, d)).map(str::to_owned).collect()
    }

    pub(super) fn files_in(&self, dir: &str) -> Vec<String> {
        self.now.keys().filter_map(|p| path::name_in(dir, p)).map(str::to_owned).collect()
    }

    pub(super) fn create_dir(&mut self, dir: &str) {
        let mut at = dir;
        while !at.is_empty() {
            self.dirs.insert(at.into());
            at = path::parent(at);
        }
    }

    pub(super) fn create(&mut self, path: &str) -> File {
        let file = File::default();
        self.now.insert(path.into(), file.clone());
        self.unsynced.push(Change { from: None, to: Some((path.into(), file.clone())) });
        file
    }

    pub(super) fn remove(&mut self, path: &str) -> bool {
        let there = self.now.remove(path).is_some();
        if there {
            self.unsynced.push(Change { from: Some(path.into()), to: None });
        }
        there
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> bool {
        let Some(file) = self.now.remove(from) else { return false };
        self.now.insert(to.into(), file.clone());
        self.unsynced.push(Change { from: Some(from.into()), to: Some((to.into(), file)) });
        true
    }

    /// Makes the changes of names in `dir` durable.
    pub(super) fn sync_dir(&mut self, dir: &str) {
        for change in self.unsynced.extract_if(.., |change| change.touches(dir)) {
            change.apply(&mut self.durable);
        }
    }

    /// Sum of the lengths of all named files.
    pub(super) fn used_bytes(&self) -> u64 {
        self.now.values().map(|file| file.lock().len()).sum()
    }

    /// An independent copy, including the cache.
    pub(super) fn clone_deep(&self) -> Names {
        self.map(|inode| inode.clone())
    }

    /// The names and files after a power loss.
    pub(super) fn after_power_loss(&self, kind: CrashKind, sector: u64, rng: &mut SplitMix64) -> Names {
        let mut kept = self.durable.clone();
        for change in &self.unsynced {
            let survives = match kind {
                CrashKind::KeepNone => false,
                CrashKind::KeepAll => true,
                CrashKind::KeepSome | CrashKind::Torn => rng.below(2) == 1,
            };
            if survives {
                change.apply(&mut kept);
            }
        }
        let survivor = Names { now: kept.clone(), durable: kept, unsynced: Vec::new(), dirs: self.dirs.clone() };
        survivor.map(|inode| inode.after_power_loss(kind, sector, rng))
    }

    /// The same names, with every file replaced by `change` of it.
    fn map(&self, mut change: impl FnMut(&Inode) -> Inode) -> Names {
        let mut made: HashMap<*const Mutex<Inode>, File> = HashMap::new();
        let mut fresh = |file: &File| {
            made.entry(Arc::as_ptr(file)).or_insert_with(|| Arc::new(Mutex::new(change(&file.lock())))).clone()
        };
        let mut map = |names: &BTreeMap<String, File>| {
            names.iter().map(|(path, file)| (path.clone(), fresh(file))).collect::<BTreeMap<_, _>>()
        };
        let (now, durable) = (map(&self.now), map(&self.durable));
        let unsynced = self.unsynced.iter().map(|c| c.with(&mut fresh)).collect();
        Names { now, durable, unsynced, dirs: self.dirs.clone() }
    }
}

impl Change {
    fn touches(&self, dir: &str) -> bool {
        let to = self.to.as_ref().map(|(to, _)| to);
        self.from.iter().chain(to).any(|path| path::parent(path) == dir)
    }

    fn apply(&self, names: &mut BTreeMap<String, File>) {
        let is_it = |file: &File, from| names.get(from).is_some_and(|there| Arc::ptr_eq(there, file));
        if let Some(from) = &self.from
            && self.to.as_ref().is_none_or(|(_, file)| is_it(file, from))
        {
            names.remove(from);
        }
        names.extend(self.to.clone());
    }

    fn with(&self, fresh: &mut impl FnMut(&File) -> File) -> Change {
        let to = self.to.as_ref().map(|(to, file)| (to.clone(), fresh(file)));
        Change { from: self.from.clone(), to }
    }
}
