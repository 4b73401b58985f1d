//! Mutants: mistakes that a storage system might make. A run has one of them or none. The simulator must detect each within
//! a bounded number of seeds; if it does not, its plans are too weak (docs/promises.md).
//!
//! These mutants act on what the simulator owns: messages, knobs and disks. A client that counts wrongly sends wrong
//! commits; a node that does not sync has a disk that lies. Mistakes inside of production code are the failpoints of the
//! crate `tessera-failpoint`, which the tests of the crates activate.

use crate::mount_world::plan::Theme;
use crate::plan::Plan;
use tessera_manager::config::Config as ManagerConfig;
use tessera_node::NodeConfig;
use tessera_wire::data::{PutFragments, PutFragmentsReply};
use tessera_wire::meta::{
    AllocateChunks, ChunkName, ClusterStatus, Commit, Heartbeat, HeartbeatReply, OpenWrite, Unlink,
};
use tessera_wire::rpc::Call;
use tessera_wire::{Code, Kind};

/// The mistake in a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// Nothing.
    None,
    /// Nodes acknowledge before they have synced: their disks lie about syncs.
    AckBeforeSync,
    /// A writer counts missing fragments as stored.
    QuorumMinusOne,
    /// A client damages slices and copies before it computes their checksums.
    DamagedSlices,
    /// A client stores other content, with its hashes, under the chunks that it commits.
    OtherContent,
    /// Clients send no fragment that was stored once, and show the receipt of then (`world/old_receipts.rs`).
    OldReceipts,
    /// Clients compute wrong parity.
    WrongParity,
    /// Two fragments of a chunk are swapped in flight.
    SwappedFragments,
    /// Deletes never reach the nodes.
    LostDeletes,
    /// The first two extents of a commit name each other's chunks.
    SwappedExtents,
    /// The last extent of a commit is lost.
    LostExtent,
    /// A file is removed under another name.
    UnlinkElsewhere,
    /// Chunks are compared by three bits of their hash.
    TruncatedHash,
    /// A node reports fragments that it could not rebuild as rebuilt.
    FailedAsDone,
    /// `status` counts no chunk as lost.
    LossesHidden,
    /// Managers give nodes up after a few hundred milliseconds.
    Impatient,
}

