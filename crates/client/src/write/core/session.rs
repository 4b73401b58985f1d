//! The write session: opens it, renews it, reserves space, gives it up.

use super::*;

/// State of a write's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Phase {
    /// No request was sent, or the one-shot commit failed.
    #[default]
    New,
    /// The request to open the file is in flight.
    Opening,
    /// The policy is known: the write asks about its chunks, stores them and commits.
    Open,
    /// Given up during the opening: the answer is awaited only to close the session.
    Cancelled,
    /// The write will do nothing more.
    Finished,
}

/// What the manager answered at the opening, and the space reserved since.
#[derive(Debug, Default)]
pub(super) struct Session {
    phase: Phase,
    pub lease: SessionLease,
    /// The session that puts name: this one, or that of the preallocated chunk ids.
    pub put_id: u64,
    pub policy: Policy,
    pub scheme: String,
    pub domain: u32,
    /// Length of the version that was current at the opening.
    pub base_bytes: u64,
    /// The file's length by the last [`WriteRequest::Length`].
    length_bytes: Option<u64>,
    /// Bytes of input for which space is reserved.
    reserved_to: u64,
    /// Bytes of input that no longer need a reservation: holes, repetitions, and chunks that the client asked about.
    asked_bytes: u64,
}

impl Session {
    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub fn enter(&mut self, to: Phase) {
        let from = self.phase;
        let legal = match to {
            Phase::New => matches!(from, Phase::Opening | Phase::Open),
            Phase::Opening => from == Phase::New,
            Phase::Open => matches!(from, Phase::New | Phase::Opening),
            Phase::Cancelled => from == Phase::Opening,
            Phase::Finished => from != Phase::Finished,
        };
        assert!(legal, "write session: {from:?} to {to:?}");
        self.phase = to;
    }

    /// Input that needs no reservation any more.
    pub fn note_asked(&mut self, len_bytes: u64) {
        self.asked_bytes = self.asked_bytes.saturating_add(len_bytes);
    }

    /// The input is cut and asked about again.
    pub fn forget_asked(&mut self) {
        self.asked_bytes = 0;
    }

    pub fn is_optimistic(&self) -> bool {
        self.policy.durability == Durability::Optimistic
    }
}

impl WriteCore {
    pub(super) fn open(&mut self) {
        let whole = self.committer.ending.is_some() && self.dedup.queue.len() <= self.options.ask_chunks;
        let first: Vec<usize> = match whole && self.params.expect_policy.is_some() {
            true => self.dedup.queue.drain(..).collect(),
            false => Vec::new(),
        };
        let mut request = self.open_request(&first);
        if whole && self.may_be_one_shot() {
            if self.start_one_shot(&request.redundancy, &first) {
                return self.close_exhausted_sessions();
            }
            request.preallocate = self.view.write().preallocated.wanted(&request.redundancy, self.now, &self.options);
        }
        self.mark_asked(&first);
        request.op_id = self.rpcs.op_id();
        self.session.reserved_to = request.size_hint_bytes;
        self.session.enter(Phase::Opening);
        self.rpcs.ask_manager(self.now, &request, Purpose::Open { first }, &self.options);
        self.close_exhausted_sessions();
    }

    /// The request that opens the file and asks about these chunks.
    pub(super) fn open_request(&self, chunks: &[usize]) -> OpenWrite {
        let expected = self.params.expect_policy.as_ref();
        let scheme = expected.map(|p| p.scheme(self.file_bytes(0)).to_string());
        let (parent, name, ino, inos) = match &self.params.target {
            Target::Name { parent, name } => (*parent, name.clone(), 0, 0),
            Target::Inode(ino) => (0, Vec::new(), *ino, 0),
            Target::New { parent, name, ino, inos } => (*parent, name.clone(), *ino, *inos),
        };
        OpenWrite {
            op_id: 0,
            parent,
            name,
            ino,
            hints: self.params.hints.clone(),
            size_hint_bytes: self.params.size_hint_bytes.unwrap_or(0).max(self.input_bytes),
            chunks: chunks.iter().map(|i| self.chunks[*i].wire_name()).collect(),
            redundancy: scheme.unwrap_or_default(),
            known_map_version: self.view.read().known_version(),
            host: self.options.host.clone(),
            preallocate: 0,
            inos,
            chunking: expected.map(|p| p.chunking.to_string()).unwrap_or_default(),
            pack: self.params.pack.is_some(),
            pack_like: self.params.pack.as_ref().map_or(0, |params| params.like),
        }
    }

