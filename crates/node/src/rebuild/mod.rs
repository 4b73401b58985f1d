//! The rebuild of one chunk's fragment as a state machine: check the local disk, fetch a copy or k fragments, compute, append.
//!
//! It knows no socket, disk or clock: [`ChunkRebuild::next`] returns actions, and the `on_…` methods take their
//! results. It appends only what [`RebuildJob::run`] derived from bytes that match the chunk's name (P2, P6). It
//! replaces a source that fails, lies or is late while there is another one (P12).
//!
//! A *proof* is a rebuild of a fragment that is there: it does not trust the local fragment, compares it with the computed one,
//! and replaces it if they differ. A rebuild that finds parity in its place goes on as a proof: a client may have put it there.

use crate::core::{AppendItem, FragmentKey, Verdict};
use bytes::Bytes;
use std::collections::BTreeMap;
use tessera_accel::hash::{HASH_BYTES, Hash, group_count};
use tessera_segment::RecordMeta;
use tessera_stripe::{ClassLayout, Fragment, RebuildJob, Rebuilt};
use tessera_wire::meta::{FragmentRef, RebuildTask};
use tessera_wire::{ChunkInfo, ClassInfo, Code, Error, PgInfo};

/// A disk that fragments can be fetched from, as the core sees it.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The map says that the disk and its node are up.
    pub up: bool,
    /// Number of fetches in progress to its node.
    pub load: usize,
}

/// The next action of the machine.
#[derive(Clone, Debug, PartialEq)]
pub enum RebuildAction {
    /// Check whether the local disk already has the fragment: [`ChunkRebuild::on_local_check`].
    CheckLocal,
    /// Read this whole fragment from that disk: [`ChunkRebuild::on_fetched`].
    Fetch(SourceAt),
    /// Compute one step: [`ChunkRebuild::on_computed`].
    Compute(RebuildJob),
    /// Read the local fragment, to compare it: [`ChunkRebuild::on_local_read`].
    ReadLocal,
    /// Store the fragment: [`ChunkRebuild::on_appended`].
    Append(AppendItem),
    /// The rebuild ended.
    Finished(RebuildReport),
}

/// A fragment on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceAt {
    /// Fragment number.
    pub fragment: u32,
    /// Disk that is expected to have it.
    pub disk_id: u64,
}

/// Result of a rebuild.
#[derive(Clone, Debug, PartialEq)]
pub struct RebuildReport {
    /// `Ok` once the fragment is stored and synced.
    pub result: Result<(), String>,
    /// Bytes written; 0 if the fragment was already there.
    pub written_bytes: u64,
    /// A proof has found the local fragment wrong and replaced it.
    pub replaced: bool,
    /// Fragments on other disks that were found missing or wrong.
    pub bad: Vec<FragmentRef>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Untried,
    InFlight,
    Done,
    Failed,
}

/// A possible source, and the state of asking it.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    at: SourceAt,
    role: Role,
    state: State,
}

/// The disk's role for the fragment. Candidates with an earlier role are asked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    /// The group's member: it has the fragment, or should have it.
    Member,
    /// The incoming disk: it may not have the fragment yet.
    Filling,
    /// The disk was declared lost and may be back, or the fragment is known to be missing there. A lost disk that
    /// returns may hold the last copy of a fragment that backfill could not supply.
    LastResort,
}

#[derive(Debug)]
enum Step {
    LocalCheck,
    Fetching,
    Computing(RebuildJob),
    Comparing(AppendItem),
    Appending { len_bytes: u64 },
    Over,
}

