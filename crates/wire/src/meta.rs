//! What clients and nodes ask the manager.
//!
//! Every mutating request carries `op_id`, a random number its sender chose: sent twice, it has one effect
//! and one answer (P8). Directory entries are bytes, not text.

use crate::common::*;

/// Path components from `start` to an inode.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Resolve {
    /// Directory to start at; 0 or 1 is the root.
    #[prost(uint64, tag = "1")]
    pub start: u64,
    /// Components, without `.`, `..` or empty ones (those are refused).
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub components: Vec<Vec<u8>>,
    /// Ask for a lease: the manager recalls it before what was answered changes.
    #[prost(bool, tag = "3")]
    pub want_lease: bool,
}

/// An inode as found.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Entry {
    /// Attributes.
    #[prost(message, optional, tag = "1")]
    pub attr: Option<Attr>,
    /// Its hints (`user.tessera.*`), inherited ones included: they were copied at creation.
    #[prost(message, repeated, tag = "2")]
    pub hints: Vec<Hint>,
    /// How long the lease lasts if nobody recalls it; 0: no lease.
    #[prost(uint64, tag = "3")]
    pub lease_ms: u64,
    /// Inodes of the directories passed on the way, `start` first (with [`Resolve`]).
    #[prost(uint64, repeated, tag = "4")]
    pub path: Vec<u64>,
}

/// Entry `name` of directory `parent`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Lookup {
    /// Directory.
    #[prost(uint64, tag = "1")]
    pub parent: u64,
    /// Name, 1 to 255 bytes, no `/` and no NUL.
    #[prost(bytes = "vec", tag = "2")]
    pub name: Vec<u8>,
    /// As in [`Resolve`].
    #[prost(bool, tag = "3")]
    pub want_lease: bool,
}

/// Attributes of `ino`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetAttr {
    /// Inode.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// As in [`Resolve`].
    #[prost(bool, tag = "2")]
    pub want_lease: bool,
}

/// A page of a directory, in byte order of names.
#[derive(Clone, PartialEq, prost::Message)]
pub struct List {
    /// Directory.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// Names after this one; empty for the first page.
    #[prost(bytes = "vec", tag = "2")]
    pub after: Vec<u8>,
    /// At most so many (the manager has a limit of its own).
    #[prost(uint32, tag = "3")]
    pub limit: u32,
}

/// One name in a directory.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Dirent {
    /// The name.
    #[prost(bytes = "vec", tag = "1")]
    pub name: Vec<u8>,
    /// What it names.
    #[prost(message, optional, tag = "2")]
    pub attr: Option<Attr>,
}

/// A page of a directory.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListReply {
    /// Entries.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Dirent>,
    /// There is more after the last of them.
    #[prost(bool, tag = "2")]
    pub more: bool,
}

/// New directory; it takes over its parent's hints.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MakeDir {
    /// Idempotency number.
    #[prost(uint64, tag = "1")]
    pub op_id: u64,
    /// Parent directory.
    #[prost(uint64, tag = "2")]
    pub parent: u64,
    /// Name.
    #[prost(bytes = "vec", tag = "3")]
    pub name: Vec<u8>,
    /// Permission bits.
    #[prost(uint32, tag = "4")]
    pub mode: u32,
    /// Owner.
    #[prost(uint32, tag = "5")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, tag = "6")]
    pub gid: u32,
    /// Succeed when the directory is there already.
    #[prost(bool, tag = "7")]
    pub exist_ok: bool,
}

/// Remove a name; the inode goes with its last name and last session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Unlink {
    /// Idempotency number.
    #[prost(uint64, tag = "1")]
    pub op_id: u64,
    /// Directory.
    #[prost(uint64, tag = "2")]
    pub parent: u64,
    /// Name.
    #[prost(bytes = "vec", tag = "3")]
    pub name: Vec<u8>,
    /// Remove an (empty) directory rather than a file.
    #[prost(bool, tag = "4")]
    pub directory: bool,
}

