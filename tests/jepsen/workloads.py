"""What the client processes do. Each workload works on one key at a time, all its workers together, and takes a new one after some
operations, so that every history that the checker decides about is short.
"""

import os
import random
import sys
import threading
import time

from cluster import procs
from history import NEVER, classify

OPERATIONS_PER_KEY = 50
# Each open operation may double the work of the checker.
UNKNOWN_PER_KEY = 6
ANSWER_S = 40
MOUNT_CLIENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mount_client.py")


class Process:
    """A client process that is asked one line at a time. It is killed when it does not answer."""

    def __init__(self, command, log, on_host):
        self._command, self._log, self._on_host = [*on_host, *command], log, on_host
        self._process = None

    def ask(self, *words):
        """The words of the answer; `["err", "Silent"]` if there was none."""
        if self._process is None or self._process.poll() is not None:
            self._process = procs.start(self._command, self._log, stdin=procs.subprocess.PIPE, stdout=procs.subprocess.PIPE)
            self._buffer = bytearray()
        try:
            self._process.stdin.write((" ".join(map(str, words)) + "\n").encode())
            self._process.stdin.flush()
            return procs.read_line(self._process, self._buffer, ANSWER_S).split()
        except (procs.ProcessFailed, OSError):
            self.end()
            return ["err", "Silent"]

    def end(self):
        if self._process is not None:
            self._process.kill()
            try:
                self._process.wait(5)
            except procs.subprocess.TimeoutExpired:
                pass  # It waits in the kernel for a mount that waits; it ends with that.


class Key:
    """What the workers of a workload work on now."""

    def __init__(self, name):
        self.name, self.left, self.unknown = name, OPERATIONS_PER_KEY, 0


class Workload:
    """The keys of one workload, and what it did with them."""

    name = ""
    workers = 3
    # Whether the clients are programs on a mount.
    on_mount = False
    # The redundancy of files, if not the default.
    redundancy = ""

    def __init__(self, history, cluster):
        self.history, self.cluster = history, cluster
        self.keys = []
        self._current, self._tried = None, 0
        self._making = threading.Lock()

    def key(self, worker):
        """The current key, or a new one if that has had enough; None if there is none to work on now."""
        if self._is_used_up(self._current, 0) and self._making.acquire(blocking=False):
            try:
                # A key whose making has no known end is not tried again: it may be made any time.
                key = Key(f"k{self._tried}")
                self._tried += 1
                if self.make(worker, key):
                    self._current = key
                    self.keys.append(key.name)
            finally:
                self._making.release()
        # While one worker waits for what it makes, the others go on for a while.
        key = self._current
        if self._is_used_up(key, -4 * OPERATIONS_PER_KEY):
            return None
        key.left -= 1
        return key

    @staticmethod
    def _is_used_up(key, left):
        return key is None or key.left <= left or key.unknown >= UNKNOWN_PER_KEY

    def directory(self):
        """The directory of all keys."""
        return f"tess:/{self.name}"

    def path(self, key):
        return f"{self.directory()}/{key}"

    def make(self, worker, key):
        """Makes what a key needs; returns whether it did."""
        return True

    def step(self, worker, key):
        """One operation."""
        raise NotImplementedError

    def final(self, worker, name):
        """Reads a key after all faults; returns whether it could."""
        return worker.read(self, name, "get", self.path(name))[0] != "info"


class Worker(threading.Thread):
    """A client process with its host, one operation after the other."""

    def __init__(self, number, workload, host, client, seed, stop):
        super().__init__(name=f"{workload.name}{number}", daemon=True)
        self.number, self.workload, self.host, self.client, self.stop = number, workload, host, client, stop
        self.history, self.rng = workload.history, random.Random(f"{seed} {workload.name} {number}")
        self.process = self.history.process()
        self.current = None
        self._values = 0

    def run(self):
        try:
            while not self.stop.is_set():
                self.current = self.workload.key(self)
                if self.current is not None:
                    self.workload.step(self, self.current)
                self.stop.wait(self.rng.uniform(0.01, 0.06))
        except Exception as error:  # noqa: BLE001 - a worker that ended would check nothing
            self.history.note_wrong(f"{self.name}: {error!r}")

    def value(self):
        """A word that no other operation writes."""
        self._values += 1
        return f"{self.number}.{self._values}"

    def operate(self, key, kind, args, *request, result=None, workload=None):
        """Asks the client process, and records what it answered: (outcome, words after `ok`).

        `key` is a Key, or the name of one. `result`: from the words after `ok` to the result.
        """
        name = getattr(key, "name", key)
        invoke = time.monotonic_ns()
        word, *rest = self.client.ask(*request) or ["err", "Silent"]
        end = time.monotonic_ns()
        code = rest[0] if rest else ""
        outcome = classify(kind, word, code)
        if word != "ok" and code in NEVER:
            self.history.note_wrong(f"{self.workload.name} {name}: {kind} {args}: {' '.join(rest)[:400]}")
        said = (result or (lambda words: words[0] if words else ""))(rest) if outcome == "ok" else code
        self.history.add(workload or self.workload.name, name, self.process, kind, args, outcome, said, invoke, end)
        if outcome == "info":
            self.process = self.history.process()
            if self.current:
                self.current.unknown += 1
        return outcome, rest, invoke, end

    def read(self, workload, name, command, path, result=lambda words: words[1]):
        """A read that was not asked for by a step."""
        return self.operate(name, "read", [], command, path, result=result, workload=workload.name)


