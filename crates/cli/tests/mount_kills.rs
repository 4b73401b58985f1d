//! What programs on a mount may rely on while processes are killed (docs/mount.md): nothing is lost that fsync or close
//! acknowledged, and nothing else is half there (P1, P7). The loss of nodes and managers only causes a delay (P12).
//! Skipped, with a message, where there is no FUSE.

mod common;

use common::mounted::{Mounted, can_mount};
use common::{Cluster, eventually};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const RECORD_BYTES: usize = 4096;

/// Bytes that identify their program and version.
fn content(who: u64, version: u64, len: usize) -> Vec<u8> {
    let mut bytes = common::tree::bytes(who << 40 | version, len.max(16));
    bytes[..8].copy_from_slice(&who.to_le_bytes());
    bytes[8..16].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// The version of such bytes; `None` if they are not whole.
fn version(who: u64, bytes: &[u8]) -> Option<u64> {
    let version = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
    (content(who, version, bytes.len()) == bytes).then_some(version)
}

/// A program that runs on a mount and remembers what was acknowledged.
trait Program: Send {
    /// Does one more step and waits for its acknowledgement.
    fn step(&mut self, dir: &Path) -> io::Result<()>;
    /// Checks that acknowledged data is there and that all other data is whole. Continues from that state.
    fn check(&mut self, dir: &Path);
}

/// Python that keeps a file open, writes records at the given places, and reports when fsync has returned.
const KEEPER: &str = r#"
import os, sys
f = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o644)
for line in sys.stdin:
    source, *places = line.split()
    with open(source, "rb") as g:
        for place in map(int, places):
            assert os.pwrite(f, g.read(4096), place) == 4096
    os.fsync(f)
    print("ok", flush=True)
"#;

/// A process that runs [`KEEPER`]. No file on a mount may be open in this process. Each daemon that it starts would
/// close its copy of the descriptor before exec; that commits, and so waits for the manager that the child is about to
/// become.
struct Keeper {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Keeper {
    fn open(path: &Path) -> io::Result<Keeper> {
        let mut command = Command::new("python3");
        command.args(["-c", KEEPER]).arg(path).stderr(Stdio::null()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Ok(Keeper { child, stdin, stdout: BufReader::new(stdout) })
    }

    fn write(&mut self, records: &[u8], slots: &[usize]) -> io::Result<()> {
        let mut source = tempfile::NamedTempFile::new()?;
        source.write_all(records)?;
        let places: Vec<String> = slots.iter().map(|slot| (slot * RECORD_BYTES).to_string()).collect();
        writeln!(self.stdin, "{} {}", source.path().display(), places.join(" "))?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        if line == "ok\n" { Ok(()) } else { Err(io::Error::other("it was not written")) }
    }
}

/// Appends records to a file. fsync acknowledges.
#[derive(Default)]
struct Log {
    open: Option<Keeper>,
    sure: usize,
    tried: usize,
}

impl Program for Log {
    fn step(&mut self, dir: &Path) -> io::Result<()> {
        let mut file = self.open.take().map_or_else(|| Keeper::open(&dir.join("log")), Ok)?;
        let slots: Vec<usize> = (self.tried..=self.tried + self.tried % 7).collect();
        self.tried += slots.len();
        let records: Vec<_> = slots.iter().map(|slot| content(1, *slot as u64, RECORD_BYTES)).collect();
        file.write(&records.concat(), &slots)?;
        self.sure = self.tried;
        self.open = Some(file);
        Ok(())
    }

    fn check(&mut self, dir: &Path) {
        self.open = None;
        let bytes = read(&dir.join("log")).unwrap_or_default();
        let records = bytes.len() / RECORD_BYTES;
        assert!(
            bytes.len().is_multiple_of(RECORD_BYTES) && (self.sure..=self.tried).contains(&records),
            "log: {records}"
        );
        for (number, record) in bytes.chunks(RECORD_BYTES).enumerate() {
            assert_eq!(version(1, record), Some(number as u64), "log: a record of {records}");
        }
        (self.sure, self.tried) = (records, records);
    }
}

/// Writes records in place, several at a time. fsync acknowledges.
struct Slots {
    open: Option<Keeper>,
    steps: usize,
    sure: [u64; Slots::COUNT],
    tried: [u64; Slots::COUNT],
}

impl Slots {
    const COUNT: usize = 64;

