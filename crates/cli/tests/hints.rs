//! Hints: the nodes store what a file asks for, as their fragments show. An impossible hint is refused, or ignored and counted
//! (docs/hints.md).

mod common;

use common::fragments::Reader;
use common::mounted::{Mounted, can_mount};
use common::{Cluster, Special, assert_refused, eventually, run, tree};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;

/// Stores `bytes` from host `host` under the given hints; returns the located fragments.
fn put(c: &Cluster, host: &str, name: &str, bytes: &[u8], hints: &[&str]) -> Value {
    let path = format!("tess:/{name}");
    let mut words = vec!["put", "-", &path, "--host", host];
    hints.iter().for_each(|hint| words.extend(["-p", hint]));
    let put = c.with_stdin(&words, bytes);
    assert_eq!(put.code, 0, "{words:?}: {put:?}");
    let back = c.ok(&["get", &path, "-"]);
    assert!(back.stdout == bytes, "{name} comes back other than it was stored");
    c.ok(&["locate", &path, "--extents", "--json"]).json()
}

/// Bytes of the file in plain form, by host.
fn by_host(located: &Value) -> BTreeMap<String, u64> {
    located["hosts"].as_object().unwrap().iter().map(|(host, bytes)| (host.clone(), bytes.as_u64().unwrap())).collect()
}

/// Hosts of the given fragments of each chunk, in order of offset.
fn hosts_of(located: &Value, fragment: usize) -> Vec<String> {
    let extents = located["extents"].as_array().unwrap();
    extents.iter().map(|e| e["fragments"][fragment]["host"].as_str().unwrap().to_string()).collect()
}

fn counter(c: &Cluster, name: &str) -> u64 {
    c.status()["counters"][name].as_u64().unwrap()
}

