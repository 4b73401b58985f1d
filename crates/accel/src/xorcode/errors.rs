//! Errors of XOR codes and calls. A call that returns one has written nothing.

use super::Technique;

/// Why a code does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum XorCodeError {
    /// k or m is 0, or k + m is more than the number of fragment numbers.
    #[error("{k}+{m} fragments: k and m are at least 1, k + m at most 255")]
    Fragments {
        /// Data fragments asked for.
        k: usize,
        /// Parity fragments asked for.
        m: usize,
    },
    /// Liberation and Blaum–Roth codes have two parities.
    #[error("{technique} has exactly 2 parity fragments, got m = {m}; for more use cauchy_good")]
    ParityCount {
        /// Technique asked for.
        technique: Technique,
        /// Parity fragments asked for.
        m: usize,
    },
    /// The technique has no code with this w.
    #[error("{technique} has no code with w = {w}: it needs {needs}")]
    W {
        /// Technique asked for.
        technique: Technique,
        /// Packets in a stripe asked for.
        w: usize,
        /// Condition on w.
        needs: &'static str,
    },
    /// More fragments than this w supports.
    #[error("{technique} with w = {w} has room for {most} of {what}, got {got}; use a larger w")]
    TooWide {
        /// Technique asked for.
        technique: Technique,
        /// Packets in a stripe.
        w: usize,
        /// What is counted: data fragments or all fragments.
        what: &'static str,
        /// Maximum number.
        most: usize,
        /// Number asked for.
        got: usize,
    },
    /// Packets must be whole 8-byte words.
    #[error("packets of {got} bytes: a packet has a positive multiple of 8 bytes")]
    PacketBytes {
        /// Bytes asked for.
        got: usize,
    },
    /// No technique of this name.
    #[error("no XOR code is called {name:?}; known are {}", Technique::ALL.map(Technique::name).join(", "))]
    UnknownTechnique {
        /// Name given.
        name: String,
    },
}

/// Why a call of a method of [`super::XorCode`] was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum XorCallError {
    /// The number of slices differs from the code's number of such fragments.
    #[error("the code has {expected} {what}, got {got}")]
    Count {
        /// Kind of fragment.
        what: &'static str,
        /// Number in the code.
        expected: usize,
        /// Slices given.
        got: usize,
    },
    /// Fragments differ in length.
    #[error("fragment {index} has {got} bytes, the first one {expected}: all have the same length")]
    UnequalLength {
        /// Fragment number.
        index: usize,
        /// Bytes of the first fragment.
        expected: usize,
        /// Its bytes.
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
    /// The present fragments do not determine the rest. Cannot happen with a code that [`super::XorCode::new`]
    /// accepted.
    #[error("{technique}: the fragments that are there do not determine the rest")]
    Singular {
        /// The code's technique.
        technique: Technique,
    },
}
