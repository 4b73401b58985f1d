"""The measurements of bench/cona.py as tables, a list of goals and a plot; judges the goals (crates/cona's issue)."""

from xml.sax.saxutils import escape

SYSTEMS = ("cona", "leveldb", "rocksdb", "fjall")
PEERS = SYSTEMS[1:]
COLOURS = {"cona": "#1b6ca8", "leveldb": "#e08e45", "rocksdb": "#7a5195", "fjall": "#5a9e4b"}
# Bytes of a record where a row does not say how many bytes its operations wrote (rows of before it did).
USER_BYTES = 220
# Rate of scans and of each phase with values of a page and more, of the best peer's.
LARGE_BYTES = 1024
# SILT, measured on another machine of this kind (direct I/O): thousand operations a second.
SILT_COLD = {"cold A": 79, "cold B": 57, "cold C": 51, "cold D": 58, "cold F": 49}
# The best of LevelDB, RocksDB and fjall on that machine.
PEERS_COLD = {"cold A": 64, "cold B": 48, "cold C": 49, "cold D": 42, "cold F": 29}


def name(row):
    return ("cold " if row["cold"] and row["phase"] != "open" else "") + row["phase"]


def table(head, lines):
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return out + ["| " + " | ".join(line) + " |" for line in lines]


def latency(row, kind):
    h = row.get(kind)
    return "" if not h else " / ".join(f"{h[q]:,.0f}" if h[q] >= 10 else f"{h[q]:.1f}" for q in ("p50", "p99", "p999", "p9999", "max"))


def written_per_byte(row):
    writes = (row["writes"] or {}).get("count", 0)
    user = row.get("user_bytes", writes * USER_BYTES)
    return row["disk_written_bytes"] / user if user else None


def memory_per_record(row):
    """CONA's index and filter, bytes a record."""
    figures = row["after"]
    return (figures["index_bytes"] + figures["filter_bytes"]) / max(figures["cell_records"], 1)


def looks_up(row):
    """Whether the reads of a row are look-ups of keys that are there."""
    return bool(row.get("reads")) and row["phase"] not in ("E", "gone")


def largest(about):
    """Bytes of the largest value."""
    return int(about.get("values", "200").split("-")[-1])


def pages(row):
    """Of CONA's look-ups in a phase: pages for each look-up that cells answered, pages for each look-up, shares of cache and buffers."""
    change = {k: row["after"][k] - row["before"][k] for k in ("lookups", "buffer_hits", "cache_hits", "page_reads")}
    cells = change["lookups"] - change["buffer_hits"] - change["cache_hits"]
    lookups = max(change["lookups"], 1)
    return {"in_cells": change["page_reads"] / max(cells, 1), "each": change["page_reads"] / lookups,
            "cache": change["cache_hits"] / lookups, "buffers": change["buffer_hits"] / lookups}


def goals(rows, large=False):
    """Each goal that can be judged: name, wanted number, measured number, whether more is better, and relative distance."""
    pick = {(r["system"], name(r)): r for r in rows}
    out = []

    def judge(what, wanted, got, more):
        off = got / wanted - 1 if wanted else 0.0
        out.append({"what": what, "wanted": wanted, "got": got, "more": more, "hit": got >= wanted if more else got <= wanted, "off": off})

    def rate(n, factor, words):
        peers = [pick[s, n]["ops_per_s"] for s in PEERS if (s, n) in pick]
        if ("cona", n) in pick and peers:
            judge(f"{n}: rate, of the best peer's{words}", factor, pick["cona", n]["ops_per_s"] / max(peers), True)

    rate("load", 1.5, "")
    for n in ("A", "F"):
        rate(n, 1.5 if large else 1.3, "")
    for n in ("B", "C", "D"):
        rate(n, 1.5 if large else 1.0, ", warm")
    rate("E", 1.5, "")
    for n in ("cold B", "cold C", "cold D"):
        rate(n, 1.14, "")
    for n, thousand in SILT_COLD.items():
        if ("cona", n) in pick:
            judge(f"{n}: thousand operations/s (SILT's on another, faster machine)", thousand, pick["cona", n]["ops_per_s"] / 1000, True)
            peers = [pick[s, n]["ops_per_s"] for s in PEERS if (s, n) in pick]
            if peers:
                judge(f"{n}: rate, of the best peer's (SILT's was that there)", thousand / PEERS_COLD[n], pick["cona", n]["ops_per_s"] / max(peers), True)
    for n in ("load", "A", "F"):
        peers = [written_per_byte(pick[s, n]) for s in PEERS if (s, n) in pick]
        if ("cona", n) in pick and peers:
            judge(f"{n}: bytes written a byte, of the least of the peers", 1.0, written_per_byte(pick["cona", n]) / min(peers), False)
    for n in ("load", "delete"):
        peers = [pick[s, n]["disk_bytes"] for s in PEERS if pick.get((s, n), {}).get("disk_bytes")]
        if peers and pick.get(("cona", n), {}).get("disk_bytes"):
            judge(f"{n}: bytes on the disk once settled, of the least of the peers", 1.1, pick["cona", n]["disk_bytes"] / min(peers), False)
    ours = [r for r in rows if r["system"] == "cona"]
    if ours:
        judge("index and filter, B a record, most after any phase", 4.0 if large else 1.2, max(memory_per_record(r) for r in ours), False)
    looked = [(pages(r)["in_cells"], name(r)) for r in ours if looks_up(r)]
    if looked and not large:
        worst, n = max(looked)
        judge(f"pages read, a present key's look-up in cells, most of any phase ({n})", 1.02, worst, False)
    waits = [(r["writes"]["p99"] / r["writes"]["p50"], name(r)) for r in ours if r.get("writes") and not r["cold"]]
    if waits:
        worst, n = max(waits)
        judge(f"p99 of writes, of the median, most of any warm phase ({n})", 10.0, worst, False)
    if ("cona", "open") in pick:
        row = pick["cona", "open"]
        judge(f"opening {row['records'] / 1e6:.1f} M records, nothing cached, s", 2.0, row["seconds"], False)
    return out


