"""The peer: a GlusterFS dispersed volume 4+2 on six local bricks.

All its files are in one directory and in the namespaces that store.py entered (see machine.enter_namespaces). It has
its own hosts file, because GlusterFS refuses loopback addresses as brick names but accepts a name that resolves to one;
its own run and log directories; and no socket beyond loopback.
"""

import glob
import os
import shutil
import signal
import subprocess
import time

from . import machine, procs

HOST = "bench-peer"
VOLUME = "peer"


class Gluster:
    """A running, mounted volume; `close` ends it and deletes its bricks."""

    def __init__(self, directory, bricks=6, redundancy=2):
        self.directory = directory
        self.mount_point = os.path.join(directory, "mnt")
        self.bricks = [os.path.join(directory, f"brick{i}") for i in range(bricks)]
        self.daemon = None
        # A killed run leaves the description of its volume.
        shutil.rmtree(directory, ignore_errors=True)
        for name in ["work", "run", "log", "mnt", *self.bricks]:
            os.makedirs(os.path.join(directory, name), exist_ok=True)
        try:
            self._private_places()
            self._start_daemon()
            self._cli("volume", "create", VOLUME, "disperse", bricks, "redundancy", redundancy, "transport", "tcp",
                      *[f"{HOST}:{b}" for b in self.bricks], "force")
            self._cli("volume", "start", VOLUME)
            self.mount()
        except BaseException:
            self.close()
            raise

    def _private_places(self):
        hosts = os.path.join(self.directory, "hosts")
        with open(hosts, "w") as f:
            f.write(f"127.0.0.1 localhost {HOST} {os.uname().nodename}\n")
        machine.bind_mount(hosts, "/etc/hosts")
        # Some sockets have fixed paths: `gluster volume heal` finds the daemon only at /run/glusterd.socket.
        machine.mount_tmpfs("/run")
        os.makedirs("/run/gluster")
        os.makedirs("/var/log/glusterfs", exist_ok=True)
        machine.bind_mount(os.path.join(self.directory, "log"), "/var/log/glusterfs")

    def _start_daemon(self):
        d = self.directory
        volfile = os.path.join(d, "glusterd.vol")
        with open(volfile, "w") as f:
            f.write(
                "volume management\n    type mgmt/glusterd\n"
                f"    option working-directory {d}/work\n    option run-directory {d}/run\n"
                "    option transport-type socket\n    option transport.address-family inet\n"
                "    option transport.socket.bind-address 127.0.0.1\n"
                "    option transport.socket.listen-port 24007\n"
                "    option ping-timeout 0\n    option event-threads 1\n    option max-port 60999\nend-volume\n"
            )
        self.daemon = procs.start(
            ["glusterd", "-N", "-f", volfile, "-p", f"{d}/run/glusterd.pid", "-l", f"{d}/log/glusterd.log"],
            f"{d}/log/glusterd.out",
        )
        self._until(lambda: self._cli_ok("volume", "list"), "glusterd to answer", 20)

    def _cli_words(self, words):
        return ["gluster", "--mode=script", *map(str, words)]

    def _cli(self, *words):
        return procs.run(self._cli_words(words), timeout_s=90)

    def _cli_ok(self, *words):
        return subprocess.run(self._cli_words(words), capture_output=True, timeout=30).returncode == 0

    @staticmethod
    def _until(condition, what, seconds):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise procs.ProcessFailed(f"waited {seconds} s for {what}")
            time.sleep(0.05)

    def mount(self):
        d = self.directory
        procs.run(
            ["glusterfs", "--volfile-server=127.0.0.1", f"--volfile-id={VOLUME}", f"--log-file={d}/log/mount.log",
             f"--pid-file={d}/run/mount.pid", self.mount_point],
            timeout_s=60,
        )
        self._until(lambda: os.path.ismount(self.mount_point), "the mount", 20)
        # Without all six bricks the first writes would be degraded.
        self._until(lambda: self._children_up() == len(self.bricks), "all bricks to be connected", 30)

    def _children_up(self):
        """Number of bricks that the mounted client is connected to, by its own state file."""
        state = os.path.join(self.mount_point, ".meta/graphs/active", f"{VOLUME}-disperse-0", "private")
        try:
            with open(state) as f:
                for line in f:
                    key, _, value = line.partition("=")
                    if key.strip() in ("childs_up", "xl_up_count"):
                        return int(value)
        except OSError:
            pass
        return 0

    def unmount(self):
        if os.path.ismount(self.mount_point):
            procs.run(["umount", self.mount_point], timeout_s=60)
            self._until(lambda: not os.path.ismount(self.mount_point), "the unmount", 10)

    def remount(self):
        """Remounts: neither the client nor the bricks have anything in their caches."""
        self.unmount()
        for brick in self.bricks:
            machine.evict(brick)
        self.mount()

    def pids(self):
        """Ids of all its daemons: management, bricks, self-heal, mount."""
        found = []
        for path in glob.glob(f"{self.directory}/run/**/*.pid", recursive=True):
            try:
                with open(path) as f:
                    found.append(int(f.read()))
            except (OSError, ValueError):
                pass
        return [p for p in set(found) if os.path.exists(f"/proc/{p}")]

    def version(self):
        return procs.run(["glusterd", "--version"]).split()[1]

    def heal_pending(self):
        """Number of entries that the volume lists as in need of healing."""
        out = self._cli("volume", "heal", VOLUME, "info", "summary")
        return sum(int(line.rpartition(":")[2]) for line in out.splitlines() if line.startswith("Total Number"))

    def heal_all(self):
        self._cli("volume", "heal", VOLUME, "full")

    def close(self):
        """Ends every process by its id, unmounts, deletes."""
        try:
            self.unmount()
        except (procs.ProcessFailed, subprocess.TimeoutExpired):
            subprocess.run(["umount", "--lazy", self.mount_point], capture_output=True, timeout=30)
        for number in (signal.SIGTERM, signal.SIGKILL):
            pids = self.pids()
            for pid in pids:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            deadline = time.monotonic() + 10
            while any(_alive(p) for p in pids) and time.monotonic() < deadline:
                time.sleep(0.05)
        if self.daemon:
            procs.stop(self.daemon)
        for place in ("/etc/hosts", "/run", "/var/log/glusterfs"):
            subprocess.run(["umount", place], capture_output=True, timeout=30)
        machine.remove(self.directory)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return f.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False
