//! Locks between mounts: `flock` and `fcntl` as programs on two mounts of one store see them (docs/mount.md). The programs are Python
//! processes, because the owner of an `fcntl` lock is a process. Skipped, with a message, where there is no FUSE.

mod common;

use common::mounted::{Mounted, can_mount};
use common::{Cluster, Special, eventually, http};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

fn with_two_mounts(test: impl FnOnce(&mut Cluster, &mut Mounted, &mut Mounted)) {
    with_two_mounts_silent_for("lock_session_ms=10000", test);
}

fn with_two_mounts_silent_for(session: &'static str, test: impl FnOnce(&mut Cluster, &mut Mounted, &mut Mounted)) {
    let manager = vec!["lock_orphan_ms=500", session];
    let mut c = Cluster::start_special(6, Special { manager, ..Special::default() });
    if !can_mount(&c) {
        return;
    }
    let (mut a, mut b) = (Mounted::new(&c, "a", &[]), Mounted::new(&c, "b", &[]));
    fs::write(a.path.join("f"), b"0").unwrap();
    test(&mut c, &mut a, &mut b);
}

/// Reads a command a line, runs it, prints the result.
const PROGRAM: &str = r#"
import errno, fcntl, os, signal, struct, sys
signal.signal(signal.SIGUSR1, lambda *_: (_ for _ in ()).throw(InterruptedError(errno.EINTR, "")))
f = open(sys.argv[1], "r+b", buffering=0)
def locked(how, word):
    if word[0] == "flock":
        fcntl.flock(f, how)
    else:
        fcntl.lockf(f, how, int(word[3]), int(word[2]))
def add():
    n = int(os.pread(f.fileno(), 100, 0)) + 1
    text = str(n).encode()
    if n % 7 == 0:
        os.ftruncate(f.fileno(), 0)
    os.pwrite(f.fileno(), text.rjust(n % 5 + 3), 0)
    os.ftruncate(f.fileno(), max(len(text), n % 5 + 3))
print("ready", flush=True)
for line in sys.stdin:
    word = line.split()
    try:
        if word[0] in ("flock", "range"):
            how = {"r": fcntl.LOCK_SH, "w": fcntl.LOCK_EX, "u": fcntl.LOCK_UN}[word[1][0]]
            locked(how | (fcntl.LOCK_NB if word[1].endswith("?") else 0), word)
            print("ok", flush=True)
        elif word[0] == "open-file":
            F_OFD_SETLK = 37
            fcntl.fcntl(f, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, int(word[1]), int(word[2]), 0))
            print("ok", flush=True)
        elif word[0] == "test":
            ask = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, int(word[1]), int(word[2]), 0)
            kind, _, start, length, pid = struct.unpack("hhqqi4x", fcntl.fcntl(f, fcntl.F_GETLK, ask))
            print("free" if kind == fcntl.F_UNLCK else f"{'rw'[kind]} {start} {length} {pid}", flush=True)
        elif word[0] == "add":
            for _ in range(int(word[2])):
                if word[1] == "range":
                    fcntl.lockf(f, fcntl.LOCK_EX, 1, 1000)
                    add()
                    fcntl.lockf(f, fcntl.LOCK_UN, 1, 1000)
                else:
                    fcntl.flock(f, fcntl.LOCK_EX)
                    add()
                    fcntl.flock(f, fcntl.LOCK_UN)
            print("ok", flush=True)
        elif word[0] == "file":
            for _ in range(int(word[1])):
                fcntl.flock(f, fcntl.LOCK_EX)
                with open(sys.argv[1] + ".n") as g:
                    n = int(g.read())
                with open(sys.argv[1] + ".n", "w") as g:
                    g.write(str(n + 1))
                fcntl.flock(f, fcntl.LOCK_UN)
            print("ok", flush=True)
        elif word[0] == "pread":
            print(os.pread(f.fileno(), 1000, 0).decode(), os.fstat(f.fileno()).st_size, flush=True)
    except OSError as e:
        print(errno.errorcode[e.errno], flush=True)
