//! The table of message kinds: one line ties a number, a request and its answer together.

use crate::error::{Code, Error};
use crate::{common::*, data::*, log::*, meta::*};

/// A request that can be sent: its kind and the type of its answer.
pub trait Request: prost::Message + Default + Clone {
    /// Number of this request on the wire.
    const KIND: Kind;
    /// What a successful answer decodes to.
    type Reply: prost::Message + Default + Clone;
}

macro_rules! messages {
    ($($(#[$doc:meta])* $number:literal $name:ident => $reply:ident;)*) => {
        /// Every kind of message, by its number on the wire.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Kind { $($(#[$doc])* $name = $number,)* }

        impl Kind {
            /// All kinds, in the order of their numbers.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            /// The kind with this number, if there is one.
            pub fn from_number(number: u16) -> Option<Kind> {
                match number { $($number => Some(Kind::$name),)* _ => None }
            }

            /// Name of the kind, as in docs/wire.md and in metrics.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$name => stringify!($name),)* }
            }
        }

        $(impl Request for $name { const KIND: Kind = Kind::$name; type Reply = $reply; })*
    };
}

impl Kind {
    /// Whether a peer that greeted as `role` may send this: what speaks for a node comes from nodes only, what speaks for
    /// the manager from managers only, and neither does what clients do (docs/wire.md, section 3).
    pub fn is_for(self, role: Role) -> bool {
        use Kind::*;
        match self {
            Hello => true,
            RecallLease | AppendLog | ReadLog | PutSnapshot | GetSnapshot => role == Role::Manager,
            RegisterNode | Heartbeat | Inventory => role == Role::Node,
            ReportBad | GetMap | GetStatus | Drain | Maintain | GetFragments | GetNodeStatus => {
                matches!(role, Role::Client | Role::Node)
            }
            _ => role == Role::Client,
        }
    }

    /// Refuses what a peer of this role may not send (P14).
    ///
    /// # Errors
    /// [`Code::Permission`], naming the message and the role.
    pub fn check_role(self, role: Role) -> Result<(), Error> {
        match self.is_for(role) {
            true => Ok(()),
            false => Err(Error::new(
                Code::Permission,
                format!(
                    "{} is not for a peer that greeted as {role:?} to send; docs/wire.md says whose it is",
                    self.name()
                ),
            )),
        }
    }
}

messages! {
    /// First message on every connection.
    0x0001 Hello => HelloReply;

    /// Path to inode.
    0x0100 Resolve => Entry;
    /// Entry of a directory.
    0x0101 Lookup => Entry;
    /// Attributes of an inode.
    0x0102 GetAttr => Entry;
    /// Entries of a directory, paged.
    0x0103 List => ListReply;
    /// New directory.
    0x0104 MakeDir => Entry;
    /// Remove a name.
    0x0105 Unlink => Entry;
    /// Move a name.
    0x0106 Rename => Ack;
    /// Another name for a file.
    0x0107 Link => Entry;
    /// Symbolic link.
    0x0108 Symlink => Entry;
    /// Change mode, owner, times.
    0x0109 SetAttr => Entry;
    /// Set an extended attribute; hints are validated.
    0x010a SetXattr => Ack;
    /// All extended attributes of an inode.
    0x010b ListXattrs => ListXattrsReply;
    /// Remove an extended attribute.
    0x010c RemoveXattr => Ack;
    /// Versions of a file.
    0x010d ListVersions => ListVersionsReply;
    /// The manager takes a lease back (manager to client).
    0x010e RecallLease => Ack;
    /// New empty file, named pipe, socket or device.
    0x010f MakeNode => Entry;

    /// Open a write session.
    0x0200 OpenWrite => OpenWriteReply;
    /// The batched dedup question: which chunks exist, and where do new ones go?
    0x0201 AllocateChunks => AllocateChunksReply;
    /// Keep a session alive; reserve more space.
    0x0202 RenewSession => RenewSessionReply;
    /// Make a version visible.
    0x0203 Commit => CommitReply;
    /// Give a session up.
    0x0204 CloseSession => Ack;
    /// Open a version for reading.
    0x0205 OpenRead => OpenReadReply;
    /// More extents of an open version.
    0x0206 ListExtents => ListExtentsReply;
    /// Fragments completed after an optimistic commit.
    0x0207 CompleteFragments => Ack;
    /// Fragments found missing or corrupt while reading.
    0x0208 ReportBad => Ack;
    /// What a client's devices computed.
    0x0209 ReportWork => Ack;

    /// Placement groups, disks and nodes.
    0x0300 GetMap => ClusterMap;
    /// What `tessera status` shows.
    0x0301 GetStatus => ClusterStatus;
    /// Drain a node or a disk, or take that back.
    0x0302 Drain => Ack;
    /// Start or look at a garbage collection, scrub or repair pass.
    0x0303 Maintain => MaintainReply;

    /// A node makes itself known.
    0x0400 RegisterNode => RegisterNodeReply;
    /// A node is alive; work goes both ways.
    0x0401 Heartbeat => HeartbeatReply;
    /// A page of what a disk holds.
    0x0402 Inventory => InventoryReply;

    /// Store fragments.
    0x0500 PutFragments => PutFragmentsReply;
    /// Read fragments or parts of them.
    0x0501 GetFragments => GetFragmentsReply;
    /// What a node holds and does.
    0x0502 GetNodeStatus => NodeStatus;

    /// Append to the replica of the command log.
    0x0600 AppendLog => AppendLogReply;
    /// Read the replica back.
    0x0601 ReadLog => ReadLogReply;
    /// Store a piece of a snapshot.
    0x0602 PutSnapshot => AppendLogReply;
    /// Read a piece of the newest snapshot.
    0x0603 GetSnapshot => GetSnapshotReply;

    /// Set, change or give up a lock on a file.
    0x0700 SetLock => SetLockReply;
    /// Who is in the way of a lock?
    0x0701 TestLock => TestLockReply;
    /// Stop waiting for a lock.
    0x0702 CancelLock => Ack;
    /// Hold locks, go on holding them, or assert them to a new manager.
    0x0703 HoldLocks => HoldLocksReply;
}
