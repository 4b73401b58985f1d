//! The messages of Tessera and their framing.
//!
//! `proto/*.proto` defines the messages and documents every field; the build generates their Rust types: [`meta`] for
//! requests to the manager, [`data`] for requests to a node, [`log`] for the manager's command log, the root for what they
//! share. [`message`] is the table of message kinds; start there. [`frame`] is the frame header, [`rpc`] a request as
//! the sans-io cores exchange it.
//!
//! Messages are Protocol Buffers: fields have tags and unknown tags are skipped, so a new field never breaks an old peer.
//! Bulk bytes travel next to the message, as the frame's payload, and are never copied into it.
//!
//! This crate never does I/O, keeps no state and reads no clock.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod content;
pub mod frame;
mod impls;
pub mod locks;
pub mod message;
pub mod rpc;

include!(concat!(env!("OUT_DIR"), "/tessera.rs"));

pub use frame::{Frame, FrameError, FrameHeader, HEADER_BYTES};
pub use impls::{WrongContent, hex};
pub use message::{Kind, Request};

/// Requests to the manager, and requests of the manager to clients.
pub mod meta {
    include!(concat!(env!("OUT_DIR"), "/tessera.meta.rs"));

    /// Set in every [`Commit::content`] that a writer draws, and in none that the manager draws.
    pub const CONTENT_DRAWN: u64 = 1 << 62;

    /// Ids of contents of packs begin here; those of chunks stay below.
    pub const FIRST_CONTENT: u64 = 1 << 48;

    /// Nodes share work on files and contents by runs of this many ids.
    pub const SHARE_RUN: u64 = 512;

    /// Ids in [`Commit::preallocated_ids`] from here on are the client's own: it names content that the manager is believed to have.
    pub const KNOWN_ID: u64 = 1 << 63;

    /// Epochs, versions and counters rise by this much when a group of managers is restored after the loss of a majority.
    pub const RESTORE_JUMP: u64 = 1 << 20;

    /// A change of a file with more names than this recalls not all listings that show its attributes: a client with a lease on one
    /// does not cache these attributes.
    pub const MAX_LISTINGS_RECALLED: u32 = 64;

    /// Directories, entries or inodes of one [`ListMany`], [`MakeEntries`] or [`SetAttrs`].
    pub const MAX_AT_ONCE: usize = 1_024;

    /// Files of one [`CompareFiles`].
    pub const MAX_FILES_COMPARED: usize = 4_096;

    /// Pieces of a file that [`CompareFiles`] compares: a manager looks at so many for one request, which delays others by a quarter of a second.
    pub const MAX_PIECES_COMPARED: usize = 256 << 10;
}

/// Requests to a node.
pub mod data {
    include!(concat!(env!("OUT_DIR"), "/tessera.data.rs"));
}

/// The commands in the log of the metadata service.
pub mod log {
    include!(concat!(env!("OUT_DIR"), "/tessera.log.rs"));
}

/// Consensus among the peers of the metadata service.
pub mod consensus {
    include!(concat!(env!("OUT_DIR"), "/tessera.consensus.rs"));
}

/// What the manager encodes for itself: commands in its log, columns of its database. Never a request.
pub mod manager {
    include!(concat!(env!("OUT_DIR"), "/tessera.manager.rs"));
}

/// Version of the protocol that this build speaks; peers compare it in [`Hello`].
pub const PROTOCOL_VERSION: u32 = 1;
