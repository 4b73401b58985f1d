"""The paper's studies as tables and a plot, from the rows of bench/cona_study.py."""

from xml.sax.saxutils import escape

from .ycsb import table

BOTTOM = 255


def change(row, figure, end="at_end"):
    return row[end][figure] - row["before"][figure]


def levels(row):
    """Number of levels of a store of doubling cells, by the paper's count: levels that exist or that answered a look-up."""
    return max([level for level, _ in row["after"]["level_hits"] if level != BOTTOM] + [row["after"]["level_max"]]) + 1


def inserts(row):
    return (row["writes"] or {}).get("count", 0)


def merging(row):
    """Seconds of flushing, of merging, and of both while the writer waited; until the phase's last operation."""
    flush, merge, wait = (change(row, f) / 1e6 for f in ("flush_us", "merge_us", "wait_us"))
    return flush, merge, flush + merge if "inline" in row["variant"] else wait


def merges_per_insert(row):
    """Mean over the phase, and maximum of its hundredths."""
    counts = [row["before"]["merged_records"]] + [m[0] for m in row["inside"]]
    each = [(b - a) / (inserts(row) / len(row["inside"])) for a, b in zip(counts, counts[1:])]
    return sum(each) / len(each), max(each)


def by_level(row):
    """Shares of look-ups answered by buffers, and by cells of each level from the newest."""
    before = dict(map(tuple, row["before"]["level_hits"]))
    hits = {level: n - before.get(level, 0) for level, n in map(tuple, row["after"]["level_hits"])}
    all_hits = max(change(row, "lookups", "after"), 1)
    return change(row, "buffer_hits", "after") / all_hits, {level: n / all_hits for level, n in sorted(hits.items()) if n}


def report(rows, about):
    pick = {(r["name"], r["phase"]): r for r in rows}
    names = list(dict.fromkeys(r["name"] for r in rows))
    sizes = [n for n in names if n.endswith("KiB") or n == "ours"]
    thousand = lambda r: f"{r['ops_per_s'] / 1000:,.0f}"
    loads = [r["load_average"] for r in rows]
    m = about["machine"]
    lines = ["# The paper's studies, redone", "",
             f"{about['records']:,} records of 20 + 200 bytes, {about['ops']:,} operations a phase, one client, no cache of records, nothing synced or logged. "
             "\"paper\": doubling cells, 16-bit fragments in all but the last level, two buffers. \"ours\": the defaults (two buffers of 16 MiB, folded by four).",
             f"Machine: {m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB, {m['kernel']}, {m['file_systems']['stores']}. Load average {min(loads)} to {max(loads)}.",
             "What the figures mean is in docs/cona.md, section 10.", "",
             "## Size of the insert buffers", "", "Thousand operations a second; seconds of the load.", ""]
    body = []
    for n in sizes:
        r = pick.get((n, "load"))
        if r:
            flush, merge, exposed = merging(r)
            body.append([n, str(levels(r)), *(thousand(pick[n, p]) if (n, p) in pick else "" for p in ("load", "A", "B", "C")),
                         f"{r['seconds']:.1f}", f"{flush:.1f}", f"{merge:.1f}", f"{exposed:.1f}",
                         f"{change(r, 'written_bytes', 'after') / max(change(r, 'user_bytes', 'after'), 1):.1f}"])
    lines += table(["", "levels", "load", "A", "B", "C", "load, s", "flushes, s", "merges, s", "waited for, s", "bytes written a byte"], body)
    lines += ["", "## Merges per insert against k + 1", "",
              "Records that merges moved, an insert: over the phase, and in the hundredth of it where it was most. k: levels.", ""]
    body = []
    for n in sizes:
        for p in ("load", "A"):
            r = pick.get((n, p))
            if r and inserts(r):
                mean, most = merges_per_insert(r)
                body.append([n, p, str(levels(r) + 1), f"{mean:.1f}", f"{most:.1f}"])
    lines += table(["", "phase", "k + 1", "mean", "most"], body)
    lines += ["", "## Merge time exposed and hidden; one or more buffers", "",
              "Seconds of flushing and merging while the phase ran, and the share that no writer waited for. \"inline\" is the paper's single thread: who writes, merges.", ""]
    body = []
    for n in names:
        for p in ("load", "A", "B", "F"):
            r = pick.get((n, p))
            if r and any(word in n for word in ("64 KiB", "1024 KiB", "ours")):
                flush, merge, exposed = merging(r)
                hidden = 1 - min(exposed / (flush + merge), 1) if flush + merge > 0 else 1
                h = r["writes"]
                body.append([n, p, thousand(r), f"{flush + merge:.2f}", f"{exposed:.2f}", f"{hidden * 100:.0f} %",
                             f"{h['p50']:.1f} / {h['p99']:,.0f} / {h['p9999']:,.0f} / {h['max']:,.0f}", str(max(m[3] for m in r["inside"]))])
    lines += table(["", "phase", "thousand/s", "flushes and merges, s", "waited for, s", "hidden", "writes, µs: p50 / p99 / p99.99 / max", "cells, most"], body)
    lines += ["", "## Reads served per level (C)", "", "Shares of look-ups, from the newest to the oldest.", ""]
    body = []
    for n in sizes:
        r = pick.get((n, "C"))
        if r:
            buffers, cells = by_level(r)
            text = ", ".join(f"{'oldest' if level == BOTTOM else level}: {100 * share:.1f} %" for level, share in cells.items())
            body.append([n, f"{100 * buffers:.1f} %", text])
    lines += table(["", "buffers", "levels"], body)
    return "\n".join(lines) + "\n"


