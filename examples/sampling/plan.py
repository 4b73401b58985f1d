"""A sample of files in the store, planned on one machine and read on many: ApproxSSD's partitions, with hosts in the place of disks.

A *piece* is a stretch of a file that one host holds. The plan draws the same number of pieces from each host, in random order; a task
on each host reads its own, and gives one result for each piece, from which `estimate.py` estimates. Nothing here knows Dask: `Plan.tasks` says what to run
where.
"""

import json
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """Bytes `offset` to `offset + length` of the file `path` (below the store's root), which lie on `host`."""
    path: str
    host: str
    offset: int
    length: int


def pieces(site, paths, unit):
    """All pieces of files in the store, of `unit` bytes or less; those that no single host holds go to the host that holds most of their file."""
    found = []
    words = site.tessera("locate", "--extents", "--json", *(f"tess:/{path}" for path in paths))
    for path, located in zip(paths, map(json.loads, words.splitlines())):
        most = max(located["hosts"], key=lambda host: (located["hosts"][host], host))
        for extent in located["extents"]:
            start, end = extent["offset"], extent["offset"] + extent["len_bytes"]
            hosts = {fragment["host"] for fragment in extent.get("fragments", [])}
            host = hosts.pop() if len(hosts) == 1 else most
            found += [Piece(path, host, at, min(unit, end - at)) for at in range(start, end, unit)]
    return found


class Plan:
    """A sample of `ratio` of all pieces, equally many of each host, all where a host has no more."""

    def __init__(self, all_pieces, ratio, seed):
        self.of_hosts = {}
        for piece in all_pieces:
            self.of_hosts.setdefault(piece.host, []).append(piece)
        share = max(2, round(len(all_pieces) * ratio / len(self.of_hosts)))
        draw = random.Random(seed)
        self.drawn = {host: draw.sample(own, min(share, len(own))) for host, own in sorted(self.of_hosts.items())}

    def tasks(self):
        """For each host what it reads."""
        return self.drawn.items()

    def strata(self, results):
        """For each host the number of all its pieces, and the results of those that were drawn. `results` are by host, in the order of `tasks`."""
        return [(len(self.of_hosts[host]), results[host]) for host in self.drawn]


def records(root, piece):
    """The lines that belong to a piece: those behind a line break in it, and the first line of a file. Reads on until the last one ends."""
    with open(root / piece.path, "rb") as file:
        file.seek(piece.offset)
        text = file.read(piece.length)
        text += file.readline() if len(text) == piece.length else b""
    if piece.offset:
        text = text.partition(b"\n")[2] if b"\n" in text[:piece.length] else b""
    return text.splitlines()
