#!/usr/bin/env python3
"""Kills the leading manager of three again and again under load, and measures how long the store stands still.

    python3 bench/failover.py                 50 kills
    python3 bench/failover.py --kills 5       a short run

Three managers and six nodes. Two clients store files and make directories, one after the other. The
interruption of a kill is the longest time that one of them waited for an answer around it. Everything acknowledged is compared in the
end. Writes bench/results/failover.md and failover.json. Exit code 1: something is lost or wrong.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from benchlib import machine, procs, report  # noqa: E402
from benchlib.cluster import free_ports  # noqa: E402

GOAL_S = 5.0
NODES = 6


class Store:
    """Managers m1 to m3 and nodes n1 to n6, each a process."""

    def __init__(self, binary, directory):
        self.binary, self.directory, self.processes = binary, directory, {}
        managers, nodes = [f"m{i + 1}" for i in range(3)], [f"n{i + 1}" for i in range(NODES)]
        ports = dict(zip(managers + nodes, free_ports(3 + NODES)))
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        self.managers = managers
        self.known = ",".join(self.addresses[name] for name in managers)
        for name in nodes:
            os.makedirs(os.path.join(directory, name))
        for name in managers:
            self.start(name, *(["--join", self.addresses["m1"]] if name != "m1" else []))
            self.wait(f"{name} to vote", lambda name=name: self.peers().get(name, {}).get("votes"))
        for name in nodes:
            self.start(name)
        self.wait("six nodes", lambda: sum(node["state"] == "up" for node in self.status()["nodes"]) == NODES)
        self.whole()

    def start(self, name, *more):
        kind = "manager" if name in self.managers else "node"
        words = [self.binary, kind, "--log-level", "warn", "--follow-stdin", "--host", name, "--listen", self.addresses[name]]
        place = os.path.join(self.directory, name)
        words += ["--dir", place] if kind == "manager" else ["--disk", place, "--name", name, "--manager", self.known]
        self.processes[name] = procs.start([*words, *more], f"{place}.log", stdin=subprocess.PIPE)

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait(30)

    def close(self):
        for process in self.processes.values():
            process.kill()
            process.wait(30)

    def cli(self, *words, given=b""):
        """Runs a command; returns the bytes that it printed."""
        words = [self.binary, *words, "--wait", "60"]
        done = subprocess.run(words, input=given, capture_output=True, timeout=120, env={**os.environ, "TESSERA_MANAGER": self.known})
        if done.returncode != 0:
            raise procs.ProcessFailed(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

    def status(self):
        return json.loads(self.cli("status", "--json"))

    def peers(self):
        return {peer["host"]: peer for peer in self.status()["log"]["peers"]}

    def leader(self):
        return next((host for host, peer in self.peers().items() if peer["leads"]), None)

    def whole(self):
        """Waits until five peers vote and run, so that the next loss is one of five."""
        self.wait("five voters", lambda: sum(peer["votes"] and peer["up"] for peer in self.peers().values()) == 5)

    def wait(self, what, condition, limit_s=120):
        until = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > until:
                raise procs.ProcessFailed(f"waited {limit_s} s for {what}: {self.cli('manager', 'list')}")
            time.sleep(0.1)


class Client(threading.Thread):
    """Stores files and makes directories until it is stopped; notes when each answer came."""

    def __init__(self, store, number):
        super().__init__()
        self.store, self.number, self.over, self.stored = store, number, False, {}
        self.answers = []

    def run(self):
        rng, at = random.Random(self.number), 0
        while not self.over:
            at += 1
            name, content = f"tess:/w{self.number}-{at}", rng.randbytes(rng.randrange(1, 200_000))
            self.timed("put", "--quiet", "-", name, given=content)
            self.stored[name] = hashlib.sha256(content).hexdigest()
            self.timed("mkdir", f"tess:/d{self.number}-{at}")

    def timed(self, *words, given=b""):
        self.answers.append((time.monotonic(), None))
        self.store.cli(*words, given=given)
        self.answers[-1] = (self.answers[-1][0], time.monotonic())

    def was_answered(self, since):
        """A command that began after this time has ended."""
        return any(begin >= since and end for begin, end in self.answers[-2:])

    def longest_s(self, since, until):
        """The longest wait for an answer that overlaps this time."""
        waits = [(end or until) - begin for begin, end in self.answers if (end or until) >= since and begin <= until]
        return max(waits, default=0.0)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--kills", type=int, default=50)
    a.add_argument("--binary", default=os.path.join(os.path.dirname(HERE), "target", "release", "tessera"))
    a.add_argument("--out", default=os.path.join(HERE, "results"))
    config = a.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        result = {"machine": machine.describe({"store": directory}), "load": machine.load_average(), "kills": config.kills}
        store = Store(config.binary, directory)
        clients = [Client(store, number) for number in range(2)]
        try:
            for client in clients:
                client.start()
            time.sleep(3)
            usual = max(client.longest_s(0, time.monotonic()) for client in clients)
            interruptions = []
            for _ in range(config.kills):
                leader, killed = store.leader(), time.monotonic()
                store.kill(leader)
                store.wait("another leader", lambda leader=leader: store.leader() not in (None, leader))
                served = time.monotonic()
                store.wait("an answer to each client", lambda: all(client.was_answered(served) for client in clients))
                interruptions.append(max(client.longest_s(killed, time.monotonic()) for client in clients))
                store.start(leader)
                store.whole()
            for client in clients:
                client.over = True
            for client in clients:
                client.join()
                assert len(client.stored) > config.kills // 2, "a client ended early"
            wrong = [name for client in clients for name, digest in client.stored.items() if fetched(store, name) != digest]
        finally:
            for client in clients:
                client.over = True
            store.close()
    stored = sum(len(client.stored) for client in clients)
    result.update(interruption_s=report.spread(interruptions), all_s=interruptions, usual_s=usual, files=stored, wrong=wrong)
    write(config.out, result)
    return 1 if wrong else 0


def fetched(store, name):
    return hashlib.sha256(store.cli("cat", name)).hexdigest()


def write(out, result):
    spread = result["interruption_s"]
    verdict = "hit" if spread["max"] <= GOAL_S else "MISSED"
    text = f"""# The leading manager is killed under load

{result['kills']} times `kill -9` of the leader of three managers, beside six nodes and two clients. {result['machine']['cpu']}, {result['machine']['cores']} cores, load
{result['load']:.1f} at the start. Whole commands of the release binary; the longest one without a kill took {result['usual_s']:.2f} s.

| interruption | goal | median | least | most | |
|---|---|---|---|---|---|
| the longest command around a kill | {GOAL_S} s each | {spread['median']:.2f} s | {spread['min']:.2f} s | {spread['max']:.2f} s | {verdict} |

{result['files']} acknowledged files were compared in the end, {len(result['wrong'])} are lost or wrong.
"""
    report.save(out, "failover", result, text)
    print(text)


if __name__ == "__main__":
    sys.exit(main())
