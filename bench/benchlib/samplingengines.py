"""The three systems of `make bench-sampling` behind one call: a question, how much of the data, and what it took."""

import json
import os
import subprocess
import time
import venv

from . import procs
from .samplingdata import DATA, DISKS

TOP = 20
QUESTIONS = {"words": "text", "links": "links", "rate": "requests", "pages": "requests"}
# What `tessera sample` is asked, and what it is told of the files.
TESSERA = {
    "words": ["--count-by", "word"],
    "links": ["--count-by", "target", "--delimiter", "\t"],
    "rate": ["--sum", "count", "--by", "hour"],
    "pages": ["--sum", "count", "--by", "page"],
}
PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "samplingpeer.py")
PACKAGES = ("duckdb", "pyspark", "numpy", "pyarrow")


def python(folder):
    """A Python with the peers, made in `folder` if it is not there."""
    path = os.path.join(folder, "bin", "python")
    if subprocess.run([path, "-c", "import " + ",".join(PACKAGES)], capture_output=True).returncode if os.path.exists(path) else True:
        venv.create(folder, with_pip=True)
        subprocess.run([path, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return path


def disks(root, question):
    return [os.path.join(root, QUESTIONS[question], f"disk{i}") for i in range(DISKS)]


def files(root, question):
    return sorted(os.path.join(folder, name) for folder in disks(root, question) for name in os.listdir(folder))


def all_bytes(root):
    return {data: sum(os.path.getsize(path) for path in files(root, q)) for q, data in QUESTIONS.items() if data in DATA}


def descendants(pid):
    """A process and all below it."""
    found, parents = [pid], {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as f:
                parents.setdefault(int(f.read().rpartition(b")")[2].split()[1]), []).append(int(name))
        except (OSError, IndexError):
            pass
    for parent in found:
        found += parents.get(parent, [])
    return found


def bytes_read(pids):
    """What processes read so far by system calls, from the page cache or from disks."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/io") as f:
                total += int(f.readline().split()[1])
        except (OSError, IndexError, ValueError):
            pass
    return total


class Peer:
    """DuckDB or Spark in a process that goes on; its start is not timed."""

    def __init__(self, name, python_path, log_path):
        self.name, self.buffer = name, bytearray()
        self.process = procs.start([python_path, PEER, name], log_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.version = json.loads(procs.read_line(self.process, self.buffer, 120))["version"]

    def ask(self, root, question, sample=None, ratio=None):
        pids = descendants(self.process.pid)
        cpu_s, read = procs.cpu_seconds(pids), bytes_read(pids)
        asked = {"question": question, "files": files(root, question), "sample": sample, "ratio": ratio}
        self.process.stdin.write(json.dumps(asked).encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(procs.read_line(self.process, self.buffer, 3600))
        return {**answer, "cpu_s": procs.cpu_seconds(pids) - cpu_s, "read_bytes": bytes_read(pids) - read}

    def close(self):
        # Spark's Java process ends with its Python.
        self.process.stdin.close()
        procs.stop(self.process, 30)


class Tessera:
    """`tessera sample`, a process for each question; its start is timed."""

    name = "tessera"

    def __init__(self, binary):
        self.binary = binary
        self.version = procs.run([binary, "--version"]).split()[1]

    def ask(self, root, question, *how):
        words = ["sample", *disks(root, question), "--path-is-disk", *TESSERA[question], *how, "--top", str(TOP), "--json"]
        before, started = os.times(), time.monotonic()
        said = json.loads(procs.run([self.binary, *words], timeout_s=3600))
        seconds, after = time.monotonic() - started, os.times()
        cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
        groups = {group["key"]: group["estimate"] for group in said["groups"]}
        claims = {group["key"]: (group["low"], group["high"]) for group in said["groups"] if group["claimed"]}
        return {"seconds": seconds, "cpu_s": cpu_s, "read_bytes": said["read_bytes"], "groups": groups, "claims": claims,
                "total": said["total"]["estimate"], "reached": said["reached"], "units_share": said["units"] / said["all_units"]}

    def close(self):
        pass

