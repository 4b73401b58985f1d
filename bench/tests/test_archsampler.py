"""The page of `make bench-archsampler`: how figures are compared, and what the committed figures say."""

import json
import os
import sys
import unittest

sys.dont_write_bytecode = True
BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, BENCH)
from benchlib import archtext  # noqa: E402


def row(assignment, time_ns, banks=8):
    return {"open_ns": 150, "compute_ns": 797, "ahead": 1, "banks": banks, "per_mille": 8, "assignment": assignment, "time_ns": time_ns}


class Comparison(unittest.TestCase):
    def test_reductions_are_within_one_setup(self):
        rows = [row(archtext.BEST, 50), row(archtext.WORST, 100), row(archtext.BEST, 90, 16), row(archtext.WORST, 100, 16)]
        found = archtext.reductions(rows, archtext.WORST)
        self.assertEqual([round(value) for value in found], [50, 10])
        self.assertEqual(archtext.most_mean(found), "−50.0 %, −30.0 %")

    def test_the_gain_at_equal_error_counts_the_interval(self):
        sample = lambda name, seconds, half: {"data": "d", "ratio": 0.01, "sample": name, "elements": 100, "seconds": seconds, "half": half}
        real = {"rows": [sample("rows", 1.0, 0.2), sample("elements at random", 10.0, 0.1)]}
        self.assertAlmostEqual(archtext.gain(real, "d", 0.01), 10)
        self.assertAlmostEqual(archtext.gain(real, "d", 0.01, True), 2.5)


class Committed(unittest.TestCase):
    """The page says what its figures say. Simulated figures are equal on every machine."""

    def setUp(self):
        with open(os.path.join(BENCH, "results", "archsampler.json")) as f:
            self.result = json.load(f)

    def test_the_page_is_that_of_the_figures(self):
        with open(os.path.join(BENCH, "results", "archsampler.md")) as f:
            self.assertEqual(f.read(), archtext.report(self.result))

    def test_owning_banks_gains_where_there_are_enough(self):
        for work in ("word_count", "rating", "read", "write"):
            for setup, found in archtext.groups(self.result["timing"][work]).items():
                times = {name: row["time_ns"] for name, row in found.items()}
                self.assertLess(times[archtext.RANDOM], times[archtext.WORST], (work, setup))
                if setup[3] >= 8:
                    self.assertLess(times[archtext.BEST], times[archtext.RANDOM], (work, setup))

    def test_the_constant_gives_what_the_paper_says_at_most(self):
        for work in ("word_count", "rating"):
            paper = archtext.PAPER[work, "time_ns", archtext.WORST][0]
            for rows in (work, work + "_swept"):
                found = max(archtext.reductions(self.result["timing"][rows], archtext.WORST))
                self.assertAlmostEqual(found, paper, delta=0.3)


if __name__ == "__main__":
    unittest.main()
