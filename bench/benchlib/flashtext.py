"""The page of `make bench-flash`: tables of figures, the paper's beside ours."""

# What CPFTL changes against DFTL in percent, by the paper's figures 3.7b, 3.7c and 3.7e.
PAPER = {
    "web": {"map reads": -49.3, "map writes": -99.8, "response": -63.4},
    "financial": {"map reads": -57.5, "map writes": -50.5, "response": -47.5},
    "tpcc": {"map reads": -44.0, "map writes": -31.4, "response": -32.9},
}
# Table 3.4: peak memory of mining, all pairs and clustered.
PAPER_MINING = {"web": ("8.7 GB", "78 MB"), "financial": ("4.9 GB", "62 MB"), "tpcc": ("8.2 GB", "97 MB")}
# Figure 3.7f: hit ratio and correlated pages at the two ends.
PAPER_SUPPORT = {1: "80.2 %, 293 pages", 9: "1.6 %, 1 page"}


def figures(row):
    """What the tables show of a replay."""
    return {
        "hits": row["map_hits"] / max(1, row["map_lookups"]),
        "map reads": row["map_reads"] + row["map_reads_by_gc"],
        "map writes": row["map_programs"] + row["map_programs_by_gc"] + row["moved_map_pages"],
        "response": row["response_ns"]["mean"],
        "wa": row["write_amplification"],
    }


def page_operations(row):
    """Millions of page operations that were simulated in a second of CPU time, reading the trace included."""
    moved = row["moved_data_pages"] + row["moved_map_pages"] + row["moved_by_wear_levelling"]
    reads = row["host_reads"] + row["map_reads"] + row["map_reads_by_gc"] + moved
    return (reads + row["programs"]) * 1e3 / max(1, row["cpu_ns_per_request"] * row["requests"])


def change(ours, base):
    return 100 * (ours / base - 1) if base else 0.0


def time(ns):
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if ns >= 10 * size:
            return f"{ns / size:,.1f} {unit}"
    return f"{ns / 1e3:,.0f} us"


def size(count):
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def table(headings, rows):
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]) + "\n"


def layer_rows(name, rows):
    out = []
    for row in rows:
        f = figures(row)
        out.append([name, f"`{row['ftl']}`", f"{f['hits']:.1%}", f"{f['map reads']:,}", f"{f['map writes']:,}",
                    time(f["response"]), f"{f['wa']:.2f}", f"{page_operations(row):.1f}"])
        name = ""
    return out


HEADINGS = ["trace", "layer", "hits", "map reads", "map writes", "mean response", "WA", "M ops/s"]


def against(name, rows):
    """CPFTL against DFTL, with the paper's change beside ours."""
    by_name = {row["ftl"]: figures(row) for row in rows}
    dftl, cpftl = by_name["dftl"], by_name["cpftl"]
    cells = []
    for what in ("map reads", "map writes", "response"):
        cells.append(f"{change(cpftl[what], dftl[what]):+.1f} %")
        cells.append(f"{PAPER[name][what]:+.1f} %")
    return [name, *cells, f"{change(by_name['ideal']['response'], dftl['response']):+.1f} %"]


