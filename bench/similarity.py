#!/usr/bin/env python3
"""What content addressing costs, gains, and could gain: MosaStore's three workloads (`make bench-similarity`).

Writes *different* files, *similar* ones (the same again and again) and *checkpoint* images of a real program one after another:
without dedup, with dedup on the CPU, and with an oracle that knows digests and boundaries in advance. The oracle shows the gain if
naming chunks cost nothing. Writes bench/results/similarity.md, .json and .svg. Needs Linux, Python 3.9, root and the release build;
installs Debian's ncbi-blast+ and gdb when they are missing.

    python3 bench/similarity.py             three rounds: about ten minutes, and five more for the images
    python3 bench/similarity.py --quick     does everything work? small images, one round
"""

import argparse
import os
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from benchlib import blast, likeness, machine, procs  # noqa: E402
from benchlib.cluster import Cluster  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
NODES, CLASS = 6, "ec:4+2"
FIXED, DEFAULT, FINE = "fixed:1M", "cdc:256K..4M", "cdc:16K..256K"
# name: (dedup, whether hashes and boundaries are known in advance)
SYSTEMS = {"off": ("off", False), "off, not hashed": ("off", True), "cpu": ("all", False), "oracle": ("all", True)}
# Ways of cutting to compare. `segments/FLOOR+` also cuts at the edges of the image's own segments of at least FLOOR bytes.
CUTS = [f"{prefix}{rule}" for rule in (FIXED, "fixed:64K", DEFAULT, FINE) for prefix in ("", "segments/65536+", "segments/1+")]


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--quick", action="store_true", help="one small round, three images five seconds apart")
    a.add_argument("--rounds", type=int, help="(default: 3; quick: 1)")
    a.add_argument("--files", type=int, default=8, help="files of `different` and `similar`")
    a.add_argument("--file-mib", type=int, help="their size (default: 48; quick: 8)")
    a.add_argument("--images", type=int, help="images of `checkpoint` (default: 12; quick: 3)")
    a.add_argument("--every-s", type=float, help="seconds between them (default: 20; quick: 5)")
    a.add_argument("--write-images", type=int, help="how many of them are written in each round (default: 4; quick: 3)")
    a.add_argument("--networks", default="0,1000", help="Mbit/s of the client's network; 0: as fast as the machine")
    a.add_argument("--dir", default="/dev/shm/tessera-bench-similarity", help="where the store lies")
    a.add_argument("--image-dir", default=os.path.join(TARGET, "bench-images"), help="where images lie; kept for the next run")
    a.add_argument("--binary", default=os.path.join(TARGET, "release", "tessera"))
    a.add_argument("--driver", default=os.path.join(TARGET, "release", "examples", "bench_store"))
    a.add_argument("--out", default=os.path.join(ROOT, "bench", "results", "similarity"))
    c = a.parse_args()
    small = lambda value, quick, full: value or (quick if c.quick else full)
    c.rounds, c.file_mib = small(c.rounds, 1, 3), small(c.file_mib, 8, 48)
    c.images, c.every_s, c.write_images = small(c.images, 3, 12), small(c.every_s, 5, 20), small(c.write_images, 3, 4)
    c.networks = [int(n) for n in c.networks.split(",")]
    return c


def need_programs(config):
    wanted = {"blastn": "ncbi-blast+", "gcore": "gdb", "tc": "iproute2"}
    missing = [package for program, package in wanted.items() if shutil.which(program) is None]
    if missing:
        print(f"installing {', '.join(missing)}", flush=True)
        quiet = dict(stdout=subprocess.DEVNULL, timeout=900, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], **quiet)
    for program, package in wanted.items():
        if shutil.which(program) is None:
            sys.exit(f"{program} is missing: install {package}")
    for path in (config.binary, config.driver):
        if not os.path.exists(path):
            sys.exit(f"{path} is missing: run `make bench-similarity`")


def limit_network(mbit):
    """Limits all TCP traffic together to this many Mbit/s; the network namespace is private."""
    subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], capture_output=True)
    if mbit:
        for command in (["qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb", "default", "1"],
                      ["class", "add", "dev", "lo", "parent", "1:", "classid", "1:1", "htb", "rate", f"{mbit}mbit", "quantum", "65536"]):
            subprocess.run(["tc", *command], check=True)


def plan(workload, mbit):
    """(system, chunking) of one workload. Without dedup, boundaries are useless, so blocks are fixed."""
    rules = [DEFAULT] + ([FINE] if workload == "checkpoint" else [])
    if mbit:
        # The network is the bottleneck, not the naming: the short list.
        return [("off", FIXED), *((system, rule) for rule in rules for system in ("cpu", "oracle"))]
    return [("off", FIXED), ("off, not hashed", FIXED), *((system, rule) for rule in (FIXED, *rules) for system in ("cpu", "oracle"))]