    fn new() -> Slots {
        Slots { open: None, steps: 0, sure: [0; Slots::COUNT], tried: [0; Slots::COUNT] }
    }
}

impl Program for Slots {
    fn step(&mut self, dir: &Path) -> io::Result<()> {
        let mut file = self.open.take().map_or_else(|| Keeper::open(&dir.join("slots")), Ok)?;
        let some = (0..8).map(|i| (self.steps * 29 + i * 11) % Slots::COUNT);
        let slots: Vec<usize> = if self.sure[0] == 0 { (0..Slots::COUNT).collect() } else { some.collect() };
        self.steps += 1;
        slots.iter().for_each(|slot| self.tried[*slot] += 1);
        let records: Vec<_> =
            slots.iter().map(|slot| content(100 + *slot as u64, self.tried[*slot], RECORD_BYTES)).collect();
        file.write(&records.concat(), &slots)?;
        self.sure = self.tried;
        self.open = Some(file);
        Ok(())
    }

    fn check(&mut self, dir: &Path) {
        self.open = None;
        let bytes = read(&dir.join("slots")).unwrap_or_default();
        if bytes.is_empty() {
            assert_eq!(self.sure, [0; Slots::COUNT], "slots: all are gone");
            self.tried = self.sure;
            return;
        }
        assert_eq!(bytes.len(), Slots::COUNT * RECORD_BYTES);
        for (slot, record) in bytes.chunks(RECORD_BYTES).enumerate() {
            let found = version(100 + slot as u64, record).unwrap_or_else(|| panic!("slot {slot} is not whole"));
            let (sure, tried) = (self.sure[slot], self.tried[slot]);
            assert!((sure..=tried).contains(&found), "slot {slot}: {found}, not {sure} to {tried}");
            (self.sure[slot], self.tried[slot]) = (found, found);
        }
    }
}

/// Replaces a file again and again. The end of `cp`, which checks `close`, acknowledges; then the file is renamed.
struct Whole {
    name: &'static str,
    renames: bool,
    sure: u64,
    tried: u64,
}

impl Whole {
    fn new(name: &'static str, renames: bool) -> Whole {
        Whole { name, renames, sure: 0, tried: 0 }
    }

    fn who(&self) -> u64 {
        2 + u64::from(self.renames)
    }
}

/// From sizes that are committed as a whole to sizes that are streamed.
fn len_of(version: u64) -> usize {
    [100, 5_000, 200_000, 5_500_000][version as usize % 4] + version as usize
}

impl Program for Whole {
    fn step(&mut self, dir: &Path) -> io::Result<()> {
        self.tried += 1;
        let bytes = content(self.who(), self.tried, len_of(self.tried));
        if !self.renames {
            copy(&bytes, &dir.join(self.name))?;
        } else {
            let new = dir.join(format!("{}.new", self.name));
            copy(&bytes, &new)?;
            fs::rename(new, dir.join(self.name))?;
        }
        self.sure = self.tried;
        Ok(())
    }

    fn check(&mut self, dir: &Path) {
        let found = match read(&dir.join(self.name)) {
            Ok(bytes) if bytes.is_empty() && self.sure == 0 => 0,
            Ok(bytes) => version(self.who(), &bytes)
                .unwrap_or_else(|| panic!("{}: {} bytes, not whole; sure of {}", self.name, bytes.len(), self.sure)),
            Err(_) => 0,
        };
        let (sure, tried) = (self.sure, self.tried);
        assert!((sure..=tried).contains(&found), "{}: {found}, not {sure} to {tried}", self.name);
        self.sure = found;
    }
}

/// Creates files that stay. The end of `cp` acknowledges each.
#[derive(Default)]
struct Files {
    sure: Vec<bool>,
}

impl Program for Files {
    fn step(&mut self, dir: &Path) -> io::Result<()> {
        let number = self.sure.len();
        self.sure.push(false);
        copy(&content(4, number as u64, len_of(number as u64)), &dir.join(format!("f{number}")))?;
        self.sure[number] = true;
        Ok(())
    }

