//! What can be wrong with an XOR code or a call. Nothing has been written when one returns.

use super::Technique;

/// Why there is no such code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum XorCodeError {
    /// k or m is 0, or k + m is more than there are fragment numbers for.
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
    /// The technique has no code of this w.
    #[error("{technique} has no code with w = {w}: it needs {needs}")]
    W {
        /// Technique asked for.
        technique: Technique,
        /// Packets in a stripe asked for.
        w: usize,
        /// What w must be.
        needs: &'static str,
    },
    /// More fragments than this w has room for.
    #[error("{technique} with w = {w} has room for {most} of {what}, got {got}; use a larger w")]
    TooWide {
        /// Technique asked for.
        technique: Technique,
        /// Packets in a stripe.
        w: usize,
        /// What is counted: data fragments or all fragments.
        what: &'static str,
        /// Most of them.
        most: usize,
        /// Asked for.
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
    /// Not as many slices as the code has fragments of that kind.
    #[error("the code has {expected} {what}, got {got}")]
    Count {
        /// Which fragments.
        what: &'static str,
        /// How many the code has.
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
    /// Fewer than k fragments are there.
    #[error("{needed} fragments are needed to rebuild one, {got} are there; wait for more nodes or read another copy")]
    TooFewFragments {
        /// k.
        needed: usize,
        /// Fragments given.
        got: usize,
    },
    /// The fragments that are there do not determine the rest. Cannot happen with a code that
    /// [`super::XorCode::new`] accepted.
    #[error("{technique}: the fragments that are there do not determine the rest")]
    Singular {
        /// The code's technique.
        technique: Technique,
    },
}
