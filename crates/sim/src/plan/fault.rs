//! What can go wrong in a run.

use crate::network::Actor;

/// A fault.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// The node's process is killed; its disks keep what the kernel had.
    KillNode(usize),
    /// The node's host loses power: unsynced bytes are lost, torn or kept as the disk decides.
    PowerOffNode(usize),
    /// The node starts again.
    StartNode(usize),
    /// The node's process stops until it is resumed.
    PauseNode(usize),
    /// It continues.
    ResumeNode(usize),
    /// The node and its disk are lost for good.
    LoseNode(usize),
    /// Something happens to a manager; it is over after so long.
    Manager {
        /// Which one.
        who: Who,
        /// What.
        what: ManagerFault,
        /// When it is over, ms.
        back_ms: u64,
    },
    /// A manager starts; one whose machine was lost joins from an empty disk.
    StartManager(usize),
    /// A paused manager continues.
    ResumeManager(usize),
    /// A process is partitioned from all other actors, in one direction or both.
    Partition {
        /// The process.
        who: Actor,
        /// Its messages are dropped.
        outbound: bool,
        /// Messages to it are dropped.
        inbound: bool,
    },
    /// The messages of one peer of the group to another are dropped.
    Cut {
        /// The sender.
        from: Actor,
        /// The receiver.
        to: Actor,
    },
    /// All partitions end.
    HealPartitions,
    /// A stored byte on the node rots.
    Rot(usize),
    /// The next syncs of the node's disk fail.
    FailSync(usize),
    /// The node's disk is full.
    FillDisk(usize),
    /// It has space again.
    EmptyDisk(usize),
    /// The client's process is killed and starts again.
    KillClient(usize),
    /// A garbage collection is requested.
    CollectGarbage,
    /// The node is drained.
    Drain(usize),
    /// A manager's clock is set forward by this many ms, or back.
    SetClock(usize, i64),
    /// Many stored bytes on the node rot.
    RotMuch(usize),
    /// A row of a manager's database changes without an entry.
    HarmMetadata(Who),
    /// A node or a manager is slow from now on.
    Slow(Actor, Slowness),
    /// A client's process stops until it is resumed, as in a suspended machine.
    PauseClient(usize),
    /// It continues.
    ResumeClient(usize),
    /// A manager's time of day is set to this many ms after the true one, or before.
    SetWall(usize, i64),
    /// A manager and all other peers hear each other no more; clients still reach it.
    Isolate(Who),
    /// A copy of a manager's directory is kept.
    BackUp(usize),
}

/// A manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The one that leads then.
    Leader,
    /// By index.
    Index(usize),
}

/// What happens to a manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagerFault {
    /// Its process is killed: what SQLite has committed stays.
    Kill,
    /// Its machine loses power: unsynced bytes of the log are lost, and the last commits of the database.
    PowerOff,
    /// Its process stops until it is resumed.
    Pause,
    /// Its machine is lost; another one joins the group with an empty disk.
    Lose,
    /// It stops in order: it hands leadership over first.
    Retire,
    /// Its directory is what [`Fault::BackUp`] kept, as after a return to a snapshot of a virtual machine.
    RollBack,
    /// Stored bytes on its disk rot.
    Rot,
}

/// How many times as long as usual something takes; 0 or 1: as usual.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slowness {
    /// Every event of the process.
    pub process: u64,
    /// What the disk does for fragments and for the log.
    pub disk: u64,
}
