//! Group commits: the core applies all waiting commands in one transaction, logs and syncs it, then replies; or it stops.

use super::*;

/// How long the manager proposes nothing of its own that can wait after a batch that found no room.
const NO_ROOM_FOR_NS: i64 = 1_000_000_000;

impl ManagerCore {
    /// Whether a group commit has work to do.
    pub fn wants_commit(&self) -> bool {
        !self.queue.is_empty() || self.head_due
    }

    /// Runs a whole group commit of a core that is no member of a group (tests, benchmarks). Returns the encoded entry, if one was
    /// committed.
    pub fn commit_batch(&mut self, now_ns: i64) -> Option<Bytes> {
        let entry = self.begin_entry(now_ns, self.meta.log_seq + 1);
        self.finish_batch();
        entry.filter(|_| self.stopped.is_none())
    }

    /// First half of a group commit: applies the waiting commands in a transaction that stays open. Returns the encoded entry: the
    /// caller proposes it to the group as `index`, and calls [`ManagerCore::finish_batch`] once it is committed. `None`: there is
    /// nothing to commit, and all is done.
    pub(crate) fn begin_entry(&mut self, now_ns: i64, index: u64) -> Option<Bytes> {
        assert!(self.open.is_none(), "one entry at a time");
        self.clock.advance(now_ns);
        if self.stopped.is_some() {
            return None;
        }
        self.put_head();
        let (commands, due, composed) = self.take_waiting();
        if commands.is_empty() {
            composed.into_iter().for_each(|(origin, body)| self.compose(origin, &body));
            return None;
        }
        let before = self.meta;
        let mut tables =
            Tables { db: &self.db, meta: &mut self.meta, caches: &self.caches, answers: &self.reply_cache };
        let live = Live { soft: &self.soft, config: &self.config };
        match batch::apply(&mut tables, live, self.clock.time, index, &commands) {
            Ok(applied) => {
                self.metrics.batch(commands.len());
                let entry = applied.entry.clone();
                self.open = Some(Open { applied, due, composed });
                if entry.is_none() {
                    self.finish_batch();
                }
                entry
            }
            Err(error) => {
                self.undo(before);
                self.give_back(commands);
                self.fail(error, false, due, composed);
                None
            }
        }
    }

    /// Gives the database back as the last finished batch left it, and answers all that waits with `error`. What was in the open batch
    /// may still be committed by the next leader.
    pub(crate) fn depose(mut self, error: Error) -> (Db, VecDeque<Action>) {
        if let Some(Open { applied, due, composed }) = self.open.take() {
            match failpoint::is_active("manager.deposed_keeps_batch") {
                true => _ = self.db.commit(),
                false => self.undo(applied.before),
            }
            let origins = due.into_iter().filter_map(|reply| reply.origin).chain(composed.into_iter().map(|(o, _)| o));
            let text = "the manager was deposed before it knew whether this is committed; ask again";
            let unknown = Error::new(Code::Unavailable, text);
            self.actions.extend(origins.map(|origin| origin.reply(Err(unknown.clone()))));
        }
        self.stop(error);
        (self.db, self.actions)
    }

    /// Nothing of the open batch happened.
    fn undo(&mut self, before: Meta) {
        _ = self.db.rollback();
        self.meta = before;
        self.caches.forget_all();
    }

    /// Puts at the head of the queue what must precede all other commands of a batch: that this manager leads, unless that is on record, and
    /// which clients may hold locks, if that differs from the record.
    fn put_head(&mut self) {
        self.head_due = false;
        let note = self.soft.locks.note().map(|note| note.propose());
        self.answer_granted();
        let leads = (self.meta.term != self.term()).then(|| NewTerm { term: self.term(), restored: false }.propose());
        for proposal in note.into_iter().chain(leads) {
            match queued(&proposal) {
                Ok(queued) => {
                    let command = AdmittedCommand { queued, origin: None, changes: Vec::new() };
                    self.queue.push_front(QueueItem::Command(command));
                }
                Err(failure) => tracing::error!(%failure, "what begins a batch cannot be encoded"),
            }
        }
    }

    pub(super) fn take_waiting(&mut self) -> (Vec<QueuedCommand>, Vec<PendingReply>, Vec<(Origin, Bytes)>) {
        let (mut commands, mut due, mut composed) = (Vec::new(), Vec::new(), Vec::new());
        let mut bytes = 0;
        while commands.len() < self.config.max_batch_commands && bytes < self.config.max_batch_bytes {
            match self.queue.pop_front() {
                None => break,
                Some(QueueItem::Composed { origin, body }) => composed.push((origin, body)),
                Some(QueueItem::Command(command)) => {
                    let Some(command) = self.recheck(command) else { continue };
                    let AdmittedCommand { queued, origin, changes } = command;
                    bytes += queued.body.len();
                    due.push(PendingReply { origin, changes, grants: queued.command.grants(&self.db) });
                    commands.push(queued);
                }
            }
        }
        assert_eq!(commands.len(), due.len(), "each command has one place for its answer");
        (commands, due, composed)
    }

