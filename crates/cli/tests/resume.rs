//! A `put` that was interrupted: the same command finds what the first one had stored.

mod common;

use common::{Cluster, Special, eventually, tree};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

const SIZE: usize = 200 << 20;
/// What the first command gets before it waits for more.
const FED: usize = 190 << 20;
/// What must be stored before it is interrupted.
const STORED: u64 = 160 << 20;

/// Interrupts a `put` of new data when most of it is stored, and repeats it after a pause.
fn interrupted_by(signal: Signal, pause: Duration) {
    // A disk that is nearly full keeps nothing that is not committed. It takes less than this machine's may have left.
    let special = Special { manager: vec!["session_ms=3000"], node: vec!["--capacity", "1G"] };
    let cluster = Cluster::start_special(6, special);
    let (data, path) = (tree::bytes(signal.as_raw() as u64, SIZE), cluster.path().join("data"));
    std::fs::write(&path, &data).unwrap();
    let mut first = cluster.command(&["put", "--quiet", "-", "tess:/a"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = first.stdin.take().unwrap();
    pipe.write_all(&data[..FED]).unwrap();
    eventually("most is stored", || cluster.status()["bytes"]["unique"].as_u64() >= Some(STORED));
    kill_process(Pid::from_child(&first), signal).unwrap();
    assert!(!first.wait().unwrap().success());
    drop(pipe);
    std::thread::sleep(pause);

    let again = cluster.ok(&["put", "--json", path.to_str().unwrap(), "tess:/a"]).json();
    let new_bytes = again["new_bytes"].as_u64().unwrap();
    assert!(new_bytes < SIZE as u64 / 4, "{new_bytes} bytes were stored again");
    assert!(cluster.ok(&["cat", "tess:/a"]).stdout == data);

    // P5: what the second command did not use goes as well. A manager that has just started waits for sessions that it may not know.
    cluster.ok(&["rm", "tess:/a"]);
    eventually("all is collected", || {
        cluster.ok(&["gc"]);
        let status = cluster.status();
        status["garbage"]["bytes"] == 0 && status["bytes"]["unique"] == 0
    });
}

/// In the pause garbage collection takes what was not stored whole.
#[test]
fn a_put_that_was_interrupted_goes_on_where_it_ended() {
    interrupted_by(Signal::INT, Duration::from_secs(2));
}

/// The killed command closes no session: its session lives on when the second command asks.
#[test]
fn a_put_that_was_killed_goes_on_where_it_ended() {
    interrupted_by(Signal::KILL, Duration::ZERO);
}
