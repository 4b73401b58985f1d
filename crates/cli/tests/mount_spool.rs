//! Write modes on a mount (docs/mount.md): data in the spool that `close` acknowledged survives a kill of the mount, data that was not
//! closed does not, and fsync needs no spool. Skipped, with a message, where there is no FUSE.

mod common;

use common::Daemon;
use common::mounted::{Mounted, logs, mount_args, mountable, signal_nodes, spool};
use common::tree::bytes as data;
use rustix::process::Signal;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};

const PAGE: usize = 4096;

#[test]
fn what_was_closed_survives_the_mount_and_what_was_not_does_not() {
    let Some(c) = mountable() else { return };
    let m = Mounted::local(&c, "mnt", &[]);
    fs::write(m.at("d/old"), b"the old version").unwrap();
    fs::write(m.at("d/patched"), data(9, 3 << 20)).unwrap();
    m.pushed();
    let synced = File::create(m.at("d/synced")).unwrap();
    (&synced).write_all(&data(1, 2 << 20)).unwrap();
    synced.sync_all().unwrap();
    assert!(c.ok(&["cat", "tess:/d/synced"]).stdout == data(1, 2 << 20), "fsync is the cluster's");

    signal_nodes(&c, Signal::STOP);
    let big = data(2, 5_000_001);
    fs::write(m.at("d/big"), &big).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    File::options().write(true).open(m.at("d/big")).unwrap().set_modified(time).unwrap();
    let patched = File::options().write(true).open(m.at("d/patched")).unwrap();
    // A whole page, so that the kernel need not read the old one.
    patched.write_all_at(&data(10, PAGE), 300 * PAGE as u64).unwrap();
    patched.set_len(2 << 20).unwrap();
    drop(patched);
    fs::write(m.at("d/moved"), b"moved").unwrap();
    fs::rename(m.at("d/moved"), m.at("d/elsewhere")).unwrap();
    fs::write(m.at("d/removed"), data(3, 100_000)).unwrap();
    fs::remove_file(m.at("d/removed")).unwrap();
    // This mount sees the data at once, although the store has nothing of it.
    assert!(fs::read(m.at("d/big")).unwrap() == big);
    let closed = fs::metadata(m.at("d/big")).unwrap();
    assert_eq!(closed.modified().unwrap(), time);
    assert_eq!(m.attribute("d/big", "user.tessera.state")["written"]["achieved_mib_per_s"], Value::Null);
    let mut open = File::create(m.at("d/old")).unwrap();
    open.write_all(b"never closed").unwrap();
    let mut later = File::options().write(true).open(m.at("d/big")).unwrap();
    later.write_all(b"not closed a second time").unwrap();
    m.kill();
    drop((open, later, synced));
    signal_nodes(&c, Signal::CONT);
    assert!(c.ok(&["cat", "tess:/d/big"]).stdout.is_empty(), "it was not pushed");

    let m = Mounted::spooled(&c, "again");
    assert!(fs::read(m.at("d/big")).unwrap() == big, "seen before it is pushed");
    m.pushed();
    let mut wanted = data(9, 2 << 20);
    wanted[300 * PAGE..301 * PAGE].copy_from_slice(&data(10, PAGE));
    for (name, bytes) in [("big", &big[..]), ("patched", &wanted), ("elsewhere", b"moved"), ("old", b"the old version")]
    {
        assert!(c.ok(&["cat", &format!("tess:/d/{name}")]).stdout == bytes, "{name}");
    }
    let pushed = fs::metadata(m.at("d/big")).unwrap();
    assert_eq!(pushed.mtime_nsec(), 123_456_789);
    assert_eq!((pushed.ctime(), pushed.ctime_nsec()), (closed.ctime(), closed.ctime_nsec()));
    assert!(!m.at("d/removed").exists());
    assert!(m.said("not closed when the mount ended"));
    assert_eq!((logs(&c, "spool").len(), m.counts()["used_bytes"].as_u64()), (0, Some(0)));
}

