//! The manager over real sockets.

use crate::config::Config;
use crate::db::Db;
use crate::shell::{ManagerServer, ServeOptions};
use std::sync::Arc;
use std::time::Duration;
use tessera_net::{BufferPool, Dialer, Endpoint, Managers, dialer::NoService};
use tessera_wire::meta::*;
use tessera_wire::{Code, Error, Hello, PROTOCOL_VERSION, Request, Role};

fn dialer(client_id: u64, change: impl FnOnce(&mut Hello)) -> Dialer {
    let mut hello = Hello {
        protocol_version: PROTOCOL_VERSION,
        role: Role::Client as i32,
        client_id,
        release: "test".into(),
        ..Default::default()
    };
    change(&mut hello);
    Dialer::new(hello, Arc::new(NoService), BufferPool::new(1 << 20))
}

const WAIT: Duration = Duration::from_secs(30);

/// Asks as clients do: a manager that has just started does not lead yet, and is asked again.
fn ask<R: Request>(client: &Dialer, manager: &Endpoint, request: &R) -> Result<R::Reply, Error> {
    Managers::new(client.clone(), manager.clone().into()).call_wait(request, vec![], WAIT).map(|(reply, _)| reply)
}

fn serve(dir: &std::path::Path, listen: &[Endpoint], config: Config) -> ManagerServer {
    ManagerServer::start(ServeOptions { cluster_id: Some([5; 16]), ..ServeOptions::new(dir, listen, config) }).unwrap()
}

fn start(dir: &std::path::Path) -> ManagerServer {
    let listen = [Endpoint::Tcp("127.0.0.1:0".into())];
    serve(dir, &listen, Config::default())
}

#[test]
fn it_serves_stops_and_finds_everything_again() {
    let dir = tempfile::tempdir().unwrap();
    let manager = start(dir.path());
    let client = dialer(1, |_| {});
    let request = MakeDir { op_id: 1, parent: 1, name: b"d".to_vec(), ..Default::default() };
    let entry = ask(&client, &manager.endpoints()[0], &request).unwrap();
    assert!(manager.stop().is_none());
    let manager = start(dir.path());
    let again = ask(&client, &manager.endpoints()[0], &request).unwrap();
    assert_eq!(again, entry, "the same request, the same answer (P8)");
    let many: Vec<_> = (0..8u64)
        .map(|i| {
            let (client, endpoint) = (dialer(i + 10, |_| {}), manager.endpoints()[0].clone());
            std::thread::spawn(move || {
                for j in 0..50u64 {
                    let name = format!("{i}-{j}").into_bytes();
                    let request = MakeDir { op_id: j + 1, parent: 1, name, ..Default::default() };
                    ask(&client, &endpoint, &request).unwrap();
                }
            })
        })
        .collect();
    many.into_iter().for_each(|thread| thread.join().unwrap());
    let listed = ask(&client, &manager.endpoints()[0], &List { ino: 1, ..Default::default() }).unwrap();
    assert_eq!(listed.entries.len(), 401);
    // The core's thread publishes stats periodically, not with each reply.
    let published = || !manager.metrics().requests.is_empty();
    let deadline = std::time::Instant::now() + WAIT;
    while !published() && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert!(published());
}

/// P12: a list and a status that take long delay no other client, and the manager stops without waiting for them.
#[test]
fn long_reads_delay_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let manager = start(dir.path());
    let endpoint = manager.endpoints()[0].clone();
    ask(&dialer(1, |_| {}), &endpoint, &GetAttr { ino: 1, want_lease: false }).unwrap();
    let closed = manager.readers().close();
    let (endpoint, before) = (&endpoint, std::time::Instant::now());
    std::thread::scope(|scope| {
        let list = scope.spawn(|| ask(&dialer(2, |_| {}), endpoint, &List { ino: 1, ..Default::default() }));
        let status = scope.spawn(|| ask(&dialer(3, |_| {}), endpoint, &GetStatus {}));
        for op_id in 1..=20 {
            let request = MakeDir { op_id, parent: 1, name: format!("{op_id}").into(), ..Default::default() };
            ask(&dialer(4, |_| {}), endpoint, &request).unwrap();
        }
        assert!(!list.is_finished() && !status.is_finished(), "{:?}", before.elapsed());
        drop(closed);
        assert_eq!(list.join().unwrap().unwrap().entries.len(), 20);
        assert_eq!(status.join().unwrap().unwrap().directories, 21);
    });
    assert!(manager.stop().is_none());
}

