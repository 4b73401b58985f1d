//! Whole chunks: the segments that wait for them, read-ahead, and reports of bad fragments.

use super::*;

impl ReadCore {
    /// Logs once per file that the read waits for fragments: a silent half minute looks like a hang.
    fn log_wait(&mut self, cause: Cause) {
        if !std::mem::replace(&mut self.wait_logged, true) {
            let waits_s = self.options.get_deadline_ms / 1000;
            tracing::warn!(error = %cause.of(&self.params.file), "waiting up to {waits_s} s for more fragments to come within reach");
        }
    }

    pub(super) fn want_segment(&mut self, chunk: ChunkInfo, waiter: Waiter, in_order: bool, keep: bool) {
        let cached = self.cache.shared.chunks.get(&chunk.chunk_id);
        if let Some(parts) = cached {
            return self.fulfil(&waiter, &parts);
        }
        let Range { start, end } = waiter.fetched();
        let small = chunk.len_bytes > SMALL_CHUNK_BYTES && (end - start) * 4 <= chunk.len_bytes && !in_order;
        if small && !self.fetches.contains_key(&chunk.chunk_id) {
            self.start_small(chunk, waiter, keep);
        } else {
            self.want_whole(chunk, Some(waiter), keep);
        }
    }

    /// Fetches whole chunks ahead of a sequential reader. Stops at the end of the region: the next one is on another
    /// host, and another task will read it.
    pub(super) fn read_ahead(&mut self, from: u64, most_bytes: u64) {
        let mut at = from;
        let region_end = self.region_bytes.and_then(|bytes| from.checked_next_multiple_of(bytes)).unwrap_or(u64::MAX);
        while at < region_end.min(from + AHEAD_BYTES.min(most_bytes)) {
            let Some((extent, place)) = self.pages.find(at) else { return };
            if let Place::Chunk(chunk) = place {
                let known = self.cache.shared.chunks.contains_key(&chunk.chunk_id)
                    || self.fetches.contains_key(&chunk.chunk_id);
                if !known {
                    self.want_whole(chunk, None, true);
                }
            }
            at = extent.offset + extent.len_bytes;
        }
    }

    pub(super) fn want_whole(&mut self, chunk: ChunkInfo, waiter: Option<Waiter>, keep: bool) {
        let chunk_id = chunk.chunk_id;
        if let Some(whole) = self.fetches.get_mut(&chunk_id) {
            whole.waiters.extend(waiter);
            whole.keep |= keep;
            return;
        }
        let class = self.view.read().class(chunk.class_id);
        let made = class
            .ok_or_else(|| format!("chunk {chunk_id} is of class {}, which this build does not know", chunk.class_id))
            .and_then(|class| Fetch::new(chunk, class, self.now));
        match made {
            Ok(fetch) => {
                let waiters = waiter.into_iter().collect();
                self.fetches.insert(chunk_id, ChunkRead { fetch, waiters, keep, bad: Vec::new() });
                self.step(chunk_id, Fetch::start);
            }
            Err(message) => {
                waiter.into_iter().for_each(|w| self.fail(w.read, Cause::Nonsense(message.clone())));
            }
        }
    }

