//! Planted bugs: mistakes that a storage system might make, each switched on by itself. The simulator must notice every one of
//! them within a bounded number of seeds, or its plans are what needs the fix (docs/promises.md).
//!
//! Bugs are planted at the seams that the simulator owns (messages, knobs, disks), so that production code carries
//! nothing for them: a client that counts wrongly sends wrong commits, a node that does not sync has a disk that lies, and so on.

use tessera_manager::config::Config as ManagerConfig;
use tessera_node::NodeConfig;
use tessera_wire::Kind;
use tessera_wire::data::PutFragments;
use tessera_wire::meta::Commit;
use tessera_wire::rpc::Call;

/// What is wrong with this world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// Nothing.
    Nothing,
    /// Nodes acknowledge before they have synced (their disks lie about it).
    AckBeforeSync,
    /// A writer counts one acknowledgement too many: the last fragment of each chunk is never sent.
    QuorumMinusOne,
    /// Nodes take what comes, damaged or not, and the damage is in their checksum too.
    SkippedChecksum,
    /// Garbage is collected without regard to sessions.
    ZeroGcGrace,
    /// The manager takes acknowledgements of any epoch.
    StaleEpochAccepted,
    /// One parity row is computed wrongly.
    WrongParityRow,
    /// Two fragments of a chunk change places on their way.
    SwappedFragments,
    /// The command log is acknowledged by the manager alone.
    LogWithoutReplicas,
    /// A repeated request is a new one.
    ForgottenOpIds,
    /// Extents of a commit name the wrong part of a chunk.
    ShiftedExtent,
}

impl Planted {
    /// All bugs.
    pub const ALL: &'static [Planted] = &[
        Planted::AckBeforeSync,
        Planted::QuorumMinusOne,
        Planted::SkippedChecksum,
        Planted::ZeroGcGrace,
        Planted::StaleEpochAccepted,
        Planted::WrongParityRow,
        Planted::SwappedFragments,
        Planted::LogWithoutReplicas,
        Planted::ForgottenOpIds,
        Planted::ShiftedExtent,
    ];

    /// Knobs of the manager in simulated worlds: everything happens within seconds.
    pub fn manager_config(self, m: usize) -> ManagerConfig {
        ManagerConfig {
            session_ms: if self == Planted::ZeroGcGrace { 1 } else { 5_000 },
            reader_persist_ms: 100,
            answers_ms: 60_000,
            lease_entry_ms: 200,
            log_copies: if self == Planted::LogWithoutReplicas { 0 } else { m as u32 + 1 },
            log_call_timeout_ms: 500,
            log_retry_ms: 50,
            snapshot_log_bytes: 40 << 10,
            snapshot_piece_bytes: 64 << 10,
            heartbeat_ms: 100,
            node_lease_ms: 600,
            down_after_ms: 700,
            out_after_ms: 2_500,
            pg_cap_bytes: 256 << 10,
            task_chunks: 5,
            tasks_per_node: 2,
            scrub_every_ms: 0,
            inventory_every_ms: 20_000,
            ..ManagerConfig::default()
        }
    }

    /// Knobs of nodes in simulated worlds.
    pub fn node_config(self) -> NodeConfig {
        NodeConfig {
            heartbeat_ms: 100,
            heartbeat_timeout_ms: 400,
            register_timeout_ms: 500,
            early_heartbeat_ms: 10,
            rebuild_fetch_timeout_ms: 500,
            inventory_timeout_ms: 500,
            compact_every_ms: 2_000,
            inventory_page: 16,
            repair_bytes_per_s: 0,
            scrub_bytes_per_s: 0,
            ..NodeConfig::default()
        }
    }

    /// What becomes of a call that somebody sends.
    pub fn corrupt_call(self, call: &mut Call) {
        match (self, call.kind) {
            (Planted::QuorumMinusOne | Planted::StaleEpochAccepted | Planted::ShiftedExtent, Kind::Commit) => {
                edit(call, |c: &mut Commit| match self {
                    Planted::QuorumMinusOne => c.acks.iter_mut().for_each(|a| a.missing.clear()),
                    Planted::StaleEpochAccepted => c.acks.iter_mut().for_each(|a| a.epoch = u64::MAX >> 1),
                    _ => {
                        c.extents.iter_mut().filter(|e| e.len_bytes > 1 && e.chunk_offset == 0).take(1).for_each(|e| {
                            e.len_bytes -= 1;
                            e.chunk_offset += 1;
                        })
                    }
                })
            }
            (Planted::SwappedFragments, Kind::PutFragments) => edit(call, |p: &mut PutFragments| {
                p.items.iter_mut().filter(|i| i.fragment < 2).for_each(|i| i.fragment ^= 1);
            }),
            (Planted::WrongParityRow | Planted::SkippedChecksum, Kind::PutFragments) => self.damage_payload(call),
            _ => {}
        }
    }

    /// Damages bytes and puts their checksum right again.
    fn damage_payload(self, call: &mut Call) {
        let mut bytes: Vec<u8> = call.payload.concat();
        edit(call, |put: &mut PutFragments| {
            let mut at = 0;
            for item in &mut put.items {
                let end = at + item.len_bytes as usize;
                let hit = match self {
                    Planted::WrongParityRow => item.fragment == 2,
                    _ => item.chunk_id % 16 == 3,
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
        self == Planted::AckBeforeSync
    }
}

fn edit<M: prost::Message + Default>(call: &mut Call, change: impl FnOnce(&mut M)) {
    if let Ok(mut message) = M::decode(call.body.clone()) {
        change(&mut message);
        call.body = message.encode_to_vec().into();
    }
}
