//! Small files in one round trip, without opening a session. Chunks are stored under preallocated ids
//! ([`crate::prealloc`]), and the commit opens the file and names their content. Of a file whose content this client has written before
//! nothing is stored: the commit names it. The commit of a tiny file brings its bytes: the metadata keeps them until the file moves into a
//! pack, so that no node is asked. On any trouble (a group that
//! moved, an expired id, a policy other than expected, content that is gone) the write falls back to a session: it opens the file
//! and asks about its chunks, whose bytes it keeps until the commit.

use super::*;
use crate::prealloc::PreallocatedChunk;
use tessera_policy::{Dedup, Lifetime, Placement};
use tessera_wire::meta::{ChunkAnswer, ChunkState, Commit, KNOWN_ID, PreallocatedChunks as Grant};

/// Whether the write runs, or ran, without a session.
#[derive(Debug, Default)]
pub(super) struct OneShotState {
    active: Option<OneShot>,
    failed: bool,
    /// The commit has brought the bytes, and the store may have no chunk of them.
    pub inlined: bool,
}

/// A file that is written without opening it.
#[derive(Debug, Default)]
struct OneShot {
    /// Its chunks.
    chunks: Vec<usize>,
    /// The ids they are stored under; none: the manager is believed to have them, or gets them.
    preallocated: Vec<PreallocatedChunk>,
    /// The commit brings their bytes.
    inlines: bool,
    /// Ids to ask for with the commit.
    wanted: u32,
}

impl OneShot {
    /// The ids of its chunks in the commit.
    fn ids(&self) -> Vec<u64> {
        match self.preallocated.is_empty() {
            true => (KNOWN_ID..).take(self.chunks.len()).collect(),
            false => self.preallocated.iter().map(|chunk| chunk.answer.chunk_id).collect(),
        }
    }

    /// The session of its ids; 0: it has none.
    fn session_id(&self) -> u64 {
        self.preallocated.first().map_or(0, PreallocatedChunk::session_id)
    }
}

impl WriteCore {
    /// Whether there is no session, so that the commit must open the file.
    pub(super) fn is_one_shot(&self) -> bool {
        self.one_shot.active.is_some()
    }

    /// Whether the file could be written without opening it; all its input has arrived.
    pub(super) fn may_be_one_shot(&self) -> bool {
        let placed = self.params.expect_policy.as_ref().is_none_or(|p| p.placement != Placement::Spread);
        let ends = self.committer.ending.is_some_and(|ending| !ending.keep_session)
            && self.extents.len() <= self.options.commit_extents;
        !placed
            && ends
            && !self.one_shot.failed
            && self.params.pack.is_none()
            && self.params.mode == CommitMode::Replace
    }

    /// Whether the commit may bring the bytes of these chunks, all of the file. The manager decides by the file's own policy.
    fn may_inline(&self, policy: &Policy, chunks: &[usize]) -> bool {
        let bytes: u64 = chunks.iter().map(|index| self.chunks[*index].len_bytes).sum();
        // A short file of many holes or repetitions is small, a long one is not.
        let size_bytes = self.file_bytes(0);
        let moves = policy.scheme(size_bytes) != policy.scheme(u64::MAX);
        let stays = !matches!(policy.lifetime, Lifetime::Purge { .. });
        (1..=self.options.inline_bytes).contains(&bytes)
            && moves
            && stays
            && policy.dedup == Dedup::All
            && self.view.read().preallocated.may_inline(self.now)
    }

