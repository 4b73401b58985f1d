"""What hints can save at most: bytes between hosts for each byte of a file, from where its class and its hint put it.

Counted is what disks give and take. Caches do better: a mount that wrote a file has it in memory still, and a task that runs there reads all of it
there, coded or not.

Of N hosts the writer's is as likely as any other to be among those of a spread file. A class is (n, k): n fragments on distinct hosts, of which k
make the data; copies are k = 1.
"""


def shape(redundancy):
    """(n, k) of a class; `auto:K+M` is taken as the code that it uses for files above 128 KiB."""
    kind, _, numbers = redundancy.partition(":")
    if kind in ("none", "replica"):
        return int(numbers or 1), 1
    k, _, m = (numbers or "4+2").partition("+")
    return int(k) + int(m), int(k)


def written(redundancy, placement, hosts):
    """Bytes that leave the writer's host for each byte it writes; `there`: one fragment at a host that others chose."""
    n, k = shape(redundancy)
    local = (n - 1) / k
    # One fragment goes there; one of the others stays with the writer, if there are others, as it does when the writer is there.
    there = max(1, n - 1) / k
    return {
        "spread": n / k * (1 - 1 / hosts),
        "local": local,
        "there": local / hosts + there * (1 - 1 / hosts),
    }[placement]


def read(redundancy, at_home, hosts):
    """Bytes that come from elsewhere for each byte read; `at_home`: where the file was asked to be."""
    n, k = shape(redundancy)
    held = 1 / k if at_home else (n / hosts if k == 1 else 1 / hosts)
    return 1 - held


def steps(workflow):
    """Files of a pattern, each written and read once: (bytes in units of what is staged in, where hints put them)."""
    share = 1 / 8
    return {
        "pipeline": [(4, "local")],
        "reduce": [(1, "local"), (share, "there"), (share, "local")],
        "reduce, equal": [(1, "local"), (1, "there"), (1, "local")],
        "scatter": [(1, "local"), (1, "there"), (1 / 64, "local")],
        "gather": [(1, "local"), (1, "there"), (1 / 64, "local")],
    }.get(workflow)


def possible(workflow, redundancy, hosts):
    """Share of the bytes without hints that hints can save; None for workflows without such a formula."""
    files = steps(workflow)
    if files is None:
        return None
    without = sum(size * (written(redundancy, "spread", hosts) + read(redundancy, False, hosts)) for size, _ in files)
    hinted = sum(size * (written(redundancy, place, hosts) + read(redundancy, True, hosts)) for size, place in files)
    return 1 - hinted / without
