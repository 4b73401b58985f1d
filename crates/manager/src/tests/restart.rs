//! Repeated requests (P8), failing commits, restarts.

use crate::config::Config;
use crate::db::{Db, DbError, FILE_NAME, FailPoint};
use crate::rig::*;
use bytes::Bytes;
use tessera_wire::meta::*;
use tessera_wire::{Code, Error, Kind, Request, Role};

/// One of each mutating request, in an order in which all succeed, and some that are refused.
fn requests(rig: &mut Rig) -> Vec<(Kind, Bytes)> {
    fn encoded<R: Request>(request: R) -> (Kind, Bytes) {
        (R::KIND, request.encode_to_vec().into())
    }
    let file = rig.put(1, "file", b"abc").unwrap();
    let session_id = rig.open_write(1, "new", &[]).unwrap().session_id;
    let commit = rig.replacing(session_id, b"xyz").unwrap();
    let other = rig.open_write(1, "other", &[]).unwrap().session_id;
    let mut op = || rig.op();
    let name = |text: &str| text.as_bytes().to_vec();
    vec![
        encoded(MakeDir { op_id: op(), parent: 1, name: name("d"), ..Default::default() }),
        encoded(MakeDir { op_id: op(), parent: 1, name: name("d"), ..Default::default() }), // refused
        encoded(Symlink { op_id: op(), parent: 1, name: name("s"), target: name("t"), ..Default::default() }),
        encoded(Link { op_id: op(), ino: file.ino, parent: 1, name: name("hard") }),
        encoded(SetAttr { op_id: op(), ino: file.ino, mode: Some(0o600), ..Default::default() }),
        encoded(SetXattr {
            op_id: op(),
            ino: file.ino,
            name: "user.x".into(),
            value: name("v"),
            create_only: true,
            ..Default::default()
        }),
        encoded(RemoveXattr { op_id: op(), ino: file.ino, name: "user.x".into() }),
        encoded(OpenWrite {
            op_id: op(),
            parent: 1,
            name: name("w"),
            chunks: vec![chunk(77)],
            redundancy: "ec:2+1".into(),
            ..Default::default()
        }),
        encoded(AllocateChunks {
            op_id: op(),
            session_id: other,
            redundancy: "ec:2+1".into(),
            chunks: vec![chunk(78), chunk(b'a')],
            ..Default::default()
        }),
        encoded(commit.clone()),
        encoded(Commit { op_id: op(), ..commit }), // refused: the session has ended
        encoded(CompleteFragments { op_id: op(), fragments: vec![], receipts: vec![] }),
        encoded(Rename {
            op_id: op(),
            from_parent: 1,
            from_name: name("hard"),
            to_parent: 1,
            to_name: name("s"),
            no_replace: false,
            exchange: false,
        }),
        encoded(Unlink { op_id: op(), parent: 1, name: name("s"), directory: false }),
        encoded(Unlink { op_id: op(), parent: 1, name: name("s"), directory: false }), // refused
        encoded(CloseSession { session_id: other, ..Default::default() }),
    ]
}

fn send(rig: &mut Rig, (kind, body): &(Kind, Bytes)) -> Result<Bytes, Error> {
    let id = rig.send_raw(Role::Client, ALICE, *kind, body.clone());
    rig.settle();
    rig.replies.remove(&id).expect("answered")
}

#[test]
pub(super) fn p8_a_request_sent_twice_has_one_effect_and_one_answer() {
    let mut rig = Rig::new(4);
    for request in requests(&mut rig) {
        let first = send(&mut rig, &request);
        let before = rig.dump(&[]);
        assert_eq!(send(&mut rig, &request), first, "{:?}", request.0);
        let changing = request.0 == Kind::CloseSession; // has no number: repeating it is logged and does nothing
        let without: &[&str] = if changing { &["meta"] } else { &[] };
        if !changing {
            assert_eq!(rig.dump(without), before, "{:?}", request.0);
        }
        // After a restart too, and in the same batch as another.
        rig = rig.restart();
        let before = rig.dump(&["meta"]);
        let a = rig.send_raw(Role::Client, ALICE, request.0, request.1.clone());
        let b = rig.send_raw(Role::Client, ALICE, request.0, request.1.clone());
        rig.settle();
        assert_eq!((&rig.replies[&a], &rig.replies[&b]), (&first, &first), "{:?}", request.0);
        assert_eq!(rig.dump(&["meta"]), before, "{:?}", request.0);
    }
    rig.audit();
}

#[test]
pub(super) fn p8_two_copies_in_one_batch_have_one_effect() {
    let mut rig = Rig::new(4);
    for request in requests(&mut rig) {
        let a = rig.send_raw(Role::Client, ALICE, request.0, request.1.clone());
        let b = rig.send_raw(Role::Client, ALICE, request.0, request.1.clone());
        rig.settle();
        assert_eq!(rig.replies[&a], rig.replies[&b], "{:?}", request.0);
    }
    rig.audit();
}

