#!/usr/bin/env python3
"""Tessera, its peer GlusterFS and the machine's ceilings, side by side in one run (`make bench`).

Writes bench/results/store.md (tables, targets hit or missed and what bounds them), store.json (every
figure of every round) and store.svg. Needs Linux, Python 3.9 and the release build; as root on Debian it
installs fio and glusterfs-server when they are missing; elsewhere it reports what it leaves out.

    python3 bench/store.py                  five rounds on tmpfs and on disk, about fifteen minutes
    python3 bench/store.py --quick          one small round: does everything work? about two minutes
    python3 bench/store.py --only gest
"""

import argparse
import os
import shutil
import subprocess
import sys
import traceback

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from benchlib import gest, integrity, machine, plot, procs, report, workloads  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
PARTS = ("rounds", "integrity", "gest")


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--quick", action="store_true", help="one round of 256 MiB, few small files")
    a.add_argument("--rounds", type=int, help="interleaved rounds (default: 5; quick: 1)")
    a.add_argument("--size-mib", type=int, help="data written per round and system, in MiB (default: 1024; quick: 256)")
    a.add_argument("--writers", type=int, default=32, help="writers of small files")
    a.add_argument("--small-files", type=int, help="small files a round, Tessera (default: 16000; quick: 3200)")
    a.add_argument("--systems", default="tessera,gluster", help="which systems, separated by commas")
    a.add_argument("--media", default="tmpfs,disk", help="which media, separated by commas")
    a.add_argument("--only", choices=PARTS, action="append", help="only this part; may be repeated")
    a.add_argument("--disk-dir", default=os.path.join(TARGET, "bench-data"), help="directory for the disk medium")
    a.add_argument("--tmpfs-dir", default="/dev/shm/tessera-bench", help="directory for the tmpfs medium")
    a.add_argument("--results", default=os.path.join(ROOT, "bench", "results"), help="where results go")
    a.add_argument("--binary", default=os.path.join(TARGET, "release", "tessera"), help="the tessera binary")
    a.add_argument("--driver", default=os.path.join(TARGET, "release", "examples", "bench_store"), help="the driver")
    a.add_argument("--keep", action="store_true", help="leave data and logs where they are")
    c = a.parse_args()
    c.systems = [s for s in c.systems.split(",") if s in ("tessera", "gluster")]
    c.media = [m for m in c.media.split(",") if m in ("tmpfs", "disk")]
    c.rounds = c.rounds or (1 if c.quick else 5)
    c.size_bytes = (c.size_mib or (256 if c.quick else 1024)) << 20
    c.small_files = c.small_files or (3200 if c.quick else 16000)
    c.peer_small_files = min(c.small_files, 320 if c.quick else 640)
    c.gest_bytes = c.size_bytes // 4
    c.only = c.only or PARTS
    return c


def need_programs(config):
    """Installs fio and the peer by apt as root on Debian; otherwise leaves the peer out, and says so."""
    wanted = {"fio": "fio", **({"glusterd": "glusterfs-server"} if "gluster" in config.systems else {})}
    missing = [package for program, package in wanted.items() if shutil.which(program) is None]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {', '.join(missing)}", flush=True)
        quiet = dict(stdout=subprocess.DEVNULL, timeout=900, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
        subprocess.run(["apt-get", "update", "-qq"], **quiet)
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], **quiet)
    if shutil.which("fio") is None:
        sys.exit("fio is missing: install it (apt-get install fio), it measures the ceilings")
    for path in (config.driver, config.binary):
        if not os.path.exists(path):
            sys.exit(f"{path} is missing: run `make bench`, or cargo build --release -p tessera-cli -p tessera-client --examples")


def check_space(config):
    """Reports too little space before the first byte is written."""
    for medium, directory in (("tmpfs", config.tmpfs_dir), ("disk", config.disk_dir)):
        if medium not in config.media:
            continue
        os.makedirs(directory, exist_ok=True)
        free, needed = shutil.disk_usage(directory).free, 5 * config.size_bytes
        if free < needed:
            sys.exit(f"{directory} has {free >> 20} MiB free, the {medium} rounds need {needed >> 20}: "
                     "give another place or a smaller --size-mib")
    if "tmpfs" in config.media and machine.file_system(config.tmpfs_dir) != "tmpfs":
        sys.exit(f"{config.tmpfs_dir} is not on tmpfs: name a directory that is, with --tmpfs-dir")


def attempt(what, work, problems):
    """Runs one part of the run. A failure is recorded, and the other parts still run."""
    print(f"{what} …", flush=True)
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - every failure belongs into the results
        traceback.print_exc()
        problems.append(f"{what}: {error}")
        return None


def run_rounds(config, driver, problems):
    rows = []
    places = {"tmpfs": config.tmpfs_dir, "disk": config.disk_dir}
    for number in range(1, config.rounds + 1):
        for medium in config.media:
            one = workloads.Round(config, number, medium, places[medium], driver)
            for row in attempt(f"round {number} of {config.rounds} on {medium}", one.run, problems) or []:
                row["cores"] = len(os.sched_getaffinity(0))
                rows.append(row)
                print(f"  {row['system']:8} {row['work']:12} {report.rate_text(row['work'], row['rate'])}", flush=True)
    return rows


def run_integrity(config, problems):
    rows = []
    for system in config.systems:
        work = lambda: getattr(integrity, system)(config, config.disk_dir)
        row = attempt(f"integrity, {system}", work, problems)
        rows.append(row or {"system": system, "error": problems[-1][:200]})
    return rows


def run_gest(config, driver, problems):
    rows = []
    for number in range(1, max(1, min(config.rounds, 3)) + 1):
        rows += attempt(f"coding against copies, round {number}",
                        lambda: gest.compare(config, number, config.tmpfs_dir, driver), problems) or []
    return rows


def main():
    config = arguments()
    if not os.environ.get("TESSERA_BENCH_INSIDE"):
        need_programs(config)
        check_space(config)
    if not machine.enter_namespaces() and "gluster" in config.systems:
        print("leaving GlusterFS out: it needs root and namespaces of its own", file=sys.stderr)
        config.systems.remove("gluster")
    problems, load = [], machine.load_average()
    os.makedirs(config.disk_dir, exist_ok=True)
    driver = procs.Driver(config.driver, os.path.join(config.disk_dir, "driver.log"))
    try:
        result = {
            "machine": machine.describe({"tmpfs": config.tmpfs_dir, "disk": config.disk_dir}),
            "load_before": load,
            "rows": run_rounds(config, driver, problems) if "rounds" in config.only else [],
            "integrity": run_integrity(config, problems) if "integrity" in config.only else [],
            "gest": run_gest(config, driver, problems)
            if "gest" in config.only and "tessera" in config.systems else [],
        }
    finally:
        driver.close()
        if not config.keep:
            machine.remove(config.tmpfs_dir)
            machine.remove(config.disk_dir)
    private = ("disk_dir", "tmpfs_dir", "results", "binary", "driver", "keep")
    result["config"] = {k: v for k, v in vars(config).items() if k not in private}
    # Results contain no directory names of the machine.
    for name, place in (("disk", config.disk_dir), ("tmpfs", config.tmpfs_dir)):
        problems = [problem.replace(place, f"<{name}>") for problem in problems]
    result["load_after"], result["problems"] = machine.load_average(), problems
    result["targets"] = report.judge(result["rows"])
    print(report.write(result, config.results))
    if result["rows"]:
        with open(os.path.join(config.results, "store.svg"), "w") as f:
            f.write(plot.svg(result))
    for problem in problems:
        print(f"PROBLEM {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
