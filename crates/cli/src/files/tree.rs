//! Directories, links and attributes of a tree that is stored: many in one request, and directories level by level, because a
//! request names the directory above by its inode. One that another client moves meanwhile is filled where it is by then.

use super::local::Kind;
use super::pool::{self, Tally};
use super::put::Job;
use crate::exit::{Failure, Outcome};
use crate::remote::Store;
use crate::term::Progress;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use tessera_client::path::StorePath;
use tessera_client::{Error, Owner};
use tessera_wire::Code;
use tessera_wire::meta::{MAX_AT_ONCE, NewEntry};

/// Permission bits of symbolic links, which Linux ignores.
const LINK_MODE: u32 = 0o777;
/// Those of a directory that is being filled.
const DIRECTORY_MODE: u32 = 0o755;

/// The inodes of directories in the store.
pub struct Directories<'a> {
    store: &'a Store,
    inos: Mutex<BTreeMap<StorePath, u64>>,
}

impl Directories<'_> {
    /// Makes directories; those above them are there, or among them. They get their modes and times at the end, when they are filled.
    ///
    /// # Errors
    /// The first one that cannot be made.
    pub fn make<'a>(store: &'a Store, jobs: &[Job]) -> Outcome<Directories<'a>> {
        let made = Directories { store, inos: Mutex::default() };
        let mut levels = BTreeMap::<usize, Vec<&Job>>::new();
        for job in jobs.iter().filter(|job| !job.to.is_root()) {
            levels.entry(job.to.components().len()).or_default().push(job);
        }
        for level in levels.into_values() {
            let entries = level.iter().map(|job| made.entry(job)).collect::<Outcome<Vec<NewEntry>>>()?;
            for (job, answer) in level.iter().zip(store.make_many(&entries)?) {
                let ino = answer.map_err(|error| Error::refused("mkdir", &job.to, error))?;
                made.inos.lock().insert(job.to.clone(), ino);
            }
        }
        Ok(made)
    }

    /// The inode of a directory.
    ///
    /// # Errors
    /// It is not there, or the manager does not answer.
    fn ino(&self, path: &StorePath) -> Outcome<u64> {
        if let Some(ino) = self.inos.lock().get(path) {
            return Ok(*ino);
        }
        let ino = self.store.stat(path)?.ino;
        self.inos.lock().insert(path.clone(), ino);
        Ok(ino)
    }

    fn entry(&self, Job { found, to }: &Job) -> Outcome<NewEntry> {
        let (parent, name) = to.split_last()?;
        let (parent, name) = (self.ino(&parent)?, name.to_vec());
        Ok(match &found.kind {
            Kind::Symlink(target) => {
                let (uid, gid, mtime_ns) = (found.owner.uid, found.owner.gid, Some(found.mtime_ns));
                NewEntry { parent, name, target: target.clone(), uid, gid, mtime_ns, ..NewEntry::default() }
            }
            _ => NewEntry { parent, name, mode: DIRECTORY_MODE, ..NewEntry::default() },
        })
    }

    /// Stores symbolic links, in place of links and files of these names.
    pub fn link(&self, jobs: usize, links: Vec<Job>, progress: &Progress) -> Tally {
        let there = Mutex::new(Vec::new());
        let all = |some: Vec<Job>| {
            let entries: Vec<Outcome<NewEntry>> = some.iter().map(|job| self.entry(job)).collect();
            let good: Vec<NewEntry> = entries.iter().filter_map(|entry| entry.as_ref().ok().cloned()).collect();
            let mut made = match self.store.make_many(&good) {
                Ok(made) => made.into_iter(),
                Err(error) => return vec![Err(error.into())],
            };
            let outcome = |(job, entry): (Job, Outcome<NewEntry>)| match entry.map(|_| made.next()) {
                Ok(Some(Err(error))) if error.code() == Code::Exists => {
                    there.lock().push(job);
                    Ok(())
                }
                Ok(Some(Err(error))) => Err(Error::refused("symlink", &job.to, error).into()),
                Ok(_) => Ok(()),
                Err(failure) => Err(failure),
            };
            some.into_iter().zip(entries).map(outcome).collect()
        };
        let made = in_groups(links, jobs, all, progress);
        let replace = |job: Job| self.replace(&job);
        made.and(pool::run(there.into_inner(), |_| 0, jobs, replace, |failure| progress.warn(failure)))
    }

    fn replace(&self, Job { found, to }: &Job) -> Outcome {
        let Kind::Symlink(target) = &found.kind else { return Ok(()) };
        self.store.replace_symlink(target, to)?;
        Ok(self.store.set_attributes(to, Owner { mode: LINK_MODE, ..found.owner }, found.mtime_ns)?)
    }

    /// Sets mode, owner and time of the directories that were made. Filling them changed their times.
    pub fn finish(&self, jobs: usize, directories: Vec<Job>, progress: &Progress) -> Tally {
        let inos = self.inos.lock();
        // The root was not made here, and keeps its attributes.
        let made = directories.into_iter().filter(|job| !job.to.is_root());
        let made = made.filter_map(|job| Some((*inos.get(&job.to)?, job))).collect();
        set_attributes(self.store, made, jobs, progress)
    }
}

/// Sets mode, owner and time of inodes.
pub fn set_attributes(store: &Store, inodes: Vec<(u64, Job)>, jobs: usize, progress: &Progress) -> Tally {
    let all = |some: Vec<(u64, Job)>| {
        let set = |(ino, Job { found, .. }): &(u64, Job)| (*ino, found.owner, found.mtime_ns);
        let refused = match store.set_many(&some.iter().map(set).collect::<Vec<_>>()) {
            Ok(refused) => refused,
            Err(error) => return vec![Err(error.into())],
        };
        let mut outcomes: Vec<Outcome> = some.iter().map(|_| Ok(())).collect();
        for (place, error) in refused {
            if let (Some(outcome), Some((_, job))) = (outcomes.get_mut(place), some.get(place)) {
                *outcome = Err(Failure::from(Error::refused("change", &job.to, error)));
            }
        }
        outcomes
    };
    in_groups(inodes, jobs, all, progress)
}

fn in_groups<T: Send>(
    items: Vec<T>,
    jobs: usize,
    work: impl Fn(Vec<T>) -> Vec<Outcome> + Sync,
    progress: &Progress,
) -> Tally {
    let mut items = items.into_iter();
    let groups =
        std::iter::from_fn(|| Some(items.by_ref().take(MAX_AT_ONCE).collect::<Vec<T>>()).filter(|g| !g.is_empty()));
    let len = |group: &Vec<T>| group.len() as u64;
    pool::run_groups(groups.collect(), (|_: &Vec<T>| 0, len), jobs, work, |failure| progress.warn(failure))
}
