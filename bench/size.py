#!/usr/bin/env python3
"""A manager with the metadata of a large store: restart, status, a standby that joins under load, fail-over.

    python3 bench/size.py                       3·10^7 chunks in a directory under target/ (12 GB of disk)
    python3 bench/size.py --chunks 1000000      a smaller store
    python3 bench/size.py --dir DIR --keep      leaves the generated directory for the next run

The generator (crates/manager/examples/large_store.rs) sends a manager the requests of a client that stores files of 1 GiB.
The nodes that it names never answer. Every number is of whole commands of the release binary, process start included.
Writes bench/results/size.md and size.json.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, HERE)
from benchlib import machine, procs, report  # noqa: E402
from benchlib.cluster import free_ports  # noqa: E402

# The nodes are not there; they count as up until the last part.
KNOBS = ["down_after_ms=100000000", "out_after_ms=200000000"]
LOST_KNOBS = ["down_after_ms=1000", "out_after_ms=200000000"]
RESTARTS, STATUSES, FAILOVERS = 5, 20, 10
# (what, goal, unit)
GOALS = {"restart_s": 3.0, "rss_gb": 1.5, "status_s": 0.05, "failover_s": 5.0}


class Group:
    """Managers m1 to m3; m1 serves the generated directory."""

    def __init__(self, binary, directory):
        self.binary, self.directory = binary, directory
        self.addresses = {f"m{i + 1}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(3))}
        self.processes = {}

    def start(self, name, knobs=KNOBS, join=False):
        words = [self.binary, "manager", "--log-level", "warn", "--follow-stdin", "--host", name,
                 "--dir", os.path.join(self.directory, name), "--listen", self.addresses[name]]
        words += [word for knob in knobs for word in ("--set", knob)]
        if join:
            words += ["--join", self.addresses["m1"]]
        log = os.path.join(self.directory, f"{name}.log")
        self.processes[name] = procs.start(words, log, stdin=subprocess.PIPE)

    def end(self, name):
        process = self.processes.pop(name)
        process.kill()
        process.wait(30)

    def cli(self, *words, wait_s=60):
        """Runs a command; returns what it printed and its seconds."""
        known = ",".join(self.addresses[name] for name in self.processes)
        began = time.monotonic()
        out = procs.run([self.binary, *words, "--wait", wait_s], env={**os.environ, "TESSERA_MANAGER": known})
        return out, time.monotonic() - began

    def status(self):
        return json.loads(self.cli("status", "--json")[0])

    def peers(self):
        return {peer["host"]: peer for peer in self.status()["log"]["peers"]}

    def wait_for(self, what, condition, limit_s=1800):
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > limit_s:
                raise procs.ProcessFailed(f"waited {limit_s} s for {what}")
            time.sleep(0.2)
        return time.monotonic() - began

    def rss_gb(self, name):
        with open(f"/proc/{self.processes[name].pid}/status") as f:
            kib = next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
        return kib * 1024 / 1e9


class Load:
    """Makes directories, one after the other, until it is stopped."""

    def __init__(self, group):
        self.group, self.seconds, self.over = group, [], False
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        while not self.over:
            name = f"tess:/load-{time.monotonic_ns()}"
            self.seconds.append(self.group.cli("mkdir", name)[1])

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over = True
        self.thread.join()

    def summary(self):
        ordered = sorted(self.seconds)
        return {"count": len(ordered), "median_s": statistics.median(ordered), "max_s": ordered[-1],
                "p99_s": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]}


def generate(config):
    directory = os.path.join(config.dir, "m1")
    if os.path.exists(os.path.join(directory, "manager.db")):
        return None
    os.makedirs(config.dir, exist_ok=True)
    began = time.monotonic()
    subprocess.run([config.generator, directory, str(config.chunks)], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def measure(config, group):
    rows = {}
    restarts, rss = [], []
    for _ in range(RESTARTS):
        began = time.monotonic()
        group.start("m1")
        group.status()
        restarts.append(time.monotonic() - began)
        rss.append(group.rss_gb("m1"))
        group.end("m1")
    rows["restart_s"], rows["rss_at_start_gb"] = report.spread(restarts), report.spread(rss)
    group.start("m1")
    state = group.status()
    rows["chunks"], rows["files"] = state["chunks"]["all"], state["files"]
    rows["status_s"] = report.spread([group.cli("status", "--json")[1] for _ in range(STATUSES)])
    with Load(group) as load:
        time.sleep(5)
    rows["mkdir_alone"] = load.summary()
    for name in ("m2", "m3"):
        with Load(group) as load:
            group.start(name, join=True)
            joined = group.wait_for(f"{name} to vote", lambda: group.peers().get(name, {}).get("votes"))
        rows[f"join_{name}"] = {"s": joined, "mkdir": load.summary()}
    rows["rss_gb"] = {name: group.rss_gb(name) for name in group.processes}
    failovers = []
    for _ in range(FAILOVERS):
        leader = next(host for host, peer in group.peers().items() if peer["leads"])
        group.end(leader)
        failovers.append(group.cli("mkdir", f"tess:/after-{time.monotonic_ns()}")[1])
        group.start(leader)
        group.wait_for("three managers", lambda: all(peer["up"] for peer in group.peers().values()))
    rows["failover_s"] = report.spread(failovers)
    rows["lost"] = lost(group)
    return rows


def lost(group):
    """All nodes count as down, so every chunk is counted in every status."""
    for name in list(group.processes):
        group.end(name)
    for name in group.addresses:
        group.start(name, LOST_KNOBS)
    group.wait_for("lost chunks", lambda: group.status()["chunks"]["lost"] > 0, 120)
    with Load(group) as load:
        seconds = [group.cli("status", "--json")[1] for _ in range(5)]
    return {"status_s": report.spread(seconds), "mkdir": load.summary()}


def leave_alone(group):
    """Makes m1 the only manager again, so that its directory serves another run."""
    for name in list(group.processes):
        group.end(name)
    for name in group.addresses:
        group.start(name)
    group.wait_for("three managers", lambda: all(peer["up"] for peer in group.peers().values()))
    group.wait_for("m1 to lead", lambda: leads(group, "m1"), 120)
    for name in ("m2", "m3"):
        group.cli("manager", "remove", name)
        group.end(name)
        shutil.rmtree(os.path.join(group.directory, name))


def leads(group, name):
    if group.peers()[name]["leads"]:
        return True
    group.cli("manager", "transfer", name)
    return False


def markdown(result):
    rows, goal = result["rows"], GOALS
    hit = lambda value, limit: "hit" if value <= limit else "MISSED"  # noqa: E731
    restart, status, failover = rows["restart_s"], rows["status_s"], rows["failover_s"]
    rss = max(rows["rss_gb"].values())
    text = [
        "# A manager with the metadata of a large store",
        "",
        f"{rows['chunks']:,} chunks in {rows['files']:,} files; manager.db has {result['database_bytes'] / 1e9:.1f} GB. "
        f"{result['machine']['cpu']}, {result['machine']['cores']} cores; load {result['load']:.1f} at the start. "
        "Whole commands of the release binary. The nodes are not there and have proven no chunk, so the first `status` after a start counts them all; "
        "other requests are answered meanwhile.",
        "",
        "| what | goal | median | least | most | |",
        "|---|---|---|---|---|---|",
        f"| kill -9 and start, until `status` is answered | {goal['restart_s']} s | {restart['median']:.2f} s | {restart['min']:.2f} s | {restart['max']:.2f} s | {hit(restart['median'], goal['restart_s'])} |",
        f"| `status`, all is well | {goal['status_s']} s | {status['median']:.3f} s | {status['min']:.3f} s | {status['max']:.3f} s | {hit(status['median'], goal['status_s'])} |",
        f"| kill -9 of the leader of three, until `mkdir` returns | {goal['failover_s']} s | {failover['median']:.2f} s | {failover['min']:.2f} s | {failover['max']:.2f} s | {hit(failover['max'], goal['failover_s'])} |",
        f"| resident memory, the most of three managers | {goal['rss_gb']} GB | {rss:.2f} GB | | | {hit(rss, goal['rss_gb'])} |",
        "",
        "| meanwhile one client makes directories | count | median | 99 % | most |",
        "|---|---|---|---|---|",
    ]
    loads = [("nothing else", rows["mkdir_alone"])]
    loads += [(f"{name} joins and copies the snapshot ({rows['join_' + name]['s']:.0f} s)", rows["join_" + name]["mkdir"]) for name in ("m2", "m3")]
    lost_s = rows["lost"]["status_s"]["median"]
    loads += [(f"`status` counts {rows['chunks']:,} lost chunks ({lost_s:.1f} s each)", rows["lost"]["mkdir"])]
    text += [f"| {what} | {load['count']} | {load['median_s'] * 1000:.0f} ms | {load['p99_s'] * 1000:.0f} ms | {load['max_s'] * 1000:.0f} ms |" for what, load in loads]
    return "\n".join(text) + "\n"


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--chunks", type=int, default=30_000_000)
    a.add_argument("--dir", default=os.path.join(ROOT, "target", "large-store"), help="where the managers live")
    a.add_argument("--keep", action="store_true", help="keep the directory")
    a.add_argument("--binary", default=os.path.join(ROOT, "target", "release", "tessera"))
    a.add_argument("--generator", default=os.path.join(ROOT, "target", "release", "examples", "large_store"))
    a.add_argument("--out", default=os.path.join(HERE, "results"))
    config = a.parse_args()
    generated = generate(config)
    result = {"machine": machine.describe({"store": config.dir}), "load": machine.load_average(), "generated_s": generated,
              "database_bytes": os.path.getsize(os.path.join(config.dir, "m1", "manager.db"))}
    group = Group(config.binary, config.dir)
    try:
        result["rows"] = measure(config, group)
        if config.keep:
            leave_alone(group)
    finally:
        for name in list(group.processes):
            group.end(name)
        if not config.keep:
            shutil.rmtree(config.dir)
    report.save(config.out, "size", result, markdown(result))
    print(markdown(result))


if __name__ == "__main__":
    main()
