//! The flash laboratory: a NAND flash device, flash translation layers, garbage collection, and readers of block traces.
//!
//! [`Ssd`] is a state machine: it takes requests with the time of their arrival and returns the time of their
//! completion. Time is simulated; the crate has no clock, thread, file or socket of its own. The `tessera` binary replays traces
//! on it (docs/flash.md). Each translation layer is a file or folder under `ftl/` and one row of [`ftl::LAYERS`].
//!
//! Figures count pages and blocks, not bytes: the device keeps out-of-band areas and, if asked to, a number for what
//! each page holds, but no data; an [`Emulator`] has them beside it, in a [`Backing`]. Memory is 13.5 bytes for each physical page, beside the layer's map cache.
//!
//! ```
//! use tessera_flash::{Config, Op, Ssd};
//! let mut ssd = Ssd::new(&Config::new(256 << 20, "dftl")).unwrap();
//! let written = ssd.submit(0, Op::Write, 0, 8192);
//! assert_eq!(written, 400_000, "two pages, one after the other on the only die");
//! assert!(ssd.check().is_ok());
//! ```
//!
//! Start reading at `ssd.rs` (what a request does), then `device/mod.rs` (the rules of flash), `collect.rs` (garbage
//! collection and wear levelling), `ftl/mod.rs` (what a layer implements), `mining/mod.rs` (what layers learn from),
//! `trace/mod.rs` (formats), `synthetic/mod.rs` (traces that are made), `replay.rs`, `power.rs` (power cuts), `emulator/mod.rs` and
//! `nbd/mod.rs` (an SSD that holds data, and its protocol), `record/mod.rs` (what a program asks of its disks, as a trace).

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod backing;
mod collect;
mod config;
mod device;
mod emulator;
pub mod ftl;
mod histogram;
mod host_cache;
mod memory;
pub mod mining;
pub mod nbd;
mod permutation;
mod power;
pub mod record;
mod replay;
mod ssd;
pub mod synthetic;
pub mod theory;
pub mod trace;
mod write_buffer;

pub use backing::{Backing, Memory};
pub use collect::Policy;
pub use config::{Config, ConfigError};
pub use device::{
    Cause, Counters, Device, Geometry, Grouping, Ns, Operation, Owner, PAGES_MAX, Ppn, Shape, Stream, Timing,
    parse_duration,
};
pub use emulator::{CutCount, Cuts, Emulator, Power, Refusal};
pub use histogram::Histogram;
pub use replay::{Figures, Replay, ReplayOptions};
pub use ssd::{Op, Order, Ssd, Wear};
