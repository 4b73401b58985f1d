"""The figures of bench/scale.py: rows, flatness, snapshots, and what the page says of a missed goal."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import scale  # noqa: E402
from benchlib import scaletext  # noqa: E402


def step(at, s, files=25_000, snapshots=0):
    return {"at": at, "s": s, "files": files, "bytes": files, "manager_cpu_s": s / 2, "db": at, "wal": 0, "snapshots": snapshots, "log": 0}


class Figures(unittest.TestCase):
    def test_steps_make_rows_of_a_length(self):
        rows = scaletext.rows_of([step(i, 1.0) for i in range(1, 7)], 50_000)
        self.assertEqual([row["files"] for row in rows], [50_000] * 3)
        self.assertEqual([row["at_files"] for row in rows], [50_000, 100_000, 150_000])
        self.assertEqual(rows[2]["rate"], 25_000)
        self.assertEqual(rows[1]["db"], 4)
        self.assertEqual(scaletext.tenths(rows, "cpu_us"), (20.0, 20.0))

    def test_a_rate_that_falls_is_not_flat(self):
        flat = scaletext.flatness([{"rate": rate} for rate in [100] * 10 + [70] * 10])
        self.assertAlmostEqual(flat["change"], -0.3)
        self.assertEqual((flat["least"], flat["most"]), (70, 100))

    def test_steps_beside_a_snapshot_are_told_apart(self):
        samples = [{"at": at, "snapshots": size} for at, size in ((0, 0), (1, 0), (2, 50), (3, 90), (4, 90), (5, 40))]
        self.assertEqual(scaletext.snapshot_spans(samples), [(1, 2), (2, 3)])
        self.assertEqual(scaletext.snapshots(samples), [2])
        steps = [step(1, 1.0), step(2, 2.0 / 3), step(4, 1.0), step(5, 1.0)]
        found = scaletext.dips(steps, samples)
        self.assertEqual((found["steps_with"], found["steps"]), (1, 4))
        self.assertAlmostEqual(found["with"], 37_500)
        self.assertAlmostEqual(found["without"], 25_000)

    def test_the_files_of_a_manager_are_counted_by_kind(self):
        with tempfile.TemporaryDirectory() as home:
            os.makedirs(os.path.join(home, "log"))
            for name, size in (("manager.db", 5), ("manager.db-wal", 3), ("lock", 1), ("log/01.log", 7), ("log/made.part", 11), ("log/8.snapshot", 2)):
                with open(os.path.join(home, name), "wb") as f:
                    f.write(bytes(size))
            self.assertEqual(scale.sizes(home), {"db": 5, "wal": 3, "snapshots": 13, "log": 7})

    def test_idle_goals_are_judged(self):
        row = {"nodes": 8, "percent": 0.6, "by_role": {"manager": 0.2, "node": 0.4, "up": 0.0}, "switches_per_s": 100, "seconds": 10}
        self.assertIn("**missed**", "\n".join(scaletext.idle_text({"idle": [row]})))
        self.assertNotIn("missed", "\n".join(scaletext.idle_text({"idle": [{**row, "percent": 0.5}]})))


if __name__ == "__main__":
    unittest.main()
