//! Messages of the commands that the manager proposes to itself. They carry decisions from soft state (unused sessions,
//! silent nodes, free space, results of tasks). Their numbers and handlers are rows of the table in
//! [`crate::log::registry`].
//!
//! A command contains its decision in full (which disk, which cursor, which bound), so that a replay of the log needs no
//! soft state. Every command is a compare-and-swap on rows: a command that comes too late changes nothing and is no error.

use bytes::Bytes;
use tessera_wire::{Health, meta::FragmentRef};

/// A command the manager proposes to itself: logged and applied like a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// Number of the command, from 0x8000 on.
    pub kind: u32,
    /// The encoded command.
    pub body: Bytes,
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

/// A manager has started, or continues after a failed commit: its entries have this term from now on.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NewTerm {
    #[prost(uint64, tag = "1")]
    pub term: u64,
    /// The database was rebuilt from log replicas: what nodes learned after the last acknowledged entry is
    /// unknown, so epochs and incarnations jump past it (P11).
    #[prost(bool, tag = "2")]
    pub restored: bool,
}

/// A request was refused: a retry gets the same reply (P8).
#[derive(Clone, PartialEq, prost::Message)]
pub struct RecordRefusal {
    /// Client that sent it.
    #[prost(uint64, tag = "1")]
    pub client_id: u64,
    #[prost(uint64, tag = "2")]
    pub op_id: u64,
    #[prost(message, optional, tag = "3")]
    pub error: Option<tessera_wire::Error>,
}

/// Ends sessions that were unused for too long.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EndSessions {
    #[prost(uint64, repeated, tag = "1")]
    pub session_ids: Vec<u64>,
}

/// A reader that has lived long enough to get a row.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReaderRow {
    #[prost(uint64, tag = "1")]
    pub session_id: u64,
    #[prost(uint64, tag = "2")]
    pub client_id: u64,
    /// When it was opened.
    #[prost(sint64, tag = "3")]
    pub started_ns: i64,
    #[prost(uint64, tag = "4")]
    pub ino: u64,
    /// Version id.
    #[prost(uint64, tag = "5")]
    pub version: u64,
    #[prost(uint64, tag = "6")]
    pub number: u64,
}

/// Writes rows for readers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PersistReaders {
    #[prost(message, repeated, tag = "1")]
    pub readers: Vec<ReaderRow>,
}

/// Drops old versions of these files, which no longer have readers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrimVersions {
    #[prost(uint64, repeated, tag = "1")]
    pub inos: Vec<u64>,
}

/// Removes files that have neither a name nor a session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReleaseOrphans {
    #[prost(uint64, repeated, tag = "1")]
    pub inos: Vec<u64>,
}

/// Subtracts the references of dropped pages.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SweepPages {
    /// Most pages to sweep.
    #[prost(uint32, tag = "1")]
    pub limit: u32,
}

/// Removes cached replies that no client will request again.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PruneReplies {
    /// Last group commit whose replies are removed.
    #[prost(uint64, tag = "1")]
    pub to_seq: u64,
}

/// Clients may hold leases from now on; a restarted manager waits until they have expired.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NoteLeases {}

/// Clients that may hold locks: a restarted manager lets them claim their locks before it grants any.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NoteLockers {
    /// All such clients.
    #[prost(fixed64, repeated, tag = "1")]
    pub client_ids: Vec<u64>,
}

/// Removes those of these files that have expired.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExpireFiles {
    #[prost(uint64, repeated, tag = "1")]
    pub inos: Vec<u64>,
}

/// Sets a node's health: [`Health::Down`], [`Health::Out`] or [`Health::Up`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetNodeHealth {
    #[prost(uint64, tag = "1")]
    pub node_id: u64,
    /// Its incarnation; the command does not apply to a later one (P11).
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// New health.
    #[prost(enumeration = "Health", tag = "3")]
    pub health: i32,
}

/// Declares disks lost.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FailDisks {
    #[prost(uint64, repeated, tag = "1")]
    pub disk_ids: Vec<u64>,
}

