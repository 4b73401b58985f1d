#!/usr/bin/env python3
"""CONA beside LevelDB, RocksDB and fjall under YCSB (`make bench-cona`).

Writes bench/results/cona.md (tables), cona.json (every figure) and cona.svg (rates over time). The driver is bench/cona, one process an engine, the same for
each: 20-byte keys, 200-byte values that do not compress, zipfian 0.99, one client, 64 MiB of cache, 16 MiB write buffers, writes handed to
the operating system before they are acknowledged. Small letters: the page cache is evicted all the
time (not for LevelDB, which reads through mmap). Needs libleveldb-dev and librocksdb-dev.

    python3 bench/cona.py                         5 M records, 1 M operations a phase
    python3 bench/cona.py --records 25000000
    python3 bench/cona.py --records 1000000 --ops 300000 --dir /mnt/flash
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from xml.sax.saxutils import escape

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from benchlib import machine  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
DRIVER = os.path.join(HERE, "cona", "target", "release", "tessera-bench-cona")
SYSTEMS = ("cona", "leveldb", "rocksdb", "fjall")
COLOURS = {"cona": "#1b6ca8", "leveldb": "#e08e45", "rocksdb": "#7a5195", "fjall": "#5a9e4b"}
USER_BYTES = 220


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--records", type=int, default=5_000_000)
    a.add_argument("--ops", type=int, default=1_000_000)
    a.add_argument("--phases", default="load,A,B,C,D,F,a,b,c,d,f")
    a.add_argument("--systems", default=",".join(SYSTEMS))
    a.add_argument("--variant", default="", help="CONA's options, name=value,…")
    a.add_argument("--dir", default=None, help="where the stores are put; default: a temporary directory")
    a.add_argument("--out", default=os.path.join(HERE, "results", "cona"))
    return a.parse_args()


def run(system, args, parent):
    folder = tempfile.mkdtemp(prefix=f"cona-bench-{system}-", dir=parent)
    phases = args.phases
    if system == "leveldb":
        # It reads through mmap: evicting what is mapped shows the cost of page faults, not of LevelDB.
        phases = ",".join(p for p in phases.split(",") if p == "load" or p.isupper())
    command = [DRIVER, "--system", system, "--dir", folder, "--records", str(args.records), "--ops", str(args.ops),
               "--phases", phases]
    if system == "cona" and args.variant:
        command += ["--variant", args.variant]
    rows = []
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                row = json.loads(line)
                row["load_average"] = round(machine.load_average(), 1)
                rows.append(row)
                print(f"{system:8} {name(row):5} {row['ops_per_s']:>10,.0f} operations/s", file=sys.stderr, flush=True)
        if process.returncode:
            raise SystemExit(f"{system} ended with {process.returncode}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return rows


def name(row):
    return ("cold " if row["cold"] else "") + row["phase"]


def table(head, lines):
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return out + ["| " + " | ".join(line) + " |" for line in lines]


def latency(row, kind):
    h = row.get(kind)
    return "" if not h else " / ".join(f"{h[q]:,.0f}" for q in ("p50", "p99", "p999", "p9999", "max"))


def written_per_byte(row):
    writes = (row["writes"] or {}).get("count", 0)
    return row["disk_written_bytes"] / (writes * USER_BYTES) if writes else None


def report(rows, about):
    systems = [s for s in SYSTEMS if any(r["system"] == s for r in rows)]
    names = list(dict.fromkeys(name(r) for r in rows))
    pick = {(r["system"], name(r)): r for r in rows}
    cell = lambda s, n, f: f(pick[s, n]) if (s, n) in pick else ""
    loads = [r["load_average"] for r in rows]
    lines = ["# CONA beside its peers, YCSB", "",
             f"{about['records']:,} records of 20 + 200 bytes, {about['ops']:,} operations a phase (cold ones a quarter), zipfian 0.99, one client, "
             "64 MiB of cache and 16 MiB write buffers each, no compression, every write handed to the operating system before it is acknowledged. "
             "Cold: the page cache is evicted every 50 ms (left out for LevelDB, which reads through mmap).",
             f"Machine: {about['machine']['cpu']}, {about['machine']['cores']} cores, {about['machine']['memory_gib']} GiB, {about['machine']['kernel']}, "
             f"{about['machine']['file_systems']['stores']}. Load average {min(loads)} to {max(loads)}"
             + (": **other programs were running, the figures are not final**." if max(loads) > 3.0 else "."), "",
             "## Thousand operations a second", ""]
    best = lambda n: max((pick[s, n]["ops_per_s"] for s in systems if s != "cona" and (s, n) in pick), default=None)
    body = [[s] + [cell(s, n, lambda r: f"{r['ops_per_s'] / 1000:,.0f}") for n in names] for s in systems]
    body.append(["cona / best peer"] + [f"{pick['cona', n]['ops_per_s'] / best(n):.2f}" if best(n) and ("cona", n) in pick else "" for n in names])
    lines += table(["system"] + names, body)
    lines += ["", "## Bytes", "",
              "Write amplification is bytes to the disk a byte from the user, background work until it is quiet included. Read bytes are from the disk, an operation.", ""]
    show = lambda v: "" if v is None else f"{v:.1f}"
    writing = [n for n in names if any((s, n) in pick and written_per_byte(pick[s, n]) for s in systems)]
    lines += table(["system"] + [f"{n}: written" for n in writing],
                   [[s] + [cell(s, n, lambda r: show(written_per_byte(r))) for n in writing] for s in systems])
    cold = [n for n in names if n.startswith("cold")]
    if cold:
        lines += [""] + table(["system"] + [f"{n}: read B/operation" for n in cold],
                              [[s] + [cell(s, n, lambda r: f"{r['disk_read_bytes'] / r['ops']:,.0f}") for n in cold] for s in systems])
    lines += ["", "## Memory after the load and after all phases", ""]
    megabytes = lambda r: f"{r['anonymous_bytes'] / 1e6:,.0f} MB"
    lines += table(["system", "anonymous, load", "anonymous, end"], [[s, cell(s, names[0], megabytes), cell(s, names[-1], megabytes)] for s in systems])
    for n in (names[0], names[-1]):
        figures = pick.get(("cona", n), {}).get("after")
        if figures:
            keys = max(figures["cell_records"], 1)
            lines += ["", f"CONA after {n}: {figures['cells']} cells, index {figures['index_bytes'] / keys:.3f} + filter {figures['filter_bytes'] / keys:.3f} "
                      f"= {(figures['index_bytes'] + figures['filter_bytes']) / keys:.3f} B a record."]
        peer = pick.get(("rocksdb", n), {}).get("after")
        if peer:
            lines += ["", f"RocksDB after {n}: index and filters {peer['table_memory_bytes'] / pick['rocksdb', n]['records']:.2f} B a record."]
    lines += ["", "Pages that CONA read, a look-up that neither a buffer nor the cache of records answered:", ""]
    looked = []
    for n in names:
        row = pick.get(("cona", n))
        if row and row["reads"]:
            change = {k: row["after"][k] - row["before"][k] for k in ("lookups", "buffer_hits", "cache_hits", "page_reads")}
            cells = change["lookups"] - change["buffer_hits"] - change["cache_hits"]
            looked.append([n, f"{change['page_reads'] / max(cells, 1):.4f}", f"{change['page_reads'] / change['lookups']:.3f}",
                           f"{100 * change['cache_hits'] / change['lookups']:.0f} %", f"{100 * change['buffer_hits'] / change['lookups']:.0f} %"])
    lines += table(["phase", "pages a look-up in cells", "pages a look-up", "from the cache", "from buffers"], looked)
    for kind in ("reads", "writes"):
        lines += ["", f"## Latency of {kind}, µs: p50 / p99 / p99.9 / p99.99 / max", ""]
        has = [n for n in names if any((s, n) in pick and pick[s, n][kind] for s in systems)]
        lines += table(["system"] + has, [[s] + [cell(s, n, lambda r: latency(r, kind)) for n in has] for s in systems])
    return "\n".join(lines) + "\n"


def svg(rows):
    """Rates over each phase, one panel a phase."""
    names = list(dict.fromkeys(name(r) for r in rows))
    width, height, columns = 320, 150, 3
    parts = []
    for at, n in enumerate(names):
        x0, y0 = 50 + at % columns * (width + 40), 60 + at // columns * (height + 50)
        here = [r for r in rows if name(r) == n]
        top = max(max(r["series"]) for r in here)
        parts.append(f'<text x="{x0}" y="{y0 - 6}" font-weight="bold">{escape(n)}: up to {top / 1000:,.0f} thousand/s</text>')
        parts.append(f'<rect x="{x0}" y="{y0}" width="{width}" height="{height}" fill="none" stroke="#bbb"/>')
        for r in here:
            step = width / max(len(r["series"]) - 1, 1)
            points = " ".join(f"{x0 + i * step:.1f},{y0 + height * (1 - v / top):.1f}" for i, v in enumerate(r["series"]))
            parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[r["system"]]}" stroke-width="1.3"/>')
    legend = "".join(f'<text x="{50 + 110 * i}" y="40" fill="{c}" font-weight="bold">{s}</text>' for i, (s, c) in enumerate(COLOURS.items()))
    bottom = 60 + (len(names) + columns - 1) // columns * (height + 50)
    wide = 50 + columns * (width + 40)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{bottom}" viewBox="0 0 {wide} {bottom}" font-family="sans-serif" font-size="11">'
            '<rect width="100%" height="100%" fill="white"/><text x="50" y="20" font-weight="bold">Operations a second over each phase, from its begin to its end</text>'
            + legend + "\n".join(parts) + "</svg>\n")


def main():
    args = arguments()
    if not os.path.exists(DRIVER):
        raise SystemExit("build the driver first: make bench-cona")
    parent = args.dir or tempfile.gettempdir()
    about = {"records": args.records, "ops": args.ops, "variant": args.variant, "machine": machine.describe({"stores": parent})}
    rows = []
    for system in args.systems.split(","):
        rows += run(system, args, parent)
        with open(args.out + ".json", "w") as f:
            json.dump({"about": about, "rows": rows}, f)
        with open(args.out + ".md", "w") as f:
            f.write(report(rows, about))
        with open(args.out + ".svg", "w") as f:
            f.write(svg(rows))


if __name__ == "__main__":
    main()
