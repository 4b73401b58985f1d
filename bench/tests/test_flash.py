"""The figures of `make bench-flash`."""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchlib import flashreport, flashtext

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "results"


def row(ftl, **figures):
    base = dict.fromkeys(["map_reads", "map_reads_by_gc", "map_programs", "map_programs_by_gc", "moved_map_pages",
                          "moved_data_pages", "moved_by_wear_levelling", "host_reads", "programs"], 0)
    base |= {"ftl": ftl, "map_hits": 1, "map_lookups": 4, "write_amplification": 1.5, "requests": 10,
             "cpu_ns_per_request": 500, "response_ns": {"mean": 1000.0}}
    return base | figures


class Flash(unittest.TestCase):
    def test_changes_are_against_dftl(self):
        rows = [row("ideal", response_ns={"mean": 250.0}), row("dftl", map_reads=80, map_reads_by_gc=20, map_programs=10),
                row("cpftl", map_reads=40, map_programs=4, moved_map_pages=1, response_ns={"mean": 400.0})]
        expected = ["web", "-60.0 %", "-49.3 %", "-50.0 %", "-99.8 %", "-60.0 %", "-63.4 %", "-75.0 %"]
        self.assertEqual(flashtext.against("web", rows), expected)

    def test_page_operations_count_every_read_and_program(self):
        busy = row("dftl", host_reads=1000, map_reads=500, moved_data_pages=200, programs=800)
        self.assertEqual(flashtext.page_operations(busy), 500.0)

    def test_a_layer_is_a_line_and_the_trace_is_named_once(self):
        lines = flashtext.layer_rows("web", [row("dftl"), row("cpftl", response_ns={"mean": 2.5e10})])
        self.assertEqual([line[:3] for line in lines], [["web", "`dftl`", "25.0%"], ["", "`cpftl`", "25.0%"]])
        self.assertEqual([line[5] for line in lines], ["1 us", "25.0 s"])

    def test_memory_is_also_that_of_a_page(self):
        text = flashreport.memory_part({"64M, random": {"ideal": 14 << 20}, "16G, random": {"ideal": 78 << 20}, "1T, sequential": {"dftl": (4 << 30) + (14 << 20)}})
        lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| 1")]
        self.assertEqual([[line[1], line[3]] for line in lines], [["`ideal`", "16.0"], ["`dftl`", "16.0"]])

    def test_the_page_says_what_the_figures_say(self):
        result = json.loads((RESULTS / "flash.json").read_text())
        self.assertEqual((RESULTS / "flash.md").read_text(), flashreport.report(result))


if __name__ == "__main__":
    unittest.main()
