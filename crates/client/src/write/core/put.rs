//! Fragments on their way: where each goes, what waits for which node, and what happens when one is refused.

use super::state::FragmentPut;
use super::*;
use crate::fetch::Fault;
use crate::rpc_table::is_transport;
use tessera_stripe::ClassLayout;
use tessera_wire::data::{GetFragments, GetItem, PutFragments, PutFragmentsReply, PutItem};
use tessera_wire::rpc::Peer;

impl WriteCore {
    /// Sends every fragment that waits to where the map says; checks acknowledgements against the map (P11).
    pub(super) fn place(&mut self, index: usize) {
        let chunk = &self.chunks[index];
        if chunk.stage != Stage::Storing || chunk.active.as_ref().is_none_or(|a| !a.is_encoded()) {
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
        let mut sends = Vec::new();
        for frag in &mut active.frags {
            let Some(member) = pg.members.get(frag.number as usize) else {
                hopeless = true;
                continue;
            };
            let disk_id = member.put_disk_id();
            match frag.state {
                FragState::Acked { epoch } if member.accepts(epoch) => {
                    frag.state = FragState::Acked { epoch: pg.epoch };
                    continue;
                }
                FragState::Sent { disk_id: to, .. } if to == disk_id => continue,
                FragState::Failed { disk_id: by, hopeless: true } if by == disk_id => {
                    hopeless = true;
                    continue;
                }
                _ => {}
            }
            // Not acknowledged under this epoch any more (P11), and not queued yet. An optimistic chunk that was ready
            // may not be any more.
            if let FragState::Acked { .. } = frag.state {
                self.extents.ready = 0;
            }
            frag.state = FragState::Waiting;
            let (chunk_id, number, len_bytes) = (chunk.chunk_id, frag.number, frag.bytes.len());
            sends.push(FragmentPut { chunk: index, chunk_id, number, disk_id, epoch: pg.epoch, len_bytes });
        }
        // Nothing is queued, so nothing may be marked as sent: nobody would ever answer for it. It waits for
        // another group, or for this one to be tried again.
        let failed = |f: &&Frag| matches!(f.state, FragState::Failed { .. });
        let failed = active.frags.iter().filter(failed).count() as u32;
        let redundant = class.as_ref().is_some_and(|c| c.is_redundant(c.fragments().saturating_sub(failed)));
        if hopeless && !(no_better && redundant) {
            return self.move_elsewhere(index);
        }
        for sent in &sends {
            if let Some(frag) = active.frags.iter_mut().find(|f| f.number == sent.number) {
                frag.state = FragState::Sent { disk_id: sent.disk_id, epoch: sent.epoch };
            }
        }
        let later = self.optimistic();
        for sent in sends {
            let Some(node_id) = self.view.read().node_of(sent.disk_id) else {
                self.refuse(sent, Error::new(Code::Unavailable, format!("disk {} is on no known node", sent.disk_id)));
                continue;
            };
            let queue = self.nodes.entry(node_id).or_default();
            queue.queued_bytes += sent.len_bytes;
            if later && class.as_ref().is_some_and(|c| !c.is_first(sent.number)) {
                queue.later.push_back(sent);
            } else {
                queue.urgent.push_back(sent);
            }
        }
        self.check_settled(index);
    }

    /// Puts gather while more are being coded, or others are on their way to the same node; they leave when
    /// there is enough, or nothing to wait for.
    pub(super) fn pump_puts(&mut self) {
        let ids: Vec<u64> = self.nodes.keys().copied().collect();
        for node_id in ids {
            while let Some(items) = self.next_batch(node_id) {
                self.send_puts(node_id, items);
            }
        }
    }

    fn next_batch(&mut self, node_id: u64) -> Option<Vec<FragmentPut>> {
        let queue = self.nodes.get_mut(&node_id)?;
        if queue.in_flight >= self.options.puts_in_flight {
            return None;
        }
        let small = queue.queued_bytes < self.options.put_bytes / 4;
        let more_to_come = !self.jobs.is_empty() || queue.in_flight > 0 && self.ending.is_none();
        if small && more_to_come {
            return None;
        }
        let (mut items, mut bytes) = (Vec::new(), 0);
        while let Some(sent) = queue.urgent.front().or(queue.later.front()).copied() {
            if !items.is_empty() && (bytes + sent.len_bytes > self.options.put_bytes || items.len() >= 512) {
                break;
            }
            if queue.urgent.pop_front().is_none() {
                queue.later.pop_front();
            }
            queue.queued_bytes -= sent.len_bytes;
            let chunk = &self.chunks[sent.chunk];
            let wanted = FragState::Sent { disk_id: sent.disk_id, epoch: sent.epoch };
            let frag = chunk.active.as_ref().and_then(|a| a.frags.iter().find(|f| f.number == sent.number));
            // What was settled or moved meanwhile is not sent.
            if chunk.chunk_id == sent.chunk_id && frag.is_some_and(|f| f.state == wanted) {
                bytes += sent.len_bytes;
                items.push(sent);
            }
        }
        (!items.is_empty()).then_some(items)
    }

    fn send_puts(&mut self, node_id: u64, items: Vec<FragmentPut>) {
        let mut payload = Vec::with_capacity(items.len());
        let mut wire = Vec::with_capacity(items.len());
        for sent in &items {
            let chunk = &self.chunks[sent.chunk];
            let Some(active) = &chunk.active else { continue };
            let Some(frag) = active.frags.iter().find(|f| f.number == sent.number) else { continue };
            wire.push(PutItem {
                chunk_id: chunk.chunk_id,
                fragment: sent.number,
                disk_id: sent.disk_id,
                pg_id: chunk.pg_id,
                epoch: sent.epoch,
                domain: self.domain,
                class_id: chunk.class.as_ref().map_or(0, |c| c.class_id),
                hash: Bytes::copy_from_slice(&chunk.hash),
                chunk_len_bytes: chunk.len_bytes,
                len_bytes: frag.bytes.len() as u32,
                crc32c: frag.crc32c,
                groups: active.groups.clone(),
            });
            if !frag.bytes.is_empty() {
                payload.push(frag.bytes.clone());
            }
        }
        self.sent_bytes += items.iter().map(|s| s.len_bytes as u64).sum::<u64>();
        let request = PutFragments {
            session_id: self.put_session_id,
            items: wire,
            no_sync: false,
            hints: self.params.hints.clone(),
        };
        let call = Call::new(Peer::Node(node_id), 0, &request, payload, self.options.put_timeout_ms);
        if let Some(queue) = self.nodes.get_mut(&node_id) {
            queue.in_flight += 1;
        }
        self.puts_in_flight += 1;
        self.rpcs.send_once(self.now, call, Purpose::Put { node_id, items });
    }

    pub(super) fn on_put(&mut self, node_id: u64, items: Vec<FragmentPut>, answer: Answer) {
        if let Some(queue) = self.nodes.get_mut(&node_id) {
            queue.in_flight -= 1;
        }
        self.puts_in_flight -= 1;
        let malformed = |got: usize| Error::new(Code::Internal, format!("{got} results for {} puts", items.len()));
        let results = match answer.decode::<PutFragments>() {
            Ok((PutFragmentsReply { results }, _)) if results.len() == items.len() => {
                results.into_iter().map(|r| r.error.map_or(Ok(()), Err)).collect()
            }
            Ok((reply, _)) => vec![Err(malformed(reply.results.len())); items.len()],
            Err(error) => {
                if is_transport(&error) {
                    self.view.write().suspect(node_id, self.now, &self.options);
                }
                vec![Err(error); items.len()]
            }
        };
        for (sent, result) in items.into_iter().zip(results) {
            match result {
                Ok(()) => self.acknowledged(sent),
                Err(error) => self.refuse(sent, error),
            }
        }
    }

    fn acknowledged(&mut self, sent: FragmentPut) {
        let Some(chunk) = self.chunks.get_mut(sent.chunk).filter(|c| c.chunk_id == sent.chunk_id) else { return };
        // A commit that names it as missing is on its way, or through.
        let late = chunk.pinned && chunk.missing.contains(&sent.number);
        let Some(frag) = chunk.active.as_mut().and_then(|a| a.frags.iter_mut().find(|f| f.number == sent.number))
        else {
            return;
        };
        // Of two puts of a fragment only the newer one counts.
        if frag.state != (FragState::Sent { disk_id: sent.disk_id, epoch: sent.epoch }) {
            return;
        }
        frag.state = FragState::Acked { epoch: sent.epoch };
        let outdated = sent.epoch < chunk.newest_epoch();
        if late {
            chunk.missing.retain(|f| *f != sent.number);
            let (chunk_id, fragment, epoch, disk_id) = (sent.chunk_id, sent.number, sent.epoch, sent.disk_id);
            self.completed.push(tessera_wire::meta::FragmentRef { chunk_id, fragment, epoch, disk_id });
        }
        if outdated { self.place(sent.chunk) } else { self.check_settled(sent.chunk) }
    }

    fn refuse(&mut self, sent: FragmentPut, error: Error) {
        let now = self.now;
        let Some(chunk) = self.chunks.get_mut(sent.chunk).filter(|c| c.chunk_id == sent.chunk_id) else { return };
        let Some(active) = &mut chunk.active else { return };
        let Some(frag) = active.frags.iter_mut().find(|f| f.number == sent.number) else { return };
        if frag.state != (FragState::Sent { disk_id: sent.disk_id, epoch: sent.epoch }) {
            return;
        }
        active.trouble_since.get_or_insert(now);
        active.last_error = error.message.clone();
        match error.kind() {
            // The version stands without this fragment (`durability=optimistic`), and is gone already: the node has
            // deleted the chunk. It would refuse for ever.
            Code::NotFound if chunk.reported_epoch != 0 => return self.leave_to_repair(sent.chunk),
            // The group changed: the newer map says what still counts and where the rest goes (P11).
            Code::StaleEpoch if active.attempts < 6 => {
                frag.state = FragState::Waiting;
                active.attempts += 1;
                chunk.told_epoch = chunk.told_epoch.max(error.current);
            }
            // Damaged on its way.
            Code::Corrupt if active.attempts < 3 => {
                frag.state = FragState::Waiting;
                active.attempts += 1;
            }
            // A daemon that restarts is back in a moment; the second time the chunk goes elsewhere.
            Code::Unavailable | Code::Timeout if active.attempts == 0 => {
                frag.state = FragState::Waiting;
                active.attempts += 1;
                self.put_again.insert((now.saturating_add(self.options.backoff_ns(1)), sent.chunk));
                return;
            }
            _ => frag.state = FragState::Failed { disk_id: sent.disk_id, hopeless: true },
        }
        self.want_map(sent.chunk);
    }

    pub(super) fn want_map(&mut self, index: usize) {
        let Some(chunk) = self.chunks.get(index) else { return };
        let waiting = self.map_wanted.entry(chunk.pg_id).or_default();
        if !waiting.contains(&index) {
            waiting.push(index);
        }
    }

    pub(super) fn pump_maps(&mut self) {
        if self.map_asked || self.map_wanted.is_empty() {
            return;
        }
        let wanted = std::mem::take(&mut self.map_wanted);
        let known_version = self.view.read().known_version();
        let request = GetMap { known_version, pg_ids: wanted.keys().copied().collect(), all_nodes: true };
        let purpose = Purpose::Map { chunks: wanted.into_values().flatten().collect() };
        self.rpcs.ask_manager(self.now, &request, purpose, &self.options);
        self.map_asked = true;
    }

    pub(super) fn on_map(&mut self, answer: Answer, chunks: Vec<usize>) {
        self.map_asked = false;
        match answer.decode::<GetMap>() {
            Ok((map, _)) => self.view.write().merge(&map, false),
            Err(error) => return self.refused("GetMap", error, self.options.manager_deadline_ms),
        }
        for index in chunks {
            if self.fetches.contains_key(&index) {
                self.refetch_step(index, |fetch, now, view, options, out| fetch.on_map(now, view, options, out));
            } else {
                self.after_map(index);
            }
        }
    }

    fn after_map(&mut self, index: usize) {
        // The input may have been cut anew since.
        let Some(chunk) = self.chunks.get(index) else { return };
        if chunk.stage != Stage::Storing {
            return;
        }
        let Some(active) = &chunk.active else { return };
        let behind = self.view.read().pg(chunk.pg_id).is_none_or(|pg| pg.epoch < chunk.newest_epoch());
        if behind {
            // Somebody knows a newer epoch than the manager tells: it will tell in a moment, or it is lost.
            return if active.attempts > 5 { self.move_elsewhere(index) } else { self.put_later(index) };
        }
        self.place(index);
    }

    /// Tries the chunk where it is again after a pause, until the deadline.
    pub(super) fn put_later(&mut self, index: usize) {
        let (now, options) = (self.now, self.options.clone());
        let Some(active) = &mut self.chunks[index].active else { return };
        let since = *active.trouble_since.get_or_insert(now);
        let waited_ns = now.saturating_sub(since);
        if waited_ns >= ms(options.put_deadline_ms) {
            return self.fail_put(index, (waited_ns / crate::config::MS) as u64);
        }
        active.attempts += 1;
        for frag in &mut active.frags {
            if let FragState::Failed { .. } = frag.state {
                frag.state = FragState::Waiting;
            }
        }
        let at = now.saturating_add(options.backoff_ns(active.attempts));
        self.put_again.insert((at, index));
    }

    fn fail_put(&mut self, index: usize, waited_ms: u64) {
        let chunk = &self.chunks[index];
        let Some(active) = &chunk.active else { return };
        let acked = |f: &&Frag| !matches!(f.state, FragState::Acked { .. });
        let fragment = active.frags.iter().find(acked).map_or(0, |f| f.number);
        let (file, last) = (self.params.file.clone(), active.last_error.clone());
        self.fail(WriteError::NotStored { file, offset: chunk.offset, fragment, waited_ms, last });
    }

    /// A member will not take its fragment: the chunk goes to another group, if it still can.
    fn move_elsewhere(&mut self, index: usize) {
        if self.is_one_shot() && self.committed.is_none() && !self.committing {
            return self.fall_back_to_session();
        }
        let until = self.now.saturating_add(ms(self.options.avoid_ms));
        let chunk = &self.chunks[index];
        let Some(active) = &chunk.active else { return };
        if chunk.pinned || self.committed.is_some() {
            return self.put_later(index);
        }
        // An optimistic chunk may have been found ready where it was; it is not any more.
        self.extents.ready = 0;
        self.avoid.insert(chunk.pg_id, until);
        for frag in &active.frags {
            if let FragState::Failed { disk_id, .. } = frag.state {
                let others = self.view.read().pgs_on_disk(disk_id);
                self.avoid.extend(others.into_iter().map(|pg| (pg, until)));
            }
        }
        let since = active.trouble_since.unwrap_or(self.now);
        let waited_ns = self.now.saturating_sub(since);
        if waited_ns >= ms(self.options.put_deadline_ms) {
            return self.fail_put(index, (waited_ns / crate::config::MS) as u64);
        }
        let mut moves = 0;
        if let Some(active) = &mut self.chunks[index].active {
            active.attempts = 0;
            active.moves += 1;
            moves = active.moves;
        }
        self.chunks[index].stage = Stage::Queued;
        match moves {
            0..=2 => self.ask.push_back(index),
            // Whatever it is will not go away by asking faster.
            _ => drop(self.ask_again.insert((self.now.saturating_add(self.options.backoff_ns(moves - 2)), index))),
        }
    }

    /// What is not acknowledged by now is noted as missing, and no more sent: that is repair's work, if any.
    fn leave_to_repair(&mut self, index: usize) {
        self.note_missing(index);
        self.settle(index);
    }

    /// Enough fragments for a degraded write, if the policy allows one: at least one more than needed.
    pub(super) fn settle_degraded(&mut self, index: usize) -> bool {
        let chunk = &self.chunks[index];
        let redundant = chunk.class.as_ref().is_some_and(|c| c.is_redundant(chunk.in_place().count() as u32));
        if !self.policy.degraded_writes || !redundant {
            return false;
        }
        self.note_missing(index);
        self.settle(index);
        true
    }

    /// The policy allows a degraded write, and asking for another group was in vain, or would be: the group was given
    /// although groups with the failed disk were to be avoided.
    fn has_no_better_group(&self, index: usize) -> bool {
        let chunk = &self.chunks[index];
        let moved = chunk.active.as_ref().is_some_and(|a| a.moves > 0);
        self.policy.degraded_writes && (moved || self.avoid.contains_key(&chunk.pg_id))
    }

    /// Notes which wanted fragments are not acknowledged now.
    pub(super) fn note_missing(&mut self, index: usize) {
        let chunk = &mut self.chunks[index];
        if let Some(active) = &chunk.active {
            let missing = active.frags.iter().filter(|f| !f.is_acked_under(chunk.epoch));
            chunk.missing = missing.map(|f| f.number).collect();
        }
    }

    pub(super) fn check_settled(&mut self, index: usize) {
        let chunk = &self.chunks[index];
        // A chunk that moves is settled in its new group: the answer is on its way.
        if matches!(chunk.stage, Stage::Queued | Stage::Asked) {
            return;
        }
        let acked = |f: &Frag| matches!(f.state, FragState::Acked { .. });
        let Some(active) = chunk.active.as_ref().filter(|a| a.is_encoded()) else { return };
        if active.frags.iter().all(acked) {
            self.chunks[index].missing.clear();
            return self.settle(index);
        }
        let over = |f: &Frag| acked(f) || matches!(f.state, FragState::Failed { hopeless: true, .. });
        if active.frags.iter().all(over) && self.has_no_better_group(index) {
            self.settle_degraded(index);
        }
    }

    /// Has the chunk read back, whose bytes are gone, to send some of its fragments again.
    pub(super) fn refetch(&mut self, index: usize) {
        let chunk = &self.chunks[index];
        let Some(class) = chunk.class.clone() else { return };
        let info = tessera_wire::ChunkInfo {
            chunk_id: chunk.chunk_id,
            hash: Bytes::copy_from_slice(&chunk.hash),
            len_bytes: chunk.len_bytes,
            class_id: class.class_id,
            pg_id: chunk.pg_id,
            missing: chunk.again.clone(),
        };
        match Fetch::new(info, class, self.now) {
            Ok(fetch) => {
                self.fetches.insert(index, fetch);
                self.refetch_step(index, |fetch, now, view, options, out| fetch.start(now, view, options, out));
            }
            Err(message) => self.refused("Commit", Error::new(Code::Internal, message), 0),
        }
    }

    pub(super) fn refetch_step(
        &mut self,
        index: usize,
        step: impl FnOnce(&mut Fetch, i64, &crate::view::View, &Options, &mut Vec<Step>),
    ) {
        let Some(fetch) = self.fetches.get_mut(&index) else { return };
        let mut steps = Vec::new();
        step(fetch, self.now, &self.view.read(), &self.options, &mut steps);
        for step in steps {
            match step {
                Step::Get(want) => {
                    let item = GetItem {
                        chunk_id: self.chunks[index].chunk_id,
                        fragment: want.fragment,
                        disk_id: want.disk_id,
                        whole: true,
                        ..Default::default()
                    };
                    let request = GetFragments { items: vec![item], hints: Vec::new() };
                    let peer = Peer::Node(want.node_id);
                    let call = Call::new(peer, 0, &request, Vec::new(), self.options.get_timeout_ms);
                    self.rpcs.send_once(self.now, call, Purpose::Refetch { chunk: index, want });
                }
                Step::Decode(job) => {
                    let id = self.next_job;
                    self.next_job += 1;
                    self.jobs.insert(id, index);
                    self.actions.push_back(WriteAction::Compute(Numbered { id, value: Job::Decode(job) }));
                }
                Step::NeedMap => self.want_map(index),
                Step::Waits(_) => {}
                Step::Done(parts) => self.refetched(index, parts),
                Step::Failed(fault) => self.fail_refetch(index, fault),
            }
        }
    }

    fn fail_refetch(&mut self, index: usize, fault: Fault) {
        let (file, offset) = (self.params.file.clone(), self.chunks[index].offset);
        let error = fault.into_error(&file, self.chunks[index].chunk_id);
        self.fail(WriteError::Lost { file, offset, error });
    }

    pub(super) fn on_refetched(&mut self, index: usize, want: crate::fetch::FragmentRequest, answer: Answer) {
        let result = crate::fetch::single_fragment(answer);
        self.refetch_step(index, |fetch, now, view, options, out| {
            fetch.on_fragment(&want, result, now, view, options, out);
        });
    }

    pub(super) fn tick_fetches(&mut self) {
        let due: Vec<usize> = self.fetches.keys().copied().collect();
        for index in due {
            self.refetch_step(index, |fetch, now, view, options, out| fetch.tick(now, view, options, out));
        }
    }

    /// The bytes are back: code and send what was asked for again.
    fn refetched(&mut self, index: usize, parts: Vec<Bytes>) {
        self.fetches.remove(&index);
        let data: Bytes = parts.concat().into();
        let tree = tessera_accel::hash::tree(&data);
        let again = std::mem::take(&mut self.chunks[index].again);
        self.held_bytes += data.len() as u64;
        self.chunks[index].active = Some(Box::new(Active {
            data,
            groups: tree.groups.concat().into(),
            frags: again.into_iter().map(Frag::waiting).collect(),
            attempts: 0,
            moves: 0,
            trouble_since: None,
            last_error: String::new(),
        }));
        self.encode(index);
    }
}
