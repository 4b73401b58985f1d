//! Which locks conflict: the rules that the manager's table and a client with a delegation go by.

use crate::meta::{FileLock, LockFamily, LockMode};

/// Last byte of the longest possible file.
pub const LAST_BYTE: u64 = i64::MAX as u64;

/// The owner of a delegation: the client itself.
pub const DELEGATE: u64 = u64::MAX;

/// Most locks that a client may hold on a file whose locks are delegated to it. The manager keeps room for as many, so that they fit in its
/// table when they are returned ([`crate::meta::ReturnLocks`]).
pub const MAX_DELEGATED_LOCKS: usize = 128;

/// A lock without its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// Read (shared) or write (excludes all other locks).
    pub mode: LockMode,
    /// Its families, a bit each ([`crate::meta::LockFamily`]); locks of different families do not conflict.
    pub families: u8,
    /// Process that asked, for display.
    pub pid: u32,
}

impl Held {
    /// Whether two owners cannot hold these locks on the same byte.
    pub fn excludes(&self, other: &Held) -> bool {
        self.families & other.families != 0 && [self.mode, other.mode].contains(&LockMode::Write)
    }
}

/// Bytes from `start` to `end`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes {
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
}

impl Bytes {
    /// Whether they have a byte in common.
    pub fn overlaps(&self, other: &Bytes) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// The bytes that they have in common, if there are any.
    pub fn common(&self, other: &Bytes) -> Option<Bytes> {
        self.overlaps(other).then(|| Bytes { start: self.start.max(other.start), end: self.end.min(other.end) })
    }
}

impl FileLock {
    /// Its bytes.
    pub fn bytes(&self) -> Bytes {
        Bytes { start: self.start, end: self.end }
    }

    /// All of it but its bytes and its owner.
    pub fn held(&self) -> Held {
        Held { mode: self.mode(), families: self.family as u8, pid: self.pid }
    }

    /// The lock that stands for the delegation of a file's locks.
    pub fn delegation(ino: u64) -> FileLock {
        let (family, mode) = (LockFamily::Either as i32, LockMode::Write as i32);
        FileLock { ino, owner: DELEGATE, family, mode, start: 0, end: LAST_BYTE, ..FileLock::default() }
    }
}
