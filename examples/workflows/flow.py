"""A workflow on a site: Dask workers named by host, tasks that know files by name, and the three ways to run them.

    none        no hints; a task may run anywhere
    location    no hints; a task runs on the host that holds most of what it reads
    hints       directories set the hints of their files, and tasks run where their files are

Files pass between tasks by name, so Dask does not know which task needs which file. Without location it gets the tasks in a random
order and gives each to any free worker. A task is a function of (root of the host's mount, paths below it …); a path is text
below the run's own directory of the store.
"""

import collections
import json
import os
import random

import distributed

WAYS = ("none", "location", "hints")


class Flow:
    """One run of a workflow on `site` with files of redundancy `redundancy`, in the directory `name` of the store."""

    def __init__(self, site, client, name, way, redundancy, seed):
        self.site, self.client, self.name = site, client, name
        self.hinted, self.located = way == "hints", way != "none"
        self.seed, self.random = seed, random.Random(seed)
        self.top = site.mounts[site.hosts[0]] / name
        self.top.mkdir()
        # Common to all three ways: the class, and no deduplication against another run.
        for hint, value in (("redundancy", redundancy), ("dedup", "off")):
            os.setxattr(self.top, f"user.tessera.{hint}", value.encode())

    def directory(self, name, **hints):
        """A directory for files that are used as `hints` say. The hints are set only in the way `hints`."""
        (self.top / name).mkdir()
        for hint, value in hints.items() if self.hinted else ():
            os.setxattr(self.top / name, f"user.tessera.{hint}", value.encode())
        return name

    def locate(self, *words):
        """The output of `tessera locate --json` for paths, in their order."""
        paths = [f"tess:/{self.name}/{word}" if not word.startswith("--") else word for word in words]
        return [json.loads(line) for line in self.site.tessera("locate", "--json", *paths).splitlines()]

    def homes(self, tasks):
        """For each task the host that holds the most bytes of its files; None where that is unknown or does not matter."""
        wanted = sorted({path for task in tasks for path in task.reads})
        if not (self.located and wanted):
            return [None] * len(tasks)
        hosts = dict(zip(wanted, (located["hosts"] for located in self.locate(*wanted))))
        return [busiest(sum((collections.Counter(hosts[path]) for path in task.reads), collections.Counter())) for task in tasks]

    def run(self, tasks):
        """Runs tasks in parallel, each at its home; returns the results in the tasks' order."""
        homes = [task.host or home for task, home in zip(tasks, self.homes(tasks))]
        futures = [None] * len(tasks)
        for i in self.random.sample(range(len(tasks)), len(tasks)):
            task, where = tasks[i], {"workers": [homes[i]]} if homes[i] else {}
            futures[i] = self.client.submit(at_mount, self.site.mounts, self.name, task.function, task.words, pure=False, **where)
        return self.client.gather(futures)


class Task:
    """`function(root, *words)`; `reads` are the paths that it should run near, `host` is where it must run."""

    def __init__(self, function, *words, reads=(), host=None):
        self.function, self.words, self.reads, self.host = function, words, list(reads), host


def busiest(hosts):
    """The host with most bytes; of equal ones the first by name."""
    return min(hosts, key=lambda host: (-hosts[host], host)) if hosts else None


def at_mount(mounts, name, function, words):
    """Code of a worker: runs the task on the mount of the worker's own host."""
    return function(mounts[distributed.get_worker().name] / name, *words)


def workers(site):
    """A Dask cluster with one worker of one thread a host; its name is the host's."""
    worker = lambda host: {"cls": distributed.Worker, "options": {"name": host, "nthreads": 1, "memory_limit": 0, "dashboard": False}}
    scheduler = {"cls": distributed.Scheduler, "options": {"host": "127.0.0.1", "port": 0, "dashboard": False}}
    return distributed.SpecCluster({host: worker(host) for host in site.hosts}, scheduler=scheduler, silence_logs=True)
