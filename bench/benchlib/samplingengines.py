"""The systems of `make bench-sampling` behind one call: a question, how much of the data, and what it took."""

import json
import os
import subprocess
import time
import venv

from . import procs
from .samplingdata import DISKS

TOP = 20
QUESTIONS = {"words": "text", "links": "links", "rate": "requests", "pages": "requests", "regions": "accesses"}
# What `tessera sample` is asked, and what it is told of the files.
TESSERA = {
    "words": ["--count-by", "word"],
    "links": ["--count-by", "target", "--delimiter", "\t"],
    "rate": ["--sum", "count", "--by", "hour"],
    "pages": ["--sum", "count", "--by", "page"],
    "regions": ["--count-by", "region"],
}
# What `tessera query` is asked. It estimates nothing of the words of lines, because SQL has them as lists.
SQL = {
    "links": "SELECT target AS key, count(*) AS value FROM '{}' GROUP BY 1 ORDER BY 2 DESC LIMIT {}",
    "rate": "SELECT hour AS key, sum(count) AS value FROM '{}' GROUP BY 1 ORDER BY 2 DESC LIMIT {}",
    "pages": "SELECT page AS key, sum(count) AS value FROM '{}' GROUP BY 1 ORDER BY 2 DESC LIMIT {}",
    "regions": "SELECT region AS key, count(*) AS value FROM '{}' GROUP BY 1 ORDER BY 2 DESC LIMIT {}",
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


def has(root, question):
    """Whether there is data for a question: that of traces is made only where traces are."""
    return os.path.isdir(os.path.join(root, QUESTIONS[question]))


def all_bytes(root):
    return {data: sum(os.path.getsize(path) for path in files(root, q)) for q, data in QUESTIONS.items() if has(root, q)}


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


class Command:
    """A process for each question; its start is timed."""

    def __init__(self, binary):
        self.binary = binary
        self.version = procs.run([binary, "--version"]).split()[1]

    def run(self, *words):
        """What the command says in JSON, and what it took."""
        before, started = os.times(), time.monotonic()
        said = json.loads(procs.run([self.binary, *words, "--json"], timeout_s=3600))
        seconds, after = time.monotonic() - started, os.times()
        cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
        return said, {"seconds": seconds, "cpu_s": cpu_s, "read_bytes": said["read_bytes"], "reached": said["reached"]}

    def close(self):
        pass


class Tessera(Command):
    """`tessera sample`."""

    name = "tessera"

    def ask(self, root, question, *how):
        said, took = self.run("sample", *disks(root, question), "--path-is-disk", *TESSERA[question], *how, "--top", str(TOP))
        groups = {group["key"]: group["estimate"] for group in said["groups"]}
        claims = {group["key"]: (group["low"], group["high"]) for group in said["groups"] if group["claimed"]}
        return {**took, "groups": groups, "claims": claims, "total": said["total"]["estimate"], "units_share": said["units"] / said["all_units"]}


class Query(Command):
    """`tessera query`."""

    name = "query"

    def ask(self, root, question, *how):
        pattern = os.path.join(os.path.abspath(root), QUESTIONS[question], "*", "*.csv")
        delimiter = ("--delimiter", "\t") if question == "links" else ()
        said, took = self.run("query", SQL[question].format(pattern, TOP), *delimiter, *how)
        rows = {str(row["key"]): row for row in said["rows"]}
        claims = {key: (row["value_lo"], row["value_hi"]) for key, row in rows.items() if row.get("value_lo") is not None}
        return {**took, "groups": {key: float(row["value"]) for key, row in rows.items()}, "claims": claims, "total": None}