class Register(Workload):
    """A small file that is replaced, read, removed, and replaced if the version that was read is current."""

    name = "register"
    workers = 3

    def step(self, worker, key):
        path, value = self.path(key.name), worker.value()
        kind = worker.rng.choices(["write", "read", "cas", "delete"], [35, 30, 25, 10])[0]
        if kind == "write":
            worker.operate(key, "write", [value], "put", path, value, result=lambda _: "")
        elif kind == "delete":
            worker.operate(key, "delete", [], "unlink", path)
        else:
            outcome, words, *_ = worker.operate(key, "read", [], "get", path, result=lambda words: words[1])
            if kind == "cas" and outcome == "ok":
                version, old = words
                worker.operate(key, "cas", [old, value], "put", path, value, version, result=lambda _: "")

    def final(self, worker, name):
        outcome, words, *_ = worker.read(self, name, "get", self.path(name))
        return outcome == "ok" or words[:1] == ["NotFound"]


class Append(Workload):
    """A file that grows: each append reads it, and commits only if what it read is still current."""

    name = "append"
    workers = 3
    # The default of a write that does not know its length in advance needs all hosts.
    redundancy = "replica:3"

    def make(self, worker, key):
        path = self.path(key.name)
        return worker.operate(key, "create", ["0,"], "put", path, "0,", 0, result=lambda _: "")[0] == "ok"

    def step(self, worker, key):
        path = self.path(key.name)
        if worker.rng.random() < 0.6:
            text = worker.value() + ","
            worker.operate(key, "append", [text], "append", path, text)
        else:
            worker.read(self, key.name, "get", path)

    def final(self, worker, name):
        return worker.read(self, name, "get", self.path(name))[0] == "ok"


class Rename(Workload):
    """A directory of four names, which clients make, rename without replacing, remove and list."""

    name = "rename"
    workers = 3
    names = "abcd"

    def make(self, worker, key):
        return worker.client.ask("mkdir", self.path(key.name))[0] == "ok"

    def step(self, worker, key):
        path, rng = self.path(key.name), worker.rng
        name, other = rng.sample(self.names, 2)
        kind = rng.choices(["create", "rename", "delete", "list"], [25, 40, 10, 25])[0]
        if kind == "create":
            worker.operate(key, "create", [name], "put", f"{path}/{name}", worker.value(), 0, result=lambda words: words[1])
        elif kind == "rename":
            worker.operate(key, "rename", [name, other], "rename", f"{path}/{name}", f"{path}/{other}")
        elif kind == "delete":
            worker.operate(key, "delete", [name], "unlink", f"{path}/{name}")
        else:
            worker.operate(key, "list", [], "list", path)

    def final(self, worker, name):
        return worker.operate(name, "list", [], "list", self.path(name))[0] == "ok"


class Dedup(Workload):
    """Two files that are filled with one of three contents, read and removed: what one removes the other may still need."""

    name = "dedup"
    workers = 3

    def __init__(self, history, cluster):
        super().__init__(history, cluster)
        self._sums = {}

    def step(self, worker, key):
        rng, number = worker.rng, int(key.name[1:])
        name = f"{key.name}{rng.choice('xy')}"
        path, kind = self.path(name), rng.choices(["write", "read", "delete"], [35, 40, 25])[0]
        if kind == "write":
            content = (3 * number + rng.randrange(3), 20_000 + 977 * (number % 150))
            expected = self._sum(worker, content)
            if expected:
                worker.operate(name, "write", [expected], "fill", path, *content)
        elif kind == "read":
            worker.read(self, name, "sum", path, lambda words: words[0])
        else:
            worker.operate(name, "delete", [], "unlink", path)

    def _sum(self, worker, content):
        """The sum of a content, which reads are compared with."""
        if content not in self._sums:
            word, *rest = worker.client.ask("name", *content)
            if word != "ok":
                return None
            self._sums[content] = rest[0]
        return self._sums[content]

    def final(self, worker, name):
        read = [worker.read(self, f"{name}{file}", "sum", self.path(f"{name}{file}"), lambda words: words[0]) for file in "xy"]
        return all(outcome == "ok" or words[:1] == ["NotFound"] for outcome, words, *_ in read)


class Lock(Workload):
    """Programs on several mounts that append to a file, each while it holds the file's lock: what one wrote the next one has read."""

    name = "lock"
    workers = 3
    on_mount = True

    def directory(self):
        return "lock"

    def _on_mount(self, worker, name):
        return os.path.join(self.cluster.mount_point(worker.host), self.path(name))

    def make(self, worker, key):
        return worker.operate(key, "create", ["0,"], "create", self._on_mount(worker, key.name), "0,", result=lambda _: "")[0] == "ok"

    def step(self, worker, key):
        path, rng = self._on_mount(worker, key.name), worker.rng
        if rng.random() < 0.25:
            self.final(worker, key.name)
            return
        text, kind = worker.value() + ",", ("flock", "fcntl")[int(key.name[1:]) % 2]
        process = worker.process
        outcome, words, invoke, end = worker.operate(
            key, "append", [text], "append", kind, path, text, rng.choice(["sync", "close"]), result=lambda words: words[0])
        if outcome == "ok":
            # Committed under the fence of its lock, so the lock was held all the time. Of others nobody knows for how long.
            holder, (acquired, releasing) = [text], map(int, words[1:])
            self.history.add("mutex", key.name, process, "acquire", holder, "ok", "", invoke, acquired, counted=False)
            self.history.add("mutex", key.name, process, "release", holder, "ok", "", releasing, end, counted=False)

    def final(self, worker, name):
        return worker.read(self, name, "read", self._on_mount(worker, name), lambda words: words[0])[0] == "ok"


WORKLOADS = {kind.name: kind for kind in (Register, Append, Rename, Dedup, Lock)}


def python(script):
    return [sys.executable, "-u", script]
