"""The files of `make bench-sampling`, as eight directories that stand for disks. Runs where numpy and pyarrow are.

    text      UTF-8 files of Debian's packages of sources, put together in files of 64 MB. Packages follow each other, so files differ.
    links     pairs of pages (source, target), tab between them; targets have Zipf's skew.
    requests  Wikimedia's form of page views: hour, project, page, count, bytes. Days have a rhythm, pages have Zipf's skew.
    accesses  requests of block traces, if there are any: trace, region of 1 MiB, bytes. The traces follow each other again and again.

    python3 bench/benchlib/samplingdata.py DIR GIGABYTES TESSERA TRACES
"""

import os
import shutil
import subprocess
import sys
import tarfile

DISKS = 8
FILE_BYTES = 64_000_000
PACKAGES = ["linux-source-6.1", "gcc-12-source", "binutils-source", "glibc-source", "gcc-11-source", "gdb-source", "golang-1.19-src", "rust-src",
            "fpc-source-3.2.2", "libboost1.81-dev", "rust-doc"]
PAGES = 2_000_000
HOURS = 24 * 28
DATA = ("text", "links", "requests", "accesses")
SECTOR_BYTES = 512
REGION_BYTES = 1 << 20


def path_of(root, data, number):
    folder = os.path.join(root, data, f"disk{number % DISKS}")
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, f"{number:04}.{'txt' if data == 'text' else 'csv'}")


def members(archive):
    """The contents of a tar file's regular files."""
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isreg():
                yield tar.extractfile(member).read()


def is_text(contents):
    try:
        contents.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in contents and max(map(len, contents.split(b"\n"))) < 1_000_000


def sources(cache):
    """The contents of all files in the packages and in the archives inside of them."""
    os.makedirs(cache, exist_ok=True)
    for package in PACKAGES:
        folder = os.path.join(cache, package)
        if not os.path.isdir(folder):
            subprocess.run(["apt-get", "-qq", "download", package], cwd=cache, check=True, stderr=subprocess.DEVNULL)
            deb = next(name for name in os.listdir(cache) if name.startswith(package + "_") and name.endswith(".deb"))
            subprocess.run(["dpkg-deb", "-x", os.path.join(cache, deb), folder], check=True)
        for parent, _, names in sorted(os.walk(folder)):
            for path in (os.path.join(parent, name) for name in sorted(names)):
                if ".tar." in path:
                    yield from members(path)
                elif os.path.isfile(path) and not os.path.islink(path):
                    with open(path, "rb") as f:
                        yield f.read()


def text(root, size):
    number, written, out = 0, 0, None
    for contents in filter(is_text, sources(os.path.join(root, "packages"))):
        # DuckDB reads lines as CSV with a delimiter that no line may have.
        contents = contents.replace(b"\x01", b" ")
        if out is None:
            out = open(path_of(root, "text", number), "wb")
        out.write(contents if contents.endswith(b"\n") else contents + b"\n")
        written += len(contents)
        if out.tell() >= FILE_BYTES:
            out.close()
            out, number = None, number + 1
        if written >= size:
            out and out.close()
            return
    raise SystemExit(f"the packages have {written / 1e9:.1f} GB of text, not {size / 1e9:.1f}")


class Zipf:
    """Ranks below `count` with chances 1 / (rank + 1)^exponent."""

    def __init__(self, numpy, count, exponent):
        chances = 1 / numpy.arange(1, count + 1) ** exponent
        self.bounds = numpy.cumsum(chances / chances.sum())
        self.numpy = numpy

    def draw(self, random, n):
        return self.numpy.minimum(self.numpy.searchsorted(self.bounds, random.random(n)), len(self.bounds) - 1)


def tables(data, size):
    """Tables of one file each, until `size` bytes are written; the caller says how many were."""
    import numpy
    import pyarrow

    random = numpy.random.default_rng(19)
    pages = pyarrow.array([f"Page_{i * 2654435761 % 2**32:08x}" for i in range(PAGES)])
    projects = pyarrow.array(["en", "de", "fr", "ja", "es", "ru", "commons.m", "en.m"])
    take = lambda names, at: names.take(pyarrow.array(at))
    target, page = Zipf(numpy, PAGES, 1.1), Zipf(numpy, PAGES, 0.9)
    number = 0
    while True:
        if data == "links":
            rows = FILE_BYTES // 28
            yield pyarrow.table({"source": take(pages, random.integers(0, PAGES, rows)),
                                 "target": take(pages, target.draw(random, rows))})
        else:
            rows = FILE_BYTES // 44
            # A file is of some hours, as log files are; so files differ in hours and in load.
            hours = (number * 6 + numpy.sort(random.integers(0, 6, rows))) % HOURS
            count = 1 + random.poisson(3 + 2 * numpy.sin(hours * numpy.pi / 12))
            yield pyarrow.table({"hour": hours, "project": take(projects, random.integers(0, 8, rows)),
                                 "page": take(pages, page.draw(random, rows)), "count": count,
                                 "bytes": count * random.integers(2_000, 90_000, rows)})
        number += 1


def generated(root, data, size):
    from pyarrow import csv

    options = csv.WriteOptions(delimiter="\t" if data == "links" else ",", quoting_style="none")
    written = 0
    for number, table in enumerate(tables(data, size)):
        path = path_of(root, data, number)
        csv.write_csv(table, path, options)
        written += os.path.getsize(path)
        if written >= size:
            return


def trace_rows(binary, path):
    """A row for each request of a trace: trace, region, bytes. The command reads every format."""
    name = os.path.basename(path).partition(".")[0]
    said = subprocess.run([binary, "flash", "trace", "convert", path, "--to", "ssdsim"], check=True, capture_output=True, text=True).stdout
    for line in said.splitlines():
        _, device, sector, sectors, _ = line.split()
        yield f"{name},{name}/{device}/{int(sector) * SECTOR_BYTES // REGION_BYTES},{int(sectors) * SECTOR_BYTES}\n"


def accesses(root, size, binary, traces):
    """Files of whole traces, in turn, of which each begins with another one."""
    parts = ["".join(trace_rows(binary, os.path.join(traces, name))).encode() for name in trace_names(traces)]
    number, written = 0, 0
    while written < size:
        with open(path_of(root, "accesses", number), "wb") as out:
            out.write(b"trace,region,bytes\n")
            turn = number
            while out.tell() < FILE_BYTES:
                out.write(parts[turn % len(parts)])
                turn += 1
            written += out.tell()
        number += 1


def trace_names(traces):
    return sorted(name for name in os.listdir(traces) if not name.endswith(".md")) if os.path.isdir(traces) else []


def remove(root, data):
    """Removes files of another size, or of a run that did not end: what is measured is all that lies there."""
    for name in os.listdir(root):
        if name.partition(".")[0] == data and name.partition(".")[2].isdigit():
            os.remove(os.path.join(root, name))
    shutil.rmtree(os.path.join(root, data), ignore_errors=True)


def make(root, size, binary, traces):
    """Makes what is not there yet in this size."""
    for data in DATA:
        done = os.path.join(root, f"{data}.{size}")
        if os.path.exists(done) or data == "accesses" and not trace_names(traces):
            continue
        print(f"making {data}", file=sys.stderr, flush=True)
        remove(root, data)
        if data == "text":
            text(root, size)
        elif data == "accesses":
            accesses(root, size, binary, traces)
        else:
            generated(root, data, size)
        open(done, "w").close()


if __name__ == "__main__":
    make(sys.argv[1], int(float(sys.argv[2]) * 1e9), *sys.argv[3:])
