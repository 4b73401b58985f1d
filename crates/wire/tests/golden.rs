//! The encoded bytes of every message stay what they are (P14).
//!
//! `golden.txt` has two lines for each message: its name with the bytes of an instance that has every field set, and how
//! that instance prints. The bytes of a line never change. `REWRITE_GOLDEN=1` rewrites the printed form, which names the
//! fields, after a field was renamed or added.

use prost::Message;
use std::collections::BTreeMap;

type Print = fn(&str, &[u8]) -> String;

/// Decodes the bytes as `M`, checks that `M` encodes to the same bytes, and prints the instance.
fn print<M: Message + Default + std::fmt::Debug>(name: &str, bytes: &[u8]) -> String {
    let message = M::decode(bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(message.encode_to_vec(), bytes, "{name} encodes differently");
    format!("{message:?}")
}

macro_rules! printers {
    ($($module:ident { $($name:ident,)* })*) => {
        BTreeMap::from([$($((stringify!($name), print::<$module::$name> as Print),)*)*])
    };
}

fn printers() -> BTreeMap<&'static str, Print> {
    use tessera_wire::{self as wire, consensus, data, log, meta};
    printers! {
        wire {
            Error, Ack, Hello, HelloReply, Hint, Attr, NodeInfo, DiskInfo, PgMember, PgInfo, ChunkInfo, Extent,
            ClassInfo,
        }
        data {
            PutItem, PutFragments, PutResult, PutFragmentsReply, GetItem, GetFragments, GetResult,
            GetFragmentsReply, GetNodeStatus, DiskStatus, NodeStatus,
        }
        meta {
            Resolve, Entry, InoRange, Lookup, GetAttr, List, Subtree, Dirent, ListReply, MakeDir, MakeNode, Unlink,
            RemoveNames, NotRemoved, RemoveNamesReply, Rename,
            Link, Symlink, SetAttr, SetXattr, ListXattrs, Xattr, ListXattrsReply, RemoveXattr, ListVersions,
            VersionInfo, ListVersionsReply, RecallLease, ChunkName, OpenWrite, PreallocatedChunks, OpenWriteReply,
            AllocateChunks, ChunkAnswer, AllocateChunksReply, RenewSession, RenewSessionReply, ChunkAck, Commit,
            StaleAck, CommitReply, CloseSession, OpenRead, OpenReadReply, ListExtents, ListExtentsReply,
            FragmentRef, CompleteFragments, ReportBad, GetMap, ClusterMap, GetStatus, ClusterStatus, DeviceWork,
            ReportWork, RejectedNode, Counter, Drain, Maintain, MaintainReply, ChangePeer, PeerStatus, KeyColumn,
            TablePosition, TableDigest, PartDigest, ReportDigest, ReportDigestReply, MetadataComparison, MembersWaiting, RegisterNode, RegisterNodeReply,
            TaskResult, Heartbeat, RebuildTask, VerifyTask, ScrubTask, InventoryTask, CompactTask, Task,
            HeartbeatReply, Inventory, InventoryReply, FileLock, SetLock, SetLockReply, TestLock, TestLockReply,
            CancelLock, HoldLocks, HoldLocksReply, ReturnLocks,
            PackedContent, Pack, PackedFile, ContentInfo, MovedContent, ListPacks, PackUse, ListPacksReply,
            DescribeReads, DescribeReadsReply, FileDigest, CompareFiles, CompareFilesReply, ListMany, ListedDirectory,
            MovedFile, ListUnpacked, ListUnpackedReply, ListInlined, InlinedContent, ListInlinedReply, ListManyReply, NewEntry, MakeEntries, MadeEntry, MakeEntriesReply, SetAttrs, NotSet, SetAttrsReply,
        }
        log {
            LoggedCommand, LogEntry,
        }
        consensus {
            Member, Membership, MemberChange, MembershipChange, Position, SnapshotInfo, RaftEntry, RaftMessage,
            Consensus, ConsensusReply, GetPiece, GetPieceReply, JoinGroup, JoinGroupReply, DescribePeer, DescribePeerReply,
            FencePeer, GetEntries, GetEntriesReply,
        }
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn every_message_encodes_to_the_same_bytes_as_ever() {
    let golden = include_str!("golden.txt");
    let mut printers = printers();
    let lines: Vec<&str> = golden.lines().collect();
    let mut current = String::new();
    for pair in lines.chunks(2) {
        let (name, hex) = pair[0].split_once(' ').unwrap();
        let print = printers.remove(name).unwrap_or_else(|| panic!("no such message: {name}"));
        current += &format!("{}\n{}\n", pair[0], print(name, &from_hex(hex)));
    }
    assert!(printers.is_empty(), "golden.txt lacks {:?}", printers.keys());
    match std::env::var_os("REWRITE_GOLDEN") {
        Some(_) => std::fs::write("tests/golden.txt", current).unwrap(),
        None => assert!(
            current == golden,
            "a message prints differently; if a field was renamed, run with REWRITE_GOLDEN=1"
        ),
    }
}

macro_rules! numbers {
    ($($module:ident::$name:ident,)*) => {
        [$((stringify!($name), (0..100).filter_map(|n| Some((n, format!("{:?}", $module::$name::try_from(n).ok()?)))).collect()),)*]
    };
}

/// A line for each value of each enumeration and for each kind of message. A line that is there never changes.
#[test]
fn numbers_keep_their_meaning() {
    use tessera_wire::{self as wire, Kind, consensus, meta};
    let enumerations: [(&str, Vec<(i32, String)>); 16] = numbers![
        wire::Code,
        wire::Role,
        wire::InodeKind,
        wire::Health,
        meta::ChunkState,
        meta::CommitMode,
        meta::MaintenanceJob,
        meta::PeerChange,
        meta::ComparisonResult,
        meta::LockFamily,
        meta::LockMode,
        meta::LockOutcome,
        consensus::PeerKind,
        consensus::ChangeKind,
        consensus::EntryKind,
        consensus::MessageKind,
    ];
    let values =
        enumerations.iter().flat_map(|(name, values)| values.iter().map(move |(n, v)| format!("{name} {n} {v}\n")));
    let kinds = Kind::ALL.iter().map(|kind| format!("Kind {:#06x} {}\n", *kind as u16, kind.name()));
    let current: String = values.chain(kinds).collect();
    match std::env::var_os("REWRITE_GOLDEN") {
        Some(_) => std::fs::write("tests/numbers.txt", current).unwrap(),
        None => assert_eq!(current, include_str!("numbers.txt")),
    }
}
