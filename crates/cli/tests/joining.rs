//! Which cluster a new node joins, and what a refused one leaves behind.

mod common;

use common::{Cluster, Daemon, Run, TESSERA, assert_refused, eventually};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a node on a new disk that is to be refused, to its end.
fn refused_node(c: &Cluster, disk: &Path, manager: &str, name: &str) -> Run {
    std::fs::create_dir_all(disk).unwrap();
    let mut args = c.node_args(1);
    for (flag, value) in
        [("--disk", disk.to_str().unwrap()), ("--name", name), ("--host", name), ("--manager", manager)]
    {
        let at = args.iter().position(|arg| arg == flag).unwrap();
        args[at + 1] = value.into();
    }
    let log = c.path().join("refused.log");
    let _ = std::fs::remove_file(&log);
    match Daemon::try_start(&args, &log) {
        Ok(_) => panic!("the node was accepted"),
        Err(run) => run,
    }
}

/// P14: the file that the user named decides, not what the shell exports.
#[test]
fn the_configuration_file_beats_the_environment() {
    let (right, wrong) = (Cluster::start(0), Cluster::start(0));
    let disk = right.disk(1);
    std::fs::create_dir(&disk).unwrap();
    let config = right.path().join("node.toml");
    let text = format!("disks = [{disk:?}]\nmanager = {:?}\nname = 'n1'\nhost = 'n1'\n", right.address());
    std::fs::write(&config, text).unwrap();
    let log = right.path().join("node.log");
    let mut node = Command::new(TESSERA)
        .args(["node", "--config", config.to_str().unwrap(), "--follow-stdin", "--set", "reserve_bytes=0"])
        .env("TESSERA_MANAGER", wrong.address())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    eventually("the node joins a store", || {
        [&right, &wrong].iter().any(|c| c.status()["nodes"].as_array().is_some_and(|nodes| !nodes.is_empty()))
    });
    let joined = |c: &Cluster| c.status()["nodes"].as_array().unwrap().len();
    assert_eq!((joined(&right), joined(&wrong)), (1, 0));
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains(right.address()) && log.contains("configuration file"), "{log}");
    node.kill().unwrap();
    node.wait().unwrap();
}

/// A node that a manager refuses keeps its new disks new: with the right manager it starts.
#[test]
fn a_refused_node_leaves_its_disks_new() {
    let (first, second) = (Cluster::start(1), Cluster::start(0));
    let disk = first.path().join("fresh");
    let run = refused_node(&first, &disk, first.address(), "n1");
    assert_eq!(run.code, 8, "{run:?}");
    assert!(run.stderr.contains("n1") && run.stderr.contains("--name"), "{run:?}");
    assert!(!disk.join("tessera-disk").exists(), "a refused node wrote a cluster's id onto its disk");
    let node = first.nodes[0].as_ref().unwrap().address().to_string();
    let run = refused_node(&first, &disk, &node, "n2");
    assert_refused(&last_line(run), 2, &["--manager", "is a node", &node]);
    assert_eq!(std::fs::read_dir(&disk).unwrap().count(), 0, "a refused start leaves something behind");
    let mut args = second.node_args(1);
    let at = args.iter().position(|arg| arg == "--disk").unwrap();
    args[at + 1] = disk.to_str().unwrap().into();
    let _node = Daemon::start(&args, &second.path().join("node.log"));
    eventually("the node joins", || second.status()["nodes"].as_array().is_some_and(|nodes| nodes.len() == 1));
}

/// P14: a manager that cannot listen makes no database. A node with disks of a cluster that is pointed at a node says so.
#[test]
fn refused_starts_leave_nothing_behind_and_name_the_way_out() {
    let mut c = Cluster::start(2);
    let dir = c.path().join("second");
    let run = common::tessera(&["manager", "--dir", dir.to_str().unwrap(), "--listen", c.address()]);
    assert_ne!(run.code, 0, "{run:?}");
    assert!(run.stderr.contains("cannot listen") && !dir.exists(), "{run:?}");
    c.kill_node(2);
    let node = c.nodes[0].as_ref().unwrap().address().to_string();
    let mut args = c.node_args(2);
    let at = args.iter().position(|arg| arg == "--manager").unwrap();
    args[at + 1] = node;
    let log = c.path().join("lost.log");
    let code = match Daemon::try_start(&args, &log) {
        Ok(mut daemon) => daemon.wait().code(),
        Err(run) => Some(run.code),
    };
    assert_eq!(code, Some(2));
    let said = std::fs::read_to_string(log).unwrap();
    assert!(said.lines().last().is_some_and(|line| line.contains("--manager")), "{said}");
}

