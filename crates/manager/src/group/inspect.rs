//! What checkers read from a manager: tests and the simulator.

use super::{Manager, State};
use prost::Message;
use tessera_wire::Request;

impl Manager {
    /// The last entry that the database holds. `None`: a batch is open, or there is no database.
    #[must_use]
    pub fn applied(&self) -> Option<u64> {
        self.db().filter(|db| db.conn().is_autocommit()).and_then(|db| db.meta().ok()).map(|meta| meta.log_seq)
    }

    /// The database as bytes. `None`: a batch is open, or there is no database.
    pub fn image(&mut self) -> Option<Vec<u8>> {
        self.applied()?;
        match &mut self.state {
            State::Standby { db, .. } => db.image().ok(),
            State::Leading(core) => core.db_mut().image().ok(),
            State::Nothing => None,
        }
    }

    /// Answers a read or a report from the state as the leader sees it now. The group need not have confirmed it.
    pub fn inspect<R: Request>(&mut self, request: &R) -> Option<R::Reply> {
        let State::Leading(core) = &mut self.state else { return None };
        core.inspect(R::KIND, &request.encode_to_vec().into()).ok().and_then(|reply| R::Reply::decode(reply).ok())
    }
}
