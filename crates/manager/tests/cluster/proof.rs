//! Chunks are proven: parity by its nodes, and unreadable chunks before they answer anybody.

use tessera_testkit::Cluster;
use tessera_wire::meta::{ChunkAnswer, ChunkState, Maintain, MaintenanceJob, ReportBad};

/// The chunks with fragments that no node has checked.
fn unproven(cluster: &mut Cluster) -> u64 {
    let counters = cluster.status().counters;
    counters.iter().find(|counter| counter.name == "chunks_unproven").expect("a counter").value
}

/// The dedup answer about the first chunk.
fn answer(cluster: &mut Cluster, name: &str) -> ChunkAnswer {
    let opened = cluster.open(name, "ec:2+1", &[1]).expect("room for a file");
    opened.allocated.expect("an answer").answers.remove(0)
}

/// P13: a client's parity counts as unproven until its nodes have compared it. Copies are proven when they arrive.
#[test]
fn parity_is_proven_once_it_is_old_enough() {
    let mut cluster = Cluster::new(4, 1);
    cluster.write("a", "ec:2+1", &[1, 2]);
    cluster.write("b", "replica:2", &[3]);
    assert_eq!(unproven(&mut cluster), 2);
    cluster.run(2_000);
    assert_eq!(unproven(&mut cluster), 2, "too young");
    cluster.until(400, "proven", |c| unproven(c) == 0);
    assert_eq!(answer(&mut cluster, "c").state(), ChunkState::Durable);
}

/// P13: a scrub that an operator asks for proves all parity, however young, before it ends.
#[test]
fn a_scrub_proves_all_parity() {
    let mut cluster = Cluster::new(4, 1);
    cluster.write("a", "ec:2+1", &[1, 2]);
    let scrub = |start| Maintain { what: MaintenanceJob::Scrub as i32, start };
    assert!(cluster.ask(&scrub(true)).unwrap().running);
    cluster.until(40, "scrubbed", |c| !c.ask(&scrub(false)).unwrap().running);
    assert_eq!(unproven(&mut cluster), 0);
}

/// P2: a chunk that a client could not read answers nobody's dedup question until nodes have proven all of it.
#[test]
fn an_unreadable_chunk_answers_nobody_until_it_is_proven() {
    let mut cluster = Cluster::new(5, 1);
    let chunk = cluster.write("a", "ec:2+1", &[1])[0];
    assert_eq!(answer(&mut cluster, "b").state(), ChunkState::Durable, "slices were checked on arrival");
    cluster.ask(&ReportBad { fragments: vec![], unreadable: vec![chunk, 1 << 40] }).unwrap();
    let trusting = tessera_failpoint::activate("manager.unproven_is_durable");
    assert_eq!(answer(&mut cluster, "e").state(), ChunkState::Durable, "the mistake that this test looks for");
    drop(trusting);
    let other = answer(&mut cluster, "c");
    assert!(other.state() == ChunkState::New && other.chunk_id != chunk, "{other:?}");
    cluster.until(600, "proven", |c| unproven(c) == 0);
    let again = answer(&mut cluster, "d");
    assert_eq!((again.state(), again.chunk_id), (ChunkState::Durable, chunk));
}
