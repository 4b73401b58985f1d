//! Carries out what the library asks for: writes first, then what depends on them.

use super::{Output, Peer, PeerError};
use crate::log::{Base, HardState, LogError};
use crate::message;
use prost::Message as _;
use raft::{Ready, SnapshotStatus};
use tessera_failpoint as failpoint;
use tessera_wire::consensus::{EntryKind, MembershipChange, SnapshotInfo};

/// Committed entries wait in the log, not in memory, while the owner has so many bytes of them to take.
const QUEUED_BYTES_MAX: usize = 64 << 20;

impl Peer {
    /// Takes what the library wants to be done, and sends what need not wait for a write.
    pub(super) fn begin(&mut self) {
        assert!(self.unwritten.is_none(), "one thing is written at a time");
        // The library always has something ready while committed entries wait, so it is asked once an input: others are answered.
        let is_ahead = self.is_ahead_of_owner();
        if self.stopped.is_some() || is_ahead && self.has_begun || !self.node.has_ready() {
            return;
        }
        self.has_begun = true;
        self.follow_timeout();
        self.node.store().holds_back.set(is_ahead);
        let mut ready = self.node.ready();
        self.node.store().holds_back.set(false);
        // A leader's followers write while it does (Raft dissertation, section 10.2.1).
        self.post(ready.take_messages());
        self.flush();
        self.unwritten = Some(ready);
    }

    fn is_ahead_of_owner(&self) -> bool {
        self.queued_bytes + self.unapplied_bytes >= QUEUED_BYTES_MAX
    }

    /// Runs the library until it wants nothing.
    pub(super) fn process(&mut self) {
        self.has_begun = false;
        loop {
            let was_full = self.is_full;
            let result = if self.has_unapplied() {
                self.finish()
            } else {
                if self.unwritten.is_none() {
                    self.begin();
                }
                match self.unwritten.take() {
                    Some(ready) => self.carry_out(ready),
                    None if self.end_joint() => continue,
                    None => break,
                }
            };
            if let Err(error) = result {
                // What was written is repeated once there is room; anything else that fails is not.
                match self.is_full {
                    true if was_full => {}
                    true => tracing::warn!(%error, "the log cannot grow"),
                    false => self.stop(PeerError::Log(error.to_string())),
                }
                return;
            }
            if let Some(error) = self.node.store().failure.take() {
                return self.stop(PeerError::Log(error.to_string()));
            }
        }
        self.follow_timeout();
        self.note_standing();
        self.flush();
    }

    /// Writes what a ready holds, then applies and sends what it allows. If the disk is full, the ready waits, or what it leaves to apply.
    fn carry_out(&mut self, mut ready: Ready) -> Result<(), LogError> {
        if let Err(error) = self.write(&ready) {
            self.is_full = error.is_no_space();
            self.unwritten = self.is_full.then_some(ready);
            return Err(error);
        }
        self.is_full = false;
        ready.take_read_states().iter().for_each(|state| self.confirmed(state));
        self.unapplied.extend(ready.take_committed_entries());
        let applied = self.apply();
        self.post(ready.take_persisted_messages());
        self.node.store().holds_back.set(self.is_ahead_of_owner());
        let mut light = self.node.advance_append(ready);
        self.node.store().holds_back.set(false);
        self.post(light.take_messages());
        self.unapplied.extend(light.take_committed_entries());
        applied?;
        self.finish()
    }

    /// Whether applying stopped half-way.
    pub(super) fn has_unapplied(&self) -> bool {
        self.unsaved.is_some() || !self.unapplied.is_empty()
    }

    /// Applies what is left, and tells the library so.
    fn finish(&mut self) -> Result<(), LogError> {
        self.apply()?;
        self.node.advance_apply();
        for (to, is_snapshot) in std::mem::take(&mut self.unsent) {
            match is_snapshot {
                true => self.node.report_snapshot(to, SnapshotStatus::Failure),
                false => self.node.report_unreachable(to),
            }
        }
        Ok(())
    }

