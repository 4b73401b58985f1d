//! The locks of one owner on one file, and the messages about them that the manager has not received.

use rangemap::{RangeInclusiveMap, RangeInclusiveSet};
use std::ops::RangeInclusive;
use tessera_wire::locks::Held;
use tessera_wire::meta::{FileLock, LockFamily, LockMode};

/// A message that the manager has not received.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Pending {
    /// This request waits no more.
    Withdraw(u64),
    /// The owner holds this lock.
    Set(FileLock),
    /// The owner holds of this range what it does once the requests for it that are under way are answered.
    Again(FileLock),
}

/// What an owner held of a range before it got a lock there.
#[derive(Default)]
pub(crate) struct HeldBefore(RangeInclusiveMap<u64, Held>);

impl HeldBefore {
    /// Whether the owner excluded all others from `range`.
    pub fn excluded_others(&self, range: &FileLock) -> bool {
        let exclusive = self.0.iter().filter(|(_, held)| held.mode == LockMode::Write);
        let exclusive: RangeInclusiveSet<u64> = exclusive.map(|(bytes, _)| bytes.clone()).collect();
        exclusive.gaps(&(range.start..=range.end)).next().is_none()
    }
}

#[derive(Default)]
pub(super) struct Owned {
    /// Adjacent ranges of the same lock are one, as in the manager's table.
    ranges: RangeInclusiveMap<u64, Held>,
    /// Messages that the manager has not received, in order.
    pub pending: Vec<Pending>,
    /// One task is sending the first of them. Sent twice, the second could undo a lock granted in between.
    pub sending: bool,
    /// What requests ask for that have begun. Threads of one process are one owner.
    begun: Vec<FileLock>,
    /// Those that are on their way to the manager, or their answers: their numbers, and what they ask for.
    asked: Vec<(u64, FileLock)>,
    /// The manager's number of the last change of each byte, as far as answers have told while several requests are under
    /// way: the answers may be read in another order than the manager's.
    changed: RangeInclusiveMap<u64, u64>,
}

impl Owned {
    /// A request for `lock` begins.
    pub fn begin(&mut self, lock: &FileLock) {
        self.begun.push(*lock);
    }

    /// A request for `lock` has ended, and its answer is known.
    pub fn end(&mut self, lock: &FileLock) {
        // After a loss the owner begins anew, and requests from before end.
        if let Some(at) = self.begun.iter().position(|begun| begun == lock) {
            self.begun.swap_remove(at);
        }
        self.forget_changes_if_done();
    }

    /// The manager has received the first pending message.
    pub fn message_sent(&mut self) {
        self.pending.remove(0);
        self.forget_changes_if_done();
    }

    fn forget_changes_if_done(&mut self) {
        if !self.is_under_way() {
            self.changed.clear();
        }
    }

    /// The numbers of another table's changes do not count.
    pub fn forget_changes(&mut self) {
        self.changed.clear();
    }

    /// Notes that the manager set a range to `lock` as its change of that number, where no later change is known.
    pub fn changed(&mut self, lock: &FileLock, change: u64) {
        let range = lock.start..=lock.end;
        let later = self.changed.overlapping(range.clone()).filter(|(_, known)| **known > change);
        let later: RangeInclusiveSet<u64> = later.map(|(bytes, _)| bytes.clone()).collect();
        for bytes in later.gaps(&range) {
            self.set(&FileLock { start: *bytes.start(), end: *bytes.end(), ..*lock });
            self.changed.insert(bytes, change);
        }
    }

    /// Sets a range to `lock`; [`LockMode::Unlock`] clears it.
    pub fn set(&mut self, lock: &FileLock) {
        let range = lock.start..=lock.end;
        match lock.mode() {
            LockMode::Unlock => self.ranges.remove(range),
            _ => self.ranges.insert(range, lock.held()),
        }
    }

    /// The locks held on any byte of `range`, which names file and owner.
    fn over(&self, range: FileLock) -> impl Iterator<Item = FileLock> {
        let locked = self.ranges.overlapping(range.start..=range.end);
        locked
            .map(move |(bytes, held)| locked_as(&FileLock { start: *bytes.start(), end: *bytes.end(), ..range }, held))
    }

