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
        row, failures = soak.soak(binary, "slow", 1, 1200, 2)
        self.assertTrue(row.startswith("| slow | 1,200 | 1 to 1200 | 1 |"), row)
        self.assertEqual(failures, ["slow seed 777: P1 lost"])
        text = soak.report([row], failures, "abc", 2)
        self.assertIn("- `slow seed 777: P1 lost`", text)

    def test_a_process_that_dies_is_a_failure(self):
        row, failures = soak.soak(self.binary("echo oh >&2\nexit 3\n"), "slow", 1, 10, 1)
        self.assertIn("| 0 | 1 to 10 | 1 |", row)
        self.assertIn("ended with 3: ['oh']", failures[0])


if __name__ == "__main__":
    unittest.main()
