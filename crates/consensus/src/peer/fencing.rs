//! Groups that replace each other: a restore fences the peers that are left of a group, and the restored group tells the others.
//!
//! A restored group begins [`TERMS_BETWEEN_GROUPS`] terms above the highest one that any peer has seen. No election raises a term so
//! far, so a frame tells from its term whether its sender belongs to this group, to one that was replaced, or to one that
//! replaces this one. A peer that meets a later group never takes part in its own again.

use super::{Output, Peer, PeerError, Sent};
use crate::log::LogIdentity;
use crate::log::fence::{FENCE_FILE, Fence};
use crate::message::{self, END, MAX_TERM_AHEAD};
use std::collections::BTreeSet;
use tessera_wire::consensus::{
    Consensus, DescribePeer, DescribePeerReply, FencePeer, GetEntries, GetEntriesReply, Membership, RaftEntry,
};
use tessera_wire::rpc::{Answer, Call, Peer as Address};
use tessera_wire::{Code, Error};

/// A restored group begins so many terms above the highest term that is known of the group before.
pub const TERMS_BETWEEN_GROUPS: u64 = 1 << 21;
const _: () = assert!(TERMS_BETWEEN_GROUPS > 2 * MAX_TERM_AHEAD);

/// Ticks between two attempts to tell the replaced peers.
const TELL_TICKS: u64 = 10;
/// After so many ticks all are told again: an old peer may return to an address where another one has answered.
const TELL_AGAIN_TICKS: u64 = 600;
/// Bytes of entries in one answer to `GetEntries`, unless one entry is longer.
const ENTRIES_BYTES: u32 = 4 << 20;

/// Replaced peers that know it.
#[derive(Default)]
pub(super) struct Told(BTreeSet<u64>);

impl Peer {
    /// The fence, if there is one: this peer takes part in no election and takes no entry.
    #[must_use]
    pub fn fence(&self) -> Option<&Fence> {
        self.fence.as_ref()
    }

    /// Whether it has never been a member: whoever leads may let it in.
    pub(super) fn is_new(&self) -> bool {
        self.membership().members.is_empty() && self.log().last_index() == 0
    }

    /// Notes a term of which the peer's owner has heard. A term of a later group replaces this peer's group.
    pub fn meet_term(&mut self, term: u64) {
        self.complete();
        let is_later = term > self.node.raft.term.saturating_add(MAX_TERM_AHEAD) && term < END;
        if !is_later || self.is_full || self.stopped.is_some() {
            return;
        }
        match self.is_new() {
            true => {
                // Kept with the log: this peer never listens to an earlier group again.
                self.node.raft.become_follower(term, 0);
                self.process();
            }
            false => self.replaced(term),
        }
    }

    /// Refuses a sender whose term shows that it is of another group. A later one replaces this peer's.
    pub(super) fn check_group(&mut self, from: u64, term: u64) -> Result<(), Error> {
        let (own, is_new) = (self.node.raft.term, self.is_new());
        let refuse = |text: String| Err(Error::new(Code::Fenced, text));
        if term >= END {
            return Err(Error::new(Code::Invalid, format!("peer {from:x} claims term {term}")));
        }
        if term > own.saturating_add(MAX_TERM_AHEAD) && !is_new {
            self.replaced(term);
            return refuse(format!(
                "the group of term {own} is replaced by that of term {term}; this peer has stopped"
            ));
        }
        // A term of 0: the sender is new.
        if term > 0 && own > term.saturating_add(MAX_TERM_AHEAD) {
            return refuse(format!(
                "peer {from:x} of term {term} belongs to a group that was replaced by a restored one, of term {own}; stop it, move its \
                 directory away and start it with --join"
            ));
        }
        match &self.fence {
            Some(fence) => refuse(PeerError::of_fence(fence).to_string()),
            None => Ok(()),
        }
    }

    /// Never takes part again: a restored group, which began in `term` or before, has replaced this peer's.
    fn replaced(&mut self, term: u64) {
        let LogIdentity { cluster_id, peer_id } = self.log().identity();
        let fence = Fence { cluster_id, peer_id, term, restore_id: 0 };
        if let Err(error) = fence.store(&**self.log().disk(), &fence_path(self.log().dir())) {
            tracing::error!(%error, "writing the fence");
        }
        self.fence = Some(fence);
        self.stop(PeerError::Replaced { term });
    }

    /// Fences the peer for a restore.
    pub(super) fn fence_for(&mut self, request: &FencePeer) -> Result<DescribePeerReply, Error> {
        let refuse = |code, text: String| Err(Error::new(code, text));
        let owner = self.log().identity();
        self.check_receiver(&request.cluster_id, request.peer_id)?;
        self.complete();
        if self.is_full {
            return refuse(Code::NoSpace, "the disk of this peer's log is full: make room in its directory".into());
        }
        let (own, term) = (self.node.raft.term, request.term);
        if request.restore_id == 0 || term <= own || term >= END {
            return refuse(
                Code::Invalid,
                format!("a restored group cannot begin in term {term}: this peer is in {own}"),
            );
        }
        if let Some(fence) =
            self.fence.as_ref().filter(|fence| fence.restore_id != request.restore_id && !request.force)
        {
            return refuse(Code::Fenced, PeerError::of_fence(fence).to_string());
        }
        let fence =
            Fence { cluster_id: owner.cluster_id, peer_id: owner.peer_id, term, restore_id: request.restore_id };
        if self.fence != Some(fence) {
            let stored = fence.store(&**self.log().disk(), &fence_path(self.log().dir()));
            stored.map_err(|error| Error::new(Code::Io, format!("the fence cannot be written: {error}")))?;
            tracing::warn!(restore = request.restore_id, "a restore has fenced this peer: it takes part no more");
            self.fence = Some(fence);
        }
        if self.stopped.is_none() {
            self.node.raft.become_follower(own, 0);
            self.process();
        }
        Ok(self.describe())
    }

