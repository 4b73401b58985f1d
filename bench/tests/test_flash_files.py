"""The text of `make bench-flash-files`."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import flash_files


class FlashFiles(unittest.TestCase):
    def test_layers_and_file_systems_are_compared_by_medians(self):
        def row(system, layer, iops):
            return {"system": system, "layer": layer, "iops": iops, "bytes_s": iops * 4096, "seconds": 1e5 / iops, "reads": 10, "programs": 5, "hits": 0.25, "written": 7, "moved": 0}

        rates = {("ext4", "dftl"): 1000, ("ext4", "cpftl"): 1500, ("btrfs", "dftl"): 800, ("btrfs", "cpftl"): 1000}
        rows = [row(*turn, rate * share) for turn, rate in rates.items() for share in (0.5, 1, 4)]
        text = flash_files.text({"machine": {"cpu": "a CPU", "cores": 2, "kernel": "Linux"}, "load": 1.0, "rounds": 3, "rows": rows})
        self.assertIn("| ext4 | `cpftl` | 6.1 | 1,500 (750–6,000) | 66.7 s | 25.0% | 10 | 5 | 7 |", text)
        self.assertIn("+50 % on ext4 (the paper: +42 %), +25 % on btrfs", text)
        self.assertIn("*ext4 for btrfs*, with `dftl`: +25 %", text)


if __name__ == "__main__":
    unittest.main()
