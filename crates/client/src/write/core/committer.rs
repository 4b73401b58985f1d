//! Makes the version visible: stages the settled extents of huge files, sends the final commit, stores again what an
//! outdated commit asks for, and stores the redundancy of an optimistic write after its commit.

use super::extents::assert_in_order;
use super::*;
use tessera_stripe::ClassLayout;
use tessera_wire::meta::{ChunkAck, Commit, CommitReply, CompleteFragments, StaleAck};

/// Late fragments reported at once, unless no more are in flight.
const LATE_BATCH: usize = 256;

/// Most times in a row that a commit asks for fragments again. Each time a disk or a fragment was lost, or a receipt is not the node's.
const MOST_STALE: u32 = 32;

/// How the input ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ending {
    pub size_bytes: u64,
    pub cuts: bool,
    pub keep_session: bool,
}

/// What was committed, and what the next commit waits for.
#[derive(Debug, Default)]
pub(super) struct Committer {
    /// Set once all input of the next version has arrived.
    pub ending: Option<Ending>,
    /// A commit, or a report of late fragments, is in flight.
    pub in_flight: bool,
    /// Commits in a row that asked for fragments again.
    stale: u32,
    /// Chunks that a commit asked for again.
    restoring: BTreeSet<usize>,
    /// Length of the input that earlier commits of this session made visible.
    committed_bytes: u64,
    /// Where the extents staged since then end.
    staged_to: u64,
    /// What an open file made visible last.
    pub last: Option<WriteDone>,
    /// The final version is visible.
    pub done: Option<WriteDone>,
    /// When the final version became visible, or the last of its redundancy was acknowledged since.
    pub late_since: i64,
    /// Fragments that were stored after a commit reported them as missing, with their receipts.
    pub late_fragments: Vec<(FragmentRef, u64)>,
}

impl WriteCore {
    /// Whether a chunk may be committed as it is now.
    pub(super) fn is_ready(&self, index: usize) -> bool {
        let chunk = &self.chunks[index];
        match (chunk.stage(), &chunk.class) {
            (Stage::Settled, _) => true,
            // Optimistic: it is enough that the chunk can be read.
            (Stage::Storing, Some(class)) if self.session.is_optimistic() => {
                chunk.again.is_empty() && chunk.active.is_some() && class.suffices(chunk.in_place())
            }
            _ => false,
        }
    }

    pub(super) fn pump_commit(&mut self) {
        if self.committer.in_flight || self.committer.done.is_some() {
            return self.pump_late_fragments();
        }
        // A ready extent stays ready (unless a commit says otherwise, or the chunk moves), so each extent is checked
        // once.
        while let Some(extent) = self.extents.get(self.extents.ready) {
            if !extent.chunk.is_none_or(|i| self.is_ready(i)) {
                break;
            }
            self.extents.advance();
        }
        let all_ready = self.committer.ending.is_some() && self.extents.ready == self.extents.len();
        if self.extents.goes_back() {
            // Extents are staged in order of their offsets, which is known once all are here.
            if !all_ready {
                return;
            }
            self.extents.sort();
        }
        let limit = self.options.commit_extents;
        if self.extents.len() > limit {
            if self.extents.ready >= limit {
                self.send_commit(limit, true);
            }
        } else if all_ready && self.all_restored() {
            self.send_commit(self.extents.len(), false);
        }
        if self.committer.ending.is_none() {
            self.pump_late_fragments();
        }
    }

    /// Whether all chunks that a commit asked for again are stored.
    fn all_restored(&self) -> bool {
        self.committer.restoring.iter().all(|i| self.chunks[*i].is_settled())
    }

    /// Takes the chunks that were stored again; their acknowledgements go with the next commit.
    fn take_restored(&mut self) -> Vec<usize> {
        let restoring = std::mem::take(&mut self.committer.restoring);
        let (settled, waiting) = restoring.into_iter().partition(|i| self.chunks[*i].is_settled());
        self.committer.restoring = waiting;
        BTreeSet::into_iter(settled).collect()
    }

