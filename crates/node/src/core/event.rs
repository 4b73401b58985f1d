//! Events that the core takes, and actions that it returns.

use super::ops::{DiskFault, DiskOp, DiskReply};
use crate::check::CheckedPut;
use bytes::Bytes;
use tessera_stripe::{RebuildJob, Rebuilt};
use tessera_wire::Error;
use tessera_wire::meta::FragmentRef;
use tessera_wire::rpc::{Answer, Call};

/// An input of the core.
#[derive(Debug)]
pub enum Event {
    /// The deadline of [`super::NodeCore::next_deadline_ns`] was reached.
    Tick,
    /// A put arrived; its lengths and checksums were verified (see [`crate::check`]).
    Put {
        /// Number that [`Action::Reply`] returns; chosen by the shell.
        request: u64,
        /// The put.
        put: CheckedPut,
    },
    /// A peer asks for the node's status.
    Status {
        /// Number that [`Action::Reply`] returns.
        request: u64,
    },
    /// A call was answered or failed.
    Answer(Answer),
    /// A disk operation ended.
    DiskDone {
        /// From [`Action::Disk`].
        op_id: u64,
        /// Its result.
        result: Result<DiskReply, DiskFault>,
    },
    /// A step of a rebuild's computation ended.
    Computed {
        /// From [`Action::Compute`].
        op_id: u64,
        /// Its result.
        result: Rebuilt,
    },
    /// A read found a corrupt fragment on a disk of this node, by its checksum.
    FoundBad(FragmentRef),
    /// The node's voter saw a leader with this term. (The event does not carry the end of its log: entries reach
    /// voters before they are committed.)
    ManagerSeen {
        /// The term.
        term: u64,
    },
}

/// An action for the shell.
#[derive(Debug)]
pub enum Action {
    /// Answer a request.
    Reply {
        /// Number of the request.
        request: u64,
        /// The encoded reply, or an error.
        result: Result<Bytes, Error>,
    },
    /// Send a request.
    Call(Call),
    /// Run a disk operation.
    Disk {
        /// Index of the disk in the node's list.
        disk: usize,
        /// Number that [`Event::DiskDone`] returns.
        op_id: u64,
        /// The operation.
        op: DiskOp,
    },
    /// Run one step of a rebuild: [`RebuildJob::run`].
    Compute {
        /// Number that [`Event::Computed`] returns.
        op_id: u64,
        /// The step.
        job: RebuildJob,
    },
    /// The manager assigned these ids to the disks, in the node's order; gets use them from now on.
    DisksNamed {
        /// The ids.
        disk_ids: Vec<u64>,
    },
    /// The highest known term of a manager rose. The voter's log remembers it if it is of a restored group.
    KeepTerm(u64),
    /// The node cannot serve in this cluster: stop with this error.
    Fatal(Error),
}

/// A position in the manager's log. Ordered by term, then by entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManagerMark {
    /// Term.
    pub term: u64,
    /// Last entry of the command log.
    pub log_seq: u64,
}
