"""Common programs on a mounted store: each does its work, and its output is compared from another mount.

tests/suites.py runs them. Each takes a `Place` and returns a short text on what it did; a failure is an exception.
"""

import fcntl
import filecmp
import os
import pathlib
import random
import shutil
import sqlite3
import subprocess
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A tree with the usual entries: small and large files, deep directories, links, modes; small enough for daily runs.
TREE = [pathlib.Path("/usr/include/linux"), pathlib.Path("/etc")]
# The files that make this machine a Debian: thousands of names, links, programs, databases.
SYSTEM = [pathlib.Path(top) for top in ("/etc", "/usr/sbin", "/usr/share/zoneinfo", "/usr/share/perl5", "/var/lib/dpkg/info", "/var/lib/dpkg/alternatives")]
# A program's sources as its authors publish them, with a makefile and a test; the crate that carries them.
SOURCES = ("bzip2-sys", "0.1.13", "bzip2-1.0.8")


class Place:
    """A directory on a mount, the same directory on another mount, and scratch space outside the store."""

    def __init__(self, here, there, scratch):
        self.here, self.there, self.scratch = here, there, scratch

    def under(self, name):
        (self.here / name).mkdir()
        scratch = self.scratch / name
        scratch.mkdir()
        return Place(self.here / name, self.there / name, scratch)


def run(*command, **more):
    """Runs a command that must succeed; returns its stdout."""
    done = subprocess.run([str(w) for w in command], capture_output=True, text=True, errors="replace", **more)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def source(place, tops=TREE):
    """A tree to copy: those of `tops` that are here and readable, without files that change meanwhile."""
    tree = place.scratch / "tree"
    for top in tops:
        if top.is_dir():
            shutil.copytree(top, tree / str(top).strip("/").replace("/", "-"), symlinks=True, ignore_dangling_symlinks=True)
    return tree


def names(tree):
    return sum(len(files) + len(directories) for _, directories, files in os.walk(tree))


def tar(place):
    """Stores a system's files through tar. tar finds no difference from the other mount, and reading them back gives the same archive."""
    tree = source(place, SYSTEM)
    archive = place.scratch / "a.tar"
    run("tar", "-C", tree, "--sort=name", "-cf", archive, ".")
    run("tar", "-C", place.here, "--same-owner", "-xpf", archive)
    run("tar", "-C", place.there, "--compare", "-f", archive)
    back = place.scratch / "b.tar"
    run("tar", "-C", place.there, "--sort=name", "-cf", back, ".")
    # The times of the top directory are not part of the tree.
    run("tar", "-C", tree, "--compare", "-f", back, "--exclude=.", "--exclude=./")
    return f"{names(tree)} names in and out, no difference"


def rsync(place):
    """Copies both ways with checksums; a second run finds nothing to do."""
    tree = source(place)
    args = ["rsync", "-aH", "--checksum", "--itemize-changes"]
    run(*args, f"{tree}/", f"{place.here}/")
    again = run(*args, "--dry-run", f"{tree}/", f"{place.there}/")
    if again:
        raise RuntimeError(f"rsync would copy again:\n{again[:2000]}")
    back = place.scratch / "back"
    run(*args, f"{place.there}/", f"{back}/")
    again = run(*args, "--dry-run", f"{tree}/", f"{back}/")
    if again:
        raise RuntimeError(f"what came back is different:\n{again[:2000]}")
    return f"{names(tree)} names both ways, equal by checksum"


def git(place):
    """A clone, its fsck, an edit, a commit, a repack and a clone of the clone; all on the mount."""
    origin = place.scratch / "origin"
    run("git", "init", "-q", origin)
    me = ["-c", "user.name=Test", "-c", "user.email=test@localhost"]
    for top in ("docs", "bench", "crates/policy", "crates/cli"):
        if (ROOT / top).is_dir():
            ignore = shutil.ignore_patterns("target", "results")
            shutil.copytree(ROOT / top, origin / top, ignore=ignore)
            run("git", "-C", origin, "add", ".")
            run("git", "-C", origin, *me, "commit", "-qm", top)
    clone, second = place.here / "clone", place.there / "second"
    run("git", "clone", "-q", origin, clone)
    run("git", "-C", clone, "fsck", "--full", "--strict")
    with open(clone / "docs" / "hints.md", "a", encoding="utf-8") as f:
        f.write("one line more\n")
    run("git", "-C", clone, *me, "commit", "-qam", "edit")
    run("git", "-C", clone, "repack", "-adq")
    run("git", "clone", "-q", place.there / "clone", second)
    run("git", "-C", second, "fsck", "--full", "--strict")
    if run("git", "-C", second, "status", "--porcelain") or run("git", "-C", clone, "status", "--porcelain"):
        raise RuntimeError("git reports changes in an unchanged tree")
    if not filecmp.cmp(clone / "docs" / "hints.md", second / "docs" / "hints.md", shallow=False):
        raise RuntimeError("the clones differ")
    return f"{names(second)} names cloned twice, fsck finds nothing"