/// Move a name. An existing file (or empty directory) at the target is replaced in the same step. Hints stay with the inode.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Rename {
    /// Idempotency number.
    #[prost(uint64, tag = "1")]
    pub op_id: u64,
    /// From directory.
    #[prost(uint64, tag = "2")]
    pub from_parent: u64,
    /// From name.
    #[prost(bytes = "vec", tag = "3")]
    pub from_name: Vec<u8>,
    /// To directory.
    #[prost(uint64, tag = "4")]
    pub to_parent: u64,
    /// To name.
    #[prost(bytes = "vec", tag = "5")]
    pub to_name: Vec<u8>,
    /// Fail if the target exists.
    #[prost(bool, tag = "6")]
    pub no_replace: bool,
}

/// Another name for a file.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Link {
    /// Idempotency number.
    #[prost(uint64, tag = "1")]
    pub op_id: u64,
    /// The file.
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    /// Directory of the new name.
    #[prost(uint64, tag = "3")]
    pub parent: u64,
    /// New name.
    #[prost(bytes = "vec", tag = "4")]
    pub name: Vec<u8>,
}

/// Symbolic link.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Symlink {
    /// Idempotency number.
    #[prost(uint64, tag = "1")]
    pub op_id: u64,
    /// Directory.
    #[prost(uint64, tag = "2")]
    pub parent: u64,
    /// Name.
    #[prost(bytes = "vec", tag = "3")]
    pub name: Vec<u8>,
    /// Target, at most 4,095 bytes.
    #[prost(bytes = "vec", tag = "4")]
    pub target: Vec<u8>,
    /// Owner.
    #[prost(uint32, tag = "5")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, tag = "6")]
    pub gid: u32,
}

/// Change attributes; absent fields stay.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetAttr {
    /// Idempotency number.
    #[prost(uint64, tag = "1")]
    pub op_id: u64,
    /// Inode.
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    /// Permission bits.
    #[prost(uint32, optional, tag = "3")]
    pub mode: Option<u32>,
    /// Owner.
    #[prost(uint32, optional, tag = "4")]
    pub uid: Option<u32>,
    /// Group.
    #[prost(uint32, optional, tag = "5")]
    pub gid: Option<u32>,
    /// Modification time, ns since 1970.
    #[prost(sint64, optional, tag = "6")]
    pub mtime_ns: Option<i64>,
}

/// Set an extended attribute. `user.tessera.*` are hints and validated: a malformed one is refused with the allowed values.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetXattr {
    /// Idempotency number.
    #[prost(uint64, tag = "1")]
    pub op_id: u64,
    /// Inode.
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    /// Full name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Value, at most 64 KiB.
    #[prost(bytes = "vec", tag = "4")]
    pub value: Vec<u8>,
    /// Must not exist yet.
    #[prost(bool, tag = "5")]
    pub create_only: bool,
    /// Must exist.
    #[prost(bool, tag = "6")]
    pub replace_only: bool,
}

/// All extended attributes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListXattrs {
    /// Inode.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
}

/// One attribute.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Xattr {
    /// Full name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Value.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// All extended attributes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListXattrsReply {
    /// In byte order of names.
    #[prost(message, repeated, tag = "1")]
    pub xattrs: Vec<Xattr>,
}

/// Remove an attribute (a hint falls back to the default).
#[derive(Clone, PartialEq, prost::Message)]
pub struct RemoveXattr {
    /// Idempotency number.
    #[prost(uint64, tag = "1")]
    pub op_id: u64,
    /// Inode.
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    /// Full name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// Versions of a file.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListVersions {
    /// The file.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
}

/// One version.
#[derive(Clone, PartialEq, prost::Message)]
pub struct VersionInfo {
    /// Version id, unique in the cluster.
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// Its number within the file, from 1.
    #[prost(uint64, tag = "2")]
    pub number: u64,
    /// Length in bytes.
    #[prost(uint64, tag = "3")]
    pub size_bytes: u64,
    /// When it was committed, ns since 1970.
    #[prost(sint64, tag = "4")]
    pub committed_ns: i64,
    /// Bytes of chunks that were new with this version.
    #[prost(uint64, tag = "5")]
    pub new_bytes: u64,
}

/// Versions, oldest first.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListVersionsReply {
    /// The versions.
    #[prost(message, repeated, tag = "1")]
    pub versions: Vec<VersionInfo>,
}

/// Manager to client: give back what you cached of these inodes, then answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RecallLease {
    /// The inodes.
    #[prost(uint64, repeated, tag = "1")]
    pub inos: Vec<u64>,
}

