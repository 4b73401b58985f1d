//! Lock requests that are on their way: while one is, nobody knows what its owner holds of its range.

use super::{Interrupted, Key, Locks};
use crate::backend::Backend;
use crate::race::race;
use tessera_wire::meta::FileLock;
use tessera_wire::{Code, Error};

/// A request that is on its way, until it is dropped.
pub(super) struct Asked<'a, B: Backend> {
    locks: &'a Locks<B>,
    key: Key,
    seq: u64,
}

impl<B: Backend> Drop for Asked<'_, B> {
    fn drop(&mut self) {
        if let Some(owned) = self.locks.state.lock().owners.get_mut(&self.key) {
            owned.answered(self.seq);
        }
        self.locks.sent.notify_waiters();
        self.locks.wake.notify_one();
    }
}

impl<B: Backend> Locks<B> {
    /// Begins to ask for `lock`, once the manager has received the owner's messages: one that it receives later would undo the answer.
    /// `None`: `interrupted` returned true.
    ///
    /// # Errors
    /// The manager has not received them.
    pub(super) async fn begin_asking(
        &self,
        lock: &FileLock,
        seq: u64,
        interrupted: Interrupted<'_>,
    ) -> Result<Option<Asked<'_, B>>, Error> {
        let (key, until_ns) = ((lock.ino, lock.owner), self.deadline_ns());
        loop {
            let sent = self.sent.notified();
            {
                let mut state = self.state.lock();
                let owned = state.owners.entry(key).or_default();
                if owned.pending.is_empty() {
                    owned.asks(seq, lock);
                    return Ok(Some(Asked { locks: self, key, seq }));
                }
            }
            self.wake.notify_one();
            if race(sent, self.backend.sleep(self.look_every())).await.is_err() && interrupted() {
                return Ok(None);
            }
            if self.backend.now_ns() >= until_ns {
                let text = "the manager has not received what this program gave up before";
                return Err(Error::new(Code::Unavailable, text));
            }
        }
    }
}
