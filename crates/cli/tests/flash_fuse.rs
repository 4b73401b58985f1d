//! `tessera flash serve --fuse`: the emulated SSD as a file, and a file system on it through power cuts. Skipped, with a
//! message, where there is no FUSE or no loop device.

mod common;
mod nbd;

use common::tessera;
use nbd::{Client, SIZE, Server};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Whether this machine can mount.
fn has_fuse() -> bool {
    let can = File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !can {
        eprintln!("skipped: /dev/fuse cannot be opened");
    }
    can
}

fn serve(dir: &Path, more: &[&str]) -> (Server, PathBuf) {
    let file = dir.join("ssd");
    let server = Server::start(dir, &[&["--ftl", "dftl", "--fuse", file.to_str().unwrap()], more].concat());
    (server, file)
}

#[test]
fn the_file_has_the_bytes_of_the_ssd() {
    if !has_fuse() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for delays in [&[][..], &["--timing", "emulator"]] {
        let (mut server, path) = serve(dir.path(), delays);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), SIZE);
        let mut client = Client::connect(&server);
        file.write_all_at(&[1; 20_000], 5_000).unwrap();
        file.sync_all().unwrap();
        assert_eq!((client.read(5_000, 20_000), client.write(8_000, &[2; 100])), (vec![1; 20_000], 0));
        let mut read = vec![0; 100];
        file.read_exact_at(&mut read, 8_000).unwrap();
        assert_eq!(read, [2; 100]);
        let hole = |flags| fallocate(&file, flags | FallocateFlags::KEEP_SIZE, 6_000, 10_000);
        hole(FallocateFlags::PUNCH_HOLE).unwrap();
        assert_eq!((client.read(5_999, 10_002)[1..10_001].iter().max(), client.read(5_999, 1)), (Some(&0), vec![1]));
        assert!(hole(FallocateFlags::COLLAPSE_RANGE).is_err());
        let beyond = |flags, offset| fallocate(&file, flags | FallocateFlags::KEEP_SIZE, offset, 2 * SIZE);
        beyond(FallocateFlags::PUNCH_HOLE, SIZE).unwrap();
        file.write_all_at(&[3; 4096], SIZE - 4096).unwrap();
        beyond(FallocateFlags::PUNCH_HOLE, SIZE - 4095).unwrap();
        assert_eq!(client.read(SIZE - 4096, 2), [3, 0]);
        assert_eq!(file.write_at(&[1], SIZE).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!((file.read_at(&mut read, SIZE).unwrap(), file.set_len(1).is_err()), (0, true));
        server.cut(&["--for", "0"]);
        assert!(file.sync_all().is_err(), "it hears of the cut");
        file.sync_all().unwrap();
        drop(file);
        assert_eq!(server.terminate(), 0);
        assert_eq!(path.metadata().unwrap().len(), 0, "the mount is gone");
    }
}

#[test]
fn what_cannot_be_mounted_over_is_refused() {
    if !has_fuse() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let full = dir.path().join("full");
    fs::write(&full, "bytes").unwrap();
    let socket = format!("unix:{}", dir.path().join("s").display());
    for path in [&full, dir.path()] {
        let path = path.to_str().unwrap();
        let size = ["--capacity", "64M", "--over-provisioning", "60%"];
        let run = tessera(&[&["flash", "serve", "--nbd", &socket, "--fuse", path], &size[..]].concat());
        assert_eq!(run.code, 6, "{run:?}");
        assert!(run.stderr.contains(path) && run.stderr.contains("name an empty or new file"), "{run:?}");
        assert!(!run.stderr.contains("figures"), "a server that does not start announces nothing: {run:?}");
    }
    let (mut server, taken) = serve(dir.path(), &[]);
    let options = ["--capacity", "64M", "--over-provisioning", "60%", "--fuse", taken.to_str().unwrap()];
    let again = tessera(&[&["flash", "serve", "--nbd", &socket], &options[..]].concat());
    assert_eq!(
        (again.code, again.stderr.contains("another server serves its SSD as this file")),
        (6, true),
        "{again:?}"
    );
    assert_eq!(server.terminate(), 0);
}

fn output(command: &str, args: &[&str]) -> Output {
    Command::new(command).args(args).output().unwrap_or_else(|error| panic!("{command}: {error}"))
}

fn run(command: &str, args: &[&str]) -> String {
    let done = output(command, args);
    assert!(done.status.success(), "{command} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().into()
}

/// A loop device of the file; it is gone with this.
struct Disk(String);

impl Disk {
    fn attach(file: &Path) -> Disk {
        Disk(run("losetup", &["--find", "--show", "--direct-io=on", file.to_str().unwrap()]))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        output("losetup", &["-d", &self.0]);
    }
}

/// A file system of a disk, mounted; it is unmounted with this.
struct Mounted<'a>(&'a Path);

