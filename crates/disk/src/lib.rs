//! The interface between a node and its disk.
//!
//! The crate holds the [`Disk`] and [`DiskFile`] traits, through which a node stores every byte, and their typed
//! errors. It has two backends: [`RealDisk`], a directory; [`SimDisk`], memory with power losses, full disks, lying syncs
//! and bit rot, all drawn from a seed. It also holds the identity file, which says which disk of which cluster a
//! directory is ([`Identity`]), and code that file formats share ([`record`]).
//!
//! It knows nothing of segments, fragments, logs or the network: only files and bytes. It never retries a failed sync
//! and never hides an error.
//!
//! Start reading at `disk.rs` (the traits), then `sim/mod.rs` (the fault model in prose).

mod disk;
mod error;
mod identity;
mod limit;
mod path;
mod poison;
mod real;
pub mod record;
mod rng;
mod sim;

pub use disk::{Disk, DiskFile, DiskLock, OpenMode, Space};
pub use error::{DiskError, DiskOp};
pub use identity::{IDENTITY_BYTES, IDENTITY_FILE, IDENTITY_VERSION, Identity, IdentityError, hex16};
pub use real::{RealDisk, create_dir_durably};
pub use rng::SplitMix64;
pub use sim::{CrashKind, Fault, FaultRates, SimDisk, SimOptions};
