//! Reading and writing: sessions, the dedup question, commits, extents, what was found bad.

use super::{ClusterMap, Entry, InoRange, VersionInfo};
use crate::class::ClassInfo;
use crate::common::*;

/// A chunk by content.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkName {
    /// BLAKE3-256, 32 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub hash: bytes::Bytes,
    /// Length in bytes.
    #[prost(uint64, tag = "2")]
    pub len_bytes: u64,
    /// Region of the file it is in, when the file's regions go to different hosts (`placement=scatter`); else 0.
    #[prost(uint64, tag = "3")]
    pub region: u64,
}

/// Open a write session on `parent`/`name` (created at commit if it is not there) or on `ino`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OpenWrite {
    /// Idempotency number.
    #[prost(uint64, tag = "1")]
    pub op_id: u64,
    /// Directory; 0 when `ino` is given.
    #[prost(uint64, tag = "2")]
    pub parent: u64,
    /// Name in it.
    #[prost(bytes = "vec", tag = "3")]
    pub name: Vec<u8>,
    /// File, when `parent` is 0. Else the number that a new file gets, of [`super::InoRange`]; 0: any.
    #[prost(uint64, tag = "4")]
    pub ino: u64,
    /// Hints that override the file's and the directory's for this write; kept with a new file.
    #[prost(message, repeated, tag = "5")]
    pub hints: Vec<Hint>,
    /// Expected bytes, 0 if unknown: that much space is reserved at once, as far as there is room; more by [`RenewSession`].
    #[prost(uint64, tag = "6")]
    pub size_hint_bytes: u64,
    /// First dedup question, saving small files a round trip; needs `redundancy`.
    #[prost(message, repeated, tag = "7")]
    pub chunks: Vec<ChunkName>,
    /// Class the chunks are for: `ec:4+2`, … ; `auto` is resolved by `size_hint_bytes`.
    #[prost(string, tag = "8")]
    pub redundancy: String,
    /// Map the client has (see [`ClusterMap::version`]).
    #[prost(uint64, tag = "9")]
    pub known_map_version: u64,
    /// Host label of the writer: where `placement=local` is. Empty: none.
    #[prost(string, tag = "10")]
    pub host: String,
    /// PreallocatedChunks of the class that is wanted with the answer, for files to come; the manager gives as many as it likes.
    #[prost(uint32, tag = "11")]
    pub preallocate: u32,
    /// With [`Commit::open`]: inode numbers that are wanted with the answer, for files to come; the manager gives as many as it likes.
    #[prost(uint32, tag = "12")]
    pub inos: u32,
    /// How `chunks` were cut (a value of the hint `chunking`). A [`Commit::open`] of a file that asks for other cuts is refused (`SessionExpired`:
    /// open the file). Empty: not said.
    #[prost(string, tag = "13")]
    pub chunking: String,
}

/// Chunk ids with a group and no content yet: what small files to come are stored under, so that each needs one trip to the
/// manager ([`Commit::open`]). Each serves one chunk, once.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreallocatedChunks {
    /// A session of their own. It ends like any that is not renewed (a commit that names it renews it), and they with it.
    #[prost(uint64, tag = "1")]
    pub session_id: u64,
    /// After how long.
    #[prost(uint64, tag = "2")]
    pub session_ms: u64,
    /// Their ids and groups; all are [`ChunkState::New`].
    #[prost(message, repeated, tag = "3")]
    pub chunks: Vec<ChunkAnswer>,
    /// The class they are of.
    #[prost(message, optional, tag = "4")]
    pub class: Option<ClassInfo>,
    /// The domain they are of.
    #[prost(uint32, tag = "5")]
    pub domain: u32,
    /// Map for their groups.
    #[prost(message, optional, tag = "6")]
    pub map: Option<ClusterMap>,
}

/// A write session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OpenWriteReply {
    /// The session.
    #[prost(uint64, tag = "1")]
    pub session_id: u64,
    /// The file, 0 if it will be created.
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    /// Current version: base of a patch; 0 for a new file.
    #[prost(uint64, tag = "3")]
    pub base_version: u64,
    /// Its length.
    #[prost(uint64, tag = "4")]
    pub base_size_bytes: u64,
    /// All hints in effect, defaults included, in canonical form.
    #[prost(message, repeated, tag = "5")]
    pub policy: Vec<Hint>,
    /// The session ends when it is not renewed for this long.
    #[prost(uint64, tag = "6")]
    pub session_ms: u64,
    /// Domain whose chunks the file may share.
    #[prost(uint32, tag = "7")]
    pub domain: u32,
    /// Answer to `chunks`.
    #[prost(message, optional, tag = "8")]
    pub allocated: Option<AllocateChunksReply>,
    /// Answer to `preallocated`.
    #[prost(message, optional, tag = "9")]
    pub preallocated: Option<PreallocatedChunks>,
}