"#;

/// A program that has a file open.
struct Program {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn on(m: &Mounted) -> Program {
        let mut child = Command::new("python3")
            .args(["-c", PROGRAM])
            .arg(m.path.join("f"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut program = Program { child, stdin, stdout };
        assert_eq!(program.answer(), "ready");
        program
    }

    fn begin(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_string()
    }

    fn ask(&mut self, line: &str) -> String {
        self.begin(line);
        self.answer()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Starts to wait for a lock. No other request waits, by the manager's count.
    fn begin_waiting(&mut self, c: &Cluster, line: &str) {
        eventually("nobody waits", || waiting(c) == 0);
        self.begin(line);
        eventually("it waits", || waiting(c) == 1);
    }
}

/// Number of lock requests that wait; `u64::MAX` if the manager does not say so yet.
fn waiting(c: &Cluster) -> u64 {
    let metrics = http(c.manager.as_ref().unwrap().metrics.as_ref().unwrap(), "/metrics");
    let line = metrics.lines().find(|line| line.contains("locks_waiting") && !line.starts_with('#'));
    line.map_or(u64::MAX, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[test]
fn locks_exclude_programs_on_other_mounts() {
    with_two_mounts(|_, a, b| {
        let (mut one, mut two) = (Program::on(a), Program::on(b));
        assert_eq!(one.ask("range w 10 10"), "ok");
        assert_eq!(two.ask("range w? 0 10"), "ok");
        assert_eq!(two.ask("range r? 15 1"), "EAGAIN");
        assert_eq!(two.ask("test 0 0"), format!("w 10 10 {}", one.child.id()));
        assert_eq!(one.ask("range u 12 2"), "ok");
        assert_eq!(two.ask("range r? 12 2"), "ok");
        assert_eq!(one.ask("range r 12 2"), "ok", "readers share");
        assert_eq!(two.ask("range w? 12 2"), "EAGAIN");
        assert_eq!(one.ask("flock w"), "ok", "the other kind is free");
        assert_eq!(two.ask("flock r?"), "EAGAIN");
        assert_eq!(two.ask("range w? 100 0"), "ok", "to the end");
        assert_eq!(one.ask("range w? 999999 1"), "EAGAIN");
        assert_eq!(one.ask("flock r"), "ok");
        assert_eq!(two.ask("flock r?"), "ok");
        assert_eq!(two.ask("flock w?"), "EAGAIN");
        // A program that ends releases its locks, on its own mount and for other mounts.
        let mut three = Program::on(a);
        assert_eq!(three.ask("flock w?"), "EAGAIN");
        drop(one);
        eventually("it is gone", || two.ask("flock w?") == "ok");
        assert_eq!(three.ask("range w? 10 2"), "ok");
        drop(two);
        eventually("it is gone, too", || three.ask("flock w?") == "ok");
        assert_eq!(three.ask("range w 0 0"), "ok");
        assert_eq!(three.ask("test 0 0"), "free");
    });
}

/// The kernel says nothing of such a lock when its file is closed.
#[test]
fn locks_of_an_open_file_end_with_it() {
    with_two_mounts(|_, a, b| {
        let (mut one, mut two, mut three) = (Program::on(a), Program::on(b), Program::on(a));
        assert_eq!(one.ask("open-file 0 10"), "ok");
        assert_eq!(two.ask("open-file 5 1"), "EAGAIN");
        assert_eq!(three.ask("range w? 0 1"), "EAGAIN");
        drop(one);
        eventually("it is gone", || two.ask("open-file 0 10") == "ok");
        assert_eq!(three.ask("range w? 0 1"), "EAGAIN");
        drop(two);
        eventually("it is gone, too", || three.ask("range w? 0 10") == "ok");
    });
}

#[test]
fn who_waits_gets_its_turn_and_can_be_interrupted() {
    with_two_mounts(|c, a, b| {
        let (mut one, mut two, mut three) = (Program::on(a), Program::on(b), Program::on(a));
        for kind in ["flock w", "range w 0 0", "range w 5 5"] {
            let unlock = kind.replace('w', "u");
            assert_eq!(one.ask(kind), "ok");
            two.begin_waiting(c, kind);
            assert_eq!(one.ask(&unlock), "ok");
            assert_eq!(two.answer(), "ok");
            three.begin_waiting(c, kind);
            three.signal(rustix::process::Signal::USR1);
            assert_eq!(three.answer(), "EINTR", "{kind}");
            assert_eq!(two.ask(&unlock), "ok");
            assert_eq!(one.ask(&kind.replace('w', "w?")), "ok", "who was interrupted got nothing");
            assert_eq!(one.ask(&unlock), "ok");
        }
        assert_eq!(one.ask("flock w"), "ok");
        two.begin_waiting(c, "flock w");
        two.child.kill().unwrap();
        two.child.wait().unwrap();
        assert_eq!(one.ask("range w 1 1"), "ok");
        assert_eq!(three.ask("range w 2 1"), "ok");
        three.begin_waiting(c, "range w 1 1");
        assert_eq!(one.ask("range w 2 1"), "EDEADLOCK", "Python's other name of EDEADLK");
        assert_eq!(one.ask("range u 1 1"), "ok");
        assert_eq!(three.answer(), "ok");
    });
}

/// The holder of a lock sees what other programs wrote before they unlocked, including the length, even if the file was open all the
/// time.
#[test]
fn what_is_written_under_a_lock_is_seen_under_the_next() {
    with_two_mounts(|c, a, b| {
        let mut programs = [Program::on(a), Program::on(b), Program::on(a)];
        for kind in ["range", "flock"] {
            programs.iter_mut().for_each(|p| p.begin(&format!("add {kind} 8")));
            programs.iter_mut().for_each(|p| assert_eq!(p.answer(), "ok", "{kind}"));
        }
        let [one, two, _] = &mut programs;
        assert_eq!((one.ask("flock r"), two.ask("flock r")), ("ok".into(), "ok".into()));
        assert_eq!(one.ask("pread"), "    48 6");
        assert_eq!(two.ask("pread"), "    48 6");
        assert_eq!(c.ok(&["cat", "tess:/f"]).text(), "    48");
        fs::write(a.path.join("f.n"), "0").unwrap();
        drop((one.ask("flock u"), two.ask("flock u")));
        // The lock is on one file; the data is in another one, which is opened each time.
        programs.iter_mut().for_each(|p| p.begin("file 6"));
        programs.iter_mut().for_each(|p| assert_eq!(p.answer(), "ok"));
        assert_eq!(c.ok(&["cat", "tess:/f.n"]).text(), "18");
    });
}

#[test]
fn a_mount_that_is_killed_loses_its_locks() {
    with_two_mounts(|c, a, b| {
        let (mut one, mut two) = (Program::on(a), Program::on(b));
        assert_eq!(one.ask("range w 0 0"), "ok");
        assert_eq!(one.ask("flock w"), "ok");
        two.begin_waiting(c, "range w 0 0");
        a.daemon.kill();
        assert_eq!(two.answer(), "ok");
        assert_eq!(two.ask("flock w"), "ok");
    });
}

/// Its kernel resets the connection then.
#[test]
fn a_mount_that_is_killed_while_an_answer_is_on_its_way_loses_its_locks() {
    with_two_mounts_silent_for("lock_session_ms=3600000", |c, a, b| {
        let (mut one, mut two, mut three) = (Program::on(a), Program::on(b), Program::on(a));
        assert_eq!(one.ask("range w 0 0"), "ok");
        assert_eq!(two.ask("flock w"), "ok");
        three.begin_waiting(c, "flock w");
        let daemon = rustix::process::Pid::from_child(&a.daemon.child);
        rustix::process::kill_process(daemon, rustix::process::Signal::STOP).unwrap();
        assert_eq!(two.ask("flock u"), "ok");
        eventually("the answer is sent", || waiting(c) == 0);
        a.daemon.kill();
        assert_eq!(two.ask("range w 0 0"), "ok");
        assert_eq!(two.ask("flock w"), "ok");
    });
}

#[test]
fn locks_outlive_a_manager_that_is_killed() {
    with_two_mounts(|c, a, b| {
        let (mut one, mut two) = (Program::on(a), Program::on(b));
        assert_eq!(one.ask("range w 0 10"), "ok");
        assert_eq!(one.ask("flock w"), "ok");
        two.begin_waiting(c, "range w 0 5");
        c.kill_manager();
        c.start_manager(&[]);
        let mut three = Program::on(b);
        assert_eq!(three.ask("range r? 9 1"), "EAGAIN");
        assert_eq!(three.ask("range r? 10 1"), "ok");
        assert_eq!(three.ask("flock r?"), "EAGAIN");
        eventually("it still waits", || waiting(c) == 1);
        assert_eq!(one.ask("range u 0 10"), "ok");
        assert_eq!(two.answer(), "ok");
        assert_eq!(one.ask("flock u"), "ok");
        assert_eq!(three.ask("flock w?"), "ok");
    });
}

/// SQLite coordinates by `fcntl` ranges alone, on a file that all programs have open.
#[test]
fn two_mounts_share_a_database() {
    const INSERTS: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
for i in range(6):
    db.execute("BEGIN IMMEDIATE")
    n = db.execute("SELECT coalesce(max(n), 0) FROM t").fetchone()[0]
    db.execute("INSERT INTO t VALUES (?, ?, ?)", (n + 1, sys.argv[2], "x" * (n * 97 % 3000)))
    db.execute("COMMIT")
print(db.execute("PRAGMA integrity_check").fetchone()[0])
"#;
    with_two_mounts(|_, a, b| {
        let script = |m: &Mounted, text: &str, who: &str| {
            let mut command = Command::new("python3");
            command.args(["-c", text]).arg(m.path.join("db")).arg(who).stdout(Stdio::piped());
            command.spawn().unwrap()
        };
        let create = "import sqlite3,sys; sqlite3.connect(sys.argv[1]).execute('CREATE TABLE t (n INTEGER PRIMARY KEY, who, x)')";
        assert!(script(a, create, "").wait().unwrap().success());
        let programs: Vec<Child> = [(&*a, "1"), (&*b, "2"), (&*a, "3")].map(|(m, who)| script(m, INSERTS, who)).into();
        for program in programs {
            let output = program.wait_with_output().unwrap();
            assert!(output.status.success());
            assert_eq!(output.stdout, b"ok\n");
        }
        let count = "import sqlite3,sys; print(*sqlite3.connect(sys.argv[1]).execute('SELECT count(*), max(n), count(DISTINCT who) FROM t').fetchone())";
        let counted = script(b, count, "").wait_with_output().unwrap();
        assert_eq!(String::from_utf8(counted.stdout).unwrap(), "18 18 3\n");
    });
}

/// Programs on two mounts write their own parts of one page again and again, and sync them: nothing that was synced is lost, with locks on the
/// parts or without.
#[test]
fn two_mounts_write_parts_of_one_page() {
    with_two_mounts(|c, a, b| {
        let program = "import fcntl, os, sys; f = open(sys.argv[1], 'r+b', buffering=0); at = int(sys.argv[2]); locks = sys.argv[3] == 'locks'\n\
                       for i in range(60):\n \
                       if locks: fcntl.lockf(f, fcntl.LOCK_EX, 100, at)\n \
                       text = b'%100d' % i; assert i == 0 or os.pread(f.fileno(), 100, at) == b'%100d' % (i - 1), i\n \
                       os.pwrite(f.fileno(), text, at); os.fsync(f.fileno())\n \
                       if locks: fcntl.lockf(f, fcntl.LOCK_UN, 100, at)";
        for how in ["locks", "none"] {
            fs::write(a.at(how), [b'-'; 300]).unwrap();
            let start = |m: &Mounted, at: &str| {
                let mut python = Command::new("python3");
                python.args(["-c", program]).arg(m.at(how)).args([at, how]).spawn().unwrap()
            };
            let both = [start(a, "0"), start(b, "200")];
            both.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success(), "{how}"));
            let there = c.ok(&["cat", &format!("tess:/{how}")]).stdout;
            let expected = format!("{:>100}{}{:>100}", 59, "-".repeat(100), 59);
            assert_eq!(String::from_utf8_lossy(&there), expected, "{how}");
        }
    });
}

/// P7: programs on one mount open a file, one after another and together, while another mount makes it longer, line by line, and a
/// third program asks for its length: no open, read or close fails, and each reads whole lines, none fewer than before.
#[test]
fn a_file_that_another_mount_makes_longer_can_always_be_opened() {
    with_two_mounts(|_, a, b| {
        let append = "import sys\n\
                      for i in range(120):\n \
                      with open(sys.argv[1], 'a') as f: f.write('%9d\\n' % i)\n\
                      with open(sys.argv[1], 'a') as f: f.write('the end\\n')";
        let read = "import os, sys\nbefore = 0\n\
                    while True:\n \
                    with open(sys.argv[1]) as f: text = f.read(); there = os.fstat(f.fileno()).st_size\n \
                    lines = text.split('\\n'); end = lines[-2:] == ['the end', '']\n \
                    assert len(text) >= before and there >= len(text), (before, len(text), there)\n \
                    assert lines[:-2] == ['%9d' % i for i in range(len(lines) - 2)] and (end or len(text) % 10 == 0), text\n \
                    before = len(text)\n \
                    if end: break";
        fs::write(b.at("log"), "").unwrap();
        let start = |m: &Mounted, program: &str| {
            Killed(Command::new("python3").args(["-c", program]).arg(m.at("log")).spawn().expect("python3 starts"))
        };
        let mut programs = [start(a, read), start(a, read), start(a, read), start(b, append)];
        for program in &mut programs {
            assert!(program.0.wait().unwrap().success());
        }
    });
}

/// P7: threads of one process that mix locks of the process and of open files, on overlapping ranges and with many waiters,
/// all get their turn.
#[test]
fn waiters_among_the_threads_of_a_process_get_their_turn() {
    with_two_mounts(|c, a, b| {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/lock_threads.py");
        let start = |m: &Mounted, seed: &str| {
            let mut command = Command::new("python3");
            command.arg(program).arg(m.path.join("f")).args(["16", "40", seed]);
            Killed(command.stdout(Stdio::null()).spawn().expect("python3 starts"))
        };
        for seed in ["1", "2"] {
            let mut programs = [start(a, seed), start(b, "3")];
            eventually("every thread has had all its locks", || {
                programs.iter_mut().all(|p| p.0.try_wait().unwrap().is_some_and(|status| status.success()))
            });
        }
        eventually("no request waits any more", || waiting(c) == 0);
    });
}

/// P7: programs on two mounts enter a section by the lock file that its holder removes: they lock it, and look whether its name still
/// stands for it. None enters while another one is inside.
#[test]
fn a_lock_file_that_its_holder_removes_lets_one_program_in() {
    let program = "import fcntl, os, sys, time\n\
                   path, inside, entered = sys.argv[1], sys.argv[2], 0\n\
                   while entered < 40:\n \
                   try:\n  \
                   f = open(path, 'w')\n  \
                   fcntl.flock(f, fcntl.LOCK_EX)\n  \
                   if os.stat(path).st_ino != os.fstat(f.fileno()).st_ino: continue\n \
                   except FileNotFoundError: continue\n \
                   os.mkdir(inside)\n \
                   time.sleep(0.001)\n \
                   os.rmdir(inside)\n \
                   os.unlink(path)\n \
                   entered += 1";
    with_two_mounts(|c, a, b| {
        let inside = c.path().join("inside");
        let start = |m: &Mounted| {
            let mut python = Command::new("python3");
            Killed(python.args(["-c", program]).arg(m.at("lock")).arg(&inside).spawn().expect("python3 starts"))
        };
        let mut programs = [start(a), start(b), start(a), start(b)];
        programs.iter_mut().for_each(|p| assert!(p.0.wait().unwrap().success()));
    });
}

/// P7: git's way to change a reference: whoever creates `ref.lock` reads `ref`, writes its successor, and renames that over it. Programs on two
/// mounts lose no change, though one on each keeps the reference open.
#[test]
fn a_file_that_is_replaced_under_its_lock_file_loses_no_change() {
    let program = "import os, sys\n\
                   path, changes = sys.argv[1], 0\n\
                   kept = open(path)\n\
                   while changes < 60:\n \
                   try: lock = os.open(path + '.lock', os.O_CREAT | os.O_EXCL | os.O_WRONLY)\n \
                   except FileExistsError: continue\n \
                   os.write(lock, b'%d' % (int(open(path).read()) + 1)); os.close(lock)\n \
                   os.rename(path + '.lock', path)\n \
                   changes += 1\n \
                   if changes % 10 == 0: kept = open(path)";
    with_two_mounts(|c, a, b| {
        fs::write(a.path.join("ref"), b"0").unwrap();
        let start = |m: &Mounted| {
            let mut python = Command::new("python3");
            Killed(python.args(["-c", program]).arg(m.at("ref")).spawn().expect("python3 starts"))
        };
        let mut programs = [start(a), start(b), start(a), start(b)];
        programs.iter_mut().for_each(|p| assert!(p.0.wait().unwrap().success()));
        assert_eq!(String::from_utf8_lossy(&c.ok(&["cat", "tess:/ref"]).stdout), "240");
    });
}

/// A program that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a program writes through a map under a lock is there for the next holder on another mount: the first time, when the page comes from
/// the store, and later, when the kernel has it.
#[test]
fn what_is_written_through_a_map_under_a_lock_is_committed() {
    const MAPPED: &str = r#"
import fcntl, mmap, sys
f = open(sys.argv[1], "r+b", buffering=0)
m = None
for line in sys.stdin:
    fcntl.lockf(f, fcntl.LOCK_EX)
    m = m or mmap.mmap(f.fileno(), 8192)
    m[5000:5005] = line.strip().encode()
    fcntl.lockf(f, fcntl.LOCK_UN)
    print("done", flush=True)
"#;
    with_two_mounts(|_, a, b| {
        fs::write(a.path.join("mapped"), [b'.'; 8192]).unwrap();
        let mut command = Command::new("python3");
        command.args(["-c", MAPPED]).arg(a.path.join("mapped")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut writer = command.spawn().unwrap();
        let (mut orders, mut answers) = (writer.stdin.take().unwrap(), BufReader::new(writer.stdout.take().unwrap()));
        for word in ["first", "again", "third"] {
            writeln!(orders, "{word}").unwrap();
            let mut line = String::new();
            answers.read_line(&mut line).unwrap();
            assert_eq!(line, "done\n");
            let read = "import fcntl, os, sys; f = open(sys.argv[1], 'rb', buffering=0); fcntl.lockf(f, fcntl.LOCK_SH); print(os.pread(f.fileno(), 5, 5000).decode())";
            let output = Command::new("python3").args(["-c", read]).arg(b.path.join("mapped")).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{word}\n"));
        }
        drop(orders);
        assert!(writer.wait().unwrap().success());
    });
}
