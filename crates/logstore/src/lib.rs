//! [`LogStore`]: a node's replica of the manager's command log (docs/formats.md, section 4).
//!
//! The crate holds entries in append-only files, snapshots, and the highest term ever seen. It does not know what an
//! entry means, which manager sends it, or when to acknowledge it.
//!
//! Rules. A sender with a lower term than the highest seen is refused (P11). Entries are contiguous. An entry that is
//! already held is not written again (P8). An entry of another term at a held position voids that position and all
//! later ones; by the protocol those were never acknowledged. Voiding begins a new file, whose header names the first
//! void position in older files. Every append is synced before it returns (P9).
//!
//! Start reading at `store.rs` (append, read, drop), then `format.rs` (bytes), `open.rs` (recovery), `snapshot.rs`.
//! This crate starts no thread and reads no clock.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod error;
mod format;
mod open;
mod snapshot;
mod store;

pub use error::{LogDamage, LogError, LogOpenError};
pub use open::LogReport;
pub use snapshot::Snapshot;
pub use store::{ENTRY_MAX_BYTES, LogEntry, LogOptions, LogState, LogStore};
