#!/usr/bin/env python3
"""How fast the emulated SSD answers (`make bench-flash-serve`).

Without delays: requests a second of `tessera flash serve` beside a server that does nothing (qemu-nbd's null device), with fio over a
Unix socket, one server after the other in each round. With delays: what a client waits for a read at depth 1, beside what it waits
without delays and what the simulated SSD took; and the bytes a second of 75 % reads, beside what its four channels allow. Writes
bench/results/flash_serve.md and flash_serve.json. Needs fio with its nbd engine, and qemu-nbd.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from benchlib import machine, procs, report  # noqa: E402

SIZE = 256 << 20
SERVE = ["flash", "serve", "--capacity", str(SIZE), "--over-provisioning", "60%"]
LAYERS = ("ideal", "dftl", "cpftl")
NULL = "null server"
PATTERNS = ("randread", "randwrite")
ROUNDS, SECONDS, DEPTH = 5, 2, 32
# With delays: table 3.6 of the CPFTL paper.
PAGE, CHANNELS, READ_US, PROGRAM_US, READS = 4096, 4, 25, 300, 0.75
SIZES = (512, 4096, 16384, 65536, 262144)
MIXED = {"randrw": "random", "rw": "sequential"}


def start(words, directory, name):
    """Starts a server that listens on the socket `name`; returns its process and the socket."""
    socket = os.path.join(directory, name)
    process = procs.start([word.replace("SOCKET", socket) for word in words], f"{socket}.log")
    for _ in range(200):
        if os.path.exists(socket):
            return process, socket
        time.sleep(0.05)
    raise procs.ProcessFailed(f"{words[0]} does not listen at {socket}")


def fio(socket, pattern, depth, *more, size=SIZE * 3 // 4, block=PAGE):
    """The result of a job."""
    words = ["fio", "--name=job", "--ioengine=nbd", "--thread=1", f"--uri=nbd+unix:///?socket={socket}", f"--rw={pattern}", f"--bs={block}"]
    words += [f"--size={size}", f"--iodepth={depth}", "--output-format=json", *more]
    said = procs.run(words)
    # Notes may come before the document.
    return json.loads(said[said.index("{"):])["jobs"][0]


def rates(binary, directory, rounds):
    """Requests a second and CPU microseconds of the server for each, by pattern and server, in each round."""
    null = ["qemu-nbd", "-t", "-e", "8", "--image-opts", f"driver=null-co,size={SIZE}", "--socket=SOCKET"]
    commands = {NULL: null} | {ftl: [binary, *SERVE, "--ftl", ftl, "--nbd", "unix:SOCKET"] for ftl in LAYERS}
    servers = {name: start(words, directory, f"s{number}") for number, (name, words) in enumerate(commands.items())}
    found = {pattern: {name: [] for name in servers} for pattern in PATTERNS}
    try:
        for pattern in PATTERNS:
            for _ in range(rounds):
                for name, (process, socket) in servers.items():
                    before = procs.cpu_seconds([process.pid])
                    job = fio(socket, pattern, DEPTH, "--time_based", f"--runtime={SECONDS}")
                    cpu_s = procs.cpu_seconds([process.pid]) - before
                    done = job["read"]["total_ios"] + job["write"]["total_ios"]
                    rate = job["read"]["iops"] + job["write"]["iops"]
                    found[pattern][name].append({"rate": rate, "cpu_us": cpu_s * 1e6 / done})
    finally:
        for process, _ in servers.values():
            procs.stop(process)
    return found


def timed(binary, directory, name, timing, *more):
    """A server with these delays."""
    return start([binary, *SERVE, "--ftl", "ideal", "--timing", timing, "--nbd", "unix:SOCKET", *more], directory, name)


def written(binary, directory, name, timing, *more):
    """A server on which every page that jobs use was written."""
    process, socket = timed(binary, directory, name, timing, *more)
    fio(socket, "write", DEPTH, block=262144)
    return process, socket


def waits(binary, directory, rounds):
    """What the client waits for random reads at depth 1, by size, in each round: with delays and without; and how late the server is.

    A server of each job has only that job's reads in its figures."""
    backing = ["--backing", os.path.join(directory, "backing")]
    procs.stop(written(binary, directory, "w-fill", "none", *backing)[0])
    found = {size: [] for size in SIZES}
    job = ["--time_based", f"--runtime={SECONDS}", "--lat_percentiles=1", "--percentile_list=50:99"]
    for number in range(rounds):
        for size in SIZES:
            row = {"ssd_us": -(-size // (PAGE * CHANNELS)) * READ_US}
            for timing in ("emulator", "none"):
                process, socket = timed(binary, directory, f"w-{number}-{size}-{timing}", timing, *backing)
                try:
                    waited = fio(socket, "randread", 1, *job, block=size)["read"]["lat_ns"]["percentile"]
                    late = json.loads(procs.run([binary, "flash", "stat", f"{socket}.control", "--json"])).get("late_ns")
                finally:
                    procs.stop(process)
                row[timing] = {"p50_us": waited["50.000000"] / 1e3, "p99_us": waited["99.000000"] / 1e3, "late_ns": late}
            found[size].append(row)
    return found


def allowed(size):
    """Bytes a second that the channels allow. A write of a part reads the page first."""
    write_us = PROGRAM_US + (READ_US if size < PAGE else 0)
    page_us = READS * READ_US + (1 - READS) * write_us
    return CHANNELS * min(size, PAGE) / page_us * 1e6


def mixed(binary, directory, rounds):
    """Bytes a second of 75 % reads with delays, by pattern, size and depth, in each round."""
    found = []
    job = ["--time_based", f"--runtime={SECONDS}", f"--rwmixread={READS * 100:.0f}"]
    for pattern in MIXED:
        for size in SIZES:
            for depth in (16, 32):
                each = []
                for number in range(rounds):
                    process, socket = written(binary, directory, f"m-{pattern}-{size}-{depth}-{number}", "emulator")
                    try:
                        done = fio(socket, pattern, depth, *job, block=size)
                    finally:
                        procs.stop(process)
                    each.append((done["read"]["iops"] + done["write"]["iops"]) * size)
                found.append({"pattern": pattern, "size": size, "depth": depth, "bytes_s": each})
    return found


FIGURE_3_11 = """The mean response is depth × bytes / throughput (Little's law). The paper compares its emulator with a commercial SSD that it does not name, over thirty minutes each, at a depth that
it does not state; of its figure only the text is known.

- *Throughput* grows with the request (the paper: so does that of both of its SSDs), but only up to 16 KiB: then all four channels are busy at these depths. The paper's grows further, so its depth is
  probably 1, where only requests of several pages keep several channels busy.
- *Response time* at random hardly changes up to 4 KiB, and grows rapidly from there (the paper: slowly up to 64 KiB, rapidly above). At a depth of 16 requests already wait for each other at 4 KiB. At depth 1
  (the table above) a read waits equally long up to 16 KiB, twice as long at 64 KiB and five times at 256 KiB, as in the paper.
- *Within 10 % of a commercial SSD at 4 KiB* (the paper): there is none here. Ours is compared with what its four channels allow instead: within 5 % at 4 KiB."""


def text(result):
    """The text of flash_serve.md."""
    m = result["machine"]
    lines = [
        "# The emulated SSD as a server",
        "",
        f"Written by `make bench-flash-serve`. {m['cpu']}, {m['cores']} cores, {m['kernel']}. Medians and, in brackets, the range of "
        f"{result['rounds']} rounds.",
        "",
        f"## Without delays: requests of 4 KiB a second, depth {DEPTH}, Unix socket",
        "",
    ]
    rows = []
    for pattern, servers in result["rates"].items():
        base = statistics.median(row["rate"] for row in servers[NULL])
        for name, found in servers.items():
            each = [row["rate"] for row in found]
            rate, cpu = statistics.median(each), statistics.median(row["cpu_us"] for row in found)
            shown = name if name == NULL else f"`{name}`"
            rows.append([pattern, shown, f"{rate:,.0f} ({min(each):,.0f}–{max(each):,.0f})", f"{rate / base:.2f}", f"{cpu:.1f}"])
    lines += report.table(["pattern", "server", "requests/s", "of the null server", "server's CPU us each"], rows)
    lines += ["", "## With delays: random reads at depth 1, `--timing emulator`", ""]
    rows = []
    for size, found in result["waits"].items():
        middle = lambda timing, key: statistics.median(row[timing][key] for row in found)
        ssd, late = found[0]["ssd_us"], statistics.median(row["emulator"]["p50_us"] - row["ssd_us"] for row in found)
        leaves = [f"{statistics.median(row['emulator']['late_ns'][key] for row in found) / 1e3:.1f} us" for key in ("p50", "p99")]
        rows.append([f"{int(size):,}", f"{ssd} us", *leaves, f"{middle('emulator', 'p50_us'):.1f} us", f"{late:.1f} us",
                     f"{middle('none', 'p50_us'):.1f} us", f"{middle('emulator', 'p99_us'):.1f} us"])
    lines += report.table(["bytes", "the SSD takes", "the reply leaves later by, p50", "p99", "the client waits, p50", "later by",
                           "without delays it waits", "p99 with delays"], rows)
    lines += ["", "A page of 4 KiB takes 25 us, and four channels read as many at once. `tessera flash stat` shows how long after that the reply leaves. "
              "The rest of what the client waits is the round trip, as without delays: an idle machine takes long to wake a thread on each side "
              "(a busy one, some 5 us). With delays the server stays awake for 100 us after a reply, so the client alone has to be woken.", ""]
    lines += ["## With delays: 75 % reads (figure 3.11 of the CPFTL paper)", ""]
    rows = []
    for row in result["mixed"]:
        most, rate = allowed(row["size"]), statistics.median(row["bytes_s"])
        shown = f"{rate / 1e6:,.1f} ({min(row['bytes_s']) / 1e6:,.1f}–{max(row['bytes_s']) / 1e6:,.1f})"
        rows.append([MIXED[row["pattern"]], f"{row['size']:,}", str(row["depth"]), shown, f"{most / 1e6:,.1f}", f"{rate / most:.2f}",
                     f"{row['depth'] * row['size'] / rate * 1e6:,.0f} us"])
    lines += report.table(["order", "bytes", "depth", "MB/s", "four channels allow", "ratio", "mean response"], rows)
    lines += ["", *FIGURE_3_11.splitlines()]
    lines += [
        "",
        "A channel programs a page in 300 us, so reads queue behind writes; where they fall on one channel the others wait for the next "
        "request: with N requests at once on M channels at random, N / (N + M − 1) of the time is used if service times vary as "
        "exponentially (0.84 at depth 16, 0.91 at 32). Sequential requests of 512 bytes: 16 of them lie in three pages, a write of a part reads its page "
        "first, and the writes of a page follow each other, so fewer than four channels have work. A write buffer (`--write-buffer`) joins them.",
    ]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--binary", default=os.path.join(HERE, "..", "target", "release", "tessera"))
    parser.add_argument("--out", default=os.path.join(HERE, "results"))
    config = parser.parse_args()
    binary = os.path.abspath(config.binary)
    result = {"machine": machine.describe({}), "load": machine.load_average(), "rounds": config.rounds}
    with tempfile.TemporaryDirectory() as directory:
        result["rates"] = rates(binary, directory, config.rounds)
        result["waits"] = waits(binary, directory, config.rounds)
        result["mixed"] = mixed(binary, directory, max(1, config.rounds // 2))
    report.save(config.out, "flash_serve", result, text(result))
    print(text(result))


if __name__ == "__main__":
    main()