impl Mounted<'_> {
    fn new<'a>(disk: &Disk, at: &'a Path) -> Mounted<'a> {
        run("mount", &[&disk.0, at.to_str().unwrap()]);
        Mounted(at)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        output("umount", &[self.0.to_str().unwrap()]);
    }
}

/// Whether this machine can make ext4 on a loop device.
fn has_loop() -> bool {
    let missing = ["losetup", "mkfs.ext4", "e2fsck", "fstrim"]
        .into_iter()
        .find(|name| Command::new(name).arg("-V").output().is_err());
    let lacks = match missing {
        Some(program) => Some(format!("{program} is not installed")),
        None if !output("losetup", &["--find"]).status.success() => Some("there is no loop device".into()),
        None => None,
    };
    if let Some(lacks) = &lacks {
        eprintln!("skipped: {lacks}");
    }
    lacks.is_none()
}

/// Adds rows to a database, each in a transaction of its own, after a look at those of before.
const DATABASE: &str = "
import sqlite3, sys
path, before, more = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
db = sqlite3.connect(path, isolation_level=None)
db.execute('PRAGMA synchronous = EXTRA')
db.execute('CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY, text TEXT)')
found = db.execute('SELECT count(*), max(n) FROM t').fetchone()
assert found == (before, before or None), found
assert db.execute('PRAGMA integrity_check').fetchone() == ('ok',)
for n in range(before + 1, before + more + 1):
    db.execute('INSERT INTO t VALUES (?, ?)', (n, 'x' * 500))
";

/// ext4 on the SSD has every file that was synced before a power cut, its check finds it sound, and SQLite has every
/// transaction that was committed.
#[test]
fn ext4_keeps_what_was_synced_through_power_cuts() {
    const CUTS: u8 = 50;
    if !has_fuse() || !has_loop() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("mnt");
    fs::create_dir(&at).unwrap();
    let (mut server, file) = serve(dir.path(), &["--write-buffer", "256K"]);
    run("mkfs.ext4", &["-q", &Disk::attach(&file).0]);
    let content = |cut: u8, i: u8| vec![cut.wrapping_mul(16) + i; 30_000 * usize::from(i) + 1];
    let mut lost_pages = 0;
    for cut in 0..=CUTS {
        let disk = Disk::attach(&file);
        let mounted = Mounted::new(&disk, &at);
        for (before, i) in (0..cut).flat_map(|before| (0..4).map(move |i| (before, i))) {
            assert!(
                fs::read(at.join(format!("{before}-{i}"))).unwrap() == content(before, i),
                "{before}-{i} after {cut} cuts"
            );
        }
        let rows = |before: u8, more: u8| {
            let database = at.join("database");
            run("python3", &["-c", DATABASE, database.to_str().unwrap(), &before.to_string(), &more.to_string()]);
        };
        if cut == CUTS {
            rows(cut * 3, 0);
            run("fstrim", &[at.to_str().unwrap()]);
            break;
        }
        for i in 0..4 {
            let path = at.join(format!("{cut}-{i}"));
            fs::write(&path, content(cut, i)).unwrap();
            File::open(&path).unwrap().sync_all().unwrap();
        }
        File::open(&at).unwrap().sync_all().unwrap();
        rows(cut * 3, 3);
        // Past the page cache, and not flushed.
        let unsynced = format!("of={}", at.join("unsynced").display());
        run("dd", &["if=/dev/urandom", &unsynced, "bs=4096", "count=20", "oflag=direct", "status=none"]);
        lost_pages += server.cut(&["--json"]).json()["lost_pages"].as_u64().unwrap();
        drop(mounted);
        drop(disk);
        server.cut(&["--restore"]);
        // The first request hears of the cut.
        let _ = File::open(&file).unwrap().read_at(&mut [0; 512], 0);
        let checked = output("e2fsck", &["-fy", &Disk::attach(&file).0]);
        assert!(
            matches!(checked.status.code(), Some(0 | 1)),
            "cut {cut}: {}",
            String::from_utf8_lossy(&checked.stdout)
        );
    }
    let stat = server.stat();
    assert!(stat["power_cuts"] == CUTS && stat["host_programs"].as_u64() > Some(0), "{stat}");
    assert!(lost_pages > 0, "every page was flushed before a cut");
    run("e2fsck", &["-fn", &Disk::attach(&file).0]);
    assert_eq!(server.terminate(), 0);
}