/// Which of these exist, and where do new ones go? Chunks repeated in one question are answered once each, alike.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateChunks {
    /// Idempotency number.
    #[prost(uint64, tag = "1")]
    pub op_id: u64,
    /// Session.
    #[prost(uint64, tag = "2")]
    pub session_id: u64,
    /// Class: `ec:4+2`, `replica:3`, `none`.
    #[prost(string, tag = "3")]
    pub redundancy: String,
    /// The chunks.
    #[prost(message, repeated, tag = "4")]
    pub chunks: Vec<ChunkName>,
    /// Groups that just failed this client: not these.
    #[prost(uint64, repeated, tag = "5")]
    pub avoid_pgs: Vec<u64>,
    /// As in [`OpenWrite`].
    #[prost(uint64, tag = "6")]
    pub known_map_version: u64,
}

/// What is known of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ChunkState {
    /// Not set.
    Unknown = 0,
    /// Stored with all its redundancy: reuse it, send nothing.
    Durable = 1,
    /// Known, but the fragments in `missing` must be supplied before commit.
    Incomplete = 2,
    /// Now allocated: supply all fragments.
    New = 3,
}

/// Answer for one chunk.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkAnswer {
    /// Durable, incomplete or new.
    #[prost(enumeration = "ChunkState", tag = "1")]
    pub state: i32,
    /// Its id.
    #[prost(uint64, tag = "2")]
    pub chunk_id: u64,
    /// Its group.
    #[prost(uint64, tag = "3")]
    pub pg_id: u64,
    /// The group's epoch, to be sent with each put.
    #[prost(uint64, tag = "4")]
    pub epoch: u64,
    /// With `Incomplete`: what to supply.
    #[prost(uint32, repeated, tag = "5")]
    pub missing: Vec<u32>,
}

/// Answers, in the order asked.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateChunksReply {
    /// One per chunk.
    #[prost(message, repeated, tag = "1")]
    pub answers: Vec<ChunkAnswer>,
    /// The class.
    #[prost(message, optional, tag = "2")]
    pub class: Option<ClassInfo>,
    /// What changed of the map since `known_map_version`, as far as the answers need it.
    #[prost(message, optional, tag = "3")]
    pub map: Option<ClusterMap>,
}

/// Keep a session alive.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenewSession {
    /// Session.
    #[prost(uint64, tag = "1")]
    pub session_id: u64,
    /// Reserve so many bytes: logical ones about which no [`AllocateChunks`] has asked yet.
    #[prost(uint64, tag = "2")]
    pub reserve_bytes: u64,
}

/// The session lives on.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenewSessionReply {
    /// For so long.
    #[prost(uint64, tag = "1")]
    pub session_ms: u64,
    /// Reserved now; less than was asked for where there is not so much room.
    #[prost(uint64, tag = "2")]
    pub reserved_bytes: u64,
}

/// How a commit changes the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum CommitMode {
    /// Not set: refused.
    Unknown = 0,
    /// The extents are the whole new content, from offset 0, without gaps.
    Replace = 1,
    /// The extents overwrite the ranges they cover of the current version; `size_bytes` is the new length.
    Patch = 2,
    /// The extents (offsets from 0) go behind the length the file has at commit.
    Append = 3,
}

/// Fragments of a chunk that this session stored: acknowledged by the group's members under `epoch`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkAck {
    /// The chunk.
    #[prost(uint64, tag = "1")]
    pub chunk_id: u64,
    /// Epoch of the puts.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// Fragment numbers, of those asked for, that are NOT acknowledged (usually none).
    #[prost(uint32, repeated, tag = "3")]
    pub missing: Vec<u32>,
}