/// The rebuild of one fragment of one chunk.
#[derive(Debug)]
pub struct ChunkRebuild {
    key: FragmentKey,
    /// Disk that the fragment goes to.
    target: u64,
    chunk: ChunkInfo,
    name: Hash,
    class: ClassInfo,
    pg: PgInfo,
    domain: u32,
    candidates: Vec<Candidate>,
    got: BTreeMap<u32, Fragment>,
    /// Fragments that fail their checksum. Used if no other source is left, as readers do.
    suspects: BTreeMap<u32, Fragment>,
    /// Sources needed beyond k, because a sufficient set did not match the chunk's name.
    extra: usize,
    /// Sources of the last computation, so that the same set is not computed twice.
    computed_with: Vec<u32>,
    /// The suspects have been used too: nothing else is left to try.
    searched: bool,
    bad: Vec<FragmentRef>,
    last_error: String,
    step: Step,
    asked_local: bool,
    /// The fragment is there, and is compared with the computed one.
    compare: bool,
    prove: bool,
}

impl ChunkRebuild {
    /// Creates the rebuild of `task.chunks[index]`.
    ///
    /// # Errors
    /// A description of what is missing from the task or contradictory in it (P14).
    pub fn new(task: &RebuildTask, index: usize) -> Result<Self, String> {
        let (Some(pg), Some(class)) = (&task.pg, &task.class) else {
            return Err("the task names no group or no class".into());
        };
        let Some(chunk) = task.chunks.get(index) else { return Err(format!("the task has no chunk {index}")) };
        let name = Hash::try_from(&chunk.hash[..]).map_err(|e| format!("chunk {}: {e}", chunk.chunk_id))?;
        if class.fragment_bytes(chunk.len_bytes, task.fragment).is_none() || class.k == 0 {
            return Err(format!("class {} has no fragment {}", class.spec, task.fragment));
        }
        let mut it = ChunkRebuild {
            key: FragmentKey { chunk_id: chunk.chunk_id, fragment: task.fragment },
            target: task.disk_id,
            name,
            candidates: candidates(pg, class, chunk, task),
            got: BTreeMap::new(),
            suspects: BTreeMap::new(),
            chunk: chunk.clone(),
            class: class.clone(),
            pg: pg.clone(),
            domain: task.domain,
            extra: 0,
            computed_with: Vec::new(),
            searched: false,
            bad: Vec::new(),
            last_error: String::new(),
            step: if task.prove { Step::Fetching } else { Step::LocalCheck },
            asked_local: false,
            compare: task.prove,
            prove: task.prove,
        };
        it.add_empty_fragments();
        Ok(it)
    }

    /// The fragment to rebuild.
    pub fn key(&self) -> FragmentKey {
        self.key
    }

    /// Bytes this rebuild reads and writes if no source fails.
    pub fn cost_bytes(&self) -> u64 {
        let len = self.chunk.len_bytes;
        let read = match self.class.copies() {
            0 => self.class.slice_bytes(len).saturating_mul(u64::from(self.class.k)),
            _ => len,
        };
        read.saturating_add(self.class.fragment_bytes(len, self.key.fragment).unwrap_or(0))
    }

    /// Adds the data fragments past the end of a short chunk: they are empty and need no fetch.
    fn add_empty_fragments(&mut self) {
        for fragment in 0..self.class.fragments() {
            if self.class.fragment_bytes(self.chunk.len_bytes, fragment) == Some(0) {
                self.got.insert(fragment, Fragment { number: fragment, bytes: Bytes::new(), crc32c: 0 });
            }
        }
    }

    /// Returns the actions to take now; none while it waits for earlier ones. `source` describes a disk; `None`: no known
    /// node serves it.
    pub fn next(&mut self, source: impl Fn(u64) -> Option<Source>) -> Vec<RebuildAction> {
        match self.step {
            Step::LocalCheck if self.asked_local => Vec::new(),
            Step::LocalCheck => {
                self.asked_local = true;
                vec![RebuildAction::CheckLocal]
            }
            Step::Fetching => self.fetch_or_compute(source),
            Step::Computing(_) | Step::Comparing(_) | Step::Appending { .. } | Step::Over => Vec::new(),
        }
    }

