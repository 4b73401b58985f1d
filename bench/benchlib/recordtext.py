"""The page of `make bench-flash-record`: what was recorded, and what it costs on flash."""

from .flashtext import figures, table

MIB = 1 << 20
DEVICES = ["sequential, TRIM", "sequential", "blocks of 1 MiB", "random, TRIM", "random"]


def mib(count):
    return f"{count / MIB:,.1f}"


def total_rows(name, totals):
    """A line for each kind of file that was written or read, the largest first; those below a thousandth are left out."""
    most = max(t["written_bytes"] + t["read_bytes"] for t in totals.values())
    out = []
    for kind, t in sorted(totals.items(), key=lambda item: -item[1]["written_bytes"]):
        if (t["written_bytes"] + t["read_bytes"]) * 1000 < most:
            continue
        share = f"{t['written_bytes'] / t['stored_bytes']:.2f}" if t["stored_bytes"] else ""
        size = f"{t['written_bytes'] / t['writes'] / 1024:,.0f} KiB" if t["writes"] else ""
        out.append([name, f"`{kind}`", mib(t["stored_bytes"]), mib(t["written_bytes"]), share, size, f"{t['flushes']:,}",
                    mib(t["read_bytes"]), mib(t["trimmed_bytes"])])
        name = ""
    return out


def replay_rows(name, rows):
    """A line for each layer: write amplification on each device, and the work for the map on the one that was written in order."""
    out = []
    for at, row in enumerate(rows["sequential, TRIM"]):
        f, host = figures(row), max(1, row["host_programs"])
        wa = [f"{rows[device][at]['write_amplification']:.2f}" if device in rows else "" for device in DEVICES]
        maps = [f"{f['map reads'] / host:.3f}", f"{f['map writes'] / host:.3f}"]
        out.append([name, f"`{row['ftl']}`", *wa, f"{f['hits']:.1%}", *maps])
        name = ""
    return out


def report(result):
    machine, traces = result["machine"], result["traces"]
    parts = [f"""# What the store and CONA cost on flash

{machine['cpu']}, {machine['cores']} cores, load {result['load']:.1f} at the start. Recorded with `tessera flash record`, replayed with
`{result['setup'].removesuffix(' --map-cache {cache}')}` and a map cache of a twentieth of the map, on devices as large as the trace's span, 64 MiB at least.
*Store*: {result['files']} files of {result['file_bytes'] // MIB} MiB of random bytes are put, then five times a random half
is removed and replaced while compaction runs. *CONA*: records of 220 bytes are loaded and then used as YCSB A does.

## What was asked of the disk

*Stored* is what was written to files, *written* what reached the device in pages, *ratio* the second by the first, *size* the mean request. In MiB. A ratio below 1
means that files were removed before the page cache was written.

""", table(["recording", "files", "stored", "written", "ratio", "size", "flushes", "read", "trimmed"],
           [row for name, trace in traces.items() for row in total_rows(name, trace["totals"])]),
             """
## What that costs inside the device

Write amplification of the second half of each trace, on a full device that was written in order of its pages (with the TRIMs of removed files, without them, and with them on
blocks of 1 MiB, four times the default), and on one that was written in random order (with TRIMs and without). Map reads and writes are for each page that the host writes, on the first device.
Response times are left out: the bursts come faster than the simulated die programs.

""", table(["recording", "layer", "in order", "no TRIM", "large blocks", "at random", "no TRIM", "hits", "map reads", "map writes"],
           [row for name, trace in traces.items() for row in replay_rows(name, trace["rows"])])]
    return "".join(parts)
