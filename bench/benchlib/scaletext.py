"""The page and the plot of `bench/scale.py`."""

import bisect
import os
import statistics
import time
from xml.sax.saxutils import escape

from . import report

GOALS = {"flat": 0.20, "restart_s": 3.0, "status_s": 0.05, "idle": {8: 0.5, 32: 1.5}}


def role_of(pid):
    """`up`, `manager` or `node`: the command of a process of `tessera up`."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            words = f.read().split(b"\0")
    except OSError:
        return ""
    return words[1].decode() if len(words) > 1 else ""


def run_seconds(pids):
    """Time that all threads of these processes ran so far, ended ones too, by the scheduler's clock. Ticks (/proc/PID/stat) are too coarse for threads that run for microseconds."""
    # The id of a process's CPU clock (clock_getcpuclockid(3)): the bits of its complement, above 2, which says the scheduler's.
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def switches(pids):
    """Context switches of all threads of these processes so far: each wake-up is one."""
    total = 0
    for pid in pids:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/status") as f:
                total += sum(int(line.split()[1]) for line in f if line.startswith("voluntary_ctxt"))
    return total


def rows_of(steps, row_files):
    """Steps joined to rows of `row_files` files: files, seconds, CPU seconds of the manager, and sizes at the end."""
    rows, files = [], 0
    for step in steps:
        if not rows or rows[-1]["files"] >= row_files:
            rows.append({"files": 0, "s": 0.0, "manager_cpu_s": 0.0, "others_cpu_s": 0.0})
        row = rows[-1]
        for key in ("files", "s", "manager_cpu_s", "others_cpu_s"):
            row[key] += step.get(key, 0)
        files += step["files"]
        row.update({key: step[key] for key in ("db", "wal", "snapshots", "log")}, at_files=files, rate=row["files"] / row["s"], cpu_us=1e6 * row["manager_cpu_s"] / row["files"])
    return rows


