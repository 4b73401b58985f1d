#!/usr/bin/env python3
"""The mount beside a plain FUSE passthrough and a GlusterFS mount, in one run (`make bench-mount`).

Writes bench/results/mount.md, mount.json (every figure of every round) and mount.svg. Six nodes and six bricks, 4+2, on one
medium; the passthrough is libfuse's `passthrough_ll` over the same medium: what FUSE itself costs. Systems take turns in
changing order. Needs root, the release build, and Debian's libfuse3-dev, gcc and glusterfs-server (installed where possible).

    python3 bench/mount.py                    three rounds on tmpfs, a few minutes
    python3 bench/mount.py --medium disk
    python3 bench/mount.py --quick --systems tessera,passthrough
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from benchlib import machine, procs, tree_works  # noqa: E402
from benchlib.cluster import Cluster  # noqa: E402
from benchlib.gluster import Gluster  # noqa: E402
from benchlib.plot import COLOURS, _text  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
PASSTHROUGH = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c"
MIB = 1 << 20
# Work: unit, and the goal for Tessera: (kind, value); `passthrough` means times its rate in the same round.
WORKS = {
    "write new, 1 MiB": ("MiB/s", ("passthrough", 0.7)),
    "write known, 1 MiB": ("MiB/s", ("passthrough", 1.0)),
    "read cold, 1 MiB": ("MiB/s", ("passthrough", 0.7)),
    "random write, 4 KiB": ("MiB/s", None),
    "random read cold, 4 KiB": ("MiB/s", ("passthrough", 0.5)),
    "create, one thread": ("files/s", ("rate", 1500)),
    "create, 16 threads": ("files/s", ("rate", 1500)),
    "stat": ("files/s", None),
    "ls -l of 10,000": ("s", ("seconds", 0.3)),
    "read small": ("files/s", None),
    "delete": ("files/s", None),
    "cp -a": ("files/s", ("passthrough", 0.5)),
    "untar": ("files/s", ("passthrough", 0.5)),
    "git clone": ("files/s", ("passthrough", 0.5)),
    "SQLite, commits": ("commits/s", ("passthrough", 0.25)),
    "grep -r, cold": ("files/s", ("passthrough", 0.5)),
    "git status, cold": ("files/s", None),
    "rm -rf": ("files/s", ("passthrough", 0.5)),
}


class Passthrough:
    """libfuse's example over a directory."""

    def __init__(self, directory):
        self.mount_point, self.source = os.path.join(directory, "mnt"), os.path.join(directory, "source")
        self.directory = directory
        os.makedirs(self.mount_point)
        os.makedirs(self.source)
        binary = os.path.join(directory, "passthrough_ll")
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], capture_output=True, text=True, check=True).stdout.split()
        subprocess.run(["cc", "-O2", "-o", binary, PASSTHROUGH, *flags], check=True, capture_output=True)
        self.command = [binary, "-f", "-o", f"source={self.source},writeback", self.mount_point]
        self.start()

    def start(self):
        self.process = procs.start(self.command, os.path.join(self.directory, "log"))
        wait_mounted(self.mount_point)

    def pids(self):
        return [self.process.pid]

    def remount(self):
        subprocess.run(["umount", self.mount_point], check=True)
        self.process.wait(30)
        machine.evict(self.source)
        self.start()

    def close(self):
        subprocess.run(["umount", "--lazy", self.mount_point], capture_output=True)
        procs.stop(self.process)
        machine.remove(self.directory)


class Tessera:
    """A cluster and a mount of it."""

    def __init__(self, directory, binary):
        self.directory, self.binary = directory, binary
        self.mount_point = os.path.join(directory, "mnt")
        os.makedirs(self.mount_point)
        self.cluster = Cluster(binary, directory, 6)
        self.cluster.start_all()
        self.cluster.cli("policy", "set", "tess:/", "redundancy=auto:4+2")
        self.start()

    def start(self):
        command = [self.binary, "mount", self.mount_point, "--manager", self.cluster.address]
        self.process = procs.start(command, os.path.join(self.directory, "logs", "mount.log"))
        wait_mounted(self.mount_point)

    def pids(self):
        return [self.process.pid, *(p.pid for p in self.cluster.processes.values())]

    def remount(self):
        procs.stop(self.process, grace_s=60)
        for name in self.cluster.node_names:
            machine.evict(os.path.join(self.directory, name))
        self.start()

    def close(self):
        procs.stop(self.process, grace_s=60)
        subprocess.run(["umount", "--lazy", self.mount_point], capture_output=True)
        self.cluster.close()


