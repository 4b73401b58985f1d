//! The locks of one owner on one file, and the messages about them that the manager has not received.

use tessera_wire::meta::{FileLock, LockMode};

/// A message that the manager has not received.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Pending {
    /// This request waits no more.
    Withdraw(u64),
    /// The owner holds this lock.
    Set(FileLock),
}

#[derive(Default)]
pub(super) struct Owned {
    /// Ranges that do not overlap.
    pub locks: Vec<FileLock>,
    /// Messages that the manager has not received, in order.
    pub pending: Vec<Pending>,
    /// One thread is sending the first of them. Sent twice, the second could undo a lock granted in between.
    pub sending: bool,
    /// The number of the last unlock: a lock that an earlier request granted is no longer held.
    pub unlocked_seq: u64,
}

impl Owned {
    /// Sets a range to `lock`; [`LockMode::Unlock`] clears it.
    pub fn set(&mut self, lock: &FileLock) {
        let mut kept = Vec::with_capacity(self.locks.len() + 1);
        for old in self.locks.drain(..) {
            if old.end < lock.start || old.start > lock.end {
                kept.push(old);
                continue;
            }
            if old.start < lock.start {
                kept.push(FileLock { end: lock.start - 1, ..old });
            }
            if old.end > lock.end {
                kept.push(FileLock { start: lock.end + 1, ..old });
            }
        }
        if lock.mode() != LockMode::Unlock {
            kept.push(*lock);
        }
        self.locks = kept;
        let over = self.locks.iter().filter(|held| held.start <= lock.end && held.end >= lock.start).count();
        assert_eq!(over, usize::from(lock.mode() != LockMode::Unlock), "ranges of one owner overlap: {:?}", self.locks);
    }

    /// The answer to request `seq` was lost: queues messages that set its range to what the owner holds. Held locks come first, so that no other client gets them meanwhile.
    pub fn set_again(&mut self, asked: &FileLock, seq: u64) {
        let mut over: Vec<FileLock> =
            self.locks.iter().filter(|l| l.start <= asked.end && l.end >= asked.start).copied().collect();
        over.sort_by_key(|l| l.start);
        self.pending.push(Pending::Withdraw(seq));
        self.pending.extend(over.iter().copied().map(Pending::Set));
        let free = FileLock { mode: LockMode::Unlock as i32, ..*asked };
        let mut next = Some(asked.start);
        for lock in &over {
            let Some(start) = next else { break };
            if start < lock.start {
                self.pending.push(Pending::Set(FileLock { start, end: lock.start - 1, ..free }));
            }
            next = lock.end.checked_add(1);
        }
        if let Some(start) = next.filter(|start| *start <= asked.end) {
            self.pending.push(Pending::Set(FileLock { start, ..free }));
        }
    }

    /// Whether there are messages that no thread is sending.
    pub fn has_unsent(&self) -> bool {
        !self.pending.is_empty() && !self.sending
    }

    pub fn is_idle(&self) -> bool {
        self.locks.is_empty() && self.pending.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(start: u64, end: u64, mode: LockMode) -> FileLock {
        FileLock { start, end, mode: mode as i32, ..FileLock::default() }
    }

    #[test]
    fn what_is_held_is_what_was_set_last() {
        let mut owned = Owned::default();
        owned.set(&lock(0, 99, LockMode::Read));
        owned.set(&lock(20, 29, LockMode::Write));
        owned.set(&lock(25, 39, LockMode::Unlock));
        owned.locks.sort_by_key(|l| l.start);
        let (read, write) = (LockMode::Read, LockMode::Write);
        assert_eq!(owned.locks, [lock(0, 19, read), lock(20, 24, write), lock(40, 99, read)]);
        owned.set_again(&lock(10, 45, LockMode::Write), 7);
        let unlock = LockMode::Unlock;
        let set = [lock(0, 19, read), lock(20, 24, write), lock(40, 99, read), lock(25, 39, unlock)];
        let wanted: Vec<Pending> = std::iter::once(Pending::Withdraw(7)).chain(set.map(Pending::Set)).collect();
        assert_eq!(owned.pending, wanted);
        owned.set(&lock(0, u64::MAX, LockMode::Unlock));
        assert!(owned.locks.is_empty() && !owned.is_idle());
    }
}
