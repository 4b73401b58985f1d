#!/usr/bin/env python3
"""The translation layers side by side, and the figures of the CPFTL paper redone (`make bench-flash`).

    python3 bench/flash.py --traces DIR                    about half an hour
    python3 bench/flash.py --traces DIR --quick            a tenth of the requests
    python3 bench/flash.py --traces DIR --parts figures    one part; the others stay as the last run found them
    python3 bench/flash.py --traces DIR --layers tpftl     these rows of the tables of all layers; all else stays

Every trace in DIR is split into training and test. The setup of 16 GB runs on synthetic traces that state what tables 3.1 and 3.2 of
the paper say, because its full traces cannot be had; how many reads are correlated is our choice. Writes bench/results/flash.md
and flash.json.
"""

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from benchlib import flashreport, machine, report, traceprops  # noqa: E402

REQUESTS, CAPACITY = 1_000_000, 16 << 30
SUPPORTS = (1, 2, 3, 5, 7, 9)
LAYERS = "ideal,dftl,sftl,tpftl,cpftl,leaftl,learnedftl,cola"
# What the paper's tables 3.1 and 3.2 say of its traces behind the host's buffer, and our choice of what is read together.
SYNTHETIC = {
    "web": "--reads 99.9% --read-size 17920 --write-size 10035 --gap 1330us --sequential 10% --correlated 80% --groups 2000",
    "financial": "--reads 65.6% --read-size 2150 --write-size 2458 --gap 9080us --sequential 10% --correlated 60% --groups 6000",
    "tpcc": "--reads 57.9% --read-size 8192 --write-size 8192 --gap 3700us --sequential 2% --correlated 45% --groups 3000",
}
COMMON = "--footprint 16G --cluster 512M --group-skew 0.6 --skew 0.5"
SETUP = "--capacity 16G --preload=random --train 50% --map-cache 288K --over-provisioning 15%"
CPFTL = "window=256,predictor=50"
# Collection is in its steady state when the trace begins.
STEADY = SETUP.replace("random", "overwritten")
# What the paper's host buffer has of the storage. The synthetic traces are as those behind it, so they get none.
BUFFER = 0.05
GIVEN = "--compact --preload=random --train 50% --map-cache 64K --over-provisioning 15%"
# Devices whose memory is measured, each written whole before: capacity, order and layers.
SIZES = (("64M", "random", "ideal"), ("16G", "random", LAYERS), ("1T", "sequential", "ideal,dftl,cpftl"))
# All pairs at once, in as much memory as that takes.
FULL = "full-mining,pairs=1073741824"
# Figure 3.9: sequential prefetch alone, then one mechanism more each.
COMPONENTS = [
    ("S. P.", "no-correlation,no-dirty-index,no-skew"),
    ("C. M.", f"{FULL},full-search,no-dirty-index,no-skew"),
    ("C. C.", "full-search,no-dirty-index,no-skew"),
    ("DEI", "full-search,no-skew"),
    ("DEI S.", "full-search"),
    ("predictive", ""),
]


