#!/usr/bin/env python3
"""Histories of real processes under faults, checked for linearizability (P1, P3, P7, P8, P11).

    python3 tests/jepsen/run.py                                  ten minutes (make jepsen)
    python3 tests/jepsen/run.py --minutes 5                      make test
    python3 tests/jepsen/run.py --seed 7 --workload register     the same plan of faults again, for one workload

Three managers and six nodes run in network namespaces of their own, clients and mounts in three more. Clients replace, append to,
rename, deduplicate and lock small files while the daemons are killed (kill -9), stopped (SIGSTOP), cut off in one or both directions, and
their wall clocks jump (libfaketime). Every operation is recorded with the times of its begin and end and its outcome: done, surely not
done, or unknown. checker/ decides whether there is an order of all operations in which each answer is right.

Timing depends on the machine, so a seed repeats the plan, not the run. The directory of a run with a finding is kept: history.jsonl, a
picture of each wrong key (*.html), the daemons' logs, faults.log.

Exit code 0: linearizable, all was whole in the end (with --must-find: something was wrong). 1: it was not. 2: could not run.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import cluster as clusters  # noqa: E402
import network as networks  # noqa: E402
from cluster import procs  # noqa: E402
from history import History  # noqa: E402
from nemesis import Nemesis  # noqa: E402
from suites import can_mount  # noqa: E402
from workloads import MOUNT_CLIENT, WORKLOADS, Process, Worker, python  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Too few acknowledged operations show nothing.
MIN_OK = 10
WHOLE_S = 180


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--binary", default=ROOT / "target/debug/tessera", type=pathlib.Path, help="the tessera binary")
    a.add_argument("--client", default=ROOT / "target/debug/examples/jepsen_client", type=pathlib.Path, help="the client process")
    a.add_argument("--minutes", type=float, default=10, help="of the whole run (default: 10)")
    a.add_argument("--seed", type=int, help="seed of the plan (default: a new one, printed)")
    a.add_argument("--workload", choices=WORKLOADS, action="append", help="only this one; may be repeated")
    a.add_argument("--managers", type=int, default=3, choices=[2, 3], help="managers (default: 3)")
    a.add_argument("--nodes", type=int, default=6, help="nodes (default: 6)")
    a.add_argument("--failpoint", default="", metavar="NAMES",
                   help="mistakes that the daemons and mounts make (crates/failpoint): the run must find them; needs a binary built with failpoints")
    a.add_argument("--must-find", action="store_true", help="succeed if an operation is found to be wrong, fail if not: with --failpoint")
    a.add_argument("--calm", action="store_true", help="without faults: shows whether a finding needs them")
    a.add_argument("--json", action="store_true", help="print the result as one JSON object")
    a.add_argument("--keep", action="store_true", help="keep the directory also when all went well")
    a.add_argument("--require", action="store_true", help="fail where Go, porcupine, iproute2 or libfaketime are missing")
    c = a.parse_args()
    c.seed = c.seed if c.seed is not None else int.from_bytes(os.urandom(4), "big")
    c.workload = c.workload or list(WORKLOADS)
    for program in (c.binary, c.client):
        if not os.access(program, os.X_OK):
            print(f"jepsen: {program} is not a program: run cargo build -p tessera-cli, cargo build -p tessera-client --examples", file=sys.stderr)
            sys.exit(2)
    return c


def build_checker(place):
    """Builds the checker and runs its tests, which fetches porcupine through the Go module proxy; or says why it cannot."""
    if shutil.which("go") is None:
        return "there is no Go (package golang-go)"
    for words in (["test", "./..."], ["build", "-o", place, "."]):
        done = subprocess.run(["go", *words], cwd=HERE / "checker", capture_output=True, text=True)
        if done.returncode != 0:
            return f"go {words[0]}: {(done.stdout + done.stderr).strip()[-2000:]}"
    return None


class Run:
    """One cluster, its clients, and the faults."""

    def __init__(self, config, directory, say):
        self.config, self.directory, self.say = config, directory, say
        managers = [f"m{i + 1}" for i in range(config.managers)]
        nodes = [f"n{i + 1}" for i in range(config.nodes)]
        self.clients = ["c1", "c2", "c3"]
        self.network, self.no_namespaces = networks.make([*managers, *nodes, *self.clients, clusters.CONTROL])
        mounts = self.clients if "lock" in config.workload else []
        self.cluster = clusters.Cluster(str(config.binary), directory, self.network, managers, nodes, mounts, config.failpoint)
        self.history = History(os.path.join(directory, "history.jsonl"))
        self._log = open(os.path.join(directory, "faults.log"), "w")
        self.nemesis = Nemesis(self.cluster, self.clients, config.seed, self.log)
        self.stop = threading.Event()
        self.workers = []

    def log(self, text):
        self._log.write(f"{time.monotonic_ns()} {text}\n")
        self._log.flush()

    def run(self, until):
        self.cluster.start_all()
        self._prepare()
        self.say(f"the cluster serves; faults for {until - time.monotonic():.0f} s")
        for worker in self.workers:
            worker.start()
        try:
            self.nemesis.run(until, self._good, self.config.calm)
        finally:
            self.stop.set()
            self.nemesis.heal()
        self.history.pause()
        self._end_workers()
        self._check_whole()

    def _good(self):
        for name in self.cluster.ended().keys() - self.nemesis.away():
            self.history.note_wrong(f"{name} ended by itself; see {self.cluster.log(name)}")
        return not self.history.wrong

    def _prepare(self):
        """Makes the workloads and their workers, each with a process of its own."""
        command = {False: [str(self.config.client), self.cluster.addresses], True: python(MOUNT_CLIENT)}
        for name in self.config.workload:
            workload = WORKLOADS[name](self.history, self.cluster)
            if workload.on_mount:
                os.mkdir(os.path.join(self.cluster.mount_point(self.clients[0]), workload.directory()))
            else:
                self.cluster.cli("mkdir", workload.directory())
                if workload.redundancy:
                    self.cluster.cli("policy", "set", workload.directory(), f"redundancy={workload.redundancy}")
            for number in range(1, workload.workers + 1):
                host = self.clients[(number - 1) % len(self.clients)]
                log = os.path.join(self.directory, "logs", f"{name}{number}.log")
                on_host = [] if workload.on_mount else self.network.inside(host)
                client = Process(command[workload.on_mount], log, on_host)
                self.workers.append(Worker(number, workload, host, client, self.config.seed, self.stop))

    def _end_workers(self):
        for worker in self.workers:
            worker.join(60)
            if worker.is_alive():
                self.history.note_wrong(f"{worker.name} hangs")

    def _check_whole(self):
        """After all faults the cluster must become whole again, and every key must be readable."""
        if not self._good():
            return
        try:
            self.cluster.wait_whole(WHOLE_S)
        except procs.ProcessFailed as error:
            self.history.note_wrong(f"after all faults: {error}")
            return
        self.say("the cluster is whole again; every key is read")
        readers = [threading.Thread(target=self._read_all, args=[worker], daemon=True) for worker in self.workers]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()

    def _read_all(self, worker):
        """Reads this worker's share of the keys."""
        workload = worker.workload
        for name in workload.keys[worker.number - 1::workload.workers]:
            if not workload.final(worker, name) and not workload.final(worker, name):
                self.history.note_wrong(f"{workload.name} {name} cannot be read after all faults")

    def close(self):
        self.history.close()
        for worker in self.workers:
            worker.client.end()
        self.cluster.close()
        self.network.close()


