#!/usr/bin/env python3
"""The accelerator on ARM: lints tessera-accel for AArch64, builds it, and runs its unit tests in qemu's user emulation.

No other build sees the NEON leaves. What qemu says of bytes holds on hardware; it says nothing of speed. The kernels of
GPUs are left out: the host's own test run executes them. Where a cross compiler, Rust's library for ARM or qemu is missing
nothing is run, and said so; with --require they are installed, and that they cannot be is a failure.
"""

import argparse
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = "aarch64-unknown-linux-gnu"
PREFIX = pathlib.Path("/usr/aarch64-linux-gnu")  # Debian's headers and libraries for programs of that target.
COMPILER, QEMU = "aarch64-linux-gnu-gcc", "qemu-aarch64"
LEFT_OUT = ["runtime::tests::kernels"]


def packages():
    """Debian's packages that are needed and not here."""
    have = {
        "gcc-aarch64-linux-gnu": shutil.which(COMPILER),
        "libc6-dev-arm64-cross": (PREFIX / "include" / "stdio.h").exists(),
        "qemu-user": shutil.which(QEMU),
    }
    return [package for package, found in have.items() if not found]


def has_std():
    """Whether the Rust toolchain has its library for the target."""
    said = subprocess.run(["rustc", "--print", "target-libdir", "--target", TARGET], capture_output=True, text=True)
    return said.returncode == 0 and any(pathlib.Path(said.stdout.strip()).glob("libstd-*"))


def install():
    """What is missing, as far as it can be had."""
    lacking = packages()
    if lacking and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-qq"])
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *lacking])
    if not has_std() and shutil.which("rustup"):
        subprocess.run(["rustup", "target", "add", TARGET])


def missing():
    """In words; empty if all is here."""
    words = [f"Debian's {package}" for package in packages()]
    return words if has_std() else [*words, f"Rust's library for {TARGET} (rustup target add {TARGET})"]


def cargo(*words):
    """Whether it went well."""
    name = TARGET.upper().replace("-", "_")
    tools = {f"CARGO_TARGET_{name}_LINKER": COMPILER, f"CARGO_TARGET_{name}_RUNNER": f"{QEMU} -L {PREFIX}"}
    return subprocess.run(["cargo", *words], cwd=ROOT, env=os.environ | tools).returncode == 0


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--require", action="store_true", help="install what is missing; fail if it cannot be")
    args = a.parse_args()
    if platform.machine() in ("aarch64", "arm64"):
        print("arm: nothing to emulate, this is one: cargo test has run the NEON leaves")
        return 0
    if args.require:
        install()
    lacking = missing()
    if lacking:
        print(f"arm: {'FAILED' if args.require else 'SKIPPED'}: the NEON leaves are not tested without {', '.join(lacking)}")
        return 1 if args.require else 0
    started = time.monotonic()
    crate = ["--target", TARGET, "-p", "tessera-accel", "--lib", "--quiet"]
    skips = [word for name in LEFT_OUT for word in ("--skip", name)]
    good = cargo("clippy", *crate, "--", "-D", "warnings") and cargo("test", *crate, "--", *skips)
    print(f"arm: {'all right' if good else 'WRONG'}, in {time.monotonic() - started:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
