//! Real processes, really killed: nothing acknowledged is lost (P1, P6, P9, P12).

mod common;

use common::{Cluster, Daemon, Special, assert_refused, eventually, tree};

fn stored(c: &Cluster) -> std::path::PathBuf {
    let src = c.path().join("src");
    std::fs::create_dir(&src).unwrap();
    tree::make(&src);
    c.ok(&["put", "-r", "--quiet", src.to_str().unwrap(), "tess:/tree"]);
    src
}

fn assert_all_there(c: &Cluster, src: &std::path::Path, name: &str) {
    let back = c.path().join(name);
    c.ok(&["get", "-r", "--quiet", "tess:/tree", back.to_str().unwrap()]);
    tree::assert_equal(src, &back);
}

/// P1, P6: two of eight nodes are killed; everything is read, repaired, and read again after the loss of two more.
#[test]
fn two_nodes_are_killed_and_after_repair_two_more() {
    let special = Special { manager: vec!["out_after_ms=3000"], ..Special::default() };
    let mut c = Cluster::start_special(8, special);
    let src = stored(&c);
    // The copies of this file are all on the first killed node.
    let bytes = copies_on(&c, "n2");
    assert_eq!(c.with_stdin(&["put", "-", "tess:/raid6", "-p", "redundancy=raid6:4+2"], &bytes).code, 0);
    let is_there = |c: &Cluster| {
        ["tess:/copies", "tess:/raid6"].iter().for_each(|name| assert!(c.ok(&["cat", name]).stdout == bytes));
    };
    c.kill_node(2);
    c.kill_node(7);
    assert_all_there(&c, &src, "degraded");
    is_there(&c);
    eventually("repair has restored everything", || {
        let status = c.status();
        let out = status["nodes"].as_array().unwrap().iter().filter(|n| n["state"] == "out").count();
        // Other nodes must have taken over the dead ones' part of the metadata, too.
        let peers = status["log"]["peers"].as_array().unwrap();
        let votes = |name: &str| peers.iter().any(|peer| peer["name"] == name && peer["votes"] == true);
        let replaced = !votes("n2") && !votes("n7") && peers.iter().filter(|peer| peer["votes"] == true).count() == 5;
        out == 2 && replaced && status["chunks"]["reduced"] == 0 && status["repair"]["members_backfilling"] == 0
    });
    assert_all_there(&c, &src, "repaired");
    let located = c.ok(&["locate", "tess:/copies", "--json"]).json();
    assert_eq!(located["state"]["chunks_full"], located["state"]["chunks"]);
    c.kill_node(1);
    c.kill_node(4);
    assert_all_there(&c, &src, "again");
    is_there(&c);
}

/// Stores a file `tess:/copies` with a copy on `host` and coded fragments elsewhere.
fn copies_on(c: &Cluster, host: &str) -> Vec<u8> {
    let bytes = tree::bytes(31, 2_500_000);
    let words = ["put", "-", "tess:/copies", "--host", host, "-p", "placement=local", "-p", "redundancy=copy+ec:4+2"];
    assert_eq!(c.with_stdin(&words, &bytes).code, 0);
    let hosts = &c.ok(&["locate", "tess:/copies", "--json"]).json()["hosts"];
    assert_eq!(hosts[host].as_u64(), Some(bytes.len() as u64), "{hosts}");
    bytes
}

/// P1, P2: a class of a copy and coded fragments. The copy alone suffices; without it any four fragments do.
#[test]
fn a_copy_and_its_pieces_stand_in_for_each_other() {
    // Without a majority of the peers nothing can be read, so the metadata is on the manager alone.
    let special = Special { manager: vec!["max_voters=1"], ..Special::default() };
    let mut c = Cluster::start_special(6, special);
    let bytes = copies_on(&c, "n3");
    let others = [1, 2, 4, 5, 6];
    others.iter().for_each(|node| c.kill_node(*node));
    assert!(c.ok(&["cat", "tess:/copies"]).stdout == bytes, "the copy is the file");
    others.iter().for_each(|node| c.start_node(*node));
    c.kill_node(3);
    for node in others {
        c.kill_node(node);
        assert!(c.ok(&["cat", "tess:/copies"]).stdout == bytes, "without the copy and n{node}");
        c.start_node(node);
    }
}

