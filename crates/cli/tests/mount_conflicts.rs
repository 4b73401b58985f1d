//! Files that wait in a mount's spool while another client changes, rewrites or removes them (docs/mount.md, "Write modes"). Skipped, with
//! a message, where there is no FUSE.

mod common;

use common::mounted::{Mounted, logs, mountable, signal_nodes};
use common::tree::bytes as data;
use common::{Cluster, eventually};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

const PAGE: usize = 4096;

/// A mount, and a stored file whose changes go through its spool: `d/f`, with the content `data(1, 400_000)`.
fn scene(c: &Cluster) -> Mounted {
    let m = Mounted::local(c, "mnt", &[]);
    fs::write(m.at("d/f"), data(1, 400_000)).unwrap();
    m.pushed();
    m
}

/// Stores a file as another client.
fn put(c: &Cluster, name: &str, content: &[u8]) {
    let file = c.path().join("theirs");
    fs::write(&file, content).unwrap();
    c.ok(&["put", "--quiet", file.to_str().unwrap(), &format!("tess:/{name}")]);
}

/// Names of conflict files in a directory of the store.
fn names(c: &Cluster, directory: &str) -> Vec<String> {
    let listed = c.ok(&["ls", "--json", &format!("tess:/{directory}")]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    listed.split('"').filter(|word| word.contains("tessera-conflict")).map(str::to_string).collect()
}

/// Acknowledges the writes to a file by closing another of its descriptors. Nothing is pushed while the file is open for writing.
fn acknowledge(file: &File) {
    drop(file.try_clone().unwrap());
}

/// Programs on two mounts that write different parts of a file that was empty when they opened it both find their bytes
/// in it, whether a part is committed in one request or streamed.
#[test]
fn two_who_write_parts_of_a_new_file_are_both_kept() {
    let Some(c) = mountable() else { return };
    let (a, b) = (Mounted::new(&c, "a", &[]), Mounted::new(&c, "b", &[]));
    for (name, len) in [("small", PAGE), ("large", 9 << 20)] {
        File::create(a.at(name)).unwrap();
        let open = |m: &Mounted| File::options().read(true).write(true).open(m.at(name)).unwrap();
        let (first, second) = (open(&a), open(&b));
        second.write_all_at(&data(2, len), len as u64).unwrap();
        first.write_all_at(&data(1, len), 0).unwrap();
        drop(second);
        drop(first);
        let whole = c.ok(&["cat", &format!("tess:/{name}")]).stdout;
        assert_eq!(whole.len(), 2 * len, "{name}");
        assert!(whole[..len] == data(1, len) && whole[len..] == data(2, len), "{name}");
        assert!(fs::read(a.at(name)).unwrap() == whole && fs::read(b.at(name)).unwrap() == whole, "{name}");
    }
}

/// A program sets the length of a file that another mount has made longer since it was opened.
#[test]
fn a_length_that_is_set_holds_over_what_another_mount_wrote() {
    let Some(c) = mountable() else { return };
    let b = Mounted::new(&c, "b", &[]);
    for options in CACHES {
        let a = Mounted::new(&c, "a", options);
        set_lengths(&c, &a, &b);
    }
}

/// With the kernel's write-back cache, and without.
const CACHES: [&[&str]; 2] = [&[], &["--write-back"]];

fn set_lengths(c: &Cluster, a: &Mounted, b: &Mounted) {
    for (name, before, len) in [("grown", 0, 10), ("same", 10, 10), ("emptied", 0, 0)] {
        fs::write(a.at(name), data(1, before)).unwrap();
        let file = File::options().write(true).open(a.at(name)).unwrap();
        fs::write(b.at(name), data(2, PAGE)).unwrap();
        file.set_len(len).unwrap();
        drop(file);
        let expected = &data(2, PAGE)[..len as usize];
        assert_eq!(c.ok(&["cat", &format!("tess:/{name}")]).stdout, expected, "{name}");
        assert_eq!(fs::read(a.at(name)).unwrap(), expected, "{name}");
    }
}

/// A program shortens a file and writes far behind its old end; what another mount commits between, while that is on its way, is cut off.
#[test]
fn what_is_cut_off_stays_off_whatever_is_committed_meanwhile() {
    let Some(c) = mountable() else { return };
    let (a, b) = (Mounted::local(&c, "a", &[]), Mounted::new(&c, "b", &[]));
    fs::write(b.at("d/f"), data(1, 100)).unwrap();
    // The store has these bytes, so that they can be committed without the nodes.
    File::create(b.at("known")).unwrap().write_all_at(&data(2, PAGE), 1 << 20).unwrap();
    let (ours, theirs) = (File::options().write(true).open(a.at("d/f")).unwrap(), b.at("d/f"));
    ours.set_len(50).unwrap();
    ours.write_all_at(&data(3, 1 << 20), 3 << 20).unwrap();
    // The manager's log is on the other three nodes. Without these three, no chunk can be written.
    let signal = |signal| {
        for node in c.nodes[3..].iter().flatten() {
            kill_process(Pid::from_child(&node.child), signal).unwrap();
        }
    };
    std::thread::scope(|scope| {
        signal(Signal::STOP);
        let synced = scope.spawn(|| ours.sync_all());
        std::thread::sleep(Duration::from_millis(300));
        let file = File::options().write(true).open(theirs).unwrap();
        file.write_all_at(&data(2, PAGE), 1 << 20).unwrap();
        file.sync_all().unwrap();
        assert!(!synced.is_finished(), "the nodes are stopped");
        signal(Signal::CONT);
        synced.join().unwrap().unwrap();
    });
    let whole = c.ok(&["cat", "tess:/d/f"]).stdout;
    assert!(whole.len() == 4 << 20 && whole[3 << 20..] == data(3, 1 << 20));
    let gap = &whole[50..3 << 20];
    assert!(whole[..50] == data(1, 100)[..50], "what was kept");
    assert!(gap.iter().all(|byte| *byte == 0), "{:?}", gap.iter().position(|byte| *byte != 0));
}

/// A push does not overwrite a commit of another mount: the waiting data becomes a conflict file.
#[test]
fn two_who_changed_one_file_are_both_kept() {
    let Some(c) = mountable() else { return };
    let m = scene(&c);
    signal_nodes(&c, Signal::STOP);
    let file = File::options().write(true).open(m.at("d/f")).unwrap();
    file.write_all_at(&data(3, PAGE), PAGE as u64).unwrap();
    drop(file);
    m.kill();
    signal_nodes(&c, Signal::CONT);
    put(&c, "d/f", &data(2, 300_000));
    let m = Mounted::spooled(&c, "again");
    assert!(fs::read(m.at("d/f")).unwrap() == data(2, 300_000));
    m.pushed();
    let ours = fs::read(m.at("d/f.tessera-conflict-1")).unwrap();
    assert!(ours[PAGE..2 * PAGE] == data(3, PAGE));
    assert_eq!(m.counts()["conflicts"], 1);
    let below = &ours[..PAGE];
    assert!(below == data(1, PAGE) || below == data(2, PAGE), "over what it was written over, or what is there now");
    assert!(fs::read(m.at("d/f")).unwrap() == data(2, 300_000));
}

/// An fsync that commits acknowledged data at once does not overwrite another client's commit either. A new open of the file sees that
/// commit.
#[test]
fn fsync_of_what_waited_does_not_overwrite_what_others_committed() {
    let Some(c) = mountable() else { return };
    let m = scene(&c);
    for (number, more) in [(1, false), (2, true)] {
        let theirs = data(10 + number, 300_000 + number as usize);
        let file = File::options().read(true).write(true).open(m.at("d/f")).unwrap();
        file.write_all_at(&data(20 + number, PAGE), PAGE as u64).unwrap();
        acknowledge(&file);
        put(&c, "d/f", &theirs);
        if more {
            file.write_all_at(b"more", 0).unwrap();
        }
        file.sync_all().unwrap();
        let kept = c.ok(&["cat", &format!("tess:/d/f.tessera-conflict-{number}")]).stdout;
        assert!(kept[PAGE..2 * PAGE] == data(20 + number, PAGE) && kept.starts_with(b"more") == more, "{number}");
        assert!(c.ok(&["cat", "tess:/d/f"]).stdout == theirs, "{number}");
        drop(file);
        assert!(fs::read(m.at("d/f")).unwrap() == theirs, "seen by who opens it anew, {number}");
    }
    assert_eq!((m.counts()["conflicts"].as_u64(), logs(&c, "spool").len()), (Some(2), 0));
}

/// A rewrite of a file while its log waits is not a change: the log is pushed over it.
#[test]
fn a_file_that_is_rewritten_while_it_waits_has_no_conflict() {
    let Some(c) = mountable() else { return };
    let (m, mut wanted) = (scene(&c), data(1, 400_000));
    let file = File::options().read(true).write(true).open(m.at("d/f")).unwrap();
    let mut write = |at: usize, more: &[u8], acknowledged: bool| {
        file.write_all_at(more, at as u64).unwrap();
        wanted[at..at + more.len()].copy_from_slice(more);
        if acknowledged {
            acknowledge(&file);
        }
        wanted.clone()
    };
    let stored = || c.ok(&["cat", "tess:/d/f"]).stdout;
    write(PAGE, &data(2, PAGE), true);
    c.ok(&["rewrite", "--quiet", "tess:/d/f"]);
    let now = write(5 * PAGE, &data(3, PAGE), false);
    file.sync_all().unwrap();
    assert!(stored() == now, "fsync");
    // The next log begins over a version that a rewrite stored while the file was open.
    c.ok(&["rewrite", "--quiet", "tess:/d/f"]);
    write(7 * PAGE, &data(4, PAGE), true);
    c.ok(&["rewrite", "--quiet", "tess:/d/f"]);
    let now = write(9 * PAGE, &data(5, PAGE), true);
    m.kill();
    drop(file);
    c.ok(&["rewrite", "--quiet", "tess:/d/f"]);
    let m = Mounted::spooled(&c, "again");
    m.pushed();
    assert!(stored() == now, "found by the next mount");
    assert_eq!((m.counts()["conflicts"].as_u64(), m.counts()["pushed"].as_u64()), (Some(0), Some(1)));
}

/// A mount was killed between a commit and the removal of the log. The next mount recognizes the version as its own, whatever was written
/// after the last close in the log, and even after a rewrite.
#[test]
fn a_commit_that_nobody_heard_of_is_known_for_our_own() {
    let Some(c) = mountable() else { return };
    let (m, mut wanted) = (scene(&c), data(1, 400_000));
    let file = File::options().read(true).write(true).open(m.at("d/f")).unwrap();
    file.write_all_at(&data(2, 2 * PAGE), 0).unwrap();
    acknowledge(&file);
    let log = logs(&c, "spool").pop().unwrap();
    let kept = log.with_extension("kept");
    fs::hard_link(&log, &kept).unwrap();
    file.write_all_at(&data(3, PAGE), PAGE as u64).unwrap();
    file.sync_all().unwrap();
    wanted[..2 * PAGE].copy_from_slice(&data(2, 2 * PAGE));
    wanted[PAGE..2 * PAGE].copy_from_slice(&data(3, PAGE));
    m.kill();
    drop(file);
    fs::rename(kept, log).unwrap();
    c.ok(&["rewrite", "--quiet", "tess:/d/f"]);
    let m = Mounted::spooled(&c, "again");
    assert!(fs::read(m.at("d/f")).unwrap() == wanted, "what was closed before is not shown instead");
    m.pushed();
    assert!(c.ok(&["cat", "tess:/d/f"]).stdout == wanted);
    assert_eq!((m.counts()["conflicts"].as_u64(), logs(&c, "spool").len()), (Some(0), 0));
}

/// The data is kept although the directory is gone and the file has moved.
#[test]
fn a_conflict_in_a_directory_that_is_gone_is_kept_in_the_root() {
    let Some(c) = mountable() else { return };
    let m = scene(&c);
    let file = File::options().write(true).open(m.at("d/f")).unwrap();
    let ino = file.metadata().unwrap().ino();
    file.write_all_at(&data(2, PAGE), 0).unwrap();
    acknowledge(&file);
    put(&c, "d/f", &data(3, 300_000));
    c.ok(&["mv", "tess:/d/f", "tess:/g"]);
    c.ok(&["rm", "-r", "tess:/d"]);
    drop(file);
    m.pushed();
    assert!(c.ok(&["cat", "tess:/g"]).stdout == data(3, 300_000));
    let ours = c.ok(&["cat", &format!("tess:/inode-{ino}.tessera-conflict-1")]).stdout;
    assert!(ours[..PAGE] == data(2, PAGE));
    assert_eq!((m.count("conflicts"), m.count("dropped"), logs(&c, "spool").len()), (1, 0, 0));
}

/// The push is neither a conflict nor repeated for ever.
#[test]
fn a_file_that_is_removed_while_it_is_pushed_is_dropped() {
    let Some(c) = mountable() else { return };
    let m = scene(&c);
    signal_nodes(&c, Signal::STOP);
    fs::write(m.at("d/f"), data(2, 6 << 20)).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    c.ok(&["rm", "tess:/d/f"]);
    signal_nodes(&c, Signal::CONT);
    m.pushed();
    // The lease on the name may have ended before the removal: then the kernel keeps the name for as long as --cache-ms says.
    eventually("the kernel forgets the name", || !m.at("d/f").exists());
    assert!(names(&c, "d").is_empty() && names(&c, "").is_empty());
    assert_eq!((m.count("conflicts"), logs(&c, "spool").len()), (0, 0));
}

/// The spool fills up while a push of earlier data runs: this mount makes both commits.
#[test]
fn a_push_and_a_later_commit_of_the_same_file_get_along() {
    let Some(c) = mountable() else { return };
    let m = Mounted::local(&c, "mnt", &["--spool-size", "1M"]);
    fs::write(m.at("d/f"), data(9, 400_000)).unwrap();
    m.pushed();
    // The manager's log is on the other three nodes. Without these three, no chunk can be written.
    let signal = |signal| {
        for node in c.nodes[3..].iter().flatten() {
            kill_process(Pid::from_child(&node.child), signal).unwrap();
        }
    };
    for round in 0..6u64 {
        let mut wanted = data(10 + round, 500_000);
        signal(Signal::STOP);
        fs::write(m.at("d/f"), &wanted).unwrap();
        // The push has begun and waits for the nodes.
        std::thread::sleep(Duration::from_millis(100 + 60 * round));
        let file = File::options().write(true).open(m.at("d/f")).unwrap();
        let more = data(20 + round, 700_000);
        let goes_on = std::thread::scope(|scope| {
            let before = m.count("fallbacks");
            let writes = scope.spawn(|| file.write_all_at(&more, 100_000));
            eventually("the spool is full", || m.count("fallbacks") > before);
            signal(Signal::CONT);
            writes.join().unwrap()
        });
        goes_on.unwrap_or_else(|error| panic!("round {round}: {error}\n{}", fs::read_to_string(&m.log).unwrap()));
        file.sync_all().unwrap();
        drop(file);
        wanted.resize(800_000, 0);
        wanted[100_000..].copy_from_slice(&more);
        assert!(fs::read(m.at("d/f")).unwrap() == wanted, "round {round}");
        m.pushed();
        assert!(c.ok(&["cat", "tess:/d/f"]).stdout == wanted, "round {round}");
        assert!(names(&c, "d").is_empty(), "round {round}: {:?}", names(&c, "d"));
    }
    assert!(m.count("fallbacks") >= 6, "{}", m.counts());
}

/// A full spool makes the mount write through, and another mount has committed. The program gets an error, its data is kept in a conflict
/// file, and the other mount's version stays unchanged.
#[test]
fn a_full_spool_does_not_have_theirs_written_on() {
    let Some(c) = mountable() else { return };
    let m = Mounted::local(&c, "mnt", &["--spool-size", "1M"]);
    for (name, cut) in [("written", false), ("cut", true)] {
        let path = m.at(&format!("d/{name}"));
        fs::write(&path, data(1, 400_000)).unwrap();
        m.pushed();
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&data(2, 300_000), 0).unwrap();
        acknowledge(&file);
        let theirs = data(3, 500_000);
        put(&c, &format!("d/{name}"), &theirs);
        // Fill the spool; the next step exceeds it.
        let room = (1 << 20) - m.count("used_bytes") as usize - 16 * 32 - if cut { 0 } else { 100_000 };
        let mut at = 300_000;
        for piece in data(4, room).chunks(128 << 10) {
            file.write_all_at(piece, at).unwrap();
            at += piece.len() as u64;
        }
        let refused = match cut {
            false => file.write_all_at(&data(5, 200_000), at).err(),
            true => (1..40).find_map(|step| file.set_len(200_000 + step).err()),
        };
        // The log may have been pushed, and kept beside the file, before the step that the spool has no room for: then this step changes the
        // other mount's version.
        let estale = rustix::io::Errno::STALE.raw_os_error();
        let code = refused.and_then(|error| error.raw_os_error());
        assert!(code.is_none_or(|code| code == estale), "{name}: {code:?}, {}", m.counts());
        drop(file);
        m.pushed();
        let stored = c.ok(&["cat", &format!("tess:/d/{name}")]).stdout;
        match code {
            Some(_) => assert!(stored == theirs, "{name}"),
            None if cut => {
                // The first step after the push cut it, the others made it longer again.
                let end = stored.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                assert!((200_000..200_040).contains(&stored.len()) && theirs.starts_with(&stored[..end]), "{name}");
                assert!(end > 199_000, "{name}: {end} bytes of it are left");
            }
            None => assert!(stored.starts_with(&theirs), "{name}"),
        }
        let ours = c.ok(&["cat", &format!("tess:/d/{name}.tessera-conflict-1")]).stdout;
        assert!(ours[..200_000] == data(2, 300_000)[..200_000], "{name}");
        assert!(fs::read(&path).unwrap() == stored, "{name}: seen by who opens it anew");
    }
}