def report(result):
    machine, parts = result["machine"], []
    parts.append(f"""# Translation layers side by side

{machine['cpu']}, {machine['cores']} cores, load {result['load']:.1f} at the start. Every device is written once in random order before a trace begins. Layers serve the first half
of each trace, `cpftl` learns from it, and figures are of the second half. *Map writes* include translation pages that collection moved. *M ops/s* are millions of page
operations simulated in a second of CPU time, reading the trace included; the goals are 2 for `ideal`, and 1 for `dftl` and `cpftl`.

## The given traces

Heads and samples of public traces, on devices as large as what they touch (`--compact`), with 64 KiB of map cache. They are short and hardly read a page twice. Times of the Tencent
sample are whole seconds, so its requests arrive all at once and its response times say nothing.
""")
    parts.append(table(HEADINGS, [line for name, rows in result["given"].items() for line in layer_rows(name, rows)]))
    labels = "\n".join(f"- `{name}`: {' — '.join(lines)}" for name, lines in result["labels"].items())
    parts.append(f"""## The setup of the CPFTL paper: 16 GB, 256 + 16 + 16 KB of map cache

**The traces are synthetic**: sizes, shares of reads and arrivals are those of the paper's table 3.2; which reads are correlated is our choice. So the paper's
figures are goals here, and not a reproduction.

{labels}

`{result['setup']}`, `--cpftl {result['cpftl']}`.
""")
    parts.append(table(HEADINGS, [line for name, rows in result["layers"].items() for line in layer_rows(name, rows)]))
    parts.append("""### CPFTL against DFTL (figures 3.7b, c, e)

The last column is the bound: a map that costs nothing.
""")
    heads = ["trace", "map reads", "paper", "map writes", "paper", "response", "paper", "ideal: response"]
    rows = [against(name, rows) for name, rows in result["layers"].items()]
    loaded = against("web", result["loaded"])
    parts.append(table(heads, rows + [["web, a request each 180 us", *loaded[1:]]]))
    parts.append("""A translation costs at most one read beside each read of data, so for reads that do not wait no layer can save more than half of DFTL's time (last column); more needs
requests that wait for each other, as in the last two rows: `tpcc` writes faster than the device collects in the long run.

### Support (figure 3.7f)
""")
    rows = [[f"{s} ‰", f"{figures(row)['hits']:.1%}", row["cpftl"]["correlated_pages_built"], row["cpftl"]["mined_pairs"],
             PAPER_SUPPORT.get(s, "")] for s, row in result["support"].items()]
    parts.append(table(["support", "hits", "correlated pages", "pairs", "paper"], rows))
    parts.append("### Size of the map cache (figure 3.8), `financial`\n\nResponse times as multiples of the ideal. Paper, 8x: 89 % of hits, 1.22. With a large cache `dftl` still "
                 "writes entries one by one that the random preload left dirty.\n")
    ideal = next(figures(row)["response"] for row in result["cache"] if row["ftl"] == "ideal")
    sizes = sorted({row["map_cache_bytes"] for row in result["cache"] if row["map_cache_bytes"]})
    cell = {(row["ftl"], row["map_cache_bytes"]): figures(row) for row in result["cache"]}
    rows = [[f"{bytes_ >> 10} KiB ({bytes_ / 2**18:g}x)"] + [text for ftl in ("dftl", "cpftl") for text in
            (f"{cell[ftl, bytes_]['hits']:.1%}", f"{cell[ftl, bytes_]['response'] / ideal:.2f}")] for bytes_ in sizes]
    parts.append(table(["map cache", "`dftl`: hits", "response", "`cpftl`: hits", "response"], rows))
    parts.append("### Components (figure 3.9), `financial`\n\nEach row has one mechanism more. All but the last search correlated pages without mistakes.\n")
    rows = []
    for name, row in result["components"].items():
        f = figures(row)
        rows.append([name, f"{f['hits']:.1%}", f"{f['map reads']:,}", f"{f['map writes']:,}", f"{row['moved_map_pages']:,}", time(f["response"])])
    parts.append(table(["mechanisms", "hits", "map reads", "map writes", "map pages moved", "mean response"], rows))
    parts.append("### Memory of mining (table 3.4)\n\nThe paper mined full traces; ours are half of the synthetic ones.\n")
    rows = []
    for name, full in result["full_mining"].items():
        clustered = next(row for row in result["layers"][name] if row["ftl"] == "cpftl")
        peaks = [size(row["cpftl"]["mining_peak_bytes"]) for row in (full, clustered)]
        rows.append([name, peaks[0], PAPER_MINING[name][0], peaks[1], PAPER_MINING[name][1]])
    parts.append(table(["trace", "all pairs", "paper", "clustered", "paper"], rows))
    return "\n".join(parts)
