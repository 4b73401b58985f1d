//! Frames from other peers, and answers to this one's: what they say of their senders, then the library's messages.

use super::{PEERS_MAX, Peer, PeerError, Room, memory};
use crate::message;
use bytes::Bytes;
use prost::Message as _;
use tessera_wire::consensus::{Consensus, ConsensusReply, PeerKind, SnapshotInfo};
use tessera_wire::rpc::Answer;
use tessera_wire::{Code, Error};

impl Peer {
    pub(super) fn frame(&mut self, frame: Consensus, payload: Bytes) -> Result<(ConsensusReply, Vec<Bytes>), Error> {
        let from = frame.from.unwrap_or_default();
        let id = from.id;
        message::check_address(self.log().identity(), &frame.cluster_id, id, frame.to)?;
        self.can_answer()?;
        let position = frame.position.unwrap_or_default();
        self.check_group(id, position.term)?;
        if !self.heard.contains_key(&id) && self.heard.len() >= PEERS_MAX {
            return Err(Error::new(
                Code::Unavailable,
                format!("{PEERS_MAX} peers have spoken to this one; restart it"),
            ));
        }
        let known = self.memory.known(id).filter(|known| frame.asks_known || !memory::keeps_vote(&position, known));
        self.heard.insert(id, from);
        self.heard_ns.insert(id, self.now_ns);
        if frame.asks_known {
            self.started_ns.insert(id, self.now_ns);
        }
        self.memory.note(id, position);
        // A peer that was never a member may join a group of any term.
        let own_term = if self.is_new() { self.node.raft.term.max(position.term) } else { self.node.raft.term };
        let messages = message::decode((id, self.id()), own_term, frame.messages, payload)?;
        let only_asks = messages.is_empty() && !frame.asks_known;
        self.answering = Some(id);
        self.memory.ask_too(id);
        if !self.memory.asks() {
            self.step_all(messages);
            self.process();
            if let Some(info) = frame.snapshot {
                self.consider(info, id, false);
            }
        } else if messages.iter().any(is_from_leader) {
            self.note_led();
        }
        self.answering = None;
        self.can_answer()?;
        // Messages in the answer to a frame that only asks whether this peer answers would overtake those on their way.
        let (messages, payload) = if only_asks { Default::default() } else { self.take_messages(id) };
        self.flush();
        // One that cannot even begin is no voter: nobody waits for it, and another one may have its place.
        if self.sources.lacks_room() && !self.membership().voters.contains(&self.id()) {
            return Err(full());
        }
        let reply = ConsensusReply {
            from: self.id(),
            position: Some(self.position()),
            messages,
            known,
            unapplied: self.unapplied_here,
            unreached_ms: self.unreached_ms(id),
        };
        Ok((reply, payload))
    }

    pub(super) fn can_answer(&self) -> Result<(), Error> {
        match &self.stopped {
            Some(error) => Err(Error::new(Code::Fenced, error.to_string())),
            None if self.is_full => Err(full()),
            None => Ok(()),
        }
    }

    pub(super) fn frame_answered(&mut self, to: u64, address: String, answer: Answer) {
        if let Some(line) = self.lines.get_mut(&to) {
            line.end_frame(answer.token);
        }
        if self.is_full {
            return;
        }
        match answer.decode::<Consensus>() {
            Ok((reply, payload)) if reply.from == to => {
                self.heard_ns.insert(to, self.now_ns);
                self.reaching.answered(to, reply.unreached_ms);
                self.full_ns.remove(&to);
                if message::contains(self.membership(), to) {
                    self.answered_at.insert(address, to);
                    self.unapplied_there.insert(to, reply.unapplied);
                }
                self.memory.note(to, reply.position.unwrap_or_default());
                let asked = self.memory.asks();
                self.learn_known(to, reply.known);
                if asked || self.stopped.is_some() {
                    return;
                }
                match message::decode((to, self.id()), self.node.raft.term, reply.messages, payload) {
                    Ok(messages) => self.step_all(messages),
                    Err(error) => tracing::warn!(%error, "an answer is ignored"),
                }
            }
            Ok(_) => tracing::warn!(peer = format!("{to:016x}"), "another peer answers at its address"),
            Err(error) => {
                if error.code() == Code::NoSpace {
                    self.note_full(to);
                }
                self.node.report_unreachable(to);
            }
        }
        self.process();
    }

    /// Another peer says that its disk is full.
    fn note_full(&mut self, id: u64) {
        let since = if self.says_full(id) { self.full_ns[&id].0 } else { self.now_ns };
        self.full_ns.insert(id, (since, self.now_ns));
    }

    /// Passes the messages of a frame to the library. At an answer to a heartbeat it sends what it believes that the peer lacks, so it
    /// hears before what the peer has taken by then.
    fn step_all(&mut self, mut messages: Vec<raft::eraftpb::Message>) {
        use raft::eraftpb::MessageType::MsgHeartbeatResponse;
        messages.sort_by_key(|message| message.get_msg_type() == MsgHeartbeatResponse);
        messages.into_iter().for_each(|message| self.step(message));
    }

    /// Passes a message to the library, unless it shows that this peer has forgotten something, or cannot be used yet.
    fn step(&mut self, message: raft::eraftpb::Message) {
        use raft::eraftpb::MessageType::*;
        if self.stopped.is_some() || self.fence.is_some() {
            return;
        }
        let last = self.node.raft.raft_log.last_index();
        match message.get_msg_type() {
            MsgHeartbeat if message.term >= self.node.raft.term && message.commit > last => {
                // The leader commits what this peer acknowledged, and this peer does not hold it.
                let (known_term, known_index) = (message.term, message.commit);
                return self.forgotten(message.from, known_term, known_index);
            }
            MsgAppendResponse if !message.reject && message.index > last => return,
            // Nobody votes before it holds entries: a voter that holds none has lost them, and perhaps a vote.
            MsgRequestVote | MsgRequestPreVote if self.is_new() => return,
            MsgTimeoutNow if !self.may_campaign() || self.leaves_lead_to(message.from) => return,
            MsgSnapshot => {
                let info = message.snapshot.as_ref().and_then(|s| SnapshotInfo::decode(&s.data[..]).ok());
                let Some(info) = info else { return };
                if !self.files().holds(&info) {
                    return self.consider(info, message.from, true);
                }
            }
            _ => {}
        }
        // The library refuses what does not concern it, such as answers of peers that have left.
        let _ = self.node.step(message);
    }

    /// Whether a manager that lacks room refuses to take leadership from another manager, which may have more. From a voter it takes
    /// it: it can answer reads.
    fn leaves_lead_to(&self, from: u64) -> bool {
        let is_manager = self.find(from).is_some_and(|member| member.kind() == PeerKind::Manager);
        self.room != Room::Enough && is_manager
    }

    pub(super) fn forgotten(&mut self, by: u64, known_term: u64, known_index: u64) {
        let own = self.position();
        let (own_term, own_index) = (own.term, own.last_index);
        self.stop(PeerError::Forgotten { by, known_term, known_index, own_term, own_index });
    }
}

fn is_from_leader(message: &raft::eraftpb::Message) -> bool {
    use raft::eraftpb::MessageType::*;
    matches!(message.get_msg_type(), MsgAppend | MsgHeartbeat | MsgSnapshot)
}

fn full() -> Error {
    Error::new(Code::NoSpace, "the disk of this peer's log is full: make room in its directory")
}
