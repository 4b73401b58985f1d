//! Small helpers for the tests of this crate.

use tessera_disk::{Identity, SimDisk};
use tessera_logstore::LogStore;

pub const IDENTITY: Identity = Identity { cluster_id: [7; 16], disk_uuid: [9; 16], created_ms: 1 };

pub fn sim(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    IDENTITY.create(&disk).unwrap();
    disk
}

/// Reads the newest complete snapshot in pieces; whether it matches its hash.
pub fn snapshot_is_sound(log: &LogStore) -> bool {
    let Some(snapshot) = log.state().snapshot else { return true };
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < snapshot.total_bytes {
        let Ok(piece) = log.read_snapshot(snapshot.seq, bytes.len() as u64, 1 << 10) else { return false };
        bytes.extend(piece);
    }
    *blake3::hash(&bytes).as_bytes() == snapshot.hash
}
