//! The interface between a node and its disk.
//!
//! What lives here: the [`Disk`] and [`DiskFile`] traits through which every byte that a node keeps
//! passes, their typed errors, three backends ([`RealDisk`], a directory; [`MemDisk`], memory;
//! [`SimDisk`], memory that loses power, fills up, lies and rots by a seed), the
//! identity file that says which disk of which cluster a directory is ([`Identity`]), and what record formats share ([`record`]).
//!
//! What may not: anything about segments, fragments, logs or the network. This crate knows files
//! and bytes, not what they mean; it never retries a failed sync and never hides an error.
//!
//! Start reading at `disk.rs` (the traits), then `sim/mod.rs` (the fault model in prose).

mod disk;
mod error;
mod identity;
mod mem;
mod path;
mod poison;
mod real;
pub mod record;
mod rng;
mod sim;

pub use disk::{Disk, DiskFile, DiskLock, OpenMode, Space};
pub use error::{DiskError, DiskOp};
pub use identity::{IDENTITY_BYTES, IDENTITY_FILE, IDENTITY_VERSION, Identity, IdentityError, hex16};
pub use mem::MemDisk;
pub use real::RealDisk;
pub use rng::SplitMix64;
pub use sim::{CrashKind, Fault, FaultRates, SimDisk, SimOptions};
