//! Locks on files between clients: `fcntl`'s byte ranges and `flock`.
//!
//! A client's locks live in a *table* that the manager keeps in memory. Each life of a manager has a table of its own, with a number;
//! a client that hears of a new one asserts what it held ([`HoldLocks`]). The peer's `client_id` ([`crate::Hello`]) says
//! whose locks are meant.

/// Which of the two independent kinds of lock. A bit each: locks of one family are no obstacle to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum LockFamily {
    /// Not set.
    Unknown = 0,
    /// `fcntl`: ranges of bytes.
    Posix = 1,
    /// `flock`: whole files.
    Flock = 2,
    /// The asker cannot tell which: an obstacle to both.
    Either = 3,
}

/// What a lock allows others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum LockMode {
    /// Not set.
    Unknown = 0,
    /// Shared: others may hold shared ones.
    Read = 1,
    /// Exclusive.
    Write = 2,
    /// No lock: what is held of the range is given up.
    Unlock = 3,
}

/// A lock on bytes of a file.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FileLock {
    /// The file.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// Who holds it, a number of the client's own (FUSE's lock owner).
    #[prost(fixed64, tag = "2")]
    pub owner: u64,
    /// Its family.
    #[prost(enumeration = "LockFamily", tag = "3")]
    pub family: i32,
    /// What is held.
    #[prost(enumeration = "LockMode", tag = "4")]
    pub mode: i32,
    /// First byte.
    #[prost(uint64, tag = "5")]
    pub start: u64,
    /// Last byte, itself included; 2^63 − 1: to the end of the file, wherever that will be.
    #[prost(uint64, tag = "6")]
    pub end: u64,
    /// Process that asked, as `F_GETLK` shows it.
    #[prost(uint32, tag = "7")]
    pub pid: u32,
}

/// Set, change or give up a lock. Sent twice (the same `seq`), it has one effect (P8).
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetLock {
    /// Grows with each request of this client. One that comes after a later one of the same owner is refused.
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// Table the client's locks live in.
    #[prost(uint64, tag = "2")]
    pub table: u64,
    /// The lock.
    #[prost(message, optional, tag = "3")]
    pub lock: Option<FileLock>,
    /// Queue for it if others are in the way.
    #[prost(bool, tag = "4")]
    pub wait: bool,
    /// The answer may take so long; then it is [`LockOutcome::Waiting`], and the client asks again with the same `seq`, which keeps its
    /// place in the queue. At most a minute.
    #[prost(uint64, tag = "5")]
    pub wait_ms: u64,
}

/// What came of [`SetLock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum LockOutcome {
    /// Not set.
    Unknown = 0,
    /// It is as asked for.
    Granted = 1,
    /// Others are in the way.
    Refused = 2,
    /// Queued; ask again.
    Waiting = 3,
    /// Waiting would never end: those in the way wait for this owner.
    Deadlock = 4,
    /// A manager has just started, and clients may still assert what they hold; ask again.
    Grace = 5,
    /// The client has as many locks, or waits for as many, as it may.
    TooMany = 6,
    /// Taken back by [`CancelLock`].
    Cancelled = 7,
    /// A later request came first; ask with a new `seq`, if it is still wanted.
    Overtaken = 8,
}

/// Answer to [`SetLock`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetLockReply {
    /// What came of it.
    #[prost(enumeration = "LockOutcome", tag = "1")]
    pub outcome: i32,
}

/// Who is in the way of a lock?
#[derive(Clone, PartialEq, prost::Message)]
pub struct TestLock {
    /// Table the client's locks live in.
    #[prost(uint64, tag = "1")]
    pub table: u64,
    /// The lock.
    #[prost(message, optional, tag = "2")]
    pub lock: Option<FileLock>,
}

/// Answer to [`TestLock`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct TestLockReply {
    /// The first lock in the way; absent: none is. Its process is 0 if that runs on another machine; its owner is not told.
    #[prost(message, optional, tag = "1")]
    pub lock: Option<FileLock>,
}

/// Stop waiting. If the lock was granted meanwhile it stays. Also a mere sign of life.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CancelLock {
    /// The request that waits; 0: none, the client only says that it lives.
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// Table the client's locks live in.
    #[prost(uint64, tag = "2")]
    pub table: u64,
}

/// Begin to hold locks, go on holding them, or assert what was held under the manager before.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HoldLocks {
    /// Table the client's locks live in; 0: it has none.
    #[prost(uint64, tag = "1")]
    pub table: u64,
    /// All it holds, when the table may have changed; ignored if it has not.
    #[prost(message, repeated, tag = "2")]
    pub held: Vec<FileLock>,
    /// Where its processes run (see `NodeInfo.machine`).
    #[prost(string, tag = "3")]
    pub machine: String,
}

/// Answer to [`HoldLocks`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct HoldLocksReply {
    /// Table the client's locks live in from now on.
    #[prost(uint64, tag = "1")]
    pub table: u64,
    /// They are lost when nothing is heard of the client for this long.
    #[prost(uint64, tag = "2")]
    pub lease_ms: u64,
    /// What it held is lost: nothing was heard of it for too long, and others may have had those locks meanwhile.
    #[prost(bool, tag = "3")]
    pub lost: bool,
}