    /// Starts without a session if the file is tiny, if there are preallocated ids for all its chunks (`first`), or if this client has written
    /// all of them before.
    pub(super) fn start_one_shot(&mut self, scheme: &str, first: &[usize]) -> bool {
        let Some(policy) = self.params.expect_policy.clone() else { return false };
        let inlines = self.may_inline(&policy, first);
        let (mut one_shot, mut taken) = (OneShot { chunks: first.to_vec(), inlines, ..OneShot::default() }, None);
        if !first.is_empty() && !inlines {
            let hashes: Vec<[u8; 32]> = first.iter().map(|i| self.chunks[*i].hash).collect();
            let mut view = self.view.write();
            taken = view.preallocated.take(scheme, &hashes, self.now, &self.options);
            if taken.is_none() && !(policy.dedup == Dedup::All && view.preallocated.has_written(&hashes)) {
                return false;
            }
            one_shot.wanted = view.preallocated.wanted(scheme, self.now, &self.options);
        }
        self.session.enter(Phase::Open);
        self.session.scheme = scheme.to_string();
        self.actions
            .push_back(Action::Notify(WriteNotice::Opened { policy: Box::new(policy.clone()), base_size_bytes: 0 }));
        self.session.policy = policy;
        let class = taken.as_ref().map(|taken| taken.class.clone());
        let mut answers: Vec<ChunkAnswer> = Vec::new();
        if let Some(taken) = taken {
            self.session.domain = taken.domain;
            answers = taken.chunks.iter().map(|chunk| chunk.answer.clone()).collect();
            one_shot.preallocated = taken.chunks;
            self.session.put_id = one_shot.session_id();
        } else {
            let known =
                |chunk_id| ChunkAnswer { chunk_id, state: ChunkState::Durable as i32, ..ChunkAnswer::default() };
            answers.extend(one_shot.ids().into_iter().map(known));
        }
        self.one_shot.active = Some(one_shot);
        for (&index, answer) in first.iter().zip(&answers) {
            self.chunks[index].class = class.clone();
            self.on_chunk_answer(index, answer);
        }
        true
    }

    /// Makes the commit open the file.
    pub(super) fn add_open_request(&mut self, commit: &mut Commit) {
        let Some(one_shot) = &self.one_shot.active else { return };
        commit.session_id = one_shot.session_id();
        commit.preallocated_ids = one_shot.ids();
        if one_shot.inlines {
            let held = one_shot.chunks.iter().filter_map(|index| self.chunks[*index].active.as_ref());
            commit.inlined = held.map(|active| active.data.clone()).collect();
        }
        let preallocate = one_shot.wanted;
        commit.open = Some(Box::new(OpenWrite { preallocate, ..self.open_request(&one_shot.chunks) }));
    }

    /// The commit opened the file and made the version.
    pub(super) fn on_one_shot_commit(&mut self, known: &[u64], grant: Option<Grant>) {
        self.one_shot.inlined = self.one_shot.active.as_ref().is_some_and(|one_shot| one_shot.inlines);
        for chunk in self.chunks.iter_mut() {
            let was_known = chunk.durable && !self.one_shot.inlined;
            chunk.durable = was_known || known.contains(&chunk.chunk_id);
        }
        self.take_preallocated(grant);
        self.drop_preallocated();
    }

    /// Opens the file after all, and asks about its chunks.
    pub(super) fn fall_back_to_session(&mut self) {
        let Some(one_shot) = &self.one_shot.active else { return };
        if one_shot.inlines {
            self.view.write().preallocated.pause_inlining(self.now, &self.options);
        }
        let chunks = one_shot.chunks.clone();
        self.drop_preallocated();
        self.one_shot.failed = true;
        self.session.enter(Phase::New);
        self.extents.ready = 0;
        self.dedup.clear();
        self.placer.clear();
        self.sender.forget_queued();
        for index in chunks {
            self.chunks.restart(index);
            self.dedup.queue.push_back(index);
        }
        self.open();
    }

    /// Takes the preallocated ids of an answer.
    pub(super) fn take_preallocated(&mut self, grant: Option<Grant>) {
        let Some(mut grant) = grant else { return };
        let map = grant.map.take();
        let info = grant.class.take().unwrap_or_default();
        let class = {
            let mut view = self.view.write();
            if let Some(map) = &map {
                view.merge(map, false);
            }
            view.class_of(&info)
        };
        match class {
            Ok(class) if grant.chunks.iter().all(|chunk| chunk.chunk_id != 0) => {
                self.view.write().preallocated.put(&info.spec, grant, class, self.now)
            }
            _ => self.close_session(grant.session_id),
        }
        self.close_exhausted_sessions();
    }

    /// Gives up the file's preallocated ids, and closes a session that has none left.
    pub(super) fn drop_preallocated(&mut self) {
        let Some(one_shot) = self.one_shot.active.take() else { return };
        for session_id in one_shot.preallocated.into_iter().filter_map(PreallocatedChunk::release) {
            self.close_session(session_id);
        }
    }

    /// Closes the sessions whose preallocated ids are used up or too old.
    pub(super) fn close_exhausted_sessions(&mut self) {
        let used_up = self.view.write().preallocated.take_exhausted();
        used_up.into_iter().for_each(|session_id| self.close_session(session_id));
    }
}