#[test]
fn a_file_in_the_spool_is_an_ordinary_file() {
    let Some(c) = mountable() else { return };
    let mut m = Mounted::local(&c, "mnt", &[]);
    let mut wanted = data(4, 3 << 20);
    fs::write(m.at("d/f"), &wanted).unwrap();
    for i in 0..40u64 {
        let file = File::options().read(true).write(true).open(m.at("d/f")).unwrap();
        let piece = data(50 + i, 1 + (i as usize * 7919) % 60_000);
        let at = (i * 2_654_435_761) % (4 << 20);
        file.write_all_at(&piece, at).unwrap();
        let end = at as usize + piece.len();
        wanted.resize(wanted.len().max(end), 0);
        wanted[at as usize..end].copy_from_slice(&piece);
        if i % 7 == 3 {
            let len = (i * 99_991) % (5 << 20);
            file.set_len(len).unwrap();
            wanted.resize(len as usize, 0);
        }
        if i % 9 == 5 {
            file.sync_all().unwrap();
            assert!(c.ok(&["cat", "tess:/d/f"]).stdout == wanted, "fsync, {i}");
        }
        drop(file);
        assert!(fs::read(m.at("d/f")).unwrap() == wanted, "round {i}");
    }
    fs::write(m.at("d/g"), b"short").unwrap();
    File::options().append(true).open(m.at("d/g")).unwrap().write_all(b" and more").unwrap();
    assert_eq!(fs::read(m.at("d/g")).unwrap(), b"short and more");
    m.pushed();
    assert!(c.ok(&["cat", "tess:/d/f"]).stdout == wanted);
    let written = m.attribute("d/f", "user.tessera.state")["written"].clone();
    assert_eq!(written["write_mode"], "complete-local");
    let speed = |name: &str| written[name].as_f64().unwrap();
    assert!(
        speed("achieved_mib_per_s") <= speed("observed_mib_per_s") && speed("achieved_mib_per_s") > 0.0,
        "{written}"
    );
    // A stop of the mount first pushes what was closed.
    fs::write(m.at("d/last"), data(7, 1 << 20)).unwrap();
    assert!(m.daemon.stop().success());
    assert!(c.ok(&["cat", "tess:/d/last"]).stdout == data(7, 1 << 20));
    assert!(logs(&c, "spool").is_empty());
}