def sources():
    """The directory of SOURCES, fetched once."""
    crate, version, tree = SOURCES
    place = ROOT / "target" / "suites" / f"{crate}-{version}"
    if not place.is_dir():
        manifest = place.with_suffix(".fetch")
        (manifest / "src").mkdir(parents=True, exist_ok=True)
        (manifest / "src" / "lib.rs").touch()
        dependency = f'[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2024"\n[dependencies]\n{crate} = "={version}"\n[workspace]\n'
        (manifest / "Cargo.toml").write_text(dependency)
        run("cargo", "vendor", "--quiet", "--manifest-path", manifest / "Cargo.toml", manifest / "vendor")
        (manifest / "vendor" / crate).rename(place)
        shutil.rmtree(manifest)
    return place / tree


def build(place):
    """make compiles a source tree on the mount and tests the output; on the other mount make has nothing to do."""
    tree = sources()
    shutil.copytree(tree, place.here / "src")
    run("make", "-s", "-j4", "-C", place.here / "src", "all")
    run("make", "-s", "-C", place.there / "src", "check")
    again = run("make", "-C", place.there / "src", "libbz2.a", "bzip2", "bzip2recover")
    if "-o " in again or "-c " in again or "ar " in again:
        raise RuntimeError(f"make finds work to do again: {again}")
    return f"{names(tree)} files copied, compiled and tested on one mount, tested on the other; nothing to make again"


