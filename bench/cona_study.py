#!/usr/bin/env python3
"""The studies of CONA's paper, repeated on this engine (`make bench-cona-study`): insert-buffer size, merges per insert against k + 1,
merge time exposed and hidden, reads served per level, one or more buffers, and what fluctuates under A and F.

Compares the paper's shape (doubling cells, 16-bit fragments in all but the last, no cache of records) with this engine's.
Nothing is synced or logged, as in the paper, whose store was a mapped file. Writes bench/results/cona-study.md, .json and .svg.

    python3 bench/cona_study.py                    2 M records, 1 M operations a phase, about ten minutes
    python3 bench/cona_study.py --records 300000 --ops 200000
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
from benchlib import machine, study  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
DRIVER = os.path.join(HERE, "cona", "target", "release", "tessera-bench-cona")
PAPER = "paper=1,volatile=1"
SIZES_KIB = (8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)

# Name, options, phases.
RUNS = (
    [(f"paper, {kib} KiB", f"{PAPER},buffer_kib={kib}", "load,A,B,C") for kib in SIZES_KIB]
    + [(f"paper, {kib} KiB, inline", f"{PAPER},buffer_kib={kib},inline=1", "load,A,B") for kib in (64, 1024)]
    + [(f"paper, 64 KiB, {n} buffers", f"{PAPER},buffer_kib=64,buffers={n}", "load,A,B") for n in (3, 4, 8)]
    + [("paper, 64 KiB, F", f"{PAPER},buffer_kib=64", "load,F"),
       ("ours", "volatile=1,cache_mib=0", "load,A,B,C"),
       ("ours, F", "volatile=1,cache_mib=0", "load,F"),
       ("ours, 4 buffers", "volatile=1,cache_mib=0,buffers=4", "load,A,B")]
)


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--records", type=int, default=2_000_000)
    a.add_argument("--ops", type=int, default=1_000_000)
    a.add_argument("--only", default="", help="runs whose name has this in it; others are kept from the last time")
    a.add_argument("--report", action="store_true", help="measure nothing")
    a.add_argument("--dir", default=None)
    a.add_argument("--out", default=os.path.join(HERE, "results", "cona-study"))
    return a.parse_args()


def run(name, variant, phases, args):
    folder = tempfile.mkdtemp(prefix="cona-study-", dir=args.dir)
    command = [DRIVER, "--system", "cona", "--dir", folder, "--records", str(args.records), "--ops", str(args.ops), "--phases", phases, "--variant", variant]
    rows = []
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        for line in done.stdout.splitlines():
            rows.append({**json.loads(line), "name": name, "load_average": round(machine.load_average(), 1)})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{name:28}", *(f"{r['phase']} {r['ops_per_s'] / 1000:,.0f}k" for r in rows), file=sys.stderr, flush=True)
    return rows


def main():
    args = arguments()
    held = {"rows": []}
    if os.path.exists(args.out + ".json"):
        with open(args.out + ".json") as f:
            held = json.load(f)
    rows, about = held["rows"], held.get("about")
    if not args.report:
        if not os.path.exists(DRIVER):
            raise SystemExit("build the driver first: make bench-cona-study")
        about = {"records": args.records, "ops": args.ops, "machine": machine.describe({"stores": args.dir or tempfile.gettempdir()})}
        for name, variant, phases in RUNS:
            if args.only in name:
                rows = [r for r in rows if r["name"] != name] + run(name, variant, phases, args)
                with open(args.out + ".json", "w") as f:
                    json.dump({"about": about, "rows": rows}, f)
    order = [name for name, _, _ in RUNS]
    rows = sorted((r for r in rows if r["name"] in order), key=lambda r: order.index(r["name"]))
    with open(args.out + ".md", "w") as f:
        f.write(study.report(rows, about))
    with open(args.out + ".svg", "w") as f:
        f.write(study.svg(rows))


if __name__ == "__main__":
    main()