    fn fetch_or_compute(&mut self, source: impl Fn(u64) -> Option<Source>) -> Vec<RebuildAction> {
        let mut actions = Vec::new();
        while !self.counts_on_enough() {
            let Some(i) = self.best_candidate(&source) else { break };
            self.candidates[i].state = State::InFlight;
            actions.push(RebuildAction::Fetch(self.candidates[i].at));
        }
        if self.candidates.iter().any(|c| c.state == State::InFlight) {
            return actions;
        }
        let sound: Vec<u32> = self.got.keys().copied().collect();
        let unsound = self.suspects.keys().copied().filter(|number| !self.got.contains_key(number));
        let all: Vec<u32> = sound.iter().copied().chain(unsound).collect();
        let suffices = |numbers: &[u32]| self.class.suffices(numbers.iter().copied());
        if suffices(&sound) && sound != self.computed_with {
            self.computed_with = sound.clone();
            return self.compute(&sound, false);
        }
        if all.len() > sound.len() && suffices(&all) && !std::mem::replace(&mut self.searched, true) {
            return self.compute(&all, true);
        }
        let why = match self.class.suffices(sound.iter().copied()) {
            false => {
                format!("{} of the {} fragments needed can be read{}", sound.len(), self.class.k, self.why_suffix())
            }
            true => "no set of readable fragments has the chunk's name".to_string(),
        };
        self.finish(Err(format!("chunk {} fragment {}: {why}", self.key.chunk_id, self.key.fragment)))
    }

    fn compute(&mut self, numbers: &[u32], search: bool) -> Vec<RebuildAction> {
        let find = |number: &u32| self.got.get(number).or_else(|| self.suspects.get(number)).cloned();
        assert!(
            self.class.suffices(numbers.iter().copied()),
            "a rebuild from {numbers:?} of class {}",
            self.class.spec
        );
        self.compute_step(RebuildJob {
            class: self.class.clone(),
            name: self.name,
            chunk_len: self.chunk.len_bytes,
            wanted: self.key.fragment,
            sources: numbers.iter().filter_map(find).collect(),
            search,
            first_set: 0,
        })
    }

    fn compute_step(&mut self, job: RebuildJob) -> Vec<RebuildAction> {
        self.step = Step::Computing(job.clone());
        vec![RebuildAction::Compute(job)]
    }

    /// True if the fragments fetched and in progress suffice. After a set did not match the chunk's name, `extra` more
    /// sources must be among them.
    fn counts_on_enough(&self) -> bool {
        let coming = self.candidates.iter().filter(|c| c.state == State::InFlight).map(|c| c.at.fragment);
        let numbers: Vec<u32> = self.got.keys().copied().chain(coming).collect();
        let beyond = self.extra == 0 || numbers.len() >= self.class.k as usize + self.extra;
        beyond && self.class.suffices(numbers)
    }

    fn why_suffix(&self) -> String {
        if self.last_error.is_empty() { String::new() } else { format!(" (last: {})", self.last_error) }
    }

    /// The next source to ask: up, lightly loaded, and a different one for each chunk.
    fn best_candidate(&self, source: impl Fn(u64) -> Option<Source>) -> Option<usize> {
        let busy = |fragment: u32| {
            self.got.contains_key(&fragment)
                || self.candidates.iter().any(|c| c.at.fragment == fragment && c.state == State::InFlight)
        };
        let rank = |i: usize| {
            let Candidate { at, role, state } = self.candidates[i];
            let source = source(at.disk_id).filter(|_| state == State::Untried && !busy(at.fragment))?;
            let turn = (u64::from(at.fragment) + self.key.chunk_id) % u64::from(self.class.fragments());
            // A copy takes one request and no decoding.
            let copy = self.class.is_copy(at.fragment);
            // Slices were checked when they arrived; parity is what a proof is about.
            let unproven = self.prove && !self.class.is_plain(at.fragment);
            Some(((!source.up, unproven, role, !copy, source.load, turn), i))
        };
        (0..self.candidates.len()).filter_map(rank).min().map(|(_, i)| i)
    }

