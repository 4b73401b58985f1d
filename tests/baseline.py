#!/usr/bin/env python3
"""What of the suites any FUSE file system fails: pjdfstest and fsx on libfuse's passthrough_ll over a local directory, beside which the results of
tests/suites.py are to be read. Run by hand (docs/mount.md has the figures); needs root, a C compiler and Debian's libfuse3-dev.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import suites  # noqa: E402

SOURCE = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c"


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--operations", type=int, default=100_000, help="of fsx, in all")
    args = a.parse_args()
    suites.install()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="tessera-baseline-"))
    scratch.chmod(0o755)  # users without rights test that they have none
    mount, source, binary = scratch / "mnt", scratch / "source", scratch / "passthrough_ll"
    mount.mkdir()
    source.mkdir()
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], capture_output=True, text=True, check=True).stdout.split()
    subprocess.run(["cc", "-O2", "-w", "-o", binary, SOURCE, *flags], check=True)
    words = [binary, "-f", "-o", f"source={source},writeback,allow_other,default_permissions", mount]
    served = subprocess.Popen([str(word) for word in words])
    try:
        while not mount.is_mount():
            if served.poll() is not None:
                raise SystemExit("passthrough_ll did not start")
            time.sleep(0.05)
        suites.pjdfstest(mount, scratch)
        suites.fsx(mount, scratch, args.operations, 4)
    finally:
        subprocess.run(["umount", "--lazy", mount], check=False)
        served.wait(30)
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