/// A repair that can only wait names the missing nodes, and programs see it in the exit code.
#[test]
fn a_repair_without_hosts_ends_and_says_who_is_missing() {
    let special = Special { manager: vec!["down_after_ms=1500", "node_lease_ms=1000"], ..Special::default() };
    let mut c = Cluster::start_special(6, special);
    let src = stored(&c);
    c.kill_node(2);
    c.kill_node(5);
    eventually("two are down", || {
        c.status()["nodes"].as_array().unwrap().iter().filter(|n| n["state"] == "down").count() == 2
    });
    common::assert_refused(&c.run(&["repair", "--quiet"]), 4, &["node n2", "node n5", "add nodes"]);
    assert_all_there(&c, &src, "still");
    c.start_node(2);
    c.start_node(5);
    c.ok(&["repair"]);
    assert_eq!(c.status()["chunks"]["reduced"], 0);
}

/// P12: a policy that allows it writes once while some hosts are down, and repair completes the redundancy.
#[test]
fn degraded_writes_finish_leave_no_garbage_and_are_completed() {
    let special = Special { manager: vec!["down_after_ms=1500", "node_lease_ms=1000"], ..Special::default() };
    let mut c = Cluster::start_special(5, special);
    let data = tree::bytes(77, 9 << 20);
    let put = |c: &Cluster, name: &str, more: &[&str]| {
        let words = [&["put", "-p", "redundancy=ec:3+2", "-p", "chunking=fixed:256K"], more, &["-", name]].concat();
        c.with_stdin(&words, &data[..])
    };
    assert_eq!(put(&c, "tess:/a", &["-p", "dedup=off"]).code, 0);
    c.kill_node(3);
    for (name, known_down) in [("tess:/b", false), ("tess:/c", true)] {
        if known_down {
            eventually("it is known to be down", || {
                c.status()["nodes"].as_array().unwrap().iter().any(|n| n["state"] == "down")
            });
        }
        let put = put(&c, name, &["-p", "degraded-writes=yes", "-p", "dedup=off"]);
        assert_eq!(put.code, 0, "{put:?}");
        assert!(c.ok(&["cat", name]).stdout == data);
    }
    let status = c.status();
    assert!(status["garbage"]["bytes"].as_u64().unwrap() < data.len() as u64, "{status}");
    c.start_node(3);
    eventually("nothing is missing any more", || {
        c.status()["chunks"]["reduced"] == 0 && c.status()["repair"]["fragments_to_repair"] == 0
    });
    c.kill_node(1);
    c.kill_node(2);
    ["tess:/a", "tess:/b", "tess:/c"].iter().for_each(|name| assert!(c.ok(&["cat", name]).stdout == data));
}

/// P10: client and nodes cut, name, code, verify and rebuild on emulated devices. Bytes and names equal those of the CPU;
/// status and metrics name the devices.
#[test]
fn a_store_on_emulated_devices_is_the_same_store() {
    let special = Special { manager: vec!["out_after_ms=3000"], node: vec!["--device", "emulated"] };
    let mut c = Cluster::start_special(7, special);
    let (file, data) = (c.path().join("f"), tree::bytes(21, 400_000));
    std::fs::write(&file, &data).unwrap();
    let put = |device: &str, to: &str| {
        let policy = ["-p", "redundancy=ec:4+2", "-p", "chunking=cdc:64K..256K"];
        let words = [&["put", "--json", "--device", device, file.to_str().unwrap(), to], &policy[..]].concat();
        c.ok(&words).json()
    };
    assert_eq!(put("emulated:2", "tess:/f")["new_bytes"], 400_000);
    assert_eq!(put("cpu", "tess:/again")["new_bytes"], 0, "the same cuts and names");
    c.kill_node(3);
    assert!(c.ok(&["cat", "--device", "emulated", "tess:/f"]).stdout == data);
    eventually("a node has rebuilt what was lost", || {
        let status = c.status();
        status["chunks"]["reduced"] == 0 && status["repair"]["fragments_repaired"].as_u64() > Some(0)
    });
    assert!(c.ok(&["cat", "tess:/f"]).stdout == data);
    let bytes = |of_clients: bool, device: &str, primitive: &str| {
        let status = c.status();
        let works = status["device_work"].as_array().unwrap().iter().filter(|w| (w["node_id"] == 0) == of_clients);
        let works = works.filter(|w| w["device"].as_str().unwrap().starts_with(device) && w["primitive"] == primitive);
        works.map(|w| w["bytes"].as_u64().unwrap()).sum::<u64>()
    };
    for primitive in ["candidates", "tree", "encode", "hash"] {
        assert!(bytes(true, "emulated", primitive) >= 400_000, "{primitive}: {}", c.status());
    }
    assert_eq!(bytes(true, "cpu", "tree"), 400_000);
    eventually("heartbeats tell what nodes computed", || {
        bytes(false, "emulated:0", "tree") > 0 && bytes(false, "emulated:0", "reconstruct") > 0
    });
    let text = c.ok(&["status"]).text();
    assert!(text.contains("by clients on ") && text.contains("by nodes on "), "{text}");
    let rebuilt = |node: &Daemon| {
        let metrics = common::http(node.metrics.as_ref().unwrap(), "/metrics");
        metrics.contains("tessera_device_bytes_total{device=\"emulated:0\",primitive=\"reconstruct\"}")
    };
    assert!(c.nodes.iter().flatten().any(rebuilt));
}

