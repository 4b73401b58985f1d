//! Commands wait for a manager that restarts or hangs, and say so.

mod common;

use common::{Cluster, eventually};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::process::{Child, Stdio};

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

/// Whoever compares a tree by content asks for each directory. If nobody answers any more, the first that has waited speaks for all.
#[test]
fn a_comparison_by_content_waits_once_for_a_manager_that_is_gone() {
    let mut c = Cluster::start(1);
    let tree = c.path().join("tree");
    // Long enough to be hashed still when the manager is killed.
    let long: Vec<u8> = (0..256u32 << 20).map(|i| (i ^ (i >> 11)) as u8).collect();
    for i in 0..40 {
        std::fs::create_dir_all(tree.join(format!("{i:02}"))).unwrap();
        let bytes = if i == 0 { &long[..] } else { &long[..1_000] };
        std::fs::write(tree.join(format!("{i:02}/file")), bytes).unwrap();
    }
    let tree = tree.to_str().unwrap().to_string();
    assert_eq!(c.run(&["put", "-r", &tree, "tess:/"]).code, 0);
    let log = File::create(c.path().join("put.err")).unwrap();
    let words = ["put", "-r", "--checksum", "-j", "1", "--wait", "2", &tree, "tess:/"];
    let mut put = c.command(&words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    c.kill_manager();
    let began = std::time::Instant::now();
    assert_eq!(put.wait().unwrap().code(), Some(4));
    // 39 files would wait for 78 seconds.
    assert!(began.elapsed().as_secs() < 40, "{:?}", began.elapsed());
}
