//! The messages of Tessera and how they are framed; nothing else.
//!
//! Here live the frame header ([`frame`]), the types that several messages share ([`common`], [`class`]), and the
//! messages themselves: what clients and nodes ask the manager ([`meta`]), what anybody asks a node
//! ([`data`]), and the entries of the manager's command log ([`log`]). Messages are Protocol Buffers
//! (tagged fields, unknown ones skipped), so a new field never breaks an old peer; bulk bytes
//! travel beside the message as the frame's payload and are never copied into it. docs/wire.md draws it all.
//!
//! This crate never does I/O, keeps no state and knows no clock. Start at [`message`], the table of
//! message kinds.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod class;
pub mod common;
pub mod data;
pub mod error;
pub mod frame;
pub mod log;
pub mod message;
pub mod meta;
pub mod rpc;

pub use class::ClassInfo;
pub use common::*;
pub use error::{Code, Error};
pub use frame::{Frame, FrameError, FrameHeader, HEADER_BYTES};
pub use message::{Kind, Request};

/// Version of the protocol that this build speaks; peers compare it in [`common::Hello`].
pub const PROTOCOL_VERSION: u32 = 1;
