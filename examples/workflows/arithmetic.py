"""The maximum that hints can save: bytes between hosts for each byte of a file, from its class and its placement.

The count is of disk reads and writes. Caches do better: a mount that wrote a file still has it in memory, and a task on that mount reads
all of it there, coded or not.

Of N hosts the writer's is as likely as any other to hold a fragment of a spread file. A class is (n, k): n fragments on distinct hosts, of
which k make the data; copies are k = 1.
"""


def shape(redundancy):
    """(n, k) of a class; `auto:K+M` counts as the code that it uses for files above 128 KiB."""
    kind, _, numbers = redundancy.partition(":")
    if kind in ("none", "replica"):
        return int(numbers or 1), 1
    k, _, m = (numbers or "4+2").partition("+")
    return int(k) + int(m), int(k)


def written(redundancy, placement, hosts):
    """Bytes that leave the writer's host for each byte it writes; `there`: one fragment is placed at a host that others chose."""
    n, k = shape(redundancy)
    local = (n - 1) / k
    # One fragment goes to that host. If there are more, one stays with the writer, as it does when the writer is that host.
    there = max(1, n - 1) / k
    return {
        "spread": n / k * (1 - 1 / hosts),
        "local": local,
        "there": local / hosts + there * (1 - 1 / hosts),
    }[placement]


def read(redundancy, at_home, hosts):
    """Bytes that come from other hosts for each byte read; `at_home`: the reader is at the file's placement."""
    n, k = shape(redundancy)
    held = 1 / k if at_home else (n / hosts if k == 1 else 1 / hosts)
    return 1 - held


def steps(workflow):
    """Files of a pattern, each written and read once: (bytes in units of the input, placement by hints)."""
    share = 1 / 8
    return {
        "pipeline": [(4, "local")],
        "reduce": [(1, "local"), (share, "there"), (share, "local")],
        "reduce, equal": [(1, "local"), (1, "there"), (1, "local")],
        "scatter": [(1, "local"), (1, "there"), (1 / 64, "local")],
        "gather": [(1, "local"), (1, "there"), (1 / 64, "local")],
    }.get(workflow)


def possible(workflow, redundancy, hosts):
    """Share of the bytes between hosts that hints can save; None for workflows without such a formula."""
    files = steps(workflow)
    if files is None:
        return None
    without = sum(size * (written(redundancy, "spread", hosts) + read(redundancy, False, hosts)) for size, _ in files)
    hinted = sum(size * (written(redundancy, place, hosts) + read(redundancy, True, hosts)) for size, place in files)
    return 1 - hinted / without
