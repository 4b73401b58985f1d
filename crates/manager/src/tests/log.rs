//! The command log: applied again, it gives the same database (P7).

use crate::config::Config;
use crate::db::readers::DbReaders;
use crate::db::{Db, FailPoint};
use crate::log::batch::{ReplayError, replay_all};
use crate::rig::{self, MS, Rig, chunk};
use tessera_wire::meta::*;
use tessera_wire::{Code, Extent};

fn dump(db: &Db) -> String {
    tessera_testkit::dump(db.conn()).unwrap()
}

/// A workload of names, versions, staging, readers, ends of sessions, and refusals.
fn workload(rig: &mut Rig, rounds: u64) {
    for i in 0..rounds {
        let dir = rig.mkdir(1, &format!("dir{i}"));
        let content: Vec<u8> = (0..i % 7).map(|c| (c + i / 3) as u8).collect();
        rig.put(dir, "f", &content).unwrap();
        rig.put(dir, "f", &[&content[..], &[200]].concat()).unwrap();
        let reader = rig.read(dir, "f").unwrap().session_id;
        rig.put(dir, "f", &[201, i as u8]).unwrap();
        rig.tick(if i % 5 == 0 { 2_000 } else { 10 });
        let session =
            rig.open_write(dir, "g", &[("lifetime", "replace:2"), ("durability", "optimistic")]).unwrap().session_id;
        let names: Vec<ChunkName> = (0..3).map(|c| chunk(c + i as u8)).collect();
        let answers = rig.allocate(session, &names).unwrap().answers;
        assert_eq!(answers.len(), 3);
        if i % 4 == 0 {
            rig.ask(&CloseSession { session_id: session, ..Default::default() }).unwrap();
        }
        let preallocated =
            super::preallocated::draw(rig, 4, super::preallocated::redundancy("ec:2+1")).preallocated.unwrap();
        let small =
            super::preallocated::filling(rig, &format!("small{i}"), &[(i * 7) as u8, 100 + i as u8], &preallocated);
        rig.ask(&small).unwrap();
        let again = super::preallocated::filling(rig, "small", &[1, 2], &preallocated); // used already
        rig.ask(&again).unwrap_err();
        let op_id = rig.op();
        let _ = rig.ask(&Unlink { op_id, parent: 1, name: b"nothing".to_vec(), directory: false });
        if i % 3 == 0 {
            let op_id = rig.op();
            rig.ask(&Unlink { op_id, parent: dir, name: b"f".to_vec(), directory: false }).unwrap();
        }
        if i % 2 == 0 {
            rig.ask(&CloseSession { session_id: reader, ..Default::default() }).unwrap();
        }
    }
    rig.tick(61_000);
    rig.tick(100);
}

#[test]
fn p7_the_log_applied_again_gives_the_same_database() {
    let mut rig = Rig::new(4);
    workload(&mut rig, 25);
    let mut rig = rig.restart();
    workload_again(&mut rig);
    let entries = &rig.log;
    assert!(entries.len() > 100);
    // From the beginning, with an image in the middle.
    let mut db = Db::in_memory([7; 16]).unwrap();
    let middle = entries.len() / 2;
    replay_all(&db, &entries[..middle]).unwrap();
    let image = db.image().unwrap();
    replay_all(&db, &entries[middle..]).unwrap();
    assert_eq!(dump(&db), dump(rig.core.db()));
    let digest = crate::db::digest(rig.core.db()).unwrap();
    assert_eq!(crate::db::digest(&db).unwrap(), digest, "a replay has the digest of what ran live");
    db.exec("UPDATE inodes SET mode = mode + 1 WHERE ino = 1", []).unwrap();
    assert_ne!(crate::db::digest(&db).unwrap(), digest);
    // From a snapshot in the middle.
    let db = Db::from_image(&image).unwrap();
    replay_all(&db, &entries[middle..]).unwrap();
    assert_eq!(dump(&db), dump(rig.core.db()));
    assert_eq!(tessera_testkit::recount(db.conn()).unwrap(), Vec::<String>::new());
    // No entry is applied twice.
    let error = replay_all(&db, &entries[..1]).unwrap_err();
    assert!(matches!(error, ReplayError::Order { got: 1, .. }), "{error}");
}

/// P7, P14: a standby whose disk is full says what to do, and goes on from the same entry once there is room.
#[test]
fn p7_an_entry_that_a_full_disk_cannot_take_is_applied_later() {
    let mut rig = Rig::new(4);
    rig.mkdir(1, "d");
    let db = Db::in_memory([7; 16]).unwrap();
    db.fail_next_commit(FailPoint::CommitFull);
    let error = replay_all(&db, &rig.log).unwrap_err();
    assert!(matches!(error, ReplayError::Full) && error.to_string().contains("make room in its directory"), "{error}");
    replay_all(&db, &rig.log).unwrap();
    assert_eq!(dump(&db), dump(rig.core.db()));
}

