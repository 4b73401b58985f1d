"""What `make bench-flash` says of traces, and how it changes their addresses."""

import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import flash
from benchlib import figuretext, traceprops


def trace(*lines):
    """Requests of (operation, first page, pages), a second apart."""
    return traceprops.parse(f"0,{page * 8},{pages * 4096},{operation},{second}" for second, (operation, page, pages) in enumerate(lines))


class Traces(unittest.TestCase):
    def test_pages_of_devices_lie_apart_and_comments_are_left_out(self):
        found = traceprops.parse(["# SYNTHETIC", "3,8,512,R,0.5", "4,8,8192,w,1.5"])
        self.assertEqual([(r.second, r.is_read, len(r.pages), r.bytes) for r in found], [(0.5, True, 1, 512), (1.5, False, 2, 8192)])
        self.assertEqual(traceprops.footprint(found), 2 << 20)
        shape = traceprops.shape(found)
        self.assertEqual((shape["read_kb"], shape["write_kb"], shape["reads"], shape["gap_ms"]), (0.5, 8, 0.5, 1000))

    def test_a_buffer_lets_misses_and_replaced_writes_through(self):
        found = trace(("R", 0, 2), ("R", 0, 3), ("W", 1, 1), ("R", 5, 2), ("R", 9, 1), ("R", 9, 1))
        through = [(r.is_read, r.pages) for r in traceprops.buffered(found, 3)]
        expected = [(True, range(0, 2)), (True, range(2, 3)), (True, range(5, 7)), (False, range(1, 2)), (True, range(9, 10))]
        self.assertEqual(through, expected)

    def test_a_write_is_read_after_within_its_part_only(self):
        found = trace(("W", 0, 2), ("W", 7, 1), ("R", 0, 1), ("R", 1, 1), ("R", 0, 1))
        reuse = traceprops.reuse(found)
        self.assertEqual((reuse["near"], reuse["reads_again"]), (1.0, 1 / 3))
        far = traceprops.reuse(trace(("W", 0, 1), *[("R", 50, 1)] * traceprops.PART, ("R", 0, 1)))
        self.assertEqual((far["dirty_reads"], far["near"]), ([0, 0, 0], None))

    def test_skew_is_the_share_of_the_busiest_pages(self):
        found = trace(*[("W", 0, 1)] * 91, *(("W", page, 1) for page in range(1, 10)))
        self.assertEqual(traceprops.skew(found), {"0.01": 0.91, "0.1": 0.91})

    def test_correlated_pages_are_those_of_many_windows(self):
        window = [("R", 0, 1), ("R", 9000, 1), *(("R", 20_000 + i, 1) for i in range(30))]
        other = [("R", 0, 1), ("R", 9000, 1), *(("R", 90_000 + i, 1) for i in range(30))]
        found = traceprops.clusters(trace(*window, *other))
        self.assertEqual((found["pairs"], found["region_pairs"], found["of"]), (1, 1, 16))

    def test_addresses_are_changed_and_nothing_else(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "t")
            region = 2048
            reads = [f"0,{region * number},512,R,{number}.5" for number in (0, 2, 3)] + [f"0,{region},512,R,4.5"] * 9
            with open(path, "w") as out:
                out.write("\n".join(["# SYNTHETIC", *reads, f"0,{region + 8},4096,W,5.5", "0,8,4096,W,6.5"]) + "\n")
            bench = flash.Bench("tessera", directory, 1)
            lines = lambda made: pathlib.Path(made).read_text().splitlines()[-2:]
            self.assertEqual(lines(bench.apart(path)), [f"0,{2 * region + 8},4096,W,5.5", "0,8,4096,W,6.5"])
            self.assertEqual(lines(bench.sequential(path)), ["0,96,4096,W,5.5", "0,104,4096,W,6.5"])

    def test_erases_stand_beside_those_of_the_paper(self):
        row = lambda ftl, erases: {"ftl": ftl, "map_erases": erases, "erases": 100, "moved_map_pages": 1, "moved_data_pages": 2, "write_amplification": 1.5}
        layers = [row("dftl", 80), row("sftl", 70), row("tpftl", 50), row("cpftl", 40)]
        text = figuretext.erases({"steady": {"financial": layers}})
        self.assertIn("| financial | `dftl` | 80 | 20 |", text)
        self.assertIn("|  | `cpftl` | 40 | 60 | 1 | 2 | 1.50 | -50.0 % (-58.5 %) | -20.0 % (-16.0 %) |", text)


if __name__ == "__main__":
    unittest.main()
