"""Hosts: network namespaces on one bridge, whose links can be cut in each direction; or addresses of the loopback, which cannot.

A cut needs no firewall: every namespace has a fixed neighbour entry for every other one, and a cut from A to B gives A a wrong link
address of B. Its frames then reach nobody, and A learns nothing of that.
"""

import os
import subprocess

# The range that RFC 2544 keeps for tests of networks.
NETWORK, PREFIX = "198.18.0", 24
NOBODY = "02:54:00:00:00:ff"
# Device names have at most 15 characters.
MARK = "tj"


class NoNamespaces(Exception):
    """This machine has no namespaces for us; the text says why."""


def ip(*words, batch=None, check=True):
    done = subprocess.run(["ip", *words], input=batch, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise NoNamespaces(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Loopback:
    """Every host has an address of its own; nothing can be cut."""

    cuts = False

    def __init__(self, hosts):
        self.address = {host: f"127.18.0.{i + 1}" for i, host in enumerate(hosts)}

    def inside(self, _host):
        return []

    def close(self):
        pass


class Namespaces:
    """A namespace for each host."""

    cuts = True

    def __init__(self, hosts):
        if os.geteuid() != 0:
            raise NoNamespaces("only root may make network namespaces")
        if not any(os.access(os.path.join(place, "ip"), os.X_OK) for place in os.get_exec_path()):
            raise NoNamespaces("there is no program `ip` (package iproute2)")
        self.prefix = f"{MARK}{os.getpid()}"
        self.bridge = f"{self.prefix}b"
        self.hosts = list(hosts)
        self.address = {host: f"{NETWORK}.{i + 1}" for i, host in enumerate(self.hosts)}
        self._link = {host: f"02:54:00:00:00:{i + 1:02x}" for i, host in enumerate(self.hosts)}
        # (from, to) -> number of cuts of it.
        self._cut = {}
        remove_leftovers()
        try:
            ip("link", "add", self.bridge, "type", "bridge")
            ip("link", "set", self.bridge, "up")
            for host in self.hosts:
                self._add(host)
        except NoNamespaces:
            self.close()
            raise

    def _add(self, host):
        name, device = self._namespace(host), f"{self.prefix}{host}"
        ip("netns", "add", name)
        ip("link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", name, "address", self._link[host])
        ip("link", "set", device, "master", self.bridge, "up")
        lines = ["link set lo up", f"addr add {self.address[host]}/{PREFIX} dev eth0", "link set eth0 up"]
        lines += [self._neighbour(other, True) for other in self.hosts if other != host]
        ip("-n", name, "-batch", "-", batch="\n".join(lines) + "\n")

    def _namespace(self, host):
        return f"{self.prefix}-{host}"

    def _neighbour(self, host, reached):
        return f"neigh replace {self.address[host]} lladdr {self._link[host] if reached else NOBODY} dev eth0 nud permanent"

    def inside(self, host):
        """The words before a command that runs on `host`. Mounts made there are seen by all."""
        return ["nsenter", f"--net=/run/netns/{self._namespace(host)}", "--"]

    def cut(self, pairs):
        """Loses what goes from the first to the second host of each pair, until it is mended as often."""
        self._change(pairs, 1)

    def mend(self, pairs):
        self._change(pairs, -1)

    def _change(self, pairs, by):
        lines = {}
        for source, target in pairs:
            before = self._cut.get((source, target), 0)
            self._cut[source, target] = before + by
            if (before == 0) != (before + by == 0):
                lines.setdefault(source, []).append(self._neighbour(target, before + by == 0))
        for source, of_source in lines.items():
            ip("-n", self._namespace(source), "-batch", "-", batch="\n".join(of_source) + "\n")

    def close(self):
        for host in self.hosts:
            ip("netns", "del", self._namespace(host), check=False)
        ip("link", "del", self.bridge, check=False)


def remove_leftovers():
    """Removes what runs that were killed have left."""
    for line in ip("netns", "list").splitlines():
        name = line.split()[0]
        pid = name[len(MARK):].split("-")[0]
        if name.startswith(MARK) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            ip("netns", "del", name, check=False)
            ip("link", "del", f"{MARK}{pid}b", check=False)


def make(hosts):
    """Namespaces if there can be any, and why not."""
    try:
        return Namespaces(hosts), None
    except (NoNamespaces, OSError) as error:
        return Loopback(hosts), str(error)
