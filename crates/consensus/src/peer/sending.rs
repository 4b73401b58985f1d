//! Frames: messages of the library wait for their receiver, and leave as many at a time as a connection takes.

use super::{Output, Peer, Sent};
use crate::message;
use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};
use std::collections::BTreeMap;
use tessera_wire::consensus::{Consensus, MessageKind, RaftMessage};
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
/// Bytes of entries that wait for a peer. The library repeats what is dropped.
const WAITING_BYTES: usize = 128 << 20;
const _: () = assert!(WAITING_BYTES >= tessera_wire::frame::MAX_PAYLOAD_BYTES as usize);

/// Frames to one peer.
#[derive(Default)]
pub(super) struct Line {
    waiting: Vec<Message>,
    /// Bytes of their entries.
    waiting_bytes: usize,
    /// Frames without an answer, by their tokens, and the entries in them.
    in_flight: BTreeMap<u64, Vec<Append>>,
}

/// The entries of a message: those after entry `index`, up to `last`.
struct Append {
    term: u64,
    index: u64,
    last: u64,
}

impl Line {
    /// Whether no frame is without an answer.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// The frame of this token was answered, or is lost.
    pub(super) fn end_frame(&mut self, token: u64) {
        self.in_flight.remove(&token);
    }

    fn may_send(&self) -> bool {
        !self.waiting.is_empty() && self.in_flight.len() < FRAMES_IN_FLIGHT
    }

    /// Queues a message, in the place of waiting ones that it supersedes. Returns whether messages were dropped for want of room.
    ///
    /// A peer that was stopped answers at once all heartbeats that wait for it. To each of these answers the library sends the first
    /// entries that the peer lacks, as if nothing were on its way.
    #[must_use]
    fn push(&mut self, mut message: Message) -> bool {
        self.leave_out_sent(&mut message);
        let place = self.waiting.iter().position(|older| supersedes(&message, older));
        for older in self.waiting.extract_if(.., |older| supersedes(&message, older)) {
            self.waiting_bytes -= entry_bytes(&older);
        }
        let is_full = self.waiting.len() >= MESSAGES_WAITING;
        if is_full {
            (self.waiting, self.waiting_bytes) = (Vec::new(), 0);
        }
        self.waiting_bytes += entry_bytes(&message);
        let end = self.waiting.len();
        self.waiting.insert(place.map_or(end, |place| place.min(end)), message);
        self.drop_beyond() || is_full
    }

    /// Leaves out entries that are on their way already, in frames without an answer. If those are lost, the peer refuses the message,
    /// and the library repeats them.
    fn leave_out_sent(&self, message: &mut Message) {
        if message.get_msg_type() != MessageType::MsgAppend {
            return;
        }
        let sent = self.in_flight.values().flatten();
        let sent = sent.filter(|sent| sent.term == message.term && sent.index <= message.index);
        let last = sent.map(|sent| sent.last).max().unwrap_or(0);
        let count = message.entries.iter().take_while(|entry| entry.index <= last).count();
        if count > 0 {
            let mut entries = message.take_entries().into_vec();
            (message.index, message.log_term) = (entries[count - 1].index, entries[count - 1].term);
            message.entries = entries.split_off(count).into();
        }
    }

    /// Drops the last messages with entries if too many bytes wait. What needs no room stays.
    fn drop_beyond(&mut self) -> bool {
        let is_too_much = self.waiting_bytes > WAITING_BYTES;
        while self.waiting_bytes > WAITING_BYTES
            && let Some(last) = self.waiting.iter().rposition(|message| entry_bytes(message) > 0)
        {
            self.waiting_bytes -= entry_bytes(&self.waiting.remove(last));
        }
        is_too_much
    }

    /// Takes as many messages as one frame has.
    fn take(&mut self) -> Vec<Message> {
        let (mut bytes, mut entries) = (0, 0);
        let beyond = self.waiting.iter().position(|message| {
            bytes += entry_bytes(message);
            entries += message.entries.len();
            bytes > FRAME_BYTES || entries > FRAME_ENTRIES
        });
        let count = beyond.map_or(self.waiting.len(), |at| at.max(1));
        let taken: Vec<Message> = self.waiting.drain(..count).collect();
        self.waiting_bytes -= taken.iter().map(entry_bytes).sum::<usize>();
        taken
    }
}

fn entry_bytes(message: &Message) -> usize {
    message.entries.iter().map(|entry| entry.data.len()).sum()
}

/// Whether a message says all that an older one to the same peer says.
fn supersedes(newer: &Message, older: &Message) -> bool {
    let kind = newer.get_msg_type();
    if kind != older.get_msg_type() || newer.term < older.term {
        return false;
    }
    match kind {
        // A leader of one term changes no entry. The log of a later leader holds instead of it.
        MessageType::MsgAppend => newer.term > older.term || has_entries_of(newer, older),
        // The answer to a read confirms those before it, too.
        MessageType::MsgHeartbeat => true,
        _ => false,
    }
}

