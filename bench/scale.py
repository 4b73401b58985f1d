#!/usr/bin/env python3
"""A store of ten million small files and of 64 TB, made through the client library: rates over time, memory, restarts, lists, status.

    python3 bench/scale.py                              ten million files, 64 TB logical (40 minutes, 30 GB of disk)
    python3 bench/scale.py --files 1000000 --terabytes 6 a tenth
    python3 bench/scale.py --only idle                  CPU time of stores at rest alone

Real managers and nodes, as `bench/small.py` starts them. The files are stored by `Client::put_small`: packs of chunks that are really coded, stored and
synced; no two have equal bytes, and a sample is read back and compared. The 64 TB are files whose extents name chunks that
the store has: the client asks about every one, and commits, without hashing a byte again (crates/client/examples/scale).
Writes bench/results/scale.md, scale.json and scale.svg.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, HERE)
from benchlib import machine, procs, report, scaletext  # noqa: E402
from benchlib.cluster import Cluster, free_ports  # noqa: E402

TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
# Files of one command of the driver; a row of the result is four of them.
STEP_FILES, ROW_FILES = 25_000, 100_000
NODES, THREADS = 6, 4
CHUNK_BYTES, EXTENTS = 1 << 20, 65_536
RESTARTS, STATUSES, PROBE_EVERY_S = 5, 20, 5
IDLE_NODES = (8, 32)
LONG = "tess:/scale/long"


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--files", type=int, default=10_000_000)
    a.add_argument("--terabytes", type=float, default=64, help="bytes of the files that name known chunks, in 10^12")
    a.add_argument("--pool", type=int, default=1_024, help="distinct chunks of these files, of 1 MiB each")
    a.add_argument("--dir", default=os.path.join(ROOT, "target", "bench-scale"), help="where the daemons live")
    a.add_argument("--only", choices=["load", "idle"], help="only a part; the other one stays as it is in the results")
    a.add_argument("--idle-s", type=float, default=120, help="seconds at rest that are measured")
    a.add_argument("--note", help="what else ran on this machine, for the page")
    a.add_argument("--idle-note", help="the same, below the stores at rest")
    a.add_argument("--text", action="store_true", help="only write page and plot anew from scale.json")
    a.add_argument("--results", default=os.path.join(HERE, "results"))
    a.add_argument("--binary", default=os.path.join(TARGET, "release", "tessera"))
    a.add_argument("--driver", default=os.path.join(TARGET, "release", "examples", "scale"))
    return a.parse_args()


def memory_bytes(pid, what="VmRSS"):
    """`what` of a process: `VmRSS` counts pages of mapped files too, `RssAnon` does not."""
    with open(f"/proc/{pid}/status") as f:
        return 1024 * next(int(line.split()[1]) for line in f if line.startswith(what + ":"))


def sizes(directory):
    """Bytes of the database, of SQLite's log, of snapshots (one that is written counts, too), and of the command log of a manager."""
    found = {"db": 0, "wal": 0, "snapshots": 0, "log": 0}
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                size = os.path.getsize(os.path.join(root, name))
            except OSError:
                continue
            kinds = {"manager.db": "db", "manager.db-wal": "wal"}
            kind = kinds.get(name) or ("log" if name.endswith(".log") else "snapshots" if root.endswith("/log") else None)
            if kind:
                found[kind] += size
    return found