def check(checker, directory):
    """Verdicts by workload."""
    done = procs.run([checker, "-html", directory, os.path.join(directory, "history.jsonl")], timeout_s=900)
    return json.loads(done)


def report(run, verdicts, seconds):
    """The result as a dict."""
    history = run.history
    workloads = {}
    for (workload, _, outcome), number in sorted(history.counts.items()):
        counts = workloads.setdefault(workload, {"ok": 0, "fail": 0, "info": 0})
        counts[outcome] += number
    for name, counts in workloads.items():
        counts["longest_unavailable_s"] = round(history.longest[name] / 1e9, 1)
        counts.update(verdicts.get(name, {}))
        if name == "lock" and "mutex" in verdicts:
            for what in ("wrong", "undecided"):
                counts[what] = counts.get(what, []) + [f"{key} (held twice)" for key in verdicts["mutex"][what]]
    wrong = [*history.wrong, *run.cluster.panics()]
    for name in run.config.workload:
        counts = workloads.get(name, {"ok": 0})
        wrong += [f"{name} {key} is not linearizable" for key in counts.get("wrong", [])]
        wrong += [f"{name} {key} was not decided in time" for key in counts.get("undecided", [])]
        if counts["ok"] < MIN_OK:
            wrong.append(f"{name}: only {counts['ok']} operations were acknowledged")
    return {"seed": run.config.seed, "seconds": round(seconds), "faults": dict(run.nemesis.counts), "workloads": workloads, "wrong": wrong,
            "errors": {f"{workload} {code}": number for (workload, code), number in sorted(history.errors.items())}}