    /// What this owner holds of the bytes of `range`.
    pub fn held(&self, range: &FileLock) -> HeldBefore {
        let pieces = self.ranges.overlapping(range.start..=range.end);
        HeldBefore(pieces.map(|(bytes, held)| (common(bytes, range), *held)).collect())
    }

    /// Whether this owner excludes all others from `range`.
    pub fn excludes_others(&self, range: &FileLock) -> bool {
        self.held(range).excluded_others(range)
    }

    /// A request that got `lock` fails: gives up what the owner had not before, and shares again what it shared. Queues the messages about
    /// it.
    pub fn give_back(&mut self, lock: &FileLock, before: &HeldBefore) {
        let range = lock.start..=lock.end;
        let exclusive: Vec<FileLock> = self.over(*lock).filter(|held| held.mode() == LockMode::Write).collect();
        let shared = before.0.iter().filter(|(_, held)| held.mode == LockMode::Read).flat_map(|(bytes, held)| {
            let shared = locked_as(&FileLock { start: *bytes.start(), end: *bytes.end(), ..*lock }, held);
            // Another thread may have unlocked a part of it meanwhile.
            let still_held = exclusive.iter().filter(move |held| held.start <= shared.end && shared.start <= held.end);
            still_held.map(move |held| {
                let bytes = common(&(held.start..=held.end), &shared);
                FileLock { start: *bytes.start(), end: *bytes.end(), ..shared }
            })
        });
        let (family, mode) = (LockFamily::Either as i32, LockMode::Unlock as i32);
        let free = before.0.gaps(&range);
        let free = free.map(|gap| FileLock { family, mode, start: *gap.start(), end: *gap.end(), ..*lock });
        for change in shared.chain(free) {
            self.set(&change);
            self.pending.push(Pending::Set(change));
        }
    }

    /// All locks of this owner on the file.
    pub fn locks(&self, ino: u64, owner: u64) -> impl Iterator<Item = FileLock> {
        self.over(FileLock { ino, owner, start: 0, end: u64::MAX, ..FileLock::default() })
    }

    /// A request is on its way.
    pub fn asks(&mut self, seq: u64, lock: &FileLock) {
        // After a loss the owner began anew.
        if !self.begun.contains(lock) {
            self.begun.push(*lock);
        }
        self.asked.push((seq, *lock));
    }

    /// The answer to a request is known, or nobody waits for it.
    pub fn answered(&mut self, seq: u64) {
        self.asked.retain(|(number, _)| *number != seq);
    }

    /// Queues the message that the owner gives `lock` up. If that is the last one queued, and no request can be granted after it, once is enough: each close
    /// on a mount that is cut off gives the same up.
    pub fn tell(&mut self, lock: &FileLock) {
        let is_told = self.pending.last() == Some(&Pending::Set(*lock));
        if !(is_told && self.begun.is_empty() && self.asked.is_empty()) {
            self.pending.push(Pending::Set(*lock));
        }
    }

    /// The answer to request `seq` was lost: queues messages that set its range to what the owner holds.
    pub fn set_again(&mut self, asked: &FileLock, seq: u64) {
        self.pending.extend([Pending::Withdraw(seq), Pending::Again(*asked)]);
    }

    /// The message to send next; none while it depends on answers.
    pub fn next_message(&mut self) -> Option<Pending> {
        while let Some(Pending::Again(range)) = self.pending.first().copied() {
            if self.is_asked(&range) {
                return None;
            }
            let again = self.again(&range);
            self.pending.splice(..1, again);
        }
        self.pending.first().copied()
    }

    /// Whether a request for a part of `range` is on its way.
    fn is_asked(&self, range: &FileLock) -> bool {
        self.asked.iter().any(|(_, asked)| asked.start <= range.end && range.start <= asked.end)
    }