/// Nodes and clients find the manager in a list. Of managers that all refuse a new node, none gets its disks.
#[test]
fn a_node_and_clients_look_for_the_manager_in_their_list() {
    let (c, other) = (Cluster::start(1), Cluster::start(0));
    let list = format!("127.0.0.1:1,{}", c.address());
    std::fs::create_dir(c.disk(2)).unwrap();
    let mut args = c.node_args(2);
    let at = args.iter().position(|arg| arg == "--manager").unwrap();
    drop(Daemon::start(&args, &c.log("n2")));
    // New disks would not be given to a manager that does not know the other one of the list; these know their cluster.
    args[at + 1].clone_from(&list);
    let _node = Daemon::start(&args, &c.log("n2"));
    c.wait_up(2);
    assert_eq!(common::tessera(&["ls", "--manager", &list]).code, 0);
    let run = common::run(Command::new(TESSERA).args(["mkdir", "tess:/d"]).env("TESSERA_MANAGER", &list), b"");
    assert_eq!(run.code, 0, "{run:?}");
    // Those that refuse: a node, and a node.
    let node = c.nodes[0].as_ref().unwrap().address().to_string();
    let wrong = c.path().join("fresh");
    let run = refused_node(&c, &wrong, &format!("{node},{}", node.replace("127.0.0.1", "localhost")), "n3");
    assert_refused(&last_line(run), 2, &["is a node"]);
    assert_eq!(std::fs::read_dir(&wrong).unwrap().count(), 0);
    // A node before the manager: the manager is found.
    let behind_a_node = format!("{node},{}", c.address());
    assert_eq!(common::tessera(&["ls", "--manager", &behind_a_node]).code, 0);
    args[at + 1] = behind_a_node;
    drop(_node);
    std::fs::remove_file(c.log("n2")).unwrap();
    let _node = Daemon::start(&args, &c.log("n2"));
    eventually("the manager is found", || c.node_is_up("n2"));
    let said = std::fs::read_to_string(c.log("n2")).unwrap();
    assert_eq!(said.matches("is a node and no manager").count(), 1, "{said}");
    // A manager of another cluster in the list keeps nobody from the right one.
    args[at + 1] = format!("{},{}", other.address(), c.address());
    drop(_node);
    let _node = Daemon::start(&args, &c.log("n2"));
    c.wait_up(2);
    assert!(other.status()["nodes"].as_array().unwrap().is_empty());
}

/// P14: a process that does not know its cluster, and named managers of two. The right one answers late, when the wrong one
/// has been asked already.
#[test]
fn a_late_answer_of_another_cluster_ends_a_command() {
    let (mut right, wrong) = (Cluster::start(0), Cluster::start(1));
    wrong.wait_up(1);
    let list = format!("{},{}", wrong.address(), right.address());
    let ids = [&right, &wrong].map(|c| c.status()["cluster_id"].as_str().unwrap().to_string());
    signal(right.manager.as_ref().unwrap(), rustix::process::Signal::STOP);
    let mut put = Command::new(TESSERA)
        .args(["put", "-", "tess:/f", "--manager", &list])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The command has gone on with the manager that answers, after it has waited for the other one in vain.
    std::thread::sleep(std::time::Duration::from_secs(4));
    signal(right.manager.as_ref().unwrap(), rustix::process::Signal::CONT);
    // Longer than until the managers that have not answered are greeted again.
    std::thread::sleep(std::time::Duration::from_secs(5));
    drop(put.stdin.take());
    let output = put.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let run = Run { code: output.status.code().unwrap(), stdout: Vec::new(), stderr };
    let words = ["two clusters", wrong.address(), right.address(), &ids[0], &ids[1]];
    assert!(run.stderr.contains("says nothing and is not known there"), "{run:?}");
    assert_refused(&last_line(run), 8, &words);
    assert_ne!(wrong.run(&["stat", "tess:/f"]).code, 0, "it was stored in the wrong cluster");
    let disk = wrong.path().join("fresh");
    assert_refused(&last_line(refused_node(&wrong, &disk, &list, "n2")), 8, &words);
    assert_eq!(std::fs::read_dir(&disk).unwrap().count(), 0);
    right.kill_manager();
}

