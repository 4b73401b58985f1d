//! Scenarios of membership, repair and garbage against a fake cluster (fake_cluster.rs).

use crate::chunks::audit;
use crate::config::ns;
use crate::db::rows;
use crate::fake_cluster::*;
use crate::internal::{AdvanceBackfill, CollectGarbage, FinishBackfill, FinishBackfills, Internal, Move, MoveMembers};
use std::collections::BTreeSet;
use tessera_failpoint as failpoint;
use tessera_wire::meta::*;
use tessera_wire::{Code, Health};

mod members;
mod random;
mod repair;
mod upkeep;

fn write_files(fake: &mut Fake, from: u64, files: u64) {
    for f in from..from + files {
        let seeds: Vec<u64> = (0..3).map(|c| f * 100 + c).collect();
        fake.write(&format!("f{f}"), if f % 3 == 0 { "replica:3" } else { "ec:4+2" }, &seeds);
    }
}

fn disk_members(fake: &Fake, disk: u64) -> usize {
    rows::members_on(fake.db.conn(), disk).unwrap().len()
}