#[test]
fn another_client_with_the_same_number_is_another_request() {
    let mut rig = Rig::new(4);
    let request = MakeDir { op_id: 5, parent: 1, name: b"d".to_vec(), ..Default::default() };
    rig.ask_as(Role::Client, ALICE, &request).unwrap();
    assert_eq!(rig.ask_as(Role::Client, BOB, &request).unwrap_err().code(), Code::Exists);
}

#[test]
fn answers_are_forgotten_in_the_end() {
    let mut rig = Rig::new(4);
    rig.mkdir(1, "d");
    assert!(rig.dump(&[]).contains("\nops "));
    (0..152).for_each(|_| rig.tick(1_000));
    rig.tick(100);
    assert!(!rig.dump(&[]).contains("\nops "), "{}", rig.dump(&[]));
}

/// P8: a jump forward of the clock (or a stopped process, or a manager that was down) does not count as time in which a
/// client could repeat a request or renew a session. A jump backwards does not prolong what the manager keeps.
#[test]
fn p8_a_clock_that_is_set_forgets_no_answer_and_no_session() {
    let soon = || Config { down_after_ms: 5_000, ..config() };
    let mut rig = Rig::with(Db::in_memory([7; 16]).unwrap(), soon(), 4);
    rig.tick(1_000);
    let session = rig.open_write(1, "f", &[]).unwrap().session_id;
    let commit = rig.replacing(session, b"ab").unwrap();
    let request = MakeDir { op_id: 5, parent: 1, name: b"d".to_vec(), ..Default::default() };
    let first = rig.ask(&request).unwrap();
    rig.tick(600_000);
    (0..20).for_each(|_| rig.tick(1_000));
    assert_eq!(rig.ask(&request).unwrap(), first);
    rig.now_ns += 600_000 * MS;
    let mut rig = rig.restart_with(soon());
    (0..20).for_each(|_| rig.tick(1_000));
    assert_eq!(rig.ask(&request).unwrap(), first);
    rig.ask(&commit).unwrap();
    rig.tick(-3_600_000);
    (0..152).for_each(|_| rig.tick(1_000));
    assert!(!rig.dump(&[]).contains("\nops "), "{}", rig.dump(&[]));
}

#[test]
fn a_commit_that_fails_leaves_nothing() {
    for point in [FailPoint::CommitLost, FailPoint::CommitFull] {
        let mut rig = Rig::new(4);
        rig.put(1, "f", b"ab").unwrap();
        for request in requests(&mut rig) {
            let before = rig.dump(&[]);
            rig.core.db().fail_next_commit(point);
            let error = send(&mut rig, &request).unwrap_err();
            assert_eq!(error.code(), Code::Unavailable, "the group has committed it: {error}");
            assert_eq!(rig.dump(&[]), before);
            assert_eq!(send(&mut rig, &request).unwrap_err().code(), Code::Unavailable, "a restart tells");
            rig = rig.restart();
            let _ = send(&mut rig, &request);
            rig.audit();
        }
    }
}

#[test]
fn a_commit_that_failed_in_doubt_is_found_after_a_restart() {
    let mut rig = Rig::new(4);
    let request = MakeDir { op_id: 9, parent: 1, name: b"d".to_vec(), ..Default::default() };
    rig.core.db().fail_next_commit(FailPoint::CommitUnknown);
    assert_eq!(rig.ask(&request).unwrap_err().code(), Code::Unavailable);
    let mut rig = rig.restart();
    let entry = rig.ask(&request).unwrap();
    assert_eq!(
        rig.ask(&Lookup { parent: 1, name: b"d".to_vec(), want_lease: false, ahead: 0 }).unwrap().attr,
        entry.attr
    );
}

#[test]
fn a_refusal_after_writing_is_undone_alone() {
    // An optimistic commit has noted what is missing before it finds that the version is another one.
    let mut rig = Rig::new(4);
    let session = rig.open_write(1, "f", &[("durability", "optimistic")]).unwrap().session_id;
    let mut bad = rig.replacing(session, b"a").unwrap();
    bad.acks[0].missing = vec![2];
    bad.if_version = Some(12345);
    let before = rig.dump(&["meta", "ops", "inodes", "dentries"]);
    let good = MakeDir { op_id: rig.op(), parent: 1, name: b"good".to_vec(), ..Default::default() };
    let also = MakeDir { op_id: rig.op(), parent: 1, name: b"also".to_vec(), ..Default::default() };
    let ids = [
        rig.send(Role::Client, ALICE, &good),
        rig.send(Role::Client, ALICE, &bad),
        rig.send(Role::Client, ALICE, &also),
    ];
    rig.settle();
    assert!(rig.replies[&ids[0]].is_ok() && rig.replies[&ids[2]].is_ok());
    assert_eq!(rig.replies[&ids[1]].as_ref().unwrap_err().code(), Code::VersionConflict);
    assert_eq!(rig.dump(&["meta", "ops", "inodes", "dentries"]), before);
    rig.audit();
}