    /// What this peer holds.
    #[must_use]
    pub fn describe(&self) -> DescribePeerReply {
        let (log, fence) = (self.log(), self.fence.as_ref());
        DescribePeerReply {
            cluster_id: log.identity().cluster_id.to_vec(),
            member: Some(self.config.member.clone()),
            position: Some(self.position()),
            commit: log.state().commit,
            base_index: log.base().index,
            base_term: log.base().term,
            snapshot: self.files().held().cloned(),
            membership: Some(self.membership().clone()),
            fence_restore_id: fence.map_or(0, |fence| fence.restore_id),
            fence_term: fence.map_or(0, |fence| fence.term),
            stopped: self.stopped.as_ref().map(ToString::to_string).unwrap_or_default(),
        }
    }

    pub(super) fn describe_for(&self, request: &DescribePeer) -> Result<DescribePeerReply, Error> {
        match request.cluster_id.is_empty() {
            true => Ok(self.describe()),
            false => self.check_receiver(&request.cluster_id, self.id()).map(|()| self.describe()),
        }
    }

    fn check_receiver(&self, cluster_id: &[u8], peer_id: u64) -> Result<(), Error> {
        let owner = self.log().identity();
        if cluster_id != owner.cluster_id {
            let text = format!("this peer belongs to cluster {}", tessera_wire::hex(&owner.cluster_id));
            return Err(Error::new(Code::WrongCluster, text));
        }
        match peer_id == owner.peer_id {
            true => Ok(()),
            false => {
                let text =
                    format!("here is peer {:016x}, and not {peer_id:016x}: its directory was replaced", owner.peer_id);
                Err(Error::new(Code::NotFound, text))
            }
        }
    }

    /// Reads entries for a restore.
    pub(super) fn serve_entries(&self, request: &GetEntries) -> Result<(GetEntriesReply, Vec<bytes::Bytes>), Error> {
        self.check_receiver(&request.cluster_id, request.peer_id)?;
        let (log, first) = (self.log(), request.first_index);
        if first <= log.base().index || first > log.last_index() {
            let text =
                format!("this log holds entries {} to {}, and not {first}", log.base().index + 1, log.last_index());
            return Err(Error::new(Code::NotFound, text));
        }
        let max_bytes = u64::from(request.max_bytes.min(ENTRIES_BYTES));
        let entries = log
            .read(first, log.last_index() + 1, max_bytes)
            .map_err(|error| Error::new(Code::Corrupt, error.to_string()))?;
        let described = entries.iter().map(|entry| RaftEntry {
            kind: entry.kind as i32,
            term: entry.term,
            index: entry.index,
            len_bytes: entry.data.len() as u32,
        });
        let reply = GetEntriesReply { entries: described.collect() };
        Ok((reply, entries.into_iter().map(|entry| entry.data).filter(|data| !data.is_empty()).collect()))
    }

    /// A leader's chore: tells the peers of the group that this one replaces.
    pub(super) fn tell_replaced(&mut self) {
        if self.ticks.is_multiple_of(TELL_AGAIN_TICKS) {
            self.told.0.clear();
        }
        if !self.ticks.is_multiple_of(TELL_TICKS) {
            return;
        }
        let is_told = |id: &u64| self.told.0.contains(id);
        let open: Vec<(u64, String)> = self
            .membership()
            .replaced
            .iter()
            .filter(|member| !is_told(&member.id))
            .map(|member| (member.id, self.heard.get(&member.id).unwrap_or(member).address.clone()))
            .collect();
        for (to, address) in open {
            let frame = Consensus {
                cluster_id: self.log().identity().cluster_id.to_vec(),
                from: Some(self.config.member.clone()),
                to,
                position: Some(self.position()),
                ..Consensus::default()
            };
            let token = self.draw_token(Sent::Told(to));
            let timeout_ms = self.config.call_timeout_ms;
            let call = Call::new(Address::Address(address), token, &frame, Vec::new(), timeout_ms);
            self.outputs.push_back(Output::Call(call));
        }
    }

    /// Any answer but silence means that no peer of the old group takes part there.
    pub(super) fn told(&mut self, id: u64, answer: &Answer) {
        if answer.result.as_ref().err().is_none_or(|error| !error.is_retryable()) {
            self.told.0.insert(id);
        }
    }
}

impl PeerError {
    /// Why a fenced peer takes no part.
    #[must_use]
    pub fn of_fence(fence: &Fence) -> PeerError {
        match fence.restore_id {
            0 => PeerError::Replaced { term: fence.term },
            restore_id => PeerError::Fenced { restore_id },
        }
    }
}

/// Whether a peer belongs to the group that was replaced.
pub(super) fn is_replaced(membership: &Membership, id: u64) -> bool {
    membership.replaced.iter().any(|member| member.id == id)
}

/// Decodes the entries of an answer to `GetEntries`, which follow the entry `before` (index, term) and are of `term_max` or before.
///
/// # Errors
/// They do not: the peer is damaged or no peer.
pub fn read_entries(
    reply: &GetEntriesReply,
    before: (u64, u64),
    term_max: u64,
    payload: bytes::Bytes,
) -> Result<Vec<crate::log::LogEntry>, String> {
    message::read_entries(&reply.entries, before, term_max, payload)
}

pub(super) fn fence_path(dir: &str) -> String {
    format!("{dir}/{FENCE_FILE}")
}
