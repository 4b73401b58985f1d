#!/usr/bin/env python3
"""CONA beside LevelDB, RocksDB and fjall under YCSB (`make bench-cona`).

Writes bench/results/cona.md (tables), cona.json (every figure) and cona.svg (rates over time). The driver is bench/cona, one process an
engine. All have the same load: 20-byte keys, incompressible values of 200 bytes (or of --values), zipfian 0.99, one client, 64 MiB of cache, 16 MiB write
buffers, and writes that reach the operating system before they are acknowledged. The engines take turns, phase by phase, so that
compared numbers are of nearly the same time. `open`: the process ends, and another opens the store with an empty page cache.
`E` scans 1 to 100 records; `delete` removes two records of five, and `gone` looks whether they are. Bytes on the disk are counted after
each phase, when nothing is written any more. Small letters: the page cache is evicted all the time (not for LevelDB, which reads through mmap). Needs libleveldb-dev and librocksdb-dev.

    python3 bench/cona.py                         5 M records, 1 M operations a phase
    python3 bench/cona.py --records 25000000 --apart
    python3 bench/cona.py --values 1024-16384 --records 250000 --ops 250000 --out bench/results/cona-large
    python3 bench/cona.py --records 1000000 --ops 300000 --dir /mnt/flash
    python3 bench/cona.py --report                tables and plots again from the existing numbers
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from benchlib import machine, ycsb  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
DRIVER = os.path.join(HERE, "cona", "target", "release", "tessera-bench-cona")


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--records", type=int, default=5_000_000)
    a.add_argument("--ops", type=int, default=1_000_000)
    a.add_argument("--phases", default="load,A,B,C,D,E,F,open,a,b,c,d,e,f,delete,gone")
    a.add_argument("--values", default="200", help="bytes of a value, or the least and the most: 1024-16384")
    a.add_argument("--systems", default=",".join(ycsb.SYSTEMS))
    a.add_argument("--variant", default="", help="CONA's options, name=value,…")
    a.add_argument("--apart", action="store_true", help="an engine after the other, each with the disk for itself")
    a.add_argument("--report", action="store_true", help="measure nothing")
    a.add_argument("--dir", default=None, help="where the stores are put; default: a temporary directory")
    a.add_argument("--out", default=os.path.join(HERE, "results", "cona"))
    return a.parse_args()


def sizes(values):
    """The driver's flags for values of these bytes."""
    least, _, most = values.partition("-")
    return ["--value-bytes", least, "--value-bytes-max", most or least]


class Engine:
    """A driver process, which gets its phases one by one."""

    def __init__(self, system, args, parent):
        self.system, self.args = system, args
        self.folder = tempfile.mkdtemp(prefix=f"cona-bench-{system}-", dir=parent)
        self.records = args.records
        self.process = None

    def start(self, *more):
        variant = self.args.variant if self.system == "cona" else ""
        command = [DRIVER, "--system", self.system, "--dir", self.folder, "--records", str(self.args.records), "--ops", str(self.args.ops),
                   "--phases", "-", "--variant", variant, *sizes(self.args.values), *more]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def stop(self):
        if self.process:
            self.process.stdin.close()
            code = self.process.wait()
            self.process = None
            if code:
                raise SystemExit(f"{self.system} ended with {code}")

    def phase(self, phase):
        if self.system == "leveldb" and phase.islower() and len(phase) == 1:
            # Evicting mapped pages would measure the eviction (3 to 5 thousand operations a second), not LevelDB.
            return None
        if phase == "open":
            self.stop()
            os.sync()  # dirty pages cannot be evicted
            self.start("--existing", str(self.records))
        else:
            if not self.process:
                self.start()
            self.process.stdin.write(phase + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.system} ended in phase {phase}")
        row = json.loads(line)
        self.records = row["records"]
        row["load_average"] = round(machine.load_average(), 1)
        shown = f"{row['seconds'] * 1000:>12,.1f} ms" if phase == "open" else f"{row['ops_per_s']:>10,.0f} operations/s"
        print(f"{self.system:8} {ycsb.name(row):6} {shown}", file=sys.stderr, flush=True)
        return row

    def remove(self):
        if self.process:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def write(rows, about, out):
    with open(out + ".json", "w") as f:
        json.dump({"about": about, "rows": rows}, f)
    with open(out + ".md", "w") as f:
        f.write(ycsb.report(rows, about))
    with open(out + ".svg", "w") as f:
        f.write(ycsb.svg(rows))


def measure(args, about, parent):
    rows, phases = [], args.phases.split(",")
    systems = args.systems.split(",")
    for together in [[s] for s in systems] if args.apart else [systems]:
        engines = [Engine(system, args, parent) for system in together]
        try:
            for phase in phases:
                rows += [row for engine in engines if (row := engine.phase(phase))]
                write(rows, about, args.out)
            for engine in engines:
                engine.stop()
        finally:
            for engine in engines:
                engine.remove()


def main():
    args = arguments()
    if args.report:
        with open(args.out + ".json") as f:
            held = json.load(f)
        return write(held["rows"], held["about"], args.out)
    if not os.path.exists(DRIVER):
        raise SystemExit("build the driver first: make bench-cona")
    parent = args.dir or tempfile.gettempdir()
    about = {"records": args.records, "ops": args.ops, "values": args.values, "variant": args.variant, "apart": args.apart,
             "machine": machine.describe({"stores": parent})}
    return measure(args, about, parent)


if __name__ == "__main__":
    main()