/// P9: after SIGTERM, and after SIGKILL of everything, the next start finds all data.
#[test]
fn a_restart_finds_everything() {
    let mut c = Cluster::start(6);
    let src = stored(&c);
    c.stop();
    c.start_all();
    assert_all_there(&c, &src, "stopped");
    c.kill_manager();
    (1..=6).for_each(|node| c.kill_node(node));
    c.start_all();
    assert_all_there(&c, &src, "killed");
    assert_eq!(c.with_stdin(&["put", "-", "tess:/after"], b"new").code, 0);
    assert_eq!(c.ok(&["cat", "tess:/after"]).text(), "new");
}

/// The manager's disk is lost: with `--join` it gets everything from the nodes' voters, and wrong uses are refused.
/// A clock that is further from the last change than it may be: the manager does not lead, and says what to do.
#[test]
fn a_manager_whose_clock_is_implausible_does_not_serve() {
    let mut c = Cluster::start(0);
    c.ok(&["mkdir", "tess:/d"]);
    c.kill_manager();
    std::thread::sleep(std::time::Duration::from_millis(10));
    if let Ok(mut manager) =
        common::Daemon::try_start(&c.manager_args(&["--set", "max_clock_jump_ms=1"]), &c.log("manager"))
    {
        assert!(!manager.wait().success(), "it ends");
    }
    let log = std::fs::read_to_string(c.log("manager")).unwrap();
    assert!(log.contains("set it right") && log.contains("max_clock_jump_ms"), "{log}");
    c.start_manager(&[]);
    c.ok(&["ls", "tess:/d"]);
}

#[test]
fn a_manager_with_an_empty_disk_joins_again() {
    let mut c = Cluster::start(6);
    let src = stored(&c);
    let before = c.status();
    c.kill_manager();

    // A manager on an empty directory serves a new cluster. The nodes of this one do not join it, stay up, and are shown.
    std::fs::remove_dir_all(c.manager_dir()).unwrap();
    c.start_manager(&[]);
    let mut status = c.status();
    eventually("the new manager has seen rejected_nodes", || {
        status = c.status();
        status["rejected_nodes"].as_array().is_some_and(|s| !s.is_empty())
    });
    assert_eq!(status["rejected_nodes"][0]["cluster_id"], before["cluster_id"]);
    let text = c.ok(&["status"]).text();
    assert!(text.contains("REFUSED") && text.contains("--join") && !text.contains("n1 "), "{text}");
    c.kill_node(2);
    let node = common::Daemon::try_start(&c.node_args(2), &c.log("n2"));
    if let Ok(mut node) = node {
        assert_eq!(node.wait().code(), Some(8), "a node that starts anew gives up");
    }
    let log = std::fs::read_to_string(c.log("n2")).unwrap();
    let last = log.lines().last().unwrap();
    for words in [before["cluster_id"].as_str().unwrap(), status["cluster_id"].as_str().unwrap(), "--join"] {
        assert!(last.contains(words), "{last}");
    }
    c.kill_manager();
    // A node that knows its cluster starts without a manager.
    c.nodes[1] = Some(common::Daemon::start(&c.node_args(2), &c.log("n2")));
    let addresses: Vec<String> = c.nodes.iter().map(|n| n.as_ref().unwrap().address().to_string()).collect();

    std::fs::remove_dir_all(c.manager_dir()).unwrap();
    let args = c.manager_args(&["--join", "127.0.0.1:1", "--set", "join_timeout_ms=1500"]);
    let nobody = common::Daemon::try_start(&args, &c.log("manager")).err().expect("refused");
    assert_eq!(nobody.code, 4, "{nobody:?}");
    let itself =
        common::Daemon::try_start(&c.manager_args(&["--join", c.address()]), &c.log("manager")).err().expect("refused");
    assert_refused(&itself, 2, &["--join", c.address(), "this manager itself"]);

    c.start_manager(&["--join", &addresses.join(",")]);
    c.wait_up(6);
    let after = c.status();
    assert_eq!(before["files"], after["files"]);
    assert_eq!(before["chunks"]["all"], after["chunks"]["all"]);
    assert_eq!(before["cluster_id"], after["cluster_id"]);
    assert_all_there(&c, &src, "joined");
    assert_eq!(c.with_stdin(&["put", "-", "tess:/after"], b"new").code, 0);
}