#[test]
fn databases_on_disk_are_created_opened_locked_and_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Db::open(dir.path()), Err(DbError::Absent { .. })));
    let db = Db::create(dir.path(), [3; 16]).unwrap();
    assert!(matches!(Db::open(dir.path()), Err(DbError::Locked { .. })));
    assert_eq!(db.meta().unwrap().cluster_id, [3; 16]);
    let (core, _) = start(db, Config::default(), 5).unwrap();
    let (term, seq) = (core.meta().term, core.meta().log_seq);
    assert_eq!((term, seq), (1, 1));
    drop(core);
    assert!(matches!(Db::create(dir.path(), [3; 16]), Err(DbError::Exists { .. })));
    let (core, _) = start(Db::open(dir.path()).unwrap(), Config::default(), 1).unwrap();
    assert_eq!((core.meta().term, core.meta().last_now_ns), (2, 5), "a higher term, and time does not run backwards");
    drop(core);
    // A newer schema.
    let path = dir.path().join(FILE_NAME);
    tessera_pagesum::open(&path, rusqlite::OpenFlags::default())
        .unwrap()
        .pragma_update(None, "user_version", 99)
        .unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let error = Db::open(dir.path()).map(|_| ()).unwrap_err();
    assert!(matches!(error, DbError::LaterSchema { got: 99, .. }), "{error}");
    assert!(error.to_string().contains("--join"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "left as it was");
    // A foreign file that is not SQLite.
    for content in [&b"not a database, far from it, but long enough to look like one"[..], b""] {
        std::fs::write(&path, content).unwrap();
        assert!(matches!(Db::open(dir.path()), Err(DbError::NotManagerDb { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
}

/// The text of the refusal to open the database in `dir`.
fn refusal(dir: &std::path::Path) -> String {
    Db::open(dir).map(|_| ()).unwrap_err().to_string()
}

/// P2, P9: a write-ahead log whose database is gone is no new store, and no part of one.
#[test]
fn a_write_ahead_log_without_its_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(Db::create(dir.path(), [3; 16]).unwrap());
    let path = dir.path().join(FILE_NAME);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(dir.path().join("manager.db-wal"), [7; 5000]).unwrap();
    assert!(matches!(Db::open(dir.path()), Err(DbError::LogAlone(_))));
    assert!(matches!(Db::create(dir.path(), [3; 16]), Err(DbError::LogAlone(_))));
    assert!(refusal(dir.path()).contains("remove this file"));
    assert_eq!(std::fs::read(dir.path().join("manager.db-wal")).unwrap(), [7; 5000], "it is left as it was");
}

/// P2: a database whose pages rotted does not serve, whichever page it is; nor does one without checksums.
#[test]
fn a_rotten_database_is_refused_or_stops_the_manager() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE_NAME);
    let mut rig = Rig::with(Db::create(dir.path(), [7; 16]).unwrap(), crate::rig::config(), 4);
    let made = rig.mkdir(1, "made");
    for i in 0..40 {
        rig.put(made, &format!("f{i}"), &[i, i + 1]).unwrap();
    }
    drop(rig);
    let good = std::fs::read(&path).unwrap();
    let pages = good.len() / 4096;
    let (mut refused, mut stopped) = (0, 0);
    for page in 0..pages {
        let mut rotten = good.clone();
        rotten[page * 4096 + 4000] ^= 1;
        std::fs::write(&path, rotten).unwrap();
        let core = match Db::open(dir.path()) {
            Err(error) => {
                assert!(matches!(error, DbError::Damaged(_)), "page {}: {error}", page + 1);
                assert!(error.to_string().contains(&format!("page {} ", page + 1)), "{error}");
                refused += 1;
                continue;
            }
            Ok(db) => start(db, Config::default(), 5),
        };
        let Ok((mut core, _)) = core else {
            stopped += 1;
            continue;
        };
        let _ = crate::db::digest(core.db());
        core.handle(6, crate::core::Event::Tick);
        if let Some(why) = core.stopped() {
            assert!(
                why.message.contains(&format!("page {} ", page + 1)) && why.message.contains("rebuilds the database"),
                "{why:?}"
            );
            stopped += 1;
        }
    }
    assert!(refused > 5 && stopped > 5, "{refused} refused, {stopped} stopped, of {pages} pages");
    std::fs::write(&path, &good).unwrap();
    assert!(Db::open(dir.path()).is_ok());
    // An older build wrote no checksums.
    let mut unsummed = good;
    unsummed[20] = 0;
    std::fs::write(&path, unsummed).unwrap();
    assert!(matches!(Db::open(dir.path()), Err(DbError::NoSums(_))));
}

/// P9: after a failed sync nothing is committed, and the next start reads what the disk holds.
#[test]
fn a_failed_sync_is_final_until_the_next_start() {
    // A temporary directory may be in memory, where nothing can be read past the cache.
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let mut rig = Rig::with(Db::create(dir.path(), [7; 16]).unwrap(), crate::rig::config(), 4);
    rig.mkdir(1, "before");
    let marker = dir.path().join("manager.db-unsynced");
    {
        let _fails = tessera_failpoint::activate("pagesum.sync_fails");
        let op_id = rig.op();
        let error = rig.ask(&MakeDir { op_id, parent: 1, name: b"lost".to_vec(), ..Default::default() }).unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.message.contains("start the manager again"), "{error}");
    }
    assert!(marker.exists());
    assert!(rig.core.stopped().is_some());
    drop(rig);
    let db = Db::open(dir.path()).unwrap();
    assert!(!marker.exists());
    assert!(db.any("SELECT 1 FROM dentries WHERE name = ?1", [b"before".as_slice()]).unwrap());
    assert_eq!(db.damage(), None);
}

#[test]
fn a_writers_session_ends_when_it_is_not_used() {
    let mut rig = Rig::new(4);
    let session = rig.open_write(1, "f", &[]).unwrap().session_id;
    rig.tick(40_000);
    rig.ask(&RenewSession { session_id: session, reserve_bytes: 0 }).unwrap();
    rig.tick(40_000);
    let commit = rig.replacing(session, b"a").unwrap();
    rig.tick(61_000);
    assert_eq!(rig.ask(&commit).unwrap_err().code(), Code::SessionExpired);
    assert_eq!(
        rig.ask(&RenewSession { session_id: session, reserve_bytes: 0 }).unwrap_err().code(),
        Code::SessionExpired
    );
}

/// P6, P12: a clock that is set back, or that is behind the last written time at a restart, does not stop the manager's time.
#[test]
fn a_clock_that_is_set_back_does_not_stop_time() {
    let config = Config { down_after_ms: 1_000, out_after_ms: 60_000, node_lease_ms: 900, ..config() };
    let mut rig = Rig::with(Db::in_memory([7; 16]).unwrap(), config.clone(), 1);
    let health = |rig: &mut Rig| rig.ask(&GetStatus {}).unwrap().nodes[0].health();
    let silence = |rig: &mut Rig| (0..20).for_each(|_| rig.tick(100));
    rig.tick(100);
    rig.now_ns -= 3_600_000 * MS;
    silence(&mut rig);
    assert_eq!(health(&mut rig), tessera_wire::Health::Down);
    rig.now_ns -= 3_600_000 * MS;
    let before_ns = rig.core.meta().last_now_ns;
    let mut rig = rig.restart_with(config);
    rig.register(1);
    assert_eq!(health(&mut rig), tessera_wire::Health::Up);
    silence(&mut rig);
    assert_eq!(health(&mut rig), tessera_wire::Health::Down);
    assert!(rig.core.meta().last_now_ns > before_ns);
}

/// P6: whoever asks for a repair moments after a machine was lost need not ask again. It does not wait for a node that answers.
#[test]
fn a_repair_waits_for_nodes_that_have_just_fallen_silent() {
    let config = Config { down_after_ms: 3_000, out_after_ms: 600_000, node_lease_ms: 2_000, ..config() };
    let mut rig = Rig::with(Db::in_memory([7; 16]).unwrap(), config, 1);
    rig.register(1);
    let silence = |rig: &mut Rig, ms: i64| (0..ms / 100).for_each(|_| rig.tick(100));
    silence(&mut rig, 2_000);
    let health = |rig: &mut Rig| rig.ask(&GetStatus {}).unwrap().nodes[0].health();
    assert_eq!(health(&mut rig), tessera_wire::Health::Up, "it has missed two heartbeats");
    rig.ask(&Maintain { what: MaintenanceJob::Repair as i32, start: true }).unwrap();
    silence(&mut rig, 500);
    assert!(rig.core.soft.cluster.jobs.hurry);
    silence(&mut rig, 4_000);
    assert_eq!(health(&mut rig), tessera_wire::Health::Out);
    silence(&mut rig, 200);
    assert!(!rig.core.soft.cluster.jobs.hurry);
}
