//! Types that several messages share, and the greeting that opens a connection.

use crate::error::{Code, Error};

/// "Done", with nothing to add.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ack {}

/// Who opens a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Role {
    /// Not set.
    Unknown = 0,
    /// A client library.
    Client = 1,
    /// A storage node.
    Node = 2,
    /// The manager.
    Manager = 3,
}

/// First message on every connection. A peer of another protocol version or cluster is refused here.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    /// [`crate::PROTOCOL_VERSION`] of the asker.
    #[prost(uint32, tag = "1")]
    pub protocol_version: u32,
    /// Who asks.
    #[prost(enumeration = "Role", tag = "2")]
    pub role: i32,
    /// Cluster the asker belongs to, 16 bytes; empty when it does not know yet.
    #[prost(bytes = "vec", tag = "3")]
    pub cluster_id: Vec<u8>,
    /// Release of the asker, for messages and logs.
    #[prost(string, tag = "4")]
    pub release: String,
    /// Random number of this client's life; leases and retried requests belong to it.
    #[prost(uint64, tag = "5")]
    pub client_id: u64,
    /// Host label of the asker (placement `local`, Unix sockets); may be empty.
    #[prost(string, tag = "6")]
    pub host: String,
}

/// Answer to [`Hello`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct HelloReply {
    /// Version the answerer speaks.
    #[prost(uint32, tag = "1")]
    pub protocol_version: u32,
    /// Its cluster, 16 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub cluster_id: Vec<u8>,
    /// Its release.
    #[prost(string, tag = "3")]
    pub release: String,
    /// What it is.
    #[prost(enumeration = "Role", tag = "4")]
    pub role: i32,
}

impl Hello {
    /// Refuses a greeting of another protocol version or of another cluster (P14).
    pub fn check(&self, cluster_id: &[u8]) -> Result<(), Error> {
        if self.protocol_version != crate::PROTOCOL_VERSION {
            return Err(Error::new(
                Code::ProtocolVersion,
                format!(
                    "peer (release {:?}) speaks protocol {}, this daemon speaks {}; run the same release on both sides",
                    self.release,
                    self.protocol_version,
                    crate::PROTOCOL_VERSION
                ),
            ));
        }
        if !self.cluster_id.is_empty() && !cluster_id.is_empty() && self.cluster_id != cluster_id {
            return Err(Error::new(
                Code::WrongCluster,
                format!(
                    "peer belongs to cluster {}, this is cluster {}; check --manager and the disk directories",
                    hex(&self.cluster_id),
                    hex(cluster_id)
                ),
            ));
        }
        Ok(())
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// One hint of a file, carried with every request that concerns the file: the name without its `user.tessera.` prefix.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Hint {
    /// `redundancy`, `chunking`, `durability`, `dedup`, …
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its value as the user wrote it.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Kinds of inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum InodeKind {
    /// Not set.
    Unknown = 0,
    /// Regular file.
    File = 1,
    /// Directory.
    Directory = 2,
    /// Symbolic link.
    Symlink = 3,
    /// Named pipe: kept as a name, the reader's kernel does the rest. So are the following.
    Fifo = 4,
    /// Unix socket.
    Socket = 5,
    /// Character device.
    CharDevice = 6,
    /// Block device.
    BlockDevice = 7,
}

/// What is known of an inode.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Attr {
    /// Inode number; the root directory is 1.
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// File, directory or symlink.
    #[prost(enumeration = "InodeKind", tag = "2")]
    pub kind: i32,
    /// Permission bits (no type bits).
    #[prost(uint32, tag = "3")]
    pub mode: u32,
    /// Owner.
    #[prost(uint32, tag = "4")]
    pub uid: u32,
    /// Group.
    #[prost(uint32, tag = "5")]
    pub gid: u32,
    /// Names this inode has.
    #[prost(uint32, tag = "6")]
    pub nlink: u32,
    /// Length of the current version in bytes.
    #[prost(uint64, tag = "7")]
    pub size_bytes: u64,
    /// Modification time, ns since 1970.
    #[prost(sint64, tag = "8")]
    pub mtime_ns: i64,
    /// Change time, ns since 1970.
    #[prost(sint64, tag = "9")]
    pub ctime_ns: i64,
    /// Current version id; 0 for an empty file that was never written, and for directories.
    #[prost(uint64, tag = "10")]
    pub version: u64,
    /// Its number within the file, from 1.
    #[prost(uint64, tag = "11")]
    pub version_number: u64,
    /// Target of a symbolic link.
    #[prost(bytes = "vec", tag = "12")]
    pub symlink_target: Vec<u8>,
    /// Access time as it was set last, ns since 1970; reading does not change it.
    #[prost(sint64, tag = "13")]
    pub atime_ns: i64,
    /// Number of a device, as `mknod` had it.
    #[prost(uint32, tag = "14")]
    pub rdev: u32,
    /// Names what the current version holds: as long as it stays the same, so do the file's bytes, whatever the version. Nothing follows from two that differ.
    #[prost(uint64, tag = "15")]
    pub content: u64,
}

/// State of a node or of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Health {
    /// Not set.
    Unknown = 0,
    /// Heartbeats arrive.
    Up = 1,
    /// Heartbeats are missing; its groups are read without it.
    Down = 2,
    /// Given up: its groups get other members.
    Out = 3,
    /// Being emptied on request; serves reads, gets nothing new.
    Draining = 4,
    /// Emptied; may be switched off.
    Drained = 5,
}

