//! Where each fragment goes, and what happens when a member of its group refuses it.

use super::*;
use tessera_stripe::ClassLayout;

/// Chunks that wait for a newer map, or for a retry.
#[derive(Debug, Default)]
pub(super) struct Placer {
    pub maps: MapQueue<usize>,
    pub retries: Timers<usize>,
    /// Disks that took no redundancy for `put_deadline_ms`, and nothing since: the chunks that follow wait for them no more.
    pub refusing: BTreeSet<u64>,
}

impl Placer {
    /// Forgets every chunk for which no request was sent yet.
    pub fn clear(&mut self) {
        self.maps.clear();
        self.retries.clear();
    }
}

impl WriteCore {
    /// Queues every waiting fragment for the disk that the map names; checks acknowledgements against the map (P11).
    pub(super) fn place(&mut self, index: usize) {
        let chunk = &self.chunks[index];
        if chunk.stage() != Stage::Storing || chunk.active.as_ref().is_none_or(|a| !a.is_encoded()) {
            return;
        }
        let Some(pg) = self.view.read().pg(chunk.pg_id).filter(|pg| pg.epoch >= chunk.newest_epoch()) else {
            return self.want_map(index);
        };
        let no_better = self.has_no_better_group(index);
        let chunk = &mut self.chunks[index];
        chunk.epoch = pg.epoch;
        let Some(active) = &mut chunk.active else { return };
        let class = chunk.class.clone();
        let mut hopeless = false;
        let mut puts = Vec::new();
        for frag in &mut active.frags {
            let Some(member) = pg.members.get(frag.number as usize) else {
                (hopeless, self.extents.ready) = (true, 0);
                continue;
            };
            let disk_id = member.put_disk_id();
            match frag.state {
                FragState::Acked { epoch } if member.accepts(epoch) => {
                    assert!(epoch <= pg.epoch, "chunk {}: acknowledged under {epoch} of {}", chunk.chunk_id, pg.epoch);
                    frag.state = FragState::Acked { epoch: pg.epoch };
                    continue;
                }
                FragState::Sent { disk_id: to, .. } if to == disk_id => continue,
                FragState::Failed { disk_id: by } if by == disk_id => {
                    hopeless = true;
                    continue;
                }
                // The chunk may have been ready for an optimistic commit; it may not be now.
                FragState::Acked { .. } => self.extents.ready = 0,
                _ => {}
            }
            // Not acknowledged under this epoch (P11), and not queued yet.
            frag.state = FragState::Waiting;
            let (chunk_id, number, len_bytes) = (chunk.chunk_id, frag.number, frag.bytes.len());
            puts.push(FragmentPut { chunk: index, chunk_id, number, disk_id, epoch: pg.epoch, len_bytes });
        }
        // No fragment is queued, so none may be marked as sent: no answer would come. They wait for another group, or
        // for a retry in this one.
        let failed = active.frags.iter().filter(|f| f.is_failed()).count() as u32;
        let redundant = class.as_ref().is_some_and(|c| c.is_redundant(c.fragments().saturating_sub(failed)));
        if hopeless && !(no_better && redundant) {
            return self.move_elsewhere(index);
        }
        for put in &puts {
            if let Some(frag) = active.frag_mut(put.number) {
                frag.state = put.state();
            }
        }
        let optimistic = self.session.is_optimistic();
        for put in puts {
            let Some(node_id) = self.view.read().node_of(put.disk_id) else {
                let error = Error::new(Code::Unavailable, format!("disk {} is on no known node", put.disk_id));
                self.on_put_refused(put, error);
                continue;
            };
            let urgent = !optimistic || class.as_ref().is_none_or(|c| c.is_first(put.number));
            self.sender.enqueue(node_id, put, urgent);
        }
        self.check_settled(index);
    }

    pub(super) fn want_map(&mut self, index: usize) {
        if let Some(chunk) = self.chunks.get(index) {
            self.placer.maps.add(chunk.pg_id, index);
        }
    }

