"""The history: what each process asked, when, and how it ended; and what may be said of an error."""

import collections
import json
import threading
import time

# The manager refused before it changed anything; the model says when it may.
REFUSED = {"NotFound", "Exists", "VersionConflict"}
# Answers that no fault excuses: bytes that are wrong or cannot be read back, requests or replies that make no sense.
NEVER = {"Corrupt", "Internal", "Unknown", "Invalid", "ProtocolVersion", "WrongCluster", "NotDirectory", "IsDirectory", "Permission"}
READS = {"read", "list"}


def classify(kind, word, code):
    """The outcome of an operation that was answered with `word` (ok, err, unsent, fail, info) and an error's code.

    `fail` means that it surely had no effect: it was not sent, only read, or was refused. Any other error says nothing about the
    effect: `info`.
    """
    if word == "ok":
        return "ok"
    if word in ("unsent", "fail") or kind in READS or code in REFUSED:
        return "fail"
    return "info"


class History:
    """Collects operations, from any thread; writes them as lines of JSON."""

    def __init__(self, path):
        self._file = open(path, "w")
        self._lock = threading.Lock()
        self._next = 0
        self.counts = collections.Counter()
        self.errors = collections.Counter()
        # Workload -> time of the last ok, longest time without one, ns.
        self._last, self.longest = {}, collections.Counter()
        self.wrong = []

    def process(self):
        """A number for a new process."""
        with self._lock:
            self._next += 1
            return self._next

    def add(self, workload, key, process, kind, args, outcome, result, invoke, end, counted=True):
        """Records one operation; times in ns of the monotonic clock."""
        line = json.dumps(dict(workload=workload, key=key, process=process, kind=kind, args=list(args), outcome=outcome,
                               result=result, invoke=invoke, **{"return": end}))
        with self._lock:
            self._file.write(line + "\n")
            if not counted:
                return
            self.counts[workload, kind, outcome] += 1
            if outcome == "ok":
                self.longest[workload] = max(self.longest[workload], end - self._last.get(workload, end))
                self._last[workload] = end
            elif result not in REFUSED:
                self.errors[workload, result] += 1

    def pause(self):
        """What follows is no unavailability: nobody asks anything."""
        now = time.monotonic_ns()
        with self._lock:
            for workload, last in self._last.items():
                self.longest[workload] = max(self.longest[workload], now - last)
            self._last.clear()

    def note_wrong(self, what):
        with self._lock:
            if len(self.wrong) < 50:
                self.wrong.append(what)

    def close(self):
        self._file.close()
