//! Deferred creates (docs/mount.md, "New files"): files that a mount creates without a request to the manager. What the creating program
//! sees, what other clients see, and what happens when both want the same name.

mod common;

use common::mounted::{Mounted, can_mount};
use common::{Cluster, eventually, http};
use rustix::fs::{AtFlags, CWD, XattrFlags, statat};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// A cluster, a mount, and a directory `d` that the mount has just made.
fn with_directory(test: impl FnOnce(&Cluster, &Mounted)) {
    let c = Cluster::start(6);
    if can_mount(&c) {
        let m = Mounted::new(&c, "mnt", &[]);
        // The first lease puts on record that there are leases.
        fs::create_dir(m.at("first")).unwrap();
        fs::metadata(m.at("first")).unwrap();
        fs::create_dir(m.at("d")).unwrap();
        test(&c, &m);
    }
}

/// Number of requests of a kind that the manager has answered.
fn requests(c: &Cluster, kind: &str) -> u64 {
    let text = http(c.manager.as_ref().unwrap().metrics.as_ref().unwrap(), "/metrics");
    let line = format!("tessera_manager_requests_total{{kind=\"{kind}\"}} ");
    text.lines().find_map(|l| l.strip_prefix(&line)).map_or(0, |n| n.trim().parse().unwrap())
}

/// Metrics lag: polls until the counts stay the same.
fn settled<T: PartialEq>(look: impl Fn() -> T) -> T {
    let mut last = look();
    eventually("counts stay", || {
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        let now = look();
        std::mem::replace(&mut last, now) == last
    });
    last
}

fn exclusive(path: &Path) -> std::io::Result<File> {
    File::options().write(true).create_new(true).open(path)
}

#[test]
fn a_new_small_file_costs_one_trip() {
    with_directory(|c, m| {
        let ask = || ["Commit", "MakeNode", "Lookup"].map(|kind| requests(c, kind));
        // The delegation lasts only seconds. On a slow machine the test tries again with another directory.
        let mut attempt = 0;
        eventually("files cost a trip each", || {
            attempt += 1;
            let (directory, [committed, made, looked]) = (m.at(&format!("d{attempt}")), settled(ask));
            fs::create_dir(&directory).unwrap();
            (0..40).for_each(|i| fs::write(directory.join(i.to_string()), format!("content {i}")).unwrap());
            // One commit a file.
            eventually("it is counted", || ask()[0] >= committed + 40);
            let [_, made_now, looked_now] = settled(ask);
            (made_now, looked_now <= looked + 1) == (made, true)
        });
        let d = format!("d{attempt}");
        let other = Mounted::new(c, "other", &[]);
        for i in 0..40 {
            assert_eq!(fs::read_to_string(other.at(&format!("{d}/{i}"))).unwrap(), format!("content {i}"));
        }
    });
}

/// The mount gets a delegation of an old, shared directory after it has made some files there.
#[test]
fn so_does_one_in_a_directory_that_was_there() {
    with_directory(|c, m| {
        let other = Mounted::new(c, "other", &[]);
        let ask = || ["Commit", "MakeNode"].map(|kind| requests(c, kind));
        let mut attempt = 0;
        eventually("files cost a trip each, but for some", || {
            attempt += 1;
            let name = format!("there{attempt}");
            fs::create_dir(other.at(&name)).unwrap();
            fs::write(other.at(&name).join("7"), "older").unwrap();
            let [committed, made] = settled(ask);
            let make = |i: usize| exclusive(&m.at(&name).join(i.to_string()))?.write_all(b"new");
            for i in 0..100 {
                assert_eq!(make(i).is_ok(), i != 7, "{i}");
            }
            eventually("it is counted", || ask()[0] >= committed + 99);
            assert_eq!(fs::read_dir(other.at(&name)).unwrap().count(), 100);
            assert_eq!(fs::read(other.at(&name).join("7")).unwrap(), b"older");
            settled(ask)[1] < made + 20
        });
    });
}