    pub(super) fn pump_maps(&mut self) {
        if let Some((request, chunks)) = self.placer.maps.next_request(&self.view) {
            self.rpcs.ask_manager(self.now, &request, Purpose::Map { chunks }, &self.options);
        }
    }

    pub(super) fn on_map(&mut self, answer: Answer, chunks: Vec<usize>) {
        self.placer.maps.on_answer();
        match answer.decode::<GetMap>() {
            Ok((map, _)) => self.view.write().merge(&map, false),
            Err(error) => return self.refused("GetMap", error, self.options.manager_deadline_ms),
        }
        for index in chunks {
            if self.fetches.contains_key(&index) {
                self.refetch_step(index, Fetch::on_map);
            } else {
                self.after_map(index);
            }
        }
    }

    fn after_map(&mut self, index: usize) {
        // The input may have been rechunked meanwhile.
        let Some(chunk) = self.chunks.get(index).filter(|c| c.stage() == Stage::Storing) else { return };
        let Some(active) = &chunk.active else { return };
        let behind = self.view.read().pg(chunk.pg_id).is_none_or(|pg| pg.epoch < chunk.newest_epoch());
        if behind {
            // A node knows a newer epoch than the manager: either the manager's map will show it soon, or the manager
            // lost it.
            return if active.attempts > 5 { self.move_elsewhere(index) } else { self.put_later(index) };
        }
        self.place(index);
    }

    pub(super) fn tick_placer(&mut self) {
        while let Some(index) = self.placer.retries.pop_due(self.now) {
            self.want_map(index);
        }
    }

    /// Ends the wait for what the nodes do not take of the chunk once it is overdue: leaves redundancy to repair, and fails
    /// the write if the chunk cannot be read without it. Returns whether it has ended.
    fn gives_up(&mut self, index: usize) -> bool {
        let chunk = &self.chunks[index];
        let Some(active) = &chunk.active else { return true };
        let since = active.trouble_since.unwrap_or(self.now);
        let waited_ns = self.now.saturating_sub(since);
        let spare = self.lacks_only_redundancy(index);
        let is_refusing = |disk: Option<u64>| disk.is_some_and(|disk| self.placer.refusing.contains(&disk));
        // The writer waits for the rest of a visible version, so that gets less time, but not before it is visible: nodes
        // that are away for a while take their fragments of a long write when they are back.
        let due = match chunk.visible_since {
            None if spare && active.wanted_disks().all(is_refusing) => since,
            Some(visible) if spare => since.max(visible).saturating_add(ms(self.options.late_deadline_ms)),
            _ => since.saturating_add(ms(self.options.put_deadline_ms)),
        };
        if self.now < due {
            return false;
        }
        if spare {
            if waited_ns >= ms(self.options.put_deadline_ms) {
                self.placer.refusing.extend(active.wanted_disks().flatten());
            }
            self.leave_redundancy_to_repair(index);
            return true;
        }
        let fragment = active.frags.iter().find(|f| !f.is_acked()).map_or(0, |f| f.number);
        let (offset, last) = (chunk.offset, active.last_error.clone());
        self.fail(Cause::NotStored { offset, fragment, waited_ms: (waited_ns / crate::config::MS) as u64, last });
        true
    }

    /// Whether the chunk of an optimistic write can be read as it is, and a commit may say so: it may have to acknowledge
    /// the chunk under its epoch, which the map must show then (P11).
    fn lacks_only_redundancy(&self, index: usize) -> bool {
        let chunk = &self.chunks[index];
        let is_shown = || self.view.read().pg(chunk.pg_id).is_some_and(|pg| chunk.epoch <= pg.epoch);
        self.session.is_optimistic() && self.is_ready(index) && (chunk.reported_epoch >= chunk.epoch || is_shown())
    }