/// Make a version visible. Chunks answered `Durable` need no acknowledgement; all others do.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Commit {
    /// Idempotency number.
    #[prost(uint64, tag = "1")]
    pub op_id: u64,
    /// Session; it ends with a successful final commit.
    #[prost(uint64, tag = "2")]
    pub session_id: u64,
    /// Replace, patch or append.
    #[prost(enumeration = "CommitMode", tag = "3")]
    pub mode: i32,
    /// With any mode: refuse unless this is the file's current version (0: the file must not exist; if it was opened by its number:
    /// it was never written). Compare and swap.
    #[prost(uint64, optional, tag = "4")]
    pub if_version: Option<u64>,
    /// New length in bytes (`Append`: bytes appended).
    #[prost(uint64, tag = "5")]
    pub size_bytes: u64,
    /// Pieces, in order of offset, not overlapping.
    #[prost(message, repeated, tag = "6")]
    pub extents: Vec<Extent>,
    /// What was stored for them.
    #[prost(message, repeated, tag = "7")]
    pub acks: Vec<ChunkAck>,
    /// More will follow: stage these extents and acks with the session, change nothing yet.
    #[prost(bool, tag = "8")]
    pub partial: bool,
    /// Modification time to record, ns since 1970; 0: now.
    #[prost(sint64, tag = "9")]
    pub mtime_ns: i64,
    /// Permission bits for a new file; absent: 0644.
    #[prost(uint32, optional, tag = "10")]
    pub file_mode: Option<u32>,
    /// Owner of a new file.
    #[prost(uint32, tag = "11")]
    pub uid: u32,
    /// Group of a new file.
    #[prost(uint32, tag = "12")]
    pub gid: u32,
    /// Keep the session open for further commits (an open file that is synced).
    #[prost(bool, tag = "13")]
    pub keep_session: bool,
    /// Open the file and commit it in one: a whole small file, replaced. No session is opened; `session_id` is that of the
    /// preallocated. `chunks` say what `filled` hold; `op_id` is not looked at. Refused as [`crate::Code::SessionExpired`] when
    /// the preallocated are gone or not what the file's policy asks for: then it is to be opened.
    #[prost(message, optional, boxed, tag = "14")]
    pub open: Option<Box<OpenWrite>>,
    /// With `open`: the blank that holds each of its `chunks`. Extents and acks name these ids.
    #[prost(uint64, repeated, tag = "15")]
    pub preallocated_ids: Vec<u64>,
    /// Ask for the file as it is then, under a lease ([`CommitReply::entry`]).
    #[prost(bool, tag = "16")]
    pub want_lease: bool,
    /// The new [`crate::Attr::content`]: what the file had, if its bytes stay as they are, or a number that the writer drew
    /// ([`CONTENT_DRAWN`]), to know its own commit by. 0: the manager gives one.
    #[prost(uint64, tag = "17")]
    pub content: u64,
}

/// Set in every [`Commit::content`] that a writer draws; the manager's own are below.
pub const CONTENT_DRAWN: u64 = 1 << 62;

/// Fragments whose acknowledgement came under an old epoch: put them again where the map says now, then commit again.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StaleAck {
    /// The chunk.
    #[prost(uint64, tag = "1")]
    pub chunk_id: u64,
    /// Its group.
    #[prost(uint64, tag = "2")]
    pub pg_id: u64,
    /// The group's epoch now.
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
    /// The fragments.
    #[prost(uint32, repeated, tag = "4")]
    pub fragments: Vec<u32>,
}

/// The version is visible, unless `stale` says what is still to be done.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CommitReply {
    /// The file.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// New version id; 0 with `stale` or after a partial commit.
    #[prost(uint64, tag = "2")]
    pub version: u64,
    /// Its number within the file.
    #[prost(uint64, tag = "3")]
    pub number: u64,
    /// Where appended bytes start.
    #[prost(uint64, tag = "4")]
    pub append_offset: u64,
    /// Nothing was committed: these fragments must be stored again first.
    #[prost(message, repeated, tag = "5")]
    pub stale: Vec<StaleAck>,
    /// Another writer committed this version between open and commit (it was replaced, and is kept as the lifetime says); 0: none.
    #[prost(uint64, tag = "6")]
    pub superseded: u64,
    /// Map for `stale`.
    #[prost(message, optional, tag = "7")]
    pub map: Option<ClusterMap>,
    /// Fragments that are not yet stored (optimistic or degraded writes): redundancy follows.
    #[prost(uint64, tag = "8")]
    pub missing_fragments: u64,
    /// With `open`: the preallocated whose content was stored already, under another id, which the file has now.
    #[prost(uint64, repeated, tag = "9")]
    pub known: Vec<u64>,
    /// Answer to the `preallocated` of `open`.
    #[prost(message, optional, tag = "10")]
    pub preallocated: Option<PreallocatedChunks>,
    /// Answer to the `inos` of `open`.
    #[prost(message, optional, tag = "11")]
    pub inos: Option<InoRange>,
    /// Of a file that was opened by a name: the directory's names are the asker's for so long from now, as [`super::Entry::delegation_ms`] says; 0: they were
    /// not, or are others' to change.
    #[prost(uint64, tag = "12")]
    pub delegation_ms: u64,
    /// Answer to `want_lease`.
    #[prost(message, optional, tag = "13")]
    pub entry: Option<Entry>,
}

