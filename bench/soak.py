#!/usr/bin/env python3
"""Runs many seeds of the simulator and adds what came out to bench/results/soak.md.

Each family runs on `--jobs` processes of one thread; a failure is kept as the line that names its seed and the broken promise.
"""

import argparse
import datetime
import pathlib
import re
import resource
import secrets
import subprocess
import typing
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEEDS = {"survivable": 100_000, "beyond": 25_000, "differing": 10_000, "rotten": 10_000, "slow": 10_000, "rotting": 5_000, "mounts": 50_000}
LAST_LINE = re.compile(r"(\d+) seeds, (\d+) broken, (\d+) events")
# A process runs so many seeds: if it dies, only they are missing.
BATCH = 500


def run(binary, family, start, count):
    """Runs seeds in a process; returns (seeds that ended, lines that name a broken promise)."""
    command = [str(binary), str(start), str(count)]
    done = subprocess.run(command, env={"SIM_FAMILY": family}, capture_output=True, text=True)
    broken = [line for line in done.stdout.splitlines() if line.startswith("seed ")]
    last = LAST_LINE.search(done.stdout)
    if done.returncode != 0 or not last:
        why = done.stderr.strip().splitlines()[:1]
        broken.append(f"seeds {start} to {start + count - 1}: the process ended with {done.returncode}: {why}")
        return 0, broken
    return int(last[1]), broken


def cpu_seconds():
    """CPU time of the processes that have ended: other programs on the machine do not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Run(typing.NamedTuple):
    """What a family did in one run."""

    date: str
    commit: str
    family: str
    seeds: int
    start: int
    failures: int
    seeds_a_second: float

    def row(self):
        return (
            f"| {self.date} | {self.commit} | {self.family} | {self.seeds:,} | {self.start} | {self.failures} "
            f"| {self.seeds_a_second:.1f} |"
        )

    @classmethod
    def of_row(cls, row):
        date, commit, family, seeds, start, failures, rate = (cell.strip() for cell in row.strip().strip("|").split("|"))
        return cls(date, commit, family, int(seeds.replace(",", "")), int(start), int(failures), float(rate))


def soak(binary, family, start, count, jobs, commit):
    """Runs a family; returns what it did and its failures."""
    cpu_before = cpu_seconds()
    batches = [(at, min(BATCH, start + count - at)) for at in range(start, start + count, BATCH)]
    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(lambda batch: run(binary, family, *batch), batches))
    cpu = max(cpu_seconds() - cpu_before, 0.01)
    failures = [f"{commit} {family} {line}" for _, broken in results for line in broken]
    ended = sum(ended for ended, _ in results)
    return Run(str(datetime.date.today()), commit, family, ended, start, len(failures), ended / cpu), failures


def read(text):
    """The runs and the failures of an earlier report."""
    lines = text.splitlines()
    runs = [Run.of_row(line) for line in lines if line.startswith("| 20")]
    return runs, [line[3:-1] for line in lines if line.startswith("- `")]


def report(runs, failures):
    """The text of soak.md."""
    families = list(dict.fromkeys(run.family for run in runs))
    total = lambda family: sum(run.seeds for run in runs if run.family == family)
    broken = lambda family: sum(run.failures for run in runs if run.family == family)
    lines = [
        "# Simulator seeds",
        "",
        f"`make soak` adds its runs to this file. {sum(map(total, families)):,} seeds in all; a run begins at a seed that it draws.",
        "",
        "| family | seeds | failures |",
        "|---|---|---|",
        *(f"| {family} | {total(family):,} | {broken(family)} |" for family in families),
        "",
        *(["Failures:", "", *(f"- `{line}`" for line in failures)] if failures else ["No promise was broken."]),
        "",
        "## Runs",
        "",
        "| date | commit | family | seeds | from seed | failures | seeds a second of CPU |",
        "|---|---|---|---|---|---|---|",
        *(run.row() for run in runs),
    ]
    return "\n".join(lines) + "\n"


def commit_of(root):
    """The commit, and whether files differ from it."""
    git = lambda *args: subprocess.run(["git", *args], cwd=root, capture_output=True, text=True).stdout.strip()
    return git("rev-parse", "--short", "HEAD") + (" and changes" if git("status", "--porcelain", "-uno") else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default=ROOT / "target/release/examples/seeds")
    parser.add_argument("--from", dest="start", type=int, help="first seed; default: a fresh one")
    parser.add_argument("--share", type=float, default=1.0, help="this share of the usual number of seeds")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/soak.md")
    args = parser.parse_args()
    start = args.start or 1_000_000 + secrets.randbelow(10**12)
    commit = commit_of(ROOT)
    runs, failures = read(args.out.read_text()) if args.out.exists() else ([], [])
    failures_before = len(failures)
    for family, count in SEEDS.items():
        done, failed = soak(args.binary, family, start, max(1, int(count * args.share)), args.jobs, commit)
        runs.append(done)
        failures += failed
        args.out.write_text(report(runs, failures))
        print(done.row(), flush=True)
    raise SystemExit(1 if len(failures) > failures_before else 0)


if __name__ == "__main__":
    main()
