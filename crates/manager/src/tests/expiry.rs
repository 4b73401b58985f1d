//! Files that expire: purged files when their lifetime ends, checkpoint images when every process has a newer one.

use crate::files::expiry::IMAGES_READ;
use crate::rig::*;
use tessera_wire::Code;
use tessera_wire::meta::*;

fn set(rig: &mut Rig, ino: u64, name: &str, value: &str) {
    let op_id = rig.op();
    let name = format!("user.tessera.{name}");
    rig.ask(&SetXattr { op_id, ino, name, value: value.into(), ..Default::default() }).unwrap();
}

/// Names in a directory.
fn names(rig: &mut Rig, ino: u64) -> Vec<String> {
    let entries = rig.ask(&List { ino, ..Default::default() }).unwrap().entries;
    entries.into_iter().map(|e| String::from_utf8(e.name).unwrap()).collect()
}

fn settle_expiry(rig: &mut Rig) {
    rig.tick(1_100);
    rig.tick(1_100);
}

#[test]
fn a_file_is_purged_so_long_after_it_was_last_written() {
    let mut rig = Rig::new(6);
    let dir = rig.mkdir(1, "d");
    set(&mut rig, dir, "lifetime", "purge:1h");
    rig.put(dir, "a", &[1, 2]).unwrap();
    rig.put(1, "stays", &[1]).unwrap();
    rig.tick(30 * 60_000);
    rig.put(dir, "b", &[3]).unwrap();
    rig.put(dir, "a", &[4]).unwrap();
    rig.tick(31 * 60_000);
    settle_expiry(&mut rig);
    assert_eq!(names(&mut rig, dir), ["a", "b"], "written again: its time begins anew");
    rig.tick(30 * 60_000);
    settle_expiry(&mut rig);
    assert_eq!(names(&mut rig, dir), Vec::<String>::new());
    assert_eq!(names(&mut rig, 1), ["d", "stays"]);
    rig.audit();
}

/// Neither an outage nor a clock that was set while nobody led brings a purge nearer, and an implausible clock is refused.
#[test]
fn a_purge_counts_the_time_that_the_store_was_served() {
    let mut rig = Rig::new(6);
    let dir = rig.mkdir(1, "d");
    set(&mut rig, dir, "lifetime", "purge:1d");
    rig.put(dir, "a", &[1]).unwrap();
    for _ in 0..3 {
        rig.tick(6 * 3_600_000);
        rig.now_ns += 20 * 24 * 3_600_000 * MS;
        rig = rig.restart();
        settle_expiry(&mut rig);
    }
    assert_eq!(names(&mut rig, dir), ["a"], "18 h were served");
    let later = rig.mkdir(1, "later");
    let mtime_ns = rig.ask(&GetAttr { ino: later, ..Default::default() }).unwrap().attr.unwrap().mtime_ns;
    assert!(mtime_ns > 60 * 24 * 3_600_000 * MS, "files are dated by the time of day: {mtime_ns}");
    // What a restart may forget is less than what is logged once a minute.
    rig.tick(6 * 3_600_000 + 3 * 61_000);
    settle_expiry(&mut rig);
    assert_eq!(names(&mut rig, dir), Vec::<String>::new());
    rig.now_ns += 31 * 24 * 3_600_000 * MS;
    let Err(refused) = start(rig.core.into_db(), config(), rig.now_ns) else { panic!("a month is implausible") };
    assert!(refused.to_string().contains("max_clock_jump_ms"), "{refused}");
}

