"""Faults at random, within what the promises allow at one time (docs/promises.md): at most two managers or nodes are killed, stopped or cut
off, so a majority of the five peers lives, and every chunk can be read. Clocks may jump anywhere; clients may lose any manager.
"""

import collections
import random
import signal
import subprocess
import time

from cluster import procs

MAX_VICTIMS = 2
# A victim that is back counts for this long, s: it must find its leader.
GRACE_S = 2.0
WEIGHTS = {"kill": 20, "stop": 20, "isolate": 20, "split": 15, "link": 10, "client": 10, "clock": 15, "transfer": 4, "collect": 6}
CUTS = {"isolate", "split", "link", "client"}


class Nemesis:
    """Starts faults and ends them when their time is over."""

    def __init__(self, cluster, clients, seed, log):
        self.cluster, self.clients, self.log = cluster, clients, log
        self.network = cluster.network
        self.rng = random.Random(f"{seed} nemesis")
        self.counts = collections.Counter()
        # (time, function that ends the fault, words).
        self._later = []
        # Manager or node -> until when it is a victim.
        self._victims = {}
        without = set() if self.network.cuts else CUTS
        without |= set() if cluster.library else {"clock"}
        self._weights = {kind: weight for kind, weight in WEIGHTS.items() if kind not in without}

    def run(self, until, good, calm=False):
        """Faults until this time, while `good()`; none if `calm`."""
        rng = self.rng
        while calm and time.monotonic() < until and good():
            time.sleep(0.2)
        while time.monotonic() < until and good():
            kind = rng.choices(list(self._weights), list(self._weights.values()))[0]
            before = self.counts.total()
            getattr(self, f"_{kind}")()
            # A pause without faults now and then, so that the cluster can become whole; none after a fault that was one too many.
            pause = rng.uniform(0.2, 3) if rng.random() < 0.85 else rng.uniform(6, 12)
            pause = pause if self.counts.total() > before else 0.2
            over = min(until, time.monotonic() + pause)
            while time.monotonic() < over:
                self._end(time.monotonic())
                time.sleep(0.05)

    def heal(self):
        """Ends all faults."""
        self._end(float("inf"))
        for name in self.cluster.daemons:
            self.cluster.set_clock(name, 0)

    def _end(self, now):
        for entry in [entry for entry in self._later if entry[0] <= now]:
            self._later.remove(entry)
            self.log(f"end: {entry[2]}")
            entry[1]()

    def away(self):
        """Daemons that are dead by our hand."""
        return {name for _, _, words in self._later for name in [words.removeprefix("kill ")] if words.startswith("kill ")}

    def _begin(self, kind, words, seconds, end):
        self.counts[kind] += 1
        self.log(f"{words} for {seconds:.1f} s")
        self._later.append((time.monotonic() + seconds, end, words))

    def _choose(self, seconds, leader=None):
        """A victim for some time, or None if there are enough. Often the leader; `leader`: always, or never."""
        now = time.monotonic()
        victims = {name for name, until in self._victims.items() if until > now}
        living = [name for name in self.cluster.daemons if name not in victims]
        if len(victims) >= MAX_VICTIMS:
            return None
        name = self.rng.choice(living)
        if leader or leader is None and self.rng.random() < 0.4:
            name = self.cluster.leader()
        if name is None or name in victims:
            return None
        self._victims[name] = now + seconds + GRACE_S
        return name

    def _seconds(self, shortest, longest):
        """Many short outages, few long ones."""
        return shortest + (longest - shortest) * self.rng.random() ** 2

    def _kill(self):
        seconds = self._seconds(0.1, 10)
        if name := self._choose(seconds):
            self.cluster.kill(name)
            self._begin("kill", f"kill {name}", seconds, lambda: self.cluster.start(name))

    def _stop(self):
        seconds = self._seconds(0.5, 15)
        if name := self._choose(seconds):
            self.cluster.signal(name, signal.SIGSTOP)
            self._begin("stop", f"stop {name}", seconds, lambda: self.cluster.signal(name, signal.SIGCONT))

    def _isolate(self):
        """One daemon hears nobody, or nobody hears it, or both; some clients may reach it still."""
        seconds = self._seconds(1, 15)
        if name := self._choose(seconds):
            near = [client for client in self.clients if self.rng.random() < 0.5]
            others = [host for host in [*self.cluster.daemons, *self.clients] if host != name and host not in near]
            out, back = [(name, other) for other in others], [(other, name) for other in others]
            way = self.rng.choice(["both", "both", "out", "in"])
            pairs = {"both": out + back, "out": out, "in": back}[way]
            self._cut("isolate", f"cut off {name} ({way}; {' '.join(near) or 'no client'} reaches it)", seconds, pairs)

    def _split(self):
        """The leader keeps some clients, and loses everybody else."""
        seconds = self._seconds(2, 12)
        if name := self._choose(seconds, leader=True):
            near = self.rng.sample(self.clients, (len(self.clients) + 1) // 2)
            far = [host for host in [*self.cluster.daemons, *self.clients] if host != name and host not in near]
            pairs = [(a, b) for side, other in (([name, *near], far), (far, [name, *near])) for a in side for b in other]
            self._cut("split", f"split {name} with {' '.join(near)} from the others", seconds, pairs)

    def _link(self):
        """One daemon does not hear another one, or neither the other: no transitive network."""
        seconds = self._seconds(1, 15)
        if name := self._choose(seconds):
            other = self.rng.choice([other for other in self.cluster.daemons if other != name])
            pairs = [(name, other), (other, name)][: self.rng.randint(1, 2)]
            self._cut("link", f"cut {name} to {other}{' and back' if len(pairs) > 1 else ''}", seconds, pairs)

    def _client(self):
        """A client loses some managers, or their answers only: then it repeats requests that were carried out."""
        client, deaf = self.rng.choice(self.clients), self.rng.random() < 0.6
        managers = self.cluster.managers
        lost = managers if deaf else self.rng.sample(managers, self.rng.randint(1, len(managers) - 1))
        pairs = [pair for name in lost for pair in [(client, name), (name, client)][deaf:]]
        self._cut("client", f"cut {client} from {'the answers of ' if deaf else ''}{' '.join(lost)}", self._seconds(1, 10), pairs)

    def _cut(self, kind, words, seconds, pairs):
        self.network.cut(pairs)
        self._begin(kind, words, seconds, lambda: self.network.mend(pairs))

    def _clock(self):
        """Wall clocks of some daemons jump, and some jump back."""
        names = self.rng.sample(self.cluster.daemons, self.rng.randint(1, 3))
        offset_s = int(self.rng.choice([-1, 1]) * 10 ** self.rng.uniform(0, 4))
        for name in names:
            self.cluster.set_clock(name, offset_s)
        self._begin("clock", f"clocks of {' '.join(names)} by {offset_s:+d} s", self._seconds(1, 20),
                    lambda: [self.cluster.set_clock(name, 0) for name in names])

    def _transfer(self):
        name = self.rng.choice(self.cluster.managers)
        self._try("transfer", "manager", "transfer", self.cluster.manager_address(name))

    def _collect(self):
        """A garbage collection, so that what nothing refers to is really gone."""
        self._try("collect", "gc", "--quiet")

    def _try(self, kind, *words):
        self.counts[kind] += 1
        self.log(" ".join(words))
        try:
            self.cluster.cli(*words, "--wait", 2, timeout_s=10)
        except (procs.ProcessFailed, subprocess.TimeoutExpired) as error:
            self.log(f"{words[0]}: {str(error)[:200]}")
