//! Fuzz tests: bytes from outside meet the code that reads them (P2, P14).
//!
//! A [`Target`] is a function that takes any bytes, passes them to a real parser or opener, and panics if a property does not
//! hold: nothing panics, nothing allocates more than its input justifies, what is accepted encodes to the same again. It says in a few
//! words what became of the input, so that the driver can keep inputs that behaved in a new way.
//!
//! [`driver`] runs a target on its seeds, on the files of `corpus/NAME`, then on mutations of them. Random bytes would fail at the first
//! checksum, so each target knows its format: it changes fields and restores checksums. [`input`] says how several files or messages
//! make one input, [`mutate`] changes bytes, [`proto`] changes messages. The functions fit cargo-fuzz as they are.
//!
//! `cargo test -p tessera-fuzz` runs each target for seconds, `make fuzz` for a minute. A failing input is written to a file that the
//! failure names; in `corpus/NAME` it is tried again by every later run.

pub mod driver;
pub mod input;
pub mod mutate;
pub mod proto;
pub mod targets;

use input::Parts;
use tessera_disk::SplitMix64;

/// Code that reads bytes from outside, and what must hold.
pub struct Target {
    /// Its name; also that of its folder of the corpus.
    pub name: &'static str,
    /// Takes any bytes. Panics if a property does not hold; returns what became of them.
    pub run: fn(&[u8]) -> String,
    /// Valid inputs to begin with.
    pub seeds: fn() -> Vec<Parts>,
    /// Changes of the format, and of its checksums so that damage behind them is reached.
    pub adapt: fn(&mut Parts, &mut SplitMix64),
    /// Mutations in an ordinary test run.
    pub runs: u64,
    /// Bytes that the target may hold whatever the input is.
    pub base_bytes: usize,
    /// Bytes that it may hold for each byte of the input.
    pub bytes_per_byte: usize,
}
