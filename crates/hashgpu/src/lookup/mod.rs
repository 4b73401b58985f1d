//! Batches of look-ups: keys in sorted arrays, in levels of sorted arrays, and in membership filters.
//!
//! One binary search waits for memory at every step; sixteen side by side wait for sixteen lines at once. The fast
//! paths here do only this, in plain Rust; each has a reference that looks up one key after another.
//!
//! [`Sorted`] and [`Levels`] are the parts of CONA's levels and of a flash translation table (newest level first: the
//! first level that holds a key is right). [`Fragments`] is CONA's filter: a few low bits of each key, in the order of
//! the sorted data. [`BlockedBloom`] is for keys without a place in an order.
//!
//! Sources: Bender et al., "Cache-oblivious streaming B-trees", SPAA 2007 (levels); Lim et al., "SILT", SOSP 2011 (key
//! fragments); Putze, Sanders, Singler, "Cache-, hash- and space-efficient Bloom filters", JEA 14, 2009, with the
//! eight-word blocks and salts of the Apache Parquet specification.

mod bloom;
mod fragments;
mod sorted;

#[cfg(test)]
mod tests;

pub use bloom::{BlockedBloom, BloomError};
pub(crate) use bloom::{block_of, mask};
pub use fragments::{Fragment, Fragments, FragmentsError};
pub use sorted::{KeyPosition, Levels, LookupError, Sorted};