def goal_lines(rows, large=False):
    judged = goals(rows, large)
    show = lambda v: f"{v:,.0f}" if v >= 100 else f"{v:.2f}" if v < 10 else f"{v:.1f}"
    lines = table(["goal", "wanted", "measured", ""], [
        [g["what"], ("≥ " if g["more"] else "≤ ") + show(g["wanted"]), show(g["got"]),
         "reached" if g["hit"] else f"**missed by {abs(g['off']) * 100:.0f} %**"] for g in judged])
    return [f"{sum(g['hit'] for g in judged)} of {len(judged)} reached.", ""] + lines


def disk_lines(rows, systems, timed):
    """Megabytes on the disk after each phase, and the most during it."""
    pick = {(r["system"], name(r)): r for r in rows if r.get("disk_bytes")}
    names = [n for n in timed if any((s, n) in pick for s in systems)]
    if not names:
        return []
    show = lambda r: f"{r['disk_bytes'] / 1e6:,.0f} ({r['disk_peak_bytes'] / 1e6:,.0f})"
    return ["", "## Megabytes on the disk once settled (most during the phase)", ""] + table(
        ["system"] + names, [[s] + [show(pick[s, n]) if (s, n) in pick else "" for n in names] for s in systems])


def report(rows, about):
    systems = [s for s in SYSTEMS if any(r["system"] == s for r in rows)]
    names = list(dict.fromkeys(name(r) for r in rows))
    timed = [n for n in names if n != "open"]
    pick = {(r["system"], name(r)): r for r in rows}
    cell = lambda s, n, f: f(pick[s, n]) if (s, n) in pick else ""
    loads = [r["load_average"] for r in rows]
    many = len(systems) > 1
    lines = ["# CONA beside its peers, YCSB" if many else "# CONA, YCSB", "",
             f"{about['records']:,} records of 20 + {about.get('values', '200')} bytes, {about['ops']:,} operations a phase (cold ones a quarter), zipfian 0.99, one client, "
             "64 MiB of cache and 16 MiB write buffers each, no compression, every write handed to the operating system before it is acknowledged. "
             + ("The engines took turns, phase by phase. " if many and not about.get("apart") else "")
             + "Cold: the page cache is evicted every 50 ms (not for LevelDB: it maps its tables, and evicting what is mapped slows it down by itself).",
             f"Machine: {about['machine']['cpu']}, {about['machine']['cores']} cores, {about['machine']['memory_gib']} GiB, {about['machine']['kernel']}, "
             f"{about['machine']['file_systems']['stores']}. Load average {min(loads)} to {max(loads)}"
             + (": **other programs were running, the figures are not final**." if max(loads) > 3.5 else "."),
             *([about["note"]] if about.get("note") else []), "",
             "## Thousand operations a second", ""]
    best = lambda n: max((pick[s, n]["ops_per_s"] for s in systems if s != "cona" and (s, n) in pick), default=None)
    body = [[s] + [cell(s, n, lambda r: f"{r['ops_per_s'] / 1000:,.0f}") for n in timed] for s in systems]
    if many:
        ratio = lambda n: f"{pick['cona', n]['ops_per_s'] / best(n):.2f}" if best(n) and ("cona", n) in pick else ""
        body.append(["cona / best peer"] + [ratio(n) for n in timed])
    lines += table(["system"] + timed, body)
    settled = [(s, pick[s, "load"]) for s in systems if (s, "load") in pick]
    if settled:
        each = ", ".join(f"{s} {r['ops'] / (r['seconds'] + r['settle_s']) / 1000:,.0f} ({r['settle_s']:.1f} s more)" for s, r in settled)
        lines += ["", f"Load, until all that was begun in the background was done, too: {each}."]
    lines += ["", "## Goals", ""] + goal_lines(rows, largest(about) >= LARGE_BYTES)
    lines += ["", "## Bytes", "",
              "Write amplification is bytes to the disk a byte from the user, background work until it is quiet included. Read bytes are from the disk, an operation.", ""]
    show = lambda v: "" if v is None else f"{v:.1f}"
    writing = [n for n in timed if any((s, n) in pick and written_per_byte(pick[s, n]) for s in systems)]
    lines += table(["system"] + [f"{n}: written" for n in writing],
                   [[s] + [cell(s, n, lambda r: show(written_per_byte(r))) for n in writing] for s in systems])
    cold = [n for n in timed if n.startswith("cold")]
    if cold:
        lines += [""] + table(["system"] + [f"{n}: read B/operation" for n in cold],
                              [[s] + [cell(s, n, lambda r: f"{r['disk_read_bytes'] / r['ops']:,.0f}") for n in cold] for s in systems])
    lines += disk_lines(rows, systems, timed)
    if "open" in names:
        lines += ["", "## Opening, nothing cached", ""]
        lines += table(["system", "s", "read, MB", "anonymous, MB"],
                       [[s] + [cell(s, "open", f) for f in (lambda r: f"{r['seconds']:.3f}", lambda r: f"{r['disk_read_bytes'] / 1e6:,.1f}",
                                                            lambda r: f"{r['anonymous_bytes'] / 1e6:,.0f}")] for s in systems])
    lines += ["", "## Memory after the load and after all phases", ""]
    megabytes = lambda r: f"{r['anonymous_bytes'] / 1e6:,.0f} MB"
    warm = [n for n in timed if not n.startswith("cold")]
    marks = [timed[0], warm[-1]]
    lines += table(["system", *(f"anonymous, {n}" for n in marks)], [[s, *(cell(s, n, megabytes) for n in marks)] for s in systems])
    for n in marks:
        figures = pick.get(("cona", n), {}).get("after")
        if figures:
            keys = max(figures["cell_records"], 1)
            lines += ["", f"CONA after {n}: {figures['cells']} cells, index {figures['index_bytes'] / keys:.3f} + filter {figures['filter_bytes'] / keys:.3f} "
                      f"= {(figures['index_bytes'] + figures['filter_bytes']) / keys:.3f} B a record."]
        peer = pick.get(("rocksdb", n), {}).get("after")
        if peer:
            lines += ["", f"RocksDB after {n}: index and filters {peer['table_memory_bytes'] / pick['rocksdb', n]['records']:.2f} B a record."]
    lines += ["", "Pages that CONA read, a look-up that neither a buffer nor the cache of records answered:", ""]
    looked = [(n, pages(pick["cona", n])) for n in timed if looks_up(pick.get(("cona", n), {}))]
    lines += table(["phase", "pages a look-up in cells", "pages a look-up", "from the cache", "from buffers"],
                   [[n, f"{p['in_cells']:.4f}", f"{p['each']:.3f}", f"{100 * p['cache']:.0f} %", f"{100 * p['buffers']:.0f} %"] for n, p in looked])
    for kind in ("reads", "writes"):
        lines += ["", f"## Latency of {kind}, µs: p50 / p99 / p99.9 / p99.99 / max", ""]
        has = [n for n in timed if any((s, n) in pick and pick[s, n][kind] for s in systems)]
        lines += table(["system"] + has, [[s] + [cell(s, n, lambda r: latency(r, kind)) for n in has] for s in systems])
    return "\n".join(lines) + "\n"