    fn check(&mut self, dir: &Path) {
        for (number, sure) in self.sure.iter_mut().enumerate() {
            let wanted = content(4, number as u64, len_of(number as u64));
            *sure = match read(&dir.join(format!("f{number}"))) {
                Ok(bytes) if bytes == wanted => true,
                Ok(bytes) => {
                    assert!(!*sure && bytes.is_empty(), "file {number}: {} bytes, sure: {sure}", bytes.len());
                    false
                }
                Err(_) => {
                    assert!(!*sure, "file {number} is gone");
                    false
                }
            };
        }
    }
}

/// Reads a constant file at many places.
struct Reader {
    file: &'static str,
    same: tempfile::NamedTempFile,
    len: u64,
    steps: u64,
}

impl Program for Reader {
    fn step(&mut self, dir: &Path) -> io::Result<()> {
        self.steps += 1;
        let (skip, len) = (self.steps * 2_654_435_761 % self.len, 1 + self.steps * 99_991 % 1_000_000);
        let words = [format!("--ignore-initial={skip}"), format!("--bytes={len}")];
        let status = Command::new("cmp").args(words).arg(self.same.path()).arg(dir.join(self.file)).status()?;
        assert_ne!(status.code(), Some(1), "{len} bytes at {skip} are wrong");
        status.success().then_some(()).ok_or_else(|| io::Error::other(format!("cmp: {status}")))
    }

    fn check(&mut self, dir: &Path) {
        assert!(read(&dir.join(self.file)).unwrap() == fs::read(self.same.path()).unwrap());
    }
}

/// The content of a file. An error only if the file does not exist.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = fs::read(path);
    match &bytes {
        Err(e) if e.kind() != ErrorKind::NotFound => panic!("{}: {e}", path.display()),
        _ => bytes,
    }
}

/// Copies as a program does that checks `close`.
fn copy(bytes: &[u8], to: &Path) -> io::Result<()> {
    let mut source = tempfile::NamedTempFile::new()?;
    source.write_all(bytes)?;
    let status = Command::new("cp").arg(source.path()).arg(to).stderr(Stdio::null()).status()?;
    status.success().then_some(()).ok_or_else(|| io::Error::other(format!("cp: {status}")))
}

fn writers() -> Vec<Box<dyn Program>> {
    vec![
        Box::<Log>::default(),
        Box::new(Slots::new()),
        Box::new(Whole::new("same", false)),
        Box::new(Whole::new("renamed", true)),
        Box::<Files>::default(),
    ]
}

/// Step counts of the programs in a run.
struct Steps<'a> {
    done: &'a [AtomicU64],
    failed: &'a AtomicU64,
    may_fail: bool,
}

impl Steps<'_> {
    /// Waits until each program has done this many further steps.
    fn more(&self, steps: u64) {
        let wanted: Vec<u64> = self.done.iter().map(|d| d.load(Ordering::Acquire) + steps).collect();
        eventually("all programs go on", || {
            assert!(self.may_fail || self.failed.load(Ordering::Acquire) == 0, "a program failed");
            self.done.iter().zip(&wanted).all(|(done, wanted)| done.load(Ordering::Acquire) >= *wanted)
        });
    }

    /// Waits until each program has noticed that its mount is gone.
    fn all_end(&self) {
        eventually("all programs end", || self.failed.load(Ordering::Acquire) == self.done.len() as u64);
    }
}

