//! The mount as programs see it: a plain directory (docs/mount.md). Skipped, with a message, where there is no FUSE.

mod common;

use common::mounted::{Mounted, can_mount};
use common::{Cluster, Special, eventually, http};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

fn with_mount(test: impl FnOnce(&Cluster, &Mounted)) {
    let c = Cluster::start(6);
    if can_mount(&c) {
        let m = Mounted::new(&c, "mnt", &[]);
        test(&c, &m);
    }
}

/// Bytes that look like data, different for each seed.
fn data(seed: u64, len: usize) -> Vec<u8> {
    common::tree::bytes(seed, len)
}

#[test]
fn what_is_written_here_is_read_there_and_the_other_way_round() {
    with_mount(|c, m| {
        let big = data(1, 21 << 20);
        fs::write(m.at("big"), &big).unwrap();
        assert!(fs::read(m.at("big")).unwrap() == big);
        assert!(c.ok(&["cat", "tess:/big"]).stdout == big);
        let small = c.path().join("small");
        fs::write(&small, b"put").unwrap();
        c.ok(&["put", "--quiet", small.to_str().unwrap(), "tess:/small"]);
        assert_eq!(fs::read(m.at("small")).unwrap(), b"put");
        fs::write(m.at("empty"), b"").unwrap();
        assert_eq!(c.ok(&["stat", "--json", "tess:/empty"]).json()["size_bytes"], 0);
    });
}

#[test]
fn any_bytes_of_a_file_can_be_changed() {
    with_mount(|_, m| {
        let mut wanted = data(2, 9 << 20);
        fs::write(m.at("f"), &wanted).unwrap();
        let file = File::options().read(true).write(true).open(m.at("f")).unwrap();
        for i in 0..120u64 {
            let piece = data(100 + i, 1 + (i as usize * 7919) % 60_000);
            let at = (i * 2_654_435_761) % (10 << 20);
            file.write_all_at(&piece, at).unwrap();
            let end = at as usize + piece.len();
            wanted.resize(wanted.len().max(end), 0);
            wanted[at as usize..end].copy_from_slice(&piece);
            match i % 30 {
                10 => file.sync_all().unwrap(),
                29 => {
                    let len = (i * 99_991) % (11 << 20);
                    file.set_len(len).unwrap();
                    wanted.resize(len as usize, 0);
                }
                _ => {}
            }
        }
        let mut seen = Vec::new();
        (&file).read_to_end(&mut seen).unwrap();
        assert!(seen == wanted, "as written, {} and {} bytes", seen.len(), wanted.len());
        drop(file);
        assert!(fs::read(m.at("f")).unwrap() == wanted, "as committed");
        let mut append = File::options().append(true).open(m.at("f")).unwrap();
        append.write_all(b"the end").unwrap();
        drop(append);
        assert_eq!(fs::metadata(m.at("f")).unwrap().len(), wanted.len() as u64 + 7);
        fs::write(m.at("f"), b"short").unwrap();
        assert_eq!(fs::read(m.at("f")).unwrap(), b"short");
    });
}

#[test]
fn names_links_modes_and_times_are_those_of_a_file_system() {
    with_mount(|_, m| {
        fs::create_dir(m.at("d")).unwrap();
        fs::write(m.at("d/f"), b"x").unwrap();
        fs::hard_link(m.at("d/f"), m.at("h")).unwrap();
        symlink("d/f", m.at("s")).unwrap();
        assert_eq!(fs::read_link(m.at("s")).unwrap(), Path::new("d/f"));
        assert_eq!(fs::metadata(m.at("s")).unwrap().nlink(), 2);
        fs::rename(m.at("d/f"), m.at("d/g")).unwrap();
        assert_eq!(fs::read(m.at("h")).unwrap(), b"x");
        fs::set_permissions(m.at("h"), fs::Permissions::from_mode(0o640)).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
        File::options().write(true).open(m.at("h")).unwrap().set_modified(time).unwrap();
        let meta = fs::metadata(m.at("d/g")).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.modified().unwrap()), (0o640, time));
        let not_empty = fs::remove_dir(m.at("d")).unwrap_err();
        assert_eq!(not_empty.kind(), std::io::ErrorKind::DirectoryNotEmpty);
        fs::remove_file(m.at("d/g")).unwrap();
        fs::remove_dir(m.at("d")).unwrap();
        assert_eq!(fs::metadata(m.at("h")).unwrap().nlink(), 1);
        let long = fs::write(m.at(&"x".repeat(256)), b"").unwrap_err();
        assert_eq!(long.kind(), std::io::ErrorKind::InvalidFilename);
    });
}