    /// Takes the result of the local check. What is there is compared: a client may have put it.
    pub fn on_local_check(&mut self, verdict: &Verdict) -> Vec<RebuildAction> {
        if !matches!(self.step, Step::LocalCheck) {
            return Vec::new();
        }
        let expected = self.class.fragment_bytes(self.chunk.len_bytes, self.key.fragment);
        match verdict {
            Verdict::Good { hash, len_bytes } if *hash == self.name.0 && Some(u64::from(*len_bytes)) == expected => {
                self.compare = true;
                // It may be one of the last k; what it gives together with others is compared with the name.
                let at = SourceAt { fragment: self.key.fragment, disk_id: self.target };
                self.candidates.push(Candidate { at, role: Role::LastResort, state: State::Untried });
            }
            _ => {}
        }
        self.step = Step::Fetching;
        Vec::new()
    }

    /// Takes the result of a fetch. `Ok` is the fragment's bytes with the checksum that its holder stores; the
    /// computation compares them.
    pub fn on_fetched(&mut self, at: SourceAt, result: Result<(Bytes, u32), Error>) {
        let asked = |c: &&mut Candidate| c.at == at && c.state == State::InFlight;
        let Some(candidate) = self.candidates.iter_mut().find(asked) else { return };
        let expected = self.class.fragment_bytes(self.chunk.len_bytes, at.fragment);
        let result = result.and_then(|(bytes, crc32c)| match Some(bytes.len() as u64) == expected {
            true => Ok(Fragment { number: at.fragment, bytes, crc32c }),
            false => Err(Error::new(Code::Corrupt, format!("fragment {} has {} bytes", at.fragment, bytes.len()))),
        });
        match result {
            Ok(fragment) => {
                candidate.state = State::Done;
                let before = self.got.insert(at.fragment, fragment);
                assert!(before.is_none(), "fragment {} was fetched twice", at.fragment);
            }
            Err(error) => {
                candidate.state = State::Failed;
                let should_have_it = candidate.role == Role::Member;
                match error.code() {
                    Code::NotFound if should_have_it => self.report(at),
                    Code::Corrupt => self.report(at),
                    _ => {}
                }
                self.last_error = error.message;
            }
        }
    }

    /// Takes the result of a computation step.
    pub fn on_computed(&mut self, result: Rebuilt) -> Vec<RebuildAction> {
        let Step::Computing(job) = &self.step else { return Vec::new() };
        match result {
            Rebuilt::Verified { fragment, groups, wrong } => {
                assert_eq!(fragment.number, self.key.fragment, "another fragment than the task's was rebuilt");
                self.drop_sources(&wrong);
                self.got.clear();
                let item = self.record(fragment, groups);
                if self.compare {
                    self.step = Step::Comparing(item);
                    return vec![RebuildAction::ReadLocal];
                }
                self.append(item)
            }
            Rebuilt::Unfinished { next_set } => {
                assert!(next_set > job.first_set, "a step of the search tried nothing");
                let job = RebuildJob { first_set: next_set, ..job.clone() };
                self.compute_step(job)
            }
            Rebuilt::Mismatch { wrong } => {
                self.drop_sources(&wrong);
                // If checksums are wrong, they identify the wrong fragments. If all are right, more sources are needed
                // to identify them.
                self.extra += usize::from(wrong.is_empty());
                self.step = Step::Fetching;
                Vec::new()
            }
            Rebuilt::Impossible(why) => self.finish(Err(why)),
        }
    }

    /// Takes the local fragment, to compare it. One that is missing or damaged is replaced, too.
    pub fn on_local_read(&mut self, local: Result<(Bytes, u32), Error>) -> Vec<RebuildAction> {
        let Step::Comparing(item) = &self.step else { return Vec::new() };
        let item = item.clone();
        if local.is_ok_and(|(bytes, crc32c)| bytes == item.data && crc32c == item.crc32c) {
            return self.finish(Ok(0));
        }
        tracing::warn!(chunk = self.key.chunk_id, fragment = self.key.fragment, "a fragment was wrong; it is replaced");
        self.append(item)
    }

