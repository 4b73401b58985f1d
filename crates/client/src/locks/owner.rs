//! The locks of one owner on one file, and the messages about them that the manager has not had yet.

use tessera_wire::meta::{FileLock, LockMode};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Unsaid {
    /// This request waits no more.
    Cancel(u64),
    /// The owner holds this lock.
    Set(FileLock),
}

#[derive(Default)]
pub(super) struct Owned {
    /// Ranges that do not overlap.
    pub locks: Vec<FileLock>,
    /// Messages that the manager has not had yet, in order.
    pub unsaid: Vec<Unsaid>,
    /// One thread is sending the first of them. Sent twice, the second could undo a lock granted in between.
    pub saying: bool,
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
    }

    /// The client does not know whether request `seq` was granted: queues messages that set its range to what the owner
    /// holds. Held locks come first, so that no other client gets them meanwhile.
    pub fn doubt(&mut self, asked: &FileLock, seq: u64) {
        let mut over: Vec<FileLock> =
            self.locks.iter().filter(|l| l.start <= asked.end && l.end >= asked.start).cloned().collect();
        over.sort_by_key(|l| l.start);
        self.unsaid.push(Unsaid::Cancel(seq));
        self.unsaid.extend(over.iter().cloned().map(Unsaid::Set));
        let free = FileLock { mode: LockMode::Unlock as i32, ..*asked };
        let mut next = Some(asked.start);
        for lock in &over {
            let Some(start) = next else { break };
            if start < lock.start {
                self.unsaid.push(Unsaid::Set(FileLock { start, end: lock.start - 1, ..free }));
            }
            next = lock.end.checked_add(1);
        }
        if let Some(start) = next.filter(|start| *start <= asked.end) {
            self.unsaid.push(Unsaid::Set(FileLock { start, ..free }));
        }
    }

    /// Whether there are messages that no thread is sending.
    pub fn has_news(&self) -> bool {
        !self.unsaid.is_empty() && !self.saying
    }

    pub fn is_idle(&self) -> bool {
        self.locks.is_empty() && self.unsaid.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::whole;
    use super::*;

    fn lock(start: u64, end: u64, mode: LockMode) -> FileLock {
        FileLock { start, end, mode: mode as i32, ..whole() }
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
        owned.doubt(&lock(10, 45, LockMode::Write), 7);
        let unlock = LockMode::Unlock;
        let set = [lock(0, 19, read), lock(20, 24, write), lock(40, 99, read), lock(25, 39, unlock)];
        let wanted: Vec<Unsaid> = std::iter::once(Unsaid::Cancel(7)).chain(set.map(Unsaid::Set)).collect();
        assert_eq!(owned.unsaid, wanted);
        owned.set(&lock(0, u64::MAX, LockMode::Unlock));
        assert!(owned.locks.is_empty() && !owned.is_idle());
    }
}
