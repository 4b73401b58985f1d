//! Errors of a node's start.

use tessera_disk::{DiskError, IdentityError};
use tessera_logstore::LogOpenError;
use tessera_net::{Endpoint, ServerError};
use tessera_segment::OpenError;
use tessera_wire::Error;

/// Why a node did not start. Each is one line that names the thing and the way out; disks are as they were.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No disk was named.
    #[error("a node needs at least one disk; name a directory with --disk")]
    NoDisks,
    /// A directory is not a disk of this cluster: another cluster's, damaged, of a newer release, or not empty.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A disk is served already, or failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The segments of a disk cannot be opened.
    #[error("{disk}: {source}")]
    Store {
        /// The disk.
        disk: String,
        /// Why.
        source: OpenError,
    },
    /// The log replica cannot be opened.
    #[error("{disk}: {source}")]
    Log {
        /// The disk.
        disk: String,
        /// Why.
        source: LogOpenError,
    },
    /// The disks are new and the manager does not say which cluster they are to join.
    #[error("the manager at {manager} does not answer: {error}; new disks need it to learn which cluster they join")]
    NoManager {
        /// Where it should be.
        manager: Endpoint,
        /// What happened last.
        error: Error,
    },
    /// The manager serves another cluster, or speaks another protocol.
    #[error("the manager at {manager} refuses this node: {error}")]
    Refused {
        /// Where.
        manager: Endpoint,
        /// Why.
        error: Error,
    },
    /// The address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ServerError),
    /// A node must be reachable by one address.
    #[error(
        "listening on {listen}, which is no address others can connect to; say which one they should with --advertise"
    )]
    Advertise {
        /// Where it listens.
        listen: String,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {source}; raise the limit of processes")]
    Thread {
        /// Why.
        source: std::io::Error,
    },
    /// The system gives no random numbers.
    #[error("the system gives no random numbers: {source}")]
    Random {
        /// Why.
        source: std::io::Error,
    },
}
