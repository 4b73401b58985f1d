//! The table of message kinds: one row ties a number, a request, its answer and who may send it together.
//!
//! To add a request, add its messages to `proto/` and a row here.

use crate::consensus::{
    Consensus, ConsensusReply, DescribePeer, DescribePeerReply, FencePeer, GetEntries, GetEntriesReply,
};
use crate::consensus::{GetPiece, GetPieceReply, JoinGroup, JoinGroupReply};
use crate::{Ack, Code, Error, Hello, HelloReply, Role};
use crate::{data::*, meta::*};

/// A request: its kind and the type of its answer.
pub trait Request: prost::Message + Default + Clone {
    /// Kind of the request.
    const KIND: Kind;
    /// Type of a successful answer.
    type Reply: prost::Message + Default + Clone + 'static;
}

macro_rules! messages {
    ($($number:literal $name:ident => $reply:ident, from $($role:ident)|+;)*) => {
        /// Every kind of message, by its number on the wire.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Kind { $(#[doc = concat!("Request `", stringify!($name), "`.")] $name = $number,)* }

        impl Kind {
            /// All kinds, in the order of their numbers.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            /// The kind with this number, if there is one.
            pub fn from_number(number: u16) -> Option<Kind> {
                match number { $($number => Some(Kind::$name),)* _ => None }
            }

            /// Name of the kind: that of its request. Metrics use it.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$name => stringify!($name),)* }
            }

            /// Whether a peer that greeted as `role` may send this kind.
            pub fn is_for(self, role: Role) -> bool {
                match self { $(Kind::$name => matches!(role, $(Role::$role)|+),)* }
            }
        }

        $(impl Request for $name { const KIND: Kind = Kind::$name; type Reply = $reply; })*
    };
}

impl Kind {
    /// Whether a request is for a peer of the group that keeps the metadata.
    pub fn is_for_peer(self) -> bool {
        use Kind::{Consensus, DescribePeer, FencePeer, GetEntries, GetPiece, JoinGroup, ReportDigest};
        matches!(self, Consensus | GetPiece | JoinGroup | DescribePeer | FencePeer | GetEntries | ReportDigest)
    }

    /// Refuses a request that a peer of this role may not send (P14).
    ///
    /// # Errors
    /// [`Code::Permission`], naming the message and the role.
    pub fn check_role(self, role: Role) -> Result<(), Error> {
        match self.is_for(role) {
            true => Ok(()),
            false => {
                let why =
                    format!("a peer that greeted as {role:?} may not send {}; docs/wire.md, section 3", self.name());
                Err(Error::new(Code::Permission, why))
            }
        }
    }
}

// Kinds are in the order of their numbers, so no number occurs twice.
const _: () = {
    let mut i = 1;
    while i < Kind::ALL.len() {
        assert!((Kind::ALL[i - 1] as u16) < Kind::ALL[i] as u16, "kinds must be in the order of their numbers");
        i += 1;
    }
    // Higher numbers are internal commands of the manager, which occur in log entries only.
    assert!((Kind::ALL[Kind::ALL.len() - 1] as u16) < 0x8000);
};

messages! {
    0x0001 Hello => HelloReply, from Unknown | Client | Node | Manager;

    0x0100 Resolve => Entry, from Client;
    0x0101 Lookup => Entry, from Client;
    0x0102 GetAttr => Entry, from Client;
    0x0103 List => ListReply, from Client;
    0x0104 MakeDir => Entry, from Client;
    0x0105 Unlink => Entry, from Client;
    0x0106 Rename => Ack, from Client;
    0x0107 Link => Entry, from Client;
    0x0108 Symlink => Entry, from Client;
    0x0109 SetAttr => Entry, from Client;
    0x010a SetXattr => Ack, from Client;
    0x010b ListXattrs => ListXattrsReply, from Client;
    0x010c RemoveXattr => Ack, from Client;
    0x010d ListVersions => ListVersionsReply, from Client;
    0x010e RecallLease => Ack, from Manager;
    0x010f MakeNode => Entry, from Client;
    0x0110 RemoveNames => RemoveNamesReply, from Client;
    0x0111 ListMany => ListManyReply, from Client;
    0x0112 MakeEntries => MakeEntriesReply, from Client;
    0x0113 SetAttrs => SetAttrsReply, from Client;

    0x0200 OpenWrite => OpenWriteReply, from Client;
    0x0201 AllocateChunks => AllocateChunksReply, from Client;
    0x0202 RenewSession => RenewSessionReply, from Client;
    0x0203 Commit => CommitReply, from Client;
    0x0204 CloseSession => Ack, from Client;
    0x0205 OpenRead => OpenReadReply, from Client;
    0x0206 ListExtents => ListExtentsReply, from Client;
    0x0207 CompleteFragments => Ack, from Client;
    0x0208 ReportBad => Ack, from Client | Node;
    0x0209 ReportWork => Ack, from Client;
    0x020a ListPacks => ListPacksReply, from Client;
    0x020b DescribeReads => DescribeReadsReply, from Client;
    0x020c CompareFiles => CompareFilesReply, from Client;
    0x020d ListUnpacked => ListUnpackedReply, from Client;
    0x020e ListInlined => ListInlinedReply, from Client;

    0x0300 GetMap => ClusterMap, from Client | Node;
    0x0301 GetStatus => ClusterStatus, from Client | Node;
    0x0302 Drain => Ack, from Client | Node;
    0x0303 Maintain => MaintainReply, from Client | Node;
    0x0304 ChangePeer => Ack, from Client | Node;

    0x0400 RegisterNode => RegisterNodeReply, from Node;
    0x0401 Heartbeat => HeartbeatReply, from Node;
    0x0402 Inventory => InventoryReply, from Node;

    0x0500 PutFragments => PutFragmentsReply, from Client;
    0x0501 GetFragments => GetFragmentsReply, from Client | Node;
    0x0502 GetNodeStatus => NodeStatus, from Client | Node;

    0x0610 Consensus => ConsensusReply, from Manager | Node;
    0x0611 GetPiece => GetPieceReply, from Manager | Node;
    0x0612 JoinGroup => JoinGroupReply, from Manager | Node;
    0x0613 DescribePeer => DescribePeerReply, from Manager | Node;
    0x0614 FencePeer => DescribePeerReply, from Manager;
    0x0615 GetEntries => GetEntriesReply, from Manager;
    0x0616 ReportDigest => ReportDigestReply, from Manager;

    0x0700 SetLock => SetLockReply, from Client;
    0x0701 TestLock => TestLockReply, from Client;
    0x0702 CancelLock => Ack, from Client;
    0x0703 HoldLocks => HoldLocksReply, from Client;
    0x0704 ReturnLocks => SetLockReply, from Client;
}
