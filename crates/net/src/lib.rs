//! Sockets under the wire: connections, their threads and buffers.
//!
//! A [`Connection`] carries frames both ways: either side may call, and replies are matched to calls by request
//! id. [`Server`] accepts connections on TCP and Unix sockets; [`Dialer`] keeps connections to peers, opens
//! them when first needed, and turns every failure into an error reply. Payloads are received into buffers of a
//! [`BufferPool`] and sent gathered (`writev`) or straight from a file (`sendfile`). [`Managers`] finds the leader among the
//! managers of a cluster.
//!
//! This crate knows frames, the greeting and errors, no other message. It uses plain threads: one
//! serves each connection and runs its [`Service`]; a thread that sends writes what the socket takes at once and leaves
//! the rest to that one. Another sends keepalive frames for all of them. No call of this crate waits for a peer that does not read. [`Limits`] bounds what the peers of a
//! server take. Start at [`connection`].

pub mod buffer;
mod clock;
pub mod connection;
pub mod dialer;
pub mod endpoint;
mod keepalive;
mod limits;
pub mod managers;
mod outbox;
mod reading;
mod sending;
pub mod server;
mod sync;
mod told;

pub use buffer::{Account, BufferPool, PooledBuf};
pub use clock::boot_ns;
pub use connection::{Callback, Connection, End, Service};
pub use dialer::Dialer;
pub use endpoint::{Endpoint, Stream, machine};
pub use limits::Limits;
pub use managers::{ManagerList, Managers};
pub use sending::{FileRange, Part};
pub use server::{Server, ServerError, probe};

#[cfg(test)]
mod keepalive_tests;
#[cfg(test)]
mod limit_tests;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;