/// Runs programs in a directory, each on its own thread, while `meanwhile` works. Returns how they ended.
fn run(
    programs: &mut [Box<dyn Program>],
    dir: &Path,
    may_fail: bool,
    meanwhile: impl FnOnce(&Steps<'_>),
) -> Vec<io::Result<()>> {
    /// Stops the programs even when the test fails.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let (stop, failed) = (AtomicBool::new(false), AtomicU64::new(0));
    let done: Vec<AtomicU64> = programs.iter().map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = programs
            .iter_mut()
            .zip(&done)
            .map(|(program, done)| {
                let (stop, failed) = (&stop, &failed);
                scope.spawn(move || {
                    while !stop.load(Ordering::Acquire) {
                        program.step(dir).inspect_err(|_| _ = failed.fetch_add(1, Ordering::AcqRel))?;
                        done.fetch_add(1, Ordering::AcqRel);
                    }
                    Ok(())
                })
            })
            .collect();
        let ended = Stop(&stop);
        meanwhile(&Steps { done: &done, failed: &failed, may_fail });
        drop(ended);
        threads.into_iter().map(|t| t.join().expect("a program does not panic")).collect()
    })
}

fn check(programs: &mut [Box<dyn Program>], dir: &Path) {
    programs.iter_mut().for_each(|program| program.check(dir));
}

fn directory(m: &Mounted, name: &str) -> PathBuf {
    fs::create_dir_all(m.at(name)).unwrap();
    m.at(name)
}

/// P1, P7: the mount's process is killed during writes, several times.
#[test]
fn what_was_acknowledged_outlives_the_mount_that_is_killed() {
    let c = Cluster::start(6);
    if !can_mount(&c) {
        return;
    }
    let mut programs = writers();
    for round in 0..5 {
        let mut m = Mounted::new(&c, &format!("m{round}"), &[]);
        let dir = directory(&m, "d");
        check(&mut programs, &dir);
        run(&mut programs, &dir, true, |steps| {
            steps.more(1 + round);
            m.daemon.kill();
            steps.all_end();
        });
    }
    check(&mut programs, &directory(&Mounted::new(&c, "last", &[]), "d"));
}

/// P2, P12: nodes die, and one hangs, while their fragments are read.
#[test]
fn nodes_that_die_in_mid_read_are_a_delay() {
    const LEN: usize = 64 << 20;
    let mut c = Cluster::start(7);
    if !can_mount(&c) {
        return;
    }
    let bytes = common::tree::bytes(11, LEN);
    let put = c.with_stdin(&["put", "--quiet", "-p", "redundancy=ec:4+2", "-", "tess:/f"], &bytes);
    assert_eq!(put.code, 0, "{put:?}");
    let m = Mounted::new(&c, "mnt", &[]);
    let read = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (path, bytes, read) = (m.at("f"), &bytes, &read);
        let reader = scope.spawn(move || {
            let file = File::open(path).unwrap();
            let mut piece = vec![0; 1 << 19];
            for at in (0..LEN).step_by(piece.len()) {
                file.read_exact_at(&mut piece, at as u64).unwrap();
                assert!(piece == bytes[at..at + piece.len()], "wrong bytes at {at}");
                // Far ahead, so that read-ahead does not cover it.
                let other = (at * 7 + (37 << 20)) % (LEN - RECORD_BYTES);
                file.read_exact_at(&mut piece[..RECORD_BYTES], other as u64).unwrap();
                assert!(piece[..RECORD_BYTES] == bytes[other..other + RECORD_BYTES], "wrong bytes at {other}");
                read.store(at as u64, Ordering::Release);
            }
        });
        let reached = |mib: u64| {
            eventually("it reads", || reader.is_finished() || read.load(Ordering::Acquire) >= mib << 20);
        };
        reached(2);
        c.kill_node(1);
        reached(12);
        c.kill_node(4);
        reader.join().unwrap();
    });
    drop(m);
    c.start_node(1);
    c.start_node(4);
    // A node that hangs.
    c.wait_up(7);
    let m = Mounted::new(&c, "again", &[]);
    let stuck = rustix::process::Pid::from_child(&c.nodes[1].as_ref().unwrap().child);
    rustix::process::kill_process(stuck, rustix::process::Signal::STOP).unwrap();
    assert!(fs::read(m.at("f")).unwrap() == bytes);
    rustix::process::kill_process(stuck, rustix::process::Signal::CONT).unwrap();
}