/// Give a session up (a reader is done, a writer aborts).
#[derive(Clone, PartialEq, prost::Message)]
pub struct CloseSession {
    /// Session.
    #[prost(uint64, tag = "1")]
    pub session_id: u64,
}

/// Open a version for reading: a session that keeps its chunks alive.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OpenRead {
    /// File.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// Version id; 0: the current one.
    #[prost(uint64, tag = "2")]
    pub version: u64,
    /// Version number within the file, when `version` is 0; 0: the current one.
    #[prost(uint64, tag = "3")]
    pub number: u64,
    /// Answer with extents from here.
    #[prost(uint64, tag = "4")]
    pub offset: u64,
    /// Covering at least so many bytes, as far as one answer holds.
    #[prost(uint64, tag = "5")]
    pub len_bytes: u64,
    /// As in [`OpenWrite`].
    #[prost(uint64, tag = "6")]
    pub known_map_version: u64,
    /// Directory and name instead of `ino`, saving small files a round trip.
    #[prost(uint64, tag = "7")]
    pub parent: u64,
    /// The name.
    #[prost(bytes = "vec", tag = "8")]
    pub name: Vec<u8>,
}

/// An open version.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OpenReadReply {
    /// The session; close it when done.
    #[prost(uint64, tag = "1")]
    pub session_id: u64,
    /// The file.
    #[prost(message, optional, tag = "2")]
    pub attr: Option<Attr>,
    /// The version.
    #[prost(message, optional, tag = "3")]
    pub version: Option<VersionInfo>,
    /// First extents.
    #[prost(message, optional, tag = "4")]
    pub extents: Option<ListExtentsReply>,
    /// The session ends when it is not renewed for this long.
    #[prost(uint64, tag = "5")]
    pub session_ms: u64,
    /// The file's policy.
    #[prost(message, repeated, tag = "6")]
    pub policy: Vec<Hint>,
}

/// More extents of an open version.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListExtents {
    /// Session from [`OpenRead`].
    #[prost(uint64, tag = "1")]
    pub session_id: u64,
    /// From this offset in the file.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    /// Covering at least so many bytes, as far as one answer holds.
    #[prost(uint64, tag = "3")]
    pub len_bytes: u64,
    /// As in [`OpenWrite`].
    #[prost(uint64, tag = "4")]
    pub known_map_version: u64,
}

/// Extents, the chunks they name, the classes and groups of those.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListExtentsReply {
    /// In order of offset; holes included; the last ends at `next_offset`.
    #[prost(message, repeated, tag = "1")]
    pub extents: Vec<Extent>,
    /// Each chunk once.
    #[prost(message, repeated, tag = "2")]
    pub chunks: Vec<ChunkInfo>,
    /// Each class once.
    #[prost(message, repeated, tag = "3")]
    pub classes: Vec<ClassInfo>,
    /// What changed of the map since `known_map_version`, as far as the chunks need it.
    #[prost(message, optional, tag = "4")]
    pub map: Option<ClusterMap>,
    /// Where to ask next; the file's length when all was said.
    #[prost(uint64, tag = "5")]
    pub next_offset: u64,
}

/// A fragment of a chunk by number.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FragmentRef {
    /// Chunk.
    #[prost(uint64, tag = "1")]
    pub chunk_id: u64,
    /// Fragment number.
    #[prost(uint32, tag = "2")]
    pub fragment: u32,
    /// Epoch of the put (with [`CompleteFragments`]). In what a disk is to remove: 0 if the chunk is gone, else the
    /// group's epoch; what was put under a newer one is not meant (P11).
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
    /// Disk it was (not) found on (with [`ReportBad`]).
    #[prost(uint64, tag = "4")]
    pub disk_id: u64,
}

/// Redundancy of an optimistic write arrives: these fragments are synced now.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CompleteFragments {
    /// Idempotency number.
    #[prost(uint64, tag = "1")]
    pub op_id: u64,
    /// The fragments.
    #[prost(message, repeated, tag = "2")]
    pub fragments: Vec<FragmentRef>,
}

/// A reader found these missing or corrupt. The manager has the node check before it believes it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReportBad {
    /// The fragments.
    #[prost(message, repeated, tag = "1")]
    pub fragments: Vec<FragmentRef>,
}
