#!/usr/bin/env python3
"""Other people's test suites on a mounted store: pjdfstest (POSIX semantics), fsx (random operations on one file), and
common programs (tests/programs.py), these on two mounts.

Starts a store of six nodes and a mount in a scratch directory, runs the suites, and takes everything down. The suites are
installed once under target/suites, at the versions named here. Where there is no FUSE the script runs nothing and says so;
with --require that is a failure if the kernel has FUSE. With --baseline pjdfstest and fsx run on libfuse's passthrough
instead (package libfuse3-dev): its failures are inherent in such a FUSE file system.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import programs  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOLS = ROOT / "target" / "suites"
SUITES = {"fsx": "0.3.2", "pjdfstest": "0.2.2"}
PJDFSTEST_CONFIG = """
[features]
posix_fallocate = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.05
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
"""
# A small file is committed as a whole, a large one through a session that opens when 4 MiB wait. Commits during the run are rare: frequent
# ones would leave no such sessions.
FSX_SHAPES = {
    "small": {"flen": 256 << 10, "opsize": 64 << 10, "weights": {"mapwrite": 1, "close_open": 0.3, "fsync": 0.1, "invalidate": 0.1}},
    "large": {"flen": 40 << 20, "opsize": 6 << 20, "weights": {"mapwrite": 0.03, "close_open": 0.1, "fsync": 0.05, "invalidate": 0.05, "mapread": 0.3, "truncate": 0.3}},
}
# Temporary files of incremental writes have a quarter of it; no large file fits.
SMALL_SPOOL = 16 << 20
PASSTHROUGH = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c"


def can_mount():
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
        return True
    except OSError:
        return False


def install():
    """Installs the suites, unless they are there already."""
    for name, version in SUITES.items():
        marker = TOOLS / f"{name}-{version}"
        if not marker.exists():
            subprocess.run(["cargo", "install", "--quiet", "--root", TOOLS, "--version", version, name], check=True)
            marker.touch()


class Daemon:
    """A child process; `serves` is what it prints on stdout when it serves."""

    def __init__(self, command, log, serves):
        self.log = open(log, "ab")
        self.process = subprocess.Popen([str(w) for w in command], stdout=subprocess.PIPE, stderr=self.log)
        for line in self.process.stdout:
            if serves in line.decode():
                return
        raise SystemExit(f"{' '.join(map(str, command))} did not start; the end of its log:\n{pathlib.Path(log).read_text()[-2000:]}")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=120)


def pjdfstest(mount, scratch):
    """Runs pjdfstest, in which all cases must pass. Returns their number."""
    config = scratch / "pjdfstest.toml"
    config.write_text(PJDFSTEST_CONFIG)
    here = mount / "pjdfstest"
    here.mkdir()
    run = subprocess.run([TOOLS / "bin" / "pjdfstest", "-c", config, "-p", here], capture_output=True, text=True)
    summary = re.search(r"Summary: (\d+) failed, (\d+) skipped, (\d+) passed", run.stdout)
    if not summary:
        raise SystemExit(f"pjdfstest printed no summary:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    failed, skipped, passed = map(int, summary.groups())
    for line in run.stdout.splitlines():
        if "FAILED" in line:
            print(f"pjdfstest: {line}")
    print(f"pjdfstest: {passed} passed, {failed} failed, {skipped} do not apply (read-only or second file systems, link limits)")
    return failed == 0 and passed > 300


def spool(mount):
    """The state of the mount's spool."""
    return json.loads(os.getxattr(mount, "user.tessera.mount"))["spool"]


def fsx_config(scratch, shape):
    """A file that tells fsx the sizes of files and operations, and how often each operation is drawn."""
    wanted = FSX_SHAPES[shape]
    weights = {"read": 1, "write": 1, "mapread": 1, "truncate": 1, "sendfile": 0.1, "copy_file_range": 0.1, **wanted["weights"]}
    config = scratch / f"fsx-{shape}.toml"
    lines = [f"flen = {wanted['flen']}", "[opsize]", f"max = {wanted['opsize']}", "[weights]", *(f"{op} = {weight:.2f}" for op, weight in weights.items())]
    config.write_text("\n".join(lines) + "\n")
    return config