class Bench:
    def __init__(self, binary, directory, requests):
        self.binary, self.directory, self.requests = binary, directory, requests

    def run(self, *words):
        return subprocess.run([self.binary, "flash", *words], check=True, stdout=subprocess.PIPE, text=True).stdout

    def peak_bytes(self, *words):
        """The most memory that a command had."""
        process = subprocess.Popen([self.binary, "flash", *words], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, words)
        return usage.ru_maxrss * 1024

    def synthesize(self, name, gap=None):
        """A trace as stated; `gap` takes the place of its time between arrivals."""
        path = os.path.join(self.directory, f"{name}-{gap}.spc")
        words = f"{SYNTHETIC[name]} {COMMON} --requests {self.requests}".split()
        if gap:
            words[words.index("--gap") + 1] = gap
        with open(path, "w") as out:
            subprocess.run([self.binary, "flash", "trace", "synthesize", *words, "-q"], check=True, stdout=out)
        return path

    def lines(self, trace):
        """Requests of a trace in SPC's format."""
        return self.run("trace", "convert", trace, "--to", "spc", "-q").splitlines()

    def sequential(self, trace):
        """The same trace with pages that follow each other, as in figure 3.2."""
        path, at = f"{trace}.sequential.spc", 0
        with open(trace) as source, open(path, "w") as out:
            for line in source:
                if line.startswith("#"):
                    continue
                device, _, size, rest = line.split(",", 3)
                pages = -(-int(size) // 4096)
                if at + pages > CAPACITY // 4096:
                    at = 0
                out.write(f"{device},{at * 8},{size},{rest}")
                at += pages
        return path

    def apart(self, trace):
        """The same trace, with the writes out of the regions of 1 MiB in which the correlated reads lie: they go to the next ones."""
        path, region = f"{trace}.apart.spc", (1 << 20) // 512
        with open(trace) as source:
            requests = [line.split(",") for line in source if not line.startswith("#")]
        reads = collections.Counter(int(sector) // region for _, sector, _, operation, _ in requests if operation == "R")
        usual = statistics.median(reads.values())
        busy = [number for number, count in reads.items() if count > 6 * usual]
        first, last = min(busy), max(busy)
        with open(path, "w") as out:
            for device, sector, *rest in requests:
                if rest[1] == "W" and first <= int(sector) // region <= last:
                    sector = (int(sector) + (last - first + 1) * region) % (CAPACITY // 512)
                out.write(",".join([device, str(sector), *rest]))
        return path

    def replay(self, trace, setup, ftl=LAYERS, cpftl=CPFTL, *more):
        """A row for each layer. Results name the trace, and not where it lay on the machine."""
        words = ["replay", trace, *setup.split(), "--ftl", ftl, "--cpftl", cpftl, *more, "--json"]
        rows = [json.loads(line) for line in self.run(*words).splitlines()]
        return [{**row, "trace": os.path.basename(row["trace"])} for row in rows]


def names(traces):
    return [name for name in sorted(os.listdir(traces)) if not name.endswith(".md")]


def given(bench, traces):
    """Each trace as it is, on a device as large as what it touches."""
    rows = {}
    for name in names(traces):
        print(name, file=sys.stderr)
        rows[name] = bench.replay(os.path.join(traces, name), GIVEN)
    return {"given": rows}


def study(bench, _):
    """The layers on synthetic traces, and the figures on learning and the size of the cache."""
    made = {name: bench.synthesize(name) for name in SYNTHETIC}
    result = {"layers": {}, "labels": {}}
    for name, path in made.items():
        print(name, file=sys.stderr)
        with open(path) as trace:
            result["labels"][name] = [next(trace).strip("# \n") for _ in range(2)]
        result["layers"][name] = bench.replay(path, SETUP)
    print("load, support, cache sizes, mining", file=sys.stderr)
    loaded = bench.synthesize("web", "180us")
    result["loaded"] = bench.replay(loaded, SETUP, "ideal,dftl,cpftl")
    result["support"] = {s: bench.replay(made["web"], SETUP, "cpftl", f"{CPFTL},support={s}")[0] for s in SUPPORTS}
    sweep = SETUP.replace("288K", "64K,128K,256K,512K,1M,2M")
    result["cache"] = bench.replay(made["financial"], sweep, "ideal,dftl,cpftl")
    result["full_mining"] = {name: bench.replay(path, SETUP, "cpftl", f"{CPFTL},{FULL}")[0] for name, path in made.items()}
    return result


def steady(bench, traces):
    """What the traces are like, and the figures on a device whose collection is in its steady state."""
    made = {name: bench.synthesize(name) for name in SYNTHETIC}
    result = {"traces": {}, "mined": {}, "steady": {}, "components": {}}
    for name in names(traces):
        print(name, file=sys.stderr)
        path = os.path.join(traces, name)
        result["traces"][name] = traceprops.properties(traceprops.parse(bench.lines(path)), BUFFER)
        both = (bench.replay(path, GIVEN, "cpftl", f"{CPFTL},{more}".rstrip(","))[0] for more in (FULL, ""))
        result["mined"][name] = [row["cpftl"]["mined_pairs"] for row in both]
    for name, path in made.items():
        print(f"{name}, steady", file=sys.stderr)
        with open(path) as lines:
            result["traces"][f"`{name}`, synthetic"] = traceprops.properties(traceprops.parse(lines), None)
        # `web` has 500 writes in all.
        if name != "web":
            result["steady"][name] = bench.replay(path, STEADY, "ideal,dftl,sftl,tpftl,cpftl")
    financial = made["financial"]
    for name, options in COMPONENTS:
        result["components"][name] = bench.replay(financial, STEADY, "cpftl", f"{CPFTL},{options}".rstrip(","))[0]
    result["apart"] = writes_apart(bench, financial)
    result["analysis"] = analysis(bench, financial, result["steady"]["financial"])
    return result


def memory(bench, _):
    """The most memory of a replay on devices that were written whole, by capacity and layer."""
    path, found = os.path.join(bench.directory, "one.spc"), {}
    with open(path, "w") as trace:
        trace.write("0,0,4096,W,0.0\n")
    for capacity, order, layers in SIZES:
        for ftl in layers.split(","):
            print(f"{capacity}, {ftl}", file=sys.stderr)
            words = ["replay", path, "--capacity", capacity, f"--preload={order}", "--ftl", ftl, "-q"]
            found.setdefault(f"{capacity}, {order}", {})[ftl] = bench.peak_bytes(*words)
    return {"memory": found}


def analysis(bench, financial, steady_rows):
    """The five tests of figure 3.2, each on a device that was written once and on one in steady state."""
    sequential, tests = bench.sequential(financial), {}
    for setup, rows in ((SETUP, bench.replay(financial, SETUP, "ideal,dftl,sftl")), (STEADY, steady_rows)):
        found = {f"financial, {row['ftl']}": row for row in rows} | {f"sequential, {row['ftl']}": row for row in bench.replay(sequential, setup, "dftl,sftl")}
        for name in ("financial, dftl", "financial, sftl", "sequential, dftl", "sequential, sftl", "financial, ideal"):
            tests.setdefault(name, []).append(found[name])
    return tests


def writes_apart(bench, financial):
    """What correlations give where no write drops them, on a device that was written once."""
    path, rows = bench.apart(financial), {}
    rows["dftl"] = bench.replay(path, SETUP, "dftl")[0]
    for name, options in COMPONENTS:
        if name in ("S. P.", "DEI S.", "predictive"):
            rows[name] = bench.replay(path, SETUP, "cpftl", f"{CPFTL},{options}".rstrip(","))[0]
    return rows


def again(bench, traces, layers, result):
    """Rows of the tables of all layers in place of those that the last run found."""
    paths = {("given", name): os.path.join(traces, name) for name in names(traces)} | {("layers", name): bench.synthesize(name) for name in SYNTHETIC}
    for (part, name), path in paths.items():
        print(name, file=sys.stderr)
        new = {row["ftl"]: row for row in bench.replay(path, GIVEN if part == "given" else SETUP, layers)}
        result[part][name] = [new.get(row["ftl"], row) for row in result[part][name]]


PARTS = {"given": given, "study": study, "figures": steady, "memory": memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", required=True, metavar="DIR", help="directory of block traces")
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests")
    parser.add_argument("--parts", default=",".join(PARTS), help="given, study, figures, memory, with commas between them")
    parser.add_argument("--layers", help="rows of these layers only")
    parser.add_argument("--binary", default=os.path.join(HERE, "..", "target", "release", "tessera"))
    parser.add_argument("--out", default=os.path.join(HERE, "results"))
    config = parser.parse_args()
    chosen = [] if config.layers else config.parts.split(",")
    result = {"runs": {}}
    if set(chosen) != set(PARTS):
        with open(os.path.join(config.out, "flash.json")) as last:
            result = json.load(last)
    result.update({"machine": machine.describe({}), "setup": SETUP, "cpftl": CPFTL})
    requests = REQUESTS // (10 if config.quick else 1)
    for part in chosen or [config.layers]:
        # Each part makes its traces anew, so that a few gigabytes suffice.
        with tempfile.TemporaryDirectory() as directory:
            bench = Bench(config.binary, directory, requests)
            result["runs"][part] = {"load": machine.load_average(), "requests": requests}
            if part in PARTS:
                result.update(PARTS[part](bench, config.traces))
            else:
                again(bench, config.traces, part, result)
    # As after a run that kept parts: keys are text.
    result = json.loads(json.dumps(result))
    text = flashreport.report(result)
    report.save(config.out, "flash", result, text)
    print(text)


if __name__ == "__main__":
    main()
