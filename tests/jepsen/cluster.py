"""A cluster of real processes, each on a host of its own: managers, nodes, and mounts on the hosts of clients."""

import glob
import json
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
from benchlib import procs  # noqa: E402

MANAGER_PORT, NODE_PORT = 7700, 7710
# What takes minutes in production happens in seconds.
MANAGER_KNOBS = ["heartbeat_ms=200", "node_lease_ms=1500", "down_after_ms=2000", "out_after_ms=8000", "lease_entry_ms=1000",
                 "lock_session_ms=6000", "session_ms=20000", "snapshot_log_bytes=512K", "pg_cap_bytes=64M"]
NODE_KNOBS = ["segment_size_bytes=8M", "compact_every_ms=500"]
FAKETIME = "/usr/lib/*/faketime/libfaketime.so.1"
# Where nothing is ever cut: status is asked from there.
CONTROL = "x"


def faketime():
    """The library that moves the wall clock of a process, or None."""
    return next(iter(sorted(glob.glob(FAKETIME))), None)


class Cluster:
    """Daemons by name: managers m1, m2, …, nodes n1, n2, …, mounts c1, c2, … (named as their hosts)."""

    def __init__(self, binary, directory, network, managers, nodes, mounts, failpoints=""):
        self.binary, self.directory, self.network = binary, directory, network
        self.managers, self.nodes, self.mounts = managers, nodes, mounts
        self.failpoints = failpoints
        self.processes = {}
        self.library = faketime()
        for place in ["logs", "clocks", *managers, *nodes, *map(self._mount_point, mounts)]:
            os.makedirs(os.path.join(directory, place), exist_ok=True)
        for name in self.daemons:
            self.set_clock(name, 0)

    @property
    def daemons(self):
        return [*self.managers, *self.nodes]

    @property
    def addresses(self):
        """The managers' addresses as one list, as commands take it."""
        return ",".join(self.manager_address(name) for name in self.managers)

    def manager_address(self, name):
        return f"{self.network.address[name]}:{MANAGER_PORT}"

    @staticmethod
    def _mount_point(name):
        return f"mount-{name}"

    def mount_point(self, name):
        return os.path.join(self.directory, self._mount_point(name))

    def _command(self, name):
        address = self.network.address[name]
        common = ["--log-level", "warn", "--follow-stdin"]
        if name in self.managers:
            words = ["manager", *common, "--dir", self._place(name), "--listen", f"{address}:{MANAGER_PORT}", "--host", name]
            joins = name != self.managers[0] and not os.listdir(self._place(name))
            return [*words, *_settings(MANAGER_KNOBS), *(["--join", self.manager_address(self.managers[0])] if joins else [])]
        if name in self.nodes:
            words = ["node", *common, "--disk", self._place(name), "--manager", self.addresses, "--name", name, "--host", name]
            return [*words, "--listen", f"{address}:{NODE_PORT}", *_settings(NODE_KNOBS)]
        return ["mount", self.mount_point(name), "--manager", self.addresses]

    def _place(self, name):
        return os.path.join(self.directory, name)

    def log(self, name):
        return os.path.join(self.directory, "logs", f"{name}.log")

    def start(self, name):
        """Starts a daemon, or a mount, without waiting."""
        environment = {**os.environ, "RUST_BACKTRACE": "1", "TESSERA_FAILPOINTS": self.failpoints}
        if self.library and name in self.daemons:
            clock = self._clock(name)
            environment.update(LD_PRELOAD=self.library, FAKETIME_TIMESTAMP_FILE=clock, FAKETIME_DONT_FAKE_MONOTONIC="1",
                               FAKETIME_CACHE_DURATION="1")
        command = [*self.network.inside(name), self.binary, *self._command(name)]
        self.processes[name] = procs.start(command, self.log(name), stdin=subprocess.PIPE, env=environment)

    def _clock(self, name):
        return os.path.join(self.directory, "clocks", name)

    def set_clock(self, name, offset_s):
        """Moves a daemon's wall clock to this far from the machine's, seconds. It notices within a second."""
        path = self._clock(name)
        with open(f"{path}.new", "w") as f:
            f.write(f"{offset_s:+d}\n")
        os.replace(f"{path}.new", path)

    def start_all(self):
        self.start(self.managers[0])
        self.wait_for(lambda status: True, "the first manager", 30)
        for name in [*self.managers[1:], *self.nodes]:
            self.start(name)
        self.wait_whole(120)
        for name in self.mounts:
            self.start(name)
        self._wait(lambda: all(os.path.ismount(self.mount_point(name)) for name in self.mounts), "the mounts", 60)

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait(30)

    def signal(self, name, number):
        self.processes[name].send_signal(number)

    def ended(self):
        """Daemons and mounts that run no more, with their exit codes."""
        codes = {name: process.poll() for name, process in self.processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def cli(self, *words, timeout_s=30):
        """Runs `tessera WORDS` on the control host; returns what it prints, raises when it fails."""
        command = [*self.network.inside(CONTROL), self.binary, *words]
        return procs.run(command, timeout_s=timeout_s, env={**os.environ, "TESSERA_MANAGER": self.addresses})

    def status(self, timeout_s=10):
        return json.loads(self.cli("status", "--json", "--wait", 2, timeout_s=timeout_s))

    def leader(self):
        """The manager that leads, or None while nobody knows."""
        try:
            peers = self.status()["log"]["peers"]
        except (procs.ProcessFailed, subprocess.TimeoutExpired, ValueError):
            return None
        leads = [peer["address"] for peer in peers if peer.get("leads")]
        return next((name for name in self.managers if self.manager_address(name) in leads), None)

    def wait_whole(self, timeout_s):
        """Waits until every node is up, every chunk has all its fragments, and all peers vote that should."""
        self.wait_for(self._is_whole, "a whole cluster", timeout_s)

    def _is_whole(self, status):
        voting = [peer for peer in status["log"]["peers"] if peer.get("votes") and peer.get("up")]
        managers = sum(peer["kind"] == "manager" for peer in voting)
        up = sum(node.get("state") == "up" for node in status["nodes"])
        return len(voting) == 5 and managers == len(self.managers) and up == len(self.nodes) and status.get("healthy") is True

    def wait_for(self, condition, what, timeout_s):
        """Polls `status` until `condition(status)`; raises ProcessFailed with the last status."""
        last = [None]

        def holds():
            try:
                last[0] = self.status()
                return condition(last[0])
            except (procs.ProcessFailed, subprocess.TimeoutExpired, ValueError) as error:
                last[0] = error
                return False

        self._wait(holds, what, timeout_s, last)

    @staticmethod
    def _wait(holds, what, timeout_s, last=("",)):
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                raise procs.ProcessFailed(f"waited {timeout_s} s for {what}: {str(last[0])[:3000]}")
            time.sleep(0.2)

    def panics(self):
        """Lines of logs that no daemon may write."""
        lines = []
        for path in sorted(glob.glob(os.path.join(self.directory, "logs", "*.log"))):
            with open(path, errors="replace") as f:
                lines += [f"{os.path.basename(path)}: {line.strip()}" for line in f if "panicked at" in line]
        return lines

    def close(self):
        """Ends everything by its id, the mounts first."""
        for name in self.mounts:
            subprocess.run(["umount", "--lazy", self.mount_point(name)], capture_output=True, check=False)
        for name in reversed(list(self.processes)):
            process = self.processes[name]
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self.processes.values():
            process.wait(30)


def _settings(knobs):
    return [word for knob in knobs for word in ("--set", knob)]