    /// Messages that set `range` to what the owner holds. Held locks come first, so that no other client gets them meanwhile. What lies beside
    /// `range` is left alone: a request for it may be on its way.
    fn again(&self, range: &FileLock) -> Vec<Pending> {
        let bytes = range.start..=range.end;
        let held = self.over(*range).map(|held| {
            let bytes = common(&(held.start..=held.end), range);
            FileLock { start: *bytes.start(), end: *bytes.end(), ..held }
        });
        let free = self.ranges.gaps(&bytes).map(|gap| FileLock {
            mode: LockMode::Unlock as i32,
            start: *gap.start(),
            end: *gap.end(),
            ..*range
        });
        held.chain(free).map(Pending::Set).collect()
    }

    /// Whether there are messages to send, and no task does.
    pub fn has_unsent(&self) -> bool {
        let depends = |first: &Pending| matches!(first, Pending::Again(range) if self.is_asked(range));
        !self.sending && self.pending.first().is_some_and(|first| !depends(first))
    }

    /// Whether no request of this owner is on its way, and no message waits.
    pub fn is_quiet(&self) -> bool {
        self.asked.is_empty() && self.pending.is_empty() && !self.sending
    }

    /// Number of locks.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn holds_any(&self) -> bool {
        !self.ranges.is_empty()
    }

    pub fn is_idle(&self) -> bool {
        self.ranges.is_empty() && !self.is_under_way()
    }

    /// Whether the manager has not received, or not answered, something about this owner. A request from before a loss may be on its way
    /// though it is not counted as begun.
    fn is_under_way(&self) -> bool {
        !(self.pending.is_empty() && self.begun.is_empty() && self.asked.is_empty())
    }

    /// All locks of this owner on the file, for a manager that does not know them.
    pub fn asserted(&self, ino: u64, owner: u64) -> impl Iterator<Item = FileLock> {
        self.locks(ino, owner).map(|lock| FileLock { may_be_shared: self.may_be_shared(&lock), ..lock })
    }

    /// Whether the manager may have shared an exclusive lock: it was asked to, and its answer is not known.
    fn may_be_shared(&self, lock: &FileLock) -> bool {
        let meets = |other: &FileLock| other.start <= lock.end && lock.start <= other.end;
        let pending = self.pending.iter().filter_map(|message| match message {
            Pending::Set(other) | Pending::Again(other) => Some(other),
            Pending::Withdraw(_) => None,
        });
        let begun = self.begun.iter().filter(|other| other.mode() == LockMode::Read);
        lock.mode() == LockMode::Write && pending.chain(begun).any(meets)
    }
}

/// The range, file and owner of `range`, locked like this.
fn locked_as(range: &FileLock, held: &Held) -> FileLock {
    FileLock { family: held.families.into(), mode: held.mode as i32, pid: held.pid, ..*range }
}