#[test]
fn what_gets_another_lifetime_stays_and_what_gets_that_one_goes() {
    let mut rig = Rig::new(6);
    let dir = rig.mkdir(1, "d");
    set(&mut rig, dir, "lifetime", "purge:10s");
    let kept = rig.put(dir, "kept", &[1]).unwrap().ino;
    let longer = rig.put(dir, "longer", &[2]).unwrap().ino;
    let late = rig.put(1, "late", &[3]).unwrap().ino;
    set(&mut rig, kept, "lifetime", "keep");
    set(&mut rig, longer, "lifetime", "purge:1d");
    set(&mut rig, late, "lifetime", "purge:20s");
    let mut rig = rig.restart();
    rig.tick(12_000);
    settle_expiry(&mut rig);
    assert_eq!(
        (names(&mut rig, dir), names(&mut rig, 1)),
        (vec!["kept".into(), "longer".into()], vec!["d".into(), "late".into()])
    );
    rig.tick(10_000);
    settle_expiry(&mut rig);
    assert_eq!(names(&mut rig, 1), ["d"]);
    rig.tick(86_400_000);
    settle_expiry(&mut rig);
    assert_eq!(names(&mut rig, dir), ["kept"]);
    rig.audit();
}

/// All names of the file are removed; an open reader continues to read it.
#[test]
fn a_purged_file_that_is_read_lives_until_it_is_closed() {
    let mut rig = Rig::new(6);
    let dir = rig.mkdir(1, "d");
    set(&mut rig, dir, "lifetime", "purge:10s");
    let ino = rig.put(dir, "f", &[1, 2]).unwrap().ino;
    let op_id = rig.op();
    rig.ask(&Link { op_id, ino, parent: 1, name: "other".into() }).unwrap();
    let session_id = rig.read(dir, "f").unwrap().session_id;
    for _ in 0..4 {
        rig.tick(3_000);
        rig.ask(&RenewSession { session_id, reserve_bytes: 0 }).unwrap();
    }
    settle_expiry(&mut rig);
    assert_eq!((names(&mut rig, dir), names(&mut rig, 1)), (Vec::new(), vec!["d".to_string()]));
    rig.ask(&ListExtents { session_id, len_bytes: 1000, ..Default::default() }).unwrap();
    rig.ask(&CloseSession { session_id, ..Default::default() }).unwrap();
    rig.tick(1_000);
    rig.tick(1_000);
    assert_eq!(rig.read(1, "other").unwrap_err().code(), Code::NotFound);
    rig.audit();
}

#[test]
fn a_complete_time_step_makes_older_ones_obsolete_and_an_incomplete_one_does_not() {
    let mut rig = Rig::new(6);
    let dir = rig.mkdir(1, "checkpoints");
    set(&mut rig, dir, "lifetime", "replace");
    let mut image = 0u8;
    let mut put = |rig: &mut Rig, process: u32, step: u32| {
        image += 1;
        rig.put(dir, &format!("sim.N{process}.T{step}"), &[image]).unwrap();
        settle_expiry(rig);
    };
    (0..3).for_each(|process| put(&mut rig, process, 1));
    put(&mut rig, 0, 2);
    put(&mut rig, 2, 2);
    assert_eq!(names(&mut rig, dir).len(), 5, "process 1 has only step 1");
    put(&mut rig, 1, 2);
    assert_eq!(names(&mut rig, dir), ["sim.N0.T2", "sim.N1.T2", "sim.N2.T2"]);
    let other = rig.put(dir, "notes", &[200]).unwrap();
    (0..3).for_each(|process| put(&mut rig, process, 3));
    assert_eq!(names(&mut rig, dir), ["notes", "sim.N0.T3", "sim.N1.T3", "sim.N2.T3"]);
    assert_ne!(other.ino, 0);
    rig.audit();
}

#[test]
fn steps_stay_without_a_hint_that_removes_them() {
    let mut rig = Rig::new(6);
    let (plain, keep, two) = (rig.mkdir(1, "plain"), rig.mkdir(1, "keep"), rig.mkdir(1, "two"));
    set(&mut rig, keep, "lifetime", "keep");
    set(&mut rig, two, "lifetime", "replace:2");
    for (i, dir) in [plain, keep, two].into_iter().enumerate() {
        for step in 1..=3u8 {
            rig.put(dir, &format!("a.N0.T{step}"), &[i as u8 * 10 + step]).unwrap();
            settle_expiry(&mut rig);
        }
    }
    let kept: Vec<usize> = [plain, keep, two].map(|dir| names(&mut rig, dir).len()).to_vec();
    assert_eq!(kept, [3, 3, 2]);
}

