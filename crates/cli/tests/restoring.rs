//! A group that has lost its majority for ever is restored from the peers that are left (P1, P7, P11, P14).

mod common;

use common::{Cluster, Daemon, Run, assert_refused, eventually, run, tree};
use std::path::PathBuf;

/// Numbers of the nodes whose voters are members.
fn voting_nodes(c: &Cluster) -> Vec<usize> {
    let status = c.status();
    let peers = status["log"]["peers"].as_array().unwrap().iter();
    let names = peers.filter(|peer| peer["votes"] == true && peer["kind"] == "voter");
    names.map(|peer| peer["name"].as_str().unwrap()[1..].parse().unwrap()).collect()
}

fn addresses(c: &Cluster) -> String {
    let running = c.nodes.iter().flatten().map(|node| node.address().to_string());
    running.collect::<Vec<_>>().join(",")
}

fn store(c: &Cluster, name: &str, seed: u64) -> Vec<u8> {
    let bytes = tree::bytes(seed, 700_000);
    let put = c.with_stdin(&["put", "--quiet", "-", &format!("tess:/{name}"), "-p", "redundancy=replica:3"], &bytes);
    assert_eq!(put.code, 0, "{put:?}");
    bytes
}

/// `tessera manager --restore` into a directory; it must end by itself.
fn refused(c: &Cluster, dir: &str, more: &[&str]) -> Run {
    let dir = c.path().join(dir).display().to_string();
    let args = [&["manager", "--dir", &dir, "--listen", "127.0.0.1:0", "--restore"], more].concat();
    run(&mut c.command(&args), b"")
}

/// As [`assert_refused`], after the table of what is left.
fn assert_not_restored(run: Run, code: i32, words: &[&str]) {
    assert!(run.stderr.starts_with("name"), "{run:?}");
    let last = run.stderr.trim_end().lines().last().unwrap_or_default().to_string();
    assert_refused(&Run { stderr: last, ..run }, code, words);
}

fn restore(c: &mut Cluster, dir: &str, more: &[&str]) {
    let mut args = c.manager_args(&[&["--restore", "--yes"], more].concat());
    let at = args.iter().position(|arg| arg == "--dir").unwrap();
    args[at + 1] = c.path().join(dir).display().to_string();
    c.manager = Some(Daemon::start(&args, &c.log("restored")));
}

/// Five voters: the manager and two of the four nodes are lost with their disks. A third voter was down for a while, so its state is older.
#[test]
fn p1_the_newest_state_that_is_left_is_restored() {
    let mut c = Cluster::start(5);
    let voters = voting_nodes(&c);
    assert_eq!(voters.len(), 4, "{voters:?}");
    let (older, newest, lost) = (voters[0], voters[1], &voters[2..]);
    let first = store(&c, "first", 1);
    c.kill_node(older);
    let second = store(&c, "second", 2);
    c.kill_manager();
    std::fs::rename(c.manager_dir(), c.path().join("lost-manager")).unwrap();
    for &node in lost {
        c.kill_node(node);
        std::fs::remove_dir_all(c.disk(node)).unwrap();
    }
    c.start_node(older);
    let from = addresses(&c);
    let from = ["--from", from.as_str()];

    // P14: what is refused.
    let nothing = refused(&c, "new", &from);
    assert_refused(&nothing, 8, &["nothing has changed", "--yes"]);
    assert!(!c.path().join("new").exists(), "a restore that was not confirmed leaves something behind");
    assert_eq!(nothing.text().matches("does not answer").count(), 3, "{nothing:?}");
    let json = refused(&c, "new", &[&from[..], &["--json"]].concat());
    let members = json.json()["members"].as_array().unwrap().clone();
    assert_eq!(members.iter().filter(|member| member["answers"] == true).count(), 2, "{members:?}");
    let own = |number: usize| {
        members.iter().find(|m| m["name"] == format!("n{number}").as_str()).unwrap()["log_seq"].as_u64()
    };
    assert!(own(older) < own(newest), "{members:?}");
    assert_eq!(refused(&c, "new", &[]).code, 2, "no address");
    assert_refused(&refused(&c, "new", &["--from", "127.0.0.1:1"]), 4, &["127.0.0.1:1", "--from"]);
    let state_of = format!("n{older}");
    let refused_older = refused(&c, "new", &[&from[..], &["--yes", "--state-of", &state_of]].concat());
    assert_not_restored(refused_older, 8, &["would be lost", "--force"]);

    // The peers that are left are fenced now, for the directory `new`.
    assert_not_restored(refused(&c, "other", &[&from[..], &["--yes"]].concat()), 8, &["fenced", "--force"]);
    let dir = c.path().join("new").display().to_string();
    let started = run(&mut c.command(&["manager", "--dir", &dir, "--listen", "127.0.0.1:0"]), b"");
    assert_refused(&started, 8, &["interrupted", "--restore"]);
    restore(&mut c, "new", &from);

    for (name, bytes) in [("first", &first), ("second", &second)] {
        assert!(c.ok(&["cat", &format!("tess:/{name}")]).stdout == *bytes, "{name}");
    }
    let third = store(&c, "third", 3);
    eventually("the group is three again", || {
        let status = c.status();
        let votes = status["log"]["peers"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|peer| peer["votes"] == true && peer["up"] == true);
        votes.count() == 3
    });
    assert_refused(&refused(&c, "third", &from), 8, &["majority", "--join"]);
    // The restored manager starts like any other.
    c.kill_manager();
    let mut args = c.manager_args(&[]);
    let at = args.iter().position(|arg| arg == "--dir").unwrap();
    args[at + 1] = dir;
    c.manager = Some(Daemon::start(&args, &c.log("restored")));
    for (name, bytes) in [("first", first), ("second", second), ("third", third)] {
        assert!(c.ok(&["cat", &format!("tess:/{name}")]).stdout == bytes, "{name}");
    }
}