/// Operations that a program may do on a file that it has just created.
#[test]
fn a_new_file_is_a_file() {
    with_directory(|c, m| {
        let other = Mounted::new(c, "other", &[]);
        let there = |name: &str| fs::metadata(other.at(name));
        // Number and times stay the same.
        let mut file = File::create(m.at("d/number")).unwrap();
        let before = file.metadata().unwrap();
        file.write_all(b"x").unwrap();
        drop(file);
        let after = fs::metadata(m.at("d/number")).unwrap();
        assert_eq!((before.ino(), before.uid(), before.mode()), (after.ino(), after.uid(), after.mode()));
        assert_eq!(there("d/number").unwrap().ino(), before.ino());
        // A file that is never written.
        drop(File::create(m.at("d/empty")).unwrap());
        assert_eq!(there("d/empty").unwrap().len(), 0);
        // A file that is changed before it is closed.
        let mut file = File::create(m.at("d/modes")).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::fchown(&file, Some(7), Some(8)).unwrap();
        file.write_all(b"secret").unwrap();
        drop(file);
        let seen = there("d/modes").unwrap();
        assert_eq!((seen.mode() & 0o7777, seen.uid(), seen.gid(), seen.len()), (0o600, 7, 8, 6));
        // A file that another program on the same mount sees, lists and opens.
        let file = File::create(m.at("d/seen")).unwrap();
        assert_eq!(fs::metadata(m.at("d/seen")).unwrap().len(), 0);
        file.write_all_at(b"abc", 0).unwrap();
        assert_eq!(fs::read(m.at("d/seen")).unwrap(), b"abc");
        assert!(fs::read_dir(m.at("d")).unwrap().any(|entry| entry.unwrap().file_name() == "seen"));
        drop(file);
        // A file that is renamed, linked, given an attribute or unlinked during its first open.
        let open = |name: &str| {
            let mut file = File::options().read(true).write(true).create_new(true).open(m.at(name)).unwrap();
            file.write_all(name.as_bytes()).unwrap();
            file
        };
        let file = open("d/from");
        fs::rename(m.at("d/from"), m.at("d/to")).unwrap();
        drop(file);
        assert_eq!(fs::read(other.at("d/to")).unwrap(), b"d/from");
        assert!(!m.at("d/from").exists() && !other.at("d/from").exists());
        let file = open("d/one");
        fs::hard_link(m.at("d/one"), m.at("d/two")).unwrap();
        drop(file);
        assert_eq!(fs::read(other.at("d/two")).unwrap(), b"d/one");
        let file = open("d/hint");
        rustix::fs::fsetxattr(&file, "user.tessera.redundancy", b"replica:2", XattrFlags::empty()).unwrap();
        drop(file);
        let mut value = [0; 16];
        let len = rustix::fs::getxattr(other.at("d/hint"), "user.tessera.redundancy", &mut value).unwrap();
        assert_eq!(&value[..len], b"replica:2");
        let file = open("d/gone");
        fs::remove_file(m.at("d/gone")).unwrap();
        let mut read = vec![0; 6];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(read, b"d/gone");
        drop(file);
        assert!(!m.at("d/gone").exists() && there("d/gone").is_err());
        // A directory with such a file is not empty.
        fs::create_dir(m.at("d/sub")).unwrap();
        let file = open("d/sub/f");
        let refused = fs::remove_dir(m.at("d/sub")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::NOTEMPTY.raw_os_error()));
        drop(file);
        // A file larger than one commit holds.
        let big = common::tree::bytes(5, 9 << 20);
        fs::write(m.at("d/big"), &big).unwrap();
        assert!(fs::read(other.at("d/big")).unwrap() == big);
        // A name that is too long.
        let long = "n".repeat(256);
        for refused in [exclusive(&m.at(&format!("d/{long}"))).err(), fs::metadata(m.at(&format!("d/{long}"))).err()] {
            assert_eq!(refused.unwrap().raw_os_error(), Some(rustix::io::Errno::NAMETOOLONG.raw_os_error()));
        }
        // A name that was free until now.
        assert!(!m.at("d/again").exists());
        drop(open("d/again"));
        assert_eq!(exclusive(&m.at("d/again")).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    });
}

