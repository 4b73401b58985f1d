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
