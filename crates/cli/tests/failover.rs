//! Three managers, of which one leads. The leader is killed and stopped under load; commands and nodes follow (P1, P7, P8).

mod common;

use common::{Cluster, Daemon, Run, eventually, run, tree};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Managers m1 to m3 and nodes n1 to n3.
struct Group {
    c: Cluster,
    managers: Vec<Option<Daemon>>,
    addresses: Vec<String>,
}

/// The arguments of a manager that listens on `address`.
fn args(c: &Cluster, number: usize, address: &str, more: &[&str]) -> Vec<String> {
    let (dir, host) = (c.path().join(format!("m{number}")).display().to_string(), format!("m{number}"));
    let mut args = c.manager_args(&[&["--host", &host], more].concat());
    for (flag, value) in [("--dir", dir.as_str()), ("--listen", address)] {
        let at = args.iter().position(|arg| arg == flag).unwrap();
        args[at + 1] = value.to_string();
    }
    args
}

fn start_manager(c: &Cluster, number: usize, address: &str, more: &[&str]) -> Daemon {
    std::fs::create_dir_all(c.path().join(format!("m{number}"))).unwrap();
    Daemon::start(&args(c, number, address, more), &c.log(&format!("m{number}")))
}

impl Group {
    fn start() -> Group {
        let mut c = Cluster::start(0);
        c.kill_manager();
        let mut managers = vec![start_manager(&c, 1, "127.0.0.1:0", &[])];
        let first = managers[0].address().to_string();
        for number in 2..=3 {
            managers.push(start_manager(&c, number, "127.0.0.1:0", &["--join", &first]));
        }
        let addresses: Vec<String> = managers.iter().map(|manager| manager.address().to_string()).collect();
        c.name_managers(&addresses);
        for node in 1..=3 {
            std::fs::create_dir(c.disk(node)).unwrap();
            c.nodes.push(None);
            c.start_node(node);
        }
        c.wait_up(3);
        let group = Group { c, managers: managers.into_iter().map(Some).collect(), addresses };
        group.wait_whole();
        group
    }

    /// Waits until five peers vote, as many as there are with this many hosts: the managers, and voters on two nodes.
    fn wait_whole(&self) {
        eventually("five peers vote", || {
            let status = self.c.status();
            let votes = |peer: &&serde_json::Value| peer["votes"] == true && peer["up"] == true;
            let voting: Vec<_> = status["log"]["peers"].as_array().unwrap().iter().filter(votes).collect();
            voting.len() == 5 && voting.iter().filter(|peer| peer["kind"] == "manager").count() == 3
        });
    }

    /// Number of the manager that leads, from 0.
    fn leader(&self) -> usize {
        let mut leader = None;
        eventually("a manager leads", || {
            let status = self.c.status();
            // Empty for a moment after another manager took over.
            let peers = status["log"]["peers"].as_array().unwrap();
            let address = peers.iter().find(|peer| peer["leads"] == true).map(|peer| peer["address"].clone());
            leader = self.addresses.iter().position(|it| address.as_ref().is_some_and(|leads| leads == it.as_str()));
            leader.is_some()
        });
        leader.unwrap()
    }

    fn dir(&self, manager: usize) -> PathBuf {
        self.c.path().join(format!("m{}", manager + 1))
    }

    /// Waits until a manager has ended by itself.
    fn wait_ended(&mut self, manager: usize) {
        let child = &mut self.managers[manager].as_mut().unwrap().child;
        eventually("the manager ends", || child.try_wait().unwrap().is_some());
    }

    fn kill(&mut self, manager: usize) {
        self.managers[manager].take().unwrap().kill();
    }

    fn restart(&mut self, manager: usize) {
        let address = self.addresses[manager].clone();
        self.managers[manager] = Some(start_manager(&self.c, manager + 1, &address, &[]));
    }
}

/// What one writer stored: file i has these bytes. A directory is made once: a repetition of the request that made it says
/// so, and not that it exists (P8).
fn write(c: &Command<'_>, writer: usize, i: u64) {
    let bytes = content(writer, i);
    for (args, stdin) in [
        (vec!["mkdir".to_string(), format!("tess:/w{writer}/d{i}")], &b""[..]),
        (vec!["put".into(), "--quiet".into(), "-".into(), format!("tess:/w{writer}/f{i}")], &bytes[..]),
    ] {
        let run = c.run(&args, stdin);
        assert_eq!(run.code, 0, "{args:?}: {run:?}");
    }
}

