//! Commands wait for a manager that restarts or hangs, and say so.

mod common;

use common::{Cluster, eventually};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Starts `tessera ls` with its messages in a file, and waits until it says for whom it waits.
fn waiting_ls(c: &Cluster) -> Child {
    let log = c.path().join("ls.err");
    let errors = File::create(&log).unwrap();
    let child = c.command(&["ls"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn().unwrap();
    let words = format!("waiting for the manager at {}", c.address());
    eventually("the command says that it waits", || std::fs::read_to_string(&log).unwrap().contains(&words));
    child
}

#[test]
fn a_command_waits_for_a_manager_that_restarts() {
    let mut c = Cluster::start(1);
    c.kill_manager();
    let mut ls = waiting_ls(&c);
    c.start_manager(&[]);
    assert_eq!(ls.wait().unwrap().code(), Some(0));
}

#[test]
fn a_command_that_waits_names_all_managers() {
    let run = common::tessera(&["ls", "--wait", "4", "--manager", "127.0.0.1:1,127.0.0.1:2"]);
    assert_eq!(run.code, 4, "{run:?}");
    let words = [
        "waiting for the managers at 127.0.0.1:1,127.0.0.1:2, none of which",
        "cannot reach 127.0.0.1:",
        "--wait changes it",
    ];
    assert!(words.iter().all(|words| run.stderr.contains(words)), "{run:?}");
    assert!(run.stderr.contains("check that a majority of them runs"), "{run:?}");
}

#[test]
fn a_command_waits_for_a_manager_that_hangs() {
    let c = Cluster::start(1);
    let manager = Pid::from_child(&c.manager.as_ref().unwrap().child);
    kill_process(manager, Signal::STOP).unwrap();
    let mut ls = waiting_ls(&c);
    kill_process(manager, Signal::CONT).unwrap();
    assert_eq!(ls.wait().unwrap().code(), Some(0));
}

/// Whether a process has the file open.
fn has_open(process: &Child, file: &Path) -> bool {
    let Ok(open) = std::fs::read_dir(format!("/proc/{}/fd", process.id())) else { return false };
    open.flatten().any(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target == file))
}

/// Whoever compares a tree by content asks for each directory. If nobody answers any more, the first that has waited speaks for all.
#[test]
fn a_comparison_by_content_waits_once_for_a_manager_that_is_gone() {
    let mut c = Cluster::start(1);
    let tree = c.path().canonicalize().unwrap().join("tree");
    for i in 0..40 {
        std::fs::create_dir_all(tree.join(format!("{i:02}"))).unwrap();
        std::fs::write(tree.join(format!("{i:02}/file")), [i; 1_000]).unwrap();
    }
    let first = tree.join("00/file");
    // It is read for long enough to be seen open.
    File::options().write(true).open(&first).unwrap().set_len(256 << 20).unwrap();
    let path = tree.to_str().unwrap().to_string();
    c.ok(&["policy", "set", "tess:/", "redundancy=none"]);
    c.ok(&["put", "-r", &path, "tess:/"]);
    let log = File::create(c.path().join("put.err")).unwrap();
    let words = ["put", "-r", "--checksum", "-j", "1", "--wait", "2", &path, "tess:/"];
    let mut put = c.command(&words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    while !has_open(&put, &first) {
        assert!(put.try_wait().unwrap().is_none(), "the comparison ended before its first file was seen open");
    }
    kill_process(Pid::from_child(&put), Signal::STOP).unwrap();
    c.kill_manager();
    kill_process(Pid::from_child(&put), Signal::CONT).unwrap();
    let began = Instant::now();
    assert_eq!(put.wait().unwrap().code(), Some(4));
    // 39 files would wait for 78 seconds.
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
}
