//! Making the version visible: staging what is settled of huge files, the final commit, what a commit that
//! was outdated asks for, and redundancy that follows an optimistic one.

use super::*;
use tessera_stripe::ClassLayout;
use tessera_wire::Extent;
use tessera_wire::meta::{ChunkAck, Commit, CommitReply, CompleteFragments, StaleAck};

impl WriteCore {
    /// A chunk that may be committed as it is now.
    fn is_ready(&self, index: usize) -> bool {
        let chunk = &self.chunks[index];
        match (chunk.stage, &chunk.class) {
            (Stage::Settled, _) => true,
            // Optimistic: readable is enough, whatever is still on its way.
            (Stage::Storing, Some(class)) if self.optimistic() => {
                chunk.again.is_empty() && chunk.active.is_some() && class.suffices(chunk.in_place())
            }
            _ => false,
        }
    }

    pub(super) fn pump_commit(&mut self) {
        if self.committing || self.committed.is_some() {
            return self.pump_completed();
        }
        // What is ready stays ready (unless a commit says otherwise, or the chunk moves), so no piece is looked at
        // twice.
        while let Some(piece) = self.extents.get(self.extents.ready) {
            if !piece.chunk.is_none_or(|i| self.is_ready(i)) {
                break;
            }
            self.extents.ready += 1;
        }
        let limit = self.options.commit_extents;
        if self.extents.len() > limit {
            if self.extents.ready >= limit {
                self.send_commit(limit, true);
            }
        } else if self.ending.is_some() && self.extents.ready == self.extents.len() && self.staged_ready() {
            self.send_commit(self.extents.len(), false);
        }
    }

    /// Chunks that were staged and then asked for again are stored again.
    fn staged_ready(&self) -> bool {
        self.restoring.iter().all(|i| self.chunks[*i].stage == Stage::Settled)
    }

    /// Chunks that were asked for again and are stored; their acknowledgements go with the next commit.
    fn take_restored(&mut self) -> Vec<usize> {
        let settled = |i: &usize| self.chunks[*i].stage == Stage::Settled;
        let restored: Vec<usize> = self.restoring.iter().copied().filter(settled).collect();
        restored.iter().for_each(|i| _ = self.restoring.remove(i));
        restored
    }

    fn send_commit(&mut self, count: usize, partial: bool) {
        let base = match self.params.mode {
            CommitMode::Append => self.committed_bytes,
            _ => 0,
        };
        let pieces: Vec<state::PendingExtent> = self.extents.iter().take(count).copied().collect();
        let extents = pieces.iter().map(|p| Extent {
            offset: p.offset - base,
            len_bytes: p.len_bytes,
            chunk_id: p.chunk.map_or(0, |i| self.chunks[i].chunk_id),
            chunk_offset: 0,
        });
        let mut extents: Vec<Extent> = extents.collect();
        if self.params.mode == CommitMode::Patch {
            // Patches come in the order of their writing.
            extents.sort_by_key(|e| e.offset);
        }
        let mut acks = Vec::new();
        let restored = self.take_restored();
        for index in pieces.iter().filter_map(|p| p.chunk).chain(restored) {
            if self.chunks[index].reported_epoch < self.chunks[index].epoch {
                self.note_missing(index);
            }
            let chunk = &mut self.chunks[index];
            chunk.pinned = true;
            if !chunk.durable && chunk.reported_epoch < chunk.epoch {
                chunk.reported_epoch = chunk.epoch;
                self.completed.retain(|f| f.chunk_id != chunk.chunk_id);
                acks.push(ChunkAck {
                    chunk_id: chunk.chunk_id,
                    epoch: chunk.ack_epoch(),
                    missing: chunk.missing.clone(),
                });
            }
        }
        let mut request = Commit {
            op_id: self.rpcs.op_id(),
            session_id: self.session_id,
            mode: self.params.mode as i32,
            if_version: self.params.if_version,
            size_bytes: self.ending.map_or(0, |e| e.size_bytes - base),
            extents,
            acks,
            partial,
            mtime_ns: self.params.mtime_ns,
            file_mode: Some(self.params.owner.mode),
            uid: self.params.owner.uid,
            gid: self.params.owner.gid,
            want_lease: self.params.want_lease,
            content: self.params.content,
            keep_session: self.ending.is_some_and(|e| e.keep_session),
            ..Commit::default()
        };
        self.add_open_request(&mut request);
        self.committing = true;
        let partial = if partial { count } else { 0 };
        self.rpcs.ask_manager(self.now, &request, Purpose::Commit { partial }, &self.options);
    }

