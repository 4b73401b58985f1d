#!/usr/bin/env python3
"""Answers from samples beside Spark and DuckDB: time, CPU, bytes, error made and interval claimed (`make bench-sampling`).

    python3 bench/sampling.py                          4.1 GB of each kind of data, an hour
    python3 bench/sampling.py --gigabytes 0.5 --rounds 1
    python3 bench/sampling.py --systems tessera,query  these again; the rows of the others stay as they were measured
    python3 bench/sampling.py --report                 measures nothing, writes the page again from sampling_peers.json

The first run downloads Debian's source packages (apt) and the peers (pip) into --dir. Writes bench/results/sampling_peers.md and .json;
every answer is in --dir/answers.jsonl as soon as it came.
"""

import argparse
import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from benchlib import machine, report, samplingtext  # noqa: E402
from benchlib.samplingengines import QUESTIONS, SQL, Peer, Query, Tessera, all_bytes, files, has, python  # noqa: E402

RATIOS = (0.1, 0.01, 0.001)
SYSTEMS = ("tessera", "query", "duckdb", "spark")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.1, help="of each of text, links and requests")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spark-rounds", type=int, default=1)
    parser.add_argument("--questions", default=",".join(QUESTIONS))
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="tessera is needed: answers are compared with its exact ones")
    parser.add_argument("--dir", default=os.path.join(HERE, "..", "target", "bench-sampling"), help="data and peers; kept")
    parser.add_argument("--traces", default=os.path.join(HERE, "..", "..", "shared", "traces"), help="block traces; without them that question is left out")
    parser.add_argument("--binary", default=os.path.join(HERE, "..", "target", "release", "tessera"))
    parser.add_argument("--out", default=os.path.join(HERE, "results"))
    parser.add_argument("--report", action="store_true")
    config = parser.parse_args()
    config.systems = config.systems.split(",")
    if "tessera" not in config.systems or set(config.systems) - set(SYSTEMS):
        parser.error(f"--systems names tessera, and others of {', '.join(SYSTEMS)}")
    return config


def last(config):
    """The last results."""
    with open(os.path.join(config.out, "sampling_peers.json")) as f:
        return json.load(f)


def runs_of(system):
    """Names of runs and how each is asked for."""
    if system.name in ("tessera", "query"):
        named = [("exact", ("--exact",) if system.name == "tessera" else ()), ("error 2 %", ("--error", "2%"))]
        return named[:1] + [(f"{100 * r:g} %", ("--ratio", f"{100 * r:g}%")) for r in RATIOS] + named[1:]
    methods = ("system", "bernoulli") if system.name == "duckdb" else ("sample",)
    return [("exact", ())] + [(f"{method} {100 * r:g} %", (method, r)) for method in methods for r in RATIOS]


def warm(root, question):
    """Brings the files into the page cache, if they fit."""
    for path in files(root, question):
        with open(path, "rb") as f:
            while f.read(1 << 20):
                pass


def measure(config, result):
    path = python(os.path.join(config.dir, "python"))
    make = os.path.join(HERE, "benchlib", "samplingdata.py")
    subprocess.run([path, make, config.dir, str(config.gigabytes), config.binary, config.traces], check=True)
    result["bytes"] = all_bytes(config.dir)
    log = os.path.join(config.dir, "peers.log")
    ours = {"tessera": lambda: Tessera(config.binary), "query": lambda: Query(config.binary)}
    systems = [ours[name]() if name in ours else Peer(name, path, log) for name in SYSTEMS if name in config.systems]
    result["versions"].update({system.name: system.version for system in systems})
    try:
        for question in (question for question in config.questions.split(",") if has(config.dir, question)):
            warm(config.dir, question)
            for number in range(config.rounds):
                for system in systems:
                    is_asked = question in SQL if system.name == "query" else system.name != "spark" or number < config.spark_rounds
                    if is_asked:
                        yield from ask(config.dir, question, system)
    finally:
        for system in systems:
            system.close()


def ask(root, question, system):
    for run, how in runs_of(system):
        row = {"question": question, "system": system.name, "run": run, **system.ask(root, question, *how)}
        print(f"{question:6} {system.name:8} {run:16} {row['seconds']:8.2f} s {row['read_bytes'] / 1e9:7.3f} GB", file=sys.stderr, flush=True)
        yield row


def check(row, known):
    """Compares an exact answer with the first one of its question. All systems must agree, or figures of speed mean nothing."""
    if row["run"] != "exact":
        return
    first = known.setdefault(row["question"], row)
    if row["total"] not in (first["total"], None) or sorted(first["groups"].values()) != sorted(row["groups"].values()):
        raise SystemExit(f"{first['system']} and {row['system']} count {row['question']} differently: "
                         f"{first['total']} and {row['total']}, {first['groups']} and {row['groups']}")


def run(config, result):
    os.makedirs(config.dir, exist_ok=True)
    if not result["rows"]:
        result.update({"machine": machine.describe({"data": config.dir}), "load": machine.load_average(), "rounds": config.rounds,
                       "spark_rounds": config.spark_rounds, "again": []})
    else:
        result["again"] = config.systems
    rows, known = [], {}
    with open(os.path.join(config.dir, "answers.jsonl"), "w") as answers:
        for row in measure(config, result):
            print(json.dumps(row), file=answers, flush=True)
            rows.append(row)
            check(row, known)
    for row in rows:
        truth = known[row["question"]]
        row["error"] = max(samplingtext.errors(row, truth))
        row["claim"] = samplingtext.claims(row, truth)
    kept = [row for row in result["rows"] if row["system"] not in config.systems]
    rows = kept + [{key: value for key, value in row.items() if key not in ("groups", "claims")} for row in rows]
    result["rows"] = sorted(rows, key=lambda row: SYSTEMS.index(row["system"]))


def main():
    config = arguments()
    result = last(config) if config.report or len(config.systems) < len(SYSTEMS) else {"versions": {}, "rows": []}
    if not config.report:
        run(config, result)
    result["goals"] = samplingtext.judge(result["rows"])
    text = samplingtext.report(result)
    report.save(config.out, "sampling_peers", result, text)
    print(text)


if __name__ == "__main__":
    main()
