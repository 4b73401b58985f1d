//! Why an XOR code does not exist. Errors of calls are those of all codes ([`crate::CoderError`]).

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
