//! Consensus among the peers of the metadata service: managers, and log voters in node daemons.
//!
//! The protocol is Raft, from the library `raft` (tikv/raft-rs). This crate drives it as a state machine: [`Peer`] takes `(now,
//! input)` and returns outputs; its only I/O is its log, through the `Disk` trait. It adds what the library leaves open: the durable
//! [`log`], snapshots as files that are copied beside the protocol, a check that a restarted peer has forgotten nothing, and who
//! the members are ([`plan`]).
//!
//! It knows nothing of commands: an entry is bytes. Managers apply entries; voters only hold them.
//!
//! The library's own encoding (protobuf 2) never sees bytes from a network: [`message`] translates every field.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod log;
pub mod message;
pub mod peer;
pub mod plan;
mod storage;

pub use peer::{Input, Output, Peer, PeerConfig, PeerError, Room, Standing};