    pub(super) fn set_length(&mut self, size_bytes: u64) {
        self.session.length_bytes = Some(size_bytes);
        if self.session.phase() == Phase::Open {
            self.choose_scheme();
        }
    }

    /// Chooses the scheme of the chunks that the client asks about next.
    fn choose_scheme(&mut self) {
        self.session.scheme = self.session.policy.scheme(self.file_bytes(self.session.base_bytes)).to_string();
    }

    /// Length the file will have, as far as known: `redundancy=auto` depends on it. A stream of unknown length
    /// that did not end within the first buffer counts as large.
    pub(super) fn file_bytes(&self, base: u64) -> u64 {
        if let Some(length_bytes) = self.session.length_bytes {
            return length_bytes;
        }
        if self.params.pack.is_some() {
            return u64::MAX; // A pack is coded as a long file is.
        }
        let input = match (self.committer.ending, self.params.size_hint_bytes) {
            (Some(ending), _) => ending.size_bytes,
            (None, Some(hint)) => hint.max(self.input_bytes),
            (None, None) => u64::MAX,
        };
        match self.params.mode {
            CommitMode::Append => base.saturating_add(input),
            CommitMode::Patch => base.max(input),
            _ => input,
        }
    }

    pub(super) fn on_open_reply(&mut self, answer: Answer, first: Vec<usize>, waited_ms: u64) {
        match answer.decode::<OpenWrite>() {
            Ok((reply, _)) => self.on_opened(reply, first),
            Err(error) => {
                self.session.enter(Phase::New);
                self.refused("OpenWrite", error, waited_ms);
            }
        }
    }

    fn on_opened(&mut self, mut reply: OpenWriteReply, first: Vec<usize>) {
        self.take_preallocated(reply.preallocated.take());
        self.session.lease.id = reply.session_id;
        let hints = reply.policy.iter().map(|h| (h.name.as_str(), h.value.as_str()));
        match Policy::from_hints(hints) {
            Ok(policy) => self.session.policy = policy,
            Err(error) => {
                self.session.enter(Phase::New);
                let message =
                    format!("this client does not know a hint that is in effect ({error}); upgrade the client");
                return self.fail(Cause::Policy(message));
            }
        }
        self.session.enter(Phase::Open);
        self.session.put_id = reply.session_id;
        self.session.domain = reply.domain;
        self.session.base_bytes = reply.base_size_bytes;
        let rechunked = match self.rechunk_if_needed() {
            Ok(rechunked) => rechunked,
            Err(cause) => return self.fail(cause),
        };
        for index in 0..self.chunks.len() {
            self.chunks[index].region = self.region(self.chunks[index].offset);
        }
        self.session.lease.set_lifetime(reply.session_ms);
        self.session.lease.renewed_ns = self.now;
        self.choose_scheme();
        let policy = Box::new(self.session.policy.clone());
        self.actions.push_back(Action::Notify(WriteNotice::Opened { policy, base_size_bytes: reply.base_size_bytes }));
        let fits = |a: &AllocateChunksReply| {
            a.class.as_ref().is_some_and(|c| c.spec == self.session.scheme) && a.answers.len() == first.len()
        };
        match reply.allocated.filter(fits) {
            // The new chunks are queued already; ids given for the old chunks go with the session.
            _ if rechunked => {}
            Some(allocated) => self.on_allocated(allocated, first),
            // The request assumed another class than the file has: ask again for the right one.
            None => self.requeue(first),
        }
    }

    pub(super) fn on_renewed(&mut self, answer: Answer, waited_ms: u64) {
        match answer.decode::<RenewSession>() {
            // If space could not be reserved, the write fails later, only if it runs out.
            Ok((reply, _)) => self.session.lease.set_lifetime(reply.session_ms),
            // A commit has ended the session. If its answer was lost, it is repeated, and its answer decides.
            Err(_) if self.committer.done.is_some() || self.committer.in_flight => {}
            Err(error) => self.refused("RenewSession", error, waited_ms),
        }
    }

