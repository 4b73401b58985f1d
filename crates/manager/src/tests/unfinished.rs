//! Chunks that a writer stored whole and did not commit: a repeated write finds them for a while.

use crate::config::Config;
use crate::db::Db;
use crate::rig::*;
use prost::Message;
use tessera_wire::Kind;
use tessera_wire::meta::*;

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;

/// Allocates new chunks; returns their acknowledgements, with the receipts of the nodes for all fragments.
fn store(rig: &mut Rig, session_id: u64, content: &[u8]) -> Vec<ChunkAck> {
    let names: Vec<ChunkName> = content.iter().map(|&c| chunk(c)).collect();
    let acks = acks(&rig.allocate(session_id, &names).unwrap().answers);
    assert_eq!(acks.len(), content.len(), "none of the chunks was known");
    let whole = |ack: ChunkAck| ChunkAck { stored: vec![0, 1, 2], receipts: rig.receipts(&ack), ..ack };
    acks.into_iter().map(whole).collect()
}

/// Opens a file and stores new chunks for it.
fn begin(rig: &mut Rig, name: &str, content: &[u8]) -> (u64, Vec<ChunkAck>) {
    let session_id = rig.open_write(1, name, &[]).unwrap().session_id;
    (session_id, store(rig, session_id, content))
}

fn close(rig: &mut Rig, session_id: u64, stored: Vec<ChunkAck>) {
    rig.ask(&CloseSession { session_id, stored, ..Default::default() }).unwrap();
}

/// Reports chunks as stored, along with a question about nothing.
fn report(rig: &mut Rig, session_id: u64, stored: Vec<ChunkAck>) -> Result<AllocateChunksReply, tessera_wire::Error> {
    let op_id = rig.op();
    let redundancy = "ec:2+1".into();
    rig.ask(&AllocateChunks { op_id, session_id, redundancy, stored, ..Default::default() })
}

fn count(rig: &Rig, condition: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM chunks WHERE {condition}");
    rig.core.db().conn().query_row(&sql, [], |row| row.get(0)).unwrap()
}

