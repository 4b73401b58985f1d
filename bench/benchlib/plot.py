"""Horizontal bars on a logarithmic axis, written as SVG by hand, so that a plot needs no installed package."""

import math
from xml.sax.saxutils import escape

from .report import TARGETS, WORKS, pick, rate_text, spread

COLOURS = {"tessera": "#1b6ca8", "gluster": "#e08e45", "ceiling": "#b8b8b8"}
WIDTH, LEFT, RIGHT, ROW, GAP = 960, 250, 180, 18, 14


def bars(rows):
    """Groups (title, unit rows) with one bar each: (label, colour, spread, target or None)."""
    groups = []
    for medium in ("tmpfs", "disk"):
        for work in WORKS:
            lines = []
            for system in ("tessera", "gluster"):
                found = pick(rows, medium=medium, system=system, work=work)
                if found:
                    goal = next((t[4] for t in TARGETS if t[:3] == (medium, work, "rate") and system == "tessera"), None)
                    lines.append((system, system, spread([r["rate"] for r in found]), goal))
            if lines:
                key = {"write new": "fio_write", "write again": "fio_write", "read": "fio_read", "read, kept": "fio_read"}.get(work, "small")
                each = {r["round"]: r["ceiling"][key] for r in pick(rows, medium=medium, work=work)}
                name = "bare file system" if key == "small" else "fio"
                lines.append((name, "ceiling", spread(list(each.values())), None))
                groups.append((f"{work}, {medium}", work, lines))
    return groups


def svg(result):
    """The plot of a result as the text of an SVG file."""
    groups = bars(result["rows"])
    parts, y = [], 56
    for title, work, lines in groups:
        # Bytes and files have different decades.
        low, high = (10.0, 1e5) if work == "small files" else (1e7, 1e10)
        scale = lambda v: LEFT + (WIDTH - LEFT - RIGHT) * (
            math.log(min(max(v, low), high) / low) / math.log(high / low))
        parts.append(_text(LEFT - 110, y + ROW * len(lines) / 2 + 4, title, "end", "bold"))
        for label, colour, s, goal in lines:
            parts.append(f'<rect x="{LEFT}" y="{y + 2}" width="{scale(s["median"]) - LEFT:.1f}" height="{ROW - 4}" '
                         f'fill="{COLOURS[colour]}"/>')
            parts.append(f'<line x1="{scale(s["min"]):.1f}" x2="{scale(s["max"]):.1f}" y1="{y + ROW / 2}" '
                         f'y2="{y + ROW / 2}" stroke="#222" stroke-width="2"/>')
            parts.append(_text(LEFT - 6, y + ROW - 5, label, "end"))
            parts.append(_text(max(scale(s["max"]), scale(s["median"])) + 6, y + ROW - 5, rate_text(work, s["median"]), "start"))
            if goal:
                parts.append(f'<line x1="{scale(goal):.1f}" x2="{scale(goal):.1f}" y1="{y - 1}" y2="{y + ROW + 1}" '
                             'stroke="#c22" stroke-width="2"/>')
            y += ROW
        y += GAP
    m = result["machine"]
    head = [_text(16, 22, "Tessera, its peer and the machine's ceilings: medians, spread (black), targets (red)", "start", "bold"),
            _text(16, 40, f"{m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB, {m['kernel']}; logarithmic bars", "start")]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 4}" viewBox="0 0 {WIDTH} {y + 4}" '
            'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
            + "\n".join(head + parts) + "</svg>\n")


def _text(x, y, words, anchor, weight="normal"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(words)}</text>'
