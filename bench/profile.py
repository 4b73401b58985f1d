#!/usr/bin/env python3
"""Where the CPU time of a write and a read goes: `perf` on the client, the nodes and the manager.

    python3 bench/profile.py                      prints the hottest functions of each role and workload
    python3 bench/profile.py --medium disk --work "small files"

Needs `perf` (Debian: linux-perf) and a release build; software sampling suffices, so it works in virtual machines.
"""

import argparse
import collections
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from benchlib import machine, procs  # noqa: E402
from benchlib.cluster import Cluster  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
WORKS = {
    "write new": [("prepare", "{bytes}", 11), ("write", "tess:/big/a")],
    "read": [("take", "tess:/big/a")],
    "write again": [("write", "tess:/big/b")],
    "small files": [("small", "tess:/small", 32, "{files}", 4096)],
}


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--size-mib", type=int, default=1024, help="data of the big file, in MiB")
    a.add_argument("--files", type=int, default=16000, help="small files")
    a.add_argument("--medium", choices=["tmpfs", "disk"], default="tmpfs")
    a.add_argument("--work", choices=list(WORKS), action="append", help="only this (a read needs `write new` before it)")
    a.add_argument("--top", type=int, default=18, help="functions shown")
    a.add_argument("--binary", default=os.path.join(TARGET, "release", "tessera"))
    a.add_argument("--driver", default=os.path.join(TARGET, "release", "examples", "bench_store"))
    a.add_argument("--callers", action="store_true", help="also who calls the hottest functions")
    return a.parse_args()


def sample(roles, work, directory, callers):
    """Runs `work()` under perf; returns its result and role -> perf.data."""
    recorders, files = [], {}
    for role, pids in roles.items():
        files[role] = os.path.join(directory, f"{role}.perf")
        command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "997", "-o", files[role], "-p", ",".join(map(str, pids))]
        recorders.append(procs.start(command + (["-g"] if callers else []), os.path.join(directory, "perf.log")))
    # perf reads /proc and opens an event for each thread and CPU before it samples.
    time.sleep(2)
    try:
        return work(), files
    finally:
        for recorder in recorders:
            recorder.send_signal(signal.SIGINT)
            recorder.wait(60)


def measured(driver, roles, command):
    """A command's facts, and CPU seconds by role."""
    before = {role: procs.cpu_seconds(pids) for role, pids in roles.items()}
    facts = driver.ask(*command)
    return facts, {role: procs.cpu_seconds(pids) - before[role] for role, pids in roles.items()}


def hottest(path, top):
    """(share of the role's samples, thread name, function) of one perf.data, largest share first."""
    out = subprocess.run(["perf", "report", "-i", path, "--stdio", "--no-children", "-g", "none", "-F", "overhead,comm,sym",
                          "--percent-limit", "0.4"], capture_output=True, text=True, timeout=300).stdout
    lines = [line.split(None, 2) for line in out.splitlines() if "%" in line and not line.startswith("#")]
    return [(float(fields[0].rstrip("%")), *fields[1:]) for fields in lines if len(fields) == 3][:top]


def main():
    config = arguments()
    base = "/dev/shm" if config.medium == "tmpfs" else TARGET
    directory = tempfile.mkdtemp(prefix="tessera-profile-", dir=base)
    driver = procs.Driver(config.driver, os.path.join(directory, "driver.log"))
    cluster = Cluster(config.binary, os.path.join(directory, "cluster"), 6)
    try:
        cluster.start_all()
        driver.ask("prepare", config.size_mib << 20, 10)
        driver.ask("connect", cluster.address)
        driver.ask("mkdir", "tess:/big", "redundancy=ec:4+2")
        driver.ask("mkdir", "tess:/small")
        for name in config.work or WORKS:
            *before, last = [[str(w).format(bytes=config.size_mib << 20, files=config.files) for w in command] for command in WORKS[name]]
            for command in before:
                driver.ask(*command)
            roles = {"client": [driver.pid], **cluster.pids()}
            (facts, used), files = sample(roles, lambda: measured(driver, roles, last), directory, config.callers)
            amount = facts.get("bytes", 0) / 1e9 or facts.get("files", 0) / 1e3
            print(f"\n== {name}: {facts}\n   CPU a GB (or a thousand files): "
                  + ", ".join(f"{role} {s / amount:.3f} s" for role, s in used.items()))
            for role, path in files.items():
                by_thread = collections.Counter()
                rows = hottest(path, 1000)
                for share, thread, _ in rows:
                    by_thread[thread] += share
                print(f"-- {role}: threads " + ", ".join(f"{t} {s:.0f} %" for t, s in by_thread.most_common(6)))
                for share, thread, function in rows[:config.top]:
                    print(f"   {share:5.1f} %  {used[role] * share / 100 / amount:.3f} s  {thread:16} {function[:90]}")
                if config.callers:
                    subprocess.run(["perf", "report", "-i", path, "--stdio", "--no-children", "-g", "caller,0.5,callee,function,percent",
                                    "--percent-limit", "4", "--max-stack", "12"], timeout=300)
    finally:
        driver.close()
        cluster.close()
        machine.remove(directory)


if __name__ == "__main__":
    main()
