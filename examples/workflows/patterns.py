"""The five patterns of data in workflows (WOSS, section 3.3.1 and figure 58): what is written, with which hints, and which task reads it.

Each pattern is a function of (flow, size in bytes), as in the papers' benchmarks. It begins with files that are staged in, one a host, and
ends with the result being staged out, which reads it once more. Tasks turn their input into other bytes of known digest, so that nothing is
deduplicated away and each task's input can be compared with the output of the task before it.
"""

import hashlib
import os
import random

from flow import Task, busiest

BLOCK = 1 << 20


class Stream:
    """An open file with the digest of its bytes."""

    def __init__(self, path, mode, offset=0):
        self.file, self.digest = open(path, mode, buffering=0), hashlib.blake2b(digest_size=16)
        self.file.seek(offset)

    def read(self, most):
        block = self.file.read(most)
        self.digest.update(block)
        return block

    def write(self, block):
        self.digest.update(block)
        view = memoryview(block)
        while view:
            view = view[self.file.write(view):]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


def stage_in(root, path, size):
    """Writes new bytes; returns their digest."""
    with Stream(root / path, "wb") as out:
        for at in range(0, size, BLOCK):
            out.write(os.urandom(min(BLOCK, size - at)))
    return out.digest.hexdigest()


def stage_out(root, path):
    """Reads a file; the digest of what it read."""
    with Stream(root / path, "rb") as source:
        while source.read(BLOCK):
            pass
    return source.digest.hexdigest()