/// The bytes of `bytes` in `range`, of which there are some.
fn common(bytes: &RangeInclusive<u64>, range: &FileLock) -> RangeInclusive<u64> {
    *bytes.start().max(&range.start)..=*bytes.end().min(&range.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST_BYTE: u64 = i64::MAX as u64;

    fn lock(start: u64, end: u64, mode: LockMode) -> FileLock {
        FileLock { start, end, mode: mode as i32, ..FileLock::default() }
    }

    #[test]
    fn what_is_held_is_what_was_set_last() {
        let mut owned = Owned::default();
        owned.set(&lock(0, 99, LockMode::Read));
        owned.set(&lock(20, 29, LockMode::Write));
        owned.set(&lock(25, 39, LockMode::Unlock));
        let (read, write) = (LockMode::Read, LockMode::Write);
        let held = [lock(0, 19, read), lock(20, 24, write), lock(40, 99, read)];
        assert_eq!(owned.locks(0, 0).collect::<Vec<_>>(), held);
        owned.set_again(&lock(10, 45, LockMode::Write), 7);
        let parts = [lock(10, 19, read), lock(20, 24, write), lock(40, 45, read)];
        let set = parts.into_iter().chain([lock(25, 39, LockMode::Unlock)]);
        assert_eq!(owned.next_message(), Some(Pending::Withdraw(7)));
        owned.message_sent();
        owned.asks(8, &lock(45, 50, write));
        assert_eq!((owned.next_message(), owned.has_unsent()), (None, false), "it may be granted");
        owned.answered(8);
        assert!(owned.has_unsent() && owned.next_message().is_some());
        assert_eq!(owned.pending, set.map(Pending::Set).collect::<Vec<_>>());
        owned.set(&lock(0, LAST_BYTE, LockMode::Unlock));
        assert!(!owned.holds_any() && !owned.is_idle());
    }

    /// Threads of one process are one owner: answers to their requests may be read in any order.
    #[test]
    fn what_is_held_is_what_the_manager_did_last() {
        let (read, write, unlock) = (LockMode::Read, LockMode::Write, LockMode::Unlock);
        let changes = [(lock(0, 99, write), 1), (lock(20, 59, unlock), 2), (lock(40, 79, read), 3)];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut owned = Owned::default();
            changes.iter().for_each(|(lock, _)| owned.begin(lock));
            order.into_iter().map(|at| changes[at]).for_each(|(lock, change)| owned.changed(&lock, change));
            let held = [lock(0, 19, write), lock(40, 79, read), lock(80, 99, write)];
            assert_eq!(owned.locks(0, 0).collect::<Vec<_>>(), held, "{order:?}");
            changes.iter().for_each(|(lock, _)| owned.end(lock));
            owned.changed(&lock(0, LAST_BYTE, unlock), 1);
            assert!(owned.is_idle(), "another table counts anew");
        }
    }

    /// A lock that was to be shared is asserted as one that may be, until the manager's answer is known.
    #[test]
    fn a_lock_may_be_shared_from_when_that_is_asked_for() {
        let (read, write) = (lock(5, 9, LockMode::Read), lock(0, 9, LockMode::Write));
        let mut owned = Owned::default();
        owned.set(&write);
        let may_be = |owned: &Owned| owned.asserted(0, 0).map(|lock| lock.may_be_shared).collect::<Vec<_>>();
        assert_eq!(may_be(&owned), [false]);
        owned.begin(&read);
        assert_eq!(may_be(&owned), [true]);
        owned.set_again(&read, 7);
        owned.end(&read);
        assert_eq!(may_be(&owned), [true], "nobody waits for the answer");
        owned.message_sent();
        assert!(owned.next_message().is_some());
        assert_eq!(may_be(&owned), [true], "the manager has not heard what is held");
        owned.message_sent();
        assert_eq!(may_be(&owned), [false]);
        owned.begin(&lock(20, 29, LockMode::Read));
        assert_eq!(may_be(&owned), [false]);
    }

    /// A request that is on its way may be granted after the message that is being sent.
    #[test]
    fn what_is_given_up_twice_is_told_once_unless_a_request_is_under_way() {
        let (unlock, write) = (lock(0, LAST_BYTE, LockMode::Unlock), lock(0, 9, LockMode::Write));
        let mut owned = Owned::default();
        (0..3).for_each(|_| owned.tell(&unlock));
        assert_eq!(owned.pending.len(), 1);
        owned.begin(&write);
        owned.tell(&unlock);
        owned.end(&write);
        owned.tell(&unlock);
        assert_eq!(owned.pending.len(), 2);
    }

    /// The manager counts joined ranges against its limit, so the client must join them, too.
    #[test]
    fn neighbours_are_one_lock() {
        let mut owned = Owned::default();
        (0..1_000).for_each(|byte| owned.set(&lock(byte, byte, LockMode::Write)));
        assert_eq!(owned.locks(0, 0).collect::<Vec<_>>(), [lock(0, 999, LockMode::Write)]);
        owned.set(&lock(0, LAST_BYTE, LockMode::Read));
        owned.set_again(&lock(LAST_BYTE, LAST_BYTE, LockMode::Write), 1);
        owned.message_sent();
        assert_eq!(owned.next_message(), Some(Pending::Set(lock(LAST_BYTE, LAST_BYTE, LockMode::Read))));
        assert_eq!(owned.pending.len(), 1);
    }
}
