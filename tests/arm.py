#!/usr/bin/env python3
"""ARM: lints tessera-accel and tessera-hashgpu for AArch64, builds them, and runs their unit tests in qemu's user emulation.

No other build compiles the NEON leaves. Equal bytes in qemu are equal bytes on hardware; qemu says nothing about speed.
GPU kernels are skipped: the host's own test run executes them. Without a cross compiler, Rust's library for ARM or qemu
the script runs nothing and says so. With --require it installs them, and fails if it cannot.
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
PACKAGES = ["tessera-accel", "tessera-hashgpu"]
SKIPPED = ["runtime::tests::kernels"]


def packages():
    """Debian's packages that are needed and missing."""
    have = {
        "gcc-aarch64-linux-gnu": shutil.which(COMPILER),
        "libc6-dev-arm64-cross": (PREFIX / "include" / "stdio.h").exists(),
        "qemu-user": shutil.which(QEMU),
    }
    return [package for package, found in have.items() if not found]


def has_std():
    """Whether the Rust toolchain has the library for the target."""
    result = subprocess.run(["rustc", "--print", "target-libdir", "--target", TARGET], capture_output=True, text=True)
    return result.returncode == 0 and any(pathlib.Path(result.stdout.strip()).glob("libstd-*"))


def install():
    """Installs what is missing, if it is available."""
    absent = packages()
    if absent and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-qq"])
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *absent])
    if not has_std() and shutil.which("rustup"):
        subprocess.run(["rustup", "target", "add", TARGET])


def missing():
    """A text that names what is missing; empty if nothing is."""
    missing = [f"Debian's {package}" for package in packages()]
    return missing if has_std() else [*missing, f"Rust's library for {TARGET} (rustup target add {TARGET})"]


def cargo(*arguments):
    """Runs cargo for the target. Returns whether it succeeded."""
    name = TARGET.upper().replace("-", "_")
    tools = {f"CARGO_TARGET_{name}_LINKER": COMPILER, f"CARGO_TARGET_{name}_RUNNER": f"{QEMU} -L {PREFIX}"}
    return subprocess.run(["cargo", *arguments], cwd=ROOT, env=os.environ | tools).returncode == 0


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--require", action="store_true", help="install what is missing; fail if that is not possible")
    args = a.parse_args()
    if platform.machine() in ("aarch64", "arm64"):
        print("arm: this host is ARM, so cargo test has already run the NEON leaves")
        return 0
    if args.require:
        install()
    absent = missing()
    if absent:
        print(f"arm: {'FAILED' if args.require else 'SKIPPED'}: the NEON leaves are not tested without {', '.join(absent)}")
        return 1 if args.require else 0
    started = time.monotonic()
    crate = ["--target", TARGET, *(word for name in PACKAGES for word in ("-p", name)), "--lib", "--quiet"]
    skips = [word for name in SKIPPED for word in ("--skip", name)]
    good = cargo("clippy", *crate, "--", "-D", "warnings") and cargo("test", *crate, "--", *skips)
    print(f"arm: {'ok' if good else 'FAILED'}, in {time.monotonic() - started:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