def panel(x0, y0, width, height, title, lines):
    """One plot: lines are (name, colour, values)."""
    top = max([max(values) for _, _, values in lines if values] + [1e-9])
    parts = [f'<text x="{x0}" y="{y0 - 18}" font-weight="bold">{escape(title)}: up to {top:,.0f}</text>',
             f'<rect x="{x0}" y="{y0}" width="{width}" height="{height}" fill="none" stroke="#bbb"/>']
    for i, (name, colour, values) in enumerate(lines):
        step = width / max(len(values) - 1, 1)
        points = " ".join(f"{x0 + k * step:.1f},{y0 + height * (1 - v / top):.1f}" for k, v in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"/>')
        parts.append(f'<text x="{x0 + i * 130}" y="{y0 - 5}" fill="{colour}">{escape(name)}</text>')
    return "".join(parts)


def steps(row, figure):
    counts = [row["before"][("merged_records", "merge_us", "wait_us")[figure]]] + [m[figure] for m in row["inside"]]
    return [b - a for a, b in zip(counts, counts[1:])]


def svg(rows):
    """The U curve of buffer sizes, and the fluctuation under A and F: rate, merges and waiting over each phase."""
    pick = {(r["name"], r["phase"]): r for r in rows}
    width, height = 400, 150
    colours = {"load": "#1b6ca8", "A": "#e08e45", "B": "#5a9e4b", "C": "#7a5195"}
    sizes = [n for n in dict.fromkeys(r["name"] for r in rows) if n.startswith("paper") and n.endswith("KiB")]
    labels = " ".join(n.split()[1] for n in sizes)
    rates = [(p, c, [pick[n, p]["ops_per_s"] / 1000 for n in sizes if (n, p) in pick]) for p, c in colours.items()]
    parts = [panel(50, 70, width, height, f"Thousand operations/s, buffers of {labels} KiB", rates)]
    times = [[merging(pick[n, "load"]) for n in sizes if (n, "load") in pick]] * 3
    names = (("flushes", "#5a9e4b"), ("merges", "#e08e45"), ("waited for", "#1b6ca8"))
    parts.append(panel(520, 70, width, height, "Load: seconds, by size of buffers", [(n, c, [t[i] for t in times[i]]) for i, (n, c) in enumerate(names)]))
    y = 300
    for name, phase in (("paper, 64 KiB", "A"), ("ours", "A"), ("paper, 64 KiB, F", "F"), ("ours, F", "F")):
        r = pick.get((name, phase))
        if r:
            parts.append(panel(50, y, width, height, f"{name}: {phase}, thousand operations/s", [("rate", "#1b6ca8", [v / 1000 for v in r["series"]])]))
            parts.append(panel(520, y, width, height, "milliseconds a hundredth", [
                ("merging", "#e08e45", [v / 1000 for v in steps(r, 1)]), ("waited for", "#1b6ca8", [v / 1000 for v in steps(r, 2)])]))
            y += 220
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="980" height="{y}" viewBox="0 0 980 {y}" font-family="sans-serif" font-size="11">'
            '<rect width="100%" height="100%" fill="white"/><text x="50" y="20" font-weight="bold">The paper\'s studies, redone</text>' + "\n".join(parts) + "</svg>\n")
