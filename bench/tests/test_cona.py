"""The goals of bench-cona: a miss must be reported as a miss, in both senses, and only measured values are judged."""

import os
import sys
import unittest
import xml.dom.minidom

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from benchlib import ycsb  # noqa: E402


def row(system, phase, rate, cold=False, writes=None, written=700.0, **after):
    figures = {"index_bytes": 100, "filter_bytes": 900, "cell_records": 1000, "cells": 3, "lookups": 1100, "buffer_hits": 50,
               "cache_hits": 50, "page_reads": 1010, "table_memory_bytes": 2500, **after}
    quantiles = lambda p99: {"count": 10, "p50": 2.0, "p99": p99, "p999": 9.0, "p9999": 9.0, "max": 9.0}
    return {"system": system, "phase": phase, "cold": cold, "ops": 10, "records": 1000, "ops_per_s": rate, "seconds": 10 / rate,
            "reads": None if phase in ("load", "open") else quantiles(5.0), "writes": writes and quantiles(writes),
            "settle_s": 0.5, "disk_written_bytes": written * 22, "disk_read_bytes": 40960, "anonymous_bytes": 10**8, "load_average": 1.0,
            "series": [] if phase == "open" else [rate, rate], "after": figures,
            "before": {"lookups": 0, "buffer_hits": 0, "cache_hits": 0, "page_reads": 0}}


ABOUT = {"records": 1000, "ops": 10, "variant": "",
         "machine": {"cpu": "A CPU", "cores": 2, "memory_gib": 4, "kernel": "Linux", "file_systems": {"stores": "ext4"}}}


class Goals(unittest.TestCase):
    def judged(self, rows):
        return {g["what"]: g for g in ycsb.goals(rows)}

    def test_rates_are_compared_with_the_best_peer(self):
        rows = [row("cona", "load", 300e3, writes=5.0), row("leveldb", "load", 100e3, writes=5.0), row("fjall", "load", 220e3, writes=5.0)]
        goal = self.judged(rows)["load: rate, of the best peer's"]
        self.assertFalse(goal["hit"])
        self.assertAlmostEqual(goal["off"], 300 / 220 / 1.5 - 1)
        rows[2]["ops_per_s"] = 200e3
        self.assertTrue(self.judged(rows)["load: rate, of the best peer's"]["hit"])

    def test_less_is_better_for_bytes_and_memory(self):
        rows = [row("cona", "load", 1.0, writes=5.0, written=800.0), row("rocksdb", "load", 1.0, writes=5.0)]
        judged = self.judged(rows)
        self.assertFalse(judged["load: bytes written a byte, of the least of the peers"]["hit"])
        self.assertTrue(judged["index and filter, B a record, most after any phase"]["hit"])
        rows.append(row("cona", "A", 1.0, writes=25.0, filter_bytes=1200))
        judged = self.judged(rows)
        self.assertFalse(judged["index and filter, B a record, most after any phase"]["hit"])
        self.assertFalse(judged["p99 of writes, of the median, most of any warm phase (A)"]["hit"])
        self.assertTrue(judged["pages read, a present key's look-up in cells, most of any phase (A)"]["hit"])

    def test_disk_use_is_compared_with_the_least_of_the_peers(self):
        rows = [{**row(s, "delete", 1.0), "disk_bytes": used, "disk_peak_bytes": 9e9} for s, used in (("cona", 120e6), ("leveldb", 100e6), ("fjall", 150e6))]
        what = "delete: bytes on the disk once settled, of the least of the peers"
        self.assertFalse(self.judged(rows)[what]["hit"])
        rows[0]["disk_bytes"] = 109e6
        self.assertTrue(self.judged(rows)[what]["hit"])
        self.assertIn("| cona | 109 (9,000) |", ycsb.report(rows, ABOUT))

    def test_scans_and_absent_keys_are_no_look_ups_of_present_keys(self):
        worst = [what for what in self.judged([row("cona", "E", 1.0, page_reads=9000), row("cona", "gone", 1.0, page_reads=9000)]) if "pages" in what]
        self.assertEqual(worst, [])

    def test_what_was_not_measured_is_not_judged(self):
        self.assertEqual([g for g in self.judged([row("cona", "B", 1.0)]) if "rate" in g], [])
        lines = "\n".join(ycsb.goal_lines([row("cona", "B", 1.0), row("fjall", "B", 2.0)]))
        self.assertIn("**missed by 50 %**", lines)

    def test_tables_and_plot_hold_every_system(self):
        rows = [row(s, p, 1e5, cold=c, writes=5.0 if p != "C" else None) for p, c in (("load", False), ("A", False), ("C", True))
                for s in ycsb.SYSTEMS] + [row(s, "open", 2.0, cold=True) for s in ycsb.SYSTEMS]
        text = ycsb.report(rows, ABOUT)
        for words in ("| cona | 100 | 100 | 100 |", "cold C: read B/operation", "| fjall | 5.000 |", "RocksDB after A: index and filters 2.50"):
            self.assertIn(words, text)
        xml.dom.minidom.parseString(ycsb.svg(rows))


if __name__ == "__main__":
    unittest.main()