/// P1: a database that was cut, emptied or overwritten is rebuilt from the log beside it.
#[test]
fn a_database_that_is_none_any_more_is_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(crate::db::FILE_NAME);
    let len = || std::fs::metadata(&path).unwrap().len();
    let cut = |to: u64| std::fs::File::options().write(true).open(&path).unwrap().set_len(to).unwrap();
    for op_id in 1..=4 {
        let manager = start(dir.path());
        let request = MakeDir { op_id, parent: 1, name: format!("{op_id}").into(), ..Default::default() };
        ask(&dialer(1, |_| {}), &manager.endpoints()[0], &request).unwrap();
        assert!(manager.stop().is_none());
        match op_id {
            1 => cut(len() / 2),
            2 => cut(0),
            3 => std::fs::write(&path, vec![7; 10_000]).unwrap(),
            _ => {}
        }
    }
    let manager = start(dir.path());
    let listed = ask(&dialer(1, |_| {}), &manager.endpoints()[0], &List { ino: 1, ..Default::default() }).unwrap();
    assert_eq!(listed.entries.len(), 4);
}

/// Snapshots taken while commands continue shorten the log; a restart finds every command.
#[test]
fn snapshots_are_taken_beside_the_core() {
    let dir = tempfile::tempdir().unwrap();
    let config = || Config { snapshot_log_bytes: 2_000, snapshot_log_percent: 0, ..Config::default() };
    let listen = [Endpoint::Tcp("127.0.0.1:0".into())];
    let manager = serve(dir.path(), &listen, config());
    let client = dialer(1, |_| {});
    let snapshots = || {
        let gauges = manager.metrics().gauges;
        gauges.into_iter().find(|(name, _)| *name == "group_snapshot_seq").map(|(_, seq)| seq)
    };
    let (mut made, mut seen) = (0u64, std::collections::BTreeSet::new());
    let deadline = std::time::Instant::now() + WAIT;
    while seen.len() < 4 {
        assert!(std::time::Instant::now() < deadline, "only these snapshots: {seen:?}");
        made += 1;
        let name = format!("{made}").into_bytes();
        let request = MakeDir { op_id: made, parent: 1, name, ..Default::default() };
        ask(&client, &manager.endpoints()[0], &request).unwrap();
        seen.extend(snapshots());
    }
    assert!(manager.stop().is_none());
    let manager = serve(dir.path(), &listen, config());
    let status = ask(&client, &manager.endpoints()[0], &GetStatus {}).unwrap();
    assert_eq!(status.directories, made + 1);
}

