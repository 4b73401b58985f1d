//! Snapshots of the database: when they are made, and what follows.

use super::{DbHome, GroupAction, GroupError, Manager, SnapshotDone, SnapshotJob, State};
use tessera_failpoint as failpoint;
use tessera_wire::consensus::SnapshotInfo;

/// Ticks after which a snapshot that failed is tried again.
const RETRY_TICKS: u64 = 600;

impl Manager {
    /// Has a snapshot made if the log has grown, or a peer needs one.
    pub(super) fn shorten_log(&mut self) {
        // A group that was being founded, or whose snapshot rotted, has none.
        let (lacks, held) = match self.peer.files().held() {
            Some(held) => (false, (held.index, held.len_bytes)),
            None => (true, (0, 0)),
        };
        let grown = self.peer.log().bytes_after(held.0);
        let share = held.1.saturating_mul(self.config.snapshot_log_percent) / 100;
        let is_needed = self.snapshot_needed().is_some_and(|needed| held.0 < needed);
        let wanted =
            lacks || is_needed || self.peer.take_lacks_snapshot() || grown > self.config.snapshot_log_bytes.max(share);
        let at = self.db().and_then(|db| db.meta().ok()).map_or(0, |meta| meta.log_seq);
        if !wanted || self.proposed.is_some() || self.copies || at <= held.0 || self.ticks < self.no_snapshot_before {
            return;
        }
        match &self.home {
            DbHome::Memory => {
                let is_off = u64::from(failpoint::is_active("manager.snapshot_index_off"));
                let made = self.peer.snapshot_at(at - is_off).map(|info| self.snapshot_now(info));
                if let Some(Err(error)) = made {
                    tracing::error!(%error, "taking a snapshot");
                }
            }
            DbHome::Dir { .. } if !self.has_room_for_copy() => {
                tracing::warn!(
                    "the disk has no room for a snapshot, so the log goes on growing; it is tried again in a minute"
                );
                self.no_snapshot_before = self.ticks + RETRY_TICKS;
            }
            DbHome::Dir { dir, readers, .. } => {
                self.copies = true;
                let job = SnapshotJob::copy(readers, dir, self.peer.files());
                self.actions.push_back(GroupAction::Snapshot(job));
            }
        }
    }

    /// Takes the result of a [`SnapshotJob`].
    pub fn snapshot_done(&mut self, done: Result<SnapshotDone, GroupError>) {
        assert!(self.copies, "a snapshot was asked for");
        self.copies = false;
        let adopted = match done {
            Ok(SnapshotDone::Copied(index)) => {
                // `None`: a newer snapshot has arrived meanwhile.
                if let Some(info) = self.peer.snapshot_at(index) {
                    self.copies = true;
                    let job = SnapshotJob::seal(self.peer.log(), self.peer.files(), info);
                    self.actions.push_back(GroupAction::Snapshot(job));
                }
                Ok(())
            }
            Ok(SnapshotDone::Sealed(info)) => {
                tracing::debug!(index = info.index, bytes = info.len_bytes, "a snapshot is made");
                self.peer.adopt(info).map_err(GroupError::from)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = adopted {
            tracing::error!(%error, "taking a snapshot; it is tried again in a minute");
            self.no_snapshot_before = self.ticks + RETRY_TICKS;
        }
    }

    pub(super) fn snapshot_now(&mut self, info: SnapshotInfo) -> Result<(), GroupError> {
        let db = match &mut self.state {
            State::Standby { db, .. } => db,
            State::Leading(core) => core.db_mut(),
            State::Nothing => return Ok(()),
        };
        let info = self.home.make_snapshot(db, self.peer.log(), self.peer.files(), info)?;
        Ok(self.peer.adopt(info)?)
    }
}
