//! What readers' sessions keep: files without names and older versions, also across a restart of the manager.

use crate::config::Config;
use crate::rig::*;
use tessera_wire::Code;
use tessera_wire::meta::*;

#[test]
fn an_unlinked_file_lives_until_its_last_session_ends() {
    let mut rig = Rig::new(4);
    let ino = rig.put(1, "f", b"abc").unwrap().ino;
    let reader = rig.read(1, "f").unwrap().session_id;
    let op_id = rig.op();
    rig.ask(&Unlink { op_id, parent: 1, name: b"f".to_vec(), directory: false }).unwrap();
    rig.tick(100);
    let again = ListExtents { session_id: reader, offset: 0, len_bytes: 300, known_map_version: 0 };
    assert_eq!(rig.ask(&again).unwrap().extents.len(), 3);
    rig.tick(2_000); // Old enough to get a row.
    let mut rig = rig.restart();
    rig.tick(100);
    assert_eq!(rig.ask(&again).unwrap().extents.len(), 3, "a reader survives the manager's restart");
    rig.ask(&CloseSession { session_id: reader, ..Default::default() }).unwrap();
    // Readers without a row may hold it, until a session's lifetime has passed since the restart.
    let session_ms = config().session_ms as i64;
    rig.tick(session_ms - 1_000);
    assert!(rig.ask(&GetAttr { ino, want_lease: false }).is_ok());
    rig.tick(1_000);
    rig.tick(100);
    assert_eq!(rig.ask(&GetAttr { ino, want_lease: false }).unwrap_err().code(), Code::NotFound);
    rig.audit();
}

#[test]
fn one_request_closes_many_readers_and_no_writer() {
    let mut rig = Rig::new(4);
    rig.put(1, "f", b"abc").unwrap();
    let read = |rig: &mut Rig| rig.read(1, "f").unwrap().session_id;
    let old = read(&mut rig);
    rig.tick(2_000); // Old enough to get a row.
    let (first, second) = (read(&mut rig), read(&mut rig));
    let writer = rig.open_write(1, "f", &[]).unwrap().session_id;
    assert_eq!(rig.core.soft.sessions.len(), 4);
    rig.ask(&CloseSession { session_id: first, readers: vec![second], ..Default::default() }).unwrap();
    assert_eq!(rig.core.soft.sessions.len(), 2, "those without a row");
    let readers = vec![read(&mut rig), old, writer, 77];
    let session_id = read(&mut rig);
    rig.ask(&CloseSession { session_id, readers, ..Default::default() }).unwrap();
    assert_eq!(rig.core.soft.sessions.len(), 1, "the writer's is left");
    rig.ask(&RenewSession { session_id: writer, reserve_bytes: 0 }).unwrap();
    let close = CloseSession { session_id: writer, readers: vec![1; 1_025], ..Default::default() };
    assert_eq!(rig.ask(&close).unwrap_err().code(), Code::Invalid);
    rig.audit();
}

/// P4: a reader's session that lived in memory only is gone with the manager. Its client opens the version again.
#[test]
fn a_version_opened_just_before_a_restart_can_be_opened_again() {
    for removed_before in [true, false] {
        let mut rig = Rig::new(4);
        let names = ["removed", "replaced", "unread"];
        let inos = names.map(|name| rig.put(1, name, name.as_bytes()).unwrap().ino);
        let opened = ["removed", "replaced"].map(|name| rig.read(1, name).unwrap());
        let unlink = |rig: &mut Rig, name: &str| {
            let op_id = rig.op();
            rig.ask(&Unlink { op_id, parent: 1, name: name.into(), directory: false }).unwrap();
        };
        let change = |rig: &mut Rig| {
            ["removed", "unread"].into_iter().for_each(|name| unlink(rig, name));
            rig.put(1, "replaced", b"new").unwrap();
        };
        if removed_before {
            change(&mut rig);
        }
        let mut rig = rig.restart();
        if !removed_before {
            change(&mut rig);
        }
        // Nobody may hold what came later.
        let later = rig.put(1, "later", b"later").unwrap().ino;
        unlink(&mut rig, "later");
        rig.put(1, "replaced", b"newer").unwrap();
        rig.tick(100);
        rig.tick(100);
        assert_eq!(rig.ask(&GetAttr { ino: later, ..Default::default() }).unwrap_err().code(), Code::NotFound);
        assert_eq!(rig.ask(&ListVersions { ino: inos[1] }).unwrap().versions.len(), if removed_before { 3 } else { 2 });
        rig.tick(config().session_ms as i64 - 1_000);
        let sessions: Vec<u64> = opened
            .iter()
            .map(|before| {
                let gone = rig.ask(&RenewSession { session_id: before.session_id, reserve_bytes: 0 }).unwrap_err();
                assert_eq!(gone.code(), Code::SessionExpired);
                let (ino, version) = (before.attr.as_ref().unwrap().ino, before.version.unwrap().version);
                let request = OpenRead { ino, version, len_bytes: u64::MAX, ..Default::default() };
                let again = rig.ask(&request).unwrap();
                let extents = |reply: &OpenReadReply| reply.extents.clone().unwrap().extents;
                assert_eq!(extents(&again), extents(before));
                again.session_id
            })
            .collect();
        // They hold what they opened, and everything else goes.
        rig.tick(10_000);
        rig.tick(100);
        assert!(rig.ask(&GetAttr { ino: inos[0], ..Default::default() }).is_ok());
        assert_eq!(rig.ask(&GetAttr { ino: inos[2], ..Default::default() }).unwrap_err().code(), Code::NotFound);
        for session_id in sessions {
            rig.ask(&CloseSession { session_id, ..Default::default() }).unwrap();
        }
        rig.tick(100);
        rig.tick(100);
        assert_eq!(rig.ask(&GetAttr { ino: inos[0], ..Default::default() }).unwrap_err().code(), Code::NotFound);
        assert_eq!(rig.ask(&ListVersions { ino: inos[1] }).unwrap().versions.len(), 1);
        assert!(rig.core.db().any("SELECT 1 FROM overdue", []).is_ok_and(|any| !any));
        rig.audit();
    }
}

/// P4: readers of an earlier manager could not open their versions again while the new one was stopped.
#[test]
fn readers_of_an_earlier_manager_get_more_time_when_the_new_one_was_stopped() {
    let mut rig = Rig::new(4);
    let ino = rig.put(1, "f", b"content").unwrap().ino;
    let version = rig.read(1, "f").unwrap().version.unwrap().version;
    let mut rig = rig.restart_with(Config { down_after_ms: 5_000, ..config() });
    for _ in 0..28 {
        rig.tick(2_000);
    }
    // It stops for 10 s, and the last name is removed before its first tick.
    rig.now_ns += 10_000 * MS;
    let op_id = rig.op();
    rig.ask(&Unlink { op_id, parent: 1, name: b"f".to_vec(), directory: false }).unwrap();
    for _ in 0..28 {
        rig.tick(2_000);
    }
    let again = OpenRead { ino, version, len_bytes: u64::MAX, ..Default::default() };
    let session_id = rig.ask(&again).unwrap().session_id;
    rig.ask(&CloseSession { session_id, ..Default::default() }).unwrap();
    for _ in 0..4 {
        rig.tick(2_000);
    }
    assert_eq!(rig.ask(&again).unwrap_err().code(), Code::NotFound, "it goes a session's lifetime after the stop");
    rig.audit();
}