def process(root, salt, sources, target, share=1.0):
    """A stage's program: reads its sources (paths, or regions (path, offset, size)), and writes `share` of as many other bytes.

    Returns digests of what it read, and the digest of what it wrote.
    """
    alphabet, read = another(salt), []
    with Stream(root / target, "wb") as out:
        for source in sources:
            whole = isinstance(source, str)
            path, offset, left = (source, 0, 1 << 62) if whole else source
            with Stream(root / path, "rb", offset) as file:
                if not whole:
                    # A reader of a region tells the kernel not to read ahead beyond it.
                    os.posix_fadvise(file.file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                while block := file.read(min(BLOCK, left)):
                    left -= len(block)
                    out.write(block[:max(1, int(len(block) * share))].translate(alphabet))
            read.append(file.digest.hexdigest())
    return read, out.digest.hexdigest()


def fill_region(root, salt, source, target, offset):
    """Writes the whole source, in other bytes, at `offset` of an existing file. Returns (digest read, digest written)."""
    alphabet = another(salt)
    with Stream(root / source, "rb") as file, Stream(root / target, "r+b", offset) as out:
        while block := file.read(BLOCK):
            out.write(block.translate(alphabet))
    return file.digest.hexdigest(), out.digest.hexdigest()


def another(salt):
    """An alphabet for bytes.translate."""
    return bytes(random.Random(salt).sample(range(256), 256))


def same(read, written):
    """Checks that the bytes read are the bytes written."""
    if read != written:
        raise AssertionError(f"read other bytes than were written: {read} instead of {written}")


def staged(flow, size, directory):
    """A file of `size` on each host, staged in there in every way of running: paths, digests."""
    paths = [f"{directory}/{host}" for host in flow.site.hosts]
    return paths, flow.run([Task(stage_in, path, size, host=host) for path, host in zip(paths, flow.site.hosts)])


def pipeline(flow, size):
    """A chain of three tasks a host; each reads what the one before it wrote."""
    paths, written = staged(flow, size, flow.directory("in", placement="local"))
    for stage in ("first", "second", "third"):
        flow.directory(stage, placement="local")
        targets = [path.replace(path.split("/")[0], stage) for path in paths]
        done = flow.run([Task(process, stage, [path], target, reads=[path]) for path, target in zip(paths, targets)])
        same([read[0] for read, _ in done], written)
        paths, written = targets, [digest for _, digest in done]
    same(flow.run([Task(stage_out, path, reads=[path]) for path in paths]), written)


def broadcast(flow, size):
    """One file that a task on every host reads; with hints it has a copy for every second host."""
    hosts = flow.site.hosts
    flow.directory("in", placement="local")
    staged_in = flow.run([Task(stage_in, "in/all", size, host=hosts[0])])
    flow.directory("shared", placement="local", redundancy=f"replica:{max(2, len(hosts) // 2)}")
    (read, shared), = flow.run([Task(process, "shared", ["in/all"], "shared/all", reads=["in/all"])])
    same(read, staged_in)
    flow.directory("out", placement="local")
    done = flow.run([Task(process, host, ["shared/all"], f"out/{host}", 1 / 64, host=host) for host in hosts])
    same([read for read, _ in done], [[shared]] * len(hosts))
    outs = [f"out/{host}" for host in hosts]
    same(flow.run([Task(stage_out, path, reads=[path]) for path in outs]), [digest for _, digest in done])


def reduce(flow, size, share=1 / 8):
    """A task a host summarises its own input to `share` of it; one task reads all summaries."""
    paths, written = staged(flow, size, flow.directory("in", placement="local"))
    flow.directory("parts", placement="collocate:parts")
    parts = [path.replace("in/", "parts/") for path in paths]
    done = flow.run([Task(process, "map", [path], part, share, reads=[path]) for path, part in zip(paths, parts)])
    same([read[0] for read, _ in done], written)
    flow.directory("out", placement="local")
    (read, merged), = flow.run([Task(process, "merge", parts, "out/all", reads=parts)])
    same(read, [digest for _, digest in done])
    same(flow.run([Task(stage_out, "out/all", reads=["out/all"])]), [merged])


def reduce_equal(flow, size):
    """The same with the papers' sizes (table 13): the merged file is as large as the input."""
    reduce(flow, size, share=1.0)


def scatter(flow, size):
    """One file; a task on each host reads its own region of it."""
    hosts = flow.site.hosts
    flow.directory("in", placement="local")
    staged_in = flow.run([Task(stage_in, "in/all", size * len(hosts), host=hosts[0])])
    flow.directory("regions", placement=f"scatter:{size}")
    (read, _), = flow.run([Task(process, "regions", ["in/all"], "regions/all", reads=["in/all"])])
    same(read, staged_in)
    flow.directory("out", placement="local")
    homes = region_homes(flow, "regions/all", size, len(hosts))
    regions = [("regions/all", i * size, size) for i in range(len(hosts))]
    done = flow.run([Task(process, f"region {i}", [region], f"out/{i}", 1 / 64, host=homes[i]) for i, region in enumerate(regions)])
    outs = [f"out/{i}" for i in range(len(hosts))]
    same(flow.run([Task(stage_out, path, reads=[path]) for path in outs]), [digest for _, digest in done])


def region_homes(flow, path, size, count):
    """For each region of the file the host that has the most of its plain bytes, by the file's extents."""
    if not flow.located:
        return [None] * count
    regions = [{} for _ in range(count)]
    for extent in flow.locate("--extents", path)[0]["extents"]:
        coded = extent["class"].startswith("ec")
        for fragment in extent["fragments"]:
            if not coded or fragment["fragment"] < extent["needed"]:
                here = regions[extent["offset"] // size]
                here[fragment["host"]] = here.get(fragment["host"], 0) + extent["len_bytes"] / (extent["needed"] if coded else 1)
    return [busiest(hosts) for hosts in regions]


def gather(flow, size):
    """A task on each host writes its own region of one file; one task reads it all."""
    hosts = flow.site.hosts
    paths, written = staged(flow, size, flow.directory("in", placement="local"))
    flow.directory("whole", placement="collocate:whole")
    with open(flow.top / "whole" / "all", "wb") as whole:
        whole.truncate(size * len(hosts))
    done = flow.run([Task(fill_region, f"region {i}", path, "whole/all", i * size, reads=[path]) for i, path in enumerate(paths)])
    same([read for read, _ in done], written)
    flow.directory("out", placement="local")
    regions = [("whole/all", i * size, size) for i in range(len(hosts))]
    (read, merged), = flow.run([Task(process, "gather", regions, "out/all", 1 / 64, reads=["whole/all"])])
    same(read, [digest for _, digest in done])
    same(flow.run([Task(stage_out, "out/all", reads=["out/all"])]), [merged])


PATTERNS = {
    "pipeline": pipeline,
    "broadcast": broadcast,
    "reduce": reduce,
    "reduce, equal": reduce_equal,
    "scatter": scatter,
    "gather": gather,
}
