//! Events that the core takes and actions that it hands out.

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
    /// Time passed: the deadline of [`super::NodeCore::next_deadline_ns`] was reached.
    Tick,
    /// A put arrived; its lengths and checksums were verified (see [`crate::check`]).
    Put {
        /// Comes back with [`Action::Reply`]; chosen by the shell.
        request: u64,
        /// The put.
        put: CheckedPut,
    },
    /// A peer asks for the node's status.
    Status {
        /// Comes back with [`Action::Reply`].
        request: u64,
    },
    /// A call was answered or failed.
    Answer(Answer),
    /// A disk operation ended.
    DiskDone {
        /// Of [`Action::Disk`].
        op_id: u64,
        /// Its result.
        result: Result<DiskReply, DiskFault>,
    },
    /// A step of a rebuild's computation ended.
    Computed {
        /// Of [`Action::Compute`].
        op_id: u64,
        /// Its result.
        result: Rebuilt,
    },
    /// A read found a corrupt fragment on a disk of this node (its checksum was compared).
    FoundBad(FragmentRef),
    /// The log replica saw a manager of this term. (Not the end of its log: entries reach replicas before they are committed.)
    ManagerSeen {
        /// The term.
        term: u64,
    },
    /// A disk failed outside the core's operations: it cannot be read, or its thread ended.
    DiskFailed {
        /// Position of the disk in the node's list.
        disk: usize,
        /// Why.
        reason: String,
    },
}

/// Something for the shell to do.
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
    /// Run a disk operation.
    Disk {
        /// Position of the disk in the node's list.
        disk: usize,
        /// Comes back with [`Event::DiskDone`].
        op_id: u64,
        /// The operation.
        op: DiskOp,
    },
    /// Run one step of a rebuild: [`RebuildJob::run`].
    Compute {
        /// Comes back with [`Event::Computed`].
        op_id: u64,
        /// The step.
        job: RebuildJob,
    },
    /// The manager gave the disks these ids, in the node's order; gets name them from now on.
    DisksNamed {
        /// The ids.
        disk_ids: Vec<u64>,
    },
    /// The highest known term rose: store it durably before any later action, if there is a log replica to store it in.
    KeepTerm(u64),
    /// The node cannot serve in this cluster: stop with this error.
    Fatal(Error),
}

/// A position in the manager's log. Orders by term, then by entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManagerMark {
    /// Term.
    pub term: u64,
    /// Last entry of its command log.
    pub log_seq: u64,
}