    fn send_commit(&mut self, count: usize, partial: bool) {
        let base = match self.params.mode {
            CommitMode::Append => self.committer.committed_bytes,
            _ => 0,
        };
        let pending: Vec<PendingExtent> = self.extents.iter().take(count).copied().collect();
        assert_eq!(pending.len(), count, "a commit has gaps in its input");
        let wire = |p: &PendingExtent| match p.chunk.map(|i| &self.chunks[i]) {
            Some(chunk) => Extent::of_chunk(p.offset - base, p.len_bytes, chunk.chunk_id, &chunk.hash, 0),
            None => Extent::hole(p.offset - base, p.len_bytes),
        };
        let extents: Vec<Extent> = pending.iter().map(wire).collect();
        let size_bytes = self.committer.ending.map_or(0, |e| e.size_bytes - base);
        self.assert_lengths(&extents, size_bytes, partial);
        let restored = self.take_restored();
        let chunks = pending.iter().filter_map(|p| p.chunk);
        let acks = chunks.chain(restored).filter_map(|index| self.acknowledge(index)).collect();
        let mut request = Commit {
            op_id: self.rpcs.op_id(),
            session_id: self.session.lease.id,
            mode: self.params.mode as i32,
            if_version: self.params.if_version,
            size_bytes,
            extents,
            acks,
            partial,
            mtime_ns: self.params.times.mtime_ns,
            ctime_ns: self.params.times.ctime_ns,
            atime_ns: self.params.times.atime_ns,
            file_mode: Some(self.params.owner.mode),
            uid: self.params.owner.uid,
            gid: self.params.owner.gid,
            want_lease: self.params.want_lease,
            content: self.params.content,
            lock_fence: self.params.lock_fence,
            keep_session: self.committer.ending.is_some_and(|e| e.keep_session),
            cuts: !partial && self.committer.ending.is_some_and(|e| e.cuts),
            pack: self.params.pack.as_ref().map(|params| params.pack.clone()),
            ..Commit::default()
        };
        self.add_open_request(&mut request);
        self.committer.in_flight = true;
        let partial = if partial { count } else { 0 };
        self.rpcs.ask_manager(self.now, &request, Purpose::Commit { partial }, &self.options);
    }

    /// Asserts that the extents match the input, in order, and that their lengths add up to the version's.
    fn assert_lengths(&self, extents: &[Extent], size_bytes: u64, partial: bool) {
        let (mode, staged_to) = (self.params.mode, self.committer.staged_to);
        let end = assert_in_order(extents, mode, staged_to);
        match mode {
            _ if partial => {}
            CommitMode::Patch => assert!(end <= size_bytes, "a patch ends at {end} of {size_bytes} bytes"),
            _ => assert_eq!(end, size_bytes, "extents end at {end}, the version has {size_bytes} bytes"),
        }
    }

    /// Pins a chunk for a commit; returns its acknowledgement, unless it needs none or an earlier commit reported it.
    fn acknowledge(&mut self, index: usize) -> Option<ChunkAck> {
        assert!(self.is_ready(index), "a commit names chunk {index}, which is {:?}", self.chunks[index].stage());
        let map_epoch = self.view.read().pg(self.chunks[index].pg_id).map(|pg| pg.epoch);
        let chunk = &mut self.chunks[index];
        assert_ne!(chunk.chunk_id, 0, "a commit names chunk {index}, which has no id");
        if chunk.reported_epoch < chunk.epoch {
            chunk.note_missing();
        }
        chunk.pinned = true;
        if chunk.durable || chunk.reported_epoch >= chunk.epoch {
            return None;
        }
        chunk.reported_epoch = chunk.epoch;
        let (chunk_id, epoch) = (chunk.chunk_id, chunk.epoch);
        let shown = map_epoch.is_some_and(|map| epoch <= map);
        assert!(shown || !chunk.is_settled(), "chunk {chunk_id}: epoch {epoch}, the map shows {map_epoch:?}");
        self.committer.late_fragments.retain(|(f, _)| f.chunk_id != chunk_id);
        Some(chunk.ack())
    }

    pub(super) fn on_committed(&mut self, answer: Answer, partial: usize, waited_ms: u64) {
        self.committer.in_flight = false;
        let reply = match answer.decode::<Commit>() {
            Ok((reply, _)) => reply,
            Err(error) if self.is_one_shot() && error.code() == Code::SessionExpired => {
                return self.fall_back_to_session();
            }
            Err(error) => return self.refused("Commit", error, waited_ms),
        };
        if let Some(map) = &reply.map {
            self.view.write().merge(map, false);
        }
        if !reply.stale.is_empty() {
            return match self.is_one_shot() {
                true => self.fall_back_to_session(),
                false => self.on_stale(reply.stale),
            };
        }
        if self.is_one_shot() {
            self.on_one_shot_commit(&reply.known, reply.preallocated.clone());
        }
        self.committer.stale = 0;
        if partial > 0 {
            let end = self.extents.get(partial - 1).map(PendingExtent::end);
            self.committer.staged_to = end.expect("staged extents are kept until the answer") - self.append_base();
            return self.forget_committed(partial);
        }
        self.on_version(reply);
    }