    fn write(&mut self, ready: &Ready) -> Result<(), LogError> {
        let snapshot = ready.snapshot();
        if snapshot.get_metadata().index > 0 {
            let info = SnapshotInfo::decode(&snapshot.data[..]).unwrap_or_default();
            assert!(self.files().holds(&info), "a snapshot is used before it is held");
            let base = Base { index: info.index, term: info.term };
            let membership = info.membership.clone().unwrap_or_default();
            if self.log().base().index < base.index {
                self.restoring = Some(info);
                self.node.mut_store().log.reset(base, membership)?;
            }
            // If the reset failed half-way, the write is repeated and finds the log reset.
            let restored = self.restoring.take().map(|info| [Output::Restore(info), Output::Members]);
            self.outputs.extend(restored.into_iter().flatten());
        }
        let state = ready.hs().map(|hs| HardState { term: hs.term, vote: hs.vote, commit: hs.commit });
        let entries: Vec<_> = ready.entries().iter().map(message::from_library).collect();
        let log = &mut self.node.mut_store().log;
        match state.filter(|_| !ready.must_sync()) {
            // What is committed can be learnt again, so it is not worth a sync.
            Some(state) => log.note_committed(state.commit),
            None if state.is_some() || !entries.is_empty() => {
                let state = state.filter(|_| !failpoint::is_active("consensus.forgets_votes"));
                log.write(state, &entries)?;
            }
            None => {}
        }
        Ok(())
    }

    /// Applies entries in their order. If the disk is full, the rest waits, and nothing reaches the library meanwhile.
    fn apply(&mut self) -> Result<(), LogError> {
        loop {
            self.save_members().inspect_err(|error| self.is_full = error.is_no_space())?;
            self.is_full = false;
            let Some(entry) = self.unapplied.pop_front() else { return Ok(()) };
            let entry = message::from_library(&entry);
            match entry.kind {
                EntryKind::Membership => self.change_members(entry.index, &entry.data),
                EntryKind::Command => {
                    let (index, term, data) = (entry.index, entry.term, entry.data);
                    self.queued_bytes += data.len();
                    self.outputs.push_back(Output::Committed { index, term, data });
                }
            }
        }
    }

    fn change_members(&mut self, index: u64, data: &[u8]) {
        let before = self.log().membership().clone();
        if index <= before.index {
            return; // Written before a restart.
        }
        let change = MembershipChange::decode(data).unwrap_or_default();
        match self.node.apply_conf_change(&message::conf_change(&change)) {
            Ok(state) => self.unsaved = Some(message::membership(index, &state, &before, &change)),
            // Every peer refuses the same change.
            Err(error) => tracing::warn!(%error, index, "a change of members does not apply"),
        }
    }

    /// Writes the members that the library knows already.
    fn save_members(&mut self) -> Result<(), LogError> {
        let Some(after) = self.unsaved.clone() else { return Ok(()) };
        let [voters, learners] = [&after.voters, &after.learners].map(|ids| message::hex_list(ids));
        let index = after.index;
        self.node.mut_store().log.write_membership(after)?;
        self.unsaved = None;
        tracing::info!(index, voters, learners, "the members changed");
        let is_member = |id: u64| message::member(self.node.store().log.membership(), id).is_some();
        self.lines.retain(|id, _| is_member(*id));
        self.answered_at.retain(|_, id| is_member(*id));
        self.unapplied_there.retain(|id, _| is_member(*id));
        self.outputs.push_back(Output::Members);
        Ok(())
    }

    /// Draws a new time-out whenever the library has drawn one: when term, role or leader change.
    fn follow_timeout(&mut self) {
        let raft = &self.node.raft;
        let marks = (raft.term, raft.state as u8, raft.leader_id);
        if self.drawn_for != marks {
            self.drawn_for = marks;
            self.draw_timeout();
        }
    }
}