class Store:
    """The cluster, its drivers, and where its manager lives."""

    def __init__(self, config):
        self.config = config
        machine.remove(config.dir)
        self.cluster = Cluster(config.binary, config.dir, NODES, manager_set=["max_voters=1"])
        self.home = os.path.join(config.dir, "manager")
        self.cluster.start_all()
        directories = max(config.files // 1000, 1)
        self.drivers = [procs.Driver(config.driver, os.path.join(config.dir, "logs", "driver.log")) for _ in range(2)]
        for driver in self.drivers:
            driver.ask("connect", self.cluster.address)
            driver.ask("plan", config.files, directories)
        self.load, self.probes = self.drivers

    @property
    def manager(self):
        return self.cluster.pid("manager")

    def manager_cpu(self):
        return procs.cpu_seconds([self.manager])

    def others_cpu(self):
        """CPU seconds of this machine that were not the store's: other programs, and this one."""
        own = [driver.pid for driver in self.drivers] + [process.pid for process in self.cluster.processes.values()]
        return procs.machine_cpu_seconds() - procs.cpu_seconds(own)

    def cpu_of(self, work):
        """Seconds and CPU seconds of the manager, of `work`, and what it returned."""
        cpu, began = self.manager_cpu(), time.monotonic()
        result = work()
        return {"s": time.monotonic() - began, "manager_cpu_s": self.manager_cpu() - cpu}, result

    def close(self):
        for driver in self.drivers:
            driver.close()
        self.cluster.close()


class Watch(threading.Thread):
    """Samples the manager every second, and every few seconds times one put, one get and one `status`."""

    def __init__(self, store):
        super().__init__(daemon=True)
        self.store, self.samples, self.probes, self.over = store, [], [], threading.Event()
        self.number = 0

    def sample(self):
        store = self.store
        row = {"at": time.monotonic(), "rss": memory_bytes(store.manager), "anon": memory_bytes(store.manager, "RssAnon"),
               "manager_cpu_s": store.manager_cpu(), "nodes_cpu_s": procs.cpu_seconds(store.cluster.pids()["node"])}
        self.samples.append({**row, **sizes(store.home)})

    def probe(self):
        facts = self.store.probes.ask("probe", self.number)
        self.number += 1
        began = time.monotonic()
        self.store.cluster.cli("status", "--json")
        self.probes.append({"at": began, "status_s": time.monotonic() - began, **facts})

    def run(self):
        due = 0
        while not self.over.wait(1):
            self.sample()
            if time.monotonic() >= due:
                self.probe()
                due = time.monotonic() + PROBE_EVERY_S

    def __enter__(self):
        self.sample()
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()
        self.sample()


def load(store):
    """Stores all files; rows by step, and what was sampled meanwhile."""
    files, steps = store.config.files, []
    facts = store.load.ask("dirs")
    with Watch(store) as watch:
        for first in range(0, files, STEP_FILES):
            count = min(STEP_FILES, files - first)
            others = store.others_cpu()
            used, done = store.cpu_of(lambda: store.load.ask("files", first, count, THREADS))
            steps.append({"files": count, "at": time.monotonic(), "bytes": done["bytes"], "others_cpu_s": store.others_cpu() - others, **used, **sizes(store.home)})
            if (first + count) % (10 * ROW_FILES) == 0:
                print(f"{first + count:,} files, {count / used['s']:,.0f} files/s", flush=True)
    return {"dirs": facts, "steps": steps, "samples": watch.samples, "probes": watch.probes}


def settle(store, limit_s=180):
    """Waits until the manager uses little CPU: nodes have proven parity, and snapshots are made."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        before = store.manager_cpu()
        time.sleep(3)
        if store.manager_cpu() - before < 0.15:
            return


def restarts(store):
    seconds = []
    for _ in range(RESTARTS):
        store.cluster.kill("manager")
        began = time.monotonic()
        store.cluster.start("manager")
        store.cluster.cli("status", "--json", "--wait", 120)
        seconds.append(time.monotonic() - began)
    store.cluster.wait_up()
    return report.spread(seconds)


def statuses(store):
    seconds = []
    for _ in range(STATUSES):
        began = time.monotonic()
        store.cluster.cli("status", "--json")
        seconds.append(time.monotonic() - began)
        time.sleep(0.2)
    return report.spread(seconds)


def listing(store, least, *words):
    """One `tessera ls`: seconds to the first bytes and to the last, lines, memory of the command, and how far the manager's rose meanwhile."""
    before = memory_bytes(store.manager)
    with open(f"/proc/{store.manager}/clear_refs", "w") as f:
        f.write("5")  # The most that it had begins anew.
    began = time.monotonic()
    process = subprocess.Popen([store.config.binary, "ls", *words], stdout=subprocess.PIPE, env=store.cluster.environment())
    first = process.stdout.read(1)
    first_s, lines = time.monotonic() - began, first.count(b"\n")
    while piece := process.stdout.read(1 << 20):
        lines += piece.count(b"\n")
    _, code, used = os.wait4(process.pid, 0)
    process.returncode = code
    if code != 0 or lines < least:
        raise procs.ProcessFailed(f"ls {words} ended with {code} after {lines:,} lines of at least {least:,}")
    return {"first_s": first_s, "s": time.monotonic() - began, "lines": lines, "client_bytes": used.ru_maxrss * 1024,
            "client_cpu_s": used.ru_utime + used.ru_stime, "manager_grew_bytes": memory_bytes(store.manager, "VmHWM") - before}


def reads(store):
    """Look-ups and reads of files drawn at random: the rate, and the manager's CPU time for each."""
    files, out = store.config.files, {}
    for name, words, count in (("stat", ("stat", files, 20_000, THREADS), 20_000), ("get", ("verify", files, 4_000), 4_000)):
        used, _ = store.cpu_of(lambda: store.load.ask(*words))
        out[name] = {"count": count, **used}
    return out


def named(store):
    """Files that name known chunks, up to the logical bytes."""
    config = store.config
    store.load.ask("pool", config.pool, CHUNK_BYTES)
    count = max(round(config.terabytes * 1e12 / (EXTENTS * CHUNK_BYTES)), 1)
    settle(store)
    steps = []
    with Watch(store) as watch:
        for number in range(count):
            used, done = store.cpu_of(lambda: store.load.ask("named", number, 1, EXTENTS))
            steps.append({"at": time.monotonic(), "bytes": done["bytes"], **used, **sizes(store.home)})
    return {"steps": steps, "samples": watch.samples, "probes": watch.probes}


def standby(store):
    """A second manager joins: how long it takes to copy the database, and its memory."""
    home, address = os.path.join(store.config.dir, "standby"), f"127.0.0.1:{free_ports(1)[0]}"
    words = [store.config.binary, "manager", "--log-level", "warn", "--follow-stdin", "--set", "max_voters=1", "--host", "standby",
             "--dir", home, "--listen", address, "--join", store.cluster.address]
    began = time.monotonic()
    process = procs.start(words, store.cluster.log("standby"), stdin=subprocess.PIPE)
    store.cluster.processes["standby"] = process
    votes = lambda s: any(p["host"] == "standby" and p["votes"] for p in s["log"]["peers"])  # noqa: E731
    store.cluster.wait_for(votes, "the standby to vote", 600)
    joined_s = time.monotonic() - began
    count = min(100_000, store.config.files // 4)
    began = time.monotonic()
    for first in range(0, count, STEP_FILES):
        store.load.ask("files", first, min(STEP_FILES, count - first), THREADS)
    facts = {"joined_s": joined_s, "rewritten_files": count, "rewrites_s": time.monotonic() - began,
             "rss": memory_bytes(process.pid), "anon": memory_bytes(process.pid, "RssAnon"), "leader_rss": memory_bytes(store.manager)}
    # Its copies need room that the rest of the run may lack.
    store.cluster.cli("manager", "remove", "standby")
    procs.stop(store.cluster.processes.pop("standby"))
    machine.remove(home)
    return facts


def removal(store):
    """Removes the long directory, and collects what that leaves."""
    used, _ = store.cpu_of(lambda: store.cluster.cli("rm", "-r", LONG, "-q", timeout_s=1800))
    began = time.monotonic()
    store.cluster.cli("gc", "-q", timeout_s=1800)
    return {**used, "files": store.config.files // 10, "gc_s": time.monotonic() - began, "disk_bytes": store.cluster.stored_bytes()}


def measure_store(config):
    store, out = Store(config), {}
    try:
        for name, work in (
            ("load", load), ("settled", settle), ("status", statuses), ("reads", reads),
            ("ls", lambda s: listing(s, config.files // 10, LONG)), ("ls_long", lambda s: listing(s, config.files // 10, "-l", LONG)),
            ("ls_all", lambda s: listing(s, config.files, "-r", "tess:/scale")),
            ("restart", restarts), ("standby", standby), ("named", named), ("settled_again", settle), ("status_full", statuses),
            ("restart_full", restarts), ("removal", removal),
        ):
            began = time.monotonic()
            out[name] = work(store)
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
            if name == "load":
                out["disk_bytes"], out["sizes"] = store.cluster.stored_bytes(), sizes(store.home)
            if name == "restart_full":
                out["sizes_full"], status = sizes(store.home), store.cluster.status()
                out["store"] = {key: status.get(key) for key in ("files", "directories", "versions", "chunks", "bytes")}
        return out
    finally:
        store.close()


def descendants(pid):
    """A process and all below it."""
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        try:
            with open(f"/proc/{pid}/task/{pid}/children") as f:
                todo += map(int, f.read().split())
        except OSError:
            pass
    return found


def idle(config, nodes):
    """CPU time of `tessera up` at rest, all processes, as a share of one core; by role, and context switches a second."""
    directory = os.path.join(config.dir, f"idle{nodes}")
    machine.remove(directory)
    os.makedirs(directory)
    words = [config.binary, "up", "--nodes", nodes, "--listen", "127.0.0.1:0", "--dir", os.path.join(directory, "store")]
    process = procs.start(words, os.path.join(directory, "up.log"))
    try:
        deadline = time.monotonic() + 120
        while "are up" not in open(os.path.join(directory, "up.log")).read():
            if time.monotonic() > deadline or process.poll() is not None:
                raise procs.ProcessFailed(f"`tessera up` with {nodes} nodes is not up after 120 s")
            time.sleep(0.5)
        time.sleep(20)
        pids = descendants(process.pid)
        by_role = lambda: {role: scaletext.run_seconds([pid for pid in pids if scaletext.role_of(pid) == role]) for role in ("up", "manager", "node")}  # noqa: E731
        before, switches, began = by_role(), scaletext.switches(pids), time.monotonic()
        time.sleep(config.idle_s)
        seconds, after = time.monotonic() - began, by_role()
        share = {role: 100 * (after[role] - before[role]) / seconds for role in after}
        return {"nodes": nodes, "seconds": seconds, "percent": sum(share.values()), "by_role": share, "processes": len(pids),
                "switches_per_s": (scaletext.switches(pids) - switches) / seconds}
    finally:
        procs.stop(process, 60)
        machine.remove(directory)


def floor(config):
    """In a process of its own: a child counts the memory that its parent had when it was started as its own most."""
    schema = os.path.join(ROOT, "crates", "manager", "src", "db", "schema.sql")
    return procs.load_json(procs.run([sys.executable, os.path.join(HERE, "benchlib", "scalefloor.py"), schema, config.dir], timeout_s=600))


def save(config, result):
    for key, text in (("note", config.note), ("idle_note", config.idle_note)):
        if text:
            result[key] = text
    report.save(config.results, "scale", result, scaletext.markdown(result))
    if "run" in result:
        with open(os.path.join(config.results, "scale.svg"), "w") as f:
            f.write(scaletext.svg(result))
    print(scaletext.markdown(result))


def main():
    config = arguments()
    if config.text:
        with open(os.path.join(config.results, "scale.json")) as f:
            return save(config, json.load(f))
    os.makedirs(config.dir, exist_ok=True)
    began = time.monotonic()
    result = {"machine": machine.describe({"store": config.dir}), "load_average": machine.load_average(),
              "files": config.files, "terabytes": config.terabytes, "pool": config.pool, "row_files": ROW_FILES}
    before = os.path.join(config.results, "scale.json")
    if config.only and os.path.exists(before):
        with open(before) as f:
            known = json.load(f)
        # The other part stays as it was measured.
        result = {**known, **(result if config.only == "load" else {})}
    try:
        if config.only != "idle":
            result["floor"] = floor(config)
            result["run"] = measure_store(config)
        if config.only != "load":
            result["idle"] = [idle(config, nodes) for nodes in IDLE_NODES]
    finally:
        machine.remove(config.dir)
    if config.only != "idle":
        result["seconds"] = time.monotonic() - began
    save(config, result)


if __name__ == "__main__":
    main()
