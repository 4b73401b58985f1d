"""The text of `make bench-flash-serve`."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import flash_serve


class FlashServe(unittest.TestCase):
    def test_rates_are_shares_of_the_null_server_and_waits_beside_what_the_ssd_took(self):
        row = lambda rate: [{"rate": rate, "cpu_us": 2.0}, {"rate": 3 * rate, "cpu_us": 4.0}, {"rate": 2 * rate, "cpu_us": 3.0}]
        text = flash_serve.text({
            "machine": {"cpu": "a CPU", "cores": 2, "kernel": "Linux"},
            "rounds": 3,
            "rates": {"randread": {flash_serve.NULL: row(1000), "ideal": row(750)}},
            "waits": {4096: [{"ssd_us": 25, "emulator": {"p50_us": 39.5, "p99_us": 90.0, "late_ns": {"p50": 1200, "p99": 5600}},
                              "none": {"p50_us": 9.0, "p99_us": 20.0, "late_ns": None}}]},
            "mixed": [{"pattern": "randrw", "size": 4096, "depth": 32, "bytes_s": [160e6, 140e6, 150e6]}],
        })
        self.assertIn("| randread | `ideal` | 1,500 (750–2,250) | 0.75 | 3.0 |", text)
        self.assertIn("| 4,096 | 25 us | 1.2 us | 5.6 us | 39.5 us | 14.5 us | 9.0 us | 90.0 us |", text)
        # Four channels, 0.75 of 25 us and 0.25 of 300 us for a page.
        self.assertIn("| random | 4,096 | 32 | 150.0 (140.0–160.0) | 174.8 | 0.86 | 874 us |", text)


if __name__ == "__main__":
    unittest.main()