fn manager_args(c: &Cluster, number: usize, address: &str, more: &[&str]) -> Vec<String> {
    let (dir, host): (PathBuf, _) = (c.path().join(format!("m{number}")), format!("m{number}"));
    let mut args = c.manager_args(&[&["--host", &host], more].concat());
    for (flag, value) in [("--dir", dir.to_str().unwrap()), ("--listen", address)] {
        let at = args.iter().position(|arg| arg == flag).unwrap();
        args[at + 1] = value.to_string();
    }
    args
}

/// Three managers are lost, a fourth one is restored from two voters. Then the three come back: they have a majority of their group, and
/// stop for ever.
#[test]
fn p7_p11_a_majority_that_comes_back_is_not_obeyed() {
    let mut c = Cluster::start(0);
    c.kill_manager();
    let start = |c: &Cluster, number: usize, address: &str, more: &[&str]| {
        Daemon::start(&manager_args(c, number, address, more), &c.log(&format!("m{number}")))
    };
    let mut managers = vec![start(&c, 1, "127.0.0.1:0", &[])];
    let first = managers[0].address().to_string();
    (2..=3).for_each(|number| managers.push(start(&c, number, "127.0.0.1:0", &["--join", &first])));
    // No connection out of this machine takes a port of this address meanwhile.
    let spare = std::net::TcpListener::bind("127.0.0.4:0").unwrap().local_addr().unwrap().to_string();
    let old: Vec<String> = managers.iter().map(|manager| manager.address().to_string()).collect();
    c.name_managers(&[old.clone(), vec![spare.clone()]].concat());
    for node in 1..=3 {
        std::fs::create_dir(c.disk(node)).unwrap();
        c.nodes.push(None);
        c.start_node(node);
    }
    c.wait_up(3);
    let kept = store(&c, "kept", 4);
    managers.iter_mut().for_each(Daemon::kill);
    let from = addresses(&c);
    let restored = start(&c, 4, &spare, &["--restore", "--yes", "--from", &from]);
    assert!(c.ok(&["cat", "tess:/kept"]).stdout == kept);
    let more = store(&c, "more", 5);

    let mut managers: Vec<Daemon> = (1..=3).map(|number| start(&c, number, &old[number - 1], &[])).collect();
    managers.iter_mut().for_each(|manager| assert_eq!(manager.wait().code(), Some(4)));
    // A fence outlives the process.
    let again = start(&c, 1, &old[0], &[]);
    let seen = refused(&c, "none", &["--from", &old[0], "--json"]).json();
    // It is a member as long as the voters that it names have not told of the new group.
    let mut peers = ["members", "others"].iter().flat_map(|list| seen[list].as_array().unwrap());
    let fence = peers.find(|peer| peer["host"] == "m1").map(|peer| peer["fenced_by"].clone());
    assert_eq!(fence, Some("0000000000000000".into()), "{seen}");
    assert!(c.ok(&["cat", "tess:/kept"]).stdout == kept && c.ok(&["cat", "tess:/more"]).stdout == more);
    c.wait_up(3);
    drop((again, restored));
}
