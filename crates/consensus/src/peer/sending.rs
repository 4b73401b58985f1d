//! Frames: messages of the library wait for their receiver, and leave as many at a time as a connection takes.

use super::{Output, Peer, Sent};
use crate::message;
use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};
use tessera_wire::consensus::{Consensus, RaftMessage};
use tessera_wire::rpc::{Call, Peer as Address};

/// Frames on their way to one peer at a time.
const FRAMES_IN_FLIGHT: usize = 4;
/// Messages that wait for a peer; a peer that has more to come is unreachable.
const MESSAGES_WAITING: usize = 1024;
/// Messages with entries that a peer has not acknowledged.
pub(super) const MESSAGES_IN_FLIGHT: usize = 16;
/// A frame has one message, and more as long as their entries have no more bytes than this, …
const FRAME_BYTES: usize = 8 << 20;
/// … and are no more than this. A connection refuses frames above its own limits.
const FRAME_ENTRIES: usize = 16_384;
const _: () = assert!(FRAME_BYTES <= tessera_wire::frame::MAX_PAYLOAD_BYTES as usize / 2);

/// Frames to one peer.
#[derive(Default)]
pub(super) struct Line {
    pub(super) waiting: Vec<Message>,
    pub(super) in_flight: usize,
}

impl Line {
    fn may_send(&self) -> bool {
        !self.waiting.is_empty() && self.in_flight < FRAMES_IN_FLIGHT
    }
}

impl Peer {
    /// Queues the library's messages for their receivers.
    pub(super) fn post(&mut self, messages: Vec<Message>) {
        for message in messages {
            let to = message.to;
            if message.get_msg_type() == MessageType::MsgSnapshot {
                // Whoever lacks the file copies it first; meanwhile the library asks again at every heartbeat.
                self.unsent.push((to, true));
            }
            let line = self.lines.entry(to).or_default();
            if line.waiting.len() >= MESSAGES_WAITING {
                line.waiting.clear();
                self.unsent.push((to, false));
            }
            line.waiting.push(message);
        }
    }

    /// Messages that wait for a peer, as many as one frame takes.
    pub(super) fn take_messages(&mut self, to: u64) -> (Vec<RaftMessage>, Vec<Bytes>) {
        let Some(line) = self.lines.get_mut(&to) else { return (Vec::new(), Vec::new()) };
        let (mut bytes, mut entries) = (0, 0);
        let beyond = line.waiting.iter().position(|message| {
            bytes += message.entries.iter().map(|entry| entry.data.len()).sum::<usize>();
            entries += message.entries.len();
            bytes > FRAME_BYTES || entries > FRAME_ENTRIES
        });
        let count = beyond.map_or(line.waiting.len(), |at| at.max(1));
        message::encode(line.waiting.drain(..count).collect())
    }

    /// Sends what waits, as far as frames may be in flight.
    pub(super) fn flush(&mut self) {
        let answering = self.answering;
        while let Some((&to, _)) = self.lines.iter().find(|(id, line)| line.may_send() && answering != Some(**id)) {
            let (messages, payload) = self.take_messages(to);
            self.send_frame(to, messages, payload);
        }
    }

    pub(super) fn send_frame(&mut self, to: u64, messages: Vec<RaftMessage>, payload: Vec<Bytes>) {
        let Some(address) = self.find(to).map(|member| member.address.clone()) else { return };
        let snapshot = self.files().held().filter(|_| self.announces).cloned();
        let frame = Consensus {
            cluster_id: self.log().identity().cluster_id.to_vec(),
            from: Some(self.config.member.clone()),
            to,
            position: Some(self.position()),
            messages,
            snapshot,
            asks_known: self.memory.asks(),
        };
        let token = self.draw_token(Sent::Frame(to, address.clone()));
        let call = Call::new(Address::Address(address), token, &frame, payload, self.config.call_timeout_ms);
        self.lines.entry(to).or_default().in_flight += 1;
        self.outputs.push_back(Output::Call(call));
    }
}