/// A number of a node's metrics.
fn figure(c: &Cluster, node: usize, name: &str) -> u64 {
    let text = common::http(c.nodes[node - 1].as_ref().unwrap().metrics.as_ref().unwrap(), "/metrics");
    let line = text.lines().find(|l| l.starts_with(name));
    line.and_then(|l| l.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no {name}:\n{text}"))
}

#[test]
fn each_placement_is_where_it_was_asked_for() {
    let c = Cluster::start(6);
    let bytes = tree::bytes(1, 3_000_000);
    let len = bytes.len() as u64;

    let local = put(&c, "n3", "none", &bytes, &["placement=local", "redundancy=none"]);
    assert_eq!(by_host(&local), [("n3".to_string(), len)].into());
    let local = put(&c, "n3", "copies", &bytes, &["placement=local", "redundancy=replica:2"]);
    assert_eq!(by_host(&local)["n3"], len);
    let local = put(&c, "n3", "coded", &bytes, &["placement=local", "redundancy=ec:2+1"]);
    // The second of two slices is shorter by what the first is rounded up to: 16 KiB at most.
    let least = len / 2 - 16_384 * local["extents"].as_array().unwrap().len() as u64;
    assert!(by_host(&local)["n3"] >= least, "{local}");

    // The copy is on the writer's host and is the whole chunk; the coded fragments are elsewhere.
    let local = put(&c, "n3", "copy", &bytes, &["placement=local", "redundancy=copy+ec:4+2"]);
    assert_eq!(by_host(&local)["n3"], len);
    assert!(hosts_of(&local, 0).iter().all(|host| host == "n3"), "{local}");
    for extent in local["extents"].as_array().unwrap() {
        let holds: Vec<&str> =
            extent["fragments"].as_array().unwrap().iter().map(|f| f["holds"].as_str().unwrap()).collect();
        assert_eq!(holds, ["copy", "slice", "slice", "slice", "parity", "parity"]);
    }
    assert_eq!(local["state"]["chunks_full"], local["state"]["chunks"]);
    let stored = local["state"]["stored_bytes"].as_u64().unwrap();
    // Slices are rounded up to 16 KiB.
    let padding = 16_384 * local["extents"].as_array().unwrap().len() as u64;
    assert!((len * 9 / 4..len * 9 / 4 + padding).contains(&stored), "{stored} of {len}");

    // `auto` chooses this class for a large file with such a placement.
    let local = put(&c, "n3", "auto", &bytes, &["placement=local"]);
    assert_eq!((&local["state"]["classes"], by_host(&local)["n3"]), (&serde_json::json!(["copy+ec:4+2"]), len));
    let spread = put(&c, "n3", "raid6", &bytes, &["redundancy=raid6:4+2"]);
    assert_eq!(spread["state"]["classes"], serde_json::json!(["raid6:4+2"]));
    assert!(by_host(&spread).values().sum::<u64>().abs_diff(len) < 1000, "each slice once: {spread}");

    // Two files with the same content and different placements: each has what it asked for.
    let other = put(&c, "n5", "none too", &bytes, &["placement=local", "redundancy=none"]);
    assert_eq!(by_host(&other), [("n5".to_string(), len)].into());

    let group = |name: &str, seed| {
        let located =
            put(&c, "n1", name, &tree::bytes(seed, 500_000), &["placement=collocate:merge", "redundancy=none"]);
        by_host(&located).into_keys().collect::<Vec<_>>()
    };
    let first = group("a", 2);
    assert_eq!(first.len(), 1);
    assert_eq!(group("b", 3), first);

    let hints = ["placement=scatter:512K", "redundancy=none"];
    let scattered = put(&c, "n1", "scattered", &bytes, &hints);
    let (mut regions, mut round) = (BTreeMap::<u64, BTreeSet<String>>::new(), BTreeSet::new());
    for (extent, host) in scattered["extents"].as_array().unwrap().iter().zip(hosts_of(&scattered, 0)) {
        let (offset, bytes) = (extent["offset"].as_u64().unwrap(), extent["len_bytes"].as_u64().unwrap());
        assert_eq!(offset >> 19, (offset + bytes - 1) >> 19, "a chunk lies in one region");
        round.insert(host.clone());
        regions.entry(offset >> 19).or_default().insert(host);
    }
    assert_eq!((regions.len(), round.len()), (6, 6), "{regions:?}");
    assert!(regions.values().all(|hosts| hosts.len() == 1), "{regions:?}");
    assert_eq!(counter(&c, "placements_not_met"), 0);
}

#[test]
fn hints_that_cannot_be_followed_are_counted_and_those_that_make_no_sense_are_refused() {
    let c = Cluster::start(3);
    let located = put(&c, "elsewhere", "f", b"content", &["placement=local", "redundancy=replica:2"]);
    assert_eq!(by_host(&located).len(), 2);
    assert_eq!(counter(&c, "placements_not_met"), 1);
    let status = c.ok(&["status"]).text();
    assert!(status.contains("1 new chunks not where their placement asked"), "{status}");
    for (hint, word) in [
        ("placement=near", "collocate:GROUP"),
        ("placement=scatter:1", "4K"),
        ("DP=collocation", "collocation | GROUP"),
        ("Replication=0", "copies"),
        ("BlockSize=1", "4K..8M"),
        ("cache=lots", "SIZE"),
        ("redundancy=copy+ec:4", "copy+ec:K+M"),
        ("redundancy=copy+ec:1+2", "replica:3"),
        ("redundancy=raid6:8+3", "raid6:K+2"),
    ] {
        assert_refused(&c.with_stdin(&["put", "-", "tess:/g", "-p", hint], b"x"), 2, &[word]);
    }
    assert_refused(&c.run(&["stat", "tess:/g"]), 3, &["tess:/g"]);
}

/// The papers' names are aliases of the same hints.
#[test]
fn classic_names_do_what_they_did() {
    let c = Cluster::start(4);
    let bytes = tree::bytes(4, 2_500_000);
    let located = put(&c, "n2", "f", &bytes, &["DP=local", "Replication=3", "BlockSize=1M", "RepSmntc=Pessimestic"]);
    assert_eq!(located["state"]["classes"], serde_json::json!(["replica:3"]));
    assert_eq!(located["state"]["chunks"], 3);
    assert_eq!(by_host(&located)["n2"], bytes.len() as u64);
    let got = c.ok(&["policy", "get", "tess:/f", "--json"]).json();
    assert_eq!(got["policy"]["placement"], serde_json::json!({"value": "local", "set": true}));
    assert_eq!(got["policy"]["chunking"]["value"], "fixed:1M");

    // A file inherits a hint from its directory, whichever name set it.
    c.ok(&["mkdir", "tess:/d"]);
    c.ok(&["policy", "set", "tess:/d", "DP=scatter | 2", "CacheSize=1M", "redundancy=none", "BlockSize=64K"]);
    let scattered = put(&c, "n1", "d/f", &tree::bytes(5, 1 << 20), &[]);
    let hosts = hosts_of(&scattered, 0);
    assert_eq!(hosts.len(), 16);
    assert!(hosts.chunks(2).all(|pair| pair[0] == pair[1]) && hosts[0] != hosts[2], "{hosts:?}");
    c.ok(&["policy", "set", "tess:/d", "DP="]);
    let got = c.ok(&["policy", "get", "tess:/d", "--json"]).json();
    assert_eq!(got["policy"]["placement"], serde_json::json!({"value": "spread", "set": false}));
    assert_eq!(got["policy"]["cache"]["value"], "1M");
}

/// A client on a node's host reads the copies of that host, not those of other hosts.
#[test]
fn what_is_local_is_read_locally() {
    let c = Cluster::start(3);
    let bytes = tree::bytes(6, 4_000_000);
    let located = put(&c, "n2", "f", &bytes, &["placement=local", "redundancy=replica:2"]);
    assert_eq!(by_host(&located)["n2"], bytes.len() as u64);
    let figure = |node: usize, name: &str| figure(&c, node, name);
    let served = |node| figure(node, "tessera_node_sent_bytes_total");
    let before: Vec<u64> = (1..=3).map(served).collect();
    let got = run(c.command(&["get", "tess:/f", "-"]).env("TESSERA_HOST", "n2"), b"");
    assert!(got.code == 0 && got.stdout == bytes);
    let after: Vec<u64> = (1..=3).map(served).collect();
    let read: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
    assert!(read[0] == 0 && read[2] == 0 && read[1] >= bytes.len() as u64, "{read:?}");
    // Bytes between hosts: none for this read, one copy for the put.
    let far = |name: &str| (1..=3).map(|node| figure(node, name)).sum::<u64>();
    let put = far("tessera_node_far_received_bytes_total");
    let len = bytes.len() as u64;
    assert!((len..len + len / 100).contains(&put), "{put}: one copy; the command log is counted apart");
    assert!(far("tessera_node_log_received_bytes_total") > 0, "some nodes have a voter");
    let sent_before: u64 = before.iter().sum();
    assert!(far("tessera_node_far_sent_bytes_total") <= sent_before);
}

/// A changed hint applies to new data at once and to old data after a rewrite; readers and sharers lose nothing.
#[test]
fn a_rewrite_makes_old_data_follow_new_hints() {
    let c = Cluster::start(6);
    let (bytes, other) = (tree::bytes(7, 3_000_000), tree::bytes(8, 700_000));
    c.ok(&["mkdir", "--parents", "tess:/d/e"]);
    put(&c, "n1", "d/f", &bytes, &["redundancy=ec:2+1"]);
    put(&c, "n1", "d/e/g", &other, &["redundancy=ec:2+1"]);
    put(&c, "n1", "twin", &bytes, &["redundancy=ec:2+1"]);
    for name in ["d/f", "d/e/g"] {
        c.ok(&["policy", "set", &format!("tess:/{name}"), "redundancy=replica:2", "placement=collocate:x"]);
    }
    let classes = |name: &str| c.ok(&["locate", &format!("tess:/{name}"), "--json"]).json()["state"]["classes"].clone();
    assert_eq!(classes("d/f"), serde_json::json!(["ec:2+1"]));
    assert_refused(&c.run(&["rewrite", "tess:/d"]), 2, &["--recursive"]);
    let done = c.ok(&["rewrite", "-r", "tess:/d", "--json"]).json();
    assert_eq!(
        (done["files"].as_u64(), done["bytes"].as_u64(), done["new_bytes"].as_u64()),
        (Some(2), Some(3_700_000), Some(3_700_000))
    );
    for (name, content) in [("d/f", &bytes), ("d/e/g", &other)] {
        assert_eq!(classes(name), serde_json::json!(["replica:2"]));
        assert!(c.ok(&["get", &format!("tess:/{name}"), "-"]).stdout == *content);
    }
    assert_eq!(classes("twin"), serde_json::json!(["ec:2+1"]));
    // A second rewrite has nothing to store.
    let again = c.ok(&["rewrite", "-r", "tess:/", "--json"]).json();
    assert_eq!((again["files"].as_u64(), again["new_bytes"].as_u64()), (Some(3), Some(0)));
}

/// Classes a file can be stored in on six hosts, each with what its fragments hold. All survive the loss of two hosts (P1).
const CLASSES: &[(&str, &[&str])] = &[
    ("ec:4+2", &["slice", "slice", "slice", "slice", "parity", "parity"]),
    ("raid6:4+2", &["slice", "slice", "slice", "slice", "parity", "parity"]),
    ("copy+ec:4+2", &["copy", "slice", "slice", "slice", "parity", "parity"]),
    ("replica:3", &["copy", "copy", "copy"]),
];

/// P1: from every class to every other. The nodes have the fragments of the new class, and the file can be read after the loss of
/// two nodes.
#[test]
fn a_rewrite_goes_from_every_class_to_every_other() {
    let mut c = Cluster::start(6);
    let pairs: Vec<_> = CLASSES.iter().flat_map(|from| CLASSES.iter().map(move |to| (from.0, *to))).collect();
    let pairs: Vec<_> = pairs.into_iter().filter(|(from, (to, _))| from != to).collect();
    let content = |i: usize| tree::bytes(100 + i as u64, 600_000 + i * 7001);
    let nodes = Reader::new();
    for (i, (from, _)) in pairs.iter().enumerate() {
        let (name, bytes) = (format!("f{i}"), content(i));
        let located = put(&c, "n1", &name, &bytes, &[&format!("redundancy={from}")]);
        let holds = CLASSES.iter().find(|(class, _)| class == from).unwrap().1;
        nodes.check(&located, &bytes, from, holds);
    }
    for (i, (_, (to, _))) in pairs.iter().enumerate() {
        c.ok(&["policy", "set", &format!("tess:/f{i}"), &format!("redundancy={to}")]);
    }
    let done = c.ok(&["rewrite", "-r", "tess:/", "--json"]).json();
    let all: usize = (0..pairs.len()).map(|i| content(i).len()).sum();
    assert_eq!((done["files"].as_u64(), done["new_bytes"].as_u64()), (Some(12), Some(all as u64)));
    for (i, (from, (to, holds))) in pairs.iter().enumerate() {
        let located = c.ok(&["locate", &format!("tess:/f{i}"), "--extents", "--json"]).json();
        let state = &located["state"];
        assert_eq!(state["classes"], serde_json::json!([to]), "from {from}");
        assert_eq!(state["chunks"], state["chunks_full"], "from {from} to {to}");
        nodes.check(&located, &content(i), to, holds);
    }
    c.kill_node(2);
    c.kill_node(5);
    for (i, (from, (to, _))) in pairs.iter().enumerate() {
        let back = c.ok(&["get", &format!("tess:/f{i}"), "-"]);
        assert!(back.stdout == content(i), "from {from} to {to}: other bytes");
    }
}

/// The client cuts a small file before it opens it, by the hints that it expects. The file still gets the hints that it has.
#[test]
fn small_files_are_cut_as_they_ask() {
    let c = Cluster::start(3);
    let (bytes, other) = (tree::bytes(9, 40_000), tree::bytes(10, 40_000));
    let lens = |name: &str| -> Vec<u64> {
        let located = c.ok(&["locate", &format!("tess:/{name}"), "--extents", "--json"]).json();
        located["extents"].as_array().unwrap().iter().map(|e| e["len_bytes"].as_u64().unwrap()).collect()
    };
    put(&c, "n1", "f", &bytes, &[]);
    assert_eq!(lens("f"), [40_000]);
    c.ok(&["policy", "set", "tess:/f", "BlockSize=16K"]);
    let done = c.ok(&["rewrite", "tess:/f", "--json"]).json();
    assert_eq!(done["new_bytes"], 40_000, "old data follows");
    assert_eq!(lens("f"), [16_384, 16_384, 7_232]);
    assert!(c.ok(&["get", "tess:/f", "-"]).stdout == bytes);
    // New data has the right hints at once, although the client expected those of the directory; regions are whole chunks.
    put(&c, "n1", "f", &other, &[]);
    assert_eq!(lens("f"), [16_384, 16_384, 7_232]);
    c.ok(&["policy", "set", "tess:/f", "BlockSize=", "placement=scatter:8K", "redundancy=none"]);
    let scattered = put(&c, "n1", "f", &bytes, &[]);
    assert_eq!(lens("f").iter().sum::<u64>(), 40_000);
    let hosts = hosts_of(&scattered, 0);
    for (extent, host) in scattered["extents"].as_array().unwrap().iter().zip(&hosts) {
        let (offset, bytes) = (extent["offset"].as_u64().unwrap(), extent["len_bytes"].as_u64().unwrap());
        assert_eq!(offset >> 13, (offset + bytes - 1) >> 13, "a chunk lies in one region");
        assert_eq!(host == &hosts[0], (offset >> 13) % 3 == 0, "round and round three hosts: {hosts:?}");
    }
}

/// Two values of one hint are refused as contradictory. Two different hints both apply: regions end chunks, whatever `chunking`
/// says.
#[test]
fn hints_that_exclude_each_other_are_refused_in_one_command() {
    let c = Cluster::start(3);
    for words in [
        ["-p", "redundancy=none", "-p", "Replication=3"],
        ["-p", "DP=local", "-p", "placement=collocate:x"],
        ["-p", "BlockSize=64K", "-p", "chunking=cdc:16K..64K"],
    ] {
        let put = c.with_stdin(&[&["put", "-", "tess:/f"][..], &words].concat(), b"x");
        assert_refused(&put, 2, &["exclude each other", "give one"]);
    }
    assert_refused(&c.run(&["stat", "tess:/f"]), 3, &["tess:/f"]);
    let same = ["put", "-", "tess:/f", "-p", "redundancy=replica:2", "-p", "Replication=2"];
    assert_eq!(c.with_stdin(&same, b"x").code, 0, "the same twice is no contradiction");
    assert_refused(&c.run(&["policy", "set", "tess:/f", "DP=local", "placement=spread"]), 2, &["exclude each other"]);
    let got = c.ok(&["policy", "get", "tess:/f", "--json"]).json();
    assert_eq!(got["policy"]["placement"], serde_json::json!({"value": "spread", "set": false}));

    // Redundancy is not advice: a class that cannot be met is refused.
    let put = c.with_stdin(&["put", "-", "tess:/g", "-p", "Replication=5"], b"x");
    assert_refused(&put, 4, &["replica:5", "5 hosts", "3 are up"]);
    assert_refused(&c.run(&["stat", "tess:/g"]), 3, &["tess:/g"]);
}

/// Nodes need not send what the client has in memory, and the client caches as much as the file's hint allows.
#[test]
fn clients_keep_what_the_cache_hint_lets_them() {
    let c = Cluster::start(3);
    if !can_mount(&c) {
        return;
    }
    const LEN: u64 = 12 << 20;
    let writer = Mounted::new(&c, "writer", &[]);
    let hints = [("auto", "cache=auto"), ("none", "cache=none"), ("some", "cache=2M")];
    for (seed, (name, hint)) in (0..).zip(hints) {
        fs::write(writer.at(name), "").unwrap();
        c.ok(&["policy", "set", &format!("tess:/{name}"), hint, "redundancy=none", "chunking=fixed:256K"]);
        fs::write(writer.at(name), tree::bytes(seed, LEN as usize)).unwrap();
    }
    let reader = Mounted::new(&c, "reader", &[]);
    // Read without the kernel's page cache.
    let read = |name: &str| {
        let sent = || (1..=3).map(|node| figure(&c, node, "tessera_node_sent_bytes_total")).sum::<u64>();
        let before = sent();
        let from = format!("if={}", reader.at(name).display());
        let dd =
            std::process::Command::new("dd").args([&from, "of=/dev/null", "bs=1M", "iflag=direct"]).output().unwrap();
        assert!(dd.status.success(), "{dd:?}");
        sent() - before
    };
    for (name, _) in hints {
        assert!((LEN..LEN + (1 << 20)).contains(&read(name)), "{name}: nothing is there before it was read");
    }
    assert!(read("auto") < 1 << 20);
    assert!(read("none") >= LEN);
    let again = read("some");
    assert!((LEN - (3 << 20)..LEN).contains(&again), "{again}");
}

/// P13: the store reports the time since which all of a file has been re-read from its disks.
#[test]
fn a_file_says_when_it_was_last_verified() {
    let c = Cluster::start(3);
    let located = put(&c, "n1", "f", &tree::bytes(11, 500_000), &["redundancy=replica:2"]);
    let committed_ns = |state: &Value| state["last_verified_ns"].as_i64();
    assert_eq!(committed_ns(&located["state"]), None, "not since it was written");
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64;
    c.ok(&["scrub"]);
    let state = || c.ok(&["locate", "tess:/f", "--json"]).json()["state"].clone();
    eventually("all disks are re-read", || committed_ns(&state()).is_some_and(|ns| ns >= before));
    assert!(c.ok(&["locate", "tess:/f"]).text().contains("re-read since"));
    put(&c, "n1", "f", &tree::bytes(12, 500_000), &["redundancy=replica:2"]);
    assert_eq!(committed_ns(&state()), None, "a new version has not been");
}

/// Lifetimes set on directories: files that expire, and time steps that replace each other as a whole.
#[test]
fn checkpoints_go_when_their_directory_says() {
    let c = Cluster::start(3);
    if !can_mount(&c) {
        return;
    }
    let m = Mounted::new(&c, "mnt", &[]);
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&m.path, "user.Replication", b"2", none).unwrap();
    for (name, lifetime) in [("steps", "replace:1"), ("purged", "purge:1s"), ("kept", "keep")] {
        fs::create_dir(m.at(name)).unwrap();
        rustix::fs::setxattr(m.at(name), "user.tessera.lifetime", lifetime.as_bytes(), none).unwrap();
    }
    let listed = |name: &str| {
        let mut names: Vec<String> =
            fs::read_dir(m.at(name)).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    fs::write(m.at("kept/sim.N0.T1"), b"kept").unwrap();
    for image in ["sim.N0.T1", "sim.N1.T1", "sim.N0.T2"] {
        fs::write(m.at("steps").join(image), tree::bytes(40, 1000)).unwrap();
    }
    // The last image of step 2 is being written: nothing of step 1 may be removed. A purged file shows that the time has passed.
    // (If the image were open in this process, each child of another test would close its copy of the descriptor, and so commit
    // it.)
    let mut last = std::process::Command::new("python3")
        .args(["-c", "import sys; f = open(sys.argv[1], 'wb', 0); f.write(b'x'); print(flush=True); sys.stdin.read()"])
        .arg(m.at("steps/sim.N1.T2"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    last.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    fs::write(m.at("purged/f"), b"for a second").unwrap();
    eventually("the file is purged", || listed("purged").is_empty());
    assert_eq!(listed("steps"), ["sim.N0.T1", "sim.N0.T2", "sim.N1.T1", "sim.N1.T2"]);
    drop(last.stdin.take());
    assert!(last.wait().unwrap().success());
    eventually("the older step is gone", || listed("steps") == ["sim.N0.T2", "sim.N1.T2"]);
    assert_eq!(listed("kept"), ["sim.N0.T1"]);
}

/// P12, P14: an optimistic `put` succeeds although a node is silent, and says what is left to repair; repair completes it.
#[test]
fn an_optimistic_put_succeeds_and_says_what_is_left_to_repair() {
    // Nodes that are down would get no fragments, and the metadata must not depend on the silent one.
    let manager = vec!["down_after_ms=600000", "max_voters=1"];
    let c = Cluster::start_special(3, Special { manager, ..Special::default() });
    let signal = |signal| kill_process(Pid::from_child(&c.nodes[1].as_ref().unwrap().child), signal).unwrap();
    c.ok(&["mkdir", "tess:/d"]);
    c.ok(&["policy", "set", "tess:/d", "durability=optimistic", "redundancy=replica:3", "chunking=fixed:64K"]);
    let file = c.path().join("file");
    fs::write(&file, tree::bytes(41, 200_000)).unwrap();
    signal(Signal::STOP);
    let (noted, counted) = std::thread::scope(|scope| {
        let noted = scope.spawn(|| c.with_stdin(&["put", "-", "tess:/d/noted"], &tree::bytes(40, 200_000)));
        let counted = c.run(&["put", "--json", file.to_str().unwrap(), "tess:/d/counted"]);
        (noted.join().unwrap(), counted)
    });
    assert_eq!((noted.code, counted.code), (0, 0), "{noted:?} {counted:?}");
    assert!(noted.stderr.contains("4 chunks have reduced redundancy; repair completes it"), "{noted:?}");
    assert_eq!((counted.json()["chunks_reduced"].as_u64(), counted.stderr.as_str()), (Some(4), ""), "{counted:?}");
    assert!(c.ok(&["get", "tess:/d/noted", "-"]).stdout == tree::bytes(40, 200_000));
    signal(Signal::CONT);
    c.ok(&["repair"]);
    for name in ["tess:/d/noted", "tess:/d/counted"] {
        let state = &c.ok(&["locate", name, "--json"]).json()["state"];
        assert_eq!((state["chunks"].as_u64(), state["chunks_full"].as_u64()), (Some(4), Some(4)), "{name}: {state}");
    }
    let whole = c.with_stdin(&["put", "--json", "-", "tess:/d/whole"], &tree::bytes(42, 200_000));
    assert_eq!((whole.code, whole.json()["chunks_reduced"].as_u64()), (0, Some(0)), "{whole:?}");
}
