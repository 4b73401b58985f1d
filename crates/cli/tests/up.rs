//! `tessera up` and `tessera demo`, run as a user would.

mod common;

use common::{Run, TESSERA, assert_refused, eventually, run, tessera, tree};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running `tessera up --json`. Dropping it asks it to stop; its children then follow.
struct Up {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    said: Value,
}

impl Up {
    fn start(dir: &Path, more: &[&str]) -> Up {
        let mut child = Command::new(TESSERA)
            .args(["up", "--json", "--listen", "127.0.0.1:0", "--dir", dir.to_str().unwrap()])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let said = serde_json::from_str(&line).unwrap_or_else(|_| {
            let mut words = String::new();
            child.stderr.take().unwrap().read_to_string(&mut words).unwrap();
            panic!("up said {line:?} and {words}")
        });
        Up { child, out, said }
    }

    fn event(&mut self) -> Value {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn tessera(&self, args: &[&str], stdin: &[u8]) -> Run {
        run(Command::new(TESSERA).args(args).env("TESSERA_MANAGER", self.managers().join(",")), stdin)
    }

    fn managers(&self) -> Vec<&str> {
        self.said["managers"].as_array().unwrap().iter().map(|m| m["listen"][0].as_str().unwrap()).collect()
    }

    /// Waits until two managers vote; returns the number of the one that leads.
    fn leader_of_two(&self) -> usize {
        let mut leader = None;
        eventually("two managers vote", || {
            let status = self.tessera(&["status", "--json"], b"").json();
            let peers = status["log"]["peers"].as_array().unwrap();
            let is_voting = |p: &&Value| p["kind"] == "manager" && p["votes"] == true && p["up"] == true;
            let voting: Vec<&Value> = peers.iter().filter(is_voting).collect();
            let leads = voting.iter().find(|p| p["leads"] == true).and_then(|p| p["address"].as_str());
            leader = self.managers().iter().position(|address| Some(*address) == leads);
            voting.len() == 2 && leader.is_some()
        });
        leader.unwrap()
    }

    fn kill_child(&self, member: &Value) {
        let pid = rustix::process::Pid::from_raw(member["pid"].as_i64().unwrap() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    fn stop(mut self) -> i32 {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap().code().unwrap()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn up_runs_stops_and_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let data = tree::bytes(1, 2 << 20);
    let mut up = Up::start(dir.path(), &["--nodes", "6", "--disks", "2"]);
    assert_eq!(up.said["nodes"].as_array().unwrap().len(), 6);
    assert_eq!(up.tessera(&["put", "--quiet", "-", "tess:/f"], &data).code, 0);
    let file: Value = serde_json::from_slice(&std::fs::read(dir.path().join("cluster.json")).unwrap()).unwrap();
    assert_eq!(file, up.said);

    // No other `up` may use the directory, and a start with fewer nodes is refused.
    assert_refused(&tessera(&["up", "--quiet", "--dir", path]), 8, &[path, "running", &up.child.id().to_string()]);

    // A child that dies is reported.
    up.kill_child(&up.said["nodes"][2]);
    let event = up.event();
    assert_eq!((event["event"].as_str(), event["name"].as_str()), (Some("died"), Some("n3")));
    assert!(up.tessera(&["cat", "tess:/f"], b"").stdout == data);
    assert_eq!(up.stop(), 0);

    assert_refused(&tessera(&["up", "--quiet", "--dir", path, "--nodes", "5"]), 2, &["6 nodes", "--nodes 5", "drain"]);
    assert_refused(&tessera(&["up", "--quiet", "--dir", path, "--disks", "1"]), 2, &["2 disks", "--disks 1"]);

    // The next start finds everything, and `--restart` restarts children that die.
    let mut up = Up::start(dir.path(), &["--restart"]);
    assert_eq!(up.said["nodes"].as_array().unwrap().len(), 6);
    assert!(up.tessera(&["cat", "tess:/f"], b"").stdout == data);
    up.kill_child(&up.said["nodes"][0]);
    assert_eq!(up.event()["event"], "died");
    let event = up.event();
    assert_eq!((event["event"].as_str(), event["name"].as_str()), (Some("restarted"), Some("n1")));
    up.kill_child(&up.said["managers"][0]);
    assert_eq!(up.event()["name"], "manager");
    assert_eq!(up.event()["event"], "restarted");
    eventually("the manager serves again", || up.tessera(&["cat", "tess:/f"], b"").stdout == data);
    assert_eq!(up.stop(), 0);
}

/// The manager's directory is lost: `up` does not start a new manager over the old nodes, and `--restore` rebuilds it.
#[test]
fn a_lost_manager_is_noticed_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let data = tree::bytes(1, 1 << 20);
    let up = Up::start(dir.path(), &["--nodes", "6"]);
    assert_eq!(up.tessera(&["put", "--quiet", "-", "tess:/f"], &data).code, 0);
    let cluster = up.tessera(&["status", "--json"], b"").json()["cluster_id"].as_str().unwrap().to_string();
    assert_eq!(up.stop(), 0);
    assert_refused(&tessera(&["up", "--quiet", "--dir", path, "--restore"]), 6, &["manager.db", "nothing to restore"]);
    std::fs::remove_dir_all(dir.path().join("manager")).unwrap();
    assert_refused(&tessera(&["up", "--quiet", "--dir", path]), 8, &["n1", &cluster, "up --restore", "--dir"]);
    let up = Up::start(dir.path(), &["--restore"]);
    assert_eq!(up.tessera(&["status", "--json"], b"").json()["cluster_id"], cluster.as_str());
    assert!(up.tessera(&["cat", "tess:/f"], b"").stdout == data);
    assert_eq!(up.stop(), 0);
    let up = Up::start(dir.path(), &[]);
    assert!(up.tessera(&["cat", "tess:/f"], b"").stdout == data);
    assert_eq!(up.stop(), 0);
}

/// A second manager joins a store that has one, and takes over. Both are found again at other ports. The one whose directory is
/// lost joins the other.
#[test]
fn a_second_manager_takes_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let (first, second) = (tree::bytes(1, 1 << 20), tree::bytes(2, 1 << 20));
    let up = Up::start(dir.path(), &["--nodes", "6"]);
    assert_eq!(up.tessera(&["put", "--quiet", "-", "tess:/first"], &first).code, 0);
    assert_eq!(up.stop(), 0);

    let up = Up::start(dir.path(), &["--managers", "2"]);
    let leader = up.leader_of_two();
    up.kill_child(&up.said["managers"][leader]);
    assert_eq!(up.tessera(&["put", "--quiet", "-", "tess:/second"], &second).code, 0);
    let dead = up.managers()[leader];
    eventually("the dead manager is missed", || {
        let peers = up.tessera(&["manager", "list", "--json"], b"").json();
        peers.as_array().unwrap().iter().any(|p| p["address"] == dead && p["up"] == false)
    });
    let asked = Instant::now();
    let transfer = up.tessera(&["manager", "transfer", dead, "--wait", "40"], b"");
    assert_refused(&transfer, 4, &[dead, "does not answer"]);
    assert!(asked.elapsed() < Duration::from_secs(20), "--wait was waited for");
    assert_eq!(up.stop(), 0);
    assert_refused(
        &tessera(&["up", "--quiet", "--dir", path, "--managers", "1"]),
        2,
        &["2 managers", "manager remove"],
    );

    for lost in [None, Some("manager")] {
        if let Some(lost) = lost {
            std::fs::remove_dir_all(dir.path().join(lost)).unwrap();
        }
        let up = Up::start(dir.path(), &[]);
        assert_eq!(up.said["managers"].as_array().unwrap().len(), 2, "{lost:?}");
        up.leader_of_two();
        assert!(up.tessera(&["cat", "tess:/first"], b"").stdout == first, "{lost:?}");
        assert!(up.tessera(&["cat", "tess:/second"], b"").stdout == second, "{lost:?}");
        assert_eq!(up.stop(), 0);
    }
}

/// Children do not outlive `up`, even when it is killed.
#[test]
fn children_end_with_up() {
    let dir = tempfile::tempdir().unwrap();
    let up = Up::start(dir.path(), &["--nodes", "1"]);
    let pid = up.said["nodes"][0]["pid"].as_i64().unwrap();
    drop(up);
    let cmdline = format!("/proc/{pid}/cmdline");
    // A missing process, or one with another command line that reuses the number, counts as ended.
    let ours =
        || std::fs::read(&cmdline).is_ok_and(|c| String::from_utf8_lossy(&c).contains(dir.path().to_str().unwrap()));
    eventually("the node ends", || !ours());
}

/// P1: all steps of the demo, on little data.
#[test]
fn the_demo_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().join("scratch");
    let run = tessera(&["demo", "--json", "--size", "12M", "--dir", scratch.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{run:?}");
    let story = run.json();
    assert_eq!((story["ok"].as_bool(), story["different_bytes"].as_u64()), (Some(true), Some(0)));
    let steps = story["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 9);
    let (killed, leads) = (steps[2]["killed"].as_str().unwrap(), steps[2]["leads"].as_str().unwrap());
    assert!(killed != leads && leads.starts_with("manager"), "{killed} was killed, {leads} leads");
    assert!(steps[2]["unanswered_seconds"].as_f64().unwrap() > 0.0);
    assert!(steps[1]["new_bytes"].as_u64() < steps[1]["logical_bytes"].as_u64(), "the copy was not deduplicated");
    assert!(!scratch.exists(), "the scratch store was left behind");
}

#[test]
fn up_mounts_too_and_commits_before_it_stops() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (data, mount) = (dir.path().join("data"), dir.path().join("mnt"));
    std::fs::create_dir(&mount).unwrap();
    let spool = dir.path().join("spool");
    let refused = tessera(&["up", "--quiet", "--dir", data.to_str().unwrap(), "--spool", spool.to_str().unwrap()]);
    assert_refused(&refused, 2, &["--spool", "--mount"]);
    let words = ["--nodes", "6", "--mount", mount.to_str().unwrap(), "--spool", spool.to_str().unwrap()];
    let up = Up::start(&data, &[&words[..], &["--spool-size", "5M"]].concat());
    let mut said = [0; 4096];
    let len = rustix::fs::getxattr(&mount, "user.tessera.mount", &mut said).unwrap();
    let said: Value = serde_json::from_slice(&said[..len]).unwrap();
    assert_eq!(said["spool"]["limit_bytes"], 5 << 20, "{said}");
    std::fs::write(mount.join("closed"), b"closed").unwrap();
    let mut open = std::fs::File::create(mount.join("open")).unwrap();
    std::io::Write::write_all(&mut open, b"still open").unwrap();
    assert_eq!(up.stop(), 0);
    assert_eq!(std::fs::read_dir(&mount).unwrap().count(), 0, "nothing is mounted");
    let up = Up::start(&data, &[]);
    assert_eq!(up.tessera(&["cat", "tess:/closed", "tess:/open"], b"").text(), "closedstill open");
    assert_eq!(up.stop(), 0);
}

/// The manager leads only with the votes of the nodes that still have their directories, and the one whose disk is new waits for it.
#[test]
fn a_node_whose_directory_is_lost_starts_after_those_that_vote() {
    let dir = tempfile::tempdir().unwrap();
    let nodes_up = |up: &Up| {
        let status = up.tessera(&["status", "--json"], b"").json();
        status["nodes"].as_array().unwrap().iter().filter(|node| node["state"] == "up").count()
    };
    assert_eq!(Up::start(dir.path(), &["--nodes", "4"]).stop(), 0);
    std::fs::remove_dir_all(dir.path().join("n1")).unwrap();
    let up = Up::start(dir.path(), &[]);
    eventually("the node is there again", || nodes_up(&up) == 4);
    assert_eq!(up.stop(), 0);
    for lost in ["n2", "manager"] {
        std::fs::remove_dir_all(dir.path().join(lost)).unwrap();
    }
    let up = Up::start(dir.path(), &["--restore"]);
    eventually("the node and the manager are there again", || nodes_up(&up) == 4);
    assert_eq!(up.stop(), 0);
}