/// A chunk by content.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkName {
    /// BLAKE3-256, 32 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub hash: bytes::Bytes,
    /// Length in bytes.
    #[prost(uint64, tag = "2")]
    pub len_bytes: u64,
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
    /// File, when `parent` is 0.
    #[prost(uint64, tag = "4")]
    pub ino: u64,
    /// Hints that override the file's and the directory's for this write; kept with a new file.
    #[prost(message, repeated, tag = "5")]
    pub hints: Vec<Hint>,
    /// Expected bytes, 0 if unknown: that much space is reserved at once, more by [`RenewSession`].
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
    /// Reserve so many bytes in all (logical bytes still to be written).
    #[prost(uint64, tag = "2")]
    pub reserve_bytes: u64,
}

/// The session lives on.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenewSessionReply {
    /// For so long.
    #[prost(uint64, tag = "1")]
    pub session_ms: u64,
    /// Reserved now.
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
    /// With any mode: refuse unless this is the file's current version (0: the file must not exist). Compare and swap.
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
    /// Permission bits for a new file.
    #[prost(uint32, tag = "10")]
    pub file_mode: u32,
    /// Owner of a new file.
    #[prost(uint32, tag = "11")]
    pub uid: u32,
    /// Group of a new file.
    #[prost(uint32, tag = "12")]
    pub gid: u32,
    /// Keep the session open for further commits (an open file that is synced).
    #[prost(bool, tag = "13")]
    pub keep_session: bool,
}

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
    /// Epoch of the put (with [`CompleteFragments`]).
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

/// Ask for the map: everything that changed since `known_version`, or just these groups.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetMap {
    /// What the asker has; 0: nothing.
    #[prost(uint64, tag = "1")]
    pub known_version: u64,
    /// Groups wanted whatever their age.
    #[prost(uint64, repeated, tag = "2")]
    pub pg_ids: Vec<u64>,
    /// All nodes and disks whatever their age.
    #[prost(bool, tag = "3")]
    pub all_nodes: bool,
}

/// Nodes, disks and groups: complete or what changed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClusterMap {
    /// Grows with each change of any node, disk or group.
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// Nodes.
    #[prost(message, repeated, tag = "2")]
    pub nodes: Vec<NodeInfo>,
    /// Disks.
    #[prost(message, repeated, tag = "3")]
    pub disks: Vec<DiskInfo>,
    /// Placement groups.
    #[prost(message, repeated, tag = "4")]
    pub pgs: Vec<PgInfo>,
    /// Redundancy classes.
    #[prost(message, repeated, tag = "5")]
    pub classes: Vec<ClassInfo>,
}

/// Ask for the state of the cluster.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetStatus {}

