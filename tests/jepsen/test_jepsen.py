"""What the driver decides by itself: outcomes of operations, and how many faults there are at one time.

    python3 -m unittest discover tests/jepsen
"""

import os
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from history import History, classify  # noqa: E402
from nemesis import MAX_VICTIMS, Nemesis  # noqa: E402


class Outcomes(unittest.TestCase):
    def test_an_error_that_says_nothing_about_the_effect_leaves_it_unknown(self):
        for code in ["Unavailable", "Timeout", "Silent", "SessionExpired", "Io", "TooFewHosts", "StaleEpoch"]:
            self.assertEqual(classify("write", "err", code), "info", code)
            self.assertEqual(classify("read", "err", code), "fail", code)

    def test_refusals_and_what_was_not_sent_had_no_effect(self):
        for code in ["NotFound", "Exists", "VersionConflict"]:
            self.assertEqual(classify("rename", "err", code), "fail", code)
        self.assertEqual(classify("write", "unsent", "Unavailable"), "fail")
        self.assertEqual(classify("append", "fail", "EAGAIN"), "fail")
        self.assertEqual(classify("append", "info", "EIO"), "info")
        self.assertEqual(classify("write", "ok", ""), "ok")

    def test_the_longest_time_without_an_answer_is_between_two_answers(self):
        with tempfile.TemporaryDirectory() as directory:
            history = History(os.path.join(directory, "history.jsonl"))
            for outcome, end in [("ok", 10), ("info", 50), ("ok", 70), ("ok", 75)]:
                history.add("register", "k", 1, "write", ["a"], outcome, "", end - 5, end)
            history.close()
            self.assertEqual(history.longest["register"], 60)


class Recorder:
    """A cluster, and its network, that do nothing."""

    managers, nodes = ["m1", "m2", "m3"], ["n1", "n2", "n3"]
    daemons = managers + nodes
    cuts, library = True, "faketime"

    def __init__(self):
        self.network = self
        self.dead, self.most = set(), 0

    def leader(self):
        return "m2"

    def kill(self, name):
        self.dead.add(name)
        self.most = max(self.most, len(self.dead))

    def start(self, name):
        self.dead.discard(name)

    def signal(self, *_):
        pass

    set_clock = cut = mend = cli = signal

    def manager_address(self, name):
        return name


class Faults(unittest.TestCase):
    def test_at_most_two_daemons_are_away_and_all_come_back(self):
        for seed in range(20):
            cluster = Recorder()
            nemesis = Nemesis(cluster, ["c1", "c2"], seed, lambda _: None)
            for _ in range(50):
                nemesis._kill()
                nemesis._end(time.monotonic() + nemesis.rng.uniform(0, 3))
            self.assertLessEqual(cluster.most, MAX_VICTIMS)
            nemesis.heal()
            self.assertFalse(cluster.dead or nemesis.away())
            self.assertGreater(nemesis.counts["kill"], 0)

    def test_a_seed_names_a_plan(self):
        def plan(seed):
            said = []
            nemesis = Nemesis(Recorder(), ["c1", "c2"], seed, said.append)
            for kind in ["isolate", "split", "link", "client", "clock"] * 3:
                getattr(nemesis, f"_{kind}")()
            return said

        self.assertEqual(plan(5), plan(5))
        self.assertNotEqual(plan(5), plan(6))


if __name__ == "__main__":
    unittest.main()
