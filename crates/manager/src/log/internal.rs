//! Logged commands that the manager proposes to itself about groups, nodes, disks and fragments: what it decided
//! from soft state (silence of a node, free space, results of tasks). Kinds 0x8100 to 0x81ff, never reused.
//!
//! A decision that depends on soft state is written into its command in full (which disk, which cursor, which
//! bound), so that applying the log again needs no soft state. Every command is a compare-and-swap on rows: one that
//! came too late changes nothing and is no error.

use crate::state::Internal;
use tessera_wire::{Health, meta::FragmentRef};

macro_rules! internal {
    ($($(#[$doc:meta])* $number:literal $name:ident;)*) => {
        $(impl Internal for $name { const KIND: u32 = $number; })*

        /// One internal command on its way to the log.
        #[derive(Debug, Clone, PartialEq)]
        pub enum InternalCommand { $($(#[$doc])* $name($name),)* }

        impl InternalCommand {
            /// Decodes a logged command; None for a kind this release does not know.
            pub fn decode(kind: u32, body: &[u8]) -> Option<Result<InternalCommand, prost::DecodeError>> {
                Some(match kind {
                    $($number => <$name as prost::Message>::decode(body).map(InternalCommand::$name),)*
                    _ => return None,
                })
            }
        }

        $(impl From<$name> for InternalCommand {
            fn from(command: $name) -> Self { InternalCommand::$name(command) }
        })*
    };
}

internal! {
    /// A node fell silent, was given up, or beats again.
    0x8110 SetNodeHealth;
    /// Disks failed.
    0x8111 FailDisks;
    /// Members get (or lose) an incoming disk.
    0x8112 MoveMembers;
    /// A fill got further.
    0x8113 AdvanceBackfill;
    /// Fills are through: the incoming disks take over.
    0x8114 FinishBackfills;
    /// Fragments are in place again.
    0x8115 FragmentsDone;
    /// Fragments are bad or absent.
    0x8116 FragmentsBad;
    /// Nodes have synced these delete records.
    0x8117 DeletesDone;
    /// Remove chunks that nothing reaches.
    0x8118 CollectGarbage;
    /// Disks are to be listed, or have been.
    0x8119 SetInventory;
    /// A page of what a disk holds.
    0x811a InventoryPage;
    /// Drained disks are empty.
    0x811b DisksDrained;
    /// New groups, and groups that take no more chunks.
    0x811c SetGroups;
}

/// Sets a node's health: [`Health::Down`], [`Health::Out`] or [`Health::Up`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetNodeHealth {
    /// The node.
    #[prost(uint64, tag = "1")]
    pub node_id: u64,
    /// The life of it that this is about; nothing happens to a later one (P11).
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// New health.
    #[prost(enumeration = "Health", tag = "3")]
    pub health: i32,
}

/// Declares disks lost.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FailDisks {
    /// The disks.
    #[prost(uint64, repeated, tag = "1")]
    pub disk_ids: Vec<u64>,
}

/// Gives one member a disk to be filled, or takes it away.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Move {
    /// Group.
    #[prost(uint64, tag = "1")]
    pub pg_id: u64,
    /// Member.
    #[prost(uint32, tag = "2")]
    pub position: u32,
    /// The member's disk when this was decided.
    #[prost(uint64, tag = "3")]
    pub disk_id: u64,
    /// Its incoming disk when this was decided; 0: none.
    #[prost(uint64, tag = "4")]
    pub incoming_was: u64,
    /// The new incoming disk; 0: give the move up.
    #[prost(uint64, tag = "5")]
    pub incoming: u64,
}

/// See [`Move`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct MoveMembers {
    /// The moves, each on its own.
    #[prost(message, repeated, tag = "1")]
    pub moves: Vec<Move>,
}

/// The fill of a member has passed more chunks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AdvanceBackfill {
    /// Group.
    #[prost(uint64, tag = "1")]
    pub pg_id: u64,
    /// Member.
    #[prost(uint32, tag = "2")]
    pub position: u32,
    /// The disk that is being filled.
    #[prost(uint64, tag = "3")]
    pub incoming: u64,
    /// Cursor before.
    #[prost(uint64, tag = "4")]
    pub from: u64,
    /// Cursor after.
    #[prost(uint64, tag = "5")]
    pub to: u64,
    /// Chunks passed whose fragment the incoming disk now has. Committed ones between the cursors that are not
    /// named here become missing rows.
    #[prost(uint64, repeated, tag = "6")]
    pub done: Vec<u64>,
}

