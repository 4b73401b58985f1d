"""The page of `make bench-sampling`: how errors and claims are counted, which runs are compared, and what the page says."""

import json
import os
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, BENCH)
from benchlib import samplingdata, samplingtext  # noqa: E402

TRUTH = {"groups": {"the": 100.0, "of": 50.0}, "total": 1000.0}


def row(system, run, seconds, error=0.0, question="words"):
    return {"question": question, "system": system, "run": run, "seconds": seconds, "cpu_s": seconds, "read_bytes": 10**9, "error": error,
            "claim": None}


class Comparison(unittest.TestCase):
    def test_what_was_not_found_is_wrong_by_all(self):
        found = samplingtext.errors({"groups": {"the": 101.0}, "total": 990.0}, TRUTH)
        self.assertEqual([round(error, 3) for error in found], [0.01, 1.0, 0.01])

    def test_a_total_that_was_not_asked_for_is_not_wrong(self):
        self.assertEqual(samplingtext.errors({"groups": {"the": 100.0, "of": 50.0}, "total": None}, TRUTH), [0.0, 0.0])

    def test_claims_are_those_of_the_true_groups(self):
        claims = {"the": (90.0, 110.0), "of": (60.0, 70.0), "other": (0.0, 9.0)}
        found = samplingtext.claims({"claims": claims}, TRUTH)
        self.assertEqual((found["hold"], found["of"]), (1, 2))
        self.assertAlmostEqual(found["half"], 0.1)
        self.assertIsNone(samplingtext.claims({}, TRUTH))

    def test_only_runs_within_two_percent_are_beside_a_promised_error(self):
        rows = [row("tessera", "error 2 %", 1), row("duckdb", "exact", 9), row("duckdb", "bernoulli 10 %", 8, 0.01),
                row("duckdb", "bernoulli 1 %", 3, 0.05)]
        judged = {goal["goal"]: goal for goal in samplingtext.judge(rows)}
        beside = judged["within 2 %, beside DuckDB's bernoulli"]
        self.assertEqual((beside["beside"], beside["ratio"], beside["hit"]), ("bernoulli 10 %", 8, True))

    def test_without_such_a_run_everything_is_read(self):
        rows = [row("tessera", "error 2 %", 1), row("duckdb", "exact", 9), row("duckdb", "bernoulli 10 %", 8, 0.03)]
        judged = [goal for goal in samplingtext.judge(rows) if "bernoulli" in goal["goal"]]
        self.assertEqual([goal["beside"] for goal in judged], ["exact"])


class Data(unittest.TestCase):
    def test_text_is_utf8_with_lines_of_some_length(self):
        self.assertTrue(samplingdata.is_text("Zürich\n".encode()))
        for contents in (b"\xff\xfe", b"a\0b", b"x" * 1_000_000):
            self.assertFalse(samplingdata.is_text(contents))

    def test_data_of_another_size_is_made_anew(self):
        def text(root, size):
            for number in range(size):
                with open(samplingdata.path_of(root, "text", number), "w") as out:
                    out.write(f"{size}\n")

        def found():
            paths = [os.path.join(parent, name) for parent, _, names in os.walk(os.path.join(root, "text")) for name in names]
            return sorted(open(path).read() for path in paths)

        with tempfile.TemporaryDirectory() as root, mock.patch.multiple(samplingdata, DATA=("text",), text=text):
            other = os.path.join(root, "packages")
            os.mkdir(other)
            for size in (9, 2, 9):
                samplingdata.make(root, size, None, None)
                self.assertEqual(found(), [f"{size}\n"] * size)
            with open(samplingdata.path_of(root, "text", 0), "w") as out:
                out.write("kept\n")
            samplingdata.make(root, 9, None, None)
            self.assertIn("kept\n", found(), "what is there in the right size is not made again")
            self.assertTrue(os.path.isdir(other))


class Committed(unittest.TestCase):
    """The page says what its figures say."""

    def test_the_page_is_that_of_the_figures(self):
        with open(os.path.join(BENCH, "results", "sampling_peers.json")) as f:
            result = json.load(f)
        with open(os.path.join(BENCH, "results", "sampling_peers.md")) as f:
            self.assertEqual(f.read(), samplingtext.report(result))
        self.assertEqual(samplingtext.judge(result["rows"]), result["goals"])


if __name__ == "__main__":
    unittest.main()
