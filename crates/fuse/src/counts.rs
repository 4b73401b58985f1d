//! Counters of a mount for `/metrics`: requests of the kernel, bytes read and written, the state of caches and spool.
//! No decision depends on them.

use crate::backend::FuseBackend;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tessera_mount::mount::{Mount, Stats};

/// The kinds of requests that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A name is looked up.
    Lookup,
    /// Attributes are asked for.
    GetAttr,
    /// Attributes are changed.
    SetAttr,
    /// A file is opened.
    Open,
    /// A file is created.
    Create,
    /// Bytes are read.
    Read,
    /// Bytes are written.
    Write,
    /// A program closes a file.
    Close,
    /// A program asks for its writes to be durable.
    Fsync,
    /// A directory is listed.
    List,
}

/// Names of the kinds, in order.
const OPS: [&str; 10] = ["lookup", "getattr", "setattr", "open", "create", "read", "write", "close", "fsync", "list"];

/// Counts of the kernel's requests.
#[derive(Debug, Default)]
pub struct Counts {
    requests: [AtomicU64; OPS.len()],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Counts {
    /// Counts a request.
    pub fn asked(&self, op: Op) {
        self.requests[op as usize].fetch_add(1, Relaxed);
    }

    /// Counts bytes that went to a program.
    pub fn read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts bytes that came from a program.
    pub fn written(&self, bytes: usize) {
        self.written_bytes.fetch_add(bytes as u64, Relaxed);
    }
}

/// State of a mount.
#[derive(Debug, Clone, Default)]
pub struct MountMetrics {
    /// Requests of the kernel since the mount began, by kind.
    pub requests: Vec<(&'static str, u64)>,
    /// Bytes that programs read; reads from the kernel's cache do not count.
    pub read_bytes: u64,
    /// Bytes that programs wrote; only those that the kernel sent.
    pub written_bytes: u64,
    /// The state of the mount core.
    pub stats: Stats,
}

impl MountMetrics {
    /// The metrics now.
    pub fn of(mount: &Mount<FuseBackend>, counts: &Counts) -> MountMetrics {
        MountMetrics {
            requests: OPS.into_iter().zip(counts.requests.iter().map(|count| count.load(Relaxed))).collect(),
            read_bytes: counts.read_bytes.load(Relaxed),
            written_bytes: counts.written_bytes.load(Relaxed),
            stats: mount.stats(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_counted_under_its_own_name() {
        let counts = Counts::default();
        [Op::List, Op::Lookup, Op::List].into_iter().for_each(|op| counts.asked(op));
        let seen = counts.requests.each_ref().map(|count| count.load(Relaxed));
        assert_eq!(seen, [1, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(
            (OPS[Op::Lookup as usize], OPS[Op::Fsync as usize], OPS[Op::List as usize]),
            ("lookup", "fsync", "list")
        );
    }
}
