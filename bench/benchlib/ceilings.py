"""Limits of the machine: fio on the file system at hand, and memory copies."""

import json
import os

from . import machine, procs


def _fio(directory, size_bytes, *options):
    path = os.path.join(directory, "fio.tmp")
    out = procs.run(
        ["fio", "--name=job", f"--filename={path}", f"--size={size_bytes}", "--bs=1M", "--ioengine=psync",
         "--output-format=json", *options],
        timeout_s=300,
    )
    # fio may print notes before the document.
    return json.loads(out[out.index("{"):])["jobs"][0], path


def fio_write(directory, size_bytes):
    """Sequential buffered write of one file with a sync at its end: bytes a second."""
    job, path = _fio(directory, size_bytes, "--rw=write", "--end_fsync=1", "--fallocate=none")
    os.unlink(path)
    return job["write"]["io_bytes"] / (job["write"]["runtime"] / 1e3)


def fio_read(directory, size_bytes):
    """Sequential buffered read of a file that is not in the page cache (fio drops it): bytes a second."""
    _, path = _fio(directory, size_bytes, "--rw=write", "--end_fsync=1", "--fallocate=none")
    try:
        machine.evict(directory)
        job, _ = _fio(directory, size_bytes, "--rw=read")
    finally:
        os.unlink(path)
    return job["read"]["io_bytes"] / (job["read"]["runtime"] / 1e3)


def memcpy(driver):
    """One thread copies the prepared gigabyte to another place three times: bytes a second."""
    done = driver.ask("memcpy", 3)
    return done["bytes"] / done["seconds"]
