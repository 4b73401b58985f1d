"""Tables and a plot of bench/similarity.py."""

import json
import statistics
from xml.sax.saxutils import escape

COLOURS = {"off": "#b8b8b8", "off, not hashed": "#8a8a8a", "cpu": "#1b6ca8", "oracle": "#5a9e4b"}
NAMES = {"off": "no dedup", "off, not hashed": "no dedup, nothing named", "cpu": "dedup on the CPU", "oracle": "dedup, oracle"}
WORKLOADS = ("different", "similar", "checkpoint")


def table(head, rows):
    return ["| " + " | ".join(map(str, line)) + " |" for line in (head, ["---"] * len(head), *rows)]


def pick(rows, **wanted):
    return [r for r in rows if all(r[k] == v for k, v in wanted.items())]


def spread(values, digits=2):
    """Median and range, or just the number if there is one."""
    text = [f"{v:.{digits}f}" for v in (statistics.median(values), min(values), max(values))]
    return text[0] if len(values) == 1 else f"{text[0]} ({text[1]}–{text[2]})"


def network(mbit):
    return f"{mbit} Mbit/s" if mbit else "as fast as the machine"


def runs_of(rows, mbit, workload):
    """(system, chunking, rows) in the order of the plan."""
    found = pick(rows, mbit=mbit, workload=workload)
    keys = [(system, chunking) for chunking in dict.fromkeys(sorted((r["chunking"] for r in found), key=_order))
            for system in NAMES if any(r["system"] == system and r["chunking"] == chunking for r in found)]
    return [(s, c, pick(found, system=s, chunking=c)) for s, c in keys]


def _order(chunking):
    return (not chunking.startswith("fixed"), chunking != "cdc:256K..4M", chunking)


def ratios(rows, others):
    """Ratios of rates, round by round."""
    rate = {r["round"]: r["rate"] for r in others}
    return [r["rate"] / rate[r["round"]] for r in rows if r["round"] in rate]


def store_tables(result):
    lines = []
    for mbit in result["config"]["networks"]:
        lines += ["", f"## Written to the store, network {network(mbit)}", ""]
        body = []
        for workload in WORKLOADS:
            off = pick(result["rows"], mbit=mbit, workload=workload, system="off")
            for system, chunking, rows in runs_of(result["rows"], mbit, workload):
                cpu = pick(result["rows"], mbit=mbit, workload=workload, system="cpu", chunking=chunking)
                body.append([
                    workload, NAMES[system], chunking, spread([r["rate"] / 1e6 for r in rows], 0), spread(ratios(rows, off)) if system != "off" else "",
                    spread(ratios(rows, cpu)) if system == "oracle" else "", spread([r["cpu_s_per_gb"] for r in rows]),
                    f"{statistics.median(r['cpu_s']['client'] / r['bytes'] * 1e9 for r in rows):.2f}",
                    f"{statistics.median(r['new_bytes'] / r['bytes'] for r in rows):.3f}",
                    f"{statistics.median(r['stored_bytes'] / r['bytes'] for r in rows):.3f}"])
        lines += table(["workload", "system", "chunking", "MB/s", "÷ no dedup", "oracle ÷ CPU", "CPU s/GB", "of it client", "new ÷ logical",
                        "stored ÷ logical"], body)
    return lines


def find_table(result):
    """Table of the found share for each way of cutting."""
    finds = result["finds"]
    later = [r for r in finds if r["image"] > 0]
    body = []
    for cut in dict.fromkeys(r["cut"] for r in finds):
        rows = pick(later, cut=cut)
        share = lambda name: [100 * r[name] / (r["bytes"] - r["zero_chunk_bytes"]) for r in rows]
        mean = statistics.mean(r["bytes"] / r["chunks"] for r in rows) / 1024
        body.append([name_of(cut), f"{mean:.0f} KiB", f"{statistics.mean(r['chunks'] for r in rows):.0f}", spread(share("in_last"), 1),
                     spread(share("in_all"), 1), f"{100 * statistics.mean(r['zero_chunk_bytes'] / r['bytes'] for r in rows):.1f}"])
    return table(["cut", "mean chunk", "chunks", "% found in the image before", "% found in all before", "% zero chunks"], body)