#[test]
fn others_see_it_at_close_or_when_they_need_to() {
    with_directory(|c, m| {
        let other = Mounted::new(c, "other", &[]);
        let file = exclusive(&m.at("d/lock")).unwrap();
        // Another client that wants the same name gets an error, although the file was never closed.
        assert_eq!(exclusive(&other.at("d/lock")).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
        let mut first = File::create(m.at("d/late")).unwrap();
        first.write_all(b"late").unwrap();
        eventually("a file that stays open is there after a while", || other.at("d/late").exists());
        first.sync_all().unwrap();
        assert_eq!(fs::read(other.at("d/late")).unwrap(), b"late", "what was synced");
        drop((file, first));
    });
}

/// Two mounts create the same names exclusively: exactly one mount creates each name, and the file has its content. In a new directory with
/// a delegation and in an old one; with one thread each and with several.
#[test]
fn of_two_that_make_a_name_one_succeeds() {
    const EACH: usize = 60;
    with_directory(|c, m| {
        let other = Mounted::new(c, "other", &[]);
        for (threads, prefix) in [(1, "d/both-"), (1, "both-"), (4, "many-")] {
            let make = |mount: &Mounted, thread: usize| {
                let name = |i: usize| mount.at(&format!("{prefix}{}", thread * EACH + i));
                let make =
                    |i| exclusive(&name(i)).and_then(|mut file| file.write_all(mount.path.as_os_str().as_bytes()));
                (0..EACH).map(|i| make(i).is_ok()).collect::<Vec<bool>>()
            };
            let by = |mount: &Mounted| {
                std::thread::scope(|s| {
                    let all: Vec<_> = (0..threads).map(|thread| s.spawn(move || make(mount, thread))).collect();
                    all.into_iter().flat_map(|one| one.join().unwrap()).collect::<Vec<bool>>()
                })
            };
            let (a, b) = std::thread::scope(|s| {
                let a = s.spawn(|| by(m));
                let b = by(&other);
                (a.join().unwrap(), b)
            });
            for (i, (a, b)) in a.into_iter().zip(b).enumerate() {
                assert!(a != b, "{prefix}{i}: {a} {b}");
                let winner = if a { m } else { &other };
                let content = c.ok(&["cat", &format!("tess:/{prefix}{i}")]).stdout;
                assert_eq!(content, winner.path.as_os_str().as_bytes(), "{prefix}{i}");
            }
        }
    });
}

/// P1: synced data is there after the client is killed. An unsynced file is missing or empty.
#[test]
fn a_client_that_is_killed_leaves_no_half_files() {
    with_directory(|c, m| {
        let mut victim = Mounted::new(c, "victim", &[]);
        fs::create_dir(victim.at("v")).unwrap();
        let mut synced = File::create(victim.at("v/synced")).unwrap();
        synced.write_all(b"synced").unwrap();
        synced.sync_all().unwrap();
        let mut open = File::create(victim.at("v/open")).unwrap();
        open.write_all(b"never synced").unwrap();
        victim.daemon.kill();
        drop((synced, open));
        assert_eq!(fs::read(m.at("v/synced")).unwrap(), b"synced");
        assert_eq!(fs::read(m.at("v/open")).map_or(0, |bytes| bytes.len()), 0);
        // The names of the killed client are free once its lease has ended.
        fs::write(m.at("v/new"), b"new").unwrap();
        assert_eq!(c.ok(&["cat", "tess:/v/new"]).stdout, b"new");
    });
}

/// A client is cut off for longer than its lease: another client has taken the name, and the program gets an error.
#[test]
fn who_was_away_too_long_does_not_take_a_name_back() {
    with_directory(|c, m| {
        let away = Mounted::new(c, "away", &[]);
        fs::create_dir(away.at("w")).unwrap();
        assert!(m.at("w").exists());
        let pid = Pid::from_child(&away.daemon.child);
        let mut file = exclusive(&away.at("w/f")).unwrap();
        file.write_all(b"mine").unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        let theirs = exclusive(&m.at("w/f")).and_then(|mut file| file.write_all(b"theirs"));
        kill_process(pid, Signal::CONT).unwrap();
        let synced = file.sync_all();
        match theirs {
            Ok(()) => {
                let errno = synced.unwrap_err().raw_os_error();
                assert_eq!(errno, Some(rustix::io::Errno::STALE.raw_os_error()));
                assert_eq!(c.ok(&["cat", "tess:/w/f"]).stdout, b"theirs");
            }
            // The create was committed in time, just before the client was stopped.
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
                synced.unwrap();
                assert_eq!(c.ok(&["cat", "tess:/w/f"]).stdout, b"mine");
            }
        }
        drop(file);
        let mut after = String::new();
        File::open(away.at("w/f")).unwrap().read_to_string(&mut after).unwrap();
        assert_eq!(after.as_bytes(), c.ok(&["cat", "tess:/w/f"]).stdout, "its own mount sees what there is");
        assert!(statat(CWD, away.at("w/f"), AtFlags::empty()).is_ok());
    });
}