/// The state of the cluster at a glance.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClusterStatus {
    /// Cluster id, 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub cluster_id: Vec<u8>,
    /// Nodes.
    #[prost(message, repeated, tag = "2")]
    pub nodes: Vec<NodeInfo>,
    /// Disks.
    #[prost(message, repeated, tag = "3")]
    pub disks: Vec<DiskInfo>,
    /// Regular files.
    #[prost(uint64, tag = "4")]
    pub files: u64,
    /// Directories.
    #[prost(uint64, tag = "5")]
    pub directories: u64,
    /// Versions kept.
    #[prost(uint64, tag = "6")]
    pub versions: u64,
    /// Chunks committed.
    #[prost(uint64, tag = "7")]
    pub chunks: u64,
    /// Bytes of all kept versions, holes left out, every use of a chunk counted.
    #[prost(uint64, tag = "8")]
    pub logical_bytes: u64,
    /// Bytes of distinct chunks.
    #[prost(uint64, tag = "9")]
    pub unique_bytes: u64,
    /// Bytes of all their fragments.
    #[prost(uint64, tag = "10")]
    pub stored_bytes: u64,
    /// Chunks with every fragment in place.
    #[prost(uint64, tag = "11")]
    pub chunks_full: u64,
    /// Chunks that can be read but miss fragments.
    #[prost(uint64, tag = "12")]
    pub chunks_reduced: u64,
    /// Chunks with fewer than k fragments reachable.
    #[prost(uint64, tag = "13")]
    pub chunks_lost: u64,
    /// Group members being rebuilt or moved.
    #[prost(uint64, tag = "14")]
    pub members_filling: u64,
    /// Fragments still to be rebuilt or moved, as far as known.
    #[prost(uint64, tag = "15")]
    pub fragments_to_repair: u64,
    /// Fragments repaired since the manager started.
    #[prost(uint64, tag = "16")]
    pub fragments_repaired: u64,
    /// Bytes repaired since the manager started.
    #[prost(uint64, tag = "17")]
    pub repaired_bytes: u64,
    /// Chunks at zero references, waiting for older sessions to end.
    #[prost(uint64, tag = "18")]
    pub garbage_chunks: u64,
    /// Their bytes.
    #[prost(uint64, tag = "19")]
    pub garbage_bytes: u64,
    /// Deletes not yet confirmed by nodes.
    #[prost(uint64, tag = "20")]
    pub deletes_pending: u64,
    /// Live sessions.
    #[prost(uint64, tag = "21")]
    pub sessions: u64,
    /// Bytes reserved by them.
    #[prost(uint64, tag = "22")]
    pub reserved_bytes: u64,
    /// Manager's term.
    #[prost(uint64, tag = "23")]
    pub term: u64,
    /// Last command log entry.
    #[prost(uint64, tag = "24")]
    pub log_seq: u64,
    /// Nodes that hold a replica of the log up to date.
    #[prost(uint64, repeated, tag = "25")]
    pub log_replicas: Vec<u64>,
    /// Replicas asked for.
    #[prost(uint32, tag = "26")]
    pub log_copies: u32,
    /// Placement groups.
    #[prost(uint64, tag = "27")]
    pub pgs: u64,
    /// Release of the manager.
    #[prost(string, tag = "28")]
    pub release: String,
    /// Fragments scrubbed, rot found and so on, by name.
    #[prost(message, repeated, tag = "29")]
    pub counters: Vec<Counter>,
    /// Map version.
    #[prost(uint64, tag = "30")]
    pub map_version: u64,
}

/// A named count.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Counter {
    /// Name, as in metrics.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Value.
    #[prost(uint64, tag = "2")]
    pub value: u64,
}

/// Empty a node or a disk, or stop doing so.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Drain {
    /// Idempotency number.
    #[prost(uint64, tag = "1")]
    pub op_id: u64,
    /// Node; 0 when a disk is named.
    #[prost(uint64, tag = "2")]
    pub node_id: u64,
    /// Disk; 0 for all of the node's.
    #[prost(uint64, tag = "3")]
    pub disk_id: u64,
    /// Take it back.
    #[prost(bool, tag = "4")]
    pub undo: bool,
}

/// Kinds of upkeep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Upkeep {
    /// Not set.
    Unknown = 0,
    /// Collect garbage now: expire sessions, drop old versions, delete what nothing reaches, compact.
    Gc = 1,
    /// Re-read everything on every disk now.
    Scrub = 2,
    /// Look for missing fragments and rebuild them now (down nodes are not waited for).
    Repair = 3,
}

/// Start a pass of upkeep, or look at the one that runs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Maintain {
    /// Which.
    #[prost(enumeration = "Upkeep", tag = "1")]
    pub what: i32,
    /// Start a new pass (else only report).
    #[prost(bool, tag = "2")]
    pub start: bool,
}

/// State of a pass.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MaintainReply {
    /// It still runs.
    #[prost(bool, tag = "1")]
    pub running: bool,
    /// Work done so far, in the pass's own unit (fragments; bytes for scrub).
    #[prost(uint64, tag = "2")]
    pub done: u64,
    /// All of it, as far as known.
    #[prost(uint64, tag = "3")]
    pub total: u64,
    /// `freed_bytes`, `rot_found`, `fragments_repaired`, ….
    #[prost(message, repeated, tag = "4")]
    pub counters: Vec<Counter>,
}

/// A node starts, or comes back after it was fenced.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterNode {
    /// Idempotency number.
    #[prost(uint64, tag = "1")]
    pub op_id: u64,
    /// Name, host, addresses (`node_id` 0 on first contact: it follows from the disks afterwards).
    #[prost(message, optional, tag = "2")]
    pub node: Option<NodeInfo>,
    /// Its disks by uuid, with capacity and free bytes.
    #[prost(message, repeated, tag = "3")]
    pub disks: Vec<DiskInfo>,
}