fn new_bytes(rig: &Rig) -> i64 {
    let sql = "SELECT new_bytes FROM versions ORDER BY version_id DESC LIMIT 1";
    rig.core.db().conn().query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Writes a file of `content` again; returns how many of its chunks the manager knew.
fn write_again(rig: &mut Rig, content: &[u8]) -> usize {
    let session_id = rig.open_write(1, "again", &[]).unwrap().session_id;
    let commit = rig.replacing(session_id, content).unwrap();
    rig.ask(&commit).unwrap();
    rig.audit();
    content.len() - commit.acks.len()
}

#[test]
fn what_an_interrupted_write_stored_is_found_by_the_next() {
    for with_close in [true, false] {
        let mut rig = Rig::new(4);
        let (session_id, mut stored) = begin(&mut rig, "a", &[1, 2, 3, 4]);
        // Of the third chunk a fragment is on its way, of the last no report says anything.
        (stored[2].missing, stored[2].stored) = (vec![1], vec![0, 2]);
        stored[2].receipts.remove(1);
        stored.truncate(3);
        match with_close {
            true => close(&mut rig, session_id, stored),
            // The writer's process is killed; its session expires.
            false => _ = report(&mut rig, session_id, stored).unwrap(),
        }
        rig.audit();
        rig.tick(10 * MINUTE);
        assert_eq!((count(&rig, "kept = 1"), count(&rig, "kept = 0")), (2, 0), "what is not whole is garbage");
        assert_eq!(write_again(&mut rig, &[1, 2, 3, 4]), 2);
        assert_eq!((new_bytes(&rig), count(&rig, "kept = 1")), (200, 0));
    }
}

/// A write that reports on the way and commits has stored new bytes, and what it stored becomes ordinary garbage.
#[test]
fn a_report_changes_nothing_for_a_write_that_commits() {
    let mut rig = Rig::new(4);
    let (session_id, stored) = begin(&mut rig, "a", &[1, 2]);
    report(&mut rig, session_id, stored.clone()).unwrap();
    let extents = [1, 2].map(|c| {
        tessera_wire::Extent::of_chunk((c - 1) * 100, 100, stored[c as usize - 1].chunk_id, &chunk(c as u8).hash, 0)
    });
    let (op_id, mode) = (rig.op(), CommitMode::Replace as i32);
    let extents = extents.to_vec();
    rig.ask(&Commit { op_id, session_id, mode, size_bytes: 200, extents, acks: stored, ..Default::default() }).unwrap();
    assert_eq!(new_bytes(&rig), 200);
    rig.audit();
    let op_id = rig.op();
    rig.ask(&Unlink { op_id, parent: 1, name: "a".into(), directory: false }).unwrap();
    rig.tick(1_000);
    assert_eq!(count(&rig, "1"), 0);
}

/// P2: a report counts only with the receipts of the nodes, for this chunk, all its fragments, this epoch and the session's domain.
/// The rest of the request is answered all the same.
#[test]
fn a_report_counts_only_what_nodes_have_proven() {
    let (all, none) = (|| vec![0, 1, 2], Vec::new);
    let lie = |what: &str, ack: &mut ChunkAck, other: &ChunkAck| {
        let own = ack.receipts.clone();
        (ack.stored, ack.receipts) = match what {
            "no receipts" => (all(), none()),
            "one too few" => (vec![0, 1], own[..2].to_vec()),
            "made up" => (all(), vec![7; 3]),
            "of another fragment" => (all(), vec![own[1], own[0], own[2]]),
            "of another chunk" => (all(), other.receipts.clone()),
            _ => (all(), own),
        };
        match what {
            "an epoch to come" => ack.epochs[1] += 1,
            "no epoch" => ack.epochs[1] = 0,
            "a fragment that is none" => ack.missing = vec![9],
            "no chunk" => ack.chunk_id = 1 << 40,
            _ => {}
        }
    };
    let lies = [
        "no receipts",
        "one too few",
        "made up",
        "of another fragment",
        "of another chunk",
        "an epoch to come",
        "no epoch",
        "a fragment that is none",
        "no chunk",
        "another domain",
        "of a reader",
    ];
    for what in lies {
        for with_close in [true, false] {
            let mut rig = Rig::new(4);
            let (session_id, mut stored) = begin(&mut rig, "a", &[1, 2]);
            let other = stored.pop().unwrap();
            lie(what, &mut stored[0], &other);
            let mut by = session_id;
            if what == "another domain" {
                rig.core.db().conn().execute("UPDATE sessions SET domain = 2", []).unwrap();
            }
            if what == "of a reader" {
                rig.put(1, "read", &[9]).unwrap();
                by = rig.read(1, "read").unwrap().session_id;
                rig.tick(2_000); // Its session gets a row.
            }
            match with_close {
                true => close(&mut rig, by, stored),
                false => assert_eq!(report(&mut rig, by, stored).is_ok(), what != "of a reader", "{what}"),
            }
            assert_eq!(count(&rig, "refs = 0 AND state = 2"), 0, "{what}");
            rig.audit();
        }
    }
}

/// P11: fragments that were acknowledged before a member changed do not prove a chunk.
#[test]
fn a_report_under_an_old_epoch_does_not_count() {
    let mut rig = Rig::new(4);
    let (session_id, stored) = begin(&mut rig, "a", &[1]);
    let sql = "UPDATE pg_members SET since_epoch = 2 WHERE position = 1";
    rig.core.db().conn().execute_batch(&format!("{sql}; UPDATE pgs SET epoch = 2")).unwrap();
    let mut rig = rig.restart();
    close(&mut rig, session_id, stored);
    assert_eq!(count(&rig, "state = 2"), 0);
}

/// P5: what is kept goes once its time is over, when an operator asks, and while a disk is nearly full. A dedup question that finds it
/// starts its time again.
#[test]
fn what_is_kept_goes_in_the_end() {
    let kept = || {
        let mut rig = Rig::new(4);
        let (session_id, stored) = begin(&mut rig, "a", &[1, 2]);
        close(&mut rig, session_id, stored);
        rig.tick(HOUR - MINUTE);
        assert_eq!(count(&rig, "kept = 1"), 2);
        rig
    };
    let mut rig = kept();
    let session_id = rig.open_write(1, "b", &[]).unwrap().session_id;
    let answers = rig.allocate(session_id, &[chunk(1)]).unwrap().answers;
    assert_eq!(answers[0].state(), ChunkState::Durable);
    close(&mut rig, session_id, vec![]);
    rig.tick(2 * MINUTE);
    assert_eq!(count(&rig, "kept = 1"), 1, "one was asked about");
    rig.tick(HOUR);
    assert_eq!(count(&rig, "1"), 0);
    rig.audit();

    let mut rig = kept();
    rig.ask(&Maintain { what: MaintenanceJob::Gc as i32, start: true }).unwrap();
    rig.tick(100);
    assert_eq!(count(&rig, "1"), 0, "an operator asked");

    let mut rig = kept();
    let op_id = rig.op();
    rig.ask_as(tessera_wire::Role::Node, 0, &nearly_full(op_id)).unwrap();
    rig.tick(100);
    assert_eq!(count(&rig, "1"), 0, "a disk is nearly full");

    let mut rig = Rig::with(Db::in_memory([7; 16]).unwrap(), Config { unfinished_keep_ms: 0, ..config() }, 4);
    let (session_id, stored) = begin(&mut rig, "a", &[1]);
    close(&mut rig, session_id, stored);
    rig.tick(100);
    assert_eq!(count(&rig, "1"), 0, "nothing is kept");
}

/// A registration of node 1 whose disk has a fiftieth of its space left.
fn nearly_full(op_id: u64) -> RegisterNode {
    let (uuid, capacity_bytes) = (vec![1; 16], 1 << 30);
    let disk = tessera_wire::DiskInfo { uuid, capacity_bytes, free_bytes: (1 << 30) / 50, ..Default::default() };
    let node = tessera_wire::NodeInfo {
        name: "n1".into(),
        host: "h1".into(),
        address: "127.0.0.1:1".into(),
        ..Default::default()
    };
    RegisterNode { op_id, node: Some(node), disks: vec![disk], receipt_key: vec![1; 32], check_only: false }
}

/// P4: a writer that was told of a kept chunk finds it at its commit, even if an operator asked for a collection meanwhile.
#[test]
fn a_collection_leaves_what_a_writer_was_told_of() {
    let mut rig = Rig::new(4);
    let (session_id, stored) = begin(&mut rig, "a", &[1]);
    close(&mut rig, session_id, stored);
    rig.tick(1_000);
    let session_id = rig.open_write(1, "b", &[]).unwrap().session_id;
    let commit = rig.replacing(session_id, &[1]).unwrap();
    rig.ask(&Maintain { what: MaintenanceJob::Gc as i32, start: true }).unwrap();
    rig.tick(1_000);
    rig.ask(&commit).unwrap();
    rig.audit();
}

/// P8: a report that is sent twice has one effect.
#[test]
fn p8_a_report_that_is_sent_twice_counts_once() {
    let mut rig = Rig::new(4);
    let (session_id, mut stored) = begin(&mut rig, "a", &[1, 2]);
    let last = vec![stored.pop().unwrap(), stored[0].clone()];
    let (op_id, redundancy) = (rig.op(), "ec:2+1".into());
    let question =
        AllocateChunks { op_id, session_id, redundancy, chunks: vec![chunk(3)], stored, ..Default::default() };
    let close = CloseSession { session_id, stored: last, ..Default::default() };
    let requests = [(Kind::AllocateChunks, question.encode_to_vec()), (Kind::CloseSession, close.encode_to_vec())];
    for (kind, body) in requests {
        let send = |rig: &mut Rig| {
            let id = rig.send_raw(tessera_wire::Role::Client, ALICE, kind, body.clone().into());
            rig.settle();
            (rig.replies.remove(&id).unwrap(), rig.dump(&["meta"]))
        };
        let first = send(&mut rig);
        assert_eq!(send(&mut rig), first);
        rig.audit();
        rig = rig.restart();
        assert_eq!(send(&mut rig).0, first.0);
    }
    assert_eq!(count(&rig, "kept = 1"), 2);
}

/// The parts that an interrupted write had staged are kept like what it reported, and are kept no longer once a file that names them
/// is removed.
#[test]
fn staged_parts_are_kept_too() {
    let mut rig = Rig::new(4);
    let session_id = rig.open_write(1, "a", &[]).unwrap().session_id;
    let commit = rig.replacing(session_id, &[1, 2]).unwrap();
    rig.ask(&Commit { partial: true, ..commit }).unwrap();
    close(&mut rig, session_id, vec![]);
    rig.tick(1_000);
    assert_eq!(count(&rig, "kept = 1 AND refs = 0"), 2);
    rig.audit();
    assert_eq!(write_again(&mut rig, &[1, 2]), 2);
    let op_id = rig.op();
    rig.ask(&Unlink { op_id, parent: 1, name: "again".into(), directory: false }).unwrap();
    rig.tick(1_000);
    assert_eq!(count(&rig, "1"), 0);
}

/// What no other file may share is not kept.
#[test]
fn chunks_of_files_without_dedup_are_not_kept() {
    let mut rig = Rig::new(4);
    let session_id = rig.open_write(1, "a", &[("dedup", "off")]).unwrap().session_id;
    let stored = store(&mut rig, session_id, &[1]);
    close(&mut rig, session_id, stored);
    rig.tick(1_000);
    assert_eq!(count(&rig, "1"), 0);
    rig.audit();
}

/// P14: a report has a limit.
#[test]
fn a_report_of_too_many_chunks_is_refused() {
    let mut rig = Rig::with(Db::in_memory([7; 16]).unwrap(), Config { max_allocate_chunks: 2, ..config() }, 4);
    let (session_id, stored) = begin(&mut rig, "a", &[1]);
    let many = vec![stored[0].clone(); 3];
    assert!(report(&mut rig, session_id, many.clone()).unwrap_err().message.contains("at most 2"));
    assert!(rig.ask(&CloseSession { session_id, stored: many, ..Default::default() }).is_err());
    report(&mut rig, session_id, stored).unwrap();
}
