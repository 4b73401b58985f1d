"""The table that `make soak` writes."""

import pathlib
import stat
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import soak


class Soak(unittest.TestCase):
    def binary(self, script):
        file = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "seeds"
        file.write_text("#!/bin/sh\n" + script)
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return file

    def test_seeds_and_failures_are_counted(self):
        binary = self.binary('[ $1 = 501 ] && echo "seed 777: P1 lost"\necho "$2 seeds, 0 broken, 9 events, 1.0 seeds a second"\n')
        done, failures = soak.soak(binary, "slow", 1, 1200, 2, "abc")
        self.assertEqual((done.family, done.seeds, done.start, done.failures), ("slow", 1200, 1, 1))
        self.assertEqual(failures, ["abc slow seed 777: P1 lost"])

    def test_a_report_has_the_runs_of_before(self):
        before = [soak.Run("2026-01-02", "abc", "slow", 1200, 1, 1, 4.5)]
        runs, failures = soak.read(soak.report(before, ["abc slow seed 777: P1 lost"]))
        self.assertEqual((runs, failures), (before, ["abc slow seed 777: P1 lost"]))
        text = soak.report([*runs, soak.Run("2026-01-03", "def", "slow", 800, 5000, 0, 4.0)], failures)
        self.assertIn("| slow | 2,000 | 1 |", text)
        self.assertEqual(len(soak.read(text)[0]), 2)

    def test_a_process_that_dies_is_a_failure(self):
        done, failures = soak.soak(self.binary("echo oh >&2\nexit 3\n"), "slow", 1, 10, 1, "abc")
        self.assertEqual((done.seeds, done.failures), (0, 1))
        self.assertIn("ended with 3: ['oh']", failures[0])


if __name__ == "__main__":
    unittest.main()
