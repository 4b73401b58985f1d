//! The library that every front end uses: files in, verified bytes out.
//!
//! Here live the *cores* of a write ([`write::core`]) and of a read ([`read::core`]): sans-io state machines that
//! speak `tessera_wire::rpc`. [`Client`] is the shell around them: it cuts input into chunks, and has a few
//! threads, a transport, and caches under leases. Cores know no socket, file, thread or clock, so simulations
//! drive them as they are. This crate keeps no state on disk, decides nothing about placement or repair, and knows
//! no command line.
//!
//! Start at [`Client`]; for how it works, at [`exchange::Core`], then [`write::core`] and
//! [`read::core`]. Knobs are in [`config`], failures in [`error`].

mod client;
mod compare;
pub mod config;
mod context;
mod driver;
pub mod error;
pub mod exchange;
mod fetch;
#[cfg(test)]
mod handle_tests;
pub mod inodes;
pub mod job;
mod lease_cache;
pub mod locate;
mod many;
mod memory;
#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod pack_tests;
pub mod path;
mod paths;
mod prealloc;
pub mod read;
mod rewrite;
mod rpc_table;
pub mod similarity;
#[cfg(test)]
mod test_drive;
#[cfg(test)]
mod tests;
mod transport;
pub mod view;
mod workers;
pub mod write;

pub use client::Client;
pub use config::Options;
pub use error::{Cause, Error, FileError};
pub use lease_cache::RecallAnswer;
pub use memory::{Held, LEAST_MEMORY_BYTES};
pub use path::{PathError, StorePath};
pub use paths::{GetOptions, PutOptions, SmallPut};
pub use read::core::{Opened, ReadReport};
pub use read::describe::{DESCRIBED_FILES, Described};
pub use read::whole::WholeFile;
pub use read::{ReadHandle, Sink, WriteHoles};
pub use tessera_net::boot_ns;
pub use write::compact::Compacted;
pub use write::core::{Owner, Times, WriteDone};
pub use write::input::{ReadHoles, Source};
pub use write::moving::{MovedFiles, Share};
pub use write::pack::{PACK_BYTES, PACK_FILES};
pub use write::{Cancel, Progress, ProgressFn, WriteHandle};
