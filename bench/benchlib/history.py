"""The answers that a store may give, by the requests it got and those it acknowledged.

Every path has one writer at a time. An acknowledged operation leaves exactly one possible state. An operation that was
cut off (client killed, time out, error) leaves the old and the new state possible, until the next acknowledged one. A
state is the hash of the content, or None for a path that does not exist.
"""

import hashlib
import threading


def digest(content):
    """Name of a content in the history."""
    return hashlib.sha256(content).hexdigest()


class Wrong(Exception):
    """The store broke a promise."""


class History:
    """Possible states of every path, and counts for the summary. Safe to share between threads."""

    def __init__(self):
        self._lock = threading.Lock()
        self._possible = {}
        self.counts = {}
        self.wrong = []

    def count(self, what, by=1):
        with self._lock:
            self.counts[what] = self.counts.get(what, 0) + by

    def possible(self, path):
        """States that a read of `path` may find."""
        with self._lock:
            return set(self._possible.get(path, {None}))

    def begin(self, changes):
        """Starts an operation: each path of `changes` (path -> new state) may be old or new from now on."""
        with self._lock:
            for path, state in changes.items():
                self._possible[path] = self._possible.get(path, {None}) | {state}

    def acknowledged(self, changes):
        """Ends an acknowledged operation: only the new states are possible."""
        with self._lock:
            for path, state in changes.items():
                self._possible[path] = {state}

    def begin_move(self, source, target):
        """Starts a rename: the source may be missing, the target may have any state that the source may have."""
        with self._lock:
            states = self._possible.get(source, {None}) - {None}
            self._possible[target] = self._possible.get(target, {None}) | states
            self._possible[source] = self._possible.get(source, {None}) | {None}
            return states

    def read(self, path, state, context=""):
        """A read found `state`; records a violation when it is not possible."""
        allowed = self.possible(path)
        if state in allowed:
            self.count("reads equal" if state is not None else "reads of what is not there")
            return True
        show = lambda s: "nothing" if s is None else s[:16]
        self.note_wrong(f"{path}: found {show(state)}, possible are {sorted(map(show, allowed))} {context}")
        return False

    def note_wrong(self, what):
        with self._lock:
            self.wrong.append(what)

    def paths(self):
        with self._lock:
            return sorted(self._possible)

    def living(self):
        """Paths that certainly exist."""
        with self._lock:
            return sorted(p for p, states in self._possible.items() if None not in states)
