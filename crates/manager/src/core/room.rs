//! Requests that are refused because the manager's disk lacks room.

use super::*;
use crate::files::{packs, sessions};

/// Whether a refused request comes again until there is room: those of nodes, and of a client with locks, which would take
/// [`Code::NoSpace`] for their loss.
pub(crate) fn asks_again(role: Role, kind: Kind) -> bool {
    role != Role::Client || kind == Kind::HoldLocks
}

impl ManagerCore {
    /// Tells how much room there is, and why requests are refused unless it is enough.
    pub(crate) fn set_room(&mut self, room: Room, error: Option<Error>) {
        assert_eq!(room == Room::Enough, error.is_none(), "a refusal has a reason");
        self.soft.no_room = error.as_ref().map(|error| error.message.clone()).unwrap_or_default();
        self.lack = error.map(|error| (room, error));
        if room == Room::Missing {
            self.refuse_waiting();
        }
    }

    /// Whether a command asks for the chunk of a pack whose session is open: the pack takes what lies elsewhere.
    pub(super) fn is_of_pack(&self, command: &Command) -> bool {
        let Command::AllocateChunks(request) = command else { return false };
        sessions::writer(&self.db, request.session_id).is_ok_and(|session| packs::is_of_pack(&session))
    }

    /// Why a request is refused, whose command makes the metadata grow or not.
    pub(super) fn lacks_room(&self, origin: Origin, grows: bool) -> Option<Error> {
        let (_, error) = self.lack.as_ref().filter(|(room, _)| grows || *room == Room::Missing)?;
        let code = if asks_again(origin.role, origin.kind) { Code::Unavailable } else { Code::NoSpace };
        Some(Error::new(code, error.message.clone()))
    }

    /// Replies to a report once what it has the manager propose is committed; while nothing can be, at once that it is not.
    pub(super) fn reply_once_logged(&mut self, origin: Origin, body: Bytes) {
        match self.lacks_room(origin, false) {
            Some(error) => self.reply(origin, Err(error)),
            None => self.queue.push_back(QueueItem::Composed { origin, body }),
        }
    }

    /// Whether the manager has proposed the same already, and that waits for room. Reports are repeated as long as they are refused.
    pub(super) fn waits_for_room(&self, proposal: &Proposal) -> bool {
        let is_same = |item: &QueueItem| {
            matches!(item, QueueItem::Command(AdmittedCommand { queued, origin: None, .. })
                if (queued.kind, &queued.body) == (proposal.kind, &proposal.body))
        };
        matches!(self.lack, Some((Room::Missing, _))) && self.queue.iter().any(is_same)
    }

    /// Refuses the queued commands of clients, and reports; what the manager proposed itself waits for room.
    fn refuse_waiting(&mut self) {
        for item in std::mem::take(&mut self.queue) {
            let origin = match item {
                QueueItem::Command(AdmittedCommand { origin: Some(origin), changes, .. }) => {
                    self.soft.leases.end_change(&changes);
                    origin
                }
                QueueItem::Composed { origin, .. } => origin,
                item => {
                    self.queue.push_back(item);
                    continue;
                }
            };
            let why = self.lacks_room(origin, false).unwrap_or_default();
            self.reply(origin, Err(why));
        }
    }
}