/// The nodes that vote on the metadata.
fn voting_nodes(c: &Cluster) -> Vec<usize> {
    let status = c.status();
    let peers = status["log"]["peers"].as_array().unwrap().iter();
    let votes = peers.filter(|peer| peer["votes"] == true && peer["kind"] == "voter");
    votes.map(|peer| peer["name"].as_str().unwrap()[1..].parse().unwrap()).collect()
}

/// P6: a drained node is empty, keeps no part of the metadata and can be removed; redundancy was never reduced on the way.
#[test]
fn a_drained_node_may_be_switched_off() {
    let mut c = Cluster::start(8);
    let src = stored(&c);
    eventually("the manager and four nodes vote", || voting_nodes(&c).len() == 4);
    let goes = voting_nodes(&c)[0];
    let name = format!("n{goes}");
    c.ok(&["node", "drain", &name, "--follow", "--quiet"]);
    let nodes = c.ok(&["node", "list", "--json"]).json();
    let node = nodes.as_array().unwrap().iter().find(|n| n["name"] == *name).unwrap().clone();
    assert_eq!(node["disks"][0]["state"], "drained");
    let others = voting_nodes(&c);
    assert!(others.len() == 4 && !others.contains(&goes), "{name} drained; {others:?} vote");
    // Two more may go, even if both vote.
    [goes, others[0], others[1]].into_iter().for_each(|node| c.kill_node(node));
    assert_all_there(&c, &src, "drained");
}

/// P12: a write that loses a node while it runs succeeds.
#[test]
fn a_node_dies_while_a_file_is_written() {
    let mut c = Cluster::start(7);
    let data = tree::bytes(11, 48 << 20);
    let mut put = c.command(&["put", "--quiet", "-", "tess:/f"]);
    let mut child = put.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    use std::io::Write;
    pipe.write_all(&data[..16 << 20]).unwrap();
    c.kill_node(6);
    pipe.write_all(&data[16 << 20..]).unwrap();
    drop(pipe);
    assert!(child.wait().unwrap().success());
    assert!(c.ok(&["cat", "tess:/f"]).stdout == data);
}

