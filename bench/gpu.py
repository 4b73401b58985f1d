#!/usr/bin/env python3
"""The kernels on a GPU beside the CPU, and what a GPU gives the whole store (`make bench-gpu`).

First `tessera accel bench` with jobs of several sizes and with parts of the runtime left out. Then a client writes files to six
nodes and computes names, boundaries and parity on the CPU, on the GPU, and where `auto` puts them, beside a client that names
nothing: MosaStore's workloads *different* and *similar* (HPDC 2010, section 4.3). Writes bench/results/gpu.md and .json. Needs Linux,
Python 3.9, the release build, and a GPU; without one it says so and ends.

    python3 bench/gpu.py                      three rounds: about five minutes
    python3 bench/gpu.py --device emulated --quick   does everything work? the figures mean nothing
"""

import argparse
import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from benchlib import gputext, machine, procs, report  # noqa: E402
from benchlib.cluster import Cluster  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
NODES, CLASS, CHUNKING = 6, "ec:4+2", "cdc:256K..4M"
WORKLOADS = ("different", "similar")


def arguments():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("--device", default="cuda:0", help="(default: cuda:0)")
    a.add_argument("--quick", action="store_true", help="jobs of one size, one small round")
    a.add_argument("--rounds", type=int, help="of the store (default: 3; quick: 1)")
    a.add_argument("--files", type=int, default=8, help="files of a workload")
    a.add_argument("--file-mib", type=int, help="their size (default: 256; quick: 8)")
    a.add_argument("--sizes", help="bytes of the jobs (default: 256K,1M,4M,32M; quick: 64K)")
    a.add_argument("--dir", default="/dev/shm/tessera-bench-gpu", help="where the store lies")
    a.add_argument("--binary", default=os.path.join(TARGET, "release", "tessera"))
    a.add_argument("--driver", default=os.path.join(TARGET, "release", "examples", "bench_store"))
    a.add_argument("--out", default=os.path.join(ROOT, "bench", "results"))
    config = a.parse_args()
    config.rounds = config.rounds or (1 if config.quick else 3)
    config.file_mib = config.file_mib or (8 if config.quick else 256)
    config.sizes = (config.sizes or ("64K" if config.quick else "256K,1M,4M,32M")).split(",")
    return config


def documents(config, *words):
    """What `tessera accel … --json` prints, a document a line."""
    said = procs.run([config.binary, "accel", *words, "--json"], timeout_s=600)
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def description(config):
    """The device's own name, or None if it is not there or not ready."""
    names = {d["device"]: d["what"] for d in documents(config, "list") if d["ready"]}
    return names.get(config.device) or names.get(config.device.partition(":")[0])


def kernels(config):
    """Every primitive, by the size of a job: {"size", "rows", "transfers"}."""
    tables = []
    for size in config.sizes:
        print(f"kernels, {size} a job", flush=True)
        found = documents(config, "bench", "--device", config.device, "--size", size)
        rows = [d for d in found if "primitive" in d]
        transfers = {d["transfer"]: d["bytes_per_s"] for d in found if "transfer" in d}
        tables.append({"size": size, "rows": rows, "transfers": transfers})
    return tables


def write_all(config, system, workload, seed):
    """Writes the files of a workload to one empty store."""
    cluster = Cluster(config.binary, config.dir, NODES)
    device = "cpu" if system == "off" else system
    driver = procs.Driver(config.driver, os.path.join(config.dir, "driver.log"), TESSERA_DEVICE=device)
    row = {"bytes": 0, "seconds": 0, "new_bytes": 0, "cpu_s": {"client": 0, "manager": 0, "node": 0}}
    try:
        cluster.start_all()
        driver.ask("connect", cluster.address)
        dedup = "off" if system == "off" else "all"
        driver.ask("mkdir", "tess:/d", f"redundancy={CLASS}", f"dedup={dedup}", f"chunking={CHUNKING}")
        roles = {"client": [driver.pid], **cluster.pids()}
        # A first file, of other bytes, warms up connections, memory and the device.
        for number in range(-1, config.files):
            if number < 1 or workload == "different":
                driver.ask("prepare", config.file_mib << 20, seed + number)
            before = {role: procs.cpu_seconds(pids) for role, pids in roles.items()}
            facts = driver.ask("add", f"tess:/d/f{number}")
            if number >= 0:
                for role, pids in roles.items():
                    row["cpu_s"][role] += procs.cpu_seconds(pids) - before[role]
                for name in ("bytes", "seconds", "new_bytes"):
                    row[name] += facts[name]
        driver.ask("disconnect")
    finally:
        driver.close()
        cluster.close()
    row["rate"] = row["bytes"] / row["seconds"]
    row["cpu_s_per_gb"] = {role: spent / (row["bytes"] / 1e9) for role, spent in row["cpu_s"].items()}
    return row


def store(config):
    systems = ("off", "cpu", config.device, *(() if config.device.startswith("emulated") else ("auto",)))
    rows = []
    for number in range(config.rounds):
        for workload in WORKLOADS:
            for k in range(len(systems)):
                system = systems[(k + number) % len(systems)]
                row = write_all(config, system, workload, 1000 * (number + 1) + 100 * k)
                rows.append({"round": number, "workload": workload, "system": system, **row})
                print(f"  {workload:10} {system:10} {row['rate'] / 1e6:8.0f} MB/s, client {row['cpu_s_per_gb']['client']:.2f} CPU s/GB",
                      flush=True)
    return rows


def main():
    config = arguments()
    card = description(config)
    if card is None:
        sys.exit(f"there is no {config.device} here; `tessera accel list` shows what there is")
    os.makedirs(config.dir, exist_ok=True)
    load, problems, tables, parts, rows = machine.load_average(), [], [], [], []
    try:
        tables = kernels(config)
        parts = documents(config, "bench", "--device", config.device, "--ablate", "--size", config.sizes[-1])
        print("store", flush=True)
        rows = store(config)
    except (procs.ProcessFailed, OSError, subprocess.SubprocessError) as error:
        problems.append(str(error).replace(config.dir, "<dir>"))
        print(f"PROBLEM {problems[-1]}", file=sys.stderr)
    finally:
        machine.remove(config.dir)
    shown = {name: getattr(config, name) for name in ("device", "rounds", "files", "file_mib", "sizes")}
    result = {"machine": machine.describe({}), "card": card, "config": shown, "load_before": load,
              "load_after": machine.load_average(), "kernels": tables, "parts": parts, "rows": rows, "problems": problems}
    text = gputext.text(result)
    report.save(config.out, "gpu", result, text)
    print(text)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