def name_of(cut):
    if "+" not in cut:
        return cut
    edges, _, rule = cut.partition("+")
    floor = int(edges.partition("/")[2])
    return f"{rule}, at segments" + (f" of {floor >> 10} KiB and more" if floor > 1 else "")


def markdown(result):
    m, c = result["machine"], result["config"]
    images = [r for r in result["finds"] if r["cut"] == result["finds"][0]["cut"]]
    sizes = [r["bytes"] / 1e6 for r in images]
    zeros = [100 * r["zero_page_bytes"] / r["bytes"] for r in images]
    lines = ["# Similar files: what naming chunks costs, gains, and could gain", "",
             "`make bench-similarity`: MosaStore's three workloads. *different*: "
             f"{c['files']} files of {c['file_mib']} MiB, nothing in common; *similar*: the same file as often; *checkpoint*: images of `blastn` at work, "
             f"taken every {c['every_s']:.0f} s with `gcore` ({c['images']} images of {min(sizes):.0f} to {max(sizes):.0f} MB; the first {c['write_images']} are written). "
             f"One file after the other into an empty store of six nodes on tmpfs, ec:4+2; {c['rounds']} rounds, the order of systems changes. Medians (least–most); ratios are "
             "taken within a round.", "",
             f"Machine: {m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB, {m['kernel']}; load average {result['load_before']:.1f} before, {result['load_after']:.1f} after.", "",
             "*No dedup* still names its chunks, since every read is verified by their names; *nothing named* is the papers' store without content addressing. "
             "*Oracle*: digests and boundaries are known in advance (an accelerator that answers at once), so it is what a device of infinite compute would give; all else, "
             "erasure coding and checksums among it, is done as always. MB = 10⁶ bytes. CPU is of client, manager and nodes together; network limits are those of all that crosses the loopback."]
    lines += store_tables(result)
    lines += ["", "## Found in checkpoint images", "",
              f"Shares of what is not zero, over all images but the first. Pages of 4 KiB that are all zeros: {spread(zeros, 1)} % of an image; a chunk of zeros is a hole and costs nothing.", ""]
    lines += find_table(result)
    if result["problems"]:
        lines += ["", "## Problems", ""] + [f"- {p}" for p in result["problems"]]
    return "\n".join(lines) + "\n"


def svg(result):
    """Rates as bars, one group for each workload and network."""
    parts, y = [], 50
    for mbit in result["config"]["networks"]:
        most = max((r["rate"] for r in pick(result["rows"], mbit=mbit)), default=1)
        for workload in WORKLOADS:
            parts.append(f'<text x="16" y="{y + 12}" font-weight="bold">{workload}, network {network(mbit)}</text>')
            y += 20
            for system, chunking, rows in runs_of(result["rows"], mbit, workload):
                rate = statistics.median(r["rate"] for r in rows)
                low, high = (420 * f(r["rate"] for r in rows) / most for f in (min, max))
                parts.append(f'<text x="290" y="{y + 11}" text-anchor="end">{escape(NAMES[system])}, {chunking}</text>'
                             f'<rect x="298" y="{y + 1}" width="{420 * rate / most:.1f}" height="12" fill="{COLOURS[system]}"/>'
                             f'<line x1="{298 + low:.1f}" x2="{298 + high:.1f}" y1="{y + 7}" y2="{y + 7}" stroke="#222"/>'
                             f'<text x="{304 + high:.1f}" y="{y + 11}">{rate / 1e6:,.0f}</text>')
                y += 16
            y += 14
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="800" height="{y}" viewBox="0 0 800 {y}" font-family="sans-serif" font-size="11">'
            '<rect width="100%" height="100%" fill="white"/><text x="16" y="24" font-weight="bold">MosaStore\'s workloads, MB/s written: medians, '
            'least to most (bars within a network)</text>' + "\n".join(parts) + "</svg>\n")


def write(result, path):
    text = markdown(result)
    for suffix, content in ((".md", text), (".json", json.dumps(result, indent=1) + "\n"), (".svg", svg(result))):
        with open(path + suffix, "w", encoding="utf-8") as f:
            f.write(content)
    return text