    pub(super) fn renew_if_due(&mut self) {
        if self.committer.done.is_none() && self.session.lease.renew_due().is_some_and(|at| at <= self.now) {
            self.renew();
        }
    }

    fn renew(&mut self) {
        let session = &mut self.session;
        session.lease.renewed_ns = self.now;
        let reserve_bytes = session.reserved_to.saturating_sub(session.asked_bytes);
        let request = RenewSession { session_id: session.lease.id, reserve_bytes };
        self.rpcs.ask_manager(self.now, &request, Purpose::Renew, &self.options);
    }

    /// Reserves space ahead for a stream of unknown length: as much again as it has used, within bounds.
    pub(super) fn pump_reserve(&mut self) {
        if self.params.size_hint_bytes.is_some() || self.committer.ending.is_some() || self.committer.done.is_some() {
            return;
        }
        let ahead = self.input_bytes.clamp(64 << 20, 1 << 30);
        if self.session.reserved_to < self.input_bytes.saturating_add(ahead / 2) {
            self.session.reserved_to = self.input_bytes.saturating_add(ahead);
            self.renew();
        }
    }

    /// The manager refused a request without which the write cannot go on.
    pub(super) fn refused(&mut self, request: &'static str, error: Error, waited_ms: u64) {
        let because = |what: String| Cause::Refused(Error { message: what, ..error.clone() });
        self.fail(match error.code() {
            Code::NoSpace => because(format!("no space: {}", error.message)),
            Code::SessionExpired => {
                because(format!("the write session ended before the commit ({}); write the file again", error.message))
            }
            Code::VersionConflict => {
                Cause::VersionConflict { expected: self.params.if_version.unwrap_or(0), current: error.current }
            }
            _ => Cause::of_manager(request, error, waited_ms),
        });
    }

    pub(super) fn fail(&mut self, cause: Cause) {
        let phase = self.session.phase();
        if phase == Phase::Finished {
            return;
        }
        if phase != Phase::Opening {
            self.rpcs.abandon();
            while self.rpcs.poll().is_some() {}
        }
        if self.committer.done.is_none() || cause != Cause::Cancelled {
            tracing::debug!(file = %self.params.file, %cause, "write ends");
        }
        if self.committer.done.is_none() {
            self.actions.push_back(Action::Notify(WriteNotice::Done(Err(cause.of(&self.params.file)))));
        }
        self.leave_all_to_repair();
        match phase {
            // Otherwise the session would stay open, and hold its reservation, until it expires.
            Phase::Opening => {
                self.session.enter(Phase::Cancelled);
                self.drop_data();
            }
            _ => self.close(),
        }
    }

    pub(super) fn handle_cancelled(&mut self, event: WriteEvent) {
        match event {
            Event::Tick => self.rpcs.tick(self.now),
            Event::Answer(answer) => {
                let Some(reply) = self.rpcs.on_answer(self.now, answer, &self.options) else { return };
                let opened = reply.answer.decode::<OpenWrite>().map(|(reply, _)| reply).unwrap_or_default();
                self.session.lease.id = opened.session_id;
                self.take_preallocated(opened.preallocated);
                self.close();
            }
            _ => {}
        }
    }

    /// Closes the session at the manager, without waiting for the answer.
    fn close(&mut self) {
        if self.session.lease.id != 0 && self.committer.done.is_none() {
            let stored = self.last_report();
            let request = CloseSession { session_id: self.session.lease.id, stored, ..CloseSession::default() };
            self.rpcs.ask_manager(self.now, &request, Purpose::Close, &self.options);
        }
        self.finish();
    }

    pub(super) fn close_session(&mut self, session_id: u64) {
        let request = CloseSession { session_id, ..Default::default() };
        self.rpcs.ask_manager(self.now, &request, Purpose::Close, &self.options);
    }

    pub(super) fn finish(&mut self) {
        self.drop_preallocated();
        self.session.enter(Phase::Finished);
        self.drop_data();
        self.actions.push_back(Action::Notify(WriteNotice::Finished));
    }

    fn drop_data(&mut self) {
        self.chunks.drop_data();
        self.sender.clear();
        self.fetches.clear();
    }
}
