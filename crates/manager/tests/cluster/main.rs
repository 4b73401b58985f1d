//! Scenarios of membership, repair and garbage: the core in a cluster in memory.

use std::collections::BTreeSet;
use tessera_failpoint as failpoint;
use tessera_manager::db::rows;
use tessera_testkit::recount;
use tessera_testkit::{CAPACITY, Cluster, Config, MS, chunk_name, config, fragment, registration, uuid};
use tessera_wire::meta::*;
use tessera_wire::{Code, Health};

mod members;
mod proof;
mod random;
mod repair;
mod room;
mod upkeep;

fn write_files(cluster: &mut Cluster, from: u64, files: u64) {
    for f in from..from + files {
        let seeds: Vec<u64> = (0..3).map(|c| f * 100 + c).collect();
        cluster.write(&format!("f{f}"), if f % 3 == 0 { "replica:3" } else { "ec:4+2" }, &seeds);
    }
}

fn disk_members(cluster: &Cluster, disk: u64) -> usize {
    rows::members_on(cluster.db(), disk).unwrap().len()
}
