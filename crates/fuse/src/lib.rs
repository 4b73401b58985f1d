//! The mount's shell: a store as an ordinary directory, through FUSE.
//!
//! The mount itself is `tessera_mount`, which this crate runs: it translates the kernel's requests ([`fs`]), gives
//! each operation a thread ([`block_on`]), carries out the core's requests by the client library ([`backend`]), and
//! owns what belongs to the system: the mount in the kernel's table (`attached`), the threads that tell the kernel what
//! to drop (`notices`) and those that use the mount as programs do ([`loopback`]), the process that ends the kernel's
//! connection when this one is killed (`guard`), what the kernel knows of callers that wait for locks ([`callers`],
//! [`locking`]), and the spool's directory ([`spool`]). Start at [`Mount::new`]; docs/mount.md says what a mount
//! promises.

mod attached;
pub mod attr;
pub mod backend;
pub mod block_on;
pub mod callers;
pub mod counts;
mod expiry;
pub mod fs;
mod guard;
pub mod locking;
pub mod loopback;
mod mount;
mod notices;
pub mod spool;

pub use attached::{Attached, SOURCE, is_dead};
pub use counts::MountMetrics;
pub use mount::{Mount, MountError, Options};