/// Welcome.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterNodeReply {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub node_id: u64,
    /// Its life: grows with every registration (P11).
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// Ids of its disks, in the order given.
    #[prost(uint64, repeated, tag = "3")]
    pub disk_ids: Vec<u64>,
    /// Beat this often.
    #[prost(uint64, tag = "4")]
    pub heartbeat_ms: u64,
    /// Without an answered heartbeat for this long the node stops acknowledging (P11).
    #[prost(uint64, tag = "5")]
    pub lease_ms: u64,
    /// Cluster, 16 bytes.
    #[prost(bytes = "vec", tag = "6")]
    pub cluster_id: Vec<u8>,
    /// Manager's term and last log entry: a node refuses deletes and tasks from one that went backwards.
    #[prost(uint64, tag = "7")]
    pub term: u64,
    /// See `term`.
    #[prost(uint64, tag = "8")]
    pub log_seq: u64,
}

/// Outcome of a task.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TaskResult {
    /// Task.
    #[prost(uint64, tag = "1")]
    pub task_id: u64,
    /// Fragments now in place and synced.
    #[prost(message, repeated, tag = "2")]
    pub done: Vec<FragmentRef>,
    /// Fragments that could not be rebuilt, or (verify, scrub) were found bad.
    #[prost(message, repeated, tag = "3")]
    pub failed: Vec<FragmentRef>,
    /// Why, in one line.
    #[prost(string, tag = "4")]
    pub reason: String,
    /// Bytes written or re-read.
    #[prost(uint64, tag = "5")]
    pub bytes: u64,
    /// Nothing more will come of this task.
    #[prost(bool, tag = "6")]
    pub finished: bool,
}

/// A node is alive.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Heartbeat {
    /// Who.
    #[prost(uint64, tag = "1")]
    pub node_id: u64,
    /// Which life of it.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// Its disks: free bytes, fragments, queue.
    #[prost(message, repeated, tag = "3")]
    pub disks: Vec<DiskInfo>,
    /// What came of tasks since the last answered heartbeat; repeated until answered.
    #[prost(message, repeated, tag = "4")]
    pub results: Vec<TaskResult>,
    /// Deletes that are on disk now; repeated until answered.
    #[prost(message, repeated, tag = "5")]
    pub deleted: Vec<FragmentRef>,
    /// Fragments the node found bad by itself (scrub, failed reads): already verified by it.
    #[prost(message, repeated, tag = "6")]
    pub bad: Vec<FragmentRef>,
    /// Disks that failed (poisoned): treated as lost.
    #[prost(uint64, repeated, tag = "7")]
    pub failed_disks: Vec<u64>,
    /// Number of this heartbeat in this life.
    #[prost(uint64, tag = "8")]
    pub number: u64,
    /// Running tasks (so that a restarted manager need not hand them out twice).
    #[prost(uint64, repeated, tag = "9")]
    pub running_tasks: Vec<u64>,
    /// Bytes re-read by the current scrub pass, per disk in the order of `disks`; and rot found.
    #[prost(uint64, repeated, tag = "10")]
    pub scrubbed_bytes: Vec<u64>,
    /// Map the node has (see [`ClusterMap::version`]): the answer brings what changed since. 0: nothing.
    #[prost(uint64, tag = "11")]
    pub known_map_version: u64,
}

/// Rebuild fragments of one group onto one disk of this node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RebuildTask {
    /// The group as it is now (epoch for the puts, members to read from).
    #[prost(message, optional, tag = "1")]
    pub pg: Option<PgInfo>,
    /// Fragment number to rebuild.
    #[prost(uint32, tag = "2")]
    pub fragment: u32,
    /// Disk to put it on.
    #[prost(uint64, tag = "3")]
    pub disk_id: u64,
    /// Class of the chunks.
    #[prost(message, optional, tag = "4")]
    pub class: Option<ClassInfo>,
    /// The chunks.
    #[prost(message, repeated, tag = "5")]
    pub chunks: Vec<ChunkInfo>,
    /// Domain of the chunks.
    #[prost(uint32, tag = "6")]
    pub domain: u32,
}

