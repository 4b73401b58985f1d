//! Messages about what an owner gave up, or holds: each is sent until the manager has received it, in order.

use super::owner::Pending;
use super::{Key, Locks};
use crate::backend::Backend;
use tessera_failpoint as failpoint;
use tessera_wire::meta::{LockMode, LockOutcome, SetLock};
use tessera_wire::{Code, Error};

/// An owner's first message is being sent, until this is dropped. Another task may send it again then, unless it was received.
struct Sending<'a, B: Backend> {
    locks: &'a Locks<B>,
    key: Key,
    /// Losses before it.
    losses: u64,
    is_received: bool,
}

impl<B: Backend> Drop for Sending<'_, B> {
    fn drop(&mut self) {
        let mut state = self.locks.state.lock();
        if state.losses == self.losses {
            let owned = state.owners.get_mut(&self.key).expect("an owner stays while its message is sent");
            assert!(owned.sending, "two tasks send an owner's messages");
            owned.sending = false;
            if self.is_received {
                owned.message_sent();
            }
        }
        drop(state);
        self.locks.sent.notify_waiters();
    }
}

impl<B: Backend> Locks<B> {
    /// Sends the owner's pending messages to the manager.
    pub(super) async fn send_pending(&self, key: Key) -> Result<(), Error> {
        while let Some((next, losses)) = self.next_pending(key).await {
            let mut sending = Sending { locks: self, key, losses, is_received: false };
            let sent = self.retry(async || self.send(next, losses).await).await;
            sending.is_received = sent.is_ok();
            drop(sending);
            sent?;
        }
        Ok(())
    }

    /// The owner's next pending message, for the caller to send, and the number of losses by then. Waits while another
    /// task sends one of them, the message depends on an answer, or the file's delegation is asked for or returned.
    async fn next_pending(&self, key: Key) -> Option<(Pending, u64)> {
        loop {
            let sent = self.sent.notified();
            {
                let mut state = self.state.lock();
                let losses = state.losses;
                let is_busy = state.delegations.is_busy(key.0);
                let owned = state.owners.get_mut(&key)?;
                let next = if owned.sending || is_busy { None } else { owned.next_message() };
                owned.sending |= next.is_some();
                if owned.is_idle() {
                    state.owners.remove(&key);
                    return None;
                }
                if next.is_some() || owned.pending.is_empty() {
                    return next.map(|next| (next, losses));
                }
            }
            sent.await;
        }
    }

    /// Sends a message of an owner, unless locks were lost since.
    async fn send(&self, message: Pending, losses: u64) -> Result<(), Error> {
        let table = self.table().await?;
        let lock = match message {
            Pending::Withdraw(seq) => return self.sign_of_life(table, seq).await,
            Pending::Set(lock) => Some(lock),
            Pending::Again(lock) => panic!("{lock:?} is sent as what is held of it"),
        };
        let shared = self.gate.read().await;
        if self.state.lock().losses != losses && !failpoint::is_active("mount.stale_lock_message_sent") {
            return Ok(());
        }
        let request = SetLock { seq: self.state.lock().next_seq(), table, lock, ..SetLock::default() };
        match self.ask_once(&request).await {
            Err(error) if error.code() == Code::SessionExpired => {
                drop(shared);
                self.assert_held(table).await?;
                Err(Error::new(Code::Unavailable, error.message))
            }
            Ok(reply) if matches!(reply.outcome(), LockOutcome::Overtaken | LockOutcome::Grace) => {
                Err(Error::new(Code::Unavailable, "the manager is not ready for it"))
            }
            Ok(reply) if reply.outcome() == LockOutcome::Granted => {
                let mut state = self.state.lock();
                if let (Some(lock), true) = (lock, state.losses == losses) {
                    state.granted(lock.ino, reply.fence);
                    if let Some(owned) = state.owners.get_mut(&(lock.ino, lock.owner)) {
                        owned.changed(&lock, reply.change);
                    }
                }
                Ok(())
            }
            Ok(_) => {
                let mut state = self.state.lock();
                let held = lock.filter(|lock| lock.mode() != LockMode::Unlock && state.losses == losses);
                if let Some(lock) = held {
                    state.lose(&lock);
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
