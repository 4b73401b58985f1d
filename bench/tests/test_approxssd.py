"""The page of `make bench-approxssd`: how figures are compared, and what the committed figures say."""

import json
import os
import sys
import unittest

sys.dont_write_bytecode = True
BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, BENCH)
from benchlib import approxtext  # noqa: E402


def row(strategy, seconds, ratio=0.0001, simulated_s=(1.0,), balance=(1.0,)):
    return {"app": "WC", "ratio": ratio, "unstable": False, "strategy": strategy, "seconds": seconds, "simulated_s": list(simulated_s),
            "floor_s": 1.0, "balance": list(balance)}


class Comparison(unittest.TestCase):
    def test_speed_ups_compare_medians(self):
        times = {"rows": [row("random", [2.0, 3.0, 90.0]), row("tessera", [1.0, 1.5, 1.2])]}
        self.assertAlmostEqual(approxtext.speedup(times, "WC", 0.0001), 2.5)
        self.assertAlmostEqual(approxtext.over_floor(times["rows"][1]), 1.2)

    def test_a_spread_has_median_and_ends(self):
        self.assertEqual(approxtext.spread([3.0, 1.0, 2.0]), "2.00 (1.00 – 3.00)")
        self.assertEqual(approxtext.spread([3.0]), "3.00")
        self.assertEqual(approxtext.spread([]), "–")

    def test_goals_are_judged_by_what_was_measured(self):
        rows = []
        for unstable in (False, True):
            rows += [row("random", [2.0]) | {"unstable": unstable}, row("tessera", [1.2]) | {"unstable": unstable}]
        rows.append(row("tessera", [1.05], 0.01, balance=[0.9, 0.99]))
        balance = {"rows": [{"disks": 8, "partitions": 2600, "strategy": "tessera", "balance": [1.0]}]}
        found = {goal[0]: (goal[3], goal[5]) for goal in approxtext.goals({"time": {"rows": rows}, "balance": balance})}
        self.assertEqual(found["balance of 8 disks at 1 %: mean, least"], (False, True))
        self.assertEqual(found["time / floor at 1 %, worst of four applications"], (True, True))
        self.assertEqual(found["time / floor at 0.01 %, worst of four applications"], (False, True))
        self.assertEqual(found["speed-up at 0.01 %, Word Count, steady disks"], (False, False))

    def test_a_row_must_be_one(self):
        with self.assertRaises(AssertionError):
            approxtext.one([row("random", [1.0])] * 2, strategy="random")


class Committed(unittest.TestCase):
    """The page says what its figures say. Computed and simulated figures are equal on every machine."""

    def setUp(self):
        with open(os.path.join(BENCH, "results", "approxssd.json")) as f:
            self.result = json.load(f)

    def test_the_page_is_that_of_the_figures(self):
        with open(os.path.join(BENCH, "results", "approxssd.md")) as f:
            self.assertEqual(f.read(), approxtext.report(self.result))

    def test_the_run_was_whole(self):
        self.assertFalse(any(part["quick"] for part in self.result.values() if "quick" in part))

    def test_shares_are_balanced_and_random_ones_are_not(self):
        for found in self.result["balance"]["rows"]:
            if found["strategy"] == "tessera":
                self.assertGreaterEqual(min(found["balance"]), approxtext.LEAST_BALANCE, found)
        few = approxtext.one(self.result["balance"]["rows"], disks=8, partitions=32, strategy="random")["balance"]
        self.assertAlmostEqual(sum(few) / len(few), 0.6, delta=0.03)

    def test_the_schedule_is_at_the_floor_in_simulated_time(self):
        for found in approxtext.pick(self.result["time"]["rows"], strategy="tessera", unstable=False):
            self.assertLessEqual(approxtext.over_floor(found, "simulated_s"), approxtext.MOST_OVER_FLOOR, found["app"])

    def test_tessera_is_faster_than_the_baseline_at_each_sample(self):
        times = self.result["time"]
        for app in approxtext.apps(times):
            for ratio in approxtext.ratios(times)[1:]:
                self.assertGreater(approxtext.speedup(times, app, ratio, key="simulated_s"), 1.3, (app, ratio))


if __name__ == "__main__":
    unittest.main()
