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
            "waits": [{"waited_p50_us": 70.0, "waited_p99_us": 90.0, "ssd_us": 55.5}],
        })
        self.assertIn("| randread | `ideal` | 1,500 (750–2,250) | 0.75 | 3.0 |", text)
        self.assertIn("| 55.5 us | 70.0 us | 90.0 us | 14.5 us |", text)


if __name__ == "__main__":
    unittest.main()
