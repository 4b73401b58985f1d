"""The figures of `make bench-flash-record`."""

import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import flash_record
from benchlib import recordtext

MIB = 1 << 20


def totals(stored, written, **more):
    base = dict.fromkeys(["read_bytes", "trimmed_bytes", "flushes", "writes"], 0)
    return base | {"stored_bytes": stored * MIB, "written_bytes": written * MIB} | more


class FlashRecord(unittest.TestCase):
    def test_kinds_of_files_are_lines_and_small_ones_are_left_out(self):
        lines = recordtext.total_rows("store", {"lock": totals(0, 0), "a": totals(1, 2), "b": totals(100, 110, writes=440, flushes=3)})
        self.assertEqual([line[:6] for line in lines], [["store", "`b`", "100.0", "110.0", "1.10", "256 KiB"], ["", "`a`", "1.0", "2.0", "2.00", ""]])

    def test_map_reads_are_for_a_page_of_the_host(self):
        def row(wa):
            names = ["map_reads_by_gc", "map_programs", "map_programs_by_gc", "moved_map_pages"]
            return dict.fromkeys(names, 5) | {"ftl": "dftl", "map_hits": 1, "map_lookups": 2, "map_reads": 15, "host_programs": 10,
                                              "response_ns": {"mean": 1.0}, "write_amplification": wa}

        lines = recordtext.replay_rows("store", {"sequential, TRIM": [row(1.5)], "sequential": [row(2.5)], "random": [row(3.5)]})
        self.assertEqual(lines, [["store", "`dftl`", "1.50", "2.50", "", "", "3.50", "50.0%", "2.000", "1.500"]])

    def test_a_trace_loses_only_its_trims(self):
        with tempfile.TemporaryDirectory() as directory:
            trace = os.path.join(directory, "t.fio")
            lines = ["fio version 3 iolog\n", "1 device0 write 0 4096\n", "2 device0 trim 0 4096\n", "3 device0 datasync 0 0\n"]
            pathlib.Path(trace).write_text("".join(lines))
            self.assertEqual(pathlib.Path(flash_record.without_trims(trace)).read_text(), "".join(lines[:2] + lines[3:]))

    def test_totals_are_found_in_a_log(self):
        with tempfile.TemporaryDirectory() as directory:
            log = os.path.join(directory, "n1.log")
            pathlib.Path(log).write_text('INFO ready\n{"files":{"a":{"writes":1}},"trace":"t"}\nINFO stopped\n')
            self.assertEqual(flash_record.totals_in(log), {"a": {"writes": 1}})


if __name__ == "__main__":
    unittest.main()
