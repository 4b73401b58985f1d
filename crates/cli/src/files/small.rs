//! Small files of `tessera put` and `tessera get`, which are stored and fetched by the hundred.

use super::local::LocalEntry;
use super::put::{Condition, Job, Sums, put_file, set_owner};
use crate::exit::{At, Exit, Failure, Outcome, failure};
use crate::remote::Store;
use crate::term::Progress;
use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use tessera_client::path::StorePath;
use tessera_client::{Cancel, DESCRIBED_FILES, Error, PACK_BYTES, PACK_FILES, SmallPut, WriteDone};

/// Files of at most this many bytes are small.
const SMALL_BYTES: u64 = 128 << 10;

/// What is stored or fetched at once.
pub enum Group<T> {
    /// A file.
    One(T),
    /// Many small files.
    Small(Vec<T>),
}

impl<T> Group<T> {
    /// Bytes of its files, if this many are in each.
    pub fn len_bytes(&self, of_file: impl Fn(&T) -> u64) -> u64 {
        match self {
            Group::One(job) => of_file(job),
            Group::Small(jobs) => jobs.iter().map(of_file).sum(),
        }
    }

    /// Number of its files.
    pub fn files(&self) -> u64 {
        match self {
            Group::One(_) => 1,
            Group::Small(jobs) => jobs.len() as u64,
        }
    }
}

/// Groups small files in the order in which they were found, each for one pack; other files stay alone.
pub fn grouped(files: Vec<Job>, condition: &Condition) -> Vec<Group<Job>> {
    let is_small =
        |job: &Job| job.found.len_bytes() <= SMALL_BYTES && !job.found.sparse && condition.if_version.is_none();
    let (small, large): (Vec<Job>, Vec<Job>) = files.into_iter().partition(is_small);
    let mut groups: Vec<Group<Job>> = large.into_iter().map(Group::One).collect();
    let (mut group, mut bytes) = (Vec::new(), 0);
    for job in small {
        let len_bytes = job.found.len_bytes();
        // Besides at the limits, a group ends behind a name out of eight, so that a new file does not move the ends of all groups behind
        // it: groups of the same files have the same bytes, which are stored once.
        let ends = bytes > PACK_BYTES as u64 / 2 && group.last().is_some_and(ends_a_group);
        if bytes + len_bytes > PACK_BYTES as u64 || group.len() == PACK_FILES || ends {
            groups.push(Group::Small(std::mem::take(&mut group)));
            bytes = 0;
        }
        bytes += len_bytes;
        group.push(job);
    }
    groups.push(Group::Small(group));
    groups.retain(|group| group.files() > 0);
    groups
}

/// Groups small files in the order in which they were listed, each for one request to the manager, and at least `jobs` if there are as many
/// files; other files stay alone.
pub fn described<T>(files: Vec<T>, len_bytes: impl Fn(&T) -> u64, jobs: usize) -> Vec<Group<T>> {
    let (small, large): (Vec<T>, Vec<T>) = files.into_iter().partition(|file| len_bytes(file) <= SMALL_BYTES);
    let most = small.len().div_ceil(jobs.max(1)).clamp(1, DESCRIBED_FILES);
    let mut small = small.into_iter();
    let next = || Some(small.by_ref().take(most).collect()).filter(|group: &Vec<T>| !group.is_empty());
    large.into_iter().map(Group::One).chain(std::iter::from_fn(next).map(Group::Small)).collect()
}

fn ends_a_group(job: &Job) -> bool {
    let name = job.found.names.last().map_or(&[][..], Vec::as_slice);
    name.iter().fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte)).is_multiple_of(8)
}

/// A file before or after it was read: these attributes change when a program writes to it.
pub fn state(meta: &Metadata) -> (u64, i64, i64) {
    (meta.len(), meta.mtime(), meta.mtime_nsec())
}

/// The failure of a file that a program changed meanwhile.
pub fn mixture(found: &LocalEntry, to: &StorePath) -> Failure {
    let path = found.path.display();
    failure!(Exit::Failed, "{path}: changed while it was read; {to} holds a mixture, store it again")
}

/// A small file that was read.
struct Small {
    file: SmallPut,
    changed: bool,
}

/// Reads small files and stores them together. Returns the outcome of each, in order.
pub fn put(store: &Store, jobs: &[Job], condition: &Condition, progress: &Progress, sums: &Sums) -> Vec<Outcome> {
    let cancel = Cancel::default();
    let held = store.hold(jobs.iter().map(|job| job.found.len_bytes()).sum(), &cancel).expect("nobody cancels this");
    let read: Vec<Outcome<Option<Small>>> = jobs.iter().map(read).collect();
    let files = read.iter().flatten().flatten().map(|small| small.file.clone()).collect();
    let mut stored = store.put_small(files, &condition.hints, &held, &cancel).into_iter();
    drop(held);
    let outcome = |(job, read): (&Job, Outcome<Option<Small>>)| match read? {
        None => put_file(store, job, condition, progress, sums),
        Some(small) => {
            let done = stored.next().expect("each file that was read has a result");
            progress.steps()(tessera_client::Progress { done: job.found.len_bytes(), total: None });
            note(store, job, &small, done, sums)
        }
    };
    jobs.iter().zip(read).map(outcome).collect()
}

/// All bytes of a small file. `None`: it is not small any more.
fn read(Job { found, to }: &Job) -> Outcome<Option<Small>> {
    let path = &found.path;
    let file = found.open()?;
    let before = file.metadata().at(path)?;
    let mut content = Vec::with_capacity(before.len().min(SMALL_BYTES) as usize + 1);
    (&file).take(SMALL_BYTES + 1).read_to_end(&mut content).at(path)?;
    if content.len() as u64 > SMALL_BYTES {
        return Ok(None);
    }
    let after = file.metadata().at(path)?;
    let changed = state(&before) != state(&after) || content.len() as u64 != after.len();
    let file = SmallPut { path: to.clone(), content: content.into(), mtime_ns: found.mtime_ns, owner: found.owner };
    Ok(Some(Small { file, changed }))
}

fn note(store: &Store, job: &Job, small: &Small, done: Result<WriteDone, Error>, sums: &Sums) -> Outcome {
    let Job { found, to } = job;
    let put = done.map_err(|e| Failure::from(e).of(found.path.display()))?;
    if put.number > 1 && put.owner != Some(found.owner) {
        set_owner(store, found, to)?;
    }
    sums.add(&put);
    if small.changed { Err(mixture(found, to)) } else { Ok(()) }
}