def wait_mounted(path, seconds=30):
    deadline = time.monotonic() + seconds
    while not os.path.ismount(path):
        if time.monotonic() > deadline:
            raise procs.ProcessFailed(f"{path} was not mounted within {seconds} s")
        time.sleep(0.02)


class Work:
    """The workloads on one mount. Each returns the work done and the seconds."""

    def __init__(self, config, system, number):
        self.config, self.system, self.top = config, system, os.path.join(system.mount_point, f"round{number}")
        self.content = os.urandom(config.size_bytes)
        os.makedirs(self.top)

    def path(self, name):
        return os.path.join(self.top, name)

    def timed(self, work, amount):
        pids = self.system.pids()
        cpu, start = procs.cpu_seconds(pids), time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        return {"amount": amount, "seconds": seconds, "cpu_s": procs.cpu_seconds(self.system.pids()) - cpu}

    def _write(self, name):
        with open(self.path(name), "wb", buffering=0) as f:
            view = memoryview(self.content)
            for at in range(0, len(view), MIB):
                f.write(view[at:at + MIB])
            os.fsync(f.fileno())

    def _read(self, name):
        with open(self.path(name), "rb", buffering=0) as f:
            while f.read(MIB):
                pass

    def _random(self, name, flags, each):
        rng, fd = random.Random(7), os.open(self.path(name), flags)
        blocks = len(self.content) // 4096
        for _ in range(self.config.random_ios):
            each(fd, rng.randrange(blocks) * 4096)
        if flags & os.O_RDWR:
            os.fsync(fd)
        os.close(fd)

    def _each(self, names, threads, work):
        def some(k):
            for name in names[k::threads]:
                work(name)
        all_threads = [threading.Thread(target=some, args=(k,)) for k in range(threads)]
        for thread in all_threads:
            thread.start()
        for thread in all_threads:
            thread.join()

    def _create(self, path):
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        os.write(fd, os.urandom(4096))
        os.close(fd)

    def run(self):
        """Every workload in order: (name, figure)."""
        mib, ios = self.config.size_bytes / MIB, self.config.random_ios * 4096 / MIB
        yield "write new, 1 MiB", self.timed(lambda: self._write("a"), mib)
        yield "write known, 1 MiB", self.timed(lambda: self._write("b"), mib)
        self.system.remount()
        yield "read cold, 1 MiB", self.timed(lambda: self._read("a"), mib)
        block = os.urandom(4096)
        yield "random write, 4 KiB", self.timed(
            lambda: self._random("a", os.O_RDWR, lambda fd, at: os.pwrite(fd, block[at % 97:] + block[:at % 97], at)), ios)
        self.system.remount()
        yield "random read cold, 4 KiB", self.timed(lambda: self._random("b", os.O_RDONLY, lambda fd, at: os.pread(fd, 4096, at)), ios)
        for threads, count in ((1, self.config.files // 4), (16, self.config.files)):
            os.mkdir(self.path(f"small{threads}"))
            names = [self.path(f"small{threads}/f{i}") for i in range(count)]
            name = "create, one thread" if threads == 1 else f"create, {threads} threads"
            yield name, self.timed(lambda: self._each(names, threads, self._create), count)
        self.system.remount()
        yield "stat", self.timed(lambda: self._each(names, 1, os.stat), len(names))
        yield "read small", self.timed(lambda: self._each(names, 1, lambda path: open(path, "rb").read()), len(names))
        yield "delete", self.timed(lambda: self._each(names, 1, os.unlink), len(names))
        os.mkdir(self.path("many"))
        entries = self.config.entries
        self._each([self.path(f"many/{i}") for i in range(entries)], 16, lambda path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)))
        self.system.remount()
        listing = lambda: subprocess.run(["ls", "-l", self.path("many")], check=True, stdout=subprocess.DEVNULL)
        yield "ls -l of 10,000", {**self.timed(listing, 1), "entries": entries}
        if self.config.tree_files:
            yield from self._tree_works()
        shutil.rmtree(self.top)

    def _tree_works(self):
        is_cold = False
        for name, work, amount in tree_works.works(self.config.tree_dir, self.top, self.config.tree_files):
            if name is tree_works.COLD:
                self.system.remount()
                is_cold = True
                continue
            if not is_cold:
                # The passthrough keeps a descriptor for each inode that the kernel knows, and may have 20,000.
                machine.forget_inodes()
            yield name, self.timed(work, amount)


