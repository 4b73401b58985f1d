//! Ticks: expired sessions, garbage, old replies.

use super::*;

/// Files that one tick trims, and that it releases: many may wait until a manager has led for a session's lifetime.
const OVERDUE_A_TICK: usize = 4_096;

impl ManagerCore {
    pub(super) fn tick(&mut self) {
        if self.stopped.is_some() {
            return;
        }
        self.soft.cluster.stats.tick(self.clock.time.now_ns, plan::gap_ns(&self.config));
        self.soft.leases.expire(self.clock.time.now_ns);
        self.unpark();
        self.release_reservations();
        self.tend_locks();
        // Maintenance waits while the queue is long: none of it is urgent.
        if self.queue.len() < self.config.max_batch_commands {
            self.tend_sessions();
            self.tend_garbage();
            self.tend_expiry();
            let mut view = view!(self);
            plan::on_tick(&mut view);
            view.proposals.into_iter().for_each(|proposal| self.propose(proposal));
        }
    }

    /// Sessions and replies last used before this time count as unused for `after_ms`. After a clock jump or a pause of the
    /// manager, clients had no chance to use them, so none counts as that old until `after_ms` have passed again.
    pub(super) fn unused_before_ns(&self, after_ms: u64) -> i64 {
        let before_ns = self.clock.time.now_ns.saturating_sub(ns(after_ms));
        if self.soft.cluster.stats.awake_ns > before_ns { i64::MIN } else { before_ns }
    }

    pub(super) fn tend_sessions(&mut self) {
        let unused_before_ns = self.unused_before_ns(self.config.session_ms);
        self.soft.sessions.end_unknown(unused_before_ns);
        let (rows, soft) = self.soft.sessions.expired(unused_before_ns);
        soft.into_iter().for_each(|id| self.soft.sessions.forget(id));
        rows.chunks(1024).for_each(|ids| self.propose(EndSessions { session_ids: ids.to_vec() }.propose()));
        if !self.has_room() {
            return;
        }
        let old_ns = self.clock.time.now_ns.saturating_sub(ns(self.config.reader_persist_ms));
        let readers = self.soft.sessions.take_unpersisted(old_ns);
        readers.chunks(1024).for_each(|readers| self.propose(PersistReaders { readers: readers.to_vec() }.propose()));
        let (trim, release) = self.soft.sessions.take_overdue(OVERDUE_A_TICK);
        trim.chunks(256).for_each(|inos| self.propose(TrimVersions { inos: inos.to_vec() }.propose()));
        let release: Vec<u64> = release.into_iter().filter(|&ino| self.is_orphan(ino)).collect();
        release.chunks(256).for_each(|inos| self.propose(ReleaseOrphans { inos: inos.to_vec() }.propose()));
    }

    /// Whether no batch has found the disk full within the last second.
    pub(super) fn has_room(&self) -> bool {
        self.clock.time.now_ns >= self.no_room_until_ns
    }

    /// Proposes to expire files, once a second, unless an earlier proposal still waits for leases.
    pub(super) fn tend_expiry(&mut self) {
        let going = self.parked.iter().any(|(p, _)| matches!(p.queued.command, Command::ExpireFiles(_)));
        if going || !self.has_room() || self.clock.time.now_ns - self.last_expiry_ns < 1_000_000_000 {
            return;
        }
        self.last_expiry_ns = self.clock.time.now_ns;
        let committed = std::mem::take(&mut self.soft.step_files);
        match expiry::due(&self.db, self.clock.time.now_ns, &committed) {
            // What passed since the last entry would not count after a restart.
            Ok(commands) if commands.is_empty() && self.clock_is_due() => {
                self.propose(ExpireFiles::default().propose());
            }
            Ok(commands) => commands.into_iter().for_each(|command| self.propose(command.propose())),
            Err(failure) => tracing::error!(%failure, "looking for files whose time is over"),
        }
    }

    /// Whether files wait to be purged, and the log has not had the time for a minute.
    fn clock_is_due(&self) -> bool {
        let unlogged_ns = self.clock.time.now_ns - self.meta.last_now_ns;
        unlogged_ns > 60_000_000_000 && self.db.any("SELECT 1 FROM purges LIMIT 1", []).unwrap_or(false)
    }

    fn is_orphan(&self, ino: u64) -> bool {
        matches!(crate::namespace::inodes::find(&self.db, ino), Ok(Some(inode)) if inode.nlink == 0)
    }

    pub(super) fn tend_garbage(&mut self) {
        let dropped = self.db.any("SELECT 1 FROM dropped_pages LIMIT 1", []);
        if dropped.unwrap_or(false) {
            self.propose(SweepPages { limit: self.config.sweep_pages }.propose());
        }
        if self.clock.time.now_ns - self.last_prune_ns >= 1_000_000_000 {
            self.last_prune_ns = self.clock.time.now_ns;
            if let Some(to_seq) = self.reply_cache.prune(self.unused_before_ns(self.config.answers_ms)) {
                self.propose(PruneReplies { to_seq }.propose());
            }
        }
    }
}
