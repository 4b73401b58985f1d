"""Ratios are taken within a round, and shares of images leave holes out."""

import os
import sys
import unittest
import xml.dom.minidom

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from benchlib import likeness  # noqa: E402


def row(number, system, rate):
    return {"round": number, "mbit": 0, "workload": "similar", "system": system, "chunking": "fixed:1M", "rate": rate, "bytes": 1e9, "new_bytes": 5e8,
            "stored_bytes": 75e7, "cpu_s_per_gb": 1.0, "cpu_s": {"client": 0.5, "manager": 0.1, "node": 0.4}}


def find(image, in_last):
    return {"image": image, "cut": "fixed:1M", "bytes": 1000, "chunks": 10, "zero_page_bytes": 100, "zero_chunk_bytes": 200, "in_last": in_last, "in_all": in_last}


class Likeness(unittest.TestCase):
    def test_a_result_is_told(self):
        # The machine is three times as fast in the second round; the ratio is the same.
        rows = [row(n, system, rate * n) for n in (1, 3) for system, rate in (("off", 1e8), ("cpu", 2e8), ("oracle", 3e8))]
        machine = {"cpu": "c", "cores": 2, "memory_gib": 1, "kernel": "k"}
        config = {"networks": [0], "files": 8, "file_mib": 48, "images": 2, "every_s": 20, "write_images": 2, "rounds": 2}
        result = {"rows": rows, "finds": [find(0, 0), find(1, 400)], "machine": machine, "config": config, "load_before": 0.0, "load_after": 0.0, "problems": []}
        text = likeness.markdown(result)
        self.assertIn("| similar | dedup on the CPU | fixed:1M | 400 (200–600) | 2.00 (2.00–2.00) |  |", text)
        self.assertIn("| similar | dedup, oracle | fixed:1M | 600 (300–900) | 3.00 (3.00–3.00) | 1.50 (1.50–1.50) |", text)
        self.assertIn("| fixed:1M | 0 KiB | 10 | 50.0 | 50.0 | 20.0 |", text)
        xml.dom.minidom.parseString(likeness.svg(result))

    def test_cuts_are_named(self):
        self.assertEqual(likeness.name_of("segments/65536+cdc:16K..256K"), "cdc:16K..256K, at segments of 64 KiB and more")


if __name__ == "__main__":
    unittest.main()
