//! Computations that the cores request. They are pure functions of plain data; any idle thread, or the simulator, runs
//! them.
//!
//! [`Job::run`] makes a write's fragments and verifies a read's bytes against their chunk's hash: every byte
//! that a read returns has passed through here (P2). Crate `stripe` does the work.

use bytes::Bytes;
use std::sync::Arc;
use tessera_net::BufferPool;
use tessera_stripe::{Class, DecodeJob, Decoded, Fragment, RangeJob, encode};

/// A computation.
#[derive(Debug)]
pub enum Job {
    /// Make these fragments of a chunk.
    Encode {
        /// Its class.
        class: Arc<Class>,
        /// The chunk.
        chunk: Bytes,
        /// Fragment numbers of the class.
        wanted: Vec<u32>,
    },
    /// Decode a chunk from its fragments, and verify it.
    Decode(DecodeJob),
    /// Decode and verify a part of a chunk.
    Range(RangeJob),
}

/// The result of a [`Job`].
#[derive(Debug)]
pub enum Output {
    /// Of [`Job::Encode`]: the fragments in the order wanted.
    Encoded(Vec<Fragment>),
    /// Of [`Job::Decode`].
    Decoded(Decoded),
    /// Of [`Job::Range`]: the bytes, or `None` if they cannot be verified.
    Range(Option<Bytes>),
}

/// A job under the number its core gave it.
#[derive(Debug)]
pub struct Numbered<T> {
    /// Chosen by the core; comes back with the output.
    pub id: u64,
    /// The job or its output.
    pub value: T,
}

impl Job {
    /// Runs the job. Takes memory from `pool`.
    pub fn run(self, pool: &BufferPool) -> Output {
        match self {
            Job::Encode { class, chunk, wanted } => Output::Encoded(encode(&class, &chunk, &wanted, pool)),
            Job::Decode(job) => Output::Decoded(job.run(pool)),
            Job::Range(job) => Output::Range(job.run(pool)),
        }
    }

    /// Bytes it reads: a small job is not worth another thread.
    pub fn bytes(&self) -> usize {
        match self {
            Job::Encode { chunk, .. } => chunk.len(),
            Job::Decode(job) => job.fragments.iter().map(|it| it.bytes.len()).sum(),
            Job::Range(job) => job.parts.iter().map(|part| part.bytes.len()).sum(),
        }
    }
}