/// A push that fails when the mount ends leaves the data in the spool, and the caller gets an error.
#[test]
fn what_cannot_be_pushed_at_the_end_is_said_or_left_for_the_next_mount() {
    let Some(mut c) = mountable() else { return };
    let mut m = Mounted::local(&c, "mnt", &[]);
    let file = File::create(m.at("d/rotten")).unwrap();
    file.write_all_at(&data(1, 400_000), 0).unwrap();
    acknowledge(&file);
    let victim = logs(&c, "spool").pop().unwrap();
    let mut bytes = fs::read(&victim).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&victim, bytes).unwrap();
    drop(file);
    fs::write(m.at("d/kept"), data(1, 400_000)).unwrap();
    // One file is pushed, the other cannot be read.
    assert_eq!(m.daemon.stop().code(), Some(1));
    assert!(c.ok(&["cat", "tess:/d/kept"]).stdout == data(1, 400_000));
    assert_eq!((logs(&c, "spool").len(), logs(&c, "damaged").len()), (0, 1));
    drop(m);
    // Nothing can take the push, and the daemon is killed while it ends. A process that waited for itself through the kernel could
    // not be killed.
    let mut m = Mounted::spooled(&c, "again");
    fs::write(m.at("d/late"), data(2, 400_000)).unwrap();
    m.pushed();
    signal_nodes(&c, Signal::STOP);
    fs::write(m.at("d/kept"), data(3, 400_000)).unwrap();
    let open = File::create(m.at("d/late")).unwrap();
    open.write_all_at(b"not closed", 0).unwrap();
    c.kill_manager();
    (1..=6).for_each(|node| c.kill_node(node));
    let pid = Pid::from_child(&m.daemon.child);
    kill_process(pid, Signal::TERM).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    m.daemon.child.kill().unwrap();
    assert!(!m.daemon.wait().success());
    drop((m, open));
    c.start_all();
    let m = Mounted::spooled(&c, "at last");
    m.pushed();
    assert!(c.ok(&["cat", "tess:/d/kept"]).stdout == data(3, 400_000));
    // The unmount may have reached what was not closed before it was killed: one content or the other, no mixture.
    let late = c.ok(&["cat", "tess:/d/late"]).stdout;
    let whole = late == data(2, 400_000) || late == b"not closed";
    assert!(whole, "{} bytes, which begin with {:?}", late.len(), &late[..late.len().min(20)]);
    assert_eq!(m.count("conflicts"), 0);
}
