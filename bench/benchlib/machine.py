"""The machine, described by its parts (never by its name), private namespaces, and page cache of single files."""

import ctypes
import os
import platform
import shutil
import sys

_INSIDE = "TESSERA_BENCH_INSIDE"


def describe(paths):
    """CPU model, cores, memory, kernel, and the file system under each of `paths` (name -> path)."""
    cpu = _first("/proc/cpuinfo", "model name") or platform.processor() or "unknown"
    memory_kib = int((_first("/proc/meminfo", "MemTotal") or "0 kB").split()[0])
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "isa": [f for f in ("avx2", "avx512f", "gfni", "vaes") if f in (_first("/proc/cpuinfo", "flags") or "").split()],
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "file_systems": {name: file_system(path) for name, path in paths.items()},
    }


def _first(path, key):
    with open(path) as f:
        for line in f:
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return None


def file_system(path):
    """Type of the file system that holds `path`, e.g. ext4."""
    device = os.stat(path).st_dev
    found = "unknown"
    with open("/proc/self/mountinfo") as f:
        for line in f:
            left, _, right = line.partition(" - ")
            major, minor = map(int, left.split()[2].split(":"))
            if os.makedev(major, minor) == device:
                found = right.split()[0]
    return found


def load_average():
    """Runnable processes, averaged over the last minute."""
    return os.getloadavg()[0]


def enter_namespaces():
    """As root: starts this program again in its own network, mount and process namespaces.

    They have only the loopback and private mounts, and every process in them ends with this one. Without the right to do
    so the program goes on outside. Returns whether it is inside.
    """
    if os.environ.get(_INSIDE):
        _loopback_up()
        return True
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or unshare is None:
        return False
    words = [unshare, "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.spawnv(os.P_WAIT, unshare, [*words, "true"]) != 0:
        return False
    os.environ[_INSIDE] = "1"
    os.execv(unshare, [*words, sys.executable, *sys.argv])


def _loopback_up():
    """Sets IFF_UP on `lo` (SIOCGIFFLAGS, SIOCSIFFLAGS)."""
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(s, 0x8913, request))[1]
        fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", flags | 1))


def bind_mount(source, target):
    """Makes `target` show `source`, in this mount namespace only."""
    _mount(source, target, None, 4096)


def mount_tmpfs(target):
    """Makes `target` empty and in memory, in this mount namespace only."""
    _mount("tmpfs", target, b"tmpfs", 0)


def _mount(source, target, kind, flags):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(os.fsencode(source), os.fsencode(target), kind, flags, None) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {source} on {target}")


def evict(directory):
    """Asks the kernel to evict the clean cached pages of all files below `directory`."""
    for base, _, names in os.walk(directory):
        for name in names:
            try:
                fd = os.open(os.path.join(base, name), os.O_RDONLY)
            except OSError:
                continue
            try:
                os.fdatasync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            except OSError:
                pass
            finally:
                os.close(fd)


def forget_inodes():
    """Makes the kernel forget the names and inodes that nobody uses; FUSE servers are told."""
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
        f.write("2")


def stored_bytes(directory, match=lambda path: True):
    """Bytes that the files below `directory` occupy (allocated blocks)."""
    total = 0
    for base, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(base, name)
            try:
                if match(path):
                    total += os.stat(path, follow_symlinks=False).st_blocks * 512
            except OSError:
                pass
    return total


def remove(directory):
    """Deletes a directory that the benchmark made; missing files are no error."""
    shutil.rmtree(directory, ignore_errors=True)