/// P7: a client that holds a lease on a file gets a recall before the file expires.
#[test]
fn leases_on_what_goes_are_recalled() {
    let mut rig = Rig::new(6);
    let dir = rig.mkdir(1, "d");
    set(&mut rig, dir, "lifetime", "purge:10s");
    rig.put(dir, "f", &[1]).unwrap();
    let lookup = Lookup { parent: dir, name: "f".into(), want_lease: true, ahead: 0 };
    rig.ask_as(tessera_wire::Role::Client, BOB, &lookup).unwrap();
    rig.tick(9_000);
    let entry = rig.ask_as(tessera_wire::Role::Client, BOB, &lookup).unwrap();
    assert!(entry.lease_ms > 0);
    rig.calls.clear();
    rig.now_ns += 1_100 * MS;
    rig.tick(1);
    rig.tick(1);
    let recall = rig.calls.iter().find(|c| c.kind == tessera_wire::Kind::RecallLease).expect("a recall").clone();
    assert_eq!(names(&mut rig, dir), ["f"], "not before it was given back");
    rig.answer(recall.token, Ok(prost::Message::encode_to_vec(&tessera_wire::Ack {}).into()));
    rig.tick(1);
    assert_eq!(names(&mut rig, dir), Vec::<String>::new());
}

/// P7: a client that was told of a file by a listing gets a recall before the file expires, too.
#[test]
fn leases_on_listings_of_what_goes_are_recalled() {
    let mut rig = Rig::new(6);
    let dir = rig.mkdir(1, "d");
    set(&mut rig, dir, "lifetime", "purge:10s");
    rig.put(dir, "f", &[1]).unwrap();
    let lookup = Lookup { parent: dir, name: "f".into(), want_lease: true, ahead: 0 };
    rig.ask_as(tessera_wire::Role::Client, BOB, &lookup).unwrap();
    rig.tick(9_000);
    let list = List { ino: dir, want_lease: true, ..List::default() };
    let listed = rig.ask_as(tessera_wire::Role::Client, BOB, &list).unwrap();
    assert!(listed.lease_ms > 0 && listed.entries.len() == 1);
    rig.calls.clear();
    rig.now_ns += 1_100 * MS;
    rig.tick(1);
    rig.tick(1);
    let recalled = rig.calls.iter().any(|c| c.kind == tessera_wire::Kind::RecallLease);
    assert_eq!((names(&mut rig, dir), recalled), (vec!["f".to_string()], true), "not before it was given back");
}

/// P12: the manager answers nobody while it expires files.
#[test]
fn the_images_of_a_step_expire_in_few_steps() {
    const PROCESSES: usize = 300;
    let mut rig = Rig::new(4);
    let dir = rig.mkdir(1, "d");
    set(&mut rig, dir, "lifetime", "replace:1");
    for step in 1..3 {
        for process in 0..PROCESSES {
            rig.put(dir, &format!("sim.N{process}.T{step}"), &[]).unwrap();
        }
    }
    let before = IMAGES_READ.get();
    settle_expiry(&mut rig);
    let read = IMAGES_READ.get() - before;
    assert_eq!(names(&mut rig, dir).len(), PROCESSES);
    assert!(
        read <= 2 * 2 * PROCESSES,
        "of {} images {read} were read: not once to find and once to remove",
        2 * PROCESSES
    );
    rig.audit();
}

/// A step that is no longer complete, because an image of it was purged by the same command, makes none obsolete after that.
#[test]
fn an_image_that_is_purged_makes_no_older_one_obsolete() {
    let mut rig = Rig::new(4);
    let dir = rig.mkdir(1, "d");
    set(&mut rig, dir, "lifetime", "replace:1");
    let files = ["a.N0.T1", "a.N0.T2", "a.N1.T2", "a.N1.T1"].map(|name| rig.put(dir, name, &[]).unwrap().ino);
    assert!(files.is_sorted(), "they expire in this order");
    set(&mut rig, files[2], "lifetime", "purge:1s");
    settle_expiry(&mut rig);
    assert_eq!(names(&mut rig, dir), ["a.N0.T2", "a.N1.T1"]);
    rig.audit();
}