def svg(rows):
    """Rates over time, one panel a phase."""
    rows = [r for r in rows if r["series"]]
    names = list(dict.fromkeys(name(r) for r in rows))
    width, height, columns = 320, 150, 3
    parts = []
    for at, n in enumerate(names):
        x0, y0 = 50 + at % columns * (width + 40), 60 + at // columns * (height + 50)
        here = [r for r in rows if name(r) == n]
        top = max(max(r["series"]) for r in here)
        parts.append(f'<text x="{x0}" y="{y0 - 6}" font-weight="bold">{escape(n)}: up to {top / 1000:,.0f} thousand/s</text>')
        parts.append(f'<rect x="{x0}" y="{y0}" width="{width}" height="{height}" fill="none" stroke="#bbb"/>')
        for r in here:
            step = width / max(len(r["series"]) - 1, 1)
            points = " ".join(f"{x0 + i * step:.1f},{y0 + height * (1 - v / top):.1f}" for i, v in enumerate(r["series"]))
            parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[r["system"]]}" stroke-width="1.3"/>')
    legend = "".join(f'<text x="{50 + 110 * i}" y="40" fill="{c}" font-weight="bold">{s}</text>' for i, (s, c) in enumerate(COLOURS.items()))
    bottom = 60 + (len(names) + columns - 1) // columns * (height + 50)
    wide = 50 + columns * (width + 40)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{bottom}" viewBox="0 0 {wide} {bottom}" font-family="sans-serif" font-size="11">'
            '<rect width="100%" height="100%" fill="white"/><text x="50" y="20" font-weight="bold">Operations a second over each phase, from its begin to its end</text>'
            + legend + "\n".join(parts) + "</svg>\n")