def rate(work, row):
    """The rate in the work's own unit."""
    return row["seconds"] * 10_000 / row["entries"] if WORKS[work][0] == "s" else row["amount"] / row["seconds"]


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--quick", action="store_true", help="one small round")
    a.add_argument("--rounds", type=int)
    a.add_argument("--medium", choices=("tmpfs", "disk"), default="tmpfs")
    a.add_argument("--systems", default="passthrough,tessera,gluster")
    a.add_argument("--dir", help="where everything lies (default: by the medium)")
    a.add_argument("--tree", help="the tree that is copied, archived, cloned, searched and removed (default: /usr/include; --quick: linux in it)")
    a.add_argument("--binary", default=os.path.join(TARGET, "release", "tessera"))
    a.add_argument("--out", default=os.path.join(ROOT, "bench", "results", "mount"))
    c = a.parse_args()
    c.rounds = c.rounds or (1 if c.quick else 3)
    c.size_bytes = (64 if c.quick else 512) * MIB
    c.random_ios = 1000 if c.quick else 4000
    c.files = 400 if c.quick else 5000
    c.tree = c.tree or ("/usr/include/linux" if c.quick else "/usr/include")
    c.entries = 1000 if c.quick else 10_000
    c.peer_files = c.files // 8
    c.systems = [s for s in c.systems.split(",") if s in ("passthrough", "tessera", "gluster")]
    c.dir = c.dir or ("/dev/shm/tessera-bench-mount" if c.medium == "tmpfs" else os.path.join(TARGET, "bench-mount"))
    return c


def need_programs(config):
    wanted = [("passthrough", PASSTHROUGH, "libfuse3-dev"), ("passthrough", "/usr/bin/pkg-config", "pkg-config"),
              ("gluster", "/usr/sbin/glusterd", "glusterfs-server")]
    missing = sorted({package for system, path, package in wanted if system in config.systems and not os.path.exists(path)})
    if missing:
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], capture_output=True)
    for system, path, package in wanted:
        if system in config.systems and not os.path.exists(path):
            print(f"leaving {system} out: {package} is not installed", file=sys.stderr)
            config.systems.remove(system)


def one_round(config, number, rows):
    order = config.systems[number % len(config.systems):] + config.systems[:number % len(config.systems)]
    for system in order:
        place = os.path.join(config.dir, system)
        shutil.rmtree(place, ignore_errors=True)
        made = {"passthrough": lambda: Passthrough(place), "tessera": lambda: Tessera(place, config.binary), "gluster": lambda: Gluster(place)}[system]
        if system == "passthrough":
            os.makedirs(place)
        elif system == "tessera":
            os.makedirs(place)
        running = made()
        mine = argparse.Namespace(**vars(config))
        if system == "gluster":
            mine.files, mine.entries, mine.random_ios = config.peer_files, config.entries // 10, config.random_ios // 8
            mine.tree_files = 0
        try:
            for work, row in Work(mine, running, number).run():
                rows.append({"round": number, "system": system, "work": work, "rate": rate(work, row), **row})
                print(f"  {system:12} {work:26} {rate(work, row):10.1f} {WORKS[work][0]}  {row['cpu_s']:.1f} CPU s", flush=True)
        finally:
            running.close()


def median_of(rows, system, work):
    found = [row["rate"] for row in rows if (row["system"], row["work"]) == (system, work)]
    return (statistics.median(found), min(found), max(found)) if found else None


def judge(rows):
    """Goals: (work, wanted, reached, hit)."""
    judged = []
    for work, (_, goal) in WORKS.items():
        ours = median_of(rows, "tessera", work)
        if not goal or not ours:
            continue
        kind, value = goal
        if kind == "passthrough":
            of = {(row["system"], row["round"]): row["rate"] for row in rows if row["work"] == work}
            ratios = [of["tessera", n] / of["passthrough", n] for s, n in of if s == "tessera" and ("passthrough", n) in of]
            if ratios:
                got = statistics.median(ratios)
                judged.append((work, f"≥ {value} of the passthrough", f"{got:.2f}", got >= value))
        elif kind == "seconds":
            judged.append((work, f"≤ {value} s", f"{ours[0]:.2f} s", ours[0] <= value))
        else:
            judged.append((work, f"≥ {value:,}/s", f"{ours[0]:,.0f}/s", ours[0] >= value))
    return judged


