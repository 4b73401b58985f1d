"""Processes: they end with this one, are ended by their id, and their CPU time is read from /proc."""

import json
import os
import select
import signal
import subprocess
import time

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

class ProcessFailed(Exception):
    """A process ended, was silent too long, or printed something unexpected."""


def start(argv, log_path, **options):
    """Starts a process whose output goes to `log_path`."""
    log = open(log_path, "ab")
    try:
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", log)
        return subprocess.Popen([str(a) for a in argv], stderr=log, **options)
    finally:
        log.close()


def stop(process, grace_s=10.0):
    """Sends SIGTERM, and SIGKILL after `grace_s`; returns the exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait(30)


def run(argv, timeout_s=120, both=False, **options):
    """Runs a command to its end. Returns its stdout (with `both`: and stderr). When it fails, raises with both."""
    done = subprocess.run(
        [str(a) for a in argv], timeout=timeout_s, capture_output=True, text=True, errors="replace", **options
    )
    if done.returncode != 0:
        said = (done.stderr + done.stdout).strip()[-2000:]
        raise ProcessFailed(f"{' '.join(map(str, argv))} ended with {done.returncode}: {said}")
    return done.stdout + (done.stderr if both else "")


def read_line(process, buffer, timeout_s):
    """One line from the process' stdout pipe, or ProcessFailed. The caller keeps `buffer`, a bytearray."""
    deadline = time.monotonic() + timeout_s
    fd = process.stdout.fileno()
    while b"\n" not in buffer:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ProcessFailed(f"{process.args[0]} said nothing for {timeout_s} s")
        if select.select([fd], [], [], left)[0]:
            got = os.read(fd, 65536)
            if not got:
                raise ProcessFailed(f"{' '.join(process.args)} ended with {process.wait(10)}; see its log")
            buffer += got
    line, _, rest = bytes(buffer).partition(b"\n")
    buffer[:] = rest
    return line.decode(errors="replace")


def cpu_seconds(pids):
    """User and system time of these processes so far, in seconds. Ended processes count as 0."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as f:
                fields = f.read().rpartition(b")")[2].split()
            total += int(fields[11]) + int(fields[12])
        except (OSError, IndexError):
            pass
    return total / TICKS_PER_SECOND


def machine_cpu_seconds():
    """Busy time of all cores together, in seconds; includes other programs."""
    with open("/proc/stat", "rb") as f:
        user, nice, system, _idle, _wait, irq, softirq, *_ = map(int, f.readline().split()[1:])
    return (user + nice + system + irq + softirq) / TICKS_PER_SECOND


class Driver:
    """The Rust driver (crates/client/examples/bench_store): receives commands, returns facts."""

    def __init__(self, binary, log_path, *words, **variables):
        self.buffer = bytearray()
        environment = {**os.environ, **variables}
        self.process = start([binary, *words], log_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    @property
    def pid(self):
        return self.process.pid

    def ask(self, *words, timeout_s=600):
        """Sends one command; returns its facts as a dict (numbers as floats), raises on `err`."""
        line = " ".join(str(w) for w in words)
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        answer = read_line(self.process, self.buffer, timeout_s)
        kind, _, rest = answer.partition(" ")
        if kind != "ok":
            raise ProcessFailed(f"driver: {line}: {rest}")
        return {key: _number(value) for key, _, value in (w.partition("=") for w in rest.split())}

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
        stop(self.process)


def _number(text):
    try:
        return float(text)
    except ValueError:
        return text


def load_json(text):
    """The first JSON document in a text, or None."""
    try:
        return json.JSONDecoder().raw_decode(text.lstrip())[0]
    except ValueError:
        return None