impl Mutant {
    /// Mutants that survivable plans detect.
    pub const ALL: &'static [Mutant] = &[
        Mutant::AckBeforeSync,
        Mutant::LostDeletes,
        Mutant::SwappedExtents,
        Mutant::LostExtent,
        Mutant::UnlinkElsewhere,
        Mutant::FailedAsDone,
    ];

    /// Clients that lie or miscompute, and the failpoints that switch off the checks against them.
    pub const LIES: &[(Mutant, &[&'static str])] = &[
        (Mutant::DamagedSlices, &["node.content_unchecked"]),
        (Mutant::WrongParity, &["manager.parity_never_proven"]),
        (Mutant::OtherContent, &["manager.receipts_ignored"]),
        // A proof would replace the fragment that was never stored.
        (Mutant::QuorumMinusOne, &["manager.receipts_ignored", "manager.parity_never_proven"]),
        (Mutant::SwappedFragments, &["manager.receipts_ignored"]),
        (Mutant::TruncatedHash, &["manager.receipts_ignored"]),
    ];

    /// Failpoints in the group of managers and voters that survivable plans detect.
    pub const OF_GROUP: &[&'static str] = &[
        "consensus.acknowledges_before_sync",
        "consensus.dead_stay",
        "consensus.drops_too_much",
        "consensus.forgets_votes",
        "consensus.seeks_nobody",
        "consensus.stays_joint",
        "consensus.voter_keeps_leading",
        "manager.commits_before_group",
        "manager.deposed_answers_reads",
        "manager.deposed_keeps_batch",
        "manager.drained_with_log",
        "manager.inlined_leak",
        "manager.lagging_database_kept",
        "manager.moved_files_leak",
        "manager.moved_from_anywhere",
        "manager.packs_leak",
        "manager.reads_unconfirmed",
        "manager.replies_not_stored",
        "manager.serves_too_early",
        "manager.snapshot_index_off",
        "manager.standby_skips_entry",
    ];

    /// Mutants that only plans of one slow node detect.
    pub const SLOW: &'static [Mutant] = &[Mutant::Impatient];

    /// Clients that lie: only plans of one rotting node detect them, without the check `manager.old_receipts_count`.
    pub const ROTTING: &'static [Mutant] = &[Mutant::OldReceipts];

    /// Mutants that only plans beyond redundancy detect.
    pub const BEYOND: &'static [Mutant] = &[Mutant::LossesHidden];

    /// Knobs of simulated managers: timeouts are short, so that everything happens within seconds.
    pub fn manager_config(self, plan: &Plan) -> ManagerConfig {
        ManagerConfig {
            session_ms: 5_000,
            // A garbage collection that was asked for may end before a session does that holds what is kept.
            unfinished_keep_ms: 60_000,
            reader_persist_ms: 100,
            answers_ms: 60_000,
            lease_entry_ms: 200,
            max_voters: plan.max_voters,
            snapshot_log_bytes: if plan.snapshots_often { 2 << 10 } else { 40 << 10 },
            snapshot_log_percent: if plan.many_chunks { 100 } else { 0 },
            heartbeat_ms: 200,
            node_lease_ms: 600,
            down_after_ms: if self == Mutant::Impatient { 300 } else { 700 },
            out_after_ms: if self == Mutant::Impatient { 350 } else { 2_500 },
            pg_cap_bytes: 256 << 10,
            task_chunks: if plan.many_chunks { 500 } else { 5 },
            tasks_per_node: 2,
            scrub_every_ms: 0,
            metadata_compare_every_ms: 3_000,
            metadata_scrub_bytes_per_s: 16 << 10,
            prove_after_ms: 1_000,
            inventory_every_ms: 20_000,
            ..ManagerConfig::default()
        }
    }

    /// Knobs of simulated nodes.
    pub fn node_config(self, plan: &Plan) -> NodeConfig {
        NodeConfig {
            heartbeat_ms: 200,
            heartbeat_timeout_ms: 400,
            register_timeout_ms: 500,
            early_heartbeat_ms: 10,
            rebuild_fetch_timeout_ms: 500,
            inventory_timeout_ms: 500,
            compact_every_ms: 2_000,
            inventory_page: if plan.many_chunks { 1_000 } else { 16 },
            repair_bytes_per_s: 0,
            scrub_bytes_per_s: 0,
            ..NodeConfig::default()
        }
    }

    /// Changes a call in flight.
    pub fn corrupt_call(self, call: &mut Call) {
        match (self, call.kind) {
            (Mutant::QuorumMinusOne, Kind::Commit) => {
                edit(call, |c: &mut Commit| c.acks.iter_mut().for_each(|a| a.missing.clear()));
            }
            (Mutant::SwappedExtents, Kind::Commit) => edit(call, |c: &mut Commit| {
                if let [a, b, ..] = &mut c.extents[..]
                    && a.len_bytes == b.len_bytes
                {
                    std::mem::swap(&mut a.chunk_id, &mut b.chunk_id);
                    std::mem::swap(&mut a.name_prefix, &mut b.name_prefix);
                }
            }),
            (Mutant::LostExtent, Kind::Commit) => edit(call, |c: &mut Commit| {
                if let (false, Some(last)) = (c.partial, c.extents.pop()) {
                    c.size_bytes -= last.len_bytes.min(c.size_bytes);
                }
            }),
            (Mutant::UnlinkElsewhere, Kind::Unlink) => edit(call, |u: &mut Unlink| u.name = b"elsewhere".to_vec()),
            (Mutant::TruncatedHash, Kind::OpenWrite) => edit(call, |o: &mut OpenWrite| truncate(&mut o.chunks)),
            (Mutant::TruncatedHash, Kind::AllocateChunks) => {
                edit(call, |a: &mut AllocateChunks| truncate(&mut a.chunks))
            }
            (Mutant::TruncatedHash, Kind::Commit) => edit(call, |c: &mut Commit| {
                c.open.iter_mut().for_each(|open| truncate(&mut open.chunks));
                c.extents.iter_mut().for_each(|e| e.name_prefix &= 7 << 56);
            }),
            (Mutant::SwappedFragments, Kind::PutFragments) => edit(call, |p: &mut PutFragments| {
                p.items.iter_mut().filter(|i| i.fragment < 2).for_each(|i| i.fragment ^= 1);
            }),
            (Mutant::WrongParity | Mutant::DamagedSlices, Kind::PutFragments) => self.damage_payload(call),
            (Mutant::OtherContent, Kind::PutFragments) => replace_payload(call),
            (Mutant::FailedAsDone, Kind::Heartbeat) => edit(call, |h: &mut Heartbeat| {
                for result in &mut h.results {
                    let failed = std::mem::take(&mut result.failed);
                    result.done.extend(failed);
                }
            }),
            _ => {}
        }
    }

    /// Changes the answer of `status`.
    pub fn corrupt_status(self, status: &mut ClusterStatus) {
        if self == Mutant::LossesHidden {
            status.chunks_lost = 0;
        }
    }

    /// Changes an answer in flight to a request of this kind.
    pub fn corrupt_answer(self, kind: Kind, body: &mut bytes::Bytes) {
        match (self, kind) {
            (Mutant::LostDeletes, Kind::Heartbeat) => edit_body(body, |r: &mut HeartbeatReply| r.deletes.clear()),
            (Mutant::QuorumMinusOne, Kind::PutFragments) => {
                edit_body(body, |r: &mut PutFragmentsReply| r.results.iter_mut().for_each(|one| one.error = None));
            }
            (Mutant::OldReceipts, Kind::PutFragments) => edit_body(body, |r: &mut PutFragmentsReply| {
                r.results.iter_mut().for_each(|one| _ = one.error.take_if(|error| error.code() == Code::NotFound));
            }),
            _ => {}
        }
    }

    /// Damages bytes and recomputes their checksum.
    fn damage_payload(self, call: &mut Call) {
        let mut bytes: Vec<u8> = call.payload.concat();
        edit(call, |put: &mut PutFragments| {
            let mut at = 0;
            for item in &mut put.items {
                let end = at + item.len_bytes as usize;
                let hit = match self {
                    Mutant::WrongParity => item.offset.is_none(),
                    _ => item.chunk_id % 16 == 3 && item.offset.is_some(),
                };
                if hit && end > at && end <= bytes.len() {
                    bytes[at] ^= 0x55;
                    item.crc32c = tessera_accel::checksum::crc32c(&bytes[at..end]);
                }
                at = end;
            }
        });
        call.payload = vec![bytes.into()];
    }

    /// Whether disks of nodes lie about syncs.
    pub fn disks_lie(self) -> bool {
        self == Mutant::AckBeforeSync
    }
}

/// Failpoints that the runs of several mounts detect, each with what programs do in the runs that look for it.
pub const OF_MOUNTS: &[(&str, Theme)] = &[
    ("manager.late_answer_releases", Theme::Locks),
    ("manager.late_claims_count", Theme::Locks),
    ("manager.names_not_rechecked", Theme::Spool),
    ("manager.no_recall", Theme::Mixed),
    ("manager.repeats_apply", Theme::Mixed),
    ("mount.close_gives_up_flock_early", Theme::Locks),
    ("mount.content_ahead_is_stale", Theme::Mixed),
    ("mount.create_in_flight_untold", Theme::Creates),
    ("mount.cut_bytes_not_blanked", Theme::Spool),
    ("mount.cut_is_forgotten", Theme::Mixed),
    ("mount.delegation_recall_ignored", Theme::Creates),
    ("mount.hidden_length_stays", Theme::Mixed),
    ("mount.kept_pages_stay", Theme::Spool),
    ("mount.kernel_keeps_pages", Theme::Locks),
    ("mount.known_content_is_stale", Theme::Mixed),
    ("mount.log_close_not_synced", Theme::Spool),
    ("mount.lost_locks_count", Theme::Locks),
    ("mount.patch_keeps_pages", Theme::Locks),
    ("mount.push_over_newer", Theme::Spool),
    ("mount.pushed_log_stays", Theme::Spool),
    ("mount.recall_answered_early", Theme::Creates),
    ("mount.recall_keeps_entries", Theme::Mixed),
    ("mount.recent_version_is_stale", Theme::Mixed),
    ("mount.reconnect_loses_creates", Theme::Creates),
    ("mount.release_not_awaited", Theme::Mixed),
    ("mount.replaced_reads_zeros", Theme::Mixed),
    ("mount.returned_locks_decided", Theme::Locks),
    ("mount.stamps_are_ignored", Theme::Mixed),
    ("mount.unlinked_not_committed", Theme::Mixed),
    ("mount.unread_log_removed", Theme::Spool),
    ("mount.whole_replaces", Theme::Mixed),
];

/// Failpoints that a test of their own detects.
pub const OF_ONE_TEST: &[&str] = &[
    "client.names_not_compared",
    "consensus.waits_for_all",
    "manager.clock_follows_wall",
    "manager.readers_hold_garbage",
    "mount.failed_lock_is_held",
    "mount.generation_not_delayed",
    "mount.known_content_is_not_compared",
    "mount.push_not_recognized",
    "mount.pushed_file_leaves_early",
];

/// Replaces the content of chunks that one fragment holds whole, and computes all hashes anew.
fn replace_payload(call: &mut Call) {
    let mut bytes: Vec<u8> = call.payload.concat();
    edit(call, |put: &mut PutFragments| {
        let mut at = 0;
        for item in &mut put.items {
            let end = at + item.len_bytes as usize;
            let whole = item.offset == Some(0) && u64::from(item.len_bytes) == item.chunk_len_bytes;
            if whole && item.chunk_id % 4 == 1 && end <= bytes.len() {
                bytes[at] ^= 0x55;
                let tree = tessera_accel::hash::tree(&bytes[at..end]);
                item.crc32c = tessera_accel::checksum::crc32c(&bytes[at..end]);
                item.hash = tree.root.0.to_vec().into();
                item.groups = tree.groups.concat().into();
            }
            at = end;
        }
    });
    call.payload = vec![bytes.into()];
}

fn truncate(chunks: &mut [ChunkName]) {
    for chunk in chunks {
        let mut hash = vec![0; 32];
        hash[0] = chunk.hash.first().map_or(0, |b| b & 7);
        chunk.hash = hash.into();
    }
}

fn edit<M: prost::Message + Default>(call: &mut Call, change: impl FnOnce(&mut M)) {
    edit_body(&mut call.body, change);
}

fn edit_body<M: prost::Message + Default>(body: &mut bytes::Bytes, change: impl FnOnce(&mut M)) {
    if let Ok(mut message) = M::decode(body.clone()) {
        change(&mut message);
        *body = message.encode_to_vec().into();
    }
}