def print_report(result):
    print(f"{'workload':10} {'ok':>7} {'fail':>6} {'info':>6} {'keys':>5} {'longest unavailable':>20}  verdict")
    for name, c in result["workloads"].items():
        verdict = f"NOT linearizable: {', '.join(c['wrong'][:5])}" if c.get("wrong") else "undecided" if c.get("undecided") else "linearizable"
        print(f"{name:10} {c['ok']:7} {c['fail']:6} {c['info']:6} {c.get('keys', 0):5} {c['longest_unavailable_s']:18.1f} s  {verdict}")
    print("faults: " + ", ".join(f"{number} {kind}" for kind, number in sorted(result["faults"].items())))
    print("errors: " + ", ".join(f"{number} {what}" for what, number in result["errors"].items()))
    for wrong in result["wrong"][:20]:
        print(f"WRONG {wrong}")
    if len(result["wrong"]) > 20:
        print(f"WRONG and {len(result['wrong']) - 20} more")


def unavailable(config):
    """Why this run cannot be, or "": what a package brings, or how the binary was built. With --require that is a failure."""
    if config.failpoint and b"no failpoint is called" not in config.binary.read_bytes():
        return f"{config.binary} was built without failpoints"
    if config.require and shutil.which("ip") is None:
        return "there is no program `ip` (package iproute2)"
    if config.require and clusters.faketime() is None:
        return "there is no libfaketime (package libfaketime)"
    return ""


def say_missing(run, without_fuse, say):
    """Says what this run leaves out, because the machine does not allow it."""
    if run.no_namespaces:
        say(f"no network is cut: {run.no_namespaces}")
    if not run.cluster.library:
        say("no clock jumps: there is no libfaketime (package libfaketime)")
    if without_fuse:
        say("no locks: /dev/fuse cannot be opened")


def main():
    config = arguments()
    begun = time.monotonic()
    directory = tempfile.mkdtemp(prefix="tessera-jepsen-")
    os.chmod(directory, 0o755)
    say = lambda text: print(f"jepsen: {text}", file=sys.stderr if config.json else sys.stdout, flush=True)
    checker = os.path.join(directory, "checker")
    problem = unavailable(config) or build_checker(checker)
    if problem:
        say(f"skipped: {problem}")
        shutil.rmtree(directory)
        return 2 if config.require else 0
    without_fuse = "lock" in config.workload and not can_mount()
    if without_fuse:
        config.workload.remove("lock")
    run, error, verdicts = Run(config, directory, say), None, {}
    try:
        say_missing(run, without_fuse, say)
        say(f"seed {config.seed}, {', '.join(config.workload)}, directory {directory}")
        # The end: healing, final reads, the checker.
        run.run(begun + 60 * config.minutes - min(60, 12 * config.minutes))
    except (procs.ProcessFailed, OSError) as failed:
        error = str(failed)
    finally:
        run.close()
    if error:
        run.history.note_wrong(error)
    verdicts = check(checker, directory)
    result = report(run, verdicts, time.monotonic() - begun)
    print(json.dumps(result)) if config.json else print_report(result)
    if config.must_find:
        found = any(c.get("wrong") for c in result["workloads"].values())
        broken, verdict = not found, f"{config.failpoint} was found" if found else f"NOT OK: {config.failpoint} was not found"
    else:
        broken = bool(result["wrong"])
        verdict = "NOT OK" if broken else "ok"
    keep = broken or config.keep
    say(f"{verdict}, seed {config.seed}, {result['seconds']} s" + (f"; see {directory}" if keep else ""))
    if not keep:
        shutil.rmtree(directory)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