fn content(writer: usize, i: u64) -> Vec<u8> {
    tree::bytes(1_000 * writer as u64 + i, 20_000 + 997 * (i as usize % 100))
}

/// Commands that know all managers.
struct Command<'a>(&'a str, &'a Path);

impl Command<'_> {
    fn start<I: AsRef<OsStr>>(&self, args: &[I]) -> process::Command {
        let mut command = process::Command::new(common::TESSERA);
        command.args(args).env("TESSERA_MANAGER", self.0).current_dir(self.1);
        command
    }

    fn run(&self, args: &[String], stdin: &[u8]) -> Run {
        run(&mut self.start(args), stdin)
    }
}

/// Stores one file in one command that lasts until `over`. Returns what it wrote.
fn write_slowly(command: &Command<'_>, over: &AtomicBool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let words = ["put", "--quiet", "-", "tess:/long", "-p", "redundancy=replica:2"];
    let mut put = command.start(&words).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = put.stdin.take().unwrap();
    while !over.load(Ordering::Relaxed) {
        let piece = tree::bytes(bytes.len() as u64, 100_000);
        stdin.write_all(&piece).unwrap();
        bytes.extend(piece);
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(stdin);
    let output = put.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    bytes
}

/// Runs `disturb` while two writers store files, and a third one a long file, then checks that all are there and whole.
fn under_load(group: &mut Group, disturb: impl FnOnce(&mut Group)) {
    let (list, dir) = (group.c.address().to_string(), group.c.path().to_path_buf());
    let command = Command(&list, &dir);
    let names: Vec<String> = (0..2).map(|writer| format!("tess:/w{writer}")).collect();
    names.iter().for_each(|name| assert_eq!(command.run(&["mkdir".into(), name.clone()], b"").code, 0));
    let over = AtomicBool::new(false);
    let (stored, long) = std::thread::scope(|scope| {
        let long = scope.spawn(|| write_slowly(&command, &over));
        let writers = [0, 1].map(|writer| {
            let (over, command) = (&over, &command);
            scope.spawn(move || {
                let mut i = 0;
                while !over.load(Ordering::Relaxed) {
                    write(command, writer, i);
                    i += 1;
                }
                i
            })
        });
        disturb(group);
        over.store(true, Ordering::Relaxed);
        (writers.map(|writer| writer.join().unwrap()), long.join().unwrap())
    });
    assert!(group.c.ok(&["cat", "tess:/long"]).stdout == long, "the long file");
    for (writer, stored) in stored.into_iter().enumerate() {
        assert!(stored > 0);
        for i in 0..stored {
            let run = group.c.ok(&["cat", &format!("tess:/w{writer}/f{i}")]);
            assert!(run.stdout == content(writer, i), "file {i} of writer {writer}");
            assert!(group.c.ok(&["ls", &format!("tess:/w{writer}/d{i}")]).stdout.is_empty());
        }
    }
    group.c.wait_up(3);
}

#[test]
fn p1_p8_killed_leaders_lose_nothing() {
    let mut group = Group::start();
    under_load(&mut group, |group| {
        for _ in 0..4 {
            let leader = group.leader();
            group.kill(leader);
            // Answered by another one.
            assert_ne!(group.leader(), leader);
            group.restart(leader);
            group.wait_whole();
        }
    });
}

/// A leader that is stopped, and goes on when another one leads, has no effect any more.
#[test]
fn p7_a_stopped_leader_is_left_and_comes_back_without_harm() {
    let mut group = Group::start();
    under_load(&mut group, |group| {
        let stopped = group.leader();
        let pid = Pid::from_child(&group.managers[stopped].as_ref().unwrap().child);
        kill_process(pid, Signal::STOP).unwrap();
        assert_ne!(group.leader(), stopped);
        kill_process(pid, Signal::CONT).unwrap();
        group.wait_whole();
    });
}

/// P14: a manager that lost its directory and is started as the first one of all was founds an empty cluster at its address.
#[test]
fn p14_a_manager_that_founds_another_cluster_at_an_old_address_gets_no_request() {
    let mut group = Group::start();
    group.c.ok(&["mkdir", "tess:/kept"]);
    let dir = group.c.path().join("m1");
    group.kill(0);
    std::fs::remove_dir_all(&dir).unwrap();
    group.restart(0);
    let (all, others) = (group.addresses.join(","), group.addresses[1..].join(","));
    let run = |group: &Group, managers: &str, command: &[&str]| {
        let run = group.c.run(&[command, &["--manager", managers]].concat());
        assert_eq!(run.code, 0, "{run:?}");
        run
    };
    // The others name it as a member of their group, and it names nobody.
    let two = format!("{},{}", group.addresses[0], group.addresses[1]);
    run(&group, &two, &["mkdir", "tess:/made"]);
    assert_eq!(run(&group, &all, &["ls", "tess:/"]).text(), run(&group, &two, &["ls", "tess:/"]).text());
    // When it alone answers, everybody is told that it may be the wrong one.
    group.kill(1);
    group.kill(2);
    let doubted = run(&group, &all, &["mkdir", "--json", "tess:/lost"]);
    for word in ["{\"warning\":", &group.addresses[1], &group.addresses[2], "not known there"] {
        assert!(doubted.stderr.contains(word), "{word}: {doubted:?}");
    }
    group.restart(1);
    group.restart(2);
    let only = |managers: &str, command: &[&str]| run(&group, managers, command).text();
    assert!(!only(&group.addresses[0], &["ls", "tess:/"]).contains("kept"));
    let names = only(&others, &["ls", "tess:/"]);
    assert!(names.contains("kept") && names.contains("made"), "{names}");
    group.kill(0);
    std::fs::remove_dir_all(&dir).unwrap();
    group.managers[0] = Some(start_manager(&group.c, 1, &group.addresses[0], &["--join", &others]));
    group.wait_whole();
    let listed = group.c.ok(&["ls", "tess:/"]).text();
    assert!(listed.contains("kept") && !listed.contains("lost"), "{listed}");
}

/// P12: what is written to a directory that is gone is found by no restart, and nothing can be read from it. Clients ask again.
#[test]
fn p12_a_leader_whose_directory_is_moved_away_ends_and_another_one_leads() {
    let mut group = Group::start();
    under_load(&mut group, |group| {
        let leader = group.leader();
        let (dir, away) = (group.dir(leader), group.c.path().join("away"));
        std::fs::rename(&dir, &away).unwrap();
        group.wait_ended(leader);
        assert_ne!(group.leader(), leader);
        std::fs::rename(&away, &dir).unwrap();
        group.restart(leader);
        group.wait_whole();
    });
}

/// P1, P12: a leader whose directory is replaced by another one, even a copy of it, reads nothing there.
#[test]
fn p12_a_leader_whose_directory_is_replaced_ends_and_another_one_leads() {
    let mut group = Group::start();
    group.c.ok(&["mkdir", "tess:/before"]);
    let leader = group.leader();
    let (dir, away, copy) = (group.dir(leader), group.c.path().join("away"), group.c.path().join("copy"));
    let copied = process::Command::new("cp").arg("-a").args([&dir, &copy]).status().unwrap();
    assert!(copied.success());
    group.c.ok(&["mkdir", "tess:/after"]);
    std::fs::rename(&dir, &away).unwrap();
    std::fs::rename(&copy, &dir).unwrap();
    let listed = group.c.ok(&["ls", "tess:/"]).text();
    assert!(listed.contains("before") && listed.contains("after"), "{listed}");
    group.wait_ended(leader);
    assert_ne!(group.leader(), leader);
    std::fs::remove_dir_all(&dir).unwrap();
    std::fs::rename(&away, &dir).unwrap();
    group.restart(leader);
    group.wait_whole();
}

/// A scrub whose leader is killed begins again at the next one; it does not say that it is done.
#[test]
fn a_scrub_outlives_its_leader() {
    let mut group = Group::start();
    let content = tree::bytes(3, 64 << 20);
    assert_eq!(group.c.with_stdin(&["put", "--quiet", "-p", "redundancy=replica:3", "-", "tess:/f"], &content).code, 0);
    let leader = group.leader();
    let mut scrub = group.c.command(&["scrub"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the scrub runs", || {
        let runs = group.c.ok(&["scrub", "--look", "--json"]).json()["running"] == true;
        // It is over already on a machine that is fast enough.
        runs || scrub.try_wait().unwrap().is_some()
    });
    group.kill(leader);
    let ended = scrub.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    assert!(said.contains("3 disks done, 3 disks"), "{said}");
}