def sqlite(place):
    """Transactions from two threads of this process and, alternating, from the other mount, in each journal mode; the sums match."""
    rows = 0
    for mode in ("DELETE", "TRUNCATE", "PERSIST"):
        path = place.here / f"{mode}.db"
        with sqlite3.connect(path, timeout=60) as db:
            if db.execute(f"PRAGMA journal_mode = {mode}").fetchone()[0].upper() != mode:
                raise RuntimeError(f"no journal mode {mode}")
            db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, who TEXT, bytes BLOB)")
        wrong = []

        def insert(who, path=path, wrong=wrong):
            try:
                db = sqlite3.connect(path, timeout=60)
                for i in range(25):
                    with db:
                        db.execute("BEGIN IMMEDIATE")
                        db.execute("INSERT INTO t (who, bytes) VALUES (?, ?)", (who, os.urandom(random.randrange(9000))))
                db.close()
            except sqlite3.Error as error:
                wrong.append(f"{who} in mode {path.name}: {error}")

        threads = [threading.Thread(target=insert, args=(who,)) for who in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if wrong:
            raise RuntimeError("; ".join(wrong))
        with sqlite3.connect(place.there / f"{mode}.db", timeout=60) as db:
            db.execute("INSERT INTO t (who) VALUES ('three')")
        db.close()
        db = sqlite3.connect(path, timeout=60)
        found = dict(db.execute("SELECT who, count(*) FROM t GROUP BY who"))
        if found != {"one": 25, "two": 25, "three": 1} or db.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
            raise RuntimeError(f"mode {mode}: {found}, integrity {db.execute('PRAGMA integrity_check').fetchall()[:3]}")
        rows += sum(found.values())
        db.close()
    return f"{rows} rows in 3 journal modes, two mounts, integrity ok"


def turns(place):
    """Two mounts write one database in turns, long enough for each to decide about its locks by itself, and then at once; so do they with a
    counter under `flock`. No row and no step is missing."""
    both, rows, wrong = (place.here / "t.db", place.there / "t.db"), 0, []

    def insert(path, who, count):
        db = sqlite3.connect(path, timeout=60)
        try:
            for _ in range(count):
                with db:
                    db.execute("BEGIN IMMEDIATE")
                    [[last]] = db.execute("SELECT coalesce(max(id), 0) FROM t")
                    db.execute("INSERT INTO t (id, who) VALUES (?, ?)", (last + 1, who))
        except sqlite3.Error as error:
            wrong.append(f"{who}: {error}")
        finally:
            db.close()

    def count(path, times):
        for _ in range(times):
            with open(path, "r+", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                steps = int(file.read())
                file.seek(0)
                file.write(f"{steps + 1}\n")

    db = sqlite3.connect(both[0], timeout=60)
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, who TEXT)")
    db.close()
    for turn in range(8):
        insert(both[turn % 2], f"turn {turn}", 12)
        rows += 12
    at_once = [threading.Thread(target=insert, args=(path, str(path), 40)) for path in both]
    counters = (place.here / "steps", place.there / "steps")
    counters[0].write_text("0\n", encoding="utf-8")
    for turn in range(6):
        count(counters[turn % 2], 10)
    at_once += [threading.Thread(target=count, args=(path, 40)) for path in counters]
    for thread in at_once:
        thread.start()
    for thread in at_once:
        thread.join()
    rows += 2 * 40
    for path in both:
        db = sqlite3.connect(path, timeout=60)
        found = db.execute("SELECT count(*), max(id) FROM t").fetchone()
        integrity = db.execute("PRAGMA integrity_check").fetchone()[0]
        db.close()
        if wrong or found != (rows, rows) or integrity != "ok":
            raise RuntimeError(f"{path}: {found} of {rows} rows, integrity {integrity}; {'; '.join(wrong)}")
    steps = [int(path.read_text(encoding="utf-8")) for path in counters]
    if steps != [60 + 2 * 40] * 2:
        raise RuntimeError(f"{steps} steps counted on two mounts, of {60 + 2 * 40}")
    return f"{rows} rows and {steps[0]} steps by two mounts in turns and at once, none missing"


def fio(place):
    """Blocks with checksums, written at random and read back: by calls, by mmap, unbuffered with syncs in between."""
    common = ["--directory", place.here, "--size=24M", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--verify_state_save=0", "--output-format=terse"]
    jobs = [
        ["--name=random", "--rw=randwrite", "--bs=4k-64k", "--ioengine=psync", "--fsync=64", "--number_ios=400"],
        ["--name=mapped", "--rw=randwrite", "--bs=4k", "--ioengine=mmap", "--number_ios=400"],
        ["--name=stream", "--rw=write", "--bs=1M", "--ioengine=psync", "--numjobs=2"],
    ]
    for job in jobs:
        run("fio", *job, *common)
    return f"{len(jobs)} ways of writing verified"


def together(place):
    """Writers on both mounts; each reads files that the other has closed."""
    rounds, failures = 40, []

    def work(mine, sends, awaits, who):
        rng = random.Random(who)
        for i in range(rounds):
            content = rng.randbytes(rng.choice([10, 5000, 300_000]))
            (mine / f"{who}{i}").write_bytes(content)
            sends.append(content)
            if i < len(awaits):
                there = "b" if who == "a" else "a"
                if (mine / f"{there}{i}").read_bytes() != awaits[i]:
                    failures.append(f"{who}: {there}{i} is not what was closed")

    sent = {"a": [], "b": []}
    threads = [threading.Thread(target=work, args=(place.here, sent["a"], sent["b"], "a")),
               threading.Thread(target=work, args=(place.there, sent["b"], sent["a"], "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for who, contents in sent.items():
        for at in (place.here, place.there):
            failures += [f"{at / who}{i}" for i, content in enumerate(contents) if (at / f"{who}{i}").read_bytes() != content]
    if failures:
        raise RuntimeError("; ".join(failures[:5]))
    return f"{2 * rounds} files written on two mounts, all read on both"


# Name: (function, program it needs, package that has it).
ALL = {
    "tar": (tar, "tar", "tar"),
    "rsync": (rsync, "rsync", "rsync"),
    "git": (git, "git", "git"),
    "build": (build, "make", "make"),
    "sqlite": (sqlite, None, None),
    "turns": (turns, None, None),
    "fio": (fio, "fio", "fio"),
    "together": (together, None, None),
}


def run_all(here, there, scratch, require):
    """Runs all programs; returns whether all succeeded. A missing program is installed if required, else skipped with a message."""
    wanted = sorted({package for _, program, package in ALL.values() if program and not shutil.which(program)})
    if wanted and require:
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "-qq", *wanted)
    good = True
    for name, (work, program, _) in ALL.items():
        if program and not shutil.which(program):
            print(f"{name}: skipped, {program} is not installed")
            continue
        try:
            print(f"{name}: {work(Place(here, there, scratch).under(name))}", flush=True)
        except Exception as error:  # noqa: BLE001 - the other programs still run
            good = False
            print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
    return good
