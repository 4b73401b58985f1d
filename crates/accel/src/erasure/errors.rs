//! Errors of codes and calls, with the facts as fields. A call that returns one has written nothing.

use super::{MAX_FRAGMENTS, Matrix};

/// Why a code does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    /// k is 0.
    #[error("a code needs at least one data fragment (k = 0)")]
    NoData,
    /// m is 0.
    #[error("a code needs at least one parity fragment (m = 0); use redundancy none to store without parity")]
    NoParity,
    /// k + m is more than the field supports.
    #[error("{k}+{m} fragments: k + m may be at most {MAX_FRAGMENTS}")]
    TooManyFragments {
        /// Data fragments asked for.
        k: usize,
        /// Parity fragments asked for.
        m: usize,
    },
    /// With this matrix some losses of m fragments could not be repaired.
    #[error("matrix {matrix} is not safe for {k}+{m}: some losses of {m} fragments would be final; use cauchy1")]
    Unsafe {
        /// Matrix asked for.
        matrix: Matrix,
        /// Data fragments asked for.
        k: usize,
        /// Parity fragments asked for.
        m: usize,
    },
    /// No matrix of this name.
    #[error("no matrix is called {name:?}; known are {}", Matrix::ALL.map(Matrix::name).join(", "))]
    UnknownMatrix {
        /// Name given.
        name: String,
    },
}

/// Why a call of [`super::Code::encode`] was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Not k data slices.
    #[error("the code has {expected} data fragments, got {got}")]
    DataCount {
        /// k.
        expected: usize,
        /// Slices given.
        got: usize,
    },
    /// Not m parity slices.
    #[error("the code has {expected} parity fragments, got room for {got}")]
    ParityCount {
        /// m.
        expected: usize,
        /// Slices given.
        got: usize,
    },
    /// A data slice is longer than a fragment.
    #[error("data fragment {index} has {got} bytes, a fragment has {frag_len}")]
    DataLength {
        /// Index of the slice.
        index: usize,
        /// Its bytes.
        got: usize,
        /// Bytes in a fragment.
        frag_len: usize,
    },
    /// A parity slice is not exactly one fragment long.
    #[error("room for parity fragment {index} has {got} bytes, a fragment has {frag_len}")]
    ParityLength {
        /// Index among the parity fragments (0..m).
        index: usize,
        /// Its bytes.
        got: usize,
        /// Bytes in a fragment.
        frag_len: usize,
    },
}

/// Why a call of [`super::Code::update`] was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// No data fragment of this number.
    #[error("data fragment {index} does not exist, the code has {k}")]
    Index {
        /// Number given.
        index: usize,
        /// Data fragments.
        k: usize,
    },
    /// The old and the new bytes differ in length.
    #[error("{old} old bytes, {new} new ones: a fragment changes in place")]
    DataLength {
        /// Old bytes.
        old: usize,
        /// New bytes.
        new: usize,
    },
    /// Not m parity slices.
    #[error("the code has {expected} parity fragments, got {got}")]
    ParityCount {
        /// m.
        expected: usize,
        /// Slices given.
        got: usize,
    },
    /// A parity slice is not as long as the data.
    #[error("parity fragment {index} has {got} bytes, the data has {expected}: pass the same range of each")]
    ParityLength {
        /// Index among the parity fragments (0..m).
        index: usize,
        /// Its bytes.
        got: usize,
        /// Bytes of data.
        expected: usize,
    },
}

/// Why a call of [`super::Code::reconstruct`] was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReconstructError {
    /// Fewer than k distinct fragments are present.
    #[error("{needed} fragments are needed to rebuild one, {got} are there; wait for more nodes or read another copy")]
    TooFewFragments {
        /// k.
        needed: usize,
        /// Fragments given.
        got: usize,
    },
    /// A fragment number that the code does not have.
    #[error("fragment {index} does not exist, the code has {total}")]
    Index {
        /// Number given.
        index: usize,
        /// k + m.
        total: usize,
    },
    /// A fragment number appears twice, among the present ones or among the wanted ones.
    #[error("fragment {index} is listed twice")]
    Duplicate {
        /// Number given.
        index: usize,
    },
    /// `wanted` and `out` differ in length.
    #[error("{wanted} fragments wanted, got room for {out}")]
    OutputCount {
        /// Fragments wanted.
        wanted: usize,
        /// Slices given.
        out: usize,
    },
    /// A present parity fragment is not `frag_len` long, or a data fragment is longer.
    #[error("fragment {index} has {got} bytes, a fragment has {frag_len}")]
    FragmentLength {
        /// Fragment number.
        index: usize,
        /// Its bytes.
        got: usize,
        /// Bytes in a fragment.
        frag_len: usize,
    },
    /// The buffer for a wanted parity fragment is not `frag_len` long, or that for a data fragment is longer.
    #[error("room for fragment {index} has {got} bytes, a fragment has {frag_len}")]
    OutputLength {
        /// Fragment number.
        index: usize,
        /// Bytes in the buffer.
        got: usize,
        /// Bytes in a fragment.
        frag_len: usize,
    },
    /// The present fragments do not determine the rest. Cannot happen with a matrix that [`super::Code::new`] accepted.
    #[error("matrix {matrix}: the {k} fragments that are there do not determine the rest")]
    Singular {
        /// The code's matrix.
        matrix: Matrix,
        /// k.
        k: usize,
    },
}
