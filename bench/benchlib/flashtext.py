"""Rows and tables of the page of `make bench-flash`, the paper's figures beside ours."""

# What CPFTL changes against DFTL in percent, by the paper's figures 3.7b, 3.7c and 3.7e.
PAPER = {
    "web": {"map reads": -49.3, "map writes": -99.8, "response": -63.4},
    "financial": {"map reads": -57.5, "map writes": -50.5, "response": -47.5},
    "tpcc": {"map reads": -44.0, "map writes": -31.4, "response": -32.9},
}
# Table 3.4: peak memory of mining, all pairs and clustered, and updates of the correlation table.
PAPER_MINING = {"web": ("8.7 GB", "78 MB", "0.0 %"), "financial": ("4.9 GB", "62 MB (text: 132 MB)", "7.6 %"), "tpcc": ("8.2 GB", "97 MB", "15.3 %")}
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


RIVALS = """### S-FTL and TPFTL against DFTL (their papers)

The S-FTL paper (MSST 2011) names up to 70 % fewer accesses to flash for translation and up to 25 % less response time than DFTL and FAST; the TPFTL paper (EuroSys 2015) 62 % fewer
writes of translation on average, and up to 24 % less response time. Both measure full traces (Financial, WebSearch, TPC-C, MSR Cambridge) that are not here, so their figures themselves
are unchecked. *Accesses* are reads and writes of translation pages. The last column is the bound: a map that costs nothing.
"""
RIVALS_WHY = """- *S-FTL*: the 70 % are reached where requests have several pages, or the map of a short head nearly fits the cache. Synthetic `financial` and `tpcc` stay below, because their
  requests have one or two pages in random places, and a translation page of data that was written at random does not condense. In `financial` its hits are {sftl_fewer:.0f} % below DFTL's; the CPFTL
  paper has them slightly below, too.
- *TPFTL*: more than 62 % fewer writes on all traces but two. In `wsrch-small` DFTL writes {web_writes} translation pages in all. In synthetic `tpcc` {tpcc_gc:.0f} % of DFTL's writes come from collection, which
  moves pages of many translation pages whatever the layer. Its hits in synthetic `financial` are {more_hits:.0f} % above DFTL's (the CPFTL paper: 11.5 % on Financial).
- *Hits in WebSearch*: the CPFTL paper has 15.2 % for TPFTL and 12.1 % for S-FTL; `wsrch-small` has {web_hits:.1%} and {sftl_hits:.1%}. We count a look-up for each page, 3.7 for a request, and all pages of a
  request mostly lie in one translation page, so one miss for each request is 73 % of hits: both reach that. The paper seems to count one look-up for each request.
- *Response time*: without queues, a read takes at most twice as long with DFTL as with a map that costs nothing, so that no layer can save more than half (`wsrch-small`). Where more is saved,
  DFTL's map writes overload the device, and its requests wait for each other. Synthetic `web` is within both papers' bounds, and `tpcc-small` close to them.
"""


def rivals(result):
    """S-FTL and TPFTL against DFTL."""
    traces = {**{name: rows for name, rows in result["given"].items()}, **{f"synthetic `{name}`": rows for name, rows in result["layers"].items()}}
    by_trace = {name: {row["ftl"]: figures(row) for row in rows} for name, rows in traces.items()}
    lines = []
    for name, layers in by_trace.items():
        dftl, cells = layers["dftl"], [name]
        for layer in (layers["sftl"], layers["tpftl"]):
            accesses = [f["map reads"] + f["map writes"] for f in (layer, dftl)]
            changes = [change(*accesses), *(change(layer[what], dftl[what]) for what in ("map writes", "response"))]
            cells += [f"{value:+.1f} %" for value in changes]
        lines.append([*cells, f"{change(layers['ideal']['response'], dftl['response']):+.1f} %"])
    financial, web = by_trace["synthetic `financial`"], by_trace.get("wsrch-small.trace", by_trace["synthetic `web`"])
    tpcc = next(row for row in result["layers"]["tpcc"] if row["ftl"] == "dftl")
    why = RIVALS_WHY.format(
        sftl_fewer=-change(financial["sftl"]["hits"], financial["dftl"]["hits"]), web_writes=web["dftl"]["map writes"], web_hits=web["tpftl"]["hits"], sftl_hits=web["sftl"]["hits"],
        more_hits=change(financial["tpftl"]["hits"], financial["dftl"]["hits"]),
        tpcc_gc=100 * (1 - tpcc["map_programs"] / figures(tpcc)["map writes"]),
    )
    heads = ["trace", "`sftl`: accesses", "writes", "response", "`tpftl`: accesses", "writes", "response", "ideal: response"]
    return "\n".join([RIVALS, table(heads, lines), why])
