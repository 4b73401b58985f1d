//! File systems on the emulated SSD through power cuts: what was synced is there, their checks find them sound, and SQLite has
//! every transaction that was committed. Skipped, with a message, where there is no FUSE or loop device, except in continuous
//! integration, or the programs of a file system are not installed.

mod common;
mod nbd;

use common::eventually;
use nbd::skipped;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// A file system.
struct FileSystem {
    /// Bytes of the SSD; each has a smallest size.
    capacity: &'static str,
    make: &'static [&'static str],
    /// Fails unless it is sound.
    check: &'static [&'static str],
    cuts: u8,
}

const EXT4: FileSystem =
    FileSystem { capacity: "64M", make: &["mkfs.ext4", "-q"], check: &["e2fsck", "-fn"], cuts: 50 };
const XFS: FileSystem =
    FileSystem { capacity: "320M", make: &["mkfs.xfs", "-q"], check: &["xfs_repair", "-n"], cuts: 50 };
const BTRFS: FileSystem =
    FileSystem { capacity: "256M", make: &["mkfs.btrfs", "-q"], check: &["btrfs", "check", "--readonly"], cuts: 50 };

#[test]
fn ext4_keeps_what_was_synced_through_power_cuts() {
    keeps_what_was_synced(&EXT4);
}

#[test]
fn xfs_keeps_what_was_synced_through_power_cuts() {
    if has(&XFS) {
        keeps_what_was_synced(&XFS);
    }
}

#[test]
fn btrfs_keeps_what_was_synced_through_power_cuts() {
    if has(&BTRFS) {
        keeps_what_was_synced(&BTRFS);
    }
}

/// Whether the programs of a file system are installed.
fn has(system: &FileSystem) -> bool {
    let missing = [system.make[0], system.check[0]].into_iter().find(|name| !is_installed(name));
    if let Some(name) = missing {
        eprintln!("skipped: {name} is not installed");
    }
    missing.is_none()
}

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("-V").output().is_ok()
}

fn keeps_what_was_synced(system: &FileSystem) {
    if !nbd::has_fuse() || !has_loop() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("mnt");
    fs::create_dir(&at).unwrap();
    let (mut server, file) = nbd::serve_file(dir.path(), &["--write-buffer", "256K", "--capacity", system.capacity]);
    let disk = Disk::attach(&file);
    on(&disk, system.make);
    let mounted = Mounted::new(&disk, &at);
    fio_verifies(&at);
    drop(mounted);
    drop(disk);
    let mut lost_pages = 0;
    for cut in 0..system.cuts {
        let disk = Disk::attach(&file);
        let mounted = Mounted::new(&disk, &at);
        look(&at, cut);
        change(&at, cut);
        let churn = Churn::start(&at);
        sleep(Duration::from_millis(10 + u64::from(cut) * 13 % 50));
        lost_pages += server.cut(&["--json"]).json()["lost_pages"].as_u64().unwrap();
        drop(churn);
        drop(mounted);
        drop(disk);
        server.cut(&["--restore"]);
        let disk = Disk::attach(&file);
        // The file system repairs itself by its log; then nothing is left to correct.
        drop(Mounted::new(&disk, &at));
        on(&disk, system.check);
    }
    let disk = Disk::attach(&file);
    let mounted = Mounted::new(&disk, &at);
    look(&at, system.cuts);
    run("fstrim", &[at.to_str().unwrap()]);
    drop(mounted);
    on(&disk, system.check);
    drop(disk);
    let stat = server.stat();
    assert!(stat["power_cuts"] == system.cuts && stat["host_programs"].as_u64() > Some(0), "{stat}");
    assert!(lost_pages > 0, "every page was flushed before a cut");
    assert_eq!(server.terminate(), 0);
}

/// fio reads back what it wrote, past the page cache, in blocks of several sizes, with syncs; what it leaves is trimmed.
fn fio_verifies(at: &Path) {
    if !is_installed("fio") {
        return eprintln!("skipped: fio is not installed");
    }
    let file = format!("--filename={}", at.join("fio").display());
    let job =
        ["--name=job", "--ioengine=psync", "--direct=1", "--rw=randrw", "--bsrange=4k-64k", "--size=8m", "--fsync=32"];
    let verify =
        ["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--verify_state_save=0", "--output-format=terse"];
    run("fio", &[&job[..], &verify, &[&file]].concat());
    fs::remove_file(at.join("fio")).unwrap();
    let trimmed = run("fstrim", &["-v", at.to_str().unwrap()]);
    assert!(!trimmed.contains(": 0 B"), "{trimmed}");
}

/// A program that writes, syncs and renames files until it is ended, so that a cut meets journals and trees half written.
struct Churn(Child);

impl Churn {
    fn start(at: &Path) -> Churn {
        let script =
            "i=0; while :; do i=$((i + 1)); head -c 20000 /dev/urandom > new; sync new; mv new churn$((i % 7)); done";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(at).stderr(Stdio::null()).process_group(0);
        Churn(shell.spawn().unwrap())
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        kill_process_group(Pid::from_child(&self.0), Signal::KILL).unwrap();
        self.0.wait().unwrap();
    }
}

fn content(cut: u8, i: u8) -> Vec<u8> {
    vec![cut.wrapping_mul(16) + i; 30_000 * usize::from(i) + 1]
}

/// Everything that was synced before so many cuts is there.
fn look(at: &Path, cuts: u8) {
    for (before, i) in (0..cuts).flat_map(|before| (0..4).map(move |i| (before, i))) {
        let found = fs::read(at.join(format!("{before}-{i}"))).unwrap();
        assert!(found == content(before, i), "{before}-{i} after {cuts} cuts");
    }
    add_rows(at, cuts, 0);
}

/// Writes files and rows, and syncs them; then something that is not synced.
fn change(at: &Path, cut: u8) {
    for i in 0..4 {
        let path = at.join(format!("{cut}-{i}"));
        fs::write(&path, content(cut, i)).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
    }
    File::open(at).unwrap().sync_all().unwrap();
    add_rows(at, cut, 3);
    // Past the page cache, and not flushed.
    let unsynced = format!("of={}", at.join("unsynced").display());
    run("dd", &["if=/dev/urandom", &unsynced, "bs=4096", "count=20", "oflag=direct", "status=none"]);
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

fn add_rows(at: &Path, cuts: u8, more: u8) {
    let before = u32::from(cuts) * 3;
    run("python3", &["-c", DATABASE, at.join("database").to_str().unwrap(), &before.to_string(), &more.to_string()]);
}

fn output(command: &str, args: &[&str]) -> Output {
    Command::new(command).args(args).output().unwrap_or_else(|error| panic!("{command}: {error}"))
}

fn run(command: &str, args: &[&str]) -> String {
    let done = output(command, args);
    assert!(done.status.success(), "{command} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().into()
}

fn command(disk: &Disk, words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(&disk.0);
    command
}

fn on(disk: &Disk, words: &[&str]) {
    let done = command(disk, words).output().unwrap();
    let shown = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(done.status.success(), "{words:?}: {shown:?}");
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
        // A program that is being killed may have it open still.
        eventually("it is unmounted", || output("umount", &[self.0.to_str().unwrap()]).status.success());
    }
}

/// Whether this machine can make ext4 on a loop device. Continuous integration must.
fn has_loop() -> bool {
    let missing = ["losetup", "mkfs.ext4", "e2fsck", "fstrim"].into_iter().find(|name| !is_installed(name));
    match missing {
        Some(program) => skipped(&format!("{program} is not installed")),
        None => output("losetup", &["--find"]).status.success() || skipped("there is no loop device"),
    }
}
