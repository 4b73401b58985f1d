//! Computations that the cores ask for. They are pure functions of plain data; any idle thread, or the simulator, runs them.
//!
//! [`Job::run`] is where a write's fragments are made and where a read's bytes are verified against their chunk's name: nothing
//! leaves a read that has not passed through here (P2). How that is done is crate `stripe`.

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
    /// A chunk from its fragments, verified.
    Decode(DecodeJob),
    /// A part of a chunk, verified.
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
    /// Chosen by the core, comes back with the output.
    pub id: u64,
    /// The job or its output.
    pub value: T,
}

impl Job {
    /// Computes. Memory is taken from `pool`.
    pub fn run(self, pool: &BufferPool) -> Output {
        match self {
            Job::Encode { class, chunk, wanted } => Output::Encoded(encode(&class, &chunk, &wanted, pool)),
            Job::Decode(job) => Output::Decoded(job.run(pool)),
            Job::Range(job) => Output::Range(job.run(pool)),
        }
    }

    /// Bytes it reads: little work is not worth another thread.
    pub fn bytes(&self) -> usize {
        match self {
            Job::Encode { chunk, .. } => chunk.len(),
            Job::Decode(job) => job.fragments.iter().map(|it| it.bytes.len()).sum(),
            Job::Range(job) => job.parts.iter().map(|part| part.bytes.len()).sum(),
        }
    }
}