/// P7: what a command takes from the configuration is recorded, so a standby with another configuration, and a restore, get the
/// same database. Limits are checked before the log: what one configuration let through, all of them replay.
#[test]
fn p7_the_log_applied_again_depends_on_no_configuration() {
    let odd = Config {
        session_ms: 31_007,
        heartbeat_ms: 503,
        node_lease_ms: 1_999,
        max_commit_extents: 2,
        max_allocate_chunks: 2,
        ..rig::config()
    };
    let mut rig = Rig::new(4);
    workload(&mut rig, 3);
    let mut rig = rig.restart_with(odd.clone());
    (1..=4).for_each(|node| rig.register(node));
    let session = rig.open_write(1, "h", &[]).unwrap().session_id;
    let names: Vec<ChunkName> = (50..53).map(chunk).collect();
    let error = rig.allocate(session, &names).unwrap_err();
    assert!(error.code() == Code::Invalid && error.message.contains("at most 2"), "{error}");
    rig.allocate(session, &names[..2]).unwrap();
    let hole = |offset| Extent { offset, len_bytes: 1, ..Extent::default() };
    let mut commit = Commit {
        op_id: rig.op(),
        session_id: session,
        mode: CommitMode::Replace as i32,
        size_bytes: 3,
        extents: (0..3).map(hole).collect(),
        ..Commit::default()
    };
    let error = rig.ask(&commit).unwrap_err();
    assert!(error.code() == Code::Invalid && error.message.contains("more than 2"), "{error}");
    (commit.op_id, commit.size_bytes) = (rig.op(), 2);
    commit.extents.truncate(2);
    rig.ask(&commit).unwrap();
    let entries = &rig.log;
    let kept = |ms: u64| entries.iter().flat_map(|e| &e.commands).any(|command| command.decisions.contains(&ms));
    assert!(kept(odd.session_ms) && kept(odd.heartbeat_ms) && kept(odd.node_lease_ms));
    let db = Db::in_memory([7; 16]).unwrap();
    replay_all(&db, entries).unwrap();
    assert_eq!(dump(&db), dump(rig.core.db()));
    assert_eq!(crate::db::digest(&db).unwrap(), crate::db::digest(rig.core.db()).unwrap());
}

/// P7: a copy made while the manager commits is the state after the entry it names: with the later entries it becomes
/// the same database.
#[test]
fn p7_copies_taken_while_commands_go_on_are_of_the_entry_they_name() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let readers = DbReaders::new(dir.path());
    let mut rig = Rig::with(Db::create(dir.path(), [7; 16]).unwrap(), rig::config(), 4);
    let done = AtomicBool::new(false);
    let copies = tempfile::tempdir().unwrap();
    let images = std::thread::scope(|scope| {
        let taking = scope.spawn(|| {
            let mut images: Vec<(u64, Vec<u8>)> = Vec::new();
            while images.len() < 3 || !done.load(Ordering::Relaxed) {
                let copy = copies.path().join("copy");
                let meta = readers.with(|db| db.copy_to(&copy)).unwrap();
                if images.last().is_none_or(|(seq, _)| *seq < meta.log_seq) || done.load(Ordering::Relaxed) {
                    images.push((meta.log_seq, std::fs::read(&copy).unwrap()));
                }
                std::fs::remove_file(&copy).unwrap();
            }
            images
        });
        workload(&mut rig, 40);
        done.store(true, Ordering::Relaxed);
        taking.join().unwrap()
    });
    let entries = &rig.log;
    let seqs: Vec<u64> = images.iter().map(|(seq, _)| *seq).collect();
    assert!(seqs.first() < seqs.last(), "nothing was committed meanwhile: {seqs:?}");
    for (seq, image) in images.iter().step_by(images.len().div_ceil(12)) {
        let db = Db::from_image(image).unwrap();
        assert_eq!(db.meta().unwrap().log_seq, *seq);
        replay_all(&db, entries.iter().filter(|entry| entry.seq > *seq)).unwrap();
        assert_eq!(dump(&db), dump(rig.core.db()), "from entry {seq} on");
    }
}

fn workload_again(rig: &mut Rig) {
    rig.now_ns += 5 * MS;
    let dir = rig.mkdir(1, "after the restart");
    rig.put(dir, "f", b"abcdef").unwrap();
}
