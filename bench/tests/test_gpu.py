"""The report of a GPU names the card, keeps bounds beside rates, and says so when nothing was a GPU."""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from benchlib import gputext  # noqa: E402


def result(device):
    row = {"primitive": "hash", "cpu_bytes_per_s": 20e9, "device_bytes_per_s": 40e9, "device_roof_bytes_per_s": 50e9,
           "resident_bytes_per_s": 160e9, "resident_roof_bytes_per_s": None, "auto": "hash of 1 bytes goes to a device: it is done sooner there"}
    write = {"workload": "similar", "system": device, "cpu_s_per_gb": {"client": 0.5, "manager": 0.1, "node": 1.0}}
    return {
        "card": "a card", "machine": {"cpu": "c", "cores": 2, "isa": ["avx2"], "memory_gib": 1}, "load_before": 0.0, "load_after": 0.5,
        "config": {"device": device, "files": 8, "file_mib": 256, "rounds": 3, "sizes": ["1M", "4M"]},
        "kernels": [{"size": "4M", "rows": [row], "transfers": {"to the device": 50e9, "from the device": None}}],
        "parts": [{"runtime": "no overlap", "devices": 1, "bytes_per_s": 15e9, "buffers_made": 3, "buffers_reused": 4}],
        "rows": [{**write, "rate": rate} for rate in (1e9, 3e9, 2e9)], "problems": ["it broke"],
    }


class Gpu(unittest.TestCase):
    def test_a_result_is_told(self):
        text = gputext.text(result("cuda:0"))
        self.assertIn("# a card beside the CPU", text)
        self.assertIn("to the device 50.0, from the device –.", text)
        self.assertIn("| hash | 20.0 | 40.0 | 2.00 | 50.0 | 80 % | 160.0 | – | GPU |", text)
        self.assertIn("| no overlap | 1 | 15.0 | 3 | 4 |", text)
        self.assertIn("| similar | cuda:0 | 2000 | 1000–3000 | 0.50 | 0.10 | 1.00 |", text)
        self.assertIn("- it broke", text)
        self.assertNotIn("emulated", text)

    def test_an_emulated_device_is_never_taken_for_a_gpu(self):
        self.assertIn("no figure says anything about a GPU", gputext.text(result("emulated")))


if __name__ == "__main__":
    unittest.main()