/// A node whose manager's address has another service tries again and again; its log says so once.
#[test]
fn a_peer_that_speaks_another_protocol_is_named_once() {
    use std::io::{Read, Write};
    let mut c = Cluster::start(1);
    c.wait_up(1);
    c.kill_node(1);
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut args = c.node_args(1);
    let at = args.iter().position(|arg| arg == "--manager").unwrap();
    args[at + 1] = other.local_addr().unwrap().to_string();
    let log = c.path().join("astray.log");
    let _node = Daemon::start(&args, &log);
    for _ in 0..6 {
        let (mut stream, _) = other.accept().unwrap();
        let _ = stream.read(&mut [0; 16]).unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n, and more than a header has").unwrap();
    }
    let said = std::fs::read_to_string(log).unwrap();
    for words in ["not a frame of this protocol", "registration failed"] {
        assert_eq!(said.matches(words).count(), 1, "{words}: {said}");
    }
}

fn signal(daemon: &Daemon, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(&daemon.child);
    rustix::process::kill_process(pid, signal).unwrap();
}

/// A run with only the last line that it printed.
fn last_line(run: Run) -> Run {
    Run { stderr: run.stderr.lines().last().unwrap_or_default().to_string(), ..run }
}

/// A manager that waits for the peers to join ends at once when it is told to, and leaves its directory new.
#[test]
fn a_manager_that_waits_to_join_can_be_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let place = dir.path().join("m1");
    let mut manager = Command::new(TESSERA)
        .args(["manager", "--dir", place.to_str().unwrap(), "--listen", "127.0.0.1:0", "--join", "127.0.0.1:1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let waits = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("asking again"));
    eventually("the manager waits", waits);
    let pid = rustix::process::Pid::from_child(&manager);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let ended = std::time::Instant::now();
    assert!(manager.wait().unwrap().success());
    assert!(ended.elapsed() < std::time::Duration::from_secs(30), "join_timeout_ms was waited for");
    assert!(!place.join("manager.db").exists());
}

/// P14: an empty directory joins one group, not whichever of two answers first.
#[test]
fn a_manager_that_is_told_to_join_two_clusters_is_refused() {
    let (one, other) = (Cluster::start(0), Cluster::start(0));
    let dir = one.path().join("m9");
    let list = format!("{},{}", one.address(), other.address());
    let run = common::tessera(&["manager", "--dir", dir.to_str().unwrap(), "--listen", "127.0.0.1:0", "--join", &list]);
    assert_refused(&last_line(run), 2, &["two clusters", one.address(), other.address()]);
    assert!(!dir.exists());
}

/// P14: others dial the address that is advertised.
#[test]
fn an_address_that_nobody_can_dial_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("m1");
    for (advertise, join) in [("nohost", false), ("unix:/tmp/x", false), ("", true)] {
        let mut args = vec!["manager", "--dir", place.to_str().unwrap()];
        match join {
            true => args.extend(["--listen", "unix:s", "--join", "127.0.0.1:1"]),
            false => args.extend(["--listen", "127.0.0.1:0", "--advertise", advertise]),
        }
        let run = common::run(Command::new(TESSERA).args(&args).current_dir(dir.path()), b"");
        assert_eq!(run.code, 2, "{run:?}");
        assert!(run.stderr.contains("HOST:PORT"), "{run:?}");
    }
}
