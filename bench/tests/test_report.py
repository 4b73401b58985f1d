"""Numbers must be paired with their own round, and a miss must be reported as a miss."""

import os
import sys
import unittest
import xml.dom.minidom

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from benchlib import plot, report  # noqa: E402


def row(number, medium, system, work, rate, fio, cpu=1.0):
    ceiling = {"fio_write": fio, "fio_read": 2e9, "small": 20_000.0, "memcpy": 5e9, "fio_write_each": [fio]}
    return {"round": number, "medium": medium, "system": system, "work": work, "rate": rate, "seconds": 1.0,
            "cores": 2, "cpu_s": {"client": cpu * 0.6, "node": cpu * 0.4}, "cores_busy": 1.9, "cores_busy_machine": 1.95,
            "cpu_s_per_gb": cpu, "ceiling": ceiling}


class Report(unittest.TestCase):
    def test_a_share_of_the_ceiling_is_taken_within_each_round(self):
        # The disk and the store are three times as fast in the second round. A quotient of the two medians would be right here, but a wrong
        # pairing gives 0.27 or 2.4.
        rows = [row(1, "disk", "tessera", "write new", 0.3e9, 0.5e9), row(2, "disk", "tessera", "write new", 0.9e9, 1.5e9)]
        judged = report.judge(rows)
        self.assertEqual([t["what"] for t in judged], ["share_of_fio"])
        self.assertAlmostEqual(judged[0]["got"]["min"], 0.9)
        self.assertAlmostEqual(judged[0]["got"]["max"], 0.9)
        self.assertTrue(judged[0]["hit"])

    def test_hits_and_misses_in_both_senses(self):
        rows = [row(1, "tmpfs", "tessera", "write new", 0.8e9, 2e9, cpu=1.2), row(1, "tmpfs", "tessera", "read", 1.6e9, 2e9, cpu=1.0)]
        judged = {(t["work"], t["what"]): t for t in report.judge(rows)}
        self.assertFalse(judged["write new", "rate"]["hit"])
        self.assertAlmostEqual(judged["write new", "rate"]["off_by"], -0.2)
        self.assertTrue(judged["write new", "cpu_s_per_gb"]["hit"])
        self.assertTrue(judged["read", "rate"]["hit"])
        self.assertFalse(judged["read", "cpu_s_per_gb"]["hit"])

    def test_what_bounds_a_figure(self):
        busy = row(1, "tmpfs", "tessera", "read", 1e9, 2e9)
        self.assertIn("bound by the CPU", report.bound([busy]))
        self.assertIn("client 60 %", report.bound([busy]))
        self.assertIn("not bound by the CPU", report.bound([{**busy, "cores_busy": 0.5, "cores_busy_machine": 0.6}]))
        self.assertIn("other programs", report.bound([{**busy, "cores_busy": 1.0, "cores_busy_machine": 2.0}]))

    def test_tables_and_plot_hold_every_system(self):
        rows = [row(1, m, s, w, 1e9, 2e9) for m in ("tmpfs", "disk") for s in ("tessera", "gluster") for w in report.WORKS[:3]]
        result = {
            "machine": {"cpu": "A <fast> CPU", "cores": 2, "isa": ["avx2"], "memory_gib": 4, "kernel": "Linux", "file_systems": {"tmpfs": "tmpfs"}},
            "config": {"systems": ["tessera", "gluster"], "rounds": 1, "size_bytes": 1 << 30, "writers": 32, "quick": True,
                       "gest_bytes": 1 << 28},
            "rows": rows, "targets": report.judge(rows), "load_before": 3.0, "load_after": 1.0, "gest": [],
            "integrity": [{"system": "gluster", "error": "no volume"}],
        }
        text = report.markdown(result)
        for words in ("not final", "| tmpfs | write new | tessera |", "| disk | read | gluster |", "could not be measured: no volume"):
            self.assertIn(words, text)
        xml.dom.minidom.parseString(plot.svg(result))


if __name__ == "__main__":
    unittest.main()
