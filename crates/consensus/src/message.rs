//! Translation between the library's messages and those of `proto/consensus.proto`, with checks of everything that a peer sent.
//!
//! The library panics on some impossible messages (an index that overflows, entries with gaps). None passes here.

use crate::log::{LogEntry, LogIdentity};
use bytes::Bytes;
use prost::Message as _;
use raft::eraftpb::{ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState};
use raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};
use std::collections::BTreeSet;
use tessera_wire::consensus::{
    ChangeKind, DescribePeerReply, EntryKind, Member, MemberChange, Membership, MembershipChange,
};
use tessera_wire::consensus::{MessageKind, RaftEntry, RaftMessage, SnapshotInfo};
use tessera_wire::{Code, Error};

/// A frame's term may be this far ahead of the receiver's own.
pub const MAX_TERM_AHEAD: u64 = 1_000_000;
/// No index or term reaches this.
pub(crate) const END: u64 = 1 << 62;
/// Limit of the members of a group that a description names.
const MEMBERS_MAX: usize = 256;
/// So many of the peers that were told to go are remembered.
const EXPELLED_MAX: usize = 64;

const KINDS: [(MessageKind, MessageType); 10] = [
    (MessageKind::Append, MessageType::MsgAppend),
    (MessageKind::AppendResponse, MessageType::MsgAppendResponse),
    (MessageKind::Vote, MessageType::MsgRequestVote),
    (MessageKind::VoteResponse, MessageType::MsgRequestVoteResponse),
    (MessageKind::Snapshot, MessageType::MsgSnapshot),
    (MessageKind::Heartbeat, MessageType::MsgHeartbeat),
    (MessageKind::HeartbeatResponse, MessageType::MsgHeartbeatResponse),
    (MessageKind::TimeoutNow, MessageType::MsgTimeoutNow),
    (MessageKind::PreVote, MessageType::MsgRequestPreVote),
    (MessageKind::PreVoteResponse, MessageType::MsgRequestPreVoteResponse),
];

/// Encodes the library's messages for one receiver: the messages and the payload that holds their entries' bytes.
pub(crate) fn encode(messages: Vec<Message>) -> (Vec<RaftMessage>, Vec<Bytes>) {
    let mut payload = Vec::new();
    let messages = messages.into_iter().filter_map(|message| encode_one(message, &mut payload)).collect();
    (messages, payload)
}

fn encode_one(m: Message, payload: &mut Vec<Bytes>) -> Option<RaftMessage> {
    let (kind, _) = KINDS.iter().find(|(_, ours)| *ours == m.get_msg_type())?;
    let entries = m.entries.iter().map(|entry| {
        let entry = from_library(entry);
        let len_bytes = entry.data.len() as u32;
        payload.extend((len_bytes > 0).then(|| entry.data.clone()));
        RaftEntry { kind: entry.kind as i32, term: entry.term, index: entry.index, len_bytes }
    });
    Some(RaftMessage {
        kind: *kind as i32,
        term: m.term,
        log_term: m.log_term,
        index: m.index,
        commit: m.commit,
        commit_term: m.commit_term,
        entries: entries.collect(),
        snapshot: m.snapshot.as_ref().and_then(|snapshot| SnapshotInfo::decode(&snapshot.data[..]).ok()),
        reject: m.reject,
        reject_hint: m.reject_hint,
        context: m.context.to_vec(),
    })
}

/// Decodes messages that peer `from` sent to peer `to`, whose term is `own_term`.
///
/// # Errors
/// `Invalid`: no correct peer sends such messages.
pub(crate) fn decode(
    (from, to): (u64, u64),
    own_term: u64,
    messages: Vec<RaftMessage>,
    mut payload: Bytes,
) -> Result<Vec<Message>, Error> {
    let decoded: Result<Vec<_>, _> =
        messages.into_iter().map(|message| decode_one((from, to), own_term, message, &mut payload)).collect();
    let decoded =
        decoded.map_err(|what| Error::new(Code::Invalid, format!("consensus frame of peer {from:x}: {what}")))?;
    match payload.is_empty() {
        true => Ok(decoded),
        false => Err(Error::new(
            Code::Invalid,
            format!("consensus frame of peer {from:x}: {} bytes too many", payload.len()),
        )),
    }
}