/// P6: a node whose disk was replaced says so; `repair` rebuilds what the old one held, without another command.
#[test]
fn a_replaced_disk_is_rebuilt_on() {
    let mut c = Cluster::start(8);
    let src = stored(&c);
    c.nodes[4].take().unwrap().stop();
    std::fs::remove_dir_all(c.disk(5)).unwrap();
    std::fs::create_dir(c.disk(5)).unwrap();
    c.start_node(5);
    c.wait_up(8);
    let state = |c: &Cluster| {
        let nodes = c.status()["nodes"].as_array().unwrap().clone();
        let n5 = nodes.iter().find(|n| n["name"] == "n5").unwrap();
        n5["disks"].as_array().unwrap().iter().map(|d| d["state"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(state(&c), ["down", "up"]);
    let shown = c.ok(&["status"]).text();
    assert!(shown.contains("of n5) is down") && shown.contains("tessera repair"), "{shown}");
    c.ok(&["repair", "--quiet"]);
    assert_eq!(state(&c), ["out", "up"]);
    assert_eq!(c.status()["chunks"]["reduced"], 0);
    assert_all_there(&c, &src, "repaired");
    let log = std::fs::read_to_string(c.log("manager")).unwrap();
    assert!(log.contains("its node runs without this disk"), "{log}");
}

/// P1, P6, P9: the directory of a disk is moved away, another one is deleted, while their nodes run and nobody writes. Both disks fail,
/// are rebuilt elsewhere, and hold no votes; files that are written then are on the others.
#[test]
fn p9_a_disk_whose_directory_is_gone_is_rebuilt_elsewhere() {
    let mut c = Cluster::start(8);
    let src = stored(&c);
    let state = |c: &Cluster, name: &str| {
        let status = c.status();
        let node = status["nodes"].as_array().unwrap().iter().find(|n| n["name"] == name).unwrap();
        node["disks"].as_array().unwrap().iter().map(|d| d["state"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    let whole_without = |c: &Cluster, name: &str| {
        eventually("it is rebuilt elsewhere", || {
            let status = c.status();
            let votes = |peer: &serde_json::Value| peer["votes"] == true;
            let peers = status["log"]["peers"].as_array().unwrap();
            let voters = peers.iter().filter(|peer| votes(peer)).count();
            let has_vote = peers.iter().any(|peer| peer["name"] == name && votes(peer));
            let idle = status["chunks"]["reduced"] == 0 && status["repair"]["members_backfilling"] == 0;
            idle && !has_vote && voters == 5 && state(c, name) == ["out"]
        });
    };
    let voter = c.status()["log"]["peers"].as_array().unwrap().iter().find_map(|peer| {
        let name = peer["name"].as_str().unwrap();
        (peer["votes"] == true).then(|| name.strip_prefix('n')?.parse().ok()).flatten()
    });
    let (moved, away): (usize, _) = (voter.expect("a node that votes"), c.path().join("away"));
    std::fs::rename(c.disk(moved), &away).unwrap();
    whole_without(&c, &format!("n{moved}"));
    let deleted = moved % 8 + 1;
    std::fs::remove_dir_all(c.disk(deleted)).unwrap();
    whole_without(&c, &format!("n{deleted}"));
    let log = std::fs::read_to_string(c.log(&format!("n{deleted}"))).unwrap();
    assert!(log.contains("is not there any more") && log.contains(c.disk(deleted).to_str().unwrap()), "{log}");
    c.ok(&["put", "-r", "--quiet", src.to_str().unwrap(), "tess:/later"]);

    // What the lost disks held is needed no more. The moved one is taken back, an empty directory becomes a new disk.
    for node in [moved, deleted] {
        c.nodes[node - 1].take().unwrap().stop();
    }
    assert_all_there(&c, &src, "rebuilt");
    let later = c.path().join("later");
    c.ok(&["get", "-r", "--quiet", "tess:/later", later.to_str().unwrap()]);
    tree::assert_equal(&src, &later);
    std::fs::rename(&away, c.disk(moved)).unwrap();
    std::fs::create_dir(c.disk(deleted)).unwrap();
    for node in [moved, deleted] {
        c.start_node(node);
    }
    eventually("both serve", || {
        state(&c, &format!("n{moved}")) == ["up"] && state(&c, &format!("n{deleted}")).contains(&"up".into())
    });
    assert_all_there(&c, &src, "again");
}

/// The database and the snapshot that it would be rebuilt from are both damaged: the message says how to go on.
#[test]
fn a_manager_that_nothing_is_left_of_says_how_to_join() {
    let mut c = Cluster::start(1);
    c.ok(&["mkdir", "tess:/d"]);
    c.kill_manager();
    let log = c.manager_dir().join("log");
    let snapshots = std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path());
    let snapshots: Vec<_> = snapshots.filter(|path| path.extension().is_some_and(|end| end == "snap")).collect();
    assert!(!snapshots.is_empty());
    for path in snapshots {
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    std::fs::remove_file(c.manager_dir().join("manager.db")).unwrap();
    std::fs::remove_file(c.manager_dir().join("manager.db-wal")).unwrap();
    let ended = common::Daemon::try_start(&c.manager_args(&[]), &c.log("manager")).err().expect("refused");
    assert_eq!(ended.code, 8, "{ended:?}");
    assert!(ended.stderr.contains("cannot be used either") && ended.stderr.contains("--join ADDR"), "{ended:?}");
}
