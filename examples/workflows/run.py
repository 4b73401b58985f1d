#!/usr/bin/env python3
"""Workflows on a store of several hosts, simulated on one machine, three ways each: no hints; location only; hints and location.

    python3 examples/workflows/run.py                          the five patterns
    python3 examples/workflows/run.py montage                  a mosaic of the sky (needs Debian's `montage`)
    python3 examples/workflows/run.py pipeline reduce --classes none,replica:2 --link 200

Prints, for each, the bytes between hosts and the time. Dask is installed from PyPI into target/workflows, its own virtual
environment, when it is missing; `--link` (a limit for each host's network, in Mbit/s) and private namespaces need root.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VENV = ROOT / "target" / "workflows"
NO_DASK = 75


def use_dask():
    """Continues with the Python of an environment that has Dask; makes it if it is missing."""
    wanted, marker, python = HERE / "requirements.txt", VENV / "requirements.txt", VENV / "bin" / "python"
    if not (marker.exists() and marker.read_text() == wanted.read_text()):
        print(f"installing Dask into {VENV.relative_to(ROOT)}", file=sys.stderr)
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", wanted], check=True)
        except subprocess.CalledProcessError as error:
            print(f"Dask cannot be had ({error}); needed are Python's venv (Debian: python3-venv) and a package index", file=sys.stderr)
            sys.exit(NO_DASK)
        shutil.copy(wanted, marker)
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "warning")
    if pathlib.Path(sys.prefix) != VENV:
        os.execv(python, [str(python), *sys.argv])


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("workflows", nargs="*", metavar="WORKFLOW", help="pipeline, broadcast, reduce, 'reduce, equal', scatter, gather (default: all these), montage")
    a.add_argument("--binary", default=ROOT / "target" / "release" / "tessera")
    a.add_argument("--classes", default="none", help="classes of redundancy, with commas (default none)")
    a.add_argument("--hosts", type=int, default=8, help="(default 8)")
    a.add_argument("--size", type=int, default=8, help="of a pattern's files, MiB (default 8)")
    a.add_argument("--rounds", type=int, default=1, help="of everything; medians are shown")
    a.add_argument("--link", type=int, metavar="MBIT", help="rate of each host's network, Mbit/s; needs root")
    a.add_argument("--dir", help="for the hosts' disks, e.g. in /dev/shm (default: where temporary files go)")
    a.add_argument("--out", metavar="DIR", help="also into workflows.json, .md and .svg there, beside results of other titles")
    a.add_argument("--title", default="Workflows", help="of this result there")
    a.add_argument("--json", action="store_true", help="one line a run instead of a table")
    args = a.parse_args()
    from patterns import PATTERNS
    args.workflows = args.workflows or list(PATTERNS)
    unknown = [w for w in args.workflows if w not in {*PATTERNS, "montage"}]
    if unknown:
        a.error(f"there is no workflow {unknown[0]!r}; there are {', '.join(PATTERNS)} and montage")
    return args


def one_run(site, client, workflow, way, redundancy, size, seed):
    """Runs the workflow once, and removes its files. Returns the bytes between hosts and the time."""
    from flow import Flow
    name = f"{workflow.split(',')[0]}-{seed}-{way}"
    flow = Flow(site, client, name, way, redundancy, seed)
    before, started = site.figures(), time.monotonic()
    made = workflow_of(workflow)(flow, size)
    seconds, after = time.monotonic() - started, site.figures()
    site.tessera("rm", "-r", f"tess:/{name}")
    crossed = {key: after[key] - before[key] for key in after}
    figures = {"seconds": round(seconds, 3), "bytes": crossed["between_hosts"], "log_bytes": crossed["log"]}
    return {"workflow": workflow, "class": redundancy, "way": way, **figures, "made": made}


def workflow_of(name):
    from patterns import PATTERNS
    if name == "montage":
        from montage import montage
        return montage
    return PATTERNS[name]


def all_runs(args, apart, tell):
    """Every workflow in every class and way, in rounds, so that a slow moment of the machine affects all alike."""
    import distributed
    from flow import WAYS, workers
    from hosts import Site
    runs = []
    for round_ in range(args.rounds):
        for redundancy in args.classes.split(","):
            directory = tempfile.mkdtemp(prefix="tessera-workflows-", dir=args.dir)
            with Site(args.binary, directory, args.hosts, args.link, apart) as site, workers(site) as cluster, distributed.Client(cluster) as client:
                for workflow in args.workflows:
                    turn, made = round_ % len(WAYS), []
                    for way in WAYS[turn:] + WAYS[:turn]:
                        run = one_run(site, client, workflow, way, redundancy, args.size << 20, round_ + 1)
                        made.append(run.pop("made"))
                        runs.append({"round": round_ + 1, **run})
                        tell(runs[-1])
                    site.tessera("gc", "--quiet")
                    if made.count(made[0]) != len(made):
                        raise AssertionError(f"{workflow} made other files in one way than in another: {made}")
    return runs


def add_result(directory, result):
    """Adds the result, beside those of other titles, to `directory`'s workflows.{json,md,svg}."""
    import report
    directory = pathlib.Path(directory)
    kept = directory / "workflows.json"
    others = json.loads(kept.read_text()) if kept.exists() else []
    titles = [other["settings"]["title"] for other in others]
    if result["settings"]["title"] in titles:
        others[titles.index(result["settings"]["title"])] = result
    else:
        others.append(result)
    report.write(others, directory)


def main():
    use_dask()
    from hosts import end_cleanly, enter_namespaces
    apart = enter_namespaces()
    end_cleanly()
    args = arguments()
    if args.link and not apart:
        sys.exit("--link needs root, and unshare, nsenter, ip and tc")
    say = lambda run: print(json.dumps(run), flush=True) if args.json else print(
        f"{run['workflow']}, {run['class']}, {run['way']}: {run['bytes'] / (1 << 20):.1f} MiB, {run['seconds']:.2f} s", file=sys.stderr)
    runs = all_runs(args, apart, say)
    import report
    sys.path.append(str(ROOT / "bench"))
    from benchlib import machine
    settings = {
        "title": args.title, "workflows": args.workflows, "classes": args.classes.split(","), "hosts": args.hosts, "size_mib": args.size,
        "build": pathlib.Path(args.binary).resolve().parent.name, "rounds": args.rounds, "link_mbit": args.link, "namespaces": apart, "disks": machine.file_system(args.dir or tempfile.gettempdir()),
    }
    if not args.json:
        print(report.table(settings, runs))
    if args.out:
        add_result(args.out, {"settings": settings, "machine": machine.describe({}), "runs": runs})


if __name__ == "__main__":
    main()