    /// Forgets the first `count` extents, which a commit has named.
    fn forget_committed(&mut self, count: usize) {
        for index in self.extents.iter().take(count).filter_map(|extent| extent.chunk) {
            self.chunks[index].reported = true;
        }
        self.extents.forget(count);
    }

    /// Offset in the input of the part that an append has not committed yet.
    fn append_base(&self) -> u64 {
        if self.params.mode == CommitMode::Append { self.committer.committed_bytes } else { 0 }
    }

    /// Stores fragments again whose receipts do not count any more (P11).
    fn on_stale(&mut self, stale: Vec<StaleAck>) {
        let pinned = self.chunks.iter().enumerate().filter(|(_, c)| c.pinned);
        let by_id: HashMap<u64, usize> = pinned.map(|(i, c)| (c.chunk_id, i)).collect();
        self.committer.stale += 1;
        if self.committer.stale > MOST_STALE {
            let (chunk_id, times) = (stale[0].chunk_id, self.committer.stale);
            let message = format!(
                "chunk {chunk_id} was stored {times} times, and its nodes do not confirm that it is what its name says; check \
                 this machine's memory, and that all daemons run the same release"
            );
            return self.refused("Commit", Error::new(Code::Unavailable, message), 0);
        }
        self.extents.ready = 0;
        // The commit failed, so no acknowledgement counts as reported.
        for index in self.extents.iter().filter_map(|e| e.chunk) {
            self.chunks[index].reported_epoch = 0;
        }
        for ack in stale {
            let Some(&index) = by_id.get(&ack.chunk_id) else {
                let message = format!("chunk {} is to be stored again, but is not of this write", ack.chunk_id);
                return self.refused("Commit", Error::new(Code::Internal, message), 0);
            };
            self.store_again(index, ack);
        }
    }

    fn store_again(&mut self, index: usize, ack: StaleAck) {
        self.committer.restoring.insert(index);
        let chunk = &mut self.chunks[index];
        // The manager checked all acknowledgements: those it does not name are valid under its epoch.
        chunk.epoch = ack.epoch;
        chunk.reported_epoch = 0;
        chunk.durable = false;
        if let Some(active) = &mut chunk.active {
            for frag in &mut active.frags {
                match frag.state {
                    _ if ack.fragments.contains(&frag.number) => frag.state = FragState::Waiting,
                    FragState::Acked { .. } => frag.state = FragState::Acked { epoch: ack.epoch },
                    _ => {}
                }
            }
            // A chunk that was read back does not hold all its fragments.
            let unheld: Vec<u32> = ack.fragments.into_iter().filter(|f| active.frag(*f).is_none()).collect();
            if unheld.is_empty() {
                return self.place(index);
            }
            active.frags.extend(unheld.into_iter().map(Frag::waiting));
            return self.encode(index);
        }
        chunk.again = ack.fragments;
        self.chunks.unsettle(index);
        self.refetch(index);
    }

    fn on_version(&mut self, reply: CommitReply) {
        let known = self.chunks.iter().filter(|c| c.durable);
        let done = WriteDone {
            ino: reply.ino,
            version: reply.version,
            number: reply.number,
            append_offset: reply.append_offset,
            superseded: reply.superseded,
            missing_fragments: reply.missing_fragments,
            input_bytes: self.input_bytes,
            new_bytes: self.chunks.iter().filter(|c| !c.durable).map(|c| c.len_bytes).sum(),
            sent_bytes: self.sender.sent_bytes,
            chunks: self.chunks.len() as u64,
            known_chunks: known.count() as u64,
            entry: reply.entry.map(Box::new),
            inos: reply.inos,
            delegation_ms: reply.delegation_ms,
            files: reply.files,
            moved: reply.moved,
            owner: None,
        };
        // What the metadata keeps is no chunk that a later file could name.
        if self.input_bytes <= SMALL_BYTES as u64 && !self.one_shot.inlined {
            let known = done.known_chunks > 0;
            self.view.write().preallocated.note(self.chunks.iter().map(|c| c.hash), known, &self.options);
        }
        self.forget_committed(self.extents.len());
        self.note_visible();
        self.committer.staged_to = 0;
        self.extents.restart();
        let ending = self.committer.ending.take();
        self.actions.push_back(Action::Notify(WriteNotice::Done(Ok(done.clone()))));
        if let Some(Ending { size_bytes, keep_session: true, .. }) = ending {
            (self.committer.committed_bytes, self.committer.last) = (size_bytes, Some(done));
            self.chunks.forget_names();
            if self.params.mode == CommitMode::Replace {
                self.params.mode = CommitMode::Patch;
            }
            self.params.target = Target::Inode(reply.ino);
            self.params.if_version = self.params.if_version.map(|_| reply.version);
            return;
        }
        self.committer.ending = ending;
        (self.committer.done, self.committer.late_since) = (Some(done), self.now);
        self.pump_late_fragments();
    }