#[test]
fn a_file_without_a_name_lives_while_it_is_open() {
    with_mount(|_, m| {
        let bytes = data(3, 6 << 20);
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(m.at("gone")).unwrap();
        file.write_all(&bytes).unwrap();
        fs::remove_file(m.at("gone")).unwrap();
        assert!(!m.at("gone").exists());
        file.sync_all().unwrap();
        file.write_all_at(b"still here", 1 << 20).unwrap();
        file.sync_all().unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut seen = Vec::new();
        file.read_to_end(&mut seen).unwrap();
        let mut wanted = bytes;
        wanted[1 << 20..(1 << 20) + 10].copy_from_slice(b"still here");
        assert!(seen == wanted);
    });
}

/// More names than the manager lists at once: every name that stays is listed exactly once while other names come and go.
#[test]
fn a_directory_of_many_names_is_listed_while_it_changes() {
    const NAMES: usize = 6_000;
    with_mount(|c, m| {
        fs::create_dir(m.at("many")).unwrap();
        let path = |i: usize| m.at(&format!("many/{i:05}"));
        let by_eight = |each: &(dyn Fn(usize) + Sync)| {
            std::thread::scope(|s| {
                (0..8).for_each(|thread| drop(s.spawn(move || (thread..NAMES).step_by(8).for_each(each))));
            });
        };
        by_eight(&|i| drop(File::create(path(i)).unwrap()));
        let other = Mounted::new(c, "other", &[]);
        for mount in [m, &other] {
            assert_eq!(fs::read_dir(mount.at("many")).unwrap().count(), NAMES);
        }
        let mut listing = fs::read_dir(other.at("many")).unwrap();
        let first = listing.next().unwrap().unwrap().file_name();
        by_eight(&|i| {
            if i % 2 == 0 {
                fs::remove_file(path(i)).unwrap()
            }
        });
        let seen: Vec<_> = listing.map(|e| e.unwrap().file_name()).chain([first]).collect();
        let once: BTreeSet<_> = seen.iter().map(|name| name.to_str().unwrap().to_string()).collect();
        assert_eq!(once.len(), seen.len(), "a name was shown twice");
        let odd: BTreeSet<_> = (1..NAMES).step_by(2).map(|i| format!("{i:05}")).collect();
        assert!(odd.is_subset(&once), "what stayed is shown");
        let left: BTreeSet<_> =
            fs::read_dir(other.at("many")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(left, odd);
    });
}

/// Close-to-open between two mounts: an open sees what the other mount closed, including the length.
/// A program maps a file, another one makes it longer, and a third one lists the directory. The entry then tells the kernel nothing but
/// the name: a length of 0 would cut off what was written through the map.
#[test]
fn a_listing_takes_nothing_from_a_file_that_is_mapped() {
    const PROGRAM: &str = "
import mmap, os, sys
path, pages = os.path.join(sys.argv[1], 'mapped'), 64
f = os.open(path, os.O_RDWR | os.O_CREAT)
os.ftruncate(f, pages * 4096)
os.fsync(f)
mapped = mmap.mmap(f, pages * 4096)
for page in range(pages):
    mapped[page * 4096] = 1 + page
    os.pwrite(f, b'end', pages * 4096 + 3 * page)
    listed = [entry.stat().st_size for entry in os.scandir(sys.argv[1]) if entry.name == 'mapped']
    assert listed == [pages * 4096 + 3 * page + 3], (page, listed)
    assert mapped[page * 4096] == 1 + page, page
    mapped.flush()
os.close(f)
content = open(path, 'rb').read()
assert [content[page * 4096] for page in range(pages)] == list(range(1, 1 + pages))
assert content[pages * 4096:] == b'end' * pages
";
    with_mount(|_, m| {
        let ran = Command::new("python3").args(["-c", PROGRAM]).arg(&m.path).output().unwrap();
        assert!(ran.status.success(), "{}: {}", ran.status, String::from_utf8_lossy(&ran.stderr));
    });
}

#[test]
fn two_mounts_see_what_the_other_has_closed() {
    with_mount(|c, a| {
        let b = Mounted::new(c, "other", &[]);
        fs::write(a.at("f"), data(4, 100_000)).unwrap();
        assert!(fs::read(b.at("f")).unwrap() == data(4, 100_000));
        fs::write(b.at("f"), data(5, 5 << 20)).unwrap();
        eventually("the other mount's file is seen", || {
            fs::metadata(a.at("f")).unwrap().len() == 5 << 20 && fs::read(a.at("f")).unwrap() == data(5, 5 << 20)
        });
        fs::write(a.at("f"), b"short again").unwrap();
        eventually("and back", || fs::read(b.at("f")).unwrap() == b"short again");
        fs::remove_file(a.at("f")).unwrap();
        eventually("it is gone there too", || !b.at("f").exists());
        let strict = Mounted::new(c, "strict", &["--strict"]);
        for i in 0..20u64 {
            fs::write(a.at("g"), data(i, 1000 + i as usize)).unwrap();
            assert!(fs::read(strict.at("g")).unwrap() == data(i, 1000 + i as usize), "at once, {i}");
        }
    });
}

/// A program may open a file again without its name, as the shell does for `>> /dev/stdout`.
#[test]
fn an_append_to_a_file_that_is_opened_by_its_descriptor_is_behind_what_another_mount_closed() {
    with_mount(|c, b| {
        let a = Mounted::new(c, "other", &[]);
        fs::write(b.at("f"), b"first ").unwrap();
        let held = File::options().append(true).open(a.at("f")).unwrap();
        File::options().append(true).open(b.at("f")).unwrap().write_all(b"second ").unwrap();
        let again = Path::new("/proc/self/fd").join(held.as_raw_fd().to_string());
        File::options().append(true).open(again).unwrap().write_all(b"third").unwrap();
        drop(held);
        assert_eq!(String::from_utf8(c.ok(&["cat", "tess:/f"]).stdout).unwrap(), "first second third");
    });
}

/// Change time and modification time, ns since 1970.
fn times(m: &Mounted, name: &str) -> (i64, i64) {
    let meta = fs::symlink_metadata(m.at(name)).unwrap();
    let ns = |seconds: i64, ns| seconds * 1_000_000_000 + ns;
    (ns(meta.ctime(), meta.ctime_nsec()), ns(meta.mtime(), meta.mtime_nsec()))
}

/// Backup programs go by the change time.
/// The next mount would wait for a lease that is left, which here is longer than the test does.
#[test]
fn an_unmount_leaves_no_lease() {
    let c = Cluster::start_special(6, Special { manager: vec!["lease_entry_ms=600000"], ..Special::default() });
    if !can_mount(&c) {
        return;
    }
    let leases = || {
        let text = http(c.manager.as_ref().unwrap().metrics.as_ref().unwrap(), "/metrics");
        let found = text.lines().find_map(|line| line.strip_prefix("tessera_manager_leases "));
        found.expect("a number of leases").trim().parse::<u64>().unwrap()
    };
    for round in 0..5 {
        let mut m = Mounted::new(&c, &format!("mnt{round}"), &[]);
        for i in 0..20 {
            let path = m.at(&format!("{round}-{i}"));
            fs::write(&path, data(i, 3_000)).unwrap();
            assert!(fs::read(&path).unwrap() == data(i, 3_000));
        }
        // Read by a mount that has not written it: its session is kept for a moment.
        for i in 0..20 * u64::from(round > 0) {
            assert!(fs::read(m.at(&format!("{}-{i}", round - 1))).unwrap() == data(i, 3_000));
        }
        eventually("the mount has leases", || leases() > 0);
        assert!(m.daemon.stop().success());
        eventually("leases end with the mount", || leases() == 0);
    }
}

#[test]
fn a_file_has_the_same_times_on_every_mount_and_after_a_remount() {
    let c = Cluster::start(6);
    // With the kernel's write-back cache, and without.
    for (number, options) in [&[][..], &["--write-back"]].iter().enumerate() {
        if can_mount(&c) {
            compare_times(&c, &format!("mnt{number}"), options);
        }
    }
}

fn compare_times(c: &Cluster, mounted_at: &str, options: &[&str]) {
    let m = Mounted::new(c, mounted_at, options);
    let _ = fs::remove_dir_all(m.at("d"));
    fs::create_dir(m.at("d")).unwrap();
    let made =
        ["small", "d/big", "d/empty", "mode", "set", "cut", "linked", "old", "appended", "attribute", "same", "grown"];
    for name in made {
        fs::write(m.at(name), data(1, if name == "d/big" { 9 << 20 } else { 3_000 })).unwrap();
    }
    fs::write(m.at("d/empty"), b"").unwrap();
    fs::set_permissions(m.at("mode"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut set = File::options().append(true).open(m.at("set")).unwrap();
    set.write_all(b"and more").unwrap();
    set.set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 5)).unwrap();
    drop(set);
    File::options().write(true).open(m.at("cut")).unwrap().set_len(7).unwrap();
    fs::hard_link(m.at("linked"), m.at("d/link")).unwrap();
    fs::rename(m.at("old"), m.at("d/new")).unwrap();
    let mut appended = File::options().append(true).open(m.at("appended")).unwrap();
    appended.write_all(b"synced").unwrap();
    appended.sync_all().unwrap();
    drop(appended);
    // A length counts as a change, also if it is the same.
    let (same, emptied) = (times(&m, "same"), times(&m, "d/empty"));
    File::options().write(true).open(m.at("same")).unwrap().set_len(3_000).unwrap();
    fs::write(m.at("d/empty"), b"").unwrap();
    assert!(times(&m, "same") > same && times(&m, "d/empty") > emptied);
    let grown = File::options().write(true).open(m.at("grown")).unwrap();
    grown.write_all_at(b"more", 100).unwrap();
    grown.sync_all().unwrap();
    grown.set_len(50).unwrap();
    grown.set_len(20_000).unwrap();
    let open = times(&m, "grown");
    drop(grown);
    assert_eq!(times(&m, "grown"), open, "a close is no change");
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(m.at("attribute"), "user.colour", b"red", none).unwrap();
    let names = [
        "small",
        "d/big",
        "d/empty",
        "mode",
        "set",
        "cut",
        "linked",
        "d/new",
        "appended",
        "attribute",
        "same",
        "grown",
    ];
    let here = names.map(|name| (name, times(&m, name)));
    let other = Mounted::new(c, "other", options);
    assert_eq!(names.map(|name| (name, times(&other, name))), here);
    drop((m, other));
    let renewed = Mounted::new(c, mounted_at, options);
    assert_eq!(names.map(|name| (name, times(&renewed, name))), here);
}

/// The program writes the end before the beginning. No version has only some of them (P7).
#[test]
fn what_is_written_anew_is_there_as_a_whole() {
    with_mount(|_, m| {
        fs::create_dir(m.at("d")).unwrap();
        rustix::fs::setxattr(m.at("d"), "user.tessera.lifetime", b"keep", rustix::fs::XattrFlags::empty()).unwrap();
        let (old, new) = (data(70, 6 << 20), data(71, 6 << 20));
        // A separate program: if the file were open in this process, each child of another test would close its copy of the descriptor,
        // and so commit it.
        let program = "import os, sys; both = sys.stdin.buffer.read(); new = both[6 << 20:]; \
                       f = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT); os.pwrite(f, both[:6 << 20], 0); os.close(f); \
                       f = os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC); os.pwrite(f, new[1 << 20:], 1 << 20); \
                       os.pwrite(f, new[:1 << 20], 0); os.close(f)";
        let both = [&old[..], &new].concat();
        let wrote = common::run(std::process::Command::new("python3").args(["-c", program]).arg(m.at("d/f")), &both);
        assert_eq!(wrote.code, 0, "{wrote:?}");
        assert!(fs::read(m.at("d/f")).unwrap() == new);
        for version in fs::read_dir(m.at(".tessera/versions/d/f")).unwrap() {
            let path = version.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            let begins = |with: &[u8]| bytes.iter().zip(with).take_while(|(a, b)| a == b).count();
            let what = format!("{} bytes, {} as the old and {} as the new", bytes.len(), begins(&old), begins(&new));
            assert!(bytes.is_empty() || bytes == old || bytes == new, "{}: {what}", path.display());
        }
    });
}

/// A stop of the mount commits open files and leaves no mount behind.
#[test]
fn sigterm_commits_and_detaches() {
    with_mount(|c, _| {
        let mut m = Mounted::new(c, "short", &[]);
        let content = |i: u64| data(60 + i, (3 + 5 * i as usize) << 20);
        let write = |i: u64| {
            let mut file = File::create(m.at(&format!("open{i}"))).unwrap();
            file.write_all(&content(i)).unwrap();
            file
        };
        let open: Vec<File> = (0..3).map(write).collect();
        assert!(m.daemon.stop().success());
        assert_eq!(fs::read_dir(&m.path).unwrap().count(), 0, "nothing is mounted");
        for i in 0..3 {
            let there = c.ok(&["cat", &format!("tess:/open{i}")]).stdout;
            assert!(there == content(i), "{} bytes of file {i} are not those that were written", there.len());
        }
        drop(open);
    });
}

#[test]
fn a_mount_whose_process_was_killed_is_named_with_the_way_out() {
    with_mount(|c, _| {
        let mut m = Mounted::new(c, "dead", &[]);
        m.daemon.kill();
        let again = c.run(&["mount", &m.path.display().to_string(), "--manager", c.address()]);
        common::assert_refused(&again, 8, &["whose process has ended", "fusermount3 -u", "umount -l"]);
    });
}

/// A mount that ends leaves alone what a user mounted at its path meanwhile, and unmounts itself no second time.
#[test]
fn another_file_system_at_the_path_stays() {
    with_mount(|c, first| {
        let again = c.run(&["mount", &first.path.display().to_string(), "--manager", c.address()]);
        common::assert_refused(&again, 8, &["a store is mounted there"]);
        let system = |words: &[&str], path: &Path| {
            assert!(Command::new(words[0]).args(&words[1..]).arg(path).status().unwrap().success(), "{words:?}");
        };
        let mut m = Mounted::new(c, "taken", &[]);
        // Keeps the process alive after the unmount.
        let open = File::create(m.at("f")).unwrap();
        system(&["umount", "-l"], &m.path);
        system(&["mount", "-t", "tmpfs", "none"], &m.path);
        fs::write(m.at("other"), b"of another file system").unwrap();
        m.daemon.stop();
        assert_eq!(fs::read(m.at("other")).unwrap(), b"of another file system");
        system(&["umount"], &m.path);
        drop(open);
        let mut m = Mounted::new(c, "plain", &[]);
        assert!(m.daemon.stop().success());
        assert!(!m.said("WARN"), "{}", fs::read_to_string(&m.log).unwrap());
    });
}

/// A node that dies and a manager that restarts only cause a delay.
#[test]
fn losses_are_a_delay() {
    let mut c = Cluster::start(7);
    if !can_mount(&c) {
        return;
    }
    let m = Mounted::new(&c, "mnt", &[]);
    let bytes = data(7, 24 << 20);
    fs::write(m.at("f"), &bytes).unwrap();
    c.kill_node(2);
    c.kill_node(5);
    assert!(fs::read(m.at("f")).unwrap() == bytes);
    c.kill_manager();
    let path = m.at("g");
    let writer = std::thread::spawn(move || fs::write(path, b"while it was away"));
    c.start_manager(&[]);
    writer.join().unwrap().unwrap();
    assert!(c.ok(&["cat", "tess:/g"]).stdout == b"while it was away");
}

/// Attributes and commands report where a file is and how safe it is, and the nodes confirm it.
#[test]
fn files_tell_where_they_are() {
    let mut c = Cluster::start(6);
    c.with_stdin(&["put", "-p", "redundancy=ec:4+2", "-", "tess:/f"], &data(8, 5 << 20));
    let located = c.ok(&["locate", "--json", "--extents", "tess:/f"]).json();
    assert_eq!(located["state"]["chunks"], located["state"]["chunks_full"]);
    assert_eq!(located["state"]["classes"][0], "ec:4+2");
    let hosts = located["hosts"].as_object().unwrap();
    let sum: u64 = hosts.values().map(|b| b.as_u64().unwrap()).sum();
    assert!(sum.abs_diff(5 << 20) < 100, "each byte is some host's own: {located}");
    let held = |node: &str| {
        c.status()["nodes"].as_array().unwrap().iter().find(|n| n["name"] == node).unwrap()["disks"][0]["fragments"]
            .as_u64()
            .unwrap()
    };
    let mut said: std::collections::BTreeMap<String, u64> = Default::default();
    for fragment in located["extents"].as_array().unwrap().iter().flat_map(|e| e["fragments"].as_array().unwrap()) {
        *said.entry(fragment["node"].as_str().unwrap().into()).or_default() += 1;
    }
    eventually("nodes report what they hold", || said.iter().all(|(node, fragments)| held(node) == *fragments));
    c.kill_node(3);
    eventually("the lost node's fragments are not readable", || {
        let state = &c.ok(&["locate", "--json", "tess:/f"]).json()["state"];
        state["chunks_reduced"] == state["chunks"]
    });
    if !can_mount(&c) {
        return;
    }
    let m = Mounted::new(&c, "mnt", &[]);
    let mut value = vec![0; 1 << 20];
    let len = rustix::fs::getxattr(m.at("f"), "user.tessera.state", &mut value).unwrap();
    let state: serde_json::Value = serde_json::from_slice(&value[..len]).unwrap();
    assert_eq!(state["logical_bytes"], 5 << 20);
    let len = rustix::fs::getxattr(m.at("f"), "user.tessera.location", &mut value).unwrap();
    let location: serde_json::Value = serde_json::from_slice(&value[..len]).unwrap();
    assert_eq!(location["extents"].as_array().unwrap().len() as u64, state["chunks"].as_u64().unwrap());
}

/// Old versions are files. They cannot be changed, and their directory blocks nothing.
#[test]
fn old_versions_can_be_read_as_files() {
    with_mount(|c, m| {
        fs::create_dir_all(m.at("d/e")).unwrap();
        rustix::fs::setxattr(m.at("d"), "user.tessera.lifetime", b"keep", rustix::fs::XattrFlags::empty()).unwrap();
        let contents: Vec<Vec<u8>> = (1..=3u64).map(|seed| data(seed, 300_000 * seed as usize)).collect();
        for content in &contents {
            fs::write(m.at("d/f"), content).unwrap();
        }
        fs::write(m.at("d/e/other"), b"x").unwrap();
        symlink("f", m.at("d/link")).unwrap();

        let listed = |path: &str| {
            let mut names: Vec<String> =
                fs::read_dir(m.at(path)).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        assert_eq!(listed(""), ["d"]);
        assert_eq!(listed(".tessera"), ["versions"]);
        assert_eq!(listed(".tessera/versions/d"), ["e", "f"]);
        let versions = listed(".tessera/versions/d/f");
        let last = &versions[versions.len() - 1];
        assert_eq!(c.ok(&["versions", "tess:/d/f", "--json"]).text().lines().count(), versions.len());
        let found: Vec<Vec<u8>> =
            versions.iter().map(|v| fs::read(m.at(&format!(".tessera/versions/d/f/{v}"))).unwrap()).collect();
        for content in &contents {
            assert!(found.contains(content), "a version of {} bytes is not there", content.len());
        }
        let path = m.at(&format!(".tessera/versions/d/f/{last}"));
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (900_000, 0o444));
        assert!(fs::metadata(m.at(".tessera/versions/d/f/99")).is_err());

        let refused = |result: std::io::Result<()>| assert_eq!(result.unwrap_err().raw_os_error(), Some(30), "EROFS");
        refused(fs::write(&path, b"changed"));
        refused(fs::remove_file(&path));
        refused(fs::create_dir(m.at(".tessera/versions/d/new")));
        refused(fs::rename(m.at("d/f"), m.at(".tessera/versions/d/g")));
        refused(fs::set_permissions(&path, fs::Permissions::from_mode(0o600)));
        // A dropped version disappears, except where it is open.
        let open = File::open(m.at(&format!(".tessera/versions/d/f/{}", versions[0]))).unwrap();
        let kept = found[0].clone();
        rustix::fs::setxattr(m.at("d/f"), "user.tessera.lifetime", b"replace:1", rustix::fs::XattrFlags::empty())
            .unwrap();
        fs::write(m.at("d/f"), b"the only one").unwrap();
        let mut bytes = Vec::new();
        (&open).read_to_end(&mut bytes).unwrap();
        assert!(bytes == kept);
        drop(open);
        common::eventually("old versions are dropped", || listed(".tessera/versions/d/f").len() == 1);
    });
}

/// The papers' attributes, set and read as their programs do.
#[test]
fn classic_attributes_are_hints() {
    with_mount(|c, m| {
        let none = rustix::fs::XattrFlags::empty();
        let get = |name: &str| {
            let mut value = [0; 100];
            rustix::fs::getxattr(m.at("d"), name, &mut value)
                .map(|len| String::from_utf8(value[..len].to_vec()).unwrap())
        };
        fs::create_dir(m.at("d")).unwrap();
        for (name, value, back) in [
            ("user.DP", "collocation | merge", "collocation | merge"),
            ("user.Replication", "2", "2"),
            ("user.RepSmntc", "Pessimestic", "Pessimistic"),
            ("user.BlockSize", "64K", "64K"),
        ] {
            assert_eq!(get(name), Err(rustix::io::Errno::NODATA), "{name}");
            rustix::fs::setxattr(m.at("d"), name, value.as_bytes(), none).unwrap();
            assert_eq!(get(name).unwrap(), back, "{name}");
        }
        assert_eq!(get("user.tessera.placement").unwrap(), "collocate:merge");
        for (name, value) in [("user.DP", "near"), ("user.Replication", "0"), ("user.tessera.placement", "collocate:")]
        {
            let refused = rustix::fs::setxattr(m.at("d"), name, value.as_bytes(), none);
            assert_eq!(refused, Err(rustix::io::Errno::INVAL), "{name}={value}");
        }
        let hosts: Vec<String> = (0..4u64)
            .map(|i| {
                let (name, bytes) = (format!("d/{i}"), data(i + 50, 200_000));
                fs::write(m.at(&name), &bytes).unwrap();
                let located = c.ok(&["locate", &format!("tess:/{name}"), "--json"]).json();
                assert_eq!(located["state"]["classes"], serde_json::json!(["replica:2"]));
                let hosts = located["hosts"].as_object().unwrap();
                let whole = hosts.iter().filter(|(_, held)| held.as_u64() == Some(200_000));
                whole.map(|(host, _)| host.clone()).collect::<Vec<_>>()
            })
            .reduce(|all, next| all.into_iter().filter(|host| next.contains(host)).collect())
            .unwrap();
        assert!(!hosts.is_empty(), "no host has all files of the group");
    });
}

/// A hint set on an existing file takes effect on its data, in the background.
#[test]
fn files_follow_hints_that_are_set_later() {
    with_mount(|c, m| {
        let bytes = data(60, 2_000_000);
        fs::write(m.at("f"), &bytes).unwrap();
        let before = fs::metadata(m.at("f")).unwrap();
        let state = || {
            let mut value = [0; 4096];
            let len = rustix::fs::getxattr(m.at("f"), "user.tessera.state", &mut value).unwrap();
            serde_json::from_slice::<serde_json::Value>(&value[..len]).unwrap()
        };
        let first = state();
        assert_eq!((&first["classes"][0], &first["rewriting"]), (&"ec:4+2".into(), &serde_json::Value::Null));
        // Two if another test starts a process between the two requests of the write: the new process has, and closes, a
        // copy of the descriptor, and a close commits.
        let first = first["version_number"].as_u64().unwrap();
        assert!(first <= 2, "one write, {first} versions");
        // One after the other: a rewrite may begin before a second hint is there, and is then followed by another one.
        for (name, value, chunks, version) in
            [("user.tessera.redundancy", "replica:2", 2, first + 1), ("user.BlockSize", "256K", 8, first + 2)]
        {
            rustix::fs::setxattr(m.at("f"), name, value.as_bytes(), rustix::fs::XattrFlags::empty()).unwrap();
            common::eventually("the file is rewritten", || state()["version_number"].as_u64() == Some(version));
            common::eventually("nothing is left to do", || state()["rewriting"].is_null());
            assert_eq!(
                (&state()["classes"], state()["chunks"].as_u64()),
                (&serde_json::json!(["replica:2"]), Some(chunks))
            );
            let state = state();
            let log = || fs::read_to_string(&m.log).unwrap();
            assert_eq!(state["version_number"].as_u64(), Some(version), "it is rewritten once: {state}; {}", log());
        }
        let after = fs::metadata(m.at("f")).unwrap();
        assert_eq!((after.len(), after.modified().unwrap()), (before.len(), before.modified().unwrap()));
        assert!(fs::read(m.at("f")).unwrap() == bytes && c.ok(&["get", "tess:/f", "-"]).stdout == bytes);
        // A hint that does not affect stored bytes leaves the data alone.
        rustix::fs::setxattr(m.at("f"), "user.tessera.lifetime", b"keep", rustix::fs::XattrFlags::empty()).unwrap();
        assert!(state()["rewriting"].is_null());
    });
}

/// Optimistic writes return early; `state` says when redundancy is reached.
#[test]
fn an_optimistic_close_does_not_wait_for_redundancy() {
    // The long timeout keeps a silent node from being declared down on a slow machine.
    let manager = vec!["down_after_ms=120000"];
    let c = Cluster::start_special(3, Special { manager, ..Special::default() });
    if !can_mount(&c) {
        return;
    }
    let m = Mounted::new(&c, "mnt", &[]);
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&m.path, "user.Replication", b"3", none).unwrap();
    rustix::fs::setxattr(&m.path, "user.RepSmntc", b"Optimistic", none).unwrap();
    let state = || {
        let mut value = [0; 4096];
        let len = rustix::fs::getxattr(m.at("f"), "user.tessera.state", &mut value).unwrap();
        serde_json::from_slice::<serde_json::Value>(&value[..len]).unwrap()
    };
    // Without one of three voters, the others and the manager are a majority.
    eventually("the metadata is on three peers", || {
        let status = c.status();
        status["log"]["peers"].as_array().unwrap().iter().filter(|peer| peer["votes"] == true).count() == 3
    });
    let stuck = c.nodes[0].as_ref().unwrap();
    let signal = |signal| {
        rustix::process::kill_process(rustix::process::Pid::from_child(&stuck.child), signal).unwrap();
    };
    signal(rustix::process::Signal::STOP);
    fs::write(m.at("f"), data(30, 100_000)).unwrap();
    let early = state();
    signal(rustix::process::Signal::CONT);
    assert_eq!((early["logical_bytes"].as_u64(), early["chunks_full"].as_u64()), (Some(100_000), Some(0)), "{early}");
    eventually("redundancy is reached", || state()["chunks_full"] == state()["chunks"]);
    assert!(fs::read(m.at("f")).unwrap() == data(30, 100_000));
}
