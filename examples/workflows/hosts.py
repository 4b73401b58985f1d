"""One machine as several hosts: a manager and, for each host, its own node and mount on 127.0.0.2, 127.0.0.3, ….

This file starts and ends the daemons, sends them requests, and counts the bytes between hosts. As root each host gets its own mount
namespace. Then, as on real hosts, processes of one host use its Unix socket and all others use TCP, whose rate a host can limit
(`link_mbit`, by tc). Without root all use Unix sockets; bytes are counted by host label, so the count is the same. This file does not know
what tasks do.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import urllib.request

INSIDE = "TESSERA_WORKFLOWS_INSIDE"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Time for a daemon to end after a request: a mount commits its open files.
PATIENCE_S = 30


def end_cleanly():
    """On the first signal to end, leaves all contexts, which stop what they started. Nothing interrupts that."""
    def end(number, _):
        for other in ENDING:
            signal.signal(other, signal.SIG_IGN)
        print(f"{signal.Signals(number).name}: unmounting, and ending the hosts", file=sys.stderr, flush=True)
        raise SystemExit(128 + number)

    for number in ENDING:
        signal.signal(number, end)


def enter_namespaces():
    """As root: continues in its own network, mount and process namespaces, which end with this process. Returns whether it could."""
    if os.environ.get(INSIDE):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        # Mounts are shared among the hosts' namespaces but hidden from the machine's own, so that no end of this process leaves a mount
        # there.
        subprocess.run(["mount", "--make-rshared", "/"], check=True)
        return True
    words = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--propagation", "slave", "--pid", "--fork", "--kill-child", "--mount-proc"]
    tools = all(map(shutil.which, ("setpriv", "unshare", "nsenter", "ip", "tc", "mount")))
    if os.geteuid() != 0 or not tools or subprocess.run([*words, "true"], stderr=subprocess.DEVNULL).returncode:
        return False
    os.environ[INSIDE] = "1"
    sys.exit(_run_inside([*words, sys.executable, *sys.argv]))


def _run_inside(words):
    """Runs the words, and forwards signals to end, which `unshare` would not. Returns the exit code."""
    unshare = subprocess.Popen(words)

    def tell(number, _):
        for child in pathlib.Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split():
            os.kill(int(child), number)

    for number in ENDING:
        signal.signal(number, tell)
    code = unshare.wait()
    return code if code >= 0 else 128 - code


class Daemon:
    """A child that announces its address on stdout, and ends when its stdin closes."""

    def __init__(self, words, log):
        with open(log, "ab") as errors:
            # Only this process gets Ctrl-C: it ends the daemons one after the other, mounts while they can still commit.
            self.process = subprocess.Popen([str(w) for w in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
        self.words, self.log = words, log

    def announced(self):
        """Waits for its announcement and returns it."""
        line = self.process.stdout.readline()
        if not line:
            said = pathlib.Path(self.log).read_text(errors="replace")[-2000:]
            raise SystemExit(f"{' '.join(map(str, self.words))} did not start:\n{said}")
        return json.loads(line)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            print(f"{' '.join(map(str, self.words))} did not end, and is killed", file=sys.stderr)
            self.process.kill()
            return self.process.wait()


def unmount(mount):
    """Unmounts what a killed mount left; nothing if it ended by itself."""
    for words in (["fusermount3", "-u", mount], ["umount", "-l", mount]):
        mounted = any(line.split()[4] == str(mount) for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines())
        if mounted and shutil.which(words[0]):
            subprocess.run(words, stderr=subprocess.DEVNULL)


class Site:
    """Hosts `host1` … `hostN`. A context manager: its end stops the daemons and removes their files."""

    def __init__(self, binary, directory, hosts, link_mbit=None, apart=False):
        self.binary, self.directory = pathlib.Path(binary).resolve(), pathlib.Path(directory)
        self.hosts = [f"host{i + 1}" for i in range(hosts)]
        self.mounts = {host: self.directory / host / "mnt" for host in self.hosts}
        self.link_mbit, self.apart = link_mbit, apart
        self.metrics, self.daemons = {}, []

    def __enter__(self):
        try:
            if self.link_mbit:
                self._limit_links()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # Mounts first, then nodes, then the manager.
        for daemon in reversed(self.daemons):
            daemon.stop()
        for mount in self.mounts.values():
            unmount(mount)
        if self.link_mbit:
            subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], stderr=subprocess.DEVNULL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self):
        for host, mount in self.mounts.items():
            mount.mkdir(parents=True)
            (self.directory / host / "disk").mkdir()
        manager = self._daemon("manager", "--dir", self.directory / "manager", "--listen", "127.0.0.1:0")
        self.manager = manager.announced()["listen"][0]
        nodes = {host: self._node(i, host) for i, host in enumerate(self.hosts)}
        for host, node in nodes.items():
            self.metrics[host] = node.announced()["metrics"]
        mounts = [self._mount(host, nodes[host]) for host in self.hosts]
        for mount in mounts:
            mount.announced()

    def _node(self, i, host):
        address = f"127.0.0.{i + 2}:0"
        # Its own namespace, whose mounts the others still see.
        own = ["unshare", "--mount", "--propagation", "unchanged"] if self.apart else []
        return self._daemon(
            "node", "--manager", self.manager, "--host", host, "--listen", address, "--metrics", address, "--disk",
            self.directory / host / "disk", "--unix-socket", self.directory / host / "node.sock", name=host, before=own)

    def _mount(self, host, node):
        near = ["nsenter", f"--mount=/proc/{node.process.pid}/ns/mnt"] if self.apart else []
        return self._daemon("mount", self.mounts[host], "--manager", self.manager, "--host", host, name=f"{host}.mount", before=near)

    def _daemon(self, role, *words, name="manager", before=()):
        log = self.directory / f"{name}.log"
        daemon = Daemon([*before, self.binary, role, *words, "--announce", "--follow-stdin"], log)
        self.daemons.append(daemon)
        return daemon

    def _limit_links(self):
        """Limits what each host sends and receives over TCP; a client's receiving is limited by the senders."""
        def tc(*words):
            subprocess.run(["tc", *words], check=True)

        rate = f"{self.link_mbit}mbit"
        tc("qdisc", "replace", "dev", "lo", "root", "handle", "1:", "htb")
        for i in range(len(self.hosts)):
            for way, minor in (("src", 2 * i + 1), ("dst", 2 * i + 2)):
                tc("class", "add", "dev", "lo", "parent", "1:", "classid", f"1:{minor:x}", "htb", "rate", rate, "quantum", "65536")
                tc("filter", "add", "dev", "lo", "parent", "1:", "protocol", "ip", "prio", "1", "u32",
                   "match", "ip", way, f"127.0.0.{i + 2}/32", "flowid", f"1:{minor:x}")

    def tessera(self, *words):
        """Runs `tessera WORDS` against this store; returns its stdout."""
        environment = {**os.environ, "TESSERA_MANAGER": self.manager}
        done = subprocess.run([str(self.binary), *map(str, words)], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"tessera {' '.join(map(str, words))} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def figures(self):
        """Bytes since the start, summed over nodes: `between_hosts`, of files, and `log`, of the manager's commands to log replicas."""
        total = {}
        for address in self.metrics.values():
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as page:
                for line in page.read().decode().splitlines():
                    name, _, value = line.rpartition(" ")
                    total[name] = total.get(name, 0) + (0 if line.startswith("#") else float(value))
        between = total["tessera_node_far_sent_bytes_total"] + total["tessera_node_far_received_bytes_total"]
        return {"between_hosts": int(between), "log": int(total["tessera_node_log_received_bytes_total"])}