/// Re-read these fragments and say which are bad.
#[derive(Clone, PartialEq, prost::Message)]
pub struct VerifyTask {
    /// The fragments, with the disk that should hold each.
    #[prost(message, repeated, tag = "1")]
    pub fragments: Vec<FragmentRef>,
}

/// Re-read all of a disk.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScrubTask {
    /// The disk.
    #[prost(uint64, tag = "1")]
    pub disk_id: u64,
}

/// List what a disk holds ([`Inventory`] pages), and remove what the manager does not know any more.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InventoryTask {
    /// The disk.
    #[prost(uint64, tag = "1")]
    pub disk_id: u64,
}

/// Compact a disk's segments now, however little is dead.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CompactTask {
    /// The disk.
    #[prost(uint64, tag = "1")]
    pub disk_id: u64,
}

/// Work for a node: one of its fields is set.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Task {
    /// Never reused within a term.
    #[prost(uint64, tag = "1")]
    pub task_id: u64,
    /// Rebuild.
    #[prost(message, optional, tag = "2")]
    pub rebuild: Option<RebuildTask>,
    /// Verify.
    #[prost(message, optional, tag = "3")]
    pub verify: Option<VerifyTask>,
    /// Scrub.
    #[prost(message, optional, tag = "4")]
    pub scrub: Option<ScrubTask>,
    /// Inventory.
    #[prost(message, optional, tag = "5")]
    pub inventory: Option<InventoryTask>,
    /// Compact.
    #[prost(message, optional, tag = "6")]
    pub compact: Option<CompactTask>,
}

/// Answer to a heartbeat.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeartbeatReply {
    /// The lease runs for this long from when the heartbeat was sent.
    #[prost(uint64, tag = "1")]
    pub lease_ms: u64,
    /// The node was declared out, or is unknown: acknowledge nothing, register again (P11).
    #[prost(bool, tag = "2")]
    pub must_register: bool,
    /// Manager's term.
    #[prost(uint64, tag = "3")]
    pub term: u64,
    /// Last log entry.
    #[prost(uint64, tag = "4")]
    pub log_seq: u64,
    /// Work.
    #[prost(message, repeated, tag = "5")]
    pub tasks: Vec<Task>,
    /// Fragments to delete.
    #[prost(message, repeated, tag = "6")]
    pub deletes: Vec<FragmentRef>,
    /// Current epochs of groups with members here that changed lately.
    #[prost(message, repeated, tag = "7")]
    pub pgs: Vec<PgInfo>,
    /// Nodes and disks, when they changed (tasks read from them).
    #[prost(message, optional, tag = "8")]
    pub map: Option<ClusterMap>,
    /// Upper bound for all repair traffic this node reads and writes, bytes per second; 0: none.
    #[prost(uint64, tag = "9")]
    pub repair_bytes_per_s: u64,
    /// Upper bound for background scrubbing, bytes per second; 0: none.
    #[prost(uint64, tag = "10")]
    pub scrub_bytes_per_s: u64,
}

/// A page of what a disk holds, in order of (chunk id, fragment).
#[derive(Clone, PartialEq, prost::Message)]
pub struct Inventory {
    /// Node.
    #[prost(uint64, tag = "1")]
    pub node_id: u64,
    /// Its life.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// Disk.
    #[prost(uint64, tag = "3")]
    pub disk_id: u64,
    /// Everything held from (chunk id, fragment) `after` to the last of `held`, and to the end if `last`.
    #[prost(message, optional, tag = "4")]
    pub after: Option<FragmentRef>,
    /// What is held.
    #[prost(message, repeated, tag = "5")]
    pub held: Vec<FragmentRef>,
    /// This is the last page.
    #[prost(bool, tag = "6")]
    pub last: bool,
}

/// What to do about it. What should be there and is not is noted as missing and repaired.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InventoryReply {
    /// Ids this manager issued and has since dropped, or that belong elsewhere now: remove them.
    #[prost(message, repeated, tag = "1")]
    pub remove: Vec<FragmentRef>,
    /// As in [`HeartbeatReply`].
    #[prost(uint64, tag = "2")]
    pub term: u64,
    /// As in [`HeartbeatReply`].
    #[prost(uint64, tag = "3")]
    pub log_seq: u64,
}