    /// Second half: the group has committed the entry. Commits the transaction, then releases the replies.
    pub fn finish_batch(&mut self) {
        let Some(Open { applied, due, composed }) = self.open.take() else { return };
        let is_logged = applied.entry.is_some();
        if let Err(error) = self.db.commit() {
            self.undo(applied.before);
            return self.fail(error, is_logged, due, composed);
        }
        self.soft.committed_seq = self.meta.log_seq;
        assert_eq!(due.len(), applied.answers.len(), "each command has one answer");
        self.reply_cache.remember(self.meta.log_seq, self.meta.last_now_ns, applied.kept);
        applied.effects.into_iter().for_each(|effect| effect.apply(&mut self.soft));
        // The commit may have freed the locks of expired clients for waiting requests.
        self.answer_granted();
        for (at, (reply, answer)) in due.into_iter().zip(applied.answers).enumerate() {
            let PendingReply { origin, changes, grants } = reply;
            self.soft.leases.end_change(&changes);
            let Some(origin) = origin else { continue };
            // A repeated answer may show attributes that have changed since, so no lease comes with it.
            let answer = match applied.repeats.contains(&at) && !failpoint::is_active("manager.repeat_grants_lease") {
                true => answer,
                false => answer.map(|answer| self.with_leases(&origin, grants, answer)),
            };
            self.reply_as(origin, answer, if is_logged { Confirm::No } else { Confirm::Now });
        }
        composed.into_iter().for_each(|(origin, body)| self.compose(origin, &body));
        self.actions.extend(self.held.drain(..));
    }

    /// A batch failed: what the manager proposes only once is proposed again later. What stands at the head of batches is there anyway.
    fn give_back(&mut self, commands: Vec<QueuedCommand>) {
        let sessions = &mut self.soft.sessions;
        for queued in commands {
            match queued.command {
                Command::NoteLeases(_) => self.lease_noted = false,
                Command::PersistReaders(command) => sessions.persist_later(&command.readers),
                Command::TrimVersions(command) => command.inos.into_iter().for_each(|ino| sessions.trim_later(ino)),
                Command::ReleaseOrphans(command) => {
                    command.inos.into_iter().for_each(|ino| sessions.release_later(ino))
                }
                // Purges have rows.
                Command::ExpireFiles(command) => self.soft.step_files.extend(command.inos),
                _ => {}
            }
        }
        self.no_room_until_ns = self.clock.time.now_ns.saturating_add(NO_ROOM_FOR_NS);
    }

    /// Handles a failed batch. Unless the disk was full before the group knew of the batch, a restart must find out what is on disk.
    /// What the group has committed takes place without this manager: the next leader answers who asks again.
    fn fail(
        &mut self,
        error: rusqlite::Error,
        is_logged: bool,
        due: Vec<PendingReply>,
        composed: Vec<(Origin, Bytes)>,
    ) {
        const FULL: &str = "the manager's disk is full: nothing was changed; make room in its directory";
        const LATE: &str =
            "the manager's disk is full, and it applies this once there is room in its directory; ask again";
        let is_full = crate::db::is_full(&error);
        self.is_full = is_full && is_logged;
        let unknown = || format!("the manager's database failed ({error}); restart the manager to see what is on disk");
        let answer = match (is_full, is_logged) {
            (true, false) => Error::new(Code::NoSpace, FULL),
            (true, true) => Error::new(Code::Unavailable, LATE),
            (false, false) => Error::new(Code::Io, self.db.damage().unwrap_or_else(unknown)),
            (false, true) => Error::new(Code::Unavailable, self.db.damage().unwrap_or_else(unknown)),
        };
        tracing::error!(%error, "group commit failed");
        self.metrics.failed_batches += 1;
        due.iter().for_each(|reply| self.soft.leases.end_change(&reply.changes));
        // What later reports had the manager propose may have been in this batch.
        let (reports, queue): (VecDeque<_>, _) = self.queue.drain(..).partition(QueueItem::is_report);
        self.queue = queue;
        let reports = composed
            .into_iter()
            .map(|(origin, _)| origin)
            .chain(reports.into_iter().filter_map(QueueItem::into_origin));
        for origin in due.into_iter().filter_map(|reply| reply.origin).chain(reports) {
            let code = if room::asks_again(origin.role, origin.kind) { Code::Unavailable } else { answer.code() };
            self.actions.push_back(origin.reply(Err(Error::new(code, answer.message.clone()))));
        }
        if is_logged || !is_full {
            self.stop(Error::new(Code::Unavailable, answer.message));
        }
    }

    /// Stops serving once the database is known to be damaged (P2): a later answer could rest on it.
    pub(super) fn stop_if_damaged(&mut self) {
        if self.stopped.is_none()
            && let Some(damage) = self.db.damage()
        {
            tracing::error!("{damage}");
            self.stop(Error::new(Code::Unavailable, damage));
        }
    }

    /// Refuses all waiting and all later requests with `error`.
    pub(super) fn stop(&mut self, error: Error) {
        let queued = std::mem::take(&mut self.queue).into_iter().filter_map(QueueItem::into_origin);
        let parked = std::mem::take(&mut self.parked).into_iter().filter_map(|(command, _)| command.origin);
        let locks = std::mem::take(&mut self.lock_waits).into_values().map(|(origin, _)| origin);
        let tests = self.take_tests();
        let replies = queued.chain(parked).chain(locks).chain(tests).map(|origin| origin.reply(Err(error.clone())));
        self.actions.extend(replies);
        for mut action in std::mem::take(&mut self.held) {
            if let Action::Reply { result, .. } = &mut action {
                *result = Err(error.clone());
            }
            self.actions.push_back(action);
        }
        self.stopped = Some(error);
    }
}
