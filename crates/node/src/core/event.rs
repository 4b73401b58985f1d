//! What goes into the core and what comes out of it.

use super::ops::{DiskFault, DiskOp, DiskReply};
use crate::check::CheckedPut;
use bytes::Bytes;
use tessera_stripe::{RebuildJob, Rebuilt};
use tessera_wire::Error;
use tessera_wire::meta::FragmentRef;
use tessera_wire::rpc::{Answer, Call};

/// Something happened.
#[derive(Debug)]
pub enum Event {
    /// Time passed: the deadline of [`super::NodeCore::next_deadline_ns`] was reached, or nothing else is to be said.
    Tick,
    /// A put arrived; its lengths and checksums were verified (see [`crate::check`]).
    Put {
        /// Comes back with [`Action::Reply`]; chosen by the shell.
        request: u64,
        /// The put.
        put: CheckedPut,
    },
    /// Somebody asks for the node's status.
    Status {
        /// Comes back with [`Action::Reply`].
        request: u64,
    },
    /// A call was answered, or failed.
    Answer(Answer),
    /// A disk operation ended.
    DiskDone {
        /// Of [`Action::Disk`].
        op_id: u64,
        /// What it brought.
        result: Result<DiskReply, DiskFault>,
    },
    /// A computation ended.
    Computed {
        /// Of [`Action::Compute`].
        op_id: u64,
        /// What it brought.
        result: Rebuilt,
    },
    /// A read found a fragment of ours rotten (its checksum was compared).
    FoundBad(FragmentRef),
    /// The log replica saw a manager of this term. (Not how far its log is: entries reach replicas before they count.)
    ManagerSeen {
        /// The term.
        term: u64,
    },
    /// A disk failed outside of any operation of the core (it cannot be read, its thread ended).
    DiskFailed {
        /// Position of the disk in the node's list.
        disk: usize,
        /// Why.
        reason: String,
    },
}

/// Something is to be done.
#[derive(Debug)]
pub enum Action {
    /// Answer a request.
    Reply {
        /// Which.
        request: u64,
        /// Encoded reply, or the error.
        result: Result<Bytes, Error>,
    },
    /// Send a request.
    Call(Call),
    /// Have a disk do something.
    Disk {
        /// Position of the disk in the node's list.
        disk: usize,
        /// Comes back with [`Event::DiskDone`].
        op_id: u64,
        /// What.
        op: DiskOp,
    },
    /// Run one step of a rebuild: [`RebuildJob::run`].
    Compute {
        /// Comes back with [`Event::Computed`].
        op_id: u64,
        /// What.
        job: RebuildJob,
    },
    /// The disks got these ids (in the node's order): gets name them from now on.
    DisksNamed {
        /// The ids.
        disk_ids: Vec<u64>,
    },
    /// The highest term seen rose: keep it durably before acting on anything that follows, if there is a place for it.
    KeepTerm(u64),
    /// The node cannot serve in this cluster at all: stop, and say why.
    Fatal(Error),
}

/// How far a manager has come. Orders by term, then by log position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManagerMark {
    /// Term.
    pub term: u64,
    /// Last entry of its command log.
    pub log_seq: u64,
}
