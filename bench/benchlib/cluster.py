"""A Tessera cluster of real processes on the loopback: one manager and some nodes, each by its own command."""

import os
import signal
import socket
import subprocess
import time

from . import machine, procs


def free_ports(count):
    """Loopback ports that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


class Cluster:
    """Daemons named `manager`, `n1`, `n2`, …; each can be killed, stopped, continued and started again."""

    def __init__(self, binary, directory, nodes, manager_set=(), node_set=(), log_level="warn"):
        self.binary, self.directory = binary, directory
        self.node_names = [f"n{i + 1}" for i in range(nodes)]
        ports = free_ports(nodes + 1)
        self.address = f"127.0.0.1:{ports[0]}"
        self.ports = dict(zip(self.node_names, ports[1:]))
        self.knobs = {"manager": manager_set, "node": node_set}
        self.log_level = log_level
        self.processes = {}
        for place in ("logs", *self.node_names):
            os.makedirs(os.path.join(directory, place), exist_ok=True)

    def _command(self, name):
        kind = "manager" if name == "manager" else "node"
        home = os.path.join(self.directory, name)
        words = [self.binary, kind, "--log-level", self.log_level, "--follow-stdin"]
        for knob in self.knobs[kind]:
            words += ["--set", knob]
        if kind == "manager":
            return [*words, "--dir", home, "--listen", self.address]
        return [*words, "--disk", home, "--manager", self.address, "--listen", f"127.0.0.1:{self.ports[name]}",
                "--unix-socket", os.path.join(self.directory, f"{name}.sock"), "--name", name, "--host", name]

    def start(self, name):
        """Starts one daemon, without waiting. It ends with this process, because its standard input closes."""
        self.processes[name] = procs.start(self._command(name), self.log(name), stdin=subprocess.PIPE)

    def start_all(self, timeout_s=60):
        """Starts all daemons, and waits until every node is up."""
        for name in ["manager", *self.node_names]:
            self.start(name)
        self.wait_up(timeout_s, all_alive=True)

    def log(self, name):
        return os.path.join(self.directory, "logs", f"{name}.log")

    def wait_up(self, timeout_s=60, all_alive=False):
        """Waits until the manager counts every node as up."""
        return self.wait_for(lambda s: nodes_up(s) == len(self.node_names), "all nodes to be up", timeout_s, all_alive)

    def wait_for(self, condition, what, timeout_s, all_alive=False):
        """Polls `status` until `condition(status)`; raises with the last status and dead daemons' logs.

        With `all_alive` a daemon that ended makes it raise at once.
        """
        deadline = time.monotonic() + timeout_s
        status, error = None, None
        while time.monotonic() < deadline:
            try:
                status = self.status(timeout_s=max(1, min(20, deadline - time.monotonic())))
                if condition(status):
                    return status
            except (procs.ProcessFailed, subprocess.TimeoutExpired) as e:
                error = e
            if all_alive and self._dead():
                break
            time.sleep(0.1)
        raise procs.ProcessFailed(f"waited for {what}, at most {timeout_s} s; status {status}; {error or ''}{self._dead()}")

    def _dead(self):
        said = ""
        for name, process in self.processes.items():
            if process.poll() is not None:
                with open(self.log(name), errors="replace") as f:
                    said += f"\n{name} ended with {process.returncode}: {f.read()[-800:].strip()}"
        return said

    def cli(self, *words, timeout_s=120, **options):
        """Runs `tessera WORDS` against this cluster; returns its stdout, raises when it fails."""
        return procs.run([self.binary, *words], timeout_s=timeout_s, env=self.environment(), **options)

    def environment(self):
        return {**os.environ, "TESSERA_MANAGER": self.address}

    def status(self, timeout_s=20):
        """`tessera status --json`."""
        document = procs.load_json(self.cli("status", "--json", "--wait", 2, timeout_s=timeout_s))
        if not isinstance(document, dict):
            raise procs.ProcessFailed("status --json printed no JSON document")
        return document

    def pid(self, name):
        return self.processes[name].pid

    def alive(self, name):
        process = self.processes.get(name)
        return process is not None and process.poll() is None

    def pids(self):
        """Role (manager, node) -> ids of the running processes."""
        roles = {"manager": [], "node": []}
        for name, process in self.processes.items():
            if process.poll() is None:
                roles["manager" if name == "manager" else "node"].append(process.pid)
        return roles

    def kill(self, name):
        """Sends SIGKILL, and waits until the process has ended."""
        self.processes[name].kill()
        self.processes[name].wait(30)

    def signal(self, name, number):
        self.processes[name].send_signal(number)

    def disk_directory(self, name):
        return os.path.join(self.directory, name)

    def stored_bytes(self):
        """Bytes allocated below all directories of disks."""
        return sum(machine.stored_bytes(self.disk_directory(n)) for n in self.node_names)

    def evict(self):
        """Evicts the nodes' data from the page cache."""
        for name in self.node_names:
            machine.evict(self.disk_directory(name))

    def close(self, keep=False):
        """Ends every daemon by its id, the manager first; then deletes the directory."""
        for name in ["manager", *self.node_names]:
            process = self.processes.get(name)
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            procs.stop(process)
        if not keep:
            machine.remove(self.directory)


def nodes_up(status):
    """Names of nodes that `status --json` reports as up."""
    return sum(1 for node in status.get("nodes", []) if isinstance(node, dict) and node.get("state") == "up")


def healthy(status):
    """Whether every chunk has all its fragments on the right members."""
    return status.get("healthy") is True


def chunks(status):
    """Chunks by state: all, full, reduced, lost."""
    return status.get("chunks", {})
