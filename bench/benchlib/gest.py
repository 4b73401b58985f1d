"""Gest's comparison: coding against copies at equal fault tolerance.

On eight nodes `ec:(8-m)+m` or m+1 copies tolerate m failures. The paper's last experiment varies m from 2 to 6
(so (6:2), (5:3), (4:4), (3:5), (2:6)) and finds coding up to 1.82 times as fast, at m = 6.
"""

import os

from .cluster import Cluster
from .workloads import Meter

NODES = 8


def compare(config, number, directory, driver):
    """One round over all m: rows with bytes stored and the rates of writing and reading."""
    rows = []
    for m in range(2, 7):
        schemes = [("ec", f"ec:{NODES - m}+{m}"), ("replica", f"replica:{m + 1}")]
        if number % 2:
            schemes.reverse()
        for kind, redundancy in schemes:
            cluster = Cluster(config.binary, os.path.join(directory, "gest"), NODES)
            try:
                cluster.start_all()
                rows.append({"round": number, "m": m, "kind": kind, "redundancy": redundancy,
                             **_one(config, cluster, driver, redundancy, number * 100 + m)})
            finally:
                cluster.close()
    return rows


def _one(config, cluster, driver, redundancy, seed):
    meter = Meter(driver, cluster.pids)
    driver.ask("prepare", config.gest_bytes, 900_000 + seed)
    driver.ask("connect", cluster.address)
    driver.ask("mkdir", "tess:/d", f"redundancy={redundancy}")
    empty = cluster.stored_bytes()
    write = meter.measure("write", "tess:/d/f")
    stored = cluster.stored_bytes() - empty
    driver.ask("connect", cluster.address)
    read = meter.measure("take", "tess:/d/f")
    driver.ask("read", "tess:/d/f")
    wrong = driver.ask("verify")["wrong_bytes"]
    driver.ask("disconnect")
    total = config.gest_bytes
    return {"stored_bytes": stored, "write": write["rate"], "read": read["rate"], "wrong_bytes": wrong,
            "both": 2 * total / (write["seconds"] + read["seconds"]),
            "write_cpu_s_per_gb": write["cpu_s_per_gb"], "read_cpu_s_per_gb": read["cpu_s_per_gb"]}
