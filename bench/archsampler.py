#!/usr/bin/env python3
"""The figures of the ArchSampler paper redone on the memory model, and rows against elements on this machine's memory.

    python3 bench/archsampler.py            about five minutes, 4 GB of memory
    python3 bench/archsampler.py --quick    400 MB of memory

Writes bench/results/archsampler.md and archsampler.json (`make bench-archsampler`).
"""

import argparse
import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from benchlib import archtext, machine, report  # noqa: E402

BYTES = 4_000_000_000
HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"


def huge_pages():
    """How the kernel uses huge pages: the word in brackets."""
    try:
        with open(HUGE_PAGES) as f:
            return f.read().split("[")[1].split("]")[0]
    except (OSError, IndexError):
        return "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the memory")
    parser.add_argument("--program", default=os.path.join(HERE, "..", "target", "release", "examples", "archsampler"))
    parser.add_argument("--out", default=os.path.join(HERE, "results"))
    parser.add_argument("--report", action="store_true", help="measure nothing, write the page again from archsampler.json")
    config = parser.parse_args()
    if config.report:
        with open(os.path.join(config.out, "archsampler.json")) as f:
            result = json.load(f)
    else:
        result = {"machine": machine.describe({}), "load": machine.load_average(), "huge_pages": huge_pages()}
        size = BYTES // (10 if config.quick else 1)
        # What is timed on the machine comes first, before the simulations warm it.
        for words in (["real", str(size)], ["content"], ["accuracy"], ["timing"]):
            print(words[0], file=sys.stderr)
            done = subprocess.run([config.program, *words], check=True, stdout=subprocess.PIPE, text=True)
            result[words[0]] = json.loads(done.stdout)
    text = archtext.report(result)
    report.save(config.out, "archsampler", result, text)
    print(text)


if __name__ == "__main__":
    main()
