//! The library every front end uses: files in, verified bytes out.
//!
//! Here live the *cores* of a write ([`write_core`]) and of a read ([`read_core`]), sans-io state machines that
//! speak `tessera_wire::rpc`; the pure *jobs* they have computed ([`job`]); and the shell around them that
//! [`Client`] offers: a pipeline that cuts and names chunks, a few threads, a transport, caches under leases.
//! Cores know no socket, file, thread or clock; simulations drive them as they are. This crate keeps no state
//! on disk, decides nothing about placement or repair, and knows no command line.
//!
//! Start at [`Client`], or, for how it works, at [`write_core::WriteCore::handle`] and
//! [`read_core::ReadCore::handle`]. Knobs are in [`config`], failures in [`error`].

pub mod cache;
mod calls;
pub mod class;
pub mod client;
pub mod config;
pub mod error;
#[cfg(test)]
pub(crate) mod fake;
mod fetch;
pub mod inodes;
pub mod job;
pub mod locate;
pub mod locks;
mod namespace;
pub mod path;
mod pipeline;
pub mod preallocated;
mod read;
pub mod read_core;
mod rewrite;
mod session;
mod shell;
pub mod similarity;
#[cfg(test)]
mod tests;
pub mod transport;
pub mod view;
mod workers;
mod write;
pub mod write_core;

pub use client::{Client, GetOptions, PutMode, PutOptions};
pub use config::Options;
pub use error::{Error, PathOpError, ReadError, WriteError};
pub use path::{PathError, StorePath};
pub use pipeline::Source;
pub use read::{ReadHandle, Sink, WriteHoles};
pub use read_core::{Opened, ReadReport};
pub use write::{Cancel, Progress, ProgressFn, WriteHandle};
pub use write_core::{Owner, WriteDone};
