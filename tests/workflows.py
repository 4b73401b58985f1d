#!/usr/bin/env python3
"""Hints keep a pipeline's bytes at home: examples/workflows on three hosts with small files, by Dask, on mounts; so does a sample that
is read where its pieces are: examples/sampling.

Also checks the arithmetic that the results are compared with. Where there is no FUSE, or Dask cannot be installed, the script runs
nothing and says so; with --require either is a failure (no FUSE only if the kernel has it).
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from suites import can_mount  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples" / "workflows"
sys.path.append(str(EXAMPLES))
NO_DASK = 75
MIB = 1 << 20


def arithmetic():
    """Checks numbers that can be computed by hand."""
    from arithmetic import possible, read, written
    close = lambda a, b: abs(a - b) < 1e-9
    assert close(written("none", "spread", 8), 7 / 8) and written("none", "local", 8) == 0
    assert close(written("replica:2", "spread", 8), 2 * 7 / 8) and written("replica:2", "local", 8) == 1
    assert close(read("replica:2", False, 8), 6 / 8) and read("replica:2", True, 8) == 0
    assert close(written("auto:4+2", "local", 8), 5 / 4) and read("auto:4+2", True, 8) == 3 / 4
    assert close(written("none", "there", 8), 7 / 8) and written("replica:2", "there", 8) == 1
    assert possible("pipeline", "none", 3) == 1 and possible("montage", "none", 3) is None


def pipeline(binary, hosts):
    """Runs the pipeline in three ways; returns whether hints saved what they should."""
    command = [sys.executable, EXAMPLES / "run.py", "pipeline", "--binary", binary, "--hosts", hosts, "--size", 1, "--json"]
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if run.returncode:
        print(run.stderr[-4000:])
        return run.returncode
    crossed = {line["way"]: line["bytes"] for line in map(json.loads, run.stdout.splitlines())}
    print("workflows: pipeline on 3 hosts: " + ", ".join(f"{way} {bytes_ / MIB:.1f} MiB" for way, bytes_ in crossed.items()) + " between hosts")
    # Without hints two thirds of the written bytes cross, whichever host reads them; four files of 1 MiB are written on each host.
    good = crossed["none"] > 4 * hosts * MIB / 3 and crossed["hints"] <= crossed["none"] / 10
    print(f"workflows: {'hints saved at least 90 %' if good else 'WRONG: hints did not save 90 %'}")
    return 0 if good else 1


def sampled(binary, hosts):
    """Counts words from a sample; returns whether intervals hold the truth, and no piece crosses to another host."""
    script = EXAMPLES.parent / "sampling" / "wordcount.py"
    command = [sys.executable, script, "--binary", binary, "--hosts", hosts, "--size", 4, "--unit", 16, "--ratio", 0.2, "--top", 20, "--json"]
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if run.returncode:
        print(run.stderr[-4000:])
        return run.returncode
    result = json.loads(run.stdout)
    held = sum(row["low"] <= row["exact"] <= row["high"] for row in result["words"])
    near, far = result["bytes_between_hosts"].values()
    print(f"sampling: {held} of {len(result['words'])} intervals hold; {near / MIB:.1f} MiB between hosts where the pieces are, {far / MIB:.1f} one host on")
    # Each host's words and the sample are the same in each run.
    good = held >= 17 and near <= far / 10
    print(f"sampling: {'as it should be' if good else 'WRONG: too few intervals hold, or pieces crossed'}")
    return 0 if good else 1


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--binary", default=ROOT / "target" / "debug" / "tessera")
    a.add_argument("--require", action="store_true", help="fail where there is no FUSE, or no Dask")
    args = a.parse_args()
    arithmetic()
    if not can_mount():
        has_fuse = "fuse" in pathlib.Path("/proc/filesystems").read_text().split()
        print("workflows: skipped: /dev/fuse cannot be opened")
        sys.exit(1 if args.require and has_fuse else 0)
    started = time.monotonic()
    code = pipeline(args.binary, 3) or sampled(args.binary, 3)
    if code == NO_DASK and not args.require:
        print("workflows: skipped: Dask cannot be installed here")
        code = 0
    print(f"took {time.monotonic() - started:.0f} s")
    sys.exit(code)


if __name__ == "__main__":
    main()
