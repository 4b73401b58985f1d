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

/// Why a call of a code of either family was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoderError {
    /// The number of slices is not the expected one.
    #[error("{expected} {what} expected, got {got}")]
    Count {
        /// What is counted.
        what: &'static str,
        /// Number expected.
        expected: usize,
        /// Slices given.
        got: usize,
    },
    /// A slice has another length than the others, or than a fragment.
    #[error("{what} {index} has {got} bytes, {expected} are expected")]
    Length {
        /// What the slice is.
        what: &'static str,
        /// Fragment number; for parity that is written or checked, its index among the parity fragments.
        index: usize,
        /// Bytes expected; for data the maximum.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// Fragments are not whole stripes.
    #[error(
        "fragments of {got} bytes: the length must be a multiple of a stripe, {stripe_bytes} bytes; pad with zeros"
    )]
    Stripe {
        /// Bytes in a fragment.
        got: usize,
        /// w · packet size.
        stripe_bytes: usize,
    },
    /// A fragment number that the code does not have.
    #[error("fragment {index} does not exist, the code has {total}")]
    Index {
        /// Number given.
        index: usize,
        /// Fragments of the kind that was asked for.
        total: usize,
    },
    /// A fragment number appears twice, among the present ones or among the wanted ones.
    #[error("fragment {index} is listed twice")]
    Duplicate {
        /// Number given.
        index: usize,
    },
    /// Fewer than k fragments are present.
    #[error("{needed} fragments are needed to rebuild one, {got} are there; wait for more nodes or read another copy")]
    TooFewFragments {
        /// k.
        needed: usize,
        /// Fragments given.
        got: usize,
    },
    /// The present fragments do not determine the rest. Cannot happen with a code that its constructor accepted.
    #[error("{matrix}: the fragments that are there do not determine the rest")]
    Singular {
        /// The code's matrix or technique.
        matrix: &'static str,
    },
}

/// Refuses another number of slices than `expected`.
pub(crate) fn check_count(what: &'static str, expected: usize, got: usize) -> Result<(), CoderError> {
    if got == expected { Ok(()) } else { Err(CoderError::Count { what, expected, got }) }
}

/// Checks the fragment numbers of a call that reconstructs, and that enough fragments are present; returns the present
/// ones by number.
pub(crate) fn check_numbers<'a>(
    k: usize,
    total: usize,
    present: &[(usize, &'a [u8])],
    wanted: &[usize],
    out: &[&mut [u8]],
) -> Result<Vec<Option<&'a [u8]>>, CoderError> {
    let mut by_number = vec![None; total];
    for &(index, bytes) in present {
        let slot = by_number.get_mut(index).ok_or(CoderError::Index { index, total })?;
        if slot.replace(bytes).is_some() {
            return Err(CoderError::Duplicate { index });
        }
    }
    check_count("slices for the wanted fragments", wanted.len(), out.len())?;
    for (at, &index) in wanted.iter().enumerate() {
        if index >= total {
            return Err(CoderError::Index { index, total });
        }
        if wanted[..at].contains(&index) {
            return Err(CoderError::Duplicate { index });
        }
    }
    if present.len() < k && wanted.iter().any(|index| by_number[*index].is_none()) {
        return Err(CoderError::TooFewFragments { needed: k, got: present.len() });
    }
    Ok(by_number)
}
