#!/usr/bin/env python3
"""The figures of the ApproxSSD paper redone on played disks.

    python3 bench/approxssd.py            about twelve minutes, 40 MB of disk
    python3 bench/approxssd.py --quick    few runs of each

Writes bench/results/approxssd.md and approxssd.json (`make bench-approxssd`). `--figures time,sizes` measures some figures
again and takes the others from approxssd.json; `--report` measures nothing and writes the page again.
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
from benchlib import approxtext, machine, report  # noqa: E402

FIGURES = ("balance", "contention", "time", "scheduling", "breakdown", "straggler", "sizes", "error")


def measure(config, result):
    with tempfile.TemporaryDirectory(prefix="tessera-approxssd-") as temporary:
        directory = config.dir or temporary
        result["machine"] = machine.describe({})
        for figure in config.figures:
            print(figure, file=sys.stderr)
            load = machine.load_average()
            words = [config.program, directory, "quick" if config.quick else "full", figure]
            done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
            # What else ran is told for each figure: they are measured minutes apart.
            result[figure] = json.loads(done.stdout) | {"load": [load, machine.load_average()], "quick": config.quick}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few runs of each")
    parser.add_argument("--figures", type=lambda text: text.split(","), default=FIGURES, help="these only")
    parser.add_argument("--dir", help="where the data is made and kept; a temporary directory by default")
    parser.add_argument("--program", default=os.path.join(HERE, "..", "target", "release", "examples", "approxssd"))
    parser.add_argument("--out", default=os.path.join(HERE, "results"))
    parser.add_argument("--report", action="store_true", help="measure nothing, write the page again from approxssd.json")
    config = parser.parse_args()
    result = {}
    if config.report or set(config.figures) != set(FIGURES):
        with open(os.path.join(config.out, "approxssd.json")) as f:
            result = json.load(f)
    if not config.report:
        measure(config, result)
    text = approxtext.report(result)
    report.save(config.out, "approxssd", result, text)
    print(text)


if __name__ == "__main__":
    main()
