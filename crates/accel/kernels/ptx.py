#!/usr/bin/env python3
"""Builds and checks kernels.ptx, without a CUDA toolkit and without a GPU.

    ptx.py build    compile kernels.cu to kernels.ptx with NVRTC, and write kernels.sums
    ptx.py check    what `make test` runs: kernels.sums fits the files here (always); a fresh compilation gives the
                    same bytes, and ptxas finds registers for every kernel (when the wheels can be had; otherwise
                    the line that says so is printed, and that part passes)

NVRTC and ptxas come from NVIDIA's wheels on PyPI, pinned by version and digest below, and are kept in the build
directory. kernels.sums can be read by `sha256sum -c` too.
"""

import ctypes
import hashlib
import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PTX = HERE / "kernels.ptx"
SUMS = HERE / "kernels.sums"
OPTIONS = ["--gpu-architecture=compute_75", "--std=c++14"]
CARDS = ["sm_75", "sm_80", "sm_90"]
WHEELS = {
    "nvidia-cuda-nvrtc-cu12": ("12.1.105", "339b385f50c309763ca65456ec75e17bbefcbbf2893f462cb8b90584cd27a1c2"),
    "nvidia-cuda-nvcc-cu12": ("12.1.105", "a0712a05ffd57d9f017580ffcc808b207f7f4ef7a5ca8ac1312318b153739a18"),
}


class Unavailable(Exception):
    """A wheel cannot be had here: no network, no pip, another kind of machine."""


def sources():
    """The files that kernels.ptx is compiled from, by name."""
    return sorted(p for p in HERE.glob("*") if p.suffix in (".cu", ".h"))


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wheel(package):
    """The directory a pinned wheel is unpacked in, fetched first if need be."""
    version, digest = WHEELS[package]
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Unavailable(f"the pinned {package} is for Linux on x86_64")
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[2] / "target"))
    unpacked = target / "cuda" / f"{package}-{version}"
    if (unpacked / "complete").exists():
        return unpacked
    download = target / "cuda" / "wheels"
    download.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
           "--only-binary", ":all:", "--timeout", "20", "--retries", "1", "-d", str(download), f"{package}=={version}"]
    try:
        done = subprocess.run(pip, capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"pip: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"{package}=={version}: {(done.stderr.strip() or 'pip failed').splitlines()[-1]}")
    file = next(download.glob(package.replace("-", "_") + f"-{version}-*.whl"))
    if sha256(file) != digest:
        sys.exit(f"{file.name} has sha256 {sha256(file)}, pinned is {digest}; delete it and see who sent it")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(unpacked)
    (unpacked / "complete").touch()
    return unpacked


def compile_ptx():
    """kernels.cu as PTX, compiled now."""
    nvrtc = ctypes.CDLL(str(wheel("nvidia-cuda-nvrtc-cu12") / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"))
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    # Line endings and positions of the headers are part of no output; names are, so they are relative.
    headers = [p for p in sources() if p.name != "kernels.cu"]
    texts = (ctypes.c_char_p * len(headers))(*[p.read_bytes() for p in headers])
    names = (ctypes.c_char_p * len(headers))(*[p.name.encode() for p in headers])
    program = ctypes.c_void_p()
    text = (HERE / "kernels.cu").read_bytes()

    def call(name, *arguments):
        return getattr(nvrtc, name)(*arguments)

    def must(code, what):
        if code != 0:
            sys.exit(f"NVRTC: {what}: {nvrtc.nvrtcGetErrorString(code).decode()}")

    must(call("nvrtcCreateProgram", ctypes.byref(program), text, b"kernels.cu", len(headers), texts, names), "create")
    options = (ctypes.c_char_p * len(OPTIONS))(*[o.encode() for o in OPTIONS])
    failed = call("nvrtcCompileProgram", program, len(OPTIONS), options)
    size = ctypes.c_size_t()
    must(call("nvrtcGetProgramLogSize", program, ctypes.byref(size)), "log")
    log = ctypes.create_string_buffer(size.value)
    must(call("nvrtcGetProgramLog", program, log), "log")
    if log.value.strip():
        print(log.value.decode(), file=sys.stderr)
    must(failed, "compile")
    must(call("nvrtcGetPTXSize", program, ctypes.byref(size)), "size")
    out = ctypes.create_string_buffer(size.value)
    must(call("nvrtcGetPTX", program, out), "get")
    return out.value.rstrip(b"\0").rstrip() + b"\n"


def registers():
    """What ptxas says of kernels.ptx: [(card, kernel, registers, bytes of shared memory, bytes spilled)]."""
    ptxas = wheel("nvidia-cuda-nvcc-cu12") / "nvidia/cuda_nvcc/bin/ptxas"
    ptxas.chmod(0o755)
    found = []
    for card in CARDS:
        command = [str(ptxas), "-v", f"-arch={card}", "-o", os.devnull, str(PTX)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"ptxas {card}: {done.stderr}")
        parts = re.split(r"Compiling entry function '(\w+)'", done.stderr)[1:]
        for name, text in zip(parts[::2], parts[1::2]):
            used = int(re.search(r"Used (\d+) registers", text).group(1))
            shared = re.search(r"(\d+) bytes smem", text)
            spilled = [int(n) for n in re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", text)]
            found.append((card, name, used, int(shared.group(1)) if shared else 0, sum(spilled)))
    return found


def print_registers(found):
    """A table of `registers`; returns the names of kernels that spill."""
    print(f"{'kernel':<22}" + "".join(f"{card:>22}" for card in CARDS))
    for name in sorted({f[1] for f in found}):
        row = [f"{f[2]} registers, {f[3]} B" for f in found if f[1] == name]
        print(f"{name:<22}" + "".join(f"{cell:>22}" for cell in row))
    return sorted({f[1] for f in found if f[4]})


def written_sums(ptx_digest):
    lines = [f"{sha256(p)}  {p.name}" for p in sources()] + [f"{ptx_digest}  {PTX.name}"]
    return "\n".join(lines) + "\n"


def build():
    PTX.write_bytes(compile_ptx())
    SUMS.write_text(written_sums(sha256(PTX)))
    spilling = print_registers(registers())
    return f"these kernels spill registers: {', '.join(spilling)}" if spilling else None


def check():
    if written_sums(sha256(PTX)) != SUMS.read_text():
        return "kernels.ptx was not built from these sources: run crates/accel/kernels/ptx.py build"
    print("kernels.ptx: built from these sources, by kernels.sums")
    try:
        if compile_ptx() != PTX.read_bytes():
            return "NVRTC gives other PTX than what is checked in: run crates/accel/kernels/ptx.py build"
        print("kernels.ptx: a fresh compilation is equal")
        spilling = print_registers(registers())
        return f"these kernels spill registers: {', '.join(spilling)}" if spilling else None
    except Unavailable as why:
        print(f"kernels.ptx: SKIPPED compiling anew and asking ptxas: {why}")
        return None


if __name__ == "__main__":
    if sys.argv[1:] not in (["build"], ["check"]):
        sys.exit(__doc__)
    sys.exit({"build": build, "check": check}[sys.argv[1]]())