    /// Retries the chunk in its group after a pause, until the deadline.
    pub(super) fn put_later(&mut self, index: usize) {
        if self.gives_up(index) {
            return;
        }
        let Some(active) = &mut self.chunks[index].active else { return };
        active.trouble_since.get_or_insert(self.now);
        active.attempts += 1;
        for frag in active.frags.iter_mut().filter(|f| f.is_failed()) {
            frag.state = FragState::Waiting;
        }
        let at = self.now.saturating_add(self.options.backoff_ns(active.attempts));
        self.placer.retries.add(at, index);
    }

    /// A member refuses its fragment: moves the chunk to another group, if it can still move.
    fn move_elsewhere(&mut self, index: usize) {
        if self.is_one_shot() && self.committer.done.is_none() && !self.committer.in_flight {
            return self.fall_back_to_session();
        }
        let until = self.now.saturating_add(ms(self.options.avoid_ms));
        let chunk = &self.chunks[index];
        let Some(active) = &chunk.active else { return };
        if chunk.pinned || self.committer.done.is_some() {
            return self.put_later(index);
        }
        // The chunk may have been ready for an optimistic commit in its old group; now it is not.
        self.extents.ready = 0;
        self.dedup.avoid.insert(chunk.pg_id, until);
        for frag in &active.frags {
            if let FragState::Failed { disk_id } = frag.state {
                self.dedup.avoid.extend(self.view.read().pgs_on_disk(disk_id).into_iter().map(|pg_id| (pg_id, until)));
            }
        }
        if self.gives_up(index) {
            return;
        }
        let chunk = &mut self.chunks[index];
        chunk.set_stage(Stage::Queued);
        let Some(active) = &mut chunk.active else { return };
        active.attempts = 0;
        active.moves += 1;
        match active.moves {
            0..=2 => self.dedup.queue.push_back(index),
            // Asking faster will not help.
            moves => {
                let at = self.now.saturating_add(self.options.backoff_ns(moves - 2));
                self.dedup.retries.add(at, index);
            }
        }
    }

    /// Settles the chunk: its memory is freed, unless a one-shot commit may need the bytes again.
    pub(super) fn settle(&mut self, index: usize) {
        if !self.chunks[index].is_settled() {
            self.chunks.settle(index, self.is_one_shot());
            self.report_later(index);
        }
    }

    /// Notes unacknowledged fragments as missing and stops sending them: repair stores them if they are needed.
    pub(super) fn leave_to_repair(&mut self, index: usize) {
        self.chunks[index].note_missing();
        self.settle(index);
    }

    /// Settles for a degraded write, if the policy allows it and at least one fragment more than needed is in place.
    pub(super) fn settle_degraded(&mut self, index: usize) -> bool {
        let chunk = &self.chunks[index];
        let redundant = chunk.class.as_ref().is_some_and(|c| c.is_redundant(chunk.in_place().count() as u32));
        if !self.session.policy.degraded_writes || !redundant {
            return false;
        }
        self.leave_to_repair(index);
        true
    }

    /// Whether the policy allows a degraded write and another group does not help: the manager chose this group
    /// although the client asked it to avoid groups with the failed disk.
    fn has_no_better_group(&self, index: usize) -> bool {
        let chunk = &self.chunks[index];
        let moved = chunk.active.as_ref().is_some_and(|a| a.moves > 0);
        self.session.policy.degraded_writes && (moved || self.dedup.avoid.contains_key(&chunk.pg_id))
    }

    pub(super) fn check_settled(&mut self, index: usize) {
        let chunk = &mut self.chunks[index];
        // The answer that settles a moving chunk in its new group is in flight.
        if matches!(chunk.stage(), Stage::Queued | Stage::Asked) {
            return;
        }
        let Some(active) = chunk.active.as_ref().filter(|a| a.is_encoded()) else { return };
        if active.frags.iter().all(Frag::is_acked) {
            chunk.missing.retain(|number| active.frag(*number).is_none());
            return self.settle(index);
        }
        if active.frags.iter().all(|f| f.is_acked() || f.is_failed()) && self.has_no_better_group(index) {
            self.settle_degraded(index);
        }
    }
}
