//! Errors at the start of a node.

use crate::voter::VoterError;
use tessera_disk::{DiskError, IdentityError};
use tessera_net::{Endpoint, ManagerList, ServerError};
use tessera_segment::OpenError;
use tessera_wire::Error;

/// Why a node did not start. Each error is one line with the cause and the way out; the disks are unchanged.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No disk was given.
    #[error("a node needs at least one disk; name a directory with --disk")]
    NoDisks,
    /// A directory is not a disk of this cluster: it belongs to another cluster, is damaged, has a newer format, or is
    /// not empty.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A disk failed, or another process serves it.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A disk cannot be locked.
    #[error("disk {disk}: {source}")]
    Lock {
        /// The disk.
        disk: String,
        /// The cause.
        source: DiskError,
    },
    /// The segments of a disk cannot be opened.
    #[error("{disk}: {source}")]
    Store {
        /// The disk.
        disk: String,
        /// The cause.
        source: OpenError,
    },
    /// The log voter cannot be opened.
    #[error("{disk}: {source}")]
    Voter {
        /// The disk.
        disk: String,
        /// The cause.
        source: VoterError,
    },
    /// The disks are new, and no manager says which cluster they join.
    #[error("the manager at {managers} does not answer: {error}; new disks need it to learn which cluster they join")]
    NoManager {
        /// The addresses.
        managers: ManagerList,
        /// The last error.
        error: Error,
    },
    /// The manager serves another cluster, or speaks another protocol.
    #[error("the manager at {manager} refuses this node: {error}")]
    Refused {
        /// Its address.
        manager: Endpoint,
        /// The cause.
        error: Error,
    },
    /// The node cannot listen on the address.
    #[error(transparent)]
    Listen(#[from] ServerError),
    /// The node listens on an address that no peer can connect to, and was given no other address to announce.
    #[error(
        "listening on {listen}, which is no address that others can connect to; name such an address with --advertise"
    )]
    Advertise {
        /// The address it listens on.
        listen: String,
    },
    /// The system could not start a thread.
    #[error("cannot start a thread: {source}; raise the limit of processes")]
    Thread {
        /// The cause.
        source: std::io::Error,
    },
}

impl StartError {
    /// Whether more room on a disk would help.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            StartError::Disk(error) | StartError::Lock { source: error, .. } => error.is_no_space(),
            StartError::Identity(IdentityError::Disk(error)) => error.is_no_space(),
            StartError::Store { source: OpenError::Disk(error), .. } => error.is_no_space(),
            StartError::Voter { source, .. } => source.is_full(),
            _ => false,
        }
    }
}
