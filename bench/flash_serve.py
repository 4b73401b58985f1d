#!/usr/bin/env python3
"""How fast the emulated SSD answers (`make bench-flash-serve`).

Without delays: requests a second of `tessera flash serve` beside a server that does nothing (qemu-nbd's null device), with fio over a
Unix socket, one server after the other in each round. With delays: what a client waits for a read at depth 1, beside what the
simulated SSD took. Writes bench/results/flash_serve.md and flash_serve.json. Needs fio with its nbd engine, and qemu-nbd.
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
WRITTEN = 4 << 20
ROUNDS, SECONDS, DEPTH = 5, 2, 32


def start(words, directory, name):
    """Starts a server that listens on the socket `name`; returns its process and the socket."""
    socket = os.path.join(directory, name)
    process = procs.start([word.replace("SOCKET", socket) for word in words], f"{socket}.log")
    for _ in range(200):
        if os.path.exists(socket):
            return process, socket
        time.sleep(0.05)
    raise procs.ProcessFailed(f"{words[0]} does not listen at {socket}")


def fio(socket, pattern, depth, *more, size=SIZE * 3 // 4):
    """The result of a job of 4 KiB requests."""
    words = ["fio", "--name=job", "--ioengine=nbd", "--thread=1", f"--uri=nbd+unix:///?socket={socket}", f"--rw={pattern}", "--bs=4k"]
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


def waits(binary, directory, rounds):
    """Medians in microseconds of what the client waits and of what the SSD took, for random reads at depth 1."""
    words = [binary, *SERVE, "--ftl", "ideal", "--timing", "emulator", "--nbd", "unix:SOCKET"]
    found = []
    for number in range(rounds):
        process, socket = start(words, directory, f"w{number}")
        try:
            # So few writes that the median of all requests is a read. Each read finds the SSD idle.
            fio(socket, "write", 32, size=WRITTEN)
            job = fio(socket, "randread", 1, "--time_based", f"--runtime={SECONDS}", "--percentile_list=50:99", size=WRITTEN)
            stat = json.loads(procs.run([binary, "flash", "stat", f"{socket}.control", "--json"]))
        finally:
            procs.stop(process)
        waited = job["read"]["clat_ns"]["percentile"]
        found.append({
            "waited_p50_us": waited["50.000000"] / 1e3,
            "waited_p99_us": waited["99.000000"] / 1e3,
            "ssd_us": stat["response_ns"]["p50"] / 1e3,
        })
    return found


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
    lines += ["", "## With delays: random reads of 4 KiB at depth 1, `--timing emulator`", ""]
    middle = lambda key: statistics.median(row[key] for row in result["waits"])
    ssd, p50, p99 = middle("ssd_us"), middle("waited_p50_us"), middle("waited_p99_us")
    lines += report.table(
        ["the SSD takes", "the client waits, p50", "p99", "p50 later by"],
        [[f"{ssd:.1f} us", f"{p50:.1f} us", f"{p99:.1f} us", f"{p50 - ssd:.1f} us"]],
    )
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
    with open(os.path.join(config.out, "flash_serve.json"), "w") as out:
        json.dump(result, out, indent=1)
        out.write("\n")
    with open(os.path.join(config.out, "flash_serve.md"), "w") as out:
        out.write(text(result))
    print(text(result))


if __name__ == "__main__":
    main()
