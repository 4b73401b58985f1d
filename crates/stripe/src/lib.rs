//! Redundancy classes: how the bytes of a chunk become fragments, and how fragments become the chunk again.
//!
//! The manager counts with [`ClassLayout`]; the client encodes with [`encode()`] and reads with [`DecodeJob`] and [`RangeJob`]; a
//! node rebuilds lost fragments with [`RebuildJob`]. Reading and rebuilding try the same sets of fragments in the same order under
//! the same bound ([`MAX_SETS`]), so what a client can read a node can repair.
//!
//! Every function here is pure: no socket, disk, clock or thread. Of `net`, only the buffer pool is used. Bytes leave
//! this crate as a chunk, a part of one, or a rebuilt fragment only if they were verified against the chunk's name
//! (P2).
//!
//! | to learn | read |
//! |---|---|
//! | which fragments suffice, how long each is | `layout` |
//! | which bytes of the chunk a fragment holds | `class` |
//! | chunk to fragments | `encode` |
//! | fragments to chunk, and which fragments are wrong | `decode` |
//! | a range of a chunk in 16 KiB groups | `range` |
//! | whether bytes are a part of the chunk that a name says | `part` |
//! | what a node says it checked and stored | `receipt` |
//! | one lost fragment | `rebuild` |

mod class;
mod decode;
mod encode;
mod layout;
mod part;
mod range;
mod rebuild;
mod receipt;

pub use class::{Class, ClassError};
pub use decode::{DecodeJob, Decoded, MAX_SETS};
pub use encode::{encode, fragment};
pub use layout::{COPIES, COPY_AND_REED_SOLOMON, ClassLayout, REED_SOLOMON, XOR, describe};
pub use part::{PartError, check_part, edge_leaves};
pub use range::{RangeJob, RangePart, slices, steps_around};
pub use rebuild::{RebuildJob, Rebuilt};
pub use receipt::{KEY_BYTES, StoredFragment};

use bytes::Bytes;

/// One fragment of a chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct Fragment {
    /// Its number in the class.
    pub number: u32,
    /// Its bytes.
    pub bytes: Bytes,
    /// Its crc32c: computed by [`encode()`], or as a disk stores it, which may disagree with the bytes.
    pub crc32c: u32,
}
