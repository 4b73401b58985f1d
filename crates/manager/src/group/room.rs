//! Room on the manager's disk: what a manager does while it is scarce, and when there is none.
//!
//! While less than `min_free_bytes` are free, a leader refuses commands that make the metadata grow, and offers leadership to managers
//! that have more. It serves reads, and commands that free space. Once three quarters of that are gone, too, it proposes nothing: a
//! leader whose log cannot grow half-way through an entry leads no more. If the disk is full all the same, what is committed waits:
//! the manager is a standby that applies it as soon as there is room.

use super::{DbHome, Manager, State};
use crate::db::Db;
use tessera_consensus::Room;
use tessera_disk::Space;
use tessera_wire::consensus::PeerKind;
use tessera_wire::{Code, Error};

/// Ticks between two attempts to apply what found no room.
const RETRY_TICKS: u64 = 10;

/// What a manager knows about the room on its disk.
#[derive(Default)]
pub(super) struct DiskRoom {
    level: Room,
    /// What is committed found no room. It is applied again at this tick.
    retry_at: Option<u64>,
    /// It has waited, and has not been applied yet.
    has_waited: bool,
}

impl DiskRoom {
    pub(super) fn is_missing(&self) -> bool {
        self.level == Room::Missing
    }

    /// Whether nothing is to be applied now.
    pub(super) fn waits(&self) -> bool {
        self.retry_at.is_some()
    }
}

/// The share of `min_free_bytes` that counts on a disk of this size: a small one would never be free enough.
fn min_bytes(min_free_bytes: u64, space: &Space) -> u64 {
    min_free_bytes.min(space.capacity_bytes / 16)
}

impl Manager {
    /// Asks the disk how much room there is.
    pub(super) fn look_at_room(&mut self) {
        // A disk that does not answer tells with its next write.
        let Ok(space) = self.peer.log().disk().space() else { return };
        let min_bytes = min_bytes(self.config.min_free_bytes, &space);
        let level = match space.free_bytes {
            _ if self.room.has_waited => Room::Missing,
            free if free >= min_bytes => Room::Enough,
            free if free >= min_bytes / 4 => Room::Scarce,
            _ => Room::Missing,
        };
        let was = std::mem::replace(&mut self.room.level, level);
        let error = (level != Room::Enough).then(|| self.full_error());
        match &error {
            None if was != level => tracing::info!("there is room on this manager's disk again"),
            Some(error) if was == Room::Enough => tracing::warn!("{}", error.message),
            _ => {}
        }
        if level != Room::Enough && self.ticks.is_multiple_of(RETRY_TICKS) {
            self.make_room();
        }
        self.peer.set_room(level);
        if let State::Leading(core) = &mut self.state {
            core.set_room(level, error);
        }
    }

    /// Gives back what the disk holds for speed alone: the write-ahead log of the database, and then, as the database is synced, entries that
    /// the snapshot has, too.
    fn make_room(&mut self) {
        match self.db().map(Db::shrink_log) {
            Some(Ok(true)) => {}
            Some(Err(error)) => {
                return tracing::debug!(%error, "the write-ahead log of the database stays as long as it is");
            }
            _ => return,
        }
        if let Err(error) = self.peer.drop_held_entries() {
            tracing::warn!(%error, "the log stays as long as it is");
        }
    }

    /// Whether a copy of the database fits on the disk beside what must stay free.
    pub(super) fn has_room_for_copy(&self) -> bool {
        let len_bytes = self.peer.files().held().map_or(0, |held| held.len_bytes / 4 * 5);
        self.peer.log().disk().space().is_ok_and(|space| {
            space.free_bytes >= len_bytes.saturating_add(min_bytes(self.config.min_free_bytes, &space) / 2)
        })
    }

    /// The database could not take what is committed: it waits.
    pub(super) fn wait_for_room(&mut self) {
        if !self.room.has_waited {
            tracing::warn!("this manager applies nothing more: {}", self.full_error().message);
        }
        (self.room.retry_at, self.room.has_waited) = (Some(self.ticks + RETRY_TICKS), true);
        self.look_at_room();
    }

    /// Lets what waits be applied again, if it is time.
    pub(super) fn retry_for_room(&mut self) {
        if self.room.retry_at.is_some_and(|at| self.ticks >= at) {
            self.room.retry_at = None;
        }
    }

    /// Everything that waited for room is applied. A leader that has not served meanwhile lets itself or another one be elected: a
    /// manager begins to serve with its term.
    pub(super) fn note_applied(&mut self) {
        if self.room.waits() || !std::mem::take(&mut self.room.has_waited) {
            return;
        }
        self.look_at_room();
        if self.core().is_none() && self.peer.standing().leads {
            self.peer.resign();
        }
    }

    /// Why nobody serves because of this manager's disk. `None`: its disk has room, or another manager can serve.
    pub(super) fn lack(&self) -> Option<Error> {
        let mut members = self.peer.membership().members.iter();
        let is_alone = !members.any(|member| member.id != self.peer.id() && member.kind() == PeerKind::Manager);
        (is_alone && (self.room.has_waited || self.peer.is_full())).then(|| self.full_error())
    }

    fn full_error(&self) -> Error {
        let space = self.peer.log().disk().space().ok();
        let facts = space.map(|space| {
            let (free, min) = (space.free_bytes, min_bytes(self.config.min_free_bytes, &space));
            format!(" ({free} bytes are free, {min} are needed)")
        });
        let dir = match &self.home {
            DbHome::Memory => "its directory".to_string(),
            DbHome::Dir { dir, .. } => std::path::absolute(dir).unwrap_or_else(|_| dir.clone()).display().to_string(),
        };
        let facts = facts.unwrap_or_default();
        let text = format!(
            "the disk of the manager is full: {dir}{facts}; free space on that disk, or make it larger: the manager goes on by itself. \
             Removing files from the store may not be enough"
        );
        Error::new(Code::NoSpace, text)
    }
}
