//! Small helpers for the tests of this crate.

use tessera_disk::{Identity, SimDisk};

pub const IDENTITY: Identity = Identity { cluster_id: [7; 16], disk_uuid: [9; 16], created_ms: 1 };

pub fn sim(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    IDENTITY.create(&disk).unwrap();
    disk
}
