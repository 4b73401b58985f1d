//! Group commits: the core applies all waiting commands in one transaction, logs and syncs it, then replies; or it stops.

use super::*;
use tessera_wire::log::LoggedCommand;

impl ManagerCore {
    /// Whether a group commit has work to do.
    pub fn wants_commit(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Runs a whole group commit.
    pub fn commit_batch(&mut self, now_ns: i64) {
        if self.begin_batch(now_ns) {
            self.finish_batch();
        }
    }

    /// First half of a group commit: applies the waiting commands. If it returns true, the shell may carry out the actions queued
    /// so far while [`ManagerCore::finish_batch`], which must be called next, syncs.
    pub fn begin_batch(&mut self, now_ns: i64) -> bool {
        self.clock.advance(now_ns);
        if self.stopped.is_some() {
            return false;
        }
        // A replica may hold entries of a failed batch, even one that began a term: the next term is above all of them.
        if self.needs_term && !self.in_group && !self.queue.is_empty() {
            let term = NewTerm { term: self.log.term().max(self.meta.term) + 1, restored: false };
            if let Ok(queued) = queued(&term.propose()) {
                self.queue.push_front(QueueItem::Command(AdmittedCommand {
                    queued,
                    origin: None,
                    changes: Vec::new(),
                }));
            }
        }
        let (commands, due, composed) = self.take_waiting();
        if commands.is_empty() {
            composed.into_iter().for_each(|(origin, body)| self.compose(origin, &body));
            return false;
        }
        let before = self.meta;
        let seq = self.next_entry.take().unwrap_or(self.meta.log_seq + 1);
        let mut tables = Tables {
            db: &self.db,
            meta: &mut self.meta,
            caches: &self.caches,
            answers: &self.reply_cache,
            keeps_log: !self.in_group,
        };
        let live = Live { soft: &self.soft, config: &self.config };
        match batch::apply(&mut tables, live, self.clock.time, seq, &commands)
            .and_then(|applied| self.drop_log().map(|()| applied))
        {
            Ok(applied) => {
                self.metrics.batch(commands.len());
                if let Some((entry, encoded)) = &applied.entry {
                    if entry.term != applied.before.term {
                        self.log.set_term(entry.term);
                    }
                    // A manager that is restored from the log must know the clients that hold locks.
                    let seen = |c: &LoggedCommand| {
                        c.client_id != 0 || c.kind == RecordRefusal::KIND || c.kind == NoteLockers::KIND
                    };
                    if entry.commands.iter().any(seen) {
                        self.visible_seq = entry.seq;
                    }
                    if !self.in_group {
                        self.log.push(entry.seq, entry.term, encoded.clone());
                    }
                    self.pump();
                }
                self.open = Some(Open { applied, due, composed });
                true
            }
            Err(error) => {
                self.undo(before);
                self.fail(error, due, composed);
                false
            }
        }
    }

    /// First half of a group commit whose entry the group is to commit as `index`. Returns the encoded entry: the caller proposes it,
    /// and calls [`ManagerCore::finish_batch`] once it is committed. `None`: there is nothing to commit, and all is done.
    pub(crate) fn begin_entry(&mut self, now_ns: i64, index: u64) -> Option<Bytes> {
        assert!(self.in_group && self.open.is_none(), "one entry at a time");
        self.next_entry = Some(index);
        if !self.begin_batch(now_ns) {
            return None;
        }
        let entry = self.open.as_ref().and_then(|open| open.applied.entry.as_ref()).map(|(_, encoded)| encoded.clone());
        if entry.is_none() {
            self.finish_batch();
        }
        entry
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

    pub(super) fn drop_log(&self) -> rusqlite::Result<()> {
        if let Some(seq) = self.drop_log_to {
            assert!(seq < self.meta.log_seq, "the log is dropped up to {seq}, its last entry is {}", self.meta.log_seq);
            replicate::delete_to(&self.db, seq)?;
        }
        Ok(())
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

    /// Second half: syncs the transaction, then releases replies as far as the log's replicas allow.
    pub fn finish_batch(&mut self) {
        let Some(Open { applied, due, composed }) = self.open.take() else { return };
        if let Err(error) = self.db.commit() {
            self.undo(applied.before);
            if let Some((entry, _)) = applied.entry.as_ref().filter(|_| !self.in_group) {
                self.log.pop(entry.seq);
            }
            self.fail(error, due, composed);
            if self.in_group && applied.entry.is_some() && self.stopped.is_none() {
                // The group has committed what this database lacks.
                self.stop(Error::new(Code::Unavailable, "the manager's disk is full: another manager goes on"));
            }
            return;
        }
        let settled = applied.entry.is_some();
        self.needs_term = false;
        self.drop_log_to = None;
        let (seq, now_ns) = (self.meta.log_seq, self.meta.last_now_ns);
        assert_eq!(due.len(), applied.answers.len(), "each command has one answer");
        assert!(self.visible_seq <= seq, "clients have seen entry {}, the last is {seq}", self.visible_seq);
        self.reply_cache.remember(seq, now_ns, applied.kept);
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
            self.reply_as(origin, answer, settled);
        }
        composed.into_iter().for_each(|(origin, body)| self.compose(origin, &body));
        self.pump();
        self.release_held();
    }

    /// Handles a failed batch. Unless the disk was full, a restart must find out what is on disk.
    pub(super) fn fail(&mut self, error: rusqlite::Error, due: Vec<PendingReply>, composed: Vec<(Origin, Bytes)>) {
        const FULL: &str = "the manager's disk is full: nothing was changed; make room in its directory";
        let full = error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull);
        let unknown = || format!("the manager's database failed ({error}); restart the manager to see what is on disk");
        let lost = || self.db.damage().unwrap_or_else(unknown);
        let answer = if full { Error::new(Code::NoSpace, FULL) } else { Error::new(Code::Io, lost()) };
        tracing::error!(%error, "group commit failed");
        self.metrics.failed_batches += 1;
        // A replica may hold the entry that was rolled back, so its position is rewritten under a new term only.
        self.needs_term = true;
        self.visible_seq = self.visible_seq.min(self.meta.log_seq);
        if !full {
            self.stop(Error::new(Code::Unavailable, answer.message.clone()));
        }
        due.iter().for_each(|reply| self.soft.leases.end_change(&reply.changes));
        let origins = due.into_iter().filter_map(|reply| reply.origin).chain(composed.into_iter().map(|(o, _)| o));
        self.actions.extend(origins.map(|origin| origin.reply(Err(answer.clone()))));
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
        let queued = std::mem::take(&mut self.queue).into_iter().filter_map(|item| match item {
            QueueItem::Command(command) => command.origin,
            QueueItem::Composed { origin, .. } => Some(origin),
        });
        let parked = std::mem::take(&mut self.parked).into_iter().filter_map(|(command, _)| command.origin);
        let locks = std::mem::take(&mut self.lock_waits).into_values().map(|(origin, _)| origin);
        let replies = queued.chain(parked).chain(locks).map(|origin| origin.reply(Err(error.clone())));
        self.actions.extend(replies);
        for (_, mut action) in std::mem::take(&mut self.held) {
            if let Action::Reply { result, .. } = &mut action {
                *result = Err(error.clone());
            }
            self.actions.push_back(action);
        }
        self.stopped = Some(error);
    }
}