fn decode_one((from, to): (u64, u64), own_term: u64, m: RaftMessage, payload: &mut Bytes) -> Result<Message, String> {
    let known = KINDS.iter().find(|(kind, _)| *kind as i32 == m.kind);
    let Some((kind, library)) = known else { return Err(format!("no message has kind {}", m.kind)) };
    if m.term == 0 || m.term > own_term.saturating_add(MAX_TERM_AHEAD) {
        return Err(format!("term {}, the term here is {own_term}", m.term));
    }
    if [m.log_term, m.index, m.commit, m.commit_term, m.reject_hint].iter().any(|&number| number >= END) {
        return Err("a number is out of range".to_string());
    }
    // The library takes an entry that it does not hold for one of term 0.
    if *kind == MessageKind::Append && (m.log_term == 0) != (m.index == 0) {
        return Err(format!("entry {} of term {} is before the first one", m.index, m.log_term));
    }
    if m.context.len() > 64 {
        return Err(format!("a context of {} bytes", m.context.len()));
    }
    let mut message = Message { msg_type: *library, to, from, term: m.term, ..Message::default() };
    (message.log_term, message.index, message.reject) = (m.log_term, m.index, m.reject);
    (message.commit, message.commit_term, message.reject_hint) = (m.commit, m.commit_term, m.reject_hint);
    message.context = m.context.into();
    message.entries = entries(&m.entries, (m.index, m.log_term), m.term, payload)?.into();
    match (kind, m.snapshot) {
        (MessageKind::Snapshot, Some(info)) => {
            let mut snapshot = snapshot(&info)?;
            // The snapshot may be older than the change that made this peer a learner. The library takes it only if the peer is
            // in it; the change follows among the entries, and finds nothing left to do.
            let known = info.membership.as_ref().is_some_and(|membership| contains(membership, to));
            if !known {
                snapshot.mut_metadata().mut_conf_state().learners.push(to);
            }
            message.set_snapshot(snapshot);
        }
        (MessageKind::Snapshot, None) => return Err("a snapshot message without one".to_string()),
        _ => {}
    }
    Ok(message)
}

/// The entries of a message that follow the entry `before` (index, term).
fn entries(wire: &[RaftEntry], mut before: (u64, u64), term: u64, payload: &mut Bytes) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::with_capacity(wire.len());
    for entry in wire {
        if entry.index != before.0 + 1 || entry.term < before.1 || entry.term > term {
            return Err(format!(
                "entry {} of term {} follows entry {} of term {}",
                entry.index, entry.term, before.0, before.1
            ));
        }
        let kind = EntryKind::try_from(entry.kind).map_err(|_| format!("no entry has kind {}", entry.kind))?;
        if entry.len_bytes as usize > payload.len() {
            return Err(format!("entry {} has {} bytes, {} are left", entry.index, entry.len_bytes, payload.len()));
        }
        before = (entry.index, entry.term);
        let data = payload.split_to(entry.len_bytes as usize);
        entries.push(to_library(&LogEntry { kind, term: entry.term, index: entry.index, data }));
    }
    Ok(entries)
}

/// The entries of a message, for whoever needs no library.
///
/// # Errors
/// They do not follow the entry `before` (index, term) one by one, or are later than `term`.
pub(crate) fn read_entries(
    wire: &[RaftEntry],
    before: (u64, u64),
    term: u64,
    mut payload: Bytes,
) -> Result<Vec<LogEntry>, String> {
    let read = entries(wire, before, term, &mut payload)?;
    match payload.is_empty() {
        true => Ok(read.iter().map(from_library).collect()),
        false => Err(format!("{} bytes too many", payload.len())),
    }
}

/// The library's form of a snapshot. Its data is our description of it; the content is a file.
pub(crate) fn snapshot(info: &SnapshotInfo) -> Result<Snapshot, String> {
    let membership = info.membership.as_ref().ok_or("a snapshot without members")?;
    let is_numbered = (1..END).contains(&info.index) && (1..END).contains(&info.term);
    if !is_numbered || info.hash.len() != 32 || membership.voters.is_empty() || !is_consistent(membership) {
        return Err(format!("the snapshot of entry {} is not well described", info.index));
    }
    let mut snapshot = Snapshot { data: info.encode_to_vec().into(), ..Snapshot::default() };
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (info.index, info.term);
    metadata.set_conf_state(conf_state(membership));
    Ok(snapshot)
}

