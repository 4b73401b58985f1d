//! Requests that are refused because the manager's disk lacks room.

use super::*;

impl ManagerCore {
    /// Tells how much room there is, and why requests are refused unless it is enough.
    pub(crate) fn set_room(&mut self, room: Room, error: Option<Error>) {
        assert_eq!(room == Room::Enough, error.is_none(), "a refusal has a reason");
        self.lack = error.map(|error| (room, error));
        if room == Room::Missing {
            self.refuse_waiting();
        }
    }

    /// Why this command is refused. A node asks again until there is room.
    pub(super) fn lacks_room_for(&self, origin: Origin, command: &Command) -> Option<Error> {
        let (room, error) = self.lack.as_ref()?;
        let code = if origin.role == Role::Client { Code::NoSpace } else { Code::Unavailable };
        (*room == Room::Missing || command.grows()).then(|| Error::new(code, error.message.clone()))
    }

    /// Refuses the queued commands of clients; what the manager proposed itself waits for room.
    fn refuse_waiting(&mut self) {
        for item in std::mem::take(&mut self.queue) {
            match item {
                QueueItem::Command(AdmittedCommand { queued, origin: Some(origin), changes }) => {
                    self.soft.leases.end_change(&changes);
                    let why = self.lacks_room_for(origin, &queued.command).unwrap_or_default();
                    self.reply(origin, Err(why));
                }
                item => self.queue.push_back(item),
            }
        }
    }
}
