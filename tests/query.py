#!/usr/bin/env python3
"""SQL over files in a store: `tessera query` on a store of eight nodes, two of which are killed, and while a file is replaced."""

import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from suites import Daemon  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS = 200_000
# Samples of which the intervals are checked, with all nodes and with fewer.
SAMPLES = 30
BY_HOST = "SELECT host, count(*) AS n, sum(ms) AS ms FROM 'tess:/logs/*.csv' GROUP BY host ORDER BY host"


def write_logs(directory):
    """Writes two files; returns the rows of each host, and the sum of their times."""
    truth = {}
    for file in range(2):
        with open(directory / f"{file}.csv", "w") as out:
            out.write("host,ms,note\n")
            for row in range(file * ROWS // 2, (file + 1) * ROWS // 2):
                host, ms = f"h{(row * 2654435761 >> 7) % 5}", row * 7919 % 1000
                out.write(f'{host},{ms},"row, {row}"\n')
                n, total = truth.get(host, (0, 0))
                truth[host] = (n + 1, total + ms)
    return truth


class Query:
    """Runs the command against a store."""

    def __init__(self, binary, manager):
        self.binary, self.env = binary, {**os.environ, "TESSERA_MANAGER": manager}

    def tessera(self, *arguments):
        run = subprocess.run([self.binary, *map(str, arguments)], env=self.env, capture_output=True, text=True)
        if run.returncode:
            raise SystemExit(f"{arguments}: exit {run.returncode}, {run.stderr}")
        return run.stdout

    def ask(self, sql, *arguments):
        return json.loads(self.tessera("query", sql, "--json", *arguments))


def check(query, truth, nodes):
    """Exact answers, estimates, and both with two nodes dead; returns what is wrong."""
    exact = [{"host": host, "n": n, "ms": ms} for host, (n, ms) in sorted(truth.items())]
    wrong, held = [], []
    for first, when in ((0, "all nodes up"), (SAMPLES, "two nodes dead")):
        if query.ask(BY_HOST)["rows"] != exact:
            wrong.append(f"{when}: the exact answer is another one")
        for seed in range(first, first + SAMPLES):
            answer = query.ask(BY_HOST, "--ratio", "50%", "--unit", 4096, "--seed", seed, "--drop", 0)
            if not answer["estimated"] or answer["read_units"] >= answer["all_units"]:
                wrong.append(f"{when}: nothing is estimated")
                break
            held += [holds(row, truth) for row in answer["rows"]]
        print(f"query: {when}: exact, and {sum(held)} of {len(held)} intervals so far hold the truth")
        for node in nodes:
            os.kill(node, signal.SIGKILL)
        nodes = []
    # The hosts of a sample miss together, so only the samples count: 95 % should hold, and 85 % of 60 do but once in a thousand.
    if sum(held) * 100 < len(held) * 85:
        wrong.append(f"{sum(held)} of {len(held)} intervals hold the truth")
    return wrong


def holds(row, truth):
    return row["n_lo"] is not None and row["n_lo"] <= truth[row["host"]][0] <= row["n_hi"]


def node_pids(up):
    """The processes that `tessera up` has started and that are nodes."""
    children = pathlib.Path(f"/proc/{up}/task/{up}/children").read_text().split()
    is_node = lambda pid: b"\0node\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    return [int(pid) for pid in children if is_node(pid)]


def free_port():
    """A port of which those behind it are likely to be free, too: the kernel gives them to nobody who asks for any."""
    for port in random.sample(range(20_000, 30_000, 40), 50):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise SystemExit("query: no port from 20000 to 30000 is free")


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--binary", type=pathlib.Path, default=ROOT / "target" / "debug" / "tessera")
    a.add_argument("--query", type=pathlib.Path, default=ROOT / "target" / "query" / "debug" / "tessera-query")
    args = a.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        # `tessera query` starts the program beside itself.
        shutil.copy2(args.binary, scratch / "tessera")
        (scratch / "tessera-query").symlink_to(args.query)
        listen = f"127.0.0.1:{free_port()}"
        command = [scratch / "tessera", "up", "--nodes", 8, "--dir", scratch / "store", "--listen", listen]
        store = Daemon(command, scratch / "up.log", "Ctrl-C")
        try:
            query = Query(scratch / "tessera", listen)
            (scratch / "logs").mkdir()
            truth = write_logs(scratch / "logs")
            query.tessera("put", "-r", scratch / "logs", "tess:/")
            wrong = check(query, truth, node_pids(store.process.pid)[:2])
        finally:
            store.stop()
    for fact in wrong:
        print(f"query: WRONG: {fact}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