    /// Whether a version has all that the write was given, and only redundancy of it is still to be stored or reported.
    pub(super) fn is_saved(&self) -> bool {
        let committer = &self.committer;
        let is_open = committer.done.is_none() && committer.ending.is_none() && self.extents.len() == 0;
        // Without extents, only a report is in flight.
        let is_late = self.chunks.unsettled > 0 || !committer.late_fragments.is_empty() || committer.in_flight;
        is_open && committer.last.is_some() && is_late
    }

    /// The owner drops a file whose last version is visible: that one is the final one. Its redundancy is stored.
    pub(super) fn end_with_last_version(&mut self) {
        (self.committer.done, self.committer.late_since) = (self.committer.last.take(), self.now);
        self.close_session(self.session.lease.id);
    }

    /// When redundancy that no node acknowledges any longer is left to repair.
    pub(super) fn late_due(&self) -> Option<i64> {
        let waits = self.committer.done.is_some() && self.chunks.unsettled > 0;
        waits.then(|| self.committer.late_since.saturating_add(ms(self.options.late_deadline_ms)))
    }

    /// Leaves it to repair when that is due, as fragments may still wait for a node that answers nothing.
    pub(super) fn tick_late(&mut self) {
        if self.late_due().is_some_and(|due| due <= self.now) {
            self.leave_all_to_repair();
        }
    }

    /// Leaves all redundancy to repair that a visible version still lacks.
    pub(super) fn leave_all_to_repair(&mut self) {
        for index in 0..self.chunks.len() {
            if !self.chunks[index].is_settled() && self.chunks[index].visible_since.is_some() {
                self.leave_redundancy_to_repair(index);
            }
        }
    }

    /// Leaves redundancy to repair: a commit has reported it as missing, or the next one will.
    pub(super) fn leave_redundancy_to_repair(&mut self, index: usize) {
        self.leave_to_repair(index);
        if self.chunks[index].visible_since.is_some() {
            self.view.write().left_to_repair += 1;
        }
    }

    /// Everything that commits have named is visible, without the redundancy that was left to repair before.
    fn note_visible(&mut self) {
        let (now, is_optimistic) = (self.now, self.session.is_optimistic());
        let mut left = 0;
        for chunk in self.chunks.iter_mut().filter(|c| c.pinned && c.visible_since.is_none()) {
            chunk.visible_since = Some(now);
            left += u64::from(is_optimistic && chunk.is_settled() && !chunk.missing.is_empty());
        }
        self.view.write().left_to_repair += left;
    }

    /// Reports redundancy that arrived after its commit. After the final one, ends the write when all of it has.
    fn pump_late_fragments(&mut self) {
        let committer = &mut self.committer;
        if committer.in_flight {
            return;
        }
        let late = committer.late_fragments.len();
        let is_last = self.sender.is_idle() || self.chunks.unsettled == 0;
        if late > 0 && (is_last || late >= LATE_BATCH) {
            let (fragments, receipts) = std::mem::take(&mut committer.late_fragments).into_iter().unzip();
            committer.in_flight = true;
            let request = CompleteFragments { op_id: self.rpcs.op_id(), fragments, receipts };
            self.rpcs.ask_manager(self.now, &request, Purpose::Complete, &self.options);
        } else if committer.done.is_some() && self.chunks.unsettled == 0 && late == 0 {
            self.finish();
        }
    }

    /// It does not matter whether the manager took the report: repair also finds missing fragments.
    pub(super) fn on_completed(&mut self) {
        self.committer.in_flight = false;
    }
}