pub(crate) fn from_library(entry: &Entry) -> LogEntry {
    let (kind, data) = match entry.get_entry_type() {
        EntryType::EntryNormal => (EntryKind::Command, entry.data.clone()),
        // The library's encoding of a change stays here; ours travels beside it.
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => (EntryKind::Membership, entry.context.clone()),
    };
    LogEntry { kind, term: entry.term, index: entry.index, data }
}

pub(crate) fn to_library(entry: &LogEntry) -> Entry {
    let mut library = Entry { term: entry.term, index: entry.index, ..Entry::default() };
    match entry.kind {
        EntryKind::Command => library.data = entry.data.clone(),
        EntryKind::Membership => {
            library.set_entry_type(EntryType::EntryConfChangeV2);
            library.context = entry.data.clone();
        }
    }
    library
}

/// The library's form of a change.
pub(crate) fn conf_change(change: &MembershipChange) -> ConfChangeV2 {
    let single = |change: &MemberChange| {
        let kind = match change.kind() {
            ChangeKind::AddLearner => ConfChangeType::AddLearnerNode,
            ChangeKind::AddVoter => ConfChangeType::AddNode,
            ChangeKind::Remove | ChangeKind::Expel => ConfChangeType::RemoveNode,
            ChangeKind::Unknown => return None,
        };
        let node_id = change.member.as_ref()?.id;
        Some(ConfChangeSingle { change_type: kind, node_id, ..ConfChangeSingle::default() })
    };
    let singles: Vec<ConfChangeSingle> = change.changes.iter().filter_map(single).collect();
    let mut library = ConfChangeV2::default();
    if singles.len() > 1 {
        library.set_transition(ConfChangeTransition::Explicit);
    }
    library.changes = singles.into();
    library
}

pub(crate) fn conf_state(membership: &Membership) -> ConfState {
    ConfState {
        voters: membership.voters.clone(),
        learners: membership.learners.clone(),
        voters_outgoing: membership.voters_outgoing.clone(),
        learners_next: membership.learners_next.clone(),
        ..ConfState::default()
    }
}

/// The membership that a change made: the library computed `state`, and `before` with the change says who the peers are.
pub(crate) fn membership(index: u64, state: &ConfState, before: &Membership, change: &MembershipChange) -> Membership {
    let mut members: std::collections::BTreeMap<u64, Member> =
        before.members.iter().map(|m| (m.id, m.clone())).collect();
    let mut expelled = before.expelled.clone();
    for change in &change.changes {
        match (change.kind(), &change.member) {
            (ChangeKind::Remove, _) | (_, None) => {}
            (ChangeKind::Expel, Some(member)) => expelled.push(member.id),
            (_, Some(member)) => _ = members.insert(member.id, member.clone()),
        }
    }
    expelled.drain(..expelled.len().saturating_sub(EXPELLED_MAX));
    let sorted = |ids: &[u64]| {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids
    };
    let mut after = Membership {
        index,
        voters: sorted(&state.voters),
        learners: sorted(&state.learners),
        voters_outgoing: sorted(&state.voters_outgoing),
        learners_next: sorted(&state.learners_next),
        members: Vec::new(),
        replaced: before.replaced.clone(),
        expelled,
    };
    after.members = members.into_values().filter(|member| contains(&after, member.id)).collect();
    after
}

/// Whether the lists of a membership fit together (Raft dissertation, section 4.3). The library panics on others.
pub(crate) fn is_consistent(membership: &Membership) -> bool {
    let Membership { index, voters, learners, voters_outgoing, learners_next, .. } = membership;
    let are_ids = |ids: &[u64]| ids.iter().all(|&id| id != 0) && ids.iter().collect::<BTreeSet<_>>().len() == ids.len();
    let are_apart = |some: &[u64], others: &[u64]| some.iter().all(|id| !others.contains(id));
    [voters, learners, voters_outgoing, learners_next].iter().all(|ids| are_ids(ids))
        && (!voters.is_empty() || learners.is_empty() && voters_outgoing.is_empty())
        && are_apart(learners, voters)
        && are_apart(learners, voters_outgoing)
        && are_apart(learners_next, voters)
        && learners_next.iter().all(|id| voters_outgoing.contains(id))
        && *index < END
}

/// Whether a peer belongs to the group in any way.
pub fn contains(membership: &Membership, id: u64) -> bool {
    let Membership { voters, learners, voters_outgoing, learners_next, .. } = membership;
    [voters, learners, voters_outgoing, learners_next].iter().any(|ids| ids.contains(&id))
}