def flatness(rows):
    """How far the median rate of the last tenth is from that of the first tenth, and the least rate of a row beside the median of all."""
    rates = [row["rate"] for row in rows]
    tenth = max(len(rates) // 10, 1)
    first, last = statistics.median(rates[:tenth]), statistics.median(rates[-tenth:])
    return {"first": first, "last": last, "change": last / first - 1, "median": statistics.median(rates), "least": min(rates), "most": max(rates)}


def tenths(rows, key):
    """Median of a figure in the first tenth of the rows, and in the last."""
    tenth = max(len(rows) // 10, 1)
    return tuple(statistics.median(row[key] for row in part) for part in (rows[:tenth], rows[-tenth:]))


def halves(samples, key):
    """The most of a sampled figure in the second tenth of the run, and in its last tenth."""
    tenth = max(len(samples) // 10, 1)
    return max(s[key] for s in samples[tenth:2 * tenth] or samples), max(s[key] for s in samples[-tenth:])


def snapshot_spans(samples):
    """Times in which the bytes of snapshots grew: from a sample to the next one."""
    return [(a["at"], b["at"]) for a, b in zip(samples, samples[1:]) if b["snapshots"] > a["snapshots"]]


def snapshots(samples):
    """Seconds that each snapshot took to be written, within the time between two samples."""
    runs = []
    for begin, end in snapshot_spans(samples):
        if runs and begin - runs[-1][1] < 1.5:
            runs[-1][1] = end
        else:
            runs.append([begin, end])
    return [end - begin for begin, end in runs]


def dips(steps, samples):
    """Rates of steps beside which a snapshot was written, and of the others."""
    spans, with_one, without = snapshot_spans(samples), [], []
    ends = [end for _, end in spans]
    for step in steps:
        began = step["at"] - step["s"]
        i = bisect.bisect_right(ends, began)
        beside = i < len(spans) and spans[i][0] < step["at"]
        (with_one if beside else without).append(step["files"] / step["s"])
    median = lambda rates: statistics.median(rates) if rates else 0.0  # noqa: E731
    return {"with": median(with_one), "without": median(without), "steps_with": len(with_one), "steps": len(steps)}


def verdict(hit):
    return "hit" if hit else "**missed**"


def mib(count):
    return f"{count / 2**20:,.0f} MiB"


def ms(s):
    return f"{s['median'] * 1e3:.0f} ms ({s['min'] * 1e3:.0f} to {s['max'] * 1e3:.0f})"


def markdown(result):
    """The text of bench/results/scale.md."""
    m = result["machine"]
    lines = ["# Scale", "", f"`python3 bench/scale.py`. {m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB, {m['kernel']}; load {result['load_average']:.1f} at the start; "
             f"{result.get('seconds', 0) / 60:.0f} minutes."]
    if "run" in result:
        lines += store_text(result)
    if "idle" in result:
        lines += idle_text(result)
    return "\n".join(lines) + "\n"


def store_text(result):
    run, floor = result["run"], result["floor"]
    steps, named = run["load"]["steps"], run["named"]["steps"]
    rows = rows_of(steps, result["row_files"])
    costs = tenths(rows, "cpu_us")
    flat, dip = flatness(rows), dips(steps, run["load"]["samples"])
    nflat = flatness([{"rate": step["bytes"] / step["s"]} for step in named])
    early, late = halves(run["load"]["samples"], "anon")
    nearly, nlate = halves(run["named"]["samples"], "anon")
    files, seconds = result["files"], sum(step["s"] for step in steps)
    cpu = sum(step["manager_cpu_s"] for step in steps)
    probes = run["load"]["probes"]
    spread = lambda key, rows=probes: report.spread([row[key] for row in rows])  # noqa: E731
    logical = sum(step["bytes"] for step in named)
    goal = GOALS
    table = [
        ["files a second, all processes on these cores", f"{files / seconds:,.0f}", "", "", ""],
        ["the same, first and last tenth", f"{flat['first']:,.0f} → {flat['last']:,.0f} ({100 * flat['change']:+.0f} %)", "", "within 20 %", verdict(abs(flat["change"]) <= goal["flat"])],
        [f"files a second, rows of {result['row_files']:,}: least, median, most", f"{flat['least']:,.0f}, {flat['median']:,.0f}, {flat['most']:,.0f}", "", "", ""],
        ["manager, CPU µs a file", f"{1e6 * cpu / files:.1f}", f"{floor['cpu_us_a_file']:.1f} (SQLite inserts the same rows)", "", ""],
        ["the same, first and last tenth", "{:.1f} → {:.1f} ({:+.0f} %)".format(*costs, 100 * (costs[1] / costs[0] - 1)), "", "within 20 %", verdict(costs[1] <= costs[0] * (1 + goal["flat"]))],
        ["manager's database, bytes a file", f"{rows[-1]['db'] / files:.0f}", f"{floor['bytes_a_file']:.0f}", "", ""],
        ["manager's memory (anonymous), second tenth and last tenth", f"{mib(early)} → {mib(late)}", "128 MiB (SQLite's cache)", "flat", verdict(late <= early * 1.2 + (16 << 20))],
        ["named bytes a second, first and last tenth", f"{nflat['first'] / 1e9:,.0f} → {nflat['last'] / 1e9:,.0f} GB/s ({100 * nflat['change']:+.0f} %)", "", "within 20 %", verdict(abs(nflat["change"]) <= goal["flat"])],
        ["manager's memory while bytes are named", f"{mib(nearly)} → {mib(nlate)}", "", "flat", verdict(nlate <= nearly * 1.2 + (16 << 20))],
    ]
    for name, key, what in (("kill -9 and start, until `status` answers", "restart", f"{files:,} files"), ("the same", "restart_full", f"and {logical / 1e12:.0f} TB")):
        s = run[key]
        table.append([f"{name}, {what}", f"{s['median']:.2f} s ({s['min']:.2f} to {s['max']:.2f})", "", f"≤ {goal['restart_s']} s", verdict(s["median"] <= goal["restart_s"])])
    for name, s in (("`status`, at rest", run["status"]), ("`status`, everything, at rest", run["status_full"]), ("`status` while files are stored", spread("status_s"))):
        table.append([name, ms(s), "", f"≤ {goal['status_s'] * 1e3:.0f} ms", verdict(s["median"] <= goal["status_s"])])
    for name, ls in (("`ls` of the long directory", run["ls"]), ("`ls -l` of it", run["ls_long"]), ("`ls -r` of everything", run["ls_all"])):
        streams = ls["first_s"] < 0.1 + ls["s"] / 10
        table.append([name, f"first bytes {ls['first_s'] * 1e3:.0f} ms, {ls['lines']:,} lines in {ls['s']:.1f} s; command at most {mib(ls['client_bytes'])}, manager +{mib(max(ls['manager_grew_bytes'], 0))} at most",
                      "", "streams", verdict(streams)])
    text = report.lines_of(
        "Ten million files and 64 TB" if files == 10_000_000 else f"{files:,} files and {logical / 1e12:.0f} TB",
        f"{files:,} files of 100 B to 64 KiB ({sum(s['bytes'] for s in steps) / files:.0f} bytes on average, no two alike), one in ten of them in one directory, the others in "
        f"{max(files // 1000, 1):,}. {THREADS_TEXT} {KEEPS_TEXT} The {logical / 1e12:.0f} TB are {len(named):,} files that name {result['pool']:,} chunks again and again: they show what "
        f"extents and commits cost, and not what as many rows of chunks would (`make bench-size` has 3·10⁷). The goal of each line is the project's; floors are what the machine can do for the same work.",
        report.table(["what", "measured", "floor", "goal", ""], table),
        *([result["note"]] if "note" in result else []),
        "![rates, memory and sizes over time](scale.svg)",
    )
    put, get = (report.spread([p[k] for p in probes]) for k in ("put_ms", "get_ms"))
    reads = run["reads"]
    taken = snapshots(run["load"]["samples"])
    join, gone, sizes, full = run["standby"], run["removal"], run["sizes"], run["sizes_full"]
    row = lambda what, value: [what, value]  # noqa: E731
    text += report.lines_of("What else was measured", report.table(["what", "measured"], [
        row("one put of 4 KiB while files are stored", f"{put['median']:.1f} ms ({put['min']:.1f} to {put['max']:.1f})"),
        row("one get of it", f"{get['median']:.1f} ms ({get['min']:.1f} to {get['max']:.1f})"),
        row("files a second beside a snapshot, and without one", f"{dip['with']:,.0f}, {dip['without']:,.0f} ({dip['steps_with']} of {dip['steps']} steps)"),
        row("snapshots of the database meanwhile", f"{len(taken)}, the longest {max(taken, default=0):.0f} s"),
        row("database, snapshots, command log after the files", f"{sizes['db'] / 1e9:.2f}, {sizes['snapshots'] / 1e9:.2f}, {sizes['log'] / 1e9:.2f} GB"),
        row("the same with everything", f"{full['db'] / 1e9:.2f}, {full['snapshots'] / 1e9:.2f}, {full['log'] / 1e9:.2f} GB"),
        row("data on the nodes' disks", f"{run['disk_bytes'] / 1e9:.2f} GB for {sum(s['bytes'] for s in steps) / 1e9:.2f} GB"),
        row("a standby joins", f"{join['joined_s']:.1f} s; memory {mib(join['anon'])} anonymous, {mib(join['rss'])} in all, after {join['rewritten_files']:,} rewrites"),
        row("files rewritten a second beside the standby", f"{join['rewritten_files'] / join['rewrites_s']:,.0f}"),
        row("`rm -r` of the long directory", f"{gone['files'] / gone['s']:,.0f} names a second, {1e6 * gone['manager_cpu_s'] / gone['files']:.1f} µs of the manager each; then `gc` {gone['gc_s']:.1f} s"),
    ]))
    return text + sustains(result, cpu / files, reads, named)


KEEPS_TEXT = "The manager keeps the metadata alone (`max_voters=1`): with voters on nodes a commit also waits for two of them."
THREADS_TEXT = "One client with four threads, six nodes and one manager share the machine."


def about(value):
    """Two significant digits."""
    return f"{float(f'{value:.1e}'):,.0f}"


def sustains(result, cpu_a_file, reads, named):
    """What one manager does on one core, from its CPU time in this run."""
    each = {name: facts["manager_cpu_s"] / facts["count"] for name, facts in reads.items()}
    extents = sum(step["bytes"] for step in named) / (1 << 20)
    extent = sum(step["manager_cpu_s"] for step in named) / extents
    per_file = 1 / cpu_a_file
    sizes = result["run"]["sizes"]
    bytes_a_file = sizes["db"] / result["files"]
    restart = result["run"]["restart"]["median"]
    text = report.lines_of("What one manager sustains on one core", report.table(["what", "CPU µs of the manager, all threads", "a second, on one core"], [
        ["a small file stored in a pack", f"{1e6 * cpu_a_file:.1f}", f"{about(per_file)}"],
        ["a look-up by path (`stat`)", f"{1e6 * each['stat']:.1f}", f"{about(1 / each['stat'])}"],
        ["a small file opened and read by itself", f"{1e6 * each['get']:.1f}", f"{about(1 / each['get'])}"],
        ["a chunk asked about by name and committed", f"{1e6 * extent:.2f}", f"{about(1 / extent)} ({about((1 << 20) / extent / 1e9)} GB/s in chunks of 1 MiB)"],
    ]))
    disk_files = 1e12 / (bytes_a_file * 3.5)
    return text + [
        "",
        "All changes go through one thread. What connections, snapshots and long reads take beside it is counted here, too, and may run on other cores: a manager with several cores does more. "
        "**A second manager group is needed** when the sum of a workload's rows above exceeds a core"
        f": at more than {about(per_file * 0.7)} small files, {about(0.7 / each['get'])} opened reads or {about(0.7 * (1 << 20) / extent / 1e9)} GB of chunks that are known and looked up often a second (70 % of a core, so that snapshots and elections have the rest). "
        f"By size the disk decides before the memory does: the database has {bytes_a_file:.0f} bytes a file, and a disk holds it, its snapshot, the next one and the command log, "
        f"3.5 times as much: {disk_files / 1e9:,.1f} billion small files for each TB of the manager's disk. A restart took {restart:.1f} s at {result['files']:,} files; "
        "it reads the command log since the last snapshot, which grows to a fifth of it.",
    ]


def idle_text(result):
    body = []
    for row in result["idle"]:
        nodes = row["nodes"]
        goal, roles = GOALS["idle"].get(nodes), row["by_role"]
        body.append([nodes, f"{row['percent']:.2f} %", f"{roles['manager']:.2f} / {roles['node']:.2f} / {roles['up']:.2f}", f"{row['switches_per_s']:,.0f}",
                     f"≤ {goal} %", verdict(row["percent"] <= goal)])
    return report.lines_of("CPU time at rest", f"`tessera up` without clients, all processes, {result['idle'][0]['seconds']:.0f} s, by the scheduler's clock, which counts what ticks miss of threads that run for microseconds. Nodes look for small files and packs every ten minutes; that is not in these seconds.",
                           report.table(["nodes", "of one core", "manager / nodes / `up`", "wake-ups a second", "goal", ""], body),
                           *([result["idle_note"]] if "idle_note" in result else []))


def panel(x0, y0, title, unit, lines, spans=()):
    """One plot over time: `lines` are (name, colour, points)."""
    width, height = 820, 110
    top = max((y for _, _, points in lines for _, y in points), default=1) * 1.05 or 1
    right = max((x for _, _, points in lines for x, _ in points), default=1) or 1
    at = lambda x, y: f"{x0 + width * x / right:.1f},{y0 + height * (1 - y / top):.1f}"  # noqa: E731
    parts = [f'<text x="{x0}" y="{y0 - 8}" font-weight="bold">{escape(title)}</text>', f'<rect x="{x0}" y="{y0}" width="{width}" height="{height}" fill="none" stroke="#bbb"/>',
             f'<text x="{x0 - 6}" y="{y0 + 10}" text-anchor="end">{top:,.0f}</text>', f'<text x="{x0 - 6}" y="{y0 + height}" text-anchor="end">0 {unit}</text>',
             f'<text x="{x0 + width}" y="{y0 + height + 13}" text-anchor="end">{right:,.0f} s</text>']
    for begin, end in spans:
        x = x0 + width * max(begin, 0) / right
        parts.append(f'<rect x="{x:.1f}" y="{y0}" width="{max(width * (min(end, right) - begin) / right, 0.5):.1f}" height="{height}" fill="#f3e3d3"/>')
    for i, (name, colour, points) in enumerate(lines):
        parts.append(f'<polyline points="{" ".join(at(x, y) for x, y in points)}" fill="none" stroke="{colour}" stroke-width="1.3"/>')
        parts.append(f'<text x="{x0 + 330 + i * 125}" y="{y0 - 8}" fill="{colour}">{escape(name)}</text>')
    return "".join(parts)


def svg(result):
    """Rates, memory and sizes over the time in which files were stored, and in which bytes were named."""
    run, parts = result["run"], []
    steps, samples, named = run["load"]["steps"], run["load"]["samples"], run["named"]
    begin = steps[0]["at"] - steps[0]["s"]
    time_of = lambda at: at - begin  # noqa: E731
    spans = [(time_of(a), time_of(b)) for a, b in snapshot_spans(samples)]
    of = lambda key, scale, source=samples, since=begin: [(max(s["at"] - since, 0), s[key] / scale) for s in source]  # noqa: E731
    parts.append(panel(80, 70, "Thousand files a second", "", [("files/s (shaded: a snapshot is written)", "#1b6ca8", [(time_of(s["at"]), s["files"] / s["s"] / 1e3) for s in steps])], spans))
    parts.append(panel(80, 230, "Memory of the manager, MiB", "", [("anonymous", "#1b6ca8", of("anon", 2**20)), ("resident", "#e08e45", of("rss", 2**20))], spans))
    colours = (("db", "#1b6ca8"), ("snapshots", "#e08e45"), ("log", "#5a9e4b"), ("wal", "#7a5195"))
    parts.append(panel(80, 390, "Files of the manager, MB", "", [(name, colour, of(name, 1e6)) for name, colour in colours], spans))
    probes = run["load"]["probes"]
    parts.append(panel(80, 550, "One request meanwhile, ms", "", [(name, colour, [(time_of(p["at"]), p[key] * scale) for p in probes]) for name, colour, key, scale in (
        ("put of 4 KiB", "#1b6ca8", "put_ms", 1), ("get", "#e08e45", "get_ms", 1), ("status", "#5a9e4b", "status_s", 1e3))], spans))
    since = named["steps"][0]["at"] - named["steps"][0]["s"]
    parts.append(panel(80, 710, "Then: GB named a second", "", [("GB/s", "#1b6ca8", [(s["at"] - since, s["bytes"] / s["s"] / 1e9) for s in named["steps"]])],
                       [(a - since, b - since) for a, b in snapshot_spans(named["samples"])]))
    parts.append(panel(80, 870, "Memory of the manager meanwhile, MiB", "", [("anonymous", "#1b6ca8", of("anon", 2**20, named["samples"], since)), ("resident", "#e08e45", of("rss", 2**20, named["samples"], since))]))
    return ('<svg xmlns="http://www.w3.org/2000/svg" width="960" height="1020" viewBox="0 0 960 1020" font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
            f'<text x="16" y="24" font-weight="bold">{result["files"]:,} small files, then {result["terabytes"]:,.0f} TB by name</text>' + "\n".join(parts) + "</svg>\n")