    pub(super) fn on_committed(&mut self, answer: Answer, partial: usize, waited_ms: u64) {
        self.committing = false;
        let reply = match answer.decode::<Commit>() {
            Ok((reply, _)) => reply,
            Err(error) if self.is_one_shot() && error.kind() == Code::SessionExpired => {
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
        if partial > 0 {
            return self.extents.forget(partial);
        }
        self.on_version(reply);
    }

    /// Some acknowledgements came under an epoch that has passed: those fragments are stored again (P11).
    fn on_stale(&mut self, stale: Vec<StaleAck>) {
        let by_id: HashMap<u64, usize> =
            self.chunks.iter().enumerate().filter(|(_, c)| c.pinned).map(|(i, c)| (c.chunk_id, i)).collect();
        self.extents.ready = 0;
        // Nothing was committed, so nothing was told either.
        for piece in self.extents.iter().filter_map(|p| p.chunk) {
            self.chunks[piece].reported_epoch = 0;
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
        let chunk = &mut self.chunks[index];
        // The manager has looked at all of them: those it does not name are good under its epoch.
        chunk.epoch = ack.epoch;
        chunk.reported_epoch = 0;
        chunk.durable = false;
        self.restoring.insert(index);
        if let Some(active) = &mut chunk.active {
            for frag in &mut active.frags {
                match frag.state {
                    _ if ack.fragments.contains(&frag.number) => frag.state = FragState::Waiting,
                    FragState::Acked { .. } => frag.state = FragState::Acked { epoch: ack.epoch },
                    _ => {}
                }
            }
            // Those of a chunk that was read back are not all held.
            let unheld = |f: &u32| active.frags.iter().all(|frag| frag.number != *f);
            let unheld: Vec<u32> = ack.fragments.into_iter().filter(unheld).collect();
            if chunk.unwatched_epoch != 0 {
                chunk.unwatched_epoch = ack.epoch;
            }
            if unheld.is_empty() {
                return self.place(index);
            }
            active.frags.extend(unheld.into_iter().map(Frag::waiting));
            return self.encode(index);
        }
        chunk.unwatched_epoch = ack.epoch;
        if chunk.stage == Stage::Settled {
            chunk.stage = Stage::Storing;
            self.unsettled += 1;
        }
        chunk.again = ack.fragments;
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
            sent_bytes: self.sent_bytes,
            chunks: self.chunks.len() as u64,
            known_chunks: known.count() as u64,
            entry: reply.entry.map(Box::new),
            inos: reply.inos,
            delegation_ms: reply.delegation_ms,
        };
        if self.input_bytes <= SMALL_BYTES as u64 {
            let known = done.known_chunks > 0;
            self.view.write().preallocated.note(self.chunks.iter().map(|c| c.hash), known, &self.options);
        }
        self.extents.forget(self.extents.len());
        let ending = self.ending.take();
        self.actions.push_back(WriteAction::Done(Ok(done.clone())));
        if let Some(Ending { size_bytes, keep_session: true }) = ending {
            self.committed_bytes = size_bytes;
            // What is committed is asked for again when it comes again, and answered `Durable`.
            self.by_name.clear();
            if self.params.mode == CommitMode::Replace {
                self.params.mode = CommitMode::Patch;
            }
            self.params.target = state::Target::Inode(reply.ino);
            self.params.if_version = self.params.if_version.map(|_| reply.version);
            return;
        }
        self.ending = ending;
        self.committed = Some(done);
        self.pump_completed();
    }

    /// Tells the manager of redundancy that arrived after the commit; ends when all of it has.
    fn pump_completed(&mut self) {
        if self.committed.is_none() || self.committing {
            return;
        }
        let idle = self.puts_in_flight == 0;
        if !self.completed.is_empty() && (idle || self.completed.len() >= 256) {
            let fragments = std::mem::take(&mut self.completed);
            let request = CompleteFragments { op_id: self.rpcs.op_id(), fragments };
            self.committing = true;
            self.rpcs.ask_manager(self.now, &request, Purpose::Complete, &self.options);
        } else if self.unsettled == 0 && self.completed.is_empty() {
            self.finish();
        }
    }

    /// Whether the manager has heard of it or not: repair finds what is missing by itself.
    pub(super) fn on_completed(&mut self) {
        self.committing = false;
        self.pump_completed();
    }
}
