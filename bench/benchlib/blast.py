"""Checkpoints of a real program: images of a running `blastn`, taken by gdb's `gcore`.

The genome is generated, the same one each time: random, but half of it consists of drifted copies of a few sequences, as in real
genomes. The queries are pieces of it with errors. So `blastn` finds many matches and its memory grows.
"""

import json
import os
import random
import shutil
import subprocess
import time

LETTERS = bytes(b"ACGT"[byte & 3] for byte in range(256))
GENOME_BASES = 40_000_000
FAMILIES, COPIES, COPY_BASES = 20, 1000, 1000
QUERIES, QUERY_BASES = 20_000, 3000
DRIFT = 0.06
# Bases of queries in one batch of blastn.
BATCH_BASES = 2_000_000
# By then it holds about 100 MB.
WARM_UP_S = 60


def _drifted(rng, bases):
    bases = bytearray(bases)
    for _ in range(int(len(bases) * DRIFT)):
        bases[rng.randrange(len(bases))] = LETTERS[rng.randrange(256)]
    return bases


def genome():
    rng = random.Random(5)
    bases = bytearray(rng.randbytes(GENOME_BASES).translate(LETTERS))
    for _ in range(FAMILIES):
        first = rng.randbytes(COPY_BASES).translate(LETTERS)
        for _ in range(COPIES):
            at = rng.randrange(GENOME_BASES - COPY_BASES)
            bases[at:at + COPY_BASES] = _drifted(rng, first)
    return bases


def write_fasta(path, sequences):
    with open(path, "wb") as f:
        for name, bases in sequences:
            f.write(b">" + name.encode() + b"\n")
            f.writelines(bytes(bases[i:i + 80]) + b"\n" for i in range(0, len(bases), 80))


def make_inputs(directory):
    """Writes the data base `genome` and `queries.fa`."""
    bases, rng = genome(), random.Random(6)
    part = GENOME_BASES // 10
    write_fasta(os.path.join(directory, "genome.fa"), ((f"chr{i + 1}", bases[i * part:(i + 1) * part]) for i in range(10)))
    starts = [rng.randrange(GENOME_BASES - QUERY_BASES) for _ in range(QUERIES)]
    queries = ((f"q{i}", _drifted(rng, bases[at:at + QUERY_BASES])) for i, at in enumerate(starts))
    write_fasta(os.path.join(directory, "queries.fa"), queries)
    subprocess.run(["makeblastdb", "-in", "genome.fa", "-dbtype", "nucl", "-out", "genome"], cwd=directory, check=True,
                   stdout=subprocess.DEVNULL)


def images(directory, count, every_s, warm_up_s=WARM_UP_S):
    """Takes `count` images, one every `every_s` seconds. Images of an earlier run with the same numbers are reused."""
    about = {"count": count, "every_s": every_s, "warm_up_s": warm_up_s, "bases": GENOME_BASES, "queries": QUERIES, "batch": BATCH_BASES}
    paths = [os.path.join(directory, f"image-{i + 1:02}") for i in range(count)]
    marker = os.path.join(directory, "about.json")
    if os.path.exists(marker) and json.load(open(marker)) == about and all(map(os.path.exists, paths)):
        return paths
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    make_inputs(directory)
    words = ["blastn", "-task", "blastn", "-db", "genome", "-query", "queries.fa", "-outfmt", "5", "-out", os.devnull]
    program = subprocess.Popen(words, cwd=directory, env={**os.environ, "BATCH_SIZE": str(BATCH_BASES)})
    try:
        start = time.monotonic()
        for number, path in enumerate(paths, 1):
            time.sleep(max(0, start + warm_up_s + number * every_s - time.monotonic()))
            if program.poll() is not None:
                raise RuntimeError(f"blastn ended ({program.returncode}) before image {number} of {count}")
            subprocess.run(["gcore", "-o", path, str(program.pid)], check=True, capture_output=True)
            os.rename(f"{path}.{program.pid}", path)
            print(f"  image {number}: {os.path.getsize(path) / 1e6:.0f} MB", flush=True)
    finally:
        program.kill()
        program.wait()
    with open(marker, "w") as f:
        json.dump(about, f)
    return paths
