//! `tessera flash record`: the trace of a running node and of CONA has what they stored, and `replay` reads it.

mod common;

use common::{Cluster, Daemon, Special, assert_refused, eventually, tessera, tree};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A cluster whose only node is recorded.
fn recorded(trace: &Path) -> Cluster {
    let node = vec!["--set", "compact_every_ms=200", "--set", "compact_dead_percent=10"];
    let mut cluster = Cluster::start_special(0, Special { manager: vec!["session_ms=400"], node });
    fs::create_dir(cluster.disk(1)).unwrap();
    let mut args: Vec<String> = ["flash", "record", "--out"].map(String::from).to_vec();
    args.push(trace.display().to_string());
    args.extend(cluster.node_args(1));
    cluster.nodes.push(Some(Daemon::start(&args, &cluster.log("n1"))));
    cluster.wait_up(1);
    cluster
}

fn put(cluster: &Cluster, name: &str, seed: u64, bytes: usize) {
    let file = cluster.path().join(name);
    fs::write(&file, tree::bytes(seed, bytes)).unwrap();
    cluster.ok(&["put", "-p", "redundancy=none", file.to_str().unwrap(), &format!("tess:/{name}")]);
}

/// Bytes of the requests of this kind.
fn bytes(trace: &Path, kind: &str) -> u64 {
    let text = fs::read_to_string(trace).unwrap();
    let of_kind = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        (words.len() == 5 && words[2] == kind).then(|| words[4].parse::<u64>().unwrap())
    };
    text.lines().filter_map(of_kind).sum()
}

fn segments_bytes(cluster: &Cluster) -> u64 {
    let files = fs::read_dir(cluster.disk(1).join("segments")).unwrap();
    files.flatten().filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum()
}

fn replay(trace: &Path, options: &[&str]) -> Vec<serde_json::Value> {
    let common = ["flash", "replay", trace.to_str().unwrap(), "--ftl", "ideal,cpftl", "--capacity", "512M", "--json"];
    let run = tessera(&[&common[..], options].concat());
    assert_eq!(run.code, 0, "{run:?}");
    run.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_node_is_recorded_under_put_rm_and_compaction() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("node.fio");
    let mut cluster = recorded(&trace);
    let stored: usize = 30 << 20;
    put(&cluster, "a", 1, stored / 2);
    put(&cluster, "b", 2, stored / 2);
    let full = segments_bytes(&cluster);
    cluster.ok(&["rm", "tess:/a"]);
    // Chunks wait for the sessions that began before they became garbage.
    eventually("compaction gives back what was removed", || {
        cluster.ok(&["gc"]);
        segments_bytes(&cluster) < full * 3 / 4
    });
    let read = cluster.ok(&["cat", "tess:/b"]);
    assert!(read.stdout == tree::bytes(2, stored / 2));
    cluster.stop();

    assert!(bytes(&trace, "write") >= stored as u64, "{} bytes written", bytes(&trace, "write"));
    assert!(bytes(&trace, "trim") >= stored as u64 / 4, "{} bytes trimmed", bytes(&trace, "trim"));
    assert!(bytes(&trace, "read") >= stored as u64 / 2, "{} bytes read", bytes(&trace, "read"));
    for document in replay(&trace, &[]) {
        assert!(document["programs"].as_u64() >= Some(stored as u64 / 4096), "{document}");
    }
}

#[test]
fn a_trace_can_be_read_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("node.fio");
    let mut cluster = recorded(&trace);
    let mut files = 0;
    eventually("lines are written while the node runs", || {
        files += 1;
        put(&cluster, &format!("f{files}"), files, 100_000);
        bytes(&trace, "write") > 0
    });
    cluster.kill_node(1);
    for document in replay(&trace, &["--skip-bad"]) {
        assert!(document["programs"].as_u64() > Some(0), "{document}");
    }
}

#[test]
fn cona_is_recorded_under_ycsb() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, store) = (dir.path().join("cona.fio"), dir.path().join("store"));
    let [out, at] = [&trace, &store].map(|path: &PathBuf| path.to_str().unwrap());
    let record = |more: &[&str]| {
        let common = ["flash", "record", "--out", out, "--json", "cona", "--dir", at];
        tessera(&[&common[..], &["--records", "1000", "--ops", "1000", "--buffer", "64K", "--sync"], more].concat())
    };
    let document = record(&[]).json();
    let sum = |field: &str| {
        document["files"].as_object().unwrap().values().map(|files| files[field].as_u64().unwrap()).sum::<u64>()
    };
    assert!(document["files"]["*.log"]["flushes"].as_u64() > Some(1_000), "{document}");
    assert_eq!(sum("written_bytes"), bytes(&trace, "write"));
    assert_eq!(sum("trimmed_bytes"), bytes(&trace, "trim"));
    assert!(sum("written_bytes") > sum("stored_bytes") && sum("stored_bytes") > 1_000 * 220, "{document}");
    assert!(replay(&trace, &[])[0]["write_amplification"].as_f64() >= Some(1.0));

    assert_refused(&record(&[]), 6, &["cona.fio", "exists already", "--out"]);
    fs::remove_file(&trace).unwrap();
    assert_refused(&record(&[]), 6, &["store", "not empty", "--dir"]);
    assert!(!trace.exists(), "what was refused leaves no trace");
}

/// Unmounted when dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_trace_without_room_ends_and_what_is_recorded_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (small, store) = (dir.path().join("small"), dir.path().join("store"));
    fs::create_dir(&small).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=16k", "none"]).arg(&small).output();
    if !mount.is_ok_and(|mount| mount.status.success()) {
        eprintln!("skipped: no file system can be mounted");
        return;
    }
    let small = Mounted(small);
    let trace = small.0.join("t.fio").display().to_string();
    let words = ["flash", "record", "--out", &trace, "--quiet", "cona", "--dir", store.to_str().unwrap()];
    let run = tessera(&[&words[..], &["--records", "500", "--ops", "500", "--sync"]].concat());
    assert_refused(&run, 1, &["t.fio", "could not be written", "more room"]);
    let again = dir.path().join("again.fio").display().to_string();
    let words = ["flash", "record", "--out", &again, "--quiet", "cona", "--dir", store.to_str().unwrap()];
    assert_refused(&tessera(&words), 6, &["store", "not empty"]);
}

#[test]
fn a_trace_within_the_disk_that_is_recorded_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, inside) = (dir.path().join("disk"), dir.path().join("disk/t.fio"));
    fs::create_dir(&disk).unwrap();
    let [disk, inside] = [&disk, &inside].map(|path| path.to_str().unwrap());
    let run = tessera(&["flash", "record", "--out", inside, "node", "--disk", disk, "--manager", "127.0.0.1:1"]);
    assert_refused(&run, 2, &["t.fio", "within", "--out"]);
    assert!(fs::read_dir(disk).unwrap().next().is_none());
}
