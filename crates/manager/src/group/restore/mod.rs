//! Restores a group that has lost its majority for ever, from the peers that are left of it.
//!
//! A [`Survey`] finds out what is left and refuses where a majority still answers. [`Restore::run`] then fences every peer that is
//! left, so that none of them takes part in the old group again, reads the newest state, and makes a group of one in an empty directory.
//! The new group begins far above every term of the old one (`tessera_consensus::peer::fencing`): peers and nodes that have
//! met it refuse the old one for ever, even if all of it comes back.
//!
//! Entries that no majority may have synced are kept: the lost peers may have acknowledged them.

mod build;
mod read;
mod survey;

pub use survey::{PeerState, Survey};

use super::GroupError;
use crate::db::DbError;
use crate::log::batch::ReplayError;
use bytes::Bytes;
use std::path::PathBuf;
use tessera_wire::consensus::Member;
use tessera_wire::{Error, Request};

/// Present in a manager's directory while it is being restored: the restore's number and term, in the format of a fence.
pub const RESTORING_FILE: &str = crate::db::RESTORING_NAME;

/// How a restore speaks to peers.
pub trait Ask {
    /// Asks the peer at `address`, and waits.
    ///
    /// # Errors
    /// The peer's, or why it cannot be asked.
    fn ask<R: Request>(&self, address: &str, request: &R) -> Result<(R::Reply, Bytes), Error>;
}

/// A restore.
pub struct Restore<'a, A> {
    /// The way to the peers.
    pub ask: &'a A,
    /// The directory of the new manager: empty, or left by the same restore when it was interrupted. It is locked.
    pub dir: PathBuf,
    /// The new manager. Its id is drawn if it is 0.
    pub member: Member,
    /// Name, address or id of the peer whose state is to be taken; `None`: the newest.
    pub state_of: Option<String>,
    /// Take an older state, and replace the fence of another restore.
    pub force: bool,
}

/// What a restore made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The peer whose state was taken.
    pub from: Member,
    /// Term and index of its last entry.
    pub state: (u64, u64),
    /// The term after which the new group begins.
    pub term: u64,
}

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Nobody answers.
    #[error(
        "none of {addresses} answers as a peer of the metadata service ({why}); name nodes or managers that still run, with --from"
    )]
    NoPeer {
        /// The addresses.
        addresses: String,
        /// What the last one said.
        why: String,
    },
    /// Peers of two clusters are named.
    #[error("{a} belongs to another cluster than {b}; name peers of one cluster with --from")]
    TwoClusters {
        /// An address.
        a: String,
        /// Another.
        b: String,
    },
    /// The peers that answer hold nothing.
    #[error("none of the peers that answer is a member of the group ({answered}); name more addresses with --from")]
    NoMember {
        /// Their names.
        answered: String,
    },
    /// The group can go on by itself.
    #[error(
        "{up} of the {voters} peers that vote answer, which is a majority: nothing needs to be restored; start a manager with an empty \
         directory and --join {addresses}"
    )]
    Majority {
        /// Voters that answer.
        up: usize,
        /// Voters.
        voters: usize,
        /// Addresses of members that answer.
        addresses: String,
    },
    /// Another restore has begun, or has been done.
    #[error(
        "{peer}: {why}; if that restore was given up, and its directory is lost, add --force: of two restored groups only one may ever be \
         started"
    )]
    Fenced {
        /// The peer.
        peer: String,
        /// Its fence.
        why: String,
    },
    /// A peer that answers could not be fenced.
    #[error("{peer} answers, but cannot be fenced ({why}); mend it, or stop it for ever, and restore again")]
    CannotFence {
        /// The peer.
        peer: String,
        /// Why.
        why: String,
    },
    /// A state would be taken although a newer one is known.
    #[error(
        "the state of {taken} ends at term {}, entry {}, that of {newest} at term {}, entry {}{}; what was acknowledged in between \
         would be lost: mend {newest}, or take the older state with --force", .state.0, .state.1, .newer.0, .newer.1, because(.why)
    )]
    Older {
        /// The peer with the older state.
        taken: String,
        /// Term and index of its last entry.
        state: (u64, u64),
        /// The peer with the newest state.
        newest: String,
        /// Its term and index.
        newer: (u64, u64),
        /// Why that one is not taken; may be empty.
        why: String,
    },
    /// No state can be read.
    #[error("the state of {peer} cannot be read ({why}), and no other peer that answers has it")]
    Unreadable {
        /// The peer.
        peer: String,
        /// Why.
        why: String,
    },
    /// `--state-of` names no peer that answers.
    #[error("no member that answers is called {word}; there are: {names}")]
    NoSuchPeer {
        /// The word.
        word: String,
        /// The peers that answer.
        names: String,
    },
    /// The directory is in use.
    #[error("{dir}: holds a manager already; start it without --restore, or restore into an empty directory")]
    Occupied {
        /// The directory.
        dir: String,
    },
    /// The state does not replay.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The directory, the database or the log failed.
    #[error(transparent)]
    Group(#[from] GroupError),
}

fn because(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(" ({why})") }
}

impl From<DbError> for RestoreError {
    fn from(error: DbError) -> Self {
        RestoreError::Group(error.into())
    }
}

impl From<rusqlite::Error> for RestoreError {
    fn from(error: rusqlite::Error) -> Self {
        RestoreError::Group(error.into())
    }
}

impl From<tessera_consensus::log::LogError> for RestoreError {
    fn from(error: tessera_consensus::log::LogError) -> Self {
        RestoreError::Group(error.into())
    }
}

impl From<tessera_consensus::log::LogOpenError> for RestoreError {
    fn from(error: tessera_consensus::log::LogOpenError) -> Self {
        RestoreError::Group(error.into())
    }
}