/// Data that does not fit bypasses the spool and is counted.
#[test]
fn a_full_spool_is_done_without() {
    let Some(c) = mountable() else { return };
    let m = Mounted::local(&c, "mnt", &["--spool-size", "1M", "--metrics", "127.0.0.1:0"]);
    fs::write(m.at("d/large"), data(5, 6 << 20)).unwrap();
    assert!(c.ok(&["cat", "tess:/d/large"]).stdout == data(5, 6 << 20), "stored when it was closed");
    fs::write(m.at("d/small"), data(6, 300_000)).unwrap();
    m.pushed();
    // A file that is closed once and then grows beyond the spool.
    let file = File::create(m.at("d/grows")).unwrap();
    file.write_all_at(&data(7, 500_000), 0).unwrap();
    drop(file.try_clone().unwrap());
    file.write_all_at(&data(8, 2 << 20), 500_000).unwrap();
    file.write_all_at(b"back", 7).unwrap();
    drop(file);
    let mut wanted = [data(7, 500_000), data(8, 2 << 20)].concat();
    wanted[7..11].copy_from_slice(b"back");
    assert!(fs::read(m.at("d/grows")).unwrap() == wanted);
    m.pushed();
    assert!(c.ok(&["cat", "tess:/d/grows"]).stdout == wanted);
    let counts = m.counts();
    assert!(counts["fallbacks"].as_u64() >= Some(2) && m.said("the spool is full"), "{counts}");
    assert_eq!(counts["used_bytes"], 0);
    // The same numbers, and the kernel's requests, in the metrics.
    c.ok(&["put", "--quiet", c.log("mnt").to_str().unwrap(), "tess:/unread"]);
    let unread = fs::read(m.at("unread")).unwrap().len() as u64;
    let figures = common::http(m.daemon.metrics.as_ref().unwrap(), "/metrics");
    let figure = |name: &str| {
        let line = figures.lines().find(|line| line.split(' ').next() == Some(&format!("tessera_mount_{name}")));
        line.unwrap_or_else(|| panic!("{name} is not in:\n{figures}"))
            .split(' ')
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    assert_eq!(Some(figure("spool_fallbacks_total")), counts["fallbacks"].as_u64());
    assert_eq!((figure("spool_limit_bytes"), figure("spool_waiting_files")), (1 << 20, 0));
    let written = (6 << 20) + 300_000 + 500_000 + (2 << 20);
    assert!(
        figure("written_bytes_total") >= written && figure("read_bytes_total") >= unread && unread > 0,
        "{figures}"
    );
    let each =
        ["create", "write", "read", "close", "lookup"].map(|op| figure(&format!("requests_total{{op=\"{op}\"}}")));
    assert!(each.iter().all(|count| *count > 0) && figure("names_known_total") > 0, "{figures}");
}

/// P1: a truncated tail does not come back, wherever the spool fills up between the truncation and the next close: in a write beyond the
/// end, in another truncation, or not at all.
#[test]
fn what_was_cut_off_stays_off_where_the_spool_is_full() {
    let Some(c) = mountable() else { return };
    let m = Mounted::local(&c, "mnt", &["--spool-size", "1M"]);
    const BELOW: usize = 4 << 20;
    const CUT: usize = 1 << 20;
    for (name, acknowledged) in [("plain", false), ("acknowledged", true)] {
        let (path, mut wanted) = (m.at(&format!("d/{name}")), data(1, BELOW));
        let stored = |wanted: &[u8]| c.ok(&["cat", &format!("tess:/d/{name}")]).stdout == wanted;
        fs::write(&path, &wanted).unwrap();
        m.pushed();
        assert!(stored(&wanted));
        let fallbacks = || m.counts()["fallbacks"].as_u64().unwrap();
        let before = fallbacks();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(CUT as u64).unwrap();
        wanted.truncate(CUT);
        if acknowledged {
            // Acknowledge by a close: the log is now a promise, and is not pushed while the file is open.
            drop(File::options().write(true).open(&path).unwrap());
        }
        let (first, second) = (data(2, 600 << 10), data(3, 700 << 10));
        file.write_all_at(&first, 0).unwrap();
        wanted[..first.len()].copy_from_slice(&first);
        assert_eq!(fallbacks(), before, "there was room until now");
        file.write_all_at(&second, 3 << 20).unwrap();
        assert_eq!(fallbacks(), before + 1);
        wanted.resize(3 << 20, 0);
        wanted.extend_from_slice(&second);
        drop(file);
        assert!(fs::read(&path).unwrap() == wanted, "{name}: on this mount");
        m.pushed();
        assert!(stored(&wanted), "{name}");
        // Truncate again while the data bypasses the spool, with no write after it.
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(700 << 10).unwrap();
        file.write_all_at(&data(4, 600 << 10), 0).unwrap();
        file.write_all_at(&data(5, 600 << 10), 0).unwrap();
        wanted.truncate(700 << 10);
        wanted[..600 << 10].copy_from_slice(&data(5, 600 << 10));
        file.set_len(800 << 10).unwrap();
        wanted.resize(800 << 10, 0);
        drop(file);
        m.pushed();
        assert!(stored(&wanted), "{name}: cut");
    }
}

/// Incremental files pass through the spool while they are written. Whether `close` waits for the store depends on the policy.
#[test]
fn incremental_files_go_through_the_spool() {
    let Some(c) = mountable() else { return };
    let dir = spool(&c).display().to_string();
    let mut m = Mounted::new(&c, "mnt", &["--spool", &dir, "--spool-size", "8M"]);
    fs::create_dir(m.at("d")).unwrap();
    m.mode("d", "incremental");
    let mut bytes = data(1, 21 << 20);
    fs::write(m.at("d/f"), &bytes).unwrap();
    assert!(c.ok(&["cat", "tess:/d/f"]).stdout == bytes, "pessimistic: stored when it was closed");
    assert!(m.counts()["segments"].as_u64() >= Some(8), "of 2 MiB each: {}", m.counts());
    let file = File::options().read(true).write(true).open(m.at("d/f")).unwrap();
    file.write_all_at(&data(2, 9 << 20), 5 << 20).unwrap();
    bytes[5 << 20..14 << 20].copy_from_slice(&data(2, 9 << 20));
    let mut seen = vec![0; 1 << 20];
    file.read_exact_at(&mut seen, 6 << 20).unwrap();
    assert!(seen == bytes[6 << 20..7 << 20]);
    file.set_len(20 << 20).unwrap();
    bytes.truncate(20 << 20);
    file.sync_all().unwrap();
    assert!(c.ok(&["cat", "tess:/d/f"]).stdout == bytes);
    drop(file);
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(m.at("d"), "user.tessera.durability", b"optimistic", none).unwrap();
    fs::write(m.at("d/g"), &bytes).unwrap();
    assert_eq!(fs::metadata(m.at("d/g")).unwrap().len(), 20 << 20);
    assert!(fs::read(m.at("d/g")).unwrap() == bytes);
    m.pushed();
    assert!(c.ok(&["cat", "tess:/d/g"]).stdout == bytes);
    let written = m.attribute("d/g", "user.tessera.state")["written"].clone();
    assert_eq!((written["write_mode"].as_str(), m.counts()["used_bytes"].as_u64()), (Some("incremental"), Some(0)));
    fs::write(m.at("d/last"), &bytes).unwrap();
    assert!(m.daemon.stop().success());
    assert!(c.ok(&["cat", "tess:/d/last"]).stdout == bytes);
}

/// A file that is not a valid log is set aside, and none of it is pushed (P14).
#[test]
fn malformed_logs_are_set_aside() {
    let Some(c) = mountable() else { return };
    let m = Mounted::local(&c, "mnt", &[]);
    signal_nodes(&c, Signal::STOP);
    for name in ["rotten", "whole"] {
        fs::write(m.at(&format!("d/{name}")), data(1, 200_000)).unwrap();
    }
    let rotten = fs::metadata(m.at("d/rotten")).unwrap().ino();
    m.kill();
    signal_nodes(&c, Signal::CONT);
    let victim = logs(&c, "spool")
        .into_iter()
        .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{rotten:016x}")));
    let victim = victim.unwrap();
    let mut bytes = fs::read(&victim).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&victim, bytes).unwrap();
    fs::write(spool(&c).join("junk.spool"), b"junk").unwrap();
    // The mount was killed between the creation of the log and the first write to it.
    fs::write(spool(&c).join("empty.spool"), b"").unwrap();
    fs::write(spool(&c).join("other"), b"none of ours").unwrap();
    let m = Mounted::spooled(&c, "again");
    m.pushed();
    assert!(c.ok(&["cat", "tess:/d/whole"]).stdout == data(1, 200_000));
    assert!(c.ok(&["cat", "tess:/d/rotten"]).stdout.is_empty(), "as before");
    assert_eq!((logs(&c, "damaged").len(), m.counts()["set_aside"].as_u64()), (2, Some(2)));
    assert!(spool(&c).join("other").exists() && logs(&c, "spool").is_empty());
    // A spool serves one mount only.
    let dir = spool(&c).display().to_string();
    fs::create_dir(c.path().join("third")).unwrap();
    let refused = Daemon::try_start(&mount_args(&c, "third", &["--spool", &dir]), &c.log("third"));
    let refused = refused.err().unwrap();
    assert!(refused.code == 8 && refused.stderr.contains("another mount"), "{refused:?}");
}
