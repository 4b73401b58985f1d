//! Names: paths, directories, attributes, hints, versions, leases.

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
    /// With [`MakeDir`]: for so long nobody but the asker makes names in the new directory, with [`MakeNode`] in that of the new
    /// file, unless it is recalled ([`RecallLease::delegated_dirs`]); 0: not promised.
    #[prost(uint64, tag = "5")]
    pub delegation_ms: u64,
    /// Answer to [`MakeDir::inos`], [`MakeNode::inos`].
    #[prost(message, optional, tag = "6")]
    pub inos: Option<InoRange>,
    /// With [`MakeNode`] and `delegation_ms`: all names there are in the directory.
    #[prost(bytes = "vec", repeated, tag = "7")]
    pub names: Vec<Vec<u8>>,
}

/// Inode numbers that nothing has: the files to come that the asker makes ([`super::OpenWrite::ino`], [`MakeNode::ino`]). Those that are not
/// used are lost; there are enough.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct InoRange {
    /// The first of them.
    #[prost(uint64, tag = "1")]
    pub first: u64,
    /// How many.
    #[prost(uint32, tag = "2")]
    pub count: u32,
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
    /// Ask for the directory's names ([`Entry::delegation_ms`]), and for so many inode numbers; the manager gives as many as it likes.
    #[prost(uint32, tag = "8")]
    pub inos: u32,
    /// As in [`Resolve`], of the new directory.
    #[prost(bool, tag = "9")]
    pub want_lease: bool,
}

/// New empty file, or a named pipe, socket or device; it takes over its directory's hints.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MakeNode {
    /// Idempotency number.
    #[prost(uint64, tag = "1")]
    pub op_id: u64,
    /// Directory.
    #[prost(uint64, tag = "2")]
    pub parent: u64,
    /// Name.
    #[prost(bytes = "vec", tag = "3")]
    pub name: Vec<u8>,
    /// What it becomes: anything but a directory or symbolic link.
    #[prost(enumeration = "InodeKind", tag = "4")]
    pub kind: i32,
    /// Permission bits.
    #[prost(uint32, tag = "5")]
    pub mode: u32,
    /// Owner.
    #[prost(uint32, tag = "6")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, tag = "7")]
    pub gid: u32,
    /// Number of a device.
    #[prost(uint32, tag = "8")]
    pub rdev: u32,
    /// Succeed when a file of that name is there already (a file is asked for): the answer is that file.
    #[prost(bool, tag = "9")]
    pub exist_ok: bool,
    /// Its number, of [`InoRange`]; 0: any.
    #[prost(uint64, tag = "10")]
    pub ino: u64,
    /// As in [`Resolve`].
    #[prost(bool, tag = "11")]
    pub want_lease: bool,
    /// Ask for the names in the directory, to make more there ([`Entry::delegation_ms`]). Not promised where others make names, or there
    /// are more than a page of [`List`] has.
    #[prost(bool, tag = "12")]
    pub want_delegation: bool,
    /// Ask for so many inode numbers, as in [`MakeDir`].
    #[prost(uint32, tag = "13")]
    pub inos: u32,
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
    /// The target must exist, and gets the other's name in the same step.
    #[prost(bool, tag = "7")]
    pub exchange: bool,
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
    /// Access time, ns since 1970.
    #[prost(sint64, optional, tag = "7")]
    pub atime_ns: Option<i64>,
    /// As in [`Resolve`].
    #[prost(bool, tag = "8")]
    pub want_lease: bool,
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
    /// Directories in which others are about to make names, or that are about to change: what was made in them and is not known here yet is to
    /// be made known before the answer.
    #[prost(uint64, repeated, tag = "2")]
    pub delegated_dirs: Vec<u64>,
}
