#!/usr/bin/env python3
"""Counts words in text that is spread over several hosts, from a sample, by Dask: each host reads pieces that it holds.

    python3 examples/sampling/wordcount.py                    eight hosts, played by this machine
    python3 examples/sampling/wordcount.py --hosts 3 --ratio 0.05 --json

Runs the same sample twice: each task on the host that holds its pieces, and on the host after it. Prints the frequent words with their
intervals beside the exact counts, and the bytes that crossed from host to host. See ../workflows for the hosts.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "workflows")]
from run import ROOT, use_dask  # noqa: E402

DIRECTORY = "text"


def write_text(root, path, size, seed):
    """Writes `size` bytes of lines, or a little more. Words follow Zipf's law; which are frequent differs a little from file to file. Returns their counts."""
    draw = random.Random(seed)
    words = [f"w{i}" for i in range(2000)]
    weights = [draw.uniform(0.5, 1.5) / (i + 1) for i in range(len(words))]
    counts, written = collections.Counter(), 0
    with open(root / path, "w") as out:
        while written < size:
            line = draw.choices(words, weights, k=12)
            counts.update(line)
            written += out.write(" ".join(line) + "\n")
    return counts


def count(root, own):
    """For each piece the counts of its words."""
    from plan import records
    return [collections.Counter(word for line in records(root, piece) for word in line.decode().split()) for piece in own]


def at_mount(mounts, function, *words):
    """Code of a worker: runs a function on the mount of the worker's own host."""
    import distributed
    return function(mounts[distributed.get_worker().name], *words)


def on_hosts(client, site, tasks):
    """Runs (host, function, words) at the same time, each on its host; the results in their order."""
    futures = [client.submit(at_mount, site.mounts, function, *words, workers=[host], pure=False) for host, function, words in tasks]
    return client.gather(futures)


def prepare(site, client, size):
    """Each host writes a file that stays with it. Returns the paths and the exact counts."""
    top = site.mounts[site.hosts[0]] / DIRECTORY
    top.mkdir()
    for name, value in (("placement", "local"), ("redundancy", "none"), ("dedup", "off")):
        os.setxattr(top, f"user.tessera.{name}", value.encode())
    paths = [f"{DIRECTORY}/{host}.txt" for host in site.hosts]
    tasks = [(host, write_text, (path, size, i)) for i, (host, path) in enumerate(zip(site.hosts, paths))]
    return paths, sum(on_hosts(client, site, tasks), collections.Counter())


def run_plan(site, client, plan, shift):
    """Runs a plan, each task `shift` hosts after the one that holds its pieces. Returns the results by host, bytes between hosts, and seconds."""
    before, started = site.figures(), time.monotonic()
    after_it = lambda host: site.hosts[(site.hosts.index(host) + shift) % len(site.hosts)]
    results = on_hosts(client, site, [(after_it(host), count, (own,)) for host, own in plan.tasks()])
    seconds = time.monotonic() - started
    crossed = site.figures()["between_hosts"] - before["between_hosts"]
    return dict(zip(plan.drawn, results)), crossed, seconds


def report(plan, results, exact, top):
    """The frequent words: estimate, interval, and truth."""
    from estimate import total
    seen = sum((sum(of_host, collections.Counter()) for of_host in results.values()), collections.Counter())
    rows = []
    for word, _ in seen.most_common(top):
        value, low, high = total(plan.strata({host: [piece[word] for piece in own] for host, own in results.items()}))
        rows.append({"word": word, "estimate": round(value), "low": round(low), "high": round(high), "exact": exact[word]})
    return rows


def main():
    use_dask()
    from hosts import Site, end_cleanly, enter_namespaces
    apart = enter_namespaces()
    end_cleanly()
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--binary", default=ROOT / "target" / "release" / "tessera")
    a.add_argument("--hosts", type=int, default=8, help="(default 8)")
    a.add_argument("--size", type=int, default=16, help="of each host's text, MiB (default 16)")
    a.add_argument("--ratio", type=float, default=0.1, help="of all pieces that are read (default 0.1)")
    a.add_argument("--unit", type=int, default=64, help="length of a piece, KiB (default 64)")
    a.add_argument("--top", type=int, default=10, help="words to print (default 10)")
    a.add_argument("--seed", type=int, default=1, help="of the sample (default 1)")
    a.add_argument("--dir", help="for the hosts' disks (default: where temporary files go)")
    a.add_argument("--json", action="store_true", help="one JSON document")
    args = a.parse_args()
    import distributed
    from flow import workers
    from plan import Plan, pieces
    with Site(args.binary, tempfile.mkdtemp(prefix="tessera-sampling-", dir=args.dir), args.hosts, None, apart) as site, \
            workers(site) as cluster, distributed.Client(cluster) as client:
        client.upload_file(str(HERE / "plan.py"))
        paths, exact = prepare(site, client, args.size << 20)
        found = pieces(site, paths, args.unit << 10)
        plan = Plan(found, args.ratio, args.seed)
        far, far_bytes, far_s = run_plan(site, client, plan, 1)
        near, near_bytes, near_s = run_plan(site, client, plan, 0)
        if near != far:
            raise AssertionError("a piece has other words on one host than on another")
    drawn = sum(len(own) for own in plan.drawn.values())
    result = {
        "hosts": args.hosts, "pieces": len(found), "drawn": drawn, "words": report(plan, near, exact, args.top),
        "bytes_between_hosts": {"where the pieces are": near_bytes, "one host on": far_bytes},
        "seconds": {"where the pieces are": round(near_s, 3), "one host on": round(far_s, 3)},
    }
    if args.json:
        print(json.dumps(result))
        return
    print(f"{drawn} of {len(found)} pieces on {args.hosts} hosts")
    print(f"{'word':8}{'estimate':>10}{'low':>10}{'high':>10}{'exact':>10}")
    for row in result["words"]:
        print(f"{row['word']:8}{row['estimate']:>10}{row['low']:>10}{row['high']:>10}{row['exact']:>10}")
    for way, crossed in result["bytes_between_hosts"].items():
        print(f"{way}: {crossed / (1 << 20):.1f} MiB between hosts, {result['seconds'][way]:.2f} s")


if __name__ == "__main__":
    main()
