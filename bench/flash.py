#!/usr/bin/env python3
"""The translation layers side by side, and the figures of the CPFTL paper redone (`make bench-flash`).

    python3 bench/flash.py --traces DIR            about twenty minutes
    python3 bench/flash.py --traces DIR --quick    a tenth of the requests

Every trace in DIR is split into training and test. The setup of 16 GB runs on synthetic traces that state what tables 3.1 and 3.2 of
the paper say, because its full traces cannot be had; how many reads are correlated is our choice. Writes bench/results/flash.md
and flash.json.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from benchlib import flashtext, machine, report  # noqa: E402

REQUESTS = 1_000_000
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
# Figure 3.9: sequential prefetch alone, then one mechanism more each.
COMPONENTS = [
    ("S. P.", "no-correlation,no-dirty-index,no-skew"),
    ("C. M.", "full-mining,full-search,no-dirty-index,no-skew"),
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

    def synthesize(self, name, gap=None):
        """A trace as stated; `gap` takes the place of its time between arrivals."""
        path = os.path.join(self.directory, f"{name}-{gap}.spc")
        words = f"{SYNTHETIC[name]} {COMMON} --requests {self.requests}".split()
        if gap:
            words[words.index("--gap") + 1] = gap
        with open(path, "w") as out:
            subprocess.run([self.binary, "flash", "trace", "synthesize", *words, "-q"], check=True, stdout=out)
        return path

    def replay(self, trace, setup, ftl=LAYERS, cpftl=CPFTL, *more):
        """A row for each layer. Results name the trace, and not where it lay on the machine."""
        words = ["replay", trace, *setup.split(), "--ftl", ftl, "--cpftl", cpftl, *more, "--json"]
        rows = [json.loads(line) for line in self.run(*words).splitlines()]
        return [{**row, "trace": os.path.basename(row["trace"])} for row in rows]


def given(bench, traces):
    """Each trace as it is, on a device as large as what it touches."""
    setup = "--compact --preload=random --train 50% --map-cache 64K --over-provisioning 15%"
    rows = {}
    for name in sorted(os.listdir(traces)):
        if not name.endswith(".md"):
            print(name, file=sys.stderr)
            rows[name] = bench.replay(os.path.join(traces, name), setup)
    return rows


def study(bench):
    """The figures of the paper on synthetic traces."""
    made = {name: bench.synthesize(name) for name in SYNTHETIC}
    result = {"layers": {}, "labels": {}}
    for name, path in made.items():
        print(name, file=sys.stderr)
        with open(path) as trace:
            result["labels"][name] = [next(trace).strip("# \n") for _ in range(2)]
        result["layers"][name] = bench.replay(path, SETUP)
    print("load, support, cache sizes, components, mining", file=sys.stderr)
    loaded = bench.synthesize("web", "180us")
    result["loaded"] = bench.replay(loaded, SETUP, "ideal,dftl,cpftl")
    result["support"] = {s: bench.replay(made["web"], SETUP, "cpftl", f"{CPFTL},support={s}")[0] for s in SUPPORTS}
    sweep = SETUP.replace("288K", "64K,256K,1M,2M")
    result["cache"] = bench.replay(made["financial"], sweep, "ideal,dftl,cpftl")
    financial = made["financial"]
    result["components"] = [bench.replay(financial, SETUP, "cpftl", f"{CPFTL},{o}".rstrip(","))[0] for _, o in COMPONENTS]
    full = {name: bench.replay(path, SETUP, "cpftl", f"{CPFTL},full-mining")[0] for name, path in made.items()}
    result["full_mining"] = full
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", required=True, metavar="DIR", help="directory of block traces")
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests")
    parser.add_argument("--binary", default=os.path.join(HERE, "..", "target", "release", "tessera"))
    parser.add_argument("--out", default=os.path.join(HERE, "results"))
    config = parser.parse_args()
    result = {"machine": machine.describe({}), "load": machine.load_average(), "setup": SETUP, "cpftl": CPFTL}
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(config.binary, directory, REQUESTS // (10 if config.quick else 1))
        result["given"] = given(bench, config.traces)
        result.update(study(bench))
    result["components"] = dict(zip((name for name, _ in COMPONENTS), result["components"]))
    text = flashtext.report(result)
    report.save(config.out, "flash", result, text)
    print(text)


if __name__ == "__main__":
    main()
