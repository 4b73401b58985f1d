"""Flips 64 bytes in fragments of m members of stored files, then reads the files: does the store notice?

Six files, each damaged in another pair of the six members (bricks), each read once through a client with empty caches.
A row holds how many reads were right, wrong or failed, whether the damage was reported, and whether it was repaired.
"""

import mmap
import os
import random
import time

from . import machine, procs
from .cluster import Cluster, healthy
from .gluster import Gluster

FILES = 6
MEMBERS = 6
FLIP_BYTES = 64
FILE_BYTES = 8 << 20
STEP_BYTES = 64 << 10


def contents():
    """The files' bytes; random, so that a slice of 64 bytes is unique."""
    return [random.Random(number).randbytes(FILE_BYTES) for number in range(FILES)]


def victims(number):
    """The pair of members in which file `number` is damaged."""
    return {number % MEMBERS, (number + 1) % MEMBERS}


def flip(path, offset):
    """Inverts FLIP_BYTES bytes of a file without the store's knowledge, and drops them from the page cache."""
    fd = os.open(path, os.O_RDWR)
    try:
        old = os.pread(fd, FLIP_BYTES, offset)
        os.pwrite(fd, bytes(b ^ 0xFF for b in old), offset)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def slices(data):
    """Short pieces of a file at regular offsets, to search for on disks."""
    return [data[at:at + FLIP_BYTES] for at in range(STEP_BYTES // 2, FILE_BYTES, STEP_BYTES)]


def find(directory, needles):
    """Where each needle lies in the files below `directory`: list of (path, offset)."""
    found = []
    for base, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(base, name)
            if not os.path.isfile(path) or os.path.getsize(path) == 0:
                continue
            with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as content:
                found += [(path, at) for at in map(content.find, needles) if at >= 0]
    return found


def read_all(fetch):
    """Reads every file; counts right, wrong and failed reads, and keeps the messages."""
    counts, said = {"right": 0, "wrong": 0, "refused": 0}, ""
    for number, data in enumerate(contents()):
        try:
            got, words = fetch(number)
            counts["right" if got == data else "wrong"] += 1
            said += words
        except (procs.ProcessFailed, OSError) as error:
            counts["refused"] += 1
            said += str(error)
    return counts, said


def tessera(config, directory):
    """The code is systematic, so slices of the file itself lead to its data fragments on disk."""
    cluster = Cluster(config.binary, os.path.join(directory, "tessera"), MEMBERS)
    local = os.path.join(cluster.directory, "local")
    try:
        cluster.start_all()
        flips, needles = [], []
        for number, data in enumerate(contents()):
            with open(local, "wb") as f:
                f.write(data)
            cluster.cli("put", "-p", "redundancy=ec:4+2", local, f"tess:/f{number}")
            needles += slices(data)
            for member in victims(number):
                flips += find(cluster.disk_directory(cluster.node_names[member]), slices(data))
        stored = count_whole(cluster, needles)
        for path, at in flips:
            flip(path, at)

        def fetch(number):
            words = cluster.cli("get", f"tess:/f{number}", local, both=True)
            with open(local, "rb") as f:
                return f.read(), words

        counts, said = read_all(fetch)
        return {"system": "tessera", "flips": len(flips), **counts, "reported": _reported(cluster, said),
                "repaired": _repaired(cluster, needles, stored)}
    finally:
        cluster.close(keep=config.keep)


def count_whole(cluster, needles):
    """Number of slices that are undamaged on some disk."""
    return sum(len(set(find(cluster.disk_directory(n), needles))) for n in cluster.node_names)


def _reported(cluster, said):
    """Whether a person can see the damage: in the command's output, in status, or in a daemon's log."""
    places = {"command": said}
    counters = cluster.status().get("counters", {})
    found = {name: n for name, n in counters.items() if name.startswith("bad_fragments") and n}
    for name in cluster.processes:
        with open(cluster.log(name), errors="replace") as f:
            place = "manager's log" if name == "manager" else "nodes' logs"
            places[place] = places.get(place, "") + f.read()
    words = ("corrupt", "checksum", "damaged")
    where = [place for place, text in places.items() if any(w in text.lower() for w in words)]
    if found:
        where.append("status: " + ", ".join(f"{n} {name}" for name, n in sorted(found.items())))
    return "yes (" + "; ".join(where) + ")" if where else "no"


def _repaired(cluster, needles, stored, timeout_s=60):
    """Whether all slices are whole on the disks again and status reports every chunk as whole."""
    begun = time.monotonic()
    try:
        times = []
        for step in (lambda: cluster.cli("scrub", "--quiet", timeout_s=timeout_s),
                     lambda: cluster.cli("repair", "--quiet", timeout_s=timeout_s),
                     lambda: cluster.wait_for(healthy, "full redundancy", timeout_s)):
            step()
            times.append(f"{time.monotonic() - begun:.1f}")
        missing = stored - count_whole(cluster, needles)
        if missing > 0:
            return f"no: {missing} of {stored} pieces are still damaged"
        return f"yes; scrubbed, repaired, whole after {', '.join(times)} s"
    except procs.ProcessFailed as error:
        return f"no: {str(error)[:200]}"


def gluster(config, directory):
    """Damages and reads GlusterFS: the same number of flips in the same pairs of bricks."""
    peer = Gluster(os.path.join(directory, "gluster"))
    path = lambda number: os.path.join(peer.mount_point, f"f{number}")
    try:
        for number, data in enumerate(contents()):
            with open(path(number), "wb") as f:
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
        peer.remount()
        flips = 0
        for number in range(FILES):
            for member in victims(number):
                for at in range(STEP_BYTES // 8, FILE_BYTES // 4, STEP_BYTES):
                    flip(os.path.join(peer.bricks[member], f"f{number}"), at)
                    flips += 1

        def fetch(number):
            with open(path(number), "rb") as f:
                return f.read(), ""

        counts, _ = read_all(fetch)
        reported = "yes" if counts["refused"] or peer.heal_pending() else "no"
        peer.heal_all()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and peer.heal_pending() > 0:
            time.sleep(0.5)
        peer.remount()
        after, _ = read_all(fetch)
        still = after["wrong"] + after["refused"]
        return {"system": "gluster", "flips": flips, **counts, "reported": reported,
                "repaired": f"no: {still} files still wrong after a full heal" if still else "yes"}
    finally:
        peer.close()