    /// Lets a fetch take a step, and carries out what it asks for.
    pub(super) fn step(&mut self, chunk_id: u64, step: impl FnOnce(&mut Fetch, &mut FetchContext<'_>)) {
        let Some(whole) = self.fetches.get_mut(&chunk_id) else { return };
        let steps = whole.fetch.run(self.now, &self.view, &self.options, step);
        for step in steps {
            match step {
                Step::Get(want) => self.want_fragment(chunk_id, want),
                Step::Decode(job) => self.compute(Job::Decode(job), JobOwner::Whole(chunk_id)),
                Step::NeedMap => self.want_map(chunk_id),
                Step::Done(parts) => self.whole_done(chunk_id, parts),
                Step::Waits(cause) => {
                    self.log_wait(cause);
                    self.look_aside(chunk_id);
                }
                Step::Bad(fragments) => self.note_bad(chunk_id, fragments),
                Step::Late(node_id) => {
                    self.report.late += 1;
                    self.view.write().suspect(node_id, self.now, &self.options);
                }
                Step::Failed(cause) => {
                    let Some(whole) = self.fetches.remove(&chunk_id) else { return };
                    if matches!(cause, Cause::Corrupt { .. }) {
                        let report = ReportBad { fragments: Vec::new(), unreadable: vec![chunk_id] };
                        self.rpcs.ask_manager(self.now, &report, Purpose::Report, &self.options);
                    }
                    self.displace(Displaced { chunk_id, failed: Some(cause), waiters: whole.waiters });
                }
            }
        }
    }

    /// A chunk waits for fragments. If its bytes may lie elsewhere by now, its readers ask where.
    fn look_aside(&mut self, chunk_id: u64) {
        if !self.may_have_moved(chunk_id) {
            return;
        }
        let Some(whole) = self.fetches.get_mut(&chunk_id).filter(|whole| !whole.waiters.is_empty()) else { return };
        let waiters = std::mem::take(&mut whole.waiters);
        self.displace(Displaced { chunk_id, failed: None, waiters });
    }

    /// Whether nobody has asked yet where the bytes of this chunk lie by now: packs are written anew, and small files move into packs.
    fn may_have_moved(&self, chunk_id: u64) -> bool {
        // What is read as if it were a file cannot be asked for.
        let Some(opened) = self.opened.as_ref().filter(|opened| opened.attr.ino != 0) else { return false };
        let is_small = opened.version.size_bytes <= MOVING_FILE_BYTES;
        (is_small || self.packs_seen.contains(&chunk_id)) && !self.looked_again.contains(&chunk_id)
    }

    /// A chunk cannot be read. If its bytes may lie elsewhere by now, asks once where.
    fn displace(&mut self, displaced: Displaced) {
        let Displaced { chunk_id, failed, waiters } = &displaced;
        match failed {
            Some(cause) if self.session.lease.id == 0 || !self.may_have_moved(*chunk_id) => {
                let (reads, cause) = (waiters.iter().map(|waiter| waiter.read).collect::<Vec<u64>>(), cause.clone());
                reads.into_iter().for_each(|read| self.fail(read, cause.clone()));
            }
            _ => {
                self.pages.forget(*chunk_id);
                self.displaced.push(displaced);
            }
        }
    }

    /// Lets displaced reads wait for the chunks that hold their bytes by now, as soon as these are known.
    pub(super) fn follow_extents(&mut self) {
        for Displaced { chunk_id, failed, waiters } in std::mem::take(&mut self.displaced) {
            let mut unknown = Vec::new();
            for waiter in waiters.into_iter().filter(|waiter| self.reads.contains_key(&waiter.read)).collect::<Vec<_>>()
            {
                match (self.pages.find(waiter.at), &failed) {
                    (None, _) => unknown.push(waiter),
                    (Some((extent, Place::Chunk(chunk))), _) if chunk.chunk_id != chunk_id => {
                        let from = extent.chunk_offset + (waiter.at - extent.offset);
                        let content = self.pages.content_of(&extent).filter(|content| !content.is_compared).cloned();
                        self.want_segment(chunk, Waiter { from, content, ..waiter }, false, false);
                    }
                    (Some((extent, Place::Inlined(bytes))), _) => {
                        let from = extent.chunk_offset + (waiter.at - extent.offset);
                        self.fulfil(&Waiter { from, content: None, ..waiter }, &[bytes]);
                    }
                    (Some((_, Place::Chunk(chunk))), None) => {
                        self.looked_again.insert(chunk_id);
                        self.want_whole(chunk, Some(waiter), false);
                    }
                    (Some(_), cause) => {
                        self.looked_again.insert(chunk_id);
                        let nothing = || {
                            Cause::Nonsense(format!(
                                "the bytes at {} were in chunk {chunk_id}, and are a hole now",
                                waiter.at
                            ))
                        };
                        self.fail(waiter.read, cause.clone().unwrap_or_else(nothing));
                    }
                }
            }
            if let Some(waiter) = unknown.first() {
                self.ask_extents(waiter.at, waiter.at + waiter.len_bytes);
                self.displaced.push(Displaced { chunk_id, failed, waiters: unknown });
            }
        }
    }

    /// Reports bad fragments. Without a session, a chunk may have been removed with its file: then they are no fault, and it is never read.
    fn note_bad(&mut self, chunk_id: u64, bad: Vec<FragmentRef>) {
        match self.fetches.get_mut(&chunk_id) {
            Some(whole) if self.session.lease.id == 0 => whole.bad.extend(bad),
            _ => self.report_bad(bad),
        }
    }

    /// Reports missing and corrupt fragments, for repair.
    pub(super) fn report_bad(&mut self, bad: Vec<FragmentRef>) {
        tracing::info!(file = %self.params.file, ?bad, "fragments missing or corrupt; reported for repair");
        self.report.bad += bad.len() as u64;
        self.rpcs.ask_manager(
            self.now,
            &ReportBad { fragments: bad, unreadable: Vec::new() },
            Purpose::Report,
            &self.options,
        );
    }

    pub(super) fn whole_done(&mut self, chunk_id: u64, parts: Vec<Bytes>) {
        let Some(whole) = self.fetches.remove(&chunk_id) else { return };
        if !whole.bad.is_empty() {
            self.report_bad(whole.bad);
        }
        if whole.keep {
            self.cache.insert(chunk_id, &parts, 2 * AHEAD_BYTES);
        }
        for waiter in whole.waiters {
            self.fulfil(&waiter, &parts);
        }
    }

    /// Gives a waiter its range of a chunk. A chunk shorter than its extent contradicts the manager's reply.
    pub(super) fn fulfil(&mut self, waiter: &Waiter, parts: &[Bytes]) {
        let Range { start, end } = waiter.fetched();
        self.set_ready(waiter, &slice_parts(parts, start, end - start));
    }

    /// Takes what was fetched for a waiter, which was verified as a part of its chunk. A content is compared with its name as well.
    pub(super) fn set_ready(&mut self, waiter: &Waiter, fetched: &[Bytes]) {
        if let Some(content) = &waiter.content {
            if !content.is(fetched) {
                return self.fail(waiter.read, content.wrong());
            }
            self.pages.note_equal(waiter.at, content);
        }
        let skipped = waiter.from.checked_sub(waiter.fetched().start);
        let parts = skipped.map_or(Vec::new(), |skipped| slice_parts(fetched, skipped, waiter.len_bytes));
        if parts.iter().map(|part| part.len() as u64).sum::<u64>() != waiter.len_bytes {
            let Waiter { from, len_bytes, at, .. } = waiter;
            let message = format!("the {len_bytes} bytes at {at} are not all at {from} of one chunk");
            return self.fail(waiter.read, Cause::Nonsense(message));
        }
        let Some(read) = self.reads.get_mut(&waiter.read) else { return };
        if let Some(segment) = read.segments.iter_mut().find(|p| p.number == waiter.segment) {
            assert!(segment.ready.is_none(), "segment {} is read twice", segment.number);
            segment.ready = Some(Delivery::Bytes(parts));
        }
    }
}