/// A member whose fill is through.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FinishBackfill {
    /// Group.
    #[prost(uint64, tag = "1")]
    pub pg_id: u64,
    /// Member.
    #[prost(uint32, tag = "2")]
    pub position: u32,
    /// The disk that takes over.
    #[prost(uint64, tag = "3")]
    pub incoming: u64,
}

/// See [`FinishBackfill`]. Applying checks again that nothing is left to fill (P6).
#[derive(Clone, PartialEq, prost::Message)]
pub struct FinishBackfills {
    /// The members.
    #[prost(message, repeated, tag = "1")]
    pub fills: Vec<FinishBackfill>,
}

/// Fragments that nodes have put in place and synced; each with the epoch of the put and the disk.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FragmentsDone {
    /// The fragments.
    #[prost(message, repeated, tag = "1")]
    pub fragments: Vec<FragmentRef>,
}

/// Fragments that nodes have verified to be bad or absent, with the disk that should hold each.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FragmentsBad {
    /// The fragments.
    #[prost(message, repeated, tag = "1")]
    pub fragments: Vec<FragmentRef>,
}

/// Deletes that are on disk.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeletesDone {
    /// The fragments, with their disks.
    #[prost(message, repeated, tag = "1")]
    pub fragments: Vec<FragmentRef>,
}

/// Removes chunks at zero references since before `before_ns`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CollectGarbage {
    /// Start of the oldest session that lived when this was decided, soft readers included (P4).
    #[prost(sint64, tag = "1")]
    pub before_ns: i64,
    /// At most so many chunks.
    #[prost(uint32, tag = "2")]
    pub limit: u32,
}

/// Asks for inventories of disks, or ends one.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetInventory {
    /// Disks to list.
    #[prost(uint64, repeated, tag = "1")]
    pub want: Vec<u64>,
    /// A disk that was listed to its end; 0: none.
    #[prost(uint64, tag = "2")]
    pub done_disk_id: u64,
    /// `inventory_wanted` when the list began: what was asked for since is still to be done.
    #[prost(uint64, tag = "3")]
    pub done_wanted: u64,
}

/// What a disk holds between two fragments.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InventoryPage {
    /// The disk.
    #[prost(uint64, tag = "1")]
    pub disk_id: u64,
    /// The page starts behind this fragment.
    #[prost(message, optional, tag = "2")]
    pub after: Option<FragmentRef>,
    /// Everything held from there to the last of these.
    #[prost(message, repeated, tag = "3")]
    pub held: Vec<FragmentRef>,
    /// To the end.
    #[prost(bool, tag = "4")]
    pub last: bool,
    /// Chunks below this id were committed before the disk began to list, but for those in `pending`: what lacks of them is
    /// missing.
    #[prost(uint64, tag = "5")]
    pub bound: u64,
    /// Chunks of this page that were not committed then.
    #[prost(uint64, repeated, tag = "6")]
    pub pending: Vec<u64>,
}

/// Draining disks that no group uses any more.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DisksDrained {
    /// The disks.
    #[prost(uint64, repeated, tag = "1")]
    pub disk_ids: Vec<u64>,
}

/// Member disks of a new group, in order of position.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NewGroup {
    /// Disk ids.
    #[prost(uint64, repeated, tag = "1")]
    pub disk_ids: Vec<u64>,
}

/// Opens and closes groups.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetGroups {
    /// Groups to create.
    #[prost(message, repeated, tag = "1")]
    pub create: Vec<NewGroup>,
    /// Groups that reached their size cap.
    #[prost(uint64, repeated, tag = "2")]
    pub close: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_survive_the_log() {
        let command = AdvanceBackfill { pg_id: 1, position: 2, incoming: 3, from: 4, to: 5, done: vec![6] };
        let logged = command.propose();
        let decoded = InternalCommand::decode(logged.kind, &logged.body).unwrap().unwrap();
        assert_eq!(decoded, command.into());
        assert!(InternalCommand::decode(0xffff, &[]).is_none());
    }
}
