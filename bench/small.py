#!/usr/bin/env python3
"""A tree of many small files: Tessera beside cp, borg, restic and rsync, in CPU seconds of all processes and in wall time.

    python3 bench/small.py                  /usr, three rounds, in memory (needs 30 GB of it and of /dev/shm)
    python3 bench/small.py --tree /usr/include --rounds 5
    python3 bench/small.py --tree /usr/include --rounds 1 --results /tmp

Six nodes, one manager, files of `auto:4+2`. The steps: store the tree; store it again, unchanged, compared by content, and by size and time alone; fetch it;
store, fetch and remove 20,000 files of 4 KiB. Every fetched tree is compared with its source. The floor of each step is to read the
bytes once and to write them once (`cp -a`), and for Tessera to write half as much again for parity. As root on Debian it
installs borg, restic and rsync when they are missing; elsewhere it leaves them out, and says so. Writes bench/results/small.md and small.json.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, HERE)
from benchlib import machine, procs, report  # noqa: E402
from benchlib.cluster import Cluster  # noqa: E402

PEERS = {"borg": "borgbackup", "restic": "restic", "rsync": "rsync"}
# (step, system) -> most CPU seconds for /usr, as the goals were set for 132,750 files of 5.2 GB.
GOALS = {"put": 60, "unchanged": 25, "checksum": 25, "skip": 5, "get": 30}
# Files of 4 KiB a second.
RATES = {"put_4k": 8_000, "get_4k": 15_000, "rm_4k": 20_000}
FILES_4K = 20_000


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--tree", default="/usr", help="the tree (default: /usr)")
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--dir", default="/dev/shm/tessera-small", help="directory for all copies")
    a.add_argument("--results", default=os.path.join(HERE, "results"))
    a.add_argument("--binary", default=os.path.join(ROOT, "target", "release", "tessera"))
    return a.parse_args()


def children_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Meter:
    """Runs commands, and keeps wall time and CPU seconds: of the command, and of daemons."""

    def __init__(self):
        self.rows = []

    def run(self, system, step, argv, daemons=(), **options):
        before, began, cpu = procs.cpu_seconds(daemons), time.monotonic(), children_cpu()
        procs.run(argv, timeout_s=3600, **options)
        row = {"system": system, "step": step, "wall_s": time.monotonic() - began, "client_cpu_s": children_cpu() - cpu}
        row["cpu_s"] = row["client_cpu_s"] + procs.cpu_seconds(daemons) - before
        self.rows.append(row)
        return row


def same(tree, copy):
    """Raises unless all regular files and links of `tree` are in `copy`, byte for byte."""
    done = subprocess.run(["diff", "-r", "--no-dereference", tree, copy], capture_output=True, text=True)
    wrong = [line for line in done.stdout.splitlines() if not line.startswith("File ")]
    if wrong or done.returncode > 1:
        raise procs.ProcessFailed(f"{copy} differs from {tree}: {wrong[:3]} {done.stderr[-300:]}")


def tessera(meter, config, place):
    """All steps of Tessera; returns facts of the store."""
    cluster = Cluster(config.binary, os.path.join(place, "store"), 6)
    try:
        cluster.start_all()
        manager, nodes = cluster.pid("manager"), cluster.pids()["node"]
        facts = {}

        def step(name, *words):
            before = procs.cpu_seconds([manager])
            row = meter.run("tessera", name, [config.binary, *words, "-q"], [manager, *nodes], env=cluster.environment())
            row["manager_cpu_s"] = procs.cpu_seconds([manager]) - before
            return row

        step("put", "put", "-r", config.tree, "tess:/tree/")
        facts["stored_bytes"] = cluster.status()["bytes"]["stored"]
        facts["disk_bytes"] = cluster.stored_bytes()
        step("unchanged", "put", "-r", config.tree, "tess:/tree/")
        step("checksum", "put", "-r", "--checksum", config.tree, "tess:/tree/")
        step("skip", "put", "-r", "--skip-unchanged", config.tree, "tess:/tree/")
        copy = os.path.join(place, "copy")
        step("get", "get", "-r", "tess:/tree/" + os.path.basename(config.tree.rstrip("/")), copy)
        same(config.tree, copy)
        machine.remove(copy)
        many = os.path.join(place, "many")
        step("put_4k", "put", "-r", many, "tess:/")
        step("get_4k", "get", "-r", "tess:/many", copy)
        same(many, copy)
        step("rm_4k", "rm", "-r", "tess:/many")
        machine.remove(copy)
        return facts
    finally:
        cluster.close()


def peers(meter, config, place, have):
    tree, copy = config.tree, os.path.join(place, "copy")
    meter.run("cp", "put", ["cp", "-a", tree, copy])
    if "rsync" in have:
        meter.run("rsync", "skip", ["rsync", "-a", tree.rstrip("/") + "/", copy + "/"])
    machine.remove(copy)
    environment = {**os.environ, "RESTIC_PASSWORD": "x", "BORG_BASE_DIR": os.path.join(place, "borg-home")}
    repository = os.path.join(place, "repository")

    def backup(system, first, again, restore):
        procs.run(first, env=environment)
        os.makedirs(copy)
        meter.run(system, "put", again(1), env=environment)
        meter.run(system, "unchanged" if system == "restic" else "skip", again(2), env=environment)
        meter.run(system, "get", restore, env=environment, cwd=copy)
        machine.remove(copy)
        machine.remove(repository)

    if "borg" in have:
        backup("borg", ["borg", "init", "-e", "none", repository],
               lambda n: ["borg", "create", "-C", "none", f"{repository}::{n}", tree],
               ["borg", "extract", f"{repository}::1"])
    if "restic" in have:
        backup("restic", ["restic", "init", "-r", repository],
               lambda n: ["restic", "backup", "-q", "-r", repository, *(["--force"] if n == 2 else []), tree],
               ["restic", "restore", "-q", "-r", repository, "latest", "--target", copy])


def text(result):
    rows, files = result["rows"], result["files"]
    scale = files / 132_750
    lines = []
    for step in ("put", "unchanged", "checksum", "skip", "get"):
        for system in ("tessera", "cp", "rsync", "borg", "restic"):
            found = [row for row in rows if (row["system"], row["step"]) == (system, step)]
            if not found:
                continue
            cpu, wall = (report.spread([row[what] for row in found]) for what in ("cpu_s", "wall_s"))
            goal = f"≤ {GOALS[step] * scale:.1f}" if system == "tessera" else ""
            manager = [row["manager_cpu_s"] for row in found if "manager_cpu_s" in row]
            share = f"{report.spread(manager)['median'] / files * 1e3:.3f}" if manager else ""
            lines.append([step, system, of(cpu), of(wall), share, goal])
    head = ["step", "system", "CPU s, all processes", "wall s", "manager, ms of CPU a file", "goal, scaled to these files"]
    small = []
    for step, goal in RATES.items():
        rates = report.spread([FILES_4K / row["wall_s"] for row in rows if row["step"] == step])
        small.append([step, f"{rates['median']:,.0f} ({rates['min']:,.0f} to {rates['max']:,.0f})", f"{goal:,}"])
    facts = result["facts"][0]
    stored = f"{facts['disk_bytes'] / 1e9:.2f} GB on the disks of the nodes for {result['bytes'] / 1e9:.2f} GB"
    lines = report.lines_of(
        "Small files",
        f"`python3 bench/small.py`: {files:,} files of {result['tree']}; {stored} ({facts['disk_bytes'] / result['bytes']:.2f} times). "
        "Median and range of the rounds; every fetched tree was compared with its source.",
        report.table(head, lines),
        f"{FILES_4K:,} files of 4 KiB, files a second:",
        report.table(["step", "rate", "goal"], small),
        f"Left out, because missing: {', '.join(result['missing']) or 'nothing'}. {machine_text(result['machine'])}",
    )
    return "\n".join(lines).lstrip("\n").replace("## ", "# ", 1) + "\n"


def of(s):
    return f"{s['median']:.2f} ({s['min']:.2f} to {s['max']:.2f})"


def machine_text(described):
    return f"{described['cpu']}, {described['cores']} cores, {described['memory_gib']} GiB, {described['kernel']}."


def main():
    config = arguments()
    if os.geteuid() == 0 and shutil.which("apt-get"):
        missing = [package for program, package in PEERS.items() if shutil.which(program) is None]
        if missing:
            subprocess.run(["apt-get", "install", "-y", "-q", *missing], capture_output=True)
    have = {program for program in PEERS if shutil.which(program)}
    machine.remove(config.dir)
    many = os.path.join(config.dir, "many")
    os.makedirs(many)
    for i in range(FILES_4K):
        with open(os.path.join(many, f"f{i:05}"), "wb") as f:
            f.write(os.urandom(4096))
    sizes = [os.lstat(os.path.join(root, name)).st_size for root, _, names in os.walk(config.tree)
             for name in names if not os.path.islink(os.path.join(root, name))]
    result = {"tree": config.tree, "files": len(sizes), "bytes": sum(sizes), "missing": sorted(set(PEERS) - have),
              "machine": machine.describe({"copies": config.dir}), "facts": []}
    meter = Meter()
    try:
        for number in range(config.rounds):
            result["facts"].append(tessera(meter, config, config.dir))
            peers(meter, config, config.dir, have)
            print(f"round {number + 1} of {config.rounds}")
    finally:
        machine.remove(config.dir)
    result["rows"] = meter.rows
    report.save(config.results, "small", result, text(result))
    print(text(result))


if __name__ == "__main__":
    main()