def fsx(mount, scratch, operations, files, mode=None, shape="small"):
    """Random operations on several files in parallel, in one write mode (None: the file system has none). Every read and the final
    content must be right. Returns that and what went through the spool.
    """
    place = mount / f"{mode}-{shape}-{mount.name}"
    place.mkdir()
    if mode:
        os.setxattr(place, "user.tessera.write-mode", mode.encode())
    started, before, runs = time.monotonic(), spool(mount) if mode else {}, []
    for seed in range(1, files + 1):
        command = [TOOLS / "bin" / "fsx", "-f", fsx_config(scratch, shape), "-N", operations // files, "-S", seed, "-P", scratch, place / f"fsx{seed}"]
        runs.append((seed, subprocess.Popen([str(w) for w in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)))
    good = True
    for seed, run in runs:
        output, _ = run.communicate()
        if run.returncode != 0 or "A-OK" not in output:
            good = False
            print(f"fsx: seed {seed} failed:\n{output[-3000:]}")
    deadline = time.monotonic() + 60
    while mode and spool(mount)["waiting_files"] and time.monotonic() < deadline:
        time.sleep(0.05)  # The file closed last is pushed after that.
    after = spool(mount) if mode else {}
    through = {what: after[what] - before[what] for what in ("pushed", "segments", "fallbacks") if mode}
    took = time.monotonic() - started
    verdict = "all right" if good else "WRONG"
    print(f"fsx: {operations} operations on {files} {shape} files, {mode or 'no mode'}, {verdict} ({took:.0f} s; spool: {through})", flush=True)
    return good, through


def fsx_modes(mount, second, scratch, operations, files):
    """The same total of small operations, most by sliding window; large ones in every mode, with room in the spool and without."""
    good = [fsx(mount, scratch, operations - 2 * (operations // 5), files, "sliding-window")[0]]
    for mode in ["incremental", "complete-local"]:
        good.append(fsx(mount, scratch, operations // 5, 2, mode)[0])
    large = max(operations // 100, 40)
    for place, mode, proof in [
        (mount, "sliding-window", None), (second, "incremental", "segments"), (mount, "complete-local", "pushed"), (second, "complete-local", "fallbacks"),
    ]:
        right, through = fsx(place, scratch, large, 2, mode, "large")
        if proof and not through[proof]:
            print(f"fsx: {mode} did not reach the spool: no {proof}")
        good.append(right and (not proof or through[proof] > 0))
    return all(good)


def baseline(args, mount, scratch):
    """pjdfstest and fsx on a plain passthrough."""
    (scratch / "source").mkdir()
    (scratch / "source").chmod(0o755)
    binary = scratch / "passthrough_ll"
    flags = programs.run("pkg-config", "--cflags", "--libs", "fuse3").split()
    programs.run("cc", "-O2", "-o", binary, PASSTHROUGH, *flags)
    options = f"source={scratch / 'source'},writeback,allow_other,default_permissions"
    passthrough = subprocess.Popen([binary, "-f", "-o", options, mount])
    try:
        while not mount.is_mount():
            if passthrough.poll() is not None:
                raise SystemExit("passthrough_ll ended")
            time.sleep(0.05)
        pjdfstest(mount, scratch)
        fsx(mount, scratch, args.operations, args.files)
    finally:
        subprocess.run(["umount", "--lazy", mount], check=False)
        passthrough.wait(30)
    shutil.rmtree(scratch)


def run_suites(args, mount, second, scratch):
    """Runs the requested suites; returns whether all succeeded."""
    wanted = [args.only] if args.only else ["pjdfstest", "fsx", "programs"]
    good = True
    if "pjdfstest" in wanted and os.geteuid() != 0:
        print("pjdfstest: skipped, it needs root")
    elif "pjdfstest" in wanted:
        good = pjdfstest(mount, scratch)
    if "fsx" in wanted:
        good = fsx_modes(mount, second, scratch, args.operations, args.files) and good
    if "programs" in wanted:
        good = programs.run_all(mount, second, scratch, args.require) and good
    return good


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--binary", default=ROOT / "target" / "debug" / "tessera")
    a.add_argument("--operations", type=int, default=100_000, help="of fsx, in all")
    a.add_argument("--files", type=int, default=4, help="of fsx, side by side")
    a.add_argument("--only", choices=["pjdfstest", "fsx", "programs"], help="one of them")
    a.add_argument("--baseline", action="store_true", help="on a passthrough instead")
    a.add_argument("--require", action="store_true", help="fail where there is no FUSE")
    args = a.parse_args()
    if not can_mount():
        has_fuse = "fuse" in pathlib.Path("/proc/filesystems").read_text().split()
        print(f"skipped: /dev/fuse cannot be opened{', though the kernel has FUSE' if has_fuse else ''}")
        sys.exit(1 if args.require and has_fuse else 0)
    install()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="tessera-suites-"))
    mount, second = scratch / "mnt", scratch / "mnt2"
    mount.mkdir()
    second.mkdir()
    scratch.chmod(0o755)  # users without rights test that they have none
    if args.baseline:
        return baseline(args, mount, scratch)
    started = time.monotonic()
    store = Daemon([args.binary, "up", "--nodes", 6, "--dir", scratch / "store", "--listen", "127.0.0.1:0"], scratch / "up.log", "Ctrl-C")
    good = False
    try:
        manager = json.loads((scratch / "store" / "cluster.json").read_text())["managers"][0]["listen"][0]
        places = [(mount, "mount.log"), (second, "mount2.log")]
        command = lambda at: [args.binary, "mount", at, "--manager", manager, "--spool", scratch / f"{at.name}.spool"]
        small = ["--spool-size", SMALL_SPOOL]
        mounts = [Daemon(command(at) + (small if at == second else []), scratch / log, "mounted") for at, log in places]
        try:
            good = run_suites(args, mount, second, scratch)
        finally:
            good = all([mounted.stop() == 0 for mounted in mounts]) and good
    finally:
        store.stop()
        print(f"took {time.monotonic() - started:.0f} s")
        if good:
            shutil.rmtree(scratch)
        else:
            print(f"left as it was: {scratch}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
