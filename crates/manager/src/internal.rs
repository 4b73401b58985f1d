//! The commands that the manager proposes to itself. `crates/wire/proto/manager.proto` defines their messages; their
//! numbers and handlers are rows of the table in [`crate::log::registry`].
//!
//! Every command is a compare-and-swap on rows: a command that comes too late changes nothing and is no error.

use bytes::Bytes;
pub use tessera_wire::manager::*;

/// A command the manager proposes to itself: logged and applied like a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// Number of the command, from 0x8000 on.
    pub kind: u32,
    /// The encoded command.
    pub body: Bytes,
}

/// The command for a list, unless the list is empty.
pub fn propose_all<T, C: Internal>(list: Vec<T>, command: impl FnOnce(Vec<T>) -> C) -> Option<Proposal> {
    (!list.is_empty()).then(|| command(list).propose())
}

/// An internal command.
pub trait Internal: prost::Message + Default + Sized {
    /// Its number, from 0x8000 on; never reused.
    const KIND: u32;

    /// Encodes it as a proposal.
    fn propose(&self) -> Proposal {
        Proposal { kind: Self::KIND, body: self.encode_to_vec().into() }
    }
}