/// P7: managers compare their databases beside their cores. One whose row was changed while it was stopped ends, and its next start takes
/// the snapshot of another manager.
#[test]
fn a_manager_whose_database_differs_ends_and_is_rebuilt() {
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let config =
        || Config { metadata_compare_every_ms: 300, metadata_scrub_bytes_per_s: 16 << 10, ..Config::default() };
    let listen = [Endpoint::Tcp("127.0.0.1:0".into())];
    let first = serve(dirs[0].path(), &listen, config());
    let client = dialer(1, |_| {});
    let join = first.endpoints().to_vec();
    let joined = |at: usize| {
        let options = ServeOptions::new(dirs[at].path(), &listen, config());
        ManagerServer::start(ServeOptions { join: join.clone(), host: format!("h{at}"), ..options }).unwrap()
    };
    let (second, third) = (joined(1), joined(2));
    let until = |what: &str, is_so: &dyn Fn(&MetadataComparison) -> bool| {
        let deadline = std::time::Instant::now() + WAIT;
        loop {
            let last = ask(&client, &join[0], &GetStatus {}).unwrap().comparison.unwrap_or_default();
            if is_so(&last) {
                return last;
            }
            assert!(std::time::Instant::now() < deadline, "not {what}: {last:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let is_equal = |last: &MetadataComparison| last.result() == ComparisonResult::Equal && last.managers == 3;
    for i in 0..300u64 {
        let request = MakeDir { op_id: i + 1, parent: 1, name: format!("d{i}").into_bytes(), ..Default::default() };
        ask(&client, &join[0], &request).unwrap();
    }
    let before = until("equal", &is_equal);
    assert!(second.stop().is_none());
    let db = Db::open(dirs[1].path()).unwrap();
    db.conn().execute("DELETE FROM dentries WHERE name = CAST('d7' AS BLOB)", []).unwrap();
    drop(db);
    let second = joined(1);
    let found = until("found", &|last| last.result() == ComparisonResult::Rebuilds);
    assert_eq!((&found.table[..], found.differing.len()), ("dentries", 1), "{found:?}");
    let deadline = std::time::Instant::now() + WAIT;
    while !second.is_finished() && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let why = second.stop().expect("it ends by itself");
    assert!(why.message.contains("start the manager again"), "{why}");
    // It may have learnt of it in a later comparison than the one that `status` showed first.
    assert!(Db::differs_since(dirs[1].path()).unwrap().is_some_and(|since| since >= found.log_seq));
    let second = joined(1);
    assert_eq!(Db::differs_since(dirs[1].path()).unwrap(), None, "the database is replaced");
    until("equal again", &|last| is_equal(last) && last.log_seq > found.log_seq);
    assert!(found.log_seq > before.log_seq);
    [third, second, first].into_iter().for_each(|manager| assert!(manager.stop().is_none()));
    let db = Db::open(dirs[1].path()).unwrap();
    assert!(db.any("SELECT 1 FROM dentries WHERE name = CAST('d7' AS BLOB)", []).unwrap());
}

#[test]
fn nodes_of_another_cluster_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let manager = start(dir.path());
    let answer = |client: Dialer| {
        let request = GetAttr { ino: 1, want_lease: false };
        ask(&client, &manager.endpoints()[0], &request).map(|_| ()).map_err(|e| e.code())
    };
    assert_eq!(answer(dialer(1, |_| {})), Ok(()));
    assert_eq!(answer(dialer(1, |hello| hello.protocol_version = 99)), Err(Code::ProtocolVersion));
    assert_eq!(answer(dialer(1, |hello| hello.cluster_id = vec![9; 16])), Err(Code::WrongCluster));
}

/// The first node detects a manager that was started on an empty directory instead of restored.
#[test]
fn nodes_of_another_cluster_are_told_of_restore_and_shown() {
    let dir = tempfile::tempdir().unwrap();
    let manager = start(dir.path());
    let status = || {
        let client = dialer(1, |_| {});
        ask(&client, &manager.endpoints()[0], &GetStatus {}).unwrap()
    };
    assert!(status().rejected_nodes.is_empty());
    for _ in 0..2 {
        let node = dialer(0, |hello| {
            hello.role = Role::Node as i32;
            hello.cluster_id = vec![9; 16];
            hello.host = "h7".into();
        });
        let beat = Heartbeat { node_id: 1, incarnation: 1, ..Default::default() };
        let error = node.call_wait(&manager.endpoints()[0], &beat, vec![], WAIT).unwrap_err();
        assert_eq!(error.code(), Code::WrongCluster);
        for words in ["09090909", "05050505", "--join"] {
            assert!(error.message.contains(words), "{error}");
        }
    }
    let rejected_nodes = status().rejected_nodes;
    assert_eq!((rejected_nodes.len(), &rejected_nodes[0].host[..], rejected_nodes[0].times), (1, "h7", 2));
    assert_eq!(rejected_nodes[0].cluster_id, [9; 16]);
}

/// P12: after a portion of what it has to apply, a manager serves what has arrived, and waits for nothing else.
#[test]
fn a_manager_that_is_behind_catches_up_without_waiting_for_ticks() {
    const ENTRIES: u64 = 3_200;
    let dir = tempfile::tempdir().unwrap();
    let [database, before] = [crate::db::FILE_NAME, "before"].map(|name| dir.path().join(name));
    assert!(start(dir.path()).stop().is_none());
    std::fs::copy(&database, &before).unwrap();
    let (manager, client) = (start(dir.path()), dialer(1, |_| {}));
    for op_id in 1..=ENTRIES {
        let request = MakeDir { op_id, parent: 1, name: format!("{op_id}").into(), ..Default::default() };
        ask(&client, &manager.endpoints()[0], &request).unwrap();
    }
    assert!(manager.stop().is_none());
    std::fs::rename(&before, &database).unwrap();
    let (manager, began) = (start(dir.path()), std::time::Instant::now());
    // No request wakes it. A tick alone would have it apply two portions.
    while !manager.metrics().gauges.contains(&("leads", 1)) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let ticks = ENTRIES as u32 / (2 * 64);
    assert!(began.elapsed() < ticks * Duration::from_millis(100), "{:?}", began.elapsed());
    let status = ask(&client, &manager.endpoints()[0], &GetStatus {}).unwrap();
    assert_eq!(status.directories, ENTRIES + 1);
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let from = entry.unwrap().path();
        let to = to.join(from.file_name().unwrap());
        if from.is_dir() { copy(&from, &to) } else { _ = std::fs::copy(&from, &to).unwrap() }
    }
}

/// P1, P12: a manager whose directory is replaced ends, and answers nothing from the other one meanwhile.
#[test]
fn p12_a_manager_whose_directory_is_replaced_ends_and_reads_nothing_there() {
    for replaced in ["", crate::db::LOG_DIR] {
        let root = tempfile::tempdir().unwrap();
        let (dir, away, other) = (root.path().join("m"), root.path().join("away"), root.path().join("other"));
        let (manager, client) = (start(&dir), dialer(1, |_| {}));
        let endpoint = manager.endpoints()[0].clone();
        let make = |op_id, name: &str| MakeDir { op_id, parent: 1, name: name.into(), ..Default::default() };
        ask(&client, &endpoint, &make(1, "before")).unwrap();
        copy(&dir.join(replaced), &other);
        ask(&client, &endpoint, &make(2, "after")).unwrap();
        std::fs::rename(dir.join(replaced), &away).unwrap();
        std::fs::rename(&other, dir.join(replaced)).unwrap();
        while !manager.is_finished() {
            let managers = Managers::new(client.clone(), endpoint.clone().into());
            let listed = managers.call_wait(&List { ino: 1, ..Default::default() }, vec![], Duration::from_millis(200));
            if let Ok((listed, _)) = listed {
                assert_eq!(listed.entries.len(), 2, "{replaced:?}");
            }
        }
        let why = manager.stop().unwrap();
        assert!(why.message.contains("its directory was replaced"), "{why}");
    }
}

/// P1, P7: a manager whose lock file is removed ends before another one that starts in its directory can serve what this one wrote.
#[test]
fn p7_a_manager_whose_lock_is_removed_ends() {
    let root = tempfile::tempdir().unwrap();
    let (manager, client) = (start(root.path()), dialer(1, |_| {}));
    let endpoint = manager.endpoints()[0].clone();
    let make = |op_id| MakeDir { op_id, parent: 1, name: format!("{op_id}").into(), ..Default::default() };
    ask(&client, &endpoint, &make(1)).unwrap();
    std::fs::remove_file(root.path().join(crate::db::LOCK_NAME)).unwrap();
    let managers = Managers::new(client.clone(), endpoint.into());
    let late = managers.call_wait(&make(2), vec![], Duration::from_millis(200));
    assert!(late.is_err(), "another process may have read the log by now");
    while !manager.is_finished() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(manager.stop().is_some());
}
