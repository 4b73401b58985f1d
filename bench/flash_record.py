#!/usr/bin/env python3
"""What the store and CONA cost on flash (`make bench-flash-record`): records both, replays the traces on simulated SSDs.

    python3 bench/flash_record.py            some ten minutes, a GiB of disk
    python3 bench/flash_record.py --quick    a quarter of the data

The store is one manager and one node whose disk is recorded while files are put, removed and compacted, with three sizes of segments.
CONA is recorded under YCSB A, once with writes that the system has and once with writes that are synced. Each trace is replayed as it
is, and without its TRIMs. Writes bench/results/flash_record.md and flash_record.json.
"""

import argparse
import json
import os
import random
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from benchlib import machine, procs, recordtext, report  # noqa: E402
from benchlib.cluster import Cluster  # noqa: E402

LAYERS = "ideal,dftl,tpftl,cpftl"
# The map cache is a twentieth of the map. Figures are of the second half of a trace.
SETUP = "--train 50% --over-provisioning 7% --map-cache {cache}"
STEP, CAPACITY_MIN = 16 << 20, 64 << 20
# A smaller device has too few spare blocks of 1 MiB.
LARGE_BLOCKS_FROM = 256 << 20
SEGMENTS = ("4M", "16M", "64M")
FILE_BYTES = 3 << 20
CONA = {
    "cona, written": "--records 300000 --ops 3000000",
    "cona, synced": "--records 20000 --ops 60000 --sync --buffer 1M",
}


class Recorded(Cluster):
    """A cluster whose only node is recorded."""

    def __init__(self, trace, *args, **options):
        super().__init__(*args, **options)
        self.trace = trace

    def _command(self, name):
        words = super()._command(name)
        if name == "manager":
            return words
        return [words[0], "flash", "record", "--out", self.trace, "--json", *words[1:]]


def store(binary, directory, trace, segment_size, files):
    """Puts files, then five times replaces a random half of them; returns the totals of the recording."""
    knobs = [f"segment_size_bytes={segment_size}", "reserve_bytes=0", "compact_every_ms=500"]
    cluster = Recorded(trace, binary, directory, 1, ("session_ms=500", "heartbeat_ms=100"), knobs)
    draw = random.Random(1)
    source = os.path.join(directory, "source")

    def put(names):
        os.makedirs(source, exist_ok=True)
        for name in names:
            with open(os.path.join(source, name), "wb") as out:
                out.write(draw.randbytes(FILE_BYTES))
        cluster.cli("put", "-q", "-p", "redundancy=none", *(os.path.join(source, name) for name in names), "tess:/")
        machine.remove(source)

    cluster.start_all()
    try:
        live = [f"f{i}" for i in range(files)]
        put(live)
        for turn in range(5):
            gone = draw.sample(live, files // 2)
            cluster.cli("rm", "-q", *(f"tess:/{name}" for name in gone))
            new = [f"g{turn}-{i}" for i in range(len(gone))]
            put(new)
            live = [name for name in live if name not in gone] + new
            cluster.cli("gc", "-q")
        procs.stop(cluster.processes["n1"])
        return totals_in(cluster.log("n1"))
    finally:
        cluster.close()


def totals_in(log):
    """What `record --json` printed at its end, among the lines of the daemon's log."""
    with open(log) as lines:
        documents = [procs.load_json(line) for line in lines if line.startswith('{"files"')]
    if not documents:
        raise procs.ProcessFailed(f"{log} has no totals")
    return documents[-1]["files"]


def cona(binary, directory, trace, options):
    words = [binary, "flash", "record", "--out", trace, "--json", "cona", "--dir", os.path.join(directory, "cona")]
    try:
        return json.loads(procs.run([*words, *options.split()], timeout_s=1800))["files"]
    finally:
        machine.remove(os.path.join(directory, "cona"))


def without_trims(trace):
    """The trace of a file system that is mounted without `discard`."""
    path = f"{trace}.no-trim"
    with open(trace) as lines, open(path, "w") as out:
        out.writelines(line for line in lines if " trim " not in line)
    return path


def replay(binary, trace):
    """Rows of the layers on a device as large as what the trace touches, which was full before, written in order or at random."""
    info = json.loads(procs.run([binary, "flash", "trace", "info", trace, "--json"]))
    capacity = max(CAPACITY_MIN, -(-info["span_bytes"] // STEP) * STEP)
    setup = SETUP.format(cache=max(16 << 10, capacity // 1024 // 20)).split()

    def run(path, *more):
        words = [binary, "flash", "replay", path, "--capacity", str(capacity), *setup, "--json", *more]
        rows = [json.loads(line) for line in procs.run(words, timeout_s=1800).splitlines()]
        return [{name: value for name, value in row.items() if name != "trace"} for row in rows]

    bare = without_trims(trace)
    rows = {}
    for order in ("sequential", "random"):
        rows[f"{order}, TRIM"] = run(trace, "--ftl", LAYERS, f"--preload={order}")
        rows[order] = run(bare, "--ftl", LAYERS, f"--preload={order}")
    if capacity >= LARGE_BLOCKS_FROM:
        rows["blocks of 1 MiB"] = run(trace, "--ftl", LAYERS, "--preload=sequential", "--geometry", "pages=256")
    return {"capacity_bytes": capacity, "requests": info["requests"], "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the data")
    parser.add_argument("--binary", default=os.path.join(HERE, "..", "target", "release", "tessera"))
    parser.add_argument("--dir", help="where the store and the traces lie meanwhile")
    parser.add_argument("--out", default=os.path.join(HERE, "results"))
    config = parser.parse_args()
    binary, files = os.path.abspath(config.binary), 16 if config.quick else 64
    result = {"machine": machine.describe({}), "load": machine.load_average(), "setup": SETUP, "file_bytes": FILE_BYTES, "files": files}
    result["traces"] = {}
    with tempfile.TemporaryDirectory(dir=config.dir) as directory:
        recordings = [(f"store, segments of {size}", store, size, files) for size in SEGMENTS]
        recordings += [(name, cona, options) for name, options in CONA.items()]
        for number, (name, record, *how) in enumerate(recordings):
            print(name, file=sys.stderr)
            home, trace = os.path.join(directory, str(number)), os.path.join(directory, f"{number}.fio")
            os.makedirs(home)
            totals = record(binary, home, trace, *how)
            result["traces"][name] = {"totals": totals, **replay(binary, trace)}
            os.remove(trace)
    text = recordtext.report(result)
    report.save(config.out, "flash_record", result, text)
    print(text)


if __name__ == "__main__":
    main()