/// Sets or clears the incoming disk of one member.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Move {
    #[prost(uint64, tag = "1")]
    pub pg_id: u64,
    #[prost(uint32, tag = "2")]
    pub position: u32,
    /// The member's disk when this was decided.
    #[prost(uint64, tag = "3")]
    pub disk_id: u64,
    /// Its incoming disk when this was decided; 0: none.
    #[prost(uint64, tag = "4")]
    pub incoming_was: u64,
    /// The new incoming disk; 0 cancels the move.
    #[prost(uint64, tag = "5")]
    pub incoming: u64,
}

/// See [`Move`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct MoveMembers {
    /// The moves; each applies independently.
    #[prost(message, repeated, tag = "1")]
    pub moves: Vec<Move>,
}

/// The backfill of a member has passed more chunks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AdvanceBackfill {
    #[prost(uint64, tag = "1")]
    pub pg_id: u64,
    #[prost(uint32, tag = "2")]
    pub position: u32,
    /// The disk that is being backfilled.
    #[prost(uint64, tag = "3")]
    pub incoming: u64,
    /// Cursor before.
    #[prost(uint64, tag = "4")]
    pub from: u64,
    /// Cursor after.
    #[prost(uint64, tag = "5")]
    pub to: u64,
    /// Passed chunks whose fragment the incoming disk now has. Committed chunks between the cursors that are not listed
    /// here get missing rows.
    #[prost(uint64, repeated, tag = "6")]
    pub done: Vec<u64>,
}

/// A member whose backfill is complete.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FinishBackfill {
    #[prost(uint64, tag = "1")]
    pub pg_id: u64,
    #[prost(uint32, tag = "2")]
    pub position: u32,
    /// The disk that takes over.
    #[prost(uint64, tag = "3")]
    pub incoming: u64,
}

/// See [`FinishBackfill`]. The handler checks again that the backfill is complete (P6).
#[derive(Clone, PartialEq, prost::Message)]
pub struct FinishBackfills {
    #[prost(message, repeated, tag = "1")]
    pub fills: Vec<FinishBackfill>,
}

/// Fragments that nodes have put in place and synced; each with the epoch of the put and the disk.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FragmentsDone {
    #[prost(message, repeated, tag = "1")]
    pub fragments: Vec<FragmentRef>,
}

/// Fragments that nodes have found bad or absent, with the disk that should hold each.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FragmentsBad {
    #[prost(message, repeated, tag = "1")]
    pub fragments: Vec<FragmentRef>,
}

/// Deletes that nodes have synced.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeletesDone {
    /// The fragments, with their disks.
    #[prost(message, repeated, tag = "1")]
    pub fragments: Vec<FragmentRef>,
}

/// Removes chunks that have had no references since before `before_ns`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CollectGarbage {
    /// Start of the oldest session that was live at the decision, readers without rows included (P4).
    #[prost(sint64, tag = "1")]
    pub before_ns: i64,
    /// Most chunks to remove.
    #[prost(uint32, tag = "2")]
    pub limit: u32,
}

/// Asks for inventories of disks, or ends one.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetInventory {
    /// Disks to list.
    #[prost(uint64, repeated, tag = "1")]
    pub want: Vec<u64>,
    /// A disk whose inventory is complete; 0: none.
    #[prost(uint64, tag = "2")]
    pub done_disk_id: u64,
    /// `inventory_wanted` when the inventory began; an inventory requested since then is still due.
    #[prost(uint64, tag = "3")]
    pub done_wanted: u64,
}

/// A page of a disk's inventory: the fragments that it holds in a range.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InventoryPage {
    #[prost(uint64, tag = "1")]
    pub disk_id: u64,
    /// The page starts after this fragment.
    #[prost(message, optional, tag = "2")]
    pub after: Option<FragmentRef>,
    /// All fragments held from there to the last one listed.
    #[prost(message, repeated, tag = "3")]
    pub held: Vec<FragmentRef>,
    /// The page reaches the end of the inventory.
    #[prost(bool, tag = "4")]
    pub last: bool,
    /// Chunks below this id were committed before the disk began to list, except those in `pending`: absent ids below it are
    /// missing.
    #[prost(uint64, tag = "5")]
    pub bound: u64,
    /// Chunks of this page that were not committed at that time.
    #[prost(uint64, repeated, tag = "6")]
    pub pending: Vec<u64>,
}

/// Draining disks that no group uses.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DisksDrained {
    #[prost(uint64, repeated, tag = "1")]
    pub disk_ids: Vec<u64>,
}

/// Member disks of a new group, in order of position.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NewGroup {
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