/// A node and how to reach it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeInfo {
    /// Node id, given by the manager.
    #[prost(uint64, tag = "1")]
    pub node_id: u64,
    /// Name people call it by.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Host label: fragments of a chunk lie on distinct hosts.
    #[prost(string, tag = "3")]
    pub host: String,
    /// `ADDRESS:PORT`.
    #[prost(string, tag = "4")]
    pub address: String,
    /// Unix socket for clients on the same host; empty if none.
    #[prost(string, tag = "5")]
    pub unix_socket: String,
    /// Its state.
    #[prost(enumeration = "Health", tag = "6")]
    pub health: i32,
    /// Grows each time the node registers; acknowledgements of an earlier life do not count (P11).
    #[prost(uint64, tag = "7")]
    pub incarnation: u64,
    /// Where `/metrics` is served; empty if nowhere.
    #[prost(string, tag = "8")]
    pub metrics_address: String,
    /// Where its Unix socket can be reached: a client for which this is equal may use it. Empty: nowhere.
    #[prost(string, tag = "9")]
    pub machine: String,
}

/// A disk of a node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DiskInfo {
    /// Disk id, given by the manager.
    #[prost(uint64, tag = "1")]
    pub disk_id: u64,
    /// Node that serves it.
    #[prost(uint64, tag = "2")]
    pub node_id: u64,
    /// 16 bytes, from its `tessera-disk` file.
    #[prost(bytes = "vec", tag = "3")]
    pub uuid: Vec<u8>,
    /// Its state.
    #[prost(enumeration = "Health", tag = "4")]
    pub health: i32,
    /// Size of the file system (or the configured limit), bytes.
    #[prost(uint64, tag = "5")]
    pub capacity_bytes: u64,
    /// Bytes that may still be put.
    #[prost(uint64, tag = "6")]
    pub free_bytes: u64,
    /// Fragments held.
    #[prost(uint64, tag = "7")]
    pub fragments: u64,
    /// Operations waiting for this disk.
    #[prost(uint32, tag = "8")]
    pub queue_len: u32,
    /// Directory, for people.
    #[prost(string, tag = "9")]
    pub path: String,
    /// What Tessera uses of it: bytes of its segment files, dead records included.
    #[prost(uint64, tag = "10")]
    pub used_bytes: u64,
    /// Bytes of memory that the node's index of its fragments takes, roughly.
    #[prost(uint64, tag = "11")]
    pub index_bytes: u64,
    /// Everything that was on it at this time, ns since 1970 by its node's clock, has been re-read since (when the last scrub cycle that was
    /// finished began); 0: not since its node started.
    #[prost(sint64, tag = "12")]
    pub verified_ns: i64,
}

/// Member `i` of a placement group holds fragment `i` of each of its chunks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PgMember {
    /// Disk that holds the fragments.
    #[prost(uint64, tag = "1")]
    pub disk_id: u64,
    /// Disk that is being filled to take over; 0 if none.
    #[prost(uint64, tag = "2")]
    pub incoming_disk_id: u64,
    /// Group epoch at which puts to this member's target last changed: older acknowledgements do not count (P11).
    #[prost(uint64, tag = "3")]
    pub since_epoch: u64,
    /// New fragments go to `incoming_disk_id` (the member was lost), not to `disk_id` (it drains).
    #[prost(bool, tag = "4")]
    pub put_to_incoming: bool,
}

impl PgMember {
    /// Disk that takes new fragments.
    pub fn put_disk_id(&self) -> u64 {
        if self.put_to_incoming { self.incoming_disk_id } else { self.disk_id }
    }

    /// Whether a fragment that was put, or acknowledged, under `epoch` of the group is where readers look for it (P11).
    pub fn accepts(&self, epoch: u64) -> bool {
        epoch >= self.since_epoch
    }
}

/// A placement group.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PgInfo {
    /// Group id.
    #[prost(uint64, tag = "1")]
    pub pg_id: u64,
    /// Grows whenever a member changes.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// Members in fragment order.
    #[prost(message, repeated, tag = "3")]
    pub members: Vec<PgMember>,
}

/// A stored chunk, as a reader needs it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChunkInfo {
    /// Never reused.
    #[prost(uint64, tag = "1")]
    pub chunk_id: u64,
    /// BLAKE3-256 of its bytes, 32 bytes.
    #[prost(bytes = "bytes", tag = "2")]
    pub hash: bytes::Bytes,
    /// Length in bytes.
    #[prost(uint64, tag = "3")]
    pub len_bytes: u64,
    /// Class it is stored under.
    #[prost(uint32, tag = "4")]
    pub class_id: u32,
    /// Group that holds it.
    #[prost(uint64, tag = "5")]
    pub pg_id: u64,
    /// Fragment numbers known to be missing.
    #[prost(uint32, repeated, tag = "6")]
    pub missing: Vec<u32>,
}

/// A piece of a version: `len_bytes` of a chunk from `chunk_offset`, or a hole.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Extent {
    /// Where in the file it starts.
    #[prost(uint64, tag = "1")]
    pub offset: u64,
    /// How long it is.
    #[prost(uint64, tag = "2")]
    pub len_bytes: u64,
    /// 0 for a hole.
    #[prost(uint64, tag = "3")]
    pub chunk_id: u64,
    /// First byte of the chunk that belongs to it.
    #[prost(uint64, tag = "4")]
    pub chunk_offset: u64,
}