fn has_entries_of(newer: &Message, older: &Message) -> bool {
    let last = |message: &Message| message.index + message.entries.len() as u64;
    newer.index <= older.index && last(older) <= last(newer)
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
            if self.lines.entry(to).or_default().push(message) {
                self.unsent.push((to, false));
            }
        }
    }

    /// Messages that wait for a peer, as many as one frame takes.
    pub(super) fn take_messages(&mut self, to: u64) -> (Vec<RaftMessage>, Vec<Bytes>) {
        message::encode(self.lines.get_mut(&to).map(Line::take).unwrap_or_default())
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
        let appends = messages.iter().filter_map(append).collect();
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
        self.reaching.asks(to, self.now_ns);
        let call = Call::new(Address::Address(address), token, &frame, payload, self.config.call_timeout_ms);
        self.lines.entry(to).or_default().in_flight.insert(token, appends);
        self.outputs.push_back(Output::Call(call));
    }
}

/// The entries of a message, if it has any.
fn append(message: &RaftMessage) -> Option<Append> {
    let last = message.entries.last().filter(|_| message.kind == MessageKind::Append as i32)?.index;
    Some(Append { term: message.term, index: message.index, last })
}

#[cfg(test)]
mod tests {
    use super::*;
    use MessageType::*;
    use raft::eraftpb::Entry;

    const MIB: usize = 1 << 20;

    fn message(kind: MessageType, term: u64) -> Message {
        Message { msg_type: kind, term, ..Message::default() }
    }

    /// An append of term 2 after entry `index`, with so many entries.
    fn append(index: u64, count: u64, entry_bytes: usize) -> Message {
        let data = Bytes::from(vec![0; entry_bytes]);
        let entry = |index| Entry { index, term: 2, data: data.clone(), ..Entry::default() };
        let entries: Vec<Entry> = (index + 1..=index + count).map(entry).collect();
        Message { index, log_term: 2, entries: entries.into(), ..message(MsgAppend, 2) }
    }

    fn waiting(line: &Line) -> Vec<(MessageType, u64, usize)> {
        line.waiting.iter().map(|m| (m.get_msg_type(), m.index, m.entries.len())).collect()
    }

    /// P12.
    #[test]
    fn p12_no_more_bytes_wait_than_a_limit_allows() {
        let mut line = Line::default();
        let kinds = [MsgHeartbeat, MsgSnapshot, MsgRequestVote, MsgRequestPreVote, MsgTimeoutNow, MsgAppendResponse];
        let dropped = (0..80).filter(|at| line.push(append(at * 4, 4, MIB))).count();
        assert_eq!((dropped, line.waiting.len()), (48, 32));
        assert!(kinds.into_iter().all(|kind| !line.push(message(kind, 2))));
        // The first entries again, and one more: the last ones make room.
        assert!(line.push(append(0, 5, MIB)));
        let first: Vec<_> = waiting(&line).into_iter().take(2).collect();
        assert_eq!(first, [(MsgAppend, 0, 5), (MsgAppend, 4, 4)]);
        let others = waiting(&line).into_iter().filter(|(kind, ..)| *kind != MsgAppend).map(|(kind, ..)| kind);
        assert_eq!(others.collect::<Vec<_>>(), kinds);
        let bytes: usize = line.waiting.iter().map(entry_bytes).sum();
        assert!(bytes == line.waiting_bytes && bytes <= WAITING_BYTES, "{bytes} {}", line.waiting_bytes);
        while !line.waiting.is_empty() {
            line.take();
        }
        assert_eq!(line.waiting_bytes, 0);
    }

    /// P12: a message takes the place of those that it supersedes, so nothing overtakes another.
    #[test]
    fn p12_a_repeated_append_waits_once() {
        let mut line = Line::default();
        for message in [append(5, 2, 1), message(MsgRequestVote, 2), append(7, 1, 1), append(8, 0, 1), append(9, 3, 1)]
        {
            assert!(!line.push(message));
        }
        assert!(!line.push(append(5, 4, 1)));
        assert_eq!(waiting(&line), [(MsgAppend, 5, 4), (MsgRequestVote, 0, 0), (MsgAppend, 9, 3)]);
        // Shorter ones, and those that go further back, supersede only what they hold.
        for message in [append(5, 3, 1), append(4, 1, 1)] {
            assert!(!line.push(message));
        }
        assert_eq!(waiting(&line)[2..], [(MsgAppend, 9, 3), (MsgAppend, 5, 3), (MsgAppend, 4, 1)]);
        let later = Message { term: 3, ..append(4, 1, 1) };
        assert!(!line.push(later));
        assert_eq!(waiting(&line), [(MsgAppend, 4, 1), (MsgRequestVote, 0, 0)]);
    }

    /// P12: entries in a frame without an answer are not sent again; what a message says besides them is.
    #[test]
    fn p12_entries_on_their_way_are_left_out() {
        let mut line = Line::default();
        line.in_flight.insert(1, vec![Append { term: 2, index: 5, last: 8 }]);
        let sent = [append(5, 3, 1), append(5, 6, 1), append(4, 4, 1), Message { term: 3, ..append(5, 3, 1) }];
        let left = sent.map(|mut message| {
            line.leave_out_sent(&mut message);
            (message.index, message.entries.len())
        });
        assert_eq!(left, [(8, 0), (8, 3), (4, 4), (5, 3)]);
        line.end_frame(1);
        let mut lost = append(5, 3, 1);
        line.leave_out_sent(&mut lost);
        assert_eq!((lost.index, lost.entries.len()), (5, 3));
    }
}