    fn append(&mut self, item: AppendItem) -> Vec<RebuildAction> {
        self.step = Step::Appending { len_bytes: item.data.len() as u64 };
        vec![RebuildAction::Append(item)]
    }

    fn record(&self, fragment: Fragment, groups: Bytes) -> AppendItem {
        let chunk_len = self.chunk.len_bytes;
        assert_eq!(
            self.class.fragment_bytes(chunk_len, fragment.number),
            Some(fragment.bytes.len() as u64),
            "length of rebuilt fragment {}.{}",
            self.key.chunk_id,
            fragment.number
        );
        assert_eq!(groups.len() as u64, group_count(chunk_len) * HASH_BYTES as u64, "group hashes of a rebuilt chunk");
        let meta = RecordMeta {
            pg_id: self.pg.pg_id,
            epoch: self.pg.epoch,
            domain: self.domain,
            class_id: self.class.class_id,
            chunk_hash: self.name.0,
            chunk_len_bytes: chunk_len,
            ..RecordMeta::default()
        };
        AppendItem { key: self.key, meta, groups, offset: None, crc32c: fragment.crc32c, data: fragment.bytes }
    }

    /// Reports wrong sources, and keeps them in case no other is left.
    fn drop_sources(&mut self, numbers: &[u32]) {
        for number in numbers {
            if let Some(fragment) = self.got.remove(number) {
                self.suspects.insert(*number, fragment);
            }
            let gave_it = |c: &&mut Candidate| c.at.fragment == *number && c.state == State::Done;
            if let Some(candidate) = self.candidates.iter_mut().find(gave_it) {
                candidate.state = State::Failed;
                let at = candidate.at;
                self.report(at);
            }
        }
    }

    fn report(&mut self, at: SourceAt) {
        let (chunk_id, epoch) = (self.key.chunk_id, self.pg.epoch);
        self.bad.push(FragmentRef { chunk_id, fragment: at.fragment, epoch, disk_id: at.disk_id });
    }

    /// Takes the result of the append: durable or failed.
    pub fn on_appended(&mut self, result: Result<(), Error>) -> Vec<RebuildAction> {
        let Step::Appending { len_bytes } = self.step else { return Vec::new() };
        self.finish(result.map(|()| len_bytes).map_err(|e| e.message))
    }

    fn finish(&mut self, result: Result<u64, String>) -> Vec<RebuildAction> {
        assert!(!matches!(self.step, Step::Over), "a rebuild ends twice");
        self.step = Step::Over;
        self.got.clear();
        self.suspects.clear();
        let written_bytes = *result.as_ref().unwrap_or(&0);
        let bad = std::mem::take(&mut self.bad);
        let replaced = self.prove && written_bytes > 0;
        vec![RebuildAction::Finished(RebuildReport { result: result.map(|_| ()), written_bytes, replaced, bad })]
    }
}

/// Disks that may hold fragments of the chunk.
fn candidates(pg: &PgInfo, class: &ClassInfo, chunk: &ChunkInfo, task: &RebuildTask) -> Vec<Candidate> {
    let mut all = Vec::new();
    for (fragment, member) in (0..class.fragments()).zip(&pg.members) {
        let (serves, fills) = match (chunk.missing.contains(&fragment), member.put_to_incoming) {
            (true, _) => (Role::LastResort, Role::LastResort),
            (false, true) => (Role::LastResort, Role::Filling),
            (false, false) => (Role::Member, Role::Filling),
        };
        for (disk_id, role) in [(member.disk_id, serves), (member.incoming_disk_id, fills)] {
            // The local check already covered the target.
            let is_target = fragment == task.fragment && disk_id == task.disk_id;
            // The only copy of a chunk is proven by its name alone.
            let is_source = !is_target || (task.prove && class.fragments() == 1);
            if disk_id != 0 && is_source {
                all.push(Candidate { at: SourceAt { fragment, disk_id }, role, state: State::Untried });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests;