def sources(config, workload, seed, paths):
    """The driver's commands before each file; None: write the previous data again."""
    size = config.file_mib << 20
    if workload == "different":
        return [("prepare", size, seed + i) for i in range(config.files)]
    if workload == "similar":
        return [("prepare", size, seed)] + [None] * (config.files - 1)
    return [("load", path) for path in paths[:config.write_images]]


def write_all(config, driver, mbit, system, chunking, files):
    """Writes all files to one empty store."""
    dedup = SYSTEMS[system][0]
    cluster = Cluster(config.binary, config.dir, NODES)
    row = {"bytes": 0, "seconds": 0, "new_bytes": 0, "sent_bytes": 0, "chunks": 0, "known_chunks": 0, "computed_bytes": 0,
           "cpu_s": {"client": 0, "manager": 0, "node": 0}}
    try:
        cluster.start_all()
        for name in cluster.node_names if mbit else ():
            # Without a Unix socket a client uses the network.
            os.remove(os.path.join(config.dir, f"{name}.sock"))
        driver.ask("connect", cluster.address)
        driver.ask("mkdir", "tess:/d", f"redundancy={CLASS}", f"dedup={dedup}", f"chunking={chunking}")
        roles = {"client": [driver.pid], **cluster.pids()}
        for number, source in enumerate(files):
            if source:
                driver.ask(*source)
                driver.ask("foresee", chunking)
            before = {role: procs.cpu_seconds(pids) for role, pids in roles.items()}
            facts = driver.ask("add", f"tess:/d/f{number}")
            for role, pids in roles.items():
                row["cpu_s"][role] += procs.cpu_seconds(pids) - before[role]
            for name in facts:
                row[name] += facts[name]
        driver.ask("disconnect")
        row["stored_bytes"] = cluster.stored_bytes()
    finally:
        cluster.close()
    if SYSTEMS[system][1] and row["computed_bytes"]:
        raise procs.ProcessFailed(f"the oracle had to compute {row['computed_bytes']} bytes")
    row["rate"] = row["bytes"] / row["seconds"]
    row["cpu_s_per_gb"] = sum(row["cpu_s"].values()) / (row["bytes"] / 1e9)
    return row


def run_round(config, number, drivers, paths, rows):
    for mbit in config.networks:
        limit_network(mbit)
        for workload in ("different", "similar", "checkpoint"):
            runs = plan(workload, mbit)
            for k in range(len(runs)):
                system, chunking = runs[(k + number) % len(runs)]
                driver = drivers[SYSTEMS[system][1]]
                files = sources(config, workload, 1000 * (number + 1) + 100 * k, paths)
                row = write_all(config, driver, mbit, system, chunking, files)
                rows.append({"round": number, "mbit": mbit, "workload": workload, "system": system, "chunking": chunking, **row})
                print(f"  {mbit or '-':>5} {workload:11} {system:16} {chunking:14} {row['rate'] / 1e6:8.0f} MB/s "
                      f"{row['cpu_s_per_gb']:6.2f} CPU s/GB  new {row['new_bytes'] / row['bytes']:.3f}", flush=True)
    limit_network(0)


def look(driver, paths):
    """For each way of cutting: the share of each image that is in the one before it, and in all before it."""
    rows = []
    for number, path in enumerate(paths):
        driver.ask("load", path)
        rows += [{"image": number, "cut": cut, **driver.ask("similar", cut)} for cut in CUTS]
    return rows


def main():
    config = arguments()
    if not os.environ.get("TESSERA_BENCH_INSIDE"):
        need_programs(config)
    if not machine.enter_namespaces():
        sys.exit("this needs root: namespaces of its own")
    os.makedirs(config.dir, exist_ok=True)
    print("images", flush=True)
    paths = blast.images(config.image_dir, config.images, config.every_s)
    log = os.path.join(config.image_dir, "driver.log")
    drivers = {False: procs.Driver(config.driver, log), True: procs.Driver(config.driver, log, "--oracle")}
    rows, load, problems = [], machine.load_average(), []
    try:
        finds = look(drivers[False], paths)
        for number in range(config.rounds):
            print(f"round {number + 1} of {config.rounds}", flush=True)
            run_round(config, number, drivers, paths, rows)
    except (procs.ProcessFailed, OSError, subprocess.SubprocessError) as error:
        problems.append(str(error).replace(config.dir, "<dir>").replace(config.image_dir, "<images>"))
        print(f"PROBLEM {problems[-1]}", file=sys.stderr)
    finally:
        for driver in drivers.values():
            driver.close()
        machine.remove(config.dir)
    shown = {name: getattr(config, name) for name in ("rounds", "files", "file_mib", "images", "every_s", "write_images", "networks")}
    result = {"machine": machine.describe({"store": "/dev/shm"}), "config": shown, "load_before": load,
              "load_after": machine.load_average(), "finds": finds, "rows": rows, "problems": problems}
    print(likeness.write(result, config.out))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