def text(work, value):
    return f"{value:.2f}" if WORKS[work][0] == "s" else f"{value:,.0f}"


def markdown(result):
    rows, m = result["rows"], result["machine"]
    out = ["# The mount beside a FUSE passthrough and GlusterFS", "",
           f"{m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB, {m['kernel']}; {result['medium']}; load average before {result['load_before']:.1f}, after {result['load_after']:.1f}.",
           f"`make bench-mount`: {result['rounds']} rounds, systems in turn; medians (least to most). Six nodes or bricks, 4+2; the passthrough keeps one copy and no promise. "
           f"GlusterFS has an eighth of the small files, and not the tree of {result['tree_files']:,} files. \"Cold\": mounted anew, page cache evicted.", "",
           "| work | unit | passthrough | Tessera | GlusterFS | CPU s of Tessera, all processes |", "|---|---|---:|---:|---:|---:|"]
    for work, (unit, _) in WORKS.items():
        cells = []
        for system in ("passthrough", "tessera", "gluster"):
            s = median_of(rows, system, work)
            cells.append(f"{text(work, s[0])} ({text(work, s[1])}–{text(work, s[2])})" if s else "")
        cpu = [row["cpu_s"] for row in rows if (row["system"], row["work"]) == ("tessera", work)]
        out.append(f"| {work} | {unit} | {' | '.join(cells)} | {statistics.median(cpu) if cpu else 0:.1f} |")
    out += ["", "## Goals", "", "| work | asked | reached | |", "|---|---|---|---|"]
    out += [f"| {work} | {asked} | {got} | {'hit' if hit else '**missed**'} |" for work, asked, got, hit in judge(rows)]
    return "\n".join(out) + "\n"


def svg(result):
    """Bars relative to the passthrough of each work."""
    colours, parts, y = {**COLOURS, "passthrough": "#b8b8b8"}, [], 50
    for work, (unit, _) in WORKS.items():
        values = {s: median_of(result["rows"], s, work) for s in ("passthrough", "tessera", "gluster")}
        most = max((v[0] for v in values.values() if v), default=1)
        parts.append(_text(210, y + 26, f"{work}, {unit}", "end", "bold"))
        for system, s in values.items():
            if s:
                parts.append(f'<rect x="300" y="{y + 2}" width="{max(1.0, 400 * s[0] / most):.1f}" height="14" fill="{colours[system]}"/>')
                parts.append(_text(294, y + 13, system, "end"))
                parts.append(_text(306 + 400 * s[0] / most, y + 13, text(work, s[0]), "start"))
                y += 18
        y += 12
    head = _text(16, 24, f"The mount, a FUSE passthrough and GlusterFS on {result['medium']}: medians (bars within a work; seconds: less is better)", "start", "bold")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="800" height="{y}" viewBox="0 0 800 {y}" font-family="sans-serif" '
            'font-size="11"><rect width="100%" height="100%" fill="white"/>' + "\n".join([head, *parts]) + "</svg>\n")


def main():
    config = arguments()
    if not os.environ.get("TESSERA_BENCH_INSIDE"):
        need_programs(config)
    if not machine.enter_namespaces():
        sys.exit("this needs root: mounts and namespaces of its own")
    if not os.path.exists(config.binary):
        sys.exit(f"{config.binary} is missing: cargo build --release -p tessera-cli")
    shutil.rmtree(config.dir, ignore_errors=True)
    config.tree_dir = os.path.join(config.dir, "sources")
    config.tree_files = tree_works.prepare(config.tree, config.tree_dir)
    rows, load, problems = [], machine.load_average(), []
    for number in range(config.rounds):
        try:
            one_round(config, number, rows)
        except (procs.ProcessFailed, OSError, subprocess.SubprocessError) as error:
            problems.append(f"round {number + 1}: {error}".replace(config.dir, "<dir>"))
            print(f"PROBLEM {problems[-1]}", file=sys.stderr)
    result = {"machine": machine.describe({config.medium: config.dir}), "medium": config.medium, "rounds": config.rounds,
              "tree_files": config.tree_files, "load_before": load, "load_after": machine.load_average(), "rows": rows, "problems": problems}
    machine.remove(config.dir)
    for suffix, content in ((".md", markdown(result)), (".json", json.dumps(result, indent=1) + "\n"), (".svg", svg(result))):
        with open(config.out + suffix, "w", encoding="utf-8") as f:
            f.write(content)
    print(markdown(result))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
