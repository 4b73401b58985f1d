//! Codes made of XOR alone: Liberation, Blaum–Roth and Cauchy bit-matrix codes, with parity byte-equal to Jerasure's at
//! the same w and packet size.
//!
//! A fragment is a row of *stripes* of w *packets* of `packet_bytes` each. Within a stripe, every packet of a parity
//! fragment is the XOR of some packets of the data fragments. A bit matrix of m·w rows and k·w columns says which: row
//! r·w + i, column c·w + j is one where packet i of parity r contains packet j of data c.
//!
//! Start at [`XorCode`]. Reading order inside: `bits` (the matrices), `solve` (lost packets as sums of present ones),
//! `program` (an order and sources with few XORs), `frame` and its leaves (the computation), `reference` (the
//! definition, which all must equal).
//!
//! Sources: Plank, "The RAID-6 Liberation codes", FAST 2008; Blaum and Roth, "On lowest density MDS codes", IEEE Trans.
//! Inf. Theory 45(1), 1999; Blömer et al., "An XOR-based erasure-resilient coding scheme", 1995; Hafner et al., "Matrix
//! methods for lost data reconstruction in erasure codes", FAST 2005 (decoding by bit matrices); Plank, Schuman,
//! Robison, "Heuristics for optimizing matrix-based erasure codes for fault-tolerant storage systems", DSN 2012
//! (schedules).

mod bits;
mod code;
mod dispatch;
mod errors;
mod frame;
mod parity;
mod program;
mod reference;
mod solve;

#[cfg(test)]
mod tests;

pub use bits::Technique;
pub use code::XorCode;
pub use errors::XorCodeError;
pub(crate) use program::PacketSum;
pub use program::{Program, Step, Word};
