"""One round: the same work for Tessera and for GlusterFS, on one medium, between two measurements of the ceiling."""

import os

from . import ceilings, machine, procs
from .cluster import Cluster
from .gluster import Gluster

NODES = 6
CLASS = "ec:4+2"


class Meter:
    """Runs a driver command and measures its cost: rate, CPU by role, load of the machine."""

    def __init__(self, driver, roles):
        self.driver, self.roles = driver, roles

    def measure(self, *words):
        roles = {"client": [self.driver.pid], **self.roles()}
        before = {role: procs.cpu_seconds(pids) for role, pids in roles.items()}
        machine_before = procs.machine_cpu_seconds()
        facts = self.driver.ask(*words)
        busy = procs.machine_cpu_seconds() - machine_before
        cpu = {role: round(procs.cpu_seconds(pids) - before[role], 3) for role, pids in roles.items()}
        seconds = max(facts["seconds"], 1e-9)
        row = {"seconds": seconds, "cpu_s": cpu, "cores_busy": sum(cpu.values()) / seconds,
               "cores_busy_machine": busy / seconds}
        if "bytes" in facts:
            row["rate"] = facts["bytes"] / seconds
            row["cpu_s_per_gb"] = sum(cpu.values()) / (facts["bytes"] / 1e9)
        else:
            row["rate"] = facts["files"] / seconds
            row["cpu_s_per_thousand"] = sum(cpu.values()) / (facts["files"] / 1e3)
            row["p50_ms"], row["p99_ms"] = facts["p50_ms"], facts["p99_ms"]
        return row


class Round:
    """State and parameters of one round."""

    def __init__(self, config, number, medium, directory, driver):
        self.config, self.number, self.medium, self.directory, self.driver = config, number, medium, directory, driver
        self.rows = []

    def seed(self, system):
        # Every seed is used once in a run, so that no bytes repeat.
        return self.number * 1000 + {"tmpfs": 100, "disk": 200}[self.medium] + {"tessera": 1, "gluster": 2}[system]

    def add(self, system, work, row):
        self.rows.append({"round": self.number, "medium": self.medium, "system": system, "work": work, **row})

    def run(self):
        """Ceiling, systems (in changing order), ceiling again. Returns rows and both ceilings."""
        size = self.config.size_bytes
        self.driver.ask("prepare", size, self.seed("tessera"))
        ceiling = {"memcpy": ceilings.memcpy(self.driver)}
        os.makedirs(self.directory, exist_ok=True)
        writes = [ceilings.fio_write(self.directory, size)]
        ceiling["fio_read"] = ceilings.fio_read(self.directory, size)
        ceiling["small"] = self.raw_small()
        if self.medium == "tmpfs":
            ceiling["parts"] = self.parts()
        systems = [s for s in (self.tessera, self.gluster) if s.__name__ in self.config.systems]
        if self.number % 2:
            systems.reverse()
        for system in systems:
            system()
            writes.append(ceilings.fio_write(self.directory, size))
        ceiling["fio_write"] = sum(writes) / len(writes)
        ceiling["fio_write_each"] = writes
        for row in self.rows:
            row["ceiling"] = ceiling
        return self.rows

    def raw_small(self):
        """Small synced files on the bare file system: files a second."""
        place = os.path.join(self.directory, "raw")
        try:
            done = self.driver.ask("posix-small", place, self.config.writers, self.config.small_files, 4096)
            return done["files"] / done["seconds"]
        finally:
            machine.remove(place)

    def parts(self):
        """CPU seconds a GB of each part of the data path alone: the minimum for any arrangement of them."""
        kernels = self.driver.ask("kernels")
        parts = {name: 1e9 / kernels[name] for name in ("boundaries", "blake3", "encode", "crc32c")}
        meter = Meter(self.driver, dict)
        path = os.path.join(self.directory, "bare")
        parts["tcp, both ends"] = meter.measure("tcp")["cpu_s_per_gb"]
        parts["write to page cache"] = meter.measure("posix-write", path)["cpu_s_per_gb"]
        parts["read from page cache"] = meter.measure("posix-read", path)["cpu_s_per_gb"]
        os.unlink(path)
        return parts

    def tessera(self):
        cluster = Cluster(self.config.binary, os.path.join(self.directory, "tessera"), NODES)
        driver = self.driver
        try:
            cluster.start_all()
            meter = Meter(driver, cluster.pids)
            driver.ask("prepare", self.config.size_bytes, self.seed("tessera"))
            driver.ask("connect", cluster.address)
            driver.ask("mkdir", "tess:/big", f"redundancy={CLASS}")
            driver.ask("mkdir", "tess:/small")
            new = meter.measure("write", "tess:/big/a")
            new["stored_bytes"] = cluster.stored_bytes()
            self.add("tessera", "write new", new)
            # A client with empty caches; on disk, nodes with empty caches too.
            driver.ask("connect", cluster.address)
            if self.medium == "disk":
                cluster.evict()
            read = meter.measure("take", "tess:/big/a")
            kept = meter.measure("read", "tess:/big/a")
            read["wrong_bytes"] = kept["wrong_bytes"] = driver.ask("verify")["wrong_bytes"]
            self.add("tessera", "read", read)
            self.add("tessera", "read, kept", kept)
            again = meter.measure("write", "tess:/big/b")
            again["stored_bytes"] = cluster.stored_bytes() - new["stored_bytes"]
            self.add("tessera", "write again", again)
            driver.ask("read", "tess:/big/b")
            again["wrong_bytes"] = driver.ask("verify")["wrong_bytes"]
            self.add("tessera", "small files",
                     meter.measure("small", "tess:/small", self.config.writers, self.config.small_files, 4096))
            driver.ask("disconnect")
        finally:
            cluster.close(keep=self.config.keep)

    def gluster(self):
        peer = Gluster(os.path.join(self.directory, "gluster"))
        driver = self.driver
        try:
            meter = Meter(driver, lambda: {"gluster": peer.pids()})
            driver.ask("prepare", self.config.size_bytes, self.seed("gluster"))
            place = lambda name: os.path.join(peer.mount_point, name)
            before = self.brick_bytes(peer)
            new = meter.measure("posix-write", place("a"))
            new["stored_bytes"] = self.brick_bytes(peer) - before
            self.add("gluster", "write new", new)
            if self.medium == "disk":
                peer.remount()
            else:
                self.forget(peer)
            read = meter.measure("posix-take", place("a"))
            self.forget(peer)
            kept = meter.measure("posix-read", place("a"))
            read["wrong_bytes"] = kept["wrong_bytes"] = driver.ask("verify")["wrong_bytes"]
            self.add("gluster", "read", read)
            self.add("gluster", "read, kept", kept)
            again = meter.measure("posix-write", place("b"))
            again["stored_bytes"] = self.brick_bytes(peer) - before - new["stored_bytes"]
            self.add("gluster", "write again", again)
            self.add("gluster", "small files",
                     meter.measure("posix-small", place("s"), self.config.writers, self.config.peer_small_files, 4096))
            self.config.peer_version = peer.version()
        finally:
            peer.close()

    @staticmethod
    def forget(peer):
        """Empties the cache of the mount, not of the bricks."""
        peer.unmount()
        peer.mount()

    @staticmethod
    def brick_bytes(peer):
        return sum(machine.stored_bytes(b, lambda p: "/.glusterfs/" not in p) for b in peer.bricks)
