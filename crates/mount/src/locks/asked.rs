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
    /// The request was sent: without an answer nobody knows what it did.
    pub is_sent: bool,
}

/// Where a request is decided about.
pub(super) enum Begun<'a, B: Backend> {
    /// Here: the file is delegated.
    Here,
    Asked(Asked<'a, B>),
    Interrupted,
}

impl<B: Backend> Drop for Asked<'_, B> {
    fn drop(&mut self) {
        {
            let mut state = self.locks.state.lock();
            if let Some(owned) = state.owners.get_mut(&self.key) {
                owned.answered(self.seq);
            }
            if state.delegations.is_asked(self.key.0, self.seq) {
                let is_granted = if self.is_sent { None } else { Some(false) };
                state.delegations.answered(self.key.0, self.seq, self.locks.backend.now_ns(), is_granted);
                self.locks.returns.notify_one();
            }
        }
        self.locks.sent.notify_waiters();
        self.locks.wake.notify_one();
    }
}

impl<B: Backend> Locks<B> {
    /// Begins to ask for `lock`, once the manager has received the owner's messages: one that it receives later would undo the answer.
    /// `is_first`: it was not sent before, so it may ask for the file's delegation.
    ///
    /// # Errors
    /// The manager has not received them.
    pub(super) async fn begin_asking(
        &self,
        lock: &FileLock,
        seq: u64,
        is_first: bool,
        interrupted: Interrupted<'_>,
    ) -> Result<Begun<'_, B>, Error> {
        let (key, until_ns) = ((lock.ino, lock.owner), self.deadline_ns());
        loop {
            let sent = self.sent.notified();
            {
                let mut state = self.state.lock();
                if state.delegations.is_held(lock.ino) {
                    return Ok(Begun::Here);
                }
                let is_busy = state.delegations.is_busy(lock.ino);
                if !is_busy && state.owners.entry(key).or_default().pending.is_empty() {
                    if is_first && state.may_ask_for_delegation(lock.ino) {
                        state.delegations.ask(lock.ino, seq);
                    }
                    state.owners.entry(key).or_default().asks(seq, lock);
                    return Ok(Begun::Asked(Asked { locks: self, key, seq, is_sent: false }));
                }
            }
            self.returns.notify_one();
            self.wake.notify_one();
            if race(sent, self.backend.sleep(self.look_every())).await.is_err() && interrupted() {
                return Ok(Begun::Interrupted);
            }
            if self.backend.now_ns() >= until_ns {
                let text = "the manager has not received what this program gave up before";
                return Err(Error::new(Code::Unavailable, text));
            }
        }
    }
}
