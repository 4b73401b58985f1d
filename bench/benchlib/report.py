"""From rows to results: medians and spread, targets met or missed and the bottleneck, Markdown and JSON."""

import json
import os
import statistics

# (medium, work, what, least or most, value): what is in bytes a second, files a second, CPU seconds a GB, or
# the share of (fio / 1.5) that a coded write reaches.
TARGETS = [
    ("tmpfs", "write new", "rate", ">=", 1.0e9),
    ("tmpfs", "read", "rate", ">=", 1.5e9),
    ("tmpfs", "write again", "rate", ">=", 3.5e9),
    ("tmpfs", "write new", "cpu_s_per_gb", "<=", 1.4),
    ("tmpfs", "read", "cpu_s_per_gb", "<=", 0.9),
    ("disk", "write new", "share_of_fio", ">=", 0.8),
    ("disk", "small files", "rate", ">=", 5000.0),
]

WORKS = ["write new", "read", "read, kept", "write again", "small files"]


def spread(values):
    """Median, minimum and maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def pick(rows, **want):
    return [r for r in rows if all(r.get(k) == v for k, v in want.items())]


def value_of(row, what):
    """A number of a row; `share_of_fio` is paired with the ceiling of the same round."""
    if what == "share_of_fio":
        return row["rate"] / (row["ceiling"]["fio_write"] / 1.5)
    return row[what]


def judge(rows):
    """Each target with the measured value, hit or missed, by how much, and the bottleneck."""
    out = []
    for medium, work, what, sense, goal in TARGETS:
        found = pick(rows, medium=medium, system="tessera", work=work)
        if not found:
            continue
        got = spread([value_of(r, what) for r in found])
        hit = got["median"] >= goal if sense == ">=" else got["median"] <= goal
        out.append({"medium": medium, "work": work, "what": what, "sense": sense, "goal": goal, "got": got,
                    "hit": hit, "off_by": got["median"] / goal - 1, "bound": bound(found)})
    return out


def bound(rows):
    """One sentence on the bottleneck: where the CPU time went, and how busy the cores and the machine were."""
    row = sorted(rows, key=lambda r: r["rate"])[len(rows) // 2]
    total = sum(row["cpu_s"].values()) or 1e-9
    shares = ", ".join(f"{role} {100 * s / total:.0f} %" for role, s in sorted(row["cpu_s"].items(), key=lambda i: -i[1]))
    cores = row["cores"]
    ours, everyone = row["cores_busy"], row["cores_busy_machine"]
    if everyone > 0.85 * cores and ours < 0.7 * everyone:
        what = f"other programs held {everyone - ours:.1f} of {cores} cores"
    elif ours > 0.85 * cores:
        what = "bound by the CPU"
    else:
        what = "not bound by the CPU: waits on disk, syncs or answers"
    return f"{what}; {ours:.2f} of {cores} cores busy ({shares})"


def rate_text(work, value):
    return f"{value:,.0f} files/s" if work == "small files" else f"{value / 1e9:.3f} GB/s"


def figure_text(what, work, value):
    if what == "rate":
        return rate_text(work, value)
    return f"{value:.2f} s/GB" if what == "cpu_s_per_gb" else f"{value:.2f} of fio/1.5"


def _spread_text(what, work, s):
    return f"{figure_text(what, work, s['median'])} ({figure_text(what, work, s['min'])} – {figure_text(what, work, s['max'])})"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows]


def markdown(result):
    """The text of bench/results/store.md."""
    m, config = result["machine"], result["config"]
    systems = " and ".join(["Tessera"] * ("tessera" in config["systems"]) + [f"GlusterFS {config.get('peer_version', '')}"] * ("gluster" in config["systems"]))
    lines = [
        "# The store beside its peer and its ceilings", "",
        f"{systems}, `4+2` on six nodes (bricks) of one machine over loopback sockets. Machine: {m['cpu']}, "
        f"{m['cores']} cores ({', '.join(m['isa'])}), {m['memory_gib']} GiB memory, {m['kernel']}; "
        + ", ".join(f"{name}: {fs}" for name, fs in m["file_systems"].items()) + ".",
        f"{config['rounds']} interleaved rounds of {config['size_bytes'] / 1e9:.3f} GB, {config['writers']} writers of "
        f"4 KiB files (each synced or committed before its writer goes on); median (least – greatest). "
        f"Load average when started: {result['load_before']:.1f}, when ended: {result['load_after']:.1f}"
        + (": **other programs were running, the figures are not final**." if result["load_before"] > 0.5 else ".")
        + (" Shortened run (`--quick`): **not final**." if config["quick"] else ""),
        "", "CPU is user and system time of all daemons and the client together. GB = 10⁹ bytes.", "",
    ]
    lines += ["## Targets", ""] + table(
        ["medium", "work", "target", "measured", "", "what bounds it"],
        [[t["medium"], t["work"], f"{t['sense']} {figure_text(t['what'], t['work'], t['goal'])}",
          _spread_text(t["what"], t["work"], t["got"]),
          "hit" if t["hit"] else f"**missed** by {abs(t['off_by']) * 100:.0f} %", t["bound"]] for t in result["targets"]])
    lines += _side_by_side(result) + _ceilings(result) + _parts(result) + _integrity(result) + _gest(result) + _problems(result)
    return "\n".join(lines) + "\n"


def _side_by_side(result):
    rows = []
    for medium in ("tmpfs", "disk"):
        for work in WORKS:
            for system in ("tessera", "gluster"):
                found = pick(result["rows"], medium=medium, system=system, work=work)
                if not found:
                    continue
                cpu = "cpu_s_per_gb" if "cpu_s_per_gb" in found[0] else "cpu_s_per_thousand"
                stored = [r["stored_bytes"] for r in found if "stored_bytes" in r]
                wrong = [r["wrong_bytes"] for r in found if "wrong_bytes" in r]
                rows.append([
                    medium, work, system, _spread_text("rate", work, spread([r["rate"] for r in found])),
                    f"{statistics.median([r[cpu] for r in found]):.2f} s/" + ("GB" if cpu == "cpu_s_per_gb" else "1,000"),
                    f"{statistics.median(stored) / 1e9:.3f} GB" if stored else
                    (f"p50 {found[0]['p50_ms']:.1f} ms, p99 {found[0]['p99_ms']:.1f} ms" if "p50_ms" in found[0] else ""),
                    ("equal" if not any(wrong) else f"**{max(wrong):.0f} wrong**") if wrong else "",
                ])
    return ["", "## Side by side", ""] + table(
        ["medium", "work", "system", "rate", "CPU", "stored / latency", "bytes"], rows) + [
        "", "`read` is by a client with empty caches; on disk the page cache of the nodes is empty too. `write again` "
        "is the same data under another name."]


def _ceilings(result):
    rows, seen = [], {}
    for r in result["rows"]:
        seen[(r["medium"], r["round"])] = r["ceiling"]
    for medium in ("tmpfs", "disk"):
        each = [c for (m, _), c in seen.items() if m == medium]
        if each:
            texts = [_spread_text("rate", w, spread([c[k] for c in each])) for k, w in
                     (("fio_write", ""), ("fio_read", ""), ("small", "small files"), ("memcpy", ""))]
            rows.append([medium, *texts])
    return ["", "## Ceilings of the same rounds", ""] + table(
        ["medium", "fio write, synced", "fio read, not cached", "4 KiB files, synced, bare", "memcpy, one thread"], rows) + [
        "", "fio: one sequential writer or reader of 1 MiB blocks; the write figure of a round is the mean of runs before, "
        "between and after the systems."]


# Bytes of each part that a coded write and read need per byte of the file, at 4+2.
NEEDS = {"boundaries": (1, 0), "blake3": (1, 1), "encode": (1, 0), "crc32c": (3, 1), "tcp, both ends": (1.5, 1),
         "write to page cache": (1.5, 0), "read from page cache": (0, 1)}


# Seconds a GB of all parts of a coded write and read, on the machine that the targets were set for.
TARGET_FLOORS = (1.0, 0.65)


def _parts(result):
    """The lower bound of CPU time: each part of the data path alone, times its use in a write and a read."""
    each = [c["parts"] for c in {r["round"]: r["ceiling"] for r in pick(result["rows"], medium="tmpfs")}.values()
            if "parts" in c]
    if not each:
        return []
    alone = {name: statistics.median([p[name] for p in each]) for name in NEEDS}
    rows = [[name, f"{s:.3f}", f"{s * NEEDS[name][0]:.3f}", f"{s * NEEDS[name][1]:.3f}"] for name, s in alone.items()]
    sums = [sum(s * NEEDS[n][i] for n, s in alone.items()) for i in (0, 1)]
    rows.append(["sum", "", *(f"{s:.3f}" for s in sums)])
    measured = [[r["cpu_s_per_gb"] for r in pick(result["rows"], medium="tmpfs", system="tessera", work=work)]
                for work in ("write new", "read")]
    if all(measured):
        measured = [statistics.median(m) for m in measured]
        goals = [goal for medium, _, what, _, goal in TARGETS if what == "cpu_s_per_gb"]
        rows += [["measured, all processes", "", *(f"{m:.3f}" for m in measured)],
                 ["measured / sum", "", *(f"**{m / s:.2f}**" for m, s in zip(measured, sums))],
                 ["target / floor it was set by", "", *(f"{g / f:.2f}" for g, f in zip(goals, TARGET_FLOORS))],
                 ["sum here / that floor", "", *(f"{s / f:.2f}" for s, f in zip(sums, TARGET_FLOORS))]]
    return ["", "## Floor of the CPU time, seconds a GB", ""] + table(
        ["part, measured alone", "a GB of it", "in a GB written new", "in a GB read"], rows) + [
        "", "Written: 1.5 bytes cross sockets and enter the page cache for each byte of the file; checksums are computed by the "
        "client and checked by the node. Read: fragments go from the page cache to sockets; whether the node copies them is "
        "its choice (counted here as one read). Manager and metadata are not counted.",
        "", f"The targets suppose a machine on which these parts take {TARGET_FLOORS[0]} and {TARGET_FLOORS[1]} s; the last row says how "
        "much slower this one was while it was measured. Measured / sum compares the store with its own parts on the same "
        "machine in the same minutes, whatever its speed."]


def _integrity(result):
    if not result.get("integrity"):
        return []
    return ["", "## Integrity: 64 bytes flipped in fragments of two of six members, six files", ""] + table(
        ["system", "flips", "reads right", "reads wrong", "reads refused", "damage reported", "repaired"],
        [[r["system"], r["flips"], r["right"], f"**{r['wrong']}**" if r["wrong"] else 0, r["refused"], r["reported"],
          r["repaired"]] if "error" not in r else [r["system"], f"could not be measured: {r['error']}", *[""] * 5]
         for r in result["integrity"]])


def _gest(result):
    rows = []
    for m in sorted({r["m"] for r in result.get("gest", [])}):
        ec, copies = (pick(result["gest"], m=m, kind=k) for k in ("ec", "replica"))
        if not ec or not copies:
            continue
        mid = lambda found, what: statistics.median([r[what] for r in found])
        size = result["config"]["gest_bytes"]
        # Paired by round, like all ratios here.
        ratios = [e["both"] / c["both"] for e in ec for c in copies if e["round"] == c["round"]]
        rows.append([m, f"({8 - m}:{m}) {ec[0]['redundancy']}", copies[0]["redundancy"],
                     f"{mid(ec, 'stored_bytes') / size:.2f} / {mid(copies, 'stored_bytes') / size:.2f}",
                     f"{mid(ec, 'write') / 1e9:.2f} / {mid(copies, 'write') / 1e9:.2f}",
                     f"{mid(ec, 'read') / 1e9:.2f} / {mid(copies, 'read') / 1e9:.2f}",
                     f"{mid(ec, 'write_cpu_s_per_gb'):.2f} / {mid(copies, 'write_cpu_s_per_gb'):.2f}",
                     f"{statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})"])
    if not rows:
        return []
    return ["", "## Coding against copies at equal fault tolerance (Gest), eight nodes on tmpfs", ""] + table(
        ["m", "coded", "copies", "bytes stored per byte", "write GB/s", "read GB/s", "write CPU s/GB",
         "speed, write and read together, coded / copies"], rows) + [
        "", "Each pair is coded / copies. The paper (eight nodes of a GPU cluster) has 1.82 at m = 6 and about a tie at m = 2."]


def _problems(result):
    """Parts of the run that failed; their numbers are missing above."""
    if not result.get("problems"):
        return []
    return ["", "## What failed, and is missing above", ""] + [f"- {problem}" for problem in result["problems"]]


def write(result, directory):
    """Writes store.json and store.md; plot.py writes the plot."""
    text = markdown(result)
    save(directory, "store", result, text)
    return text


def lines_of(title, *parts):
    """A section of a page: its parts are lines or lists of lines, with an empty line between them."""
    out = ["", f"## {title}", ""]
    for part in parts:
        out += part if isinstance(part, list) else [part]
        out.append("")
    return out[:-1]


def save(directory, name, result, text):
    """Writes NAME.json and NAME.md."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, f"{name}.json"), "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    with open(os.path.join(directory, f"{name}.md"), "w") as f:
        f.write(text)
