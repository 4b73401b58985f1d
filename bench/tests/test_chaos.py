"""chaos.py must be able to fail: it must find each bug that a toy store plants.

    python3 -m unittest discover bench/tests
"""

import os
import subprocess
import sys
import tempfile
import types
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
CHAOS = os.path.join(os.path.dirname(HERE), "chaos.py")
sys.path.insert(0, os.path.dirname(HERE))

import chaos  # noqa: E402


def run(bug, kills=12, seed=1):
    with tempfile.TemporaryDirectory() as root:
        os.makedirs(os.path.join(root, "files"))
        environment = {**os.environ, "FAKE_ROOT": os.path.join(root, "files"), "FAKE_BUG": bug, "FAKE_NODES": "8"}
        done = subprocess.run(
            [sys.executable, CHAOS, "--binary", os.path.join(HERE, "fake_tessera.py"), "--kills", str(kills),
             "--seed", str(seed), "--pace", "0.2", "--dir", os.path.join(root, "cluster"), "--max-seconds", "60"],
            env=environment, capture_output=True, text=True, timeout=180)
        return done.returncode, done.stdout + done.stderr


class Chaos(unittest.TestCase):
    def test_a_store_that_keeps_its_word_passes(self):
        code, said = run("")
        self.assertEqual(code, 0, said)
        self.assertIn("ok: nothing acknowledged was lost or wrong", said.splitlines()[-1])

    def test_lost_files_are_found(self):
        self.caught("lose", "WRONG")

    def test_wrong_bytes_are_found(self):
        self.caught("wrong", "WRONG")

    def test_files_that_come_back_are_found(self):
        self.caught("undelete", "WRONG")

    def test_a_daemon_that_ends_by_itself_is_found(self):
        self.caught("crash", "ended by itself")

    def test_nothing_is_stopped_while_all_daemons_are_away(self):
        cluster = types.SimpleNamespace(node_names=["node1", "node2"])
        breaker = chaos.Breaker(types.SimpleNamespace(seed=1), cluster, None, None, None)
        breaker.later = [(0, "start", name) for name in ["manager", *cluster.node_names]]
        breaker.pause()
        self.assertEqual(breaker.stops, 0)

    def caught(self, bug, words):
        # Each run of the toy is random; three misses in a row have a chance of one in thousands.
        for seed in range(3):
            code, said = run(bug, kills=40, seed=seed)
            if code == 1 and words in said:
                return
        self.fail(f"bug {bug!r} was not found: {said}")


if __name__ == "__main__":
    unittest.main()