/// P8, P12: programs that read and write see no error.
#[test]
fn a_manager_that_is_killed_is_a_delay() {
    let mut c = Cluster::start(6);
    if !can_mount(&c) {
        return;
    }
    let m = Mounted::new(&c, "mnt", &[]);
    let dir = directory(&m, "d");
    let (bytes, mut same) = (common::tree::bytes(12, 9_000_000), tempfile::NamedTempFile::new().unwrap());
    same.write_all(&bytes).unwrap();
    fs::write(dir.join("known"), &bytes).unwrap();
    let mut programs = writers();
    programs.push(Box::new(Reader { file: "known", same, len: bytes.len() as u64, steps: 0 }));
    let ended = run(&mut programs, &dir, false, |steps| {
        for _ in 0..3 {
            steps.more(1);
            c.kill_manager();
            c.start_manager(&[]);
        }
        steps.more(1);
    });
    ended.into_iter().for_each(|end| end.unwrap());
    check(&mut programs, &dir);
    check(&mut programs, &directory(&Mounted::new(&c, "other", &[]), "d"));
}

/// P1, P8, P12: a mount, a node and the manager are killed at once. Programs on another mount continue.
#[test]
fn all_are_killed_at_once() {
    let mut c = Cluster::start(7);
    if !can_mount(&c) {
        return;
    }
    let stays = Mounted::new(&c, "stays", &[]);
    let there = directory(&stays, "there");
    let (mut here, mut others) = (writers(), writers());
    for round in 0..3 {
        let mut m = Mounted::new(&c, &format!("m{round}"), &[]);
        let dir = directory(&m, "here");
        check(&mut here, &dir);
        let ended = run(&mut others, &there, false, |elsewhere| {
            run(&mut here, &dir, true, |steps| {
                steps.more(1);
                m.daemon.kill();
                c.kill_node(2 * round + 1);
                c.kill_manager();
                steps.all_end();
            });
            c.start_manager(&[]);
            elsewhere.more(1);
            c.start_node(2 * round + 1);
            elsewhere.more(1);
        });
        ended.into_iter().for_each(|end| end.unwrap());
        c.wait_up(7);
    }
    let m = Mounted::new(&c, "last", &[]);
    check(&mut here, &directory(&m, "here"));
    check(&mut others, &directory(&m, "there"));
}

/// The kernel holds a directory for a rename that waits for the manager, and a thread of the mount tells the kernel to drop a name
/// there, because the connection to the manager was lost. When the mount is killed then, its process ends all the same: programs get
/// an error, and the spool can be used again.
#[test]
fn a_mount_that_is_killed_while_the_kernel_holds_a_directory_ends() {
    const PROGRAM: &str = r#"
import os, sys
a, b = sys.argv[1] + "/a", sys.argv[1] + "/b"
while True:
    os.rename(a, b)
    os.rename(b, a)
    os.stat(sys.argv[1] + "/c")
"#;
    let Some(mut c) = common::mounted::mountable() else { return };
    let mut m = Mounted::spooled(&c, "m");
    let mut programs: Vec<Child> = (0..6)
        .map(|number| {
            let dir = m.at(&number.to_string());
            fs::create_dir(&dir).unwrap();
            ["a", "b", "c"].iter().for_each(|name| fs::write(dir.join(name), b"x").unwrap());
            Command::new("python3").args(["-c", PROGRAM]).arg(dir).stderr(Stdio::null()).spawn().unwrap()
        })
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    c.kill_manager();
    std::thread::sleep(Duration::from_secs(2));
    m.daemon.child.kill().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let has_ended = loop {
        match m.daemon.child.try_wait().unwrap() {
            Some(_) => break true,
            None if Instant::now() > deadline => break false,
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    if !has_ended {
        // Ends the connection, or this test would wait for it, too.
        let _ = Command::new("umount").arg("-f").arg(&m.path).stderr(Stdio::null()).status();
    }
    assert!(has_ended, "the mount's process does not end");
    programs.iter_mut().for_each(|program| assert!(!program.wait().unwrap().success()));
    drop(m);
    c.start_manager(&[]);
    Mounted::spooled(&c, "again");
}
