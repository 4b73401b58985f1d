#!/usr/bin/env python3
"""Kills managers, nodes and clients of a real cluster under load, and checks that nothing acknowledged is lost.

    python3 bench/chaos.py --binary target/release/tessera                100 random kill -9 (make soak)
    python3 bench/chaos.py --binary target/debug/tessera --kills 10       short form (make test)
    python3 bench/chaos.py … --seed 7                                     the same plan again

Writers store, replace, rename, remove and read files of mixed size and similar content through the command
line while daemons and clients are killed with SIGKILL, or stopped for a while with SIGSTOP, and started
again. Sometimes all daemons die at once. Some nodes stay away long enough to be declared out. In the end
everything must start, redundancy must be whole again, and every file must have an acknowledged content
(P1, P2, P3, P4, P6, P8, P9). Timing depends on the machine, so a seed repeats the plan, not the run.

Exit code 0: nothing lost or wrong. 1: a promise was broken; the directory is kept. 2: could not run.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from benchlib import machine, procs  # noqa: E402
from benchlib.cluster import Cluster, chunks, healthy  # noqa: E402
from benchlib.history import History, digest  # noqa: E402

# Short timeouts, small segments and groups: what takes weeks in production happens in seconds.
MANAGER_KNOBS = ["heartbeat_ms=100", "node_lease_ms=800", "down_after_ms=1000", "out_after_ms=3000",
                 "lease_entry_ms=500", "session_ms=8000", "snapshot_log_bytes=256K", "pg_cap_bytes=32M",
                 "inventory_every_ms=10000"]
NODE_KNOBS = ["segment_size_bytes=8M", "compact_every_ms=500"]
OUT_AFTER_S = 3.0
# The default policy survives two lost nodes, so at most this many are down for long at a time.
MAX_DOWN = 2
NOT_FOUND, UNAVAILABLE, CORRUPT, USAGE = 3, 4, 5, 2


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--binary", required=True, help="the tessera binary")
    a.add_argument("--kills", type=int, default=100, help="kill -9 in total (default: 100)")
    a.add_argument("--seed", type=int, help="seed of the plan (default: a new one, printed)")
    a.add_argument("--nodes", type=int, default=8, help="nodes (default: 8)")
    a.add_argument("--writers", type=int, default=4, help="writers at once (default: 4)")
    a.add_argument("--pace", type=float, default=1.0, help="factor on the pauses between kills (default: 1)")
    a.add_argument("--dir", help="where the cluster lives (default: a new temporary directory)")
    a.add_argument("--keep", action="store_true", help="keep the directory also when all went well")
    a.add_argument("--max-seconds", type=int, help="give up after this long (default: 300 + 4 a kill)")
    c = a.parse_args()
    c.binary = os.path.abspath(c.binary)
    if not os.access(c.binary, os.X_OK):
        print(f"{c.binary} is not a program: build it first (cargo build --release -p tessera-cli)", file=sys.stderr)
        sys.exit(2)
    c.seed = c.seed if c.seed is not None else int.from_bytes(os.urandom(4), "big")
    c.max_seconds = c.max_seconds or 300 + 4 * c.kills
    return c


class Clients:
    """Running client processes, so that the breaker can kill one."""

    def __init__(self, cluster, history, timeout_s=60):
        self.cluster, self.history, self.timeout_s = cluster, history, timeout_s
        self._lock = threading.Lock()
        self._running = set()

    def run(self, *arguments, content=None):
        """One command: (exit code, stdout, stderr). The exit code of a killed one is negative."""
        process = subprocess.Popen(
            [self.cluster.binary, *arguments], env=self.cluster.environment(), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL if content is None else subprocess.PIPE)
        with self._lock:
            self._running.add(process)
        try:
            out, err = process.communicate(content, timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            self.history.count("clients that took too long")
        finally:
            with self._lock:
                self._running.discard(process)
        return process.returncode, out, err.decode(errors="replace").strip()

    def kill_one(self, rng):
        """Sends SIGKILL to a random client. Returns whether there was one."""
        with self._lock:
            living = sorted((p for p in self._running if p.poll() is None), key=lambda p: p.pid)
            if not living:
                return None
            victim = rng.choice(living)
            victim.kill()
            return victim


    def end_all(self):
        """Waits until no client runs, so that the caller can read or remove the directory."""
        with self._lock:
            living = list(self._running)
        for process in living:
            process.kill()
            process.wait()


class Writer(threading.Thread):
    """A client program that works in its own directory, one operation after the other."""

    def __init__(self, number, seed, clients, history, directory, log):
        super().__init__(name=f"writer {number}", daemon=True)
        self.rng = random.Random(f"{seed} writer {number}")
        self.clients, self.history, self.log = clients, history, log
        self.place = f"tess:/w{number}"
        self.local = os.path.join(directory, f"local{number}")
        self.names = [f"{self.place}/f{i}" for i in range(12)]
        self.old = [b""]
        self.stop = threading.Event()

    def run(self):
        try:
            while not self.stop.is_set():
                self.rng.choices([self.put, self.get, self.move, self.remove], [50, 30, 10, 10])[0]()
        except Exception as error:  # noqa: BLE001 - a writer that dies silently would prove nothing
            self.history.note_wrong(f"{self.name} died: {error!r}")

    def content(self):
        """New bytes, or an edited copy of older ones, which shares chunks with them."""
        rng = self.rng
        size = int(rng.choice([1 << 6, 1 << 12, 1 << 16, 1 << 20, 6 << 20]) * rng.random())
        if rng.random() < 0.5:
            base = rng.choice(self.old)
            at = rng.randrange(len(base) + 1)
            made = base[:at] + rng.randbytes(min(size, 50_000)) + base[at:]
        else:
            made = rng.randbytes(size)
        made = made[:8 << 20]
        self.old = (self.old + [made])[-6:]
        return made

    def put(self):
        path, content = self.rng.choice(self.names), self.content()
        change = {path: digest(content)}
        self.history.begin(change)
        if self.rng.random() < 0.5:
            ended = self.clients.run("put", "--quiet", "-", path, content=content)
        else:
            with open(self.local, "wb") as f:
                f.write(content)
            ended = self.clients.run("put", "--quiet", self.local, path)
        self.judge("put", path, ended, lambda: self.history.acknowledged(change))

    def get(self):
        path = self.rng.choice(self.names)
        code, out, err = self.clients.run("get", "--quiet", path, "-")
        if code == 0:
            self.history.read(path, digest(out), f"by {self.name}")
        elif code == NOT_FOUND:
            self.history.read(path, None, f"by {self.name}: {err}")
        else:
            self.judge("get", path, (code, out, err), lambda: None)

    def move(self):
        source, target = self.rng.sample(self.names, 2)
        if len(self.history.possible(source)) != 1:
            return
        if self.history.possible(source) == {None}:
            return
        states = self.history.begin_move(source, target)
        change = {source: None, target: next(iter(states))}
        self.judge("mv", source, self.clients.run("mv", source, target), lambda: self.history.acknowledged(change))

    def remove(self):
        path = self.rng.choice(self.names)
        self.history.begin({path: None})
        self.judge("rm", path, self.clients.run("rm", "--force", path),
                   lambda: self.history.acknowledged({path: None}))

    def judge(self, what, path, ended, when_done):
        """Records how a command ended."""
        code, _, err = ended
        if code == 0:
            when_done()
            self.history.count(f"{what} acknowledged")
        elif code < 0:
            self.history.count("clients killed")
        elif code in (CORRUPT, USAGE):
            self.history.note_wrong(f"{what} {path} ended with {code}: {err[-300:]}")
        elif what == "mv" and code == NOT_FOUND:
            # When the client retries a move, the answer must be that of the first attempt (P8).
            self.history.note_wrong(f"{what} {path}: the source was there, but: {err[-300:]}")
        else:
            self.history.count(f"{what} refused")
            self.log(f"{what} {path} ended with {code}: {err[-200:]}")


class Breaker:
    """Draws the victim of each fault, its time, and the length of the outage."""

    def __init__(self, config, cluster, clients, history, log):
        self.rng = random.Random(f"{config.seed} breaker")
        self.config, self.cluster, self.clients, self.history, self.log = config, cluster, clients, history, log
        self.kills = {"manager": 0, "node": 0, "client": 0}
        self.stops = 0
        # Deferred actions: (time, action, name).
        self.later = []

    def run(self, deadline):
        while sum(self.kills.values()) < self.config.kills and not self.history.wrong:
            if time.monotonic() > deadline:
                raise procs.ProcessFailed(f"only {sum(self.kills.values())} kills in the time given")
            self.due()
            self.rng.choices([self.node, self.manager, self.client, self.pause, self.everybody],
                             [40, 15, 25, 15, 5])[0]()
            until = time.monotonic() + self.rng.uniform(0.05, 1.5) * self.config.pace
            while time.monotonic() < until:
                self.due()
                time.sleep(0.02)

    def due(self, everything=False):
        """Runs the deferred actions that are due: starting and continuing."""
        now = time.monotonic()
        for entry in [e for e in self.later if everything or e[0] <= now]:
            self.later.remove(entry)
            _, action, name = entry
            self.log(f"{action} {name}")
            if action == "start":
                self.cluster.start(name)
            else:
                self.cluster.signal(name, signal.SIGCONT)

    def away(self):
        """Daemons that are dead or stopped now."""
        return {name for _, _, name in self.later}

    def check_crashes(self):
        """A daemon that ended without being killed by this script is a finding."""
        for name in ["manager", *self.cluster.node_names]:
            if name not in self.away() and not self.cluster.alive(name):
                code = self.cluster.processes[name].returncode
                self.history.note_wrong(f"{name} ended by itself with {code}; see {self.cluster.log(name)}")

    def kill(self, name, delay_s):
        self.check_crashes()
        self.cluster.kill(name)
        self.kills["manager" if name == "manager" else "node"] += 1
        self.log(f"kill {name}, back in {delay_s:.2f} s")
        self.later.append((time.monotonic() + delay_s, "start", name))

    def node(self):
        nodes = [n for n in self.cluster.node_names if n not in self.away()]
        if len(self.cluster.node_names) - len(nodes) >= MAX_DOWN:
            return
        long = self.rng.random() < 0.3
        self.kill(self.rng.choice(nodes), self.rng.uniform(OUT_AFTER_S, 2.5 * OUT_AFTER_S) if long else self.rng.random())

    def manager(self):
        if "manager" not in self.away():
            self.kill("manager", self.rng.uniform(0, 2))

    def client(self):
        if self.clients.kill_one(self.rng):
            self.kills["client"] += 1
            self.log("kill a client")

    def pause(self):
        """Stops a process for a while. That is worse than a kill: the process wakes up and goes on."""
        candidates = [n for n in ["manager", *self.cluster.node_names] if n not in self.away()]
        if not candidates:
            return
        away = len([n for n in self.away() if n != "manager"])
        name = self.rng.choice(candidates)
        if name != "manager" and away >= MAX_DOWN:
            return
        long = name != "manager" and self.rng.random() < 0.4
        delay_s = self.rng.uniform(1.5, 2 * OUT_AFTER_S) if long else self.rng.uniform(0.05, 1.5)
        self.cluster.signal(name, signal.SIGSTOP)
        self.stops += 1
        self.log(f"stop {name} for {delay_s:.2f} s")
        self.later.append((time.monotonic() + delay_s, "continue", name))

    def everybody(self):
        """Kills all daemons at once, like a power failure of a rack (except that the kernels keep their page caches)."""
        for name in self.rng.sample(["manager", *self.cluster.node_names], 1 + len(self.cluster.node_names)):
            if name not in self.away():
                self.kill(name, self.rng.uniform(0.2, 1.0))


def rot_found(status):
    """Number of bad fragments found since the manager started."""
    return status.get("counters", {}).get("bad_fragments_found", 0)


def settle(cluster, history, log):
    """After the faults: waits until all are up and all is whole; then compares every file."""
    cluster.wait_up(90)
    log("all nodes are up")
    cluster.wait_for(healthy, "full redundancy of every chunk", 180)
    log("full redundancy")
    read_back(cluster, history, "after repair")
    before = rot_found(cluster.status())
    cluster.cli("scrub", "--quiet", timeout_s=180)
    status = cluster.status()
    # Not "healthy": the balancing of disks is not rot.
    if rot_found(status) > before or chunks(status).get("lost"):
        history.note_wrong(f"the scrub found rot on disks that had none: {chunks(status)}, {status.get('counters')}")
    cluster.cli("gc", "--quiet", timeout_s=180)
    read_back(cluster, history, "after scrub and garbage collection")


def read_back(cluster, history, when):
    """Reads every path that was ever written, and compares by hash."""
    clients = Clients(cluster, history)
    for path in history.paths():
        code, out, err = clients.run("get", "--quiet", path, "-")
        if code not in (0, NOT_FOUND):
            history.note_wrong(f"{path} cannot be read {when}: exit code {code}: {err[-300:]}")
        else:
            history.read(path, digest(out) if code == 0 else None, when)
    history.counts[f"files equal {when}"] = len(history.living())


def main():
    config = arguments()
    directory = config.dir or tempfile.mkdtemp(prefix="tessera-chaos-")
    os.makedirs(directory, exist_ok=True)
    started, history = time.monotonic(), History()
    events = open(os.path.join(directory, "events.log"), "w")

    def log(what):
        events.write(f"{time.monotonic() - started:9.3f} {what}\n")
        events.flush()

    print(f"chaos: seed {config.seed}, {config.kills} kills, {config.nodes} nodes, events in {events.name}", flush=True)
    cluster = Cluster(config.binary, directory, config.nodes, MANAGER_KNOBS, NODE_KNOBS, log_level="info")
    clients = Clients(cluster, history)
    breaker = Breaker(config, cluster, clients, history, log)
    writers, error = [], None
    try:
        cluster.start_all()
        writers = [Writer(i, config.seed, clients, history, directory, log) for i in range(config.writers)]
        for writer in writers:
            cluster.cli("mkdir", writer.place)
            writer.start()
        try:
            breaker.run(started + config.max_seconds)
        finally:
            for writer in writers:
                writer.stop.set()
        breaker.due(everything=True)
        for writer in writers:
            writer.join(90)
        breaker.check_crashes()
        settle(cluster, history, log)
    except procs.ProcessFailed as failed:
        error = failed
    except subprocess.TimeoutExpired as failed:
        error = failed
    finally:
        broken = bool(history.wrong or error)
        for writer in writers:
            writer.stop.set()
        while any(writer.is_alive() for writer in writers):
            clients.end_all()
            time.sleep(0.02)
        cluster.close(keep=True)
        events.close()
    return summary(config, directory, history, breaker, error, broken, time.monotonic() - started)


def summary(config, directory, history, breaker, error, broken, seconds):
    """What happened, and one closing line."""
    for what in sorted(history.counts):
        print(f"  {what:45} {history.counts[what]:7}")
    for wrong in history.wrong[:20]:
        print(f"WRONG {wrong}")
    if error:
        print(f"FAILED {error}")
    if not broken and not config.keep:
        machine.remove(directory)
    kills = ", ".join(f"{number} {role}" for role, number in breaker.kills.items())
    verdict = f"NOT OK, see {directory}, seed {config.seed}" if broken else "ok: nothing acknowledged was lost or wrong"
    print(f"chaos: {sum(breaker.kills.values())} kills ({kills}), {breaker.stops} stops, "
          f"{len(history.living())} files, {seconds:.0f} s: {verdict}", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
