"""Runs as text: a table for people, a page and a plot for bench/results. Medians over the rounds."""

import json
import statistics
from xml.sax.saxutils import escape

from arithmetic import possible
from flow import WAYS

GOALS = {("pipeline", "none"): 0.90, ("reduce", "none"): 0.90, ("pipeline", "replica:2"): 0.55, ("reduce", "replica:2"): 0.55}
COLOURS = {"none": "#b8b8b8", "location": "#e08e45", "hints": "#1b6ca8"}
MIB = 1 << 20


def rows(settings, runs):
    """A row per workflow and class: medians by way, bytes that hints saved, bytes that they could save, and the goal."""
    for workflow in settings["workflows"]:
        for redundancy in settings["classes"]:
            mine = [r for r in runs if (r["workflow"], r["class"]) == (workflow, redundancy)]
            median = lambda way, key: statistics.median(r[key] for r in mine if r["way"] == way)
            ways = {way: {"bytes": median(way, "bytes"), "seconds": median(way, "seconds")} for way in WAYS}
            yield {
                "workflow": workflow, "class": redundancy, "ways": ways,
                "saved": 1 - ways["hints"]["bytes"] / max(1, ways["none"]["bytes"]),
                "possible": possible(workflow, redundancy, settings["hosts"]),
                "goal": GOALS.get((workflow, redundancy)),
            }


def cells(row):
    """A row as words: workflow, class, bytes and time by way, saved, possible, goal."""
    ways = [f"{row['ways'][way]['bytes'] / MIB:.1f}" for way in WAYS] + [f"{row['ways'][way]['seconds']:.2f}" for way in WAYS]
    share = lambda value: "" if value is None else f"{value:.1%}"
    goal = "" if row["goal"] is None else f"{row['goal']:.0%} {'met' if row['saved'] >= row['goal'] else 'MISSED'}"
    return [row["workflow"], row["class"], *ways, share(row["saved"]), share(row["possible"]), goal]


HEAD = ["workflow", "class", "MiB: none", "location", "hints", "s: none", "location", "hints", "saved", "possible", "goal"]


def table(settings, runs):
    """The table for a terminal."""
    lines = [HEAD, *map(cells, rows(settings, runs))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    pad = lambda i, word: word.ljust(widths[i]) if i < 2 else word.rjust(widths[i])
    return "\n".join("  ".join(pad(i, word) for i, word in enumerate(line)).rstrip() for line in lines)


def markdown(results):
    """The page of several results: (title, result)."""
    machine = results[0]["machine"]
    lines = [
        "# Workflows on several hosts, with and without hints", "",
        "Made by `examples/workflows/run.py`; examples/workflows/README.md says what is run. Bytes are those of files that crossed from host "
        "to host, by the nodes' own count; `possible` is arithmetic.py's, which leaves caches out: a mount that wrote a file has it in memory still.", "",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['kernel']}; all hosts on this machine.",
    ]
    for result in results:
        s = result["settings"]
        link = f"each host's network at most {s['link_mbit']} Mbit/s" if s["link_mbit"] else "network as fast as the machine"
        lines += ["", f"## {s['title']}", "",
                  f"{s['hosts']} hosts, files of {s['size_mib']} MiB, {link}, disks on {s['disks']}, medians of {s['rounds']}, {s['build']} build.", "",
                  "| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
        lines += ["| " + " | ".join(cells(row)) + " |" for row in rows(s, result["runs"])]
    return "\n".join(lines) + "\n"


def svg(results):
    """Bars: bytes between hosts by way, as shares of those without hints; times beside them."""
    width, left, bar, y, parts = 900, 210, 13, 50, []
    for result in results:
        parts.append(text(12, y, result["settings"]["title"], "start", "bold"))
        y += 12
        for row in rows(result["settings"], result["runs"]):
            parts.append(text(left - 8, y + 24, f"{row['workflow']}, {row['class']}", "end"))
            most = max(ways["bytes"] for ways in row["ways"].values()) or 1
            for way in WAYS:
                here = row["ways"][way]
                length = 480 * here["bytes"] / most
                parts.append(f'<rect x="{left}" y="{y + 2}" width="{max(1, length):.1f}" height="{bar - 2}" fill="{COLOURS[way]}"/>')
                parts.append(text(left + length + 6, y + bar - 2, f"{here['bytes'] / MIB:.1f} MiB, {here['seconds']:.1f} s", "start"))
                y += bar
            y += 9
        y += 24
    key = "; ".join(f"{way}: {what}" for way, what in zip(("grey", "orange", "blue"), ("no hints", "location only", "hints and location")))
    head = [text(12, 20, f"Bytes between hosts, shares of the most of each workflow ({key})", "start", "bold")]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}" font-family="sans-serif" '
            'font-size="11"><rect width="100%" height="100%" fill="white"/>' + "\n".join(head + parts) + "</svg>\n")


def text(x, y, words, anchor, weight="normal"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(words)}</text>'


def write(results, directory):
    """workflows.json, workflows.md and workflows.svg."""
    (directory / "workflows.json").write_text(json.dumps(results, indent=1) + "\n")
    (directory / "workflows.md").write_text(markdown(results))
    (directory / "workflows.svg").write_text(svg(results))