/// A member by its id.
pub fn member(membership: &Membership, id: u64) -> Option<&Member> {
    membership.members.iter().find(|member| member.id == id)
}

/// The cluster id and the receiver of a frame are this peer's.
///
/// # Errors
/// `WrongCluster`, or `Invalid` if the frame is for another peer.
pub(crate) fn check_address(identity: LogIdentity, cluster_id: &[u8], from: u64, to: u64) -> Result<(), Error> {
    let LogIdentity { cluster_id: own, peer_id } = identity;
    if cluster_id != own {
        let (got, own) = (tessera_wire::hex(cluster_id), tessera_wire::hex(&own));
        return Err(Error::new(
            Code::WrongCluster,
            format!("a consensus frame of cluster {got}; this peer belongs to {own}"),
        ));
    }
    match from == 0 || from == peer_id || to != peer_id {
        true => Err(Error::new(
            Code::Invalid,
            format!("a frame from peer {from:x} to peer {to:x}; this one is {peer_id:x}"),
        )),
        false => Ok(()),
    }
}

/// Whether a peer may describe itself so. Nothing else of a description is believed before it is read.
#[must_use]
pub fn is_sound(held: &DescribePeerReply) -> bool {
    let (Some(member), Some(position), Some(membership)) = (&held.member, &held.position, &held.membership) else {
        return false;
    };
    let numbers = [position.term, position.last_term, position.last_index, held.commit, held.base_index];
    let more = [held.base_term, held.fence_term, membership.index];
    let is_short = membership.members.len() <= MEMBERS_MAX
        && membership.replaced.len() <= MEMBERS_MAX
        && membership.expelled.len() <= EXPELLED_MAX;
    let is_ordered = held.base_index <= position.last_index && held.base_term <= position.last_term;
    let has_snapshot = held.snapshot.as_ref().is_none_or(|info| snapshot(info).is_ok() && info.term < END);
    member.id != 0
        && numbers.iter().chain(&more).all(|&number| number < END)
        && position.last_term <= position.term
        && is_short
        && is_ordered
        && has_snapshot
}

/// Ids of peers as `tessera manager list` shows them.
pub(crate) fn hex_list(ids: &[u64]) -> String {
    let ids: Vec<String> = ids.iter().map(|id| format!("{id:016x}")).collect();
    ids.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P14: the library would take the place behind an entry that it lacks for one of term 0, and append there.
    #[test]
    fn entries_behind_one_of_no_term_are_refused() {
        let append = |(index, log_term)| {
            let entry = RaftEntry { kind: 0, term: 2, index: index + 1, len_bytes: 0 };
            let kind = MessageKind::Append as i32;
            let message =
                RaftMessage { kind, term: 2, log_term, index, entries: vec![entry], ..RaftMessage::default() };
            decode((2, 1), 2, vec![message], Bytes::new())
        };
        assert!(append((0, 0)).is_ok() && append((3, 1)).is_ok());
        assert!(append((3, 0)).is_err() && append((0, 1)).is_err());
    }

    /// P14: a snapshot or a log with such members would stop the process.
    #[test]
    fn members_that_contradict_each_other_are_refused() {
        let refused = |[voters, learners, voters_outgoing, learners_next]: [&[u64]; 4]| {
            let [voters, learners, voters_outgoing, learners_next] =
                [voters, learners, voters_outgoing, learners_next].map(<[u64]>::to_vec);
            let group =
                Membership { index: 3, voters, learners, voters_outgoing, learners_next, ..Membership::default() };
            let info = SnapshotInfo {
                index: 5,
                term: 2,
                hash: vec![1; 32],
                membership: Some(group),
                ..SnapshotInfo::default()
            };
            snapshot(&info).is_err()
        };
        for good in [[&[1, 2][..], &[], &[], &[]], [&[1], &[4], &[], &[]], [&[1, 2], &[4], &[2, 3], &[3]]] {
            assert!(!refused(good), "{good:?}");
        }
        let bad: [[&[u64]; 4]; 8] = [
            [&[], &[4], &[], &[]],
            [&[1, 1], &[], &[], &[]],
            [&[0], &[], &[], &[]],
            [&[1], &[1], &[], &[]],
            [&[1], &[2], &[2], &[]],
            [&[1], &[], &[], &[9]],
            [&[1], &[], &[1], &[1]],
            [&[1], &[4, 4], &[], &[]],
        ];
        assert!(bad.into_iter().all(refused), "{bad:?}");
    }
}
