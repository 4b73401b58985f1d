//! What the cores want computed: pure functions of plain data, run by whichever thread (or simulator) has time.
//!
//! [`Job::run`] is where a write's fragments are made and where a read's bytes are verified against their
//! chunk's name: nothing leaves a read that has not passed through here (P2).

mod assemble;
mod encode;
mod range;

pub use assemble::{Assemble, Assembled, Held};
pub use encode::{Encode, Encoded, Fragment};
pub use range::{RangeJob, RangeOutcome, RangePart};
pub(crate) use range::{slices, steps_around};

use tessera_net::BufferPool;

/// Something to compute.
#[derive(Debug)]
pub enum Job {
    /// Fragments of a chunk.
    Encode(Encode),
    /// A chunk from its fragments, verified.
    Assemble(Assemble),
    /// A part of a chunk, verified.
    Range(RangeJob),
}

/// What came of a [`Job`].
#[derive(Debug)]
pub enum Output {
    /// Of [`Job::Encode`].
    Encoded(Encoded),
    /// Of [`Job::Assemble`].
    Assembled(Assembled),
    /// Of [`Job::Range`].
    Range(RangeOutcome),
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
    /// Computes. Fresh bytes are taken from `pool`.
    pub fn run(self, pool: &BufferPool) -> Output {
        match self {
            Job::Encode(job) => Output::Encoded(job.run(pool)),
            Job::Assemble(job) => Output::Assembled(job.run(pool)),
            Job::Range(job) => Output::Range(job.run(pool)),
        }
    }

    /// Bytes it looks at: what is small is not worth another thread.
    pub fn bytes(&self) -> usize {
        match self {
            Job::Encode(job) => job.data.len(),
            Job::Assemble(job) => job.held.iter().map(|h| h.bytes.len()).sum(),
            Job::Range(job) => job.parts.iter().map(|p| p.bytes.len()).sum(),
        }
    }
}
