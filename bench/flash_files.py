#!/usr/bin/env python3
"""File systems on the emulated SSD (`make bench-flash-files`): figure 3.12 of the CPFTL paper.

ext4 and btrfs, each on a new SSD with `dftl` and with `cpftl`, with the delays of table 3.6: fio reads and writes 4 KiB of a file at
random, 75 % reads, without the host's page cache. Writes bench/results/flash_files.md and flash_files.json. Needs root, loop devices,
FUSE, fio, and mkfs of both.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from benchlib import machine, procs, report  # noqa: E402

# An eighth of the paper's file; its map cache is 256 KiB for 16 GiB.
FILE, CAPACITY, MAP_CACHE, REQUESTED = 512 << 20, 640 << 20, 10 << 10, 128 << 20
SYSTEMS = {"ext4": ["mkfs.ext4", "-q", "-F"], "btrfs": ["mkfs.btrfs", "-q", "-f"]}
LAYERS = ("dftl", "cpftl")
DEPTH = 16
ROUNDS = 3


@contextlib.contextmanager
def mounted(binary, directory, system, layer):
    """A file system on a new SSD; yields where it is, and the SSD's control socket."""
    socket, file, at = (os.path.join(directory, name) for name in ("ssd.sock", "ssd", "at"))
    words = [binary, "flash", "serve", "--capacity", CAPACITY, "--ftl", layer, "--map-cache", MAP_CACHE, "--timing", "emulator", "--nbd", f"unix:{socket}", "--fuse", file]
    os.makedirs(at, exist_ok=True)
    with contextlib.ExitStack() as undo:
        server = procs.start(words, f"{socket}.log")
        undo.callback(procs.stop, server)
        for _ in range(200):
            if os.path.exists(file) and os.path.getsize(file) == CAPACITY:
                break
            time.sleep(0.05)
        disk = procs.run(["losetup", "--find", "--show", "--direct-io=on", file]).strip()
        undo.callback(procs.run, ["losetup", "--detach", disk])
        procs.run([*SYSTEMS[system], disk], timeout_s=300)
        procs.run(["mount", disk, at])
        undo.callback(procs.run, ["umount", at])
        yield at, f"{socket}.control"


def measure(binary, system, layer):
    """A round: what fio says, and the SSD's figures meanwhile."""
    figures = lambda control: json.loads(procs.run([binary, "flash", "stat", control, "--json"]))
    with tempfile.TemporaryDirectory() as directory, mounted(binary, directory, system, layer) as (at, control):
        words = ["fio", "--name=job", f"--filename={at}/file", f"--size={FILE}", "--direct=1", "--ioengine=libaio", "--output-format=json"]
        procs.run([*words, "--rw=write", "--bs=256k", f"--iodepth={DEPTH}"], timeout_s=600)
        before = figures(control)
        said = procs.run([*words, "--rw=randrw", "--rwmixread=75", "--bs=4k", f"--iodepth={DEPTH}", f"--io_size={REQUESTED}"], timeout_s=600)
        job = json.loads(said[said.index("{"):])["jobs"][0]
        after = figures(control)
    done = job["read"]["total_ios"] + job["write"]["total_ios"]
    seconds = job["job_runtime"] / 1e3
    grown = {key: after[key] - before[key] for key in ("map_reads", "map_programs", "map_hits", "map_lookups", "moved_data_pages", "host_programs")}
    return {"system": system, "layer": layer, "iops": done / seconds, "bytes_s": done * 4096 / seconds, "seconds": seconds,
            "reads": grown["map_reads"], "programs": grown["map_programs"], "hits": grown["map_hits"] / max(1, grown["map_lookups"]),
            "written": grown["host_programs"], "moved": grown["moved_data_pages"]}


def text(result):
    """The text of flash_files.md."""
    m, rows, rates = result["machine"], [], {}
    for system in SYSTEMS:
        for layer in LAYERS:
            found = [row for row in result["rows"] if (row["system"], row["layer"]) == (system, layer)]
            middle = {key: statistics.median(row[key] for row in found) for key in ("iops", "bytes_s", "seconds", "reads", "programs", "hits", "written")}
            each = [row["iops"] for row in found]
            rates[system, layer] = middle["iops"]
            rows.append([system, f"`{layer}`", f"{middle['bytes_s'] / 1e6:.1f}", f"{middle['iops']:,.0f} ({min(each):,.0f}–{max(each):,.0f})", f"{middle['seconds']:.1f} s",
                         f"{middle['hits']:.1%}", f"{middle['reads']:,.0f}", f"{middle['programs']:,.0f}", f"{middle['written']:,.0f}"])
    gain = {system: 100 * (rates[system, "cpftl"] / rates[system, "dftl"] - 1) for system in SYSTEMS}
    lines = ["# File systems on the emulated SSD (figure 3.12)", "",
             f"Written by `make bench-flash-files`. {m['cpu']}, {m['cores']} cores, {m['kernel']}, load {result['load']:.1f} at the start. Medians of {result['rounds']} rounds, ranges in brackets.", "",
             f"fio, 4 KiB at random, 75 % reads, direct, depth {DEPTH}, {REQUESTED >> 20} MiB in all, on a file of {FILE >> 20} MiB that was written before. The SSD has {CAPACITY >> 20} MiB, "
             f"the delays of table 3.6 and {MAP_CACHE >> 10} KiB of map cache, which is the paper's share. Its file has 4 GB, and fio's depth is not stated.", ""]
    lines += report.table(["file system", "layer", "MB/s", "requests/s", "time", "map hits", "map reads", "map writes", "data writes"], rows)
    lines += ["", *WHY.format(**gain, between=100 * (rates["ext4", "dftl"] / rates["btrfs", "dftl"] - 1)).splitlines()]
    return "\n".join(lines) + "\n"


WHY = """- *`cpftl` for `dftl`*: {ext4:+.0f} % on ext4 (the paper: +42 %), {btrfs:+.0f} % on btrfs (not stated). Random requests have nothing to learn from, and nothing was mined (`--learn-after`); the gain is from dirty entries, which `cpftl` writes
  together, while nearly every write costs `dftl` a program of 300 us for a translation page. The paper's FTL runs in a JVM behind ioctls, so delays of flash are a smaller part of its times; its map cache and depth are not stated.
- *ext4 for btrfs*, with `dftl`: {between:+.0f} % (the paper: ext4 is faster, by how much is not stated). btrfs writes elsewhere and keeps checksums. It maps what it writes next to each other, so `cpftl` finds neighbours' entries there.
- *IOPS, throughput and time* say the same here, as requests have one size (the paper: *the same results propagate*). On a busy machine the SSD's delays hold, but the path through FUSE and the loop device takes longer."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--binary", default=os.path.join(HERE, "..", "target", "release", "tessera"))
    parser.add_argument("--out", default=os.path.join(HERE, "results"))
    config = parser.parse_args()
    binary = os.path.abspath(config.binary)
    result = {"machine": machine.describe({}), "load": machine.load_average(), "rounds": config.rounds}
    turns = [(system, layer) for _ in range(config.rounds) for system in SYSTEMS for layer in LAYERS]
    result["rows"] = [measure(binary, *turn) for turn in turns]
    report.save(config.out, "flash_files", result, text(result))
    print(text(result))


if __name__ == "__main__":
    main()
