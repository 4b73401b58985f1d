"""The parts of bench/results/flash.md that redo the CPFTL paper's tables 3.1 and 3.2 and its figures 3.2 to 3.4, 3.7 and 3.9 on a device in steady state."""

from .flashtext import against, change, figures, table, time

# Tables 3.1 and 3.2: KB of a read and of a write, reads, ms between arrivals.
PAPER_TRACES = {
    "Financial 2 (paper)": ((2.3, 2.9, 0.823, 11.08), (2.1, 2.4, 0.656, 9.08)),
    "WebSearch (paper)": ((15.15, 8.6, 0.999, 2.99), (17.5, 9.8, 0.999, 1.33)),
    "TPC-C (paper)": ((8, 8.2, 0.657, 4.35), (8, 8, 0.579, 3.7)),
}
# Figure 3.7d: erases of translation blocks, CPFTL against DFTL and against TPFTL, in percent.
PAPER_ERASES = {"financial": ("-58.5 %", "-16.0 %"), "tpcc": ("-41.8 %", "-25.9 %")}
# Figure 3.7a, as the text has it.
PAPER_HITS = {
    "web": "15.2 % `tpftl`, 12.1 % `sftl`, `cpftl` 37 % above `tpftl` and `dftl`; 80.2 % in figure 3.7f",
    "financial": "`sftl` slightly below `dftl`, `tpftl` 11.5 % above, `cpftl` 58.3 % above",
    "tpcc": "not stated",
}


def _share(value):
    return "" if value is None else f"{value:.1%}"


def _kb(*values):
    return " / ".join("–" if value is None else f"{value:.1f}" for value in values)


def _shape(found):
    return [_kb(found["read_kb"], found["write_kb"]), _share(found["reads"]), f"{found['gap_ms']:,.2f}"]


def traces(result):
    """Tables 3.1 and 3.2."""
    rows = []
    for name, (raw, behind) in PAPER_TRACES.items():
        rows.append([name, "", *(cell for kb_r, kb_w, reads, gap in (raw, behind) for cell in (_kb(kb_r, kb_w), _share(reads), f"{gap:.2f}"))])
    for name, found in result["traces"].items():
        raw = _shape(found["raw"])
        if "buffered" in found:
            rows.append([name, f"{found['raw']['requests']:,}", *raw, *_shape(found["buffered"])])
        else:
            rows.append([name, f"{found['raw']['requests']:,}", "", "", "", *raw])
    heads = ["trace", "requests", "KB read / written", "reads", "ms apart", "behind the buffer: KB", "reads", "ms apart"]
    return table(heads, rows)


def correlations(result):
    """Figure 3.3."""
    rows, mined = [], dict(result["mined"])
    for name, full in result["full_mining"].items():
        clustered = next(row for row in result["layers"][name] if row["ftl"] == "cpftl")
        mined[f"`{name}`, synthetic"] = [row["cpftl"]["mined_pairs"] for row in (full, clustered)]
    for name, found in result["traces"].items():
        near = found["clusters"]
        of_all = ""
        if name in mined:
            full, clustered = mined[name]
            of_all = f"{clustered:,} of {full:,}"
        share = f"{near['region_pairs']:,} of {near['of']:,} ({near['region_pairs'] / near['of']:.2%})" if near["pairs"] else ""
        rows.append([name, f"{near['pairs']:,}", share, of_all])
    return table(["trace", "correlated pairs", "pairs of regions that have 92.9 % of them", "pairs mined: clustered, of all"], rows)


def workload(result):
    """Figure 3.4."""
    rows = []
    for name, found in result["traces"].items():
        reuse, skew = found["reuse"], found["skew"] or {}
        dirty = reuse["dirty_reads"]
        rows.append([name, " / ".join(f"{share:.1%}" for share in dirty) if dirty else "", _share(reuse["near"]), _share(reuse["reads_again"]),
                     _share(skew.get("0.01")), _share(skew.get("0.1")), _share(found["test_reads_trained"])])
    heads = ["trace", "a: writes read after (least / mean / most)", "b: within 500", "reads of pages read before", "c: writes to 1 % of pages", "to 10 %",
             "test reads of pages read in training"]
    return table(heads, rows)


def analysis(result):
    """Figure 3.2."""
    rows = []
    for name, (once, row) in result["analysis"].items():
        f = figures(once)
        rows.append([name, time(f["response"]), f"{f['map reads']:,}", f"{once['host_reads']:,}", f"{row['erases'] - row['map_erases']:,}", f"{row['map_erases']:,}",
                     f"{row['moved_data_pages']:,}", f"{row['moved_map_pages']:,}", f"{row['map_programs_by_gc']:,}"])
    heads = ["test", "a: mean response", "b: map reads", "data reads", "c: data blocks erased", "map blocks", "d: data pages moved", "map pages moved", "map writes for moved data"]
    return table(heads, rows)


def hits(result):
    """Figure 3.7a."""
    names = ("dftl", "sftl", "tpftl", "cpftl")
    rows = []
    for name, layers in result["layers"].items():
        found = {row["ftl"]: figures(row)["hits"] for row in layers}
        rows.append([name, *(f"{found[ftl]:.1%}" for ftl in names), PAPER_HITS[name]])
    return table(["trace", *(f"`{name}`" for name in names), "paper"], rows)


def erases(result):
    """Figure 3.7d, with what else collection costs."""
    rows = []
    for name, layers in result["steady"].items():
        by_name = {row["ftl"]: row for row in layers}
        for ftl in ("dftl", "sftl", "tpftl", "cpftl"):
            row, cells = by_name[ftl], ["", ""]
            if ftl == "cpftl":
                cells = [f"{change(row['map_erases'], by_name[other]['map_erases']):+.1f} % ({PAPER_ERASES[name][i]})" for i, other in enumerate(("dftl", "tpftl"))]
            rows.append([name if ftl == "dftl" else "", f"`{ftl}`", f"{row['map_erases']:,}", f"{row['erases'] - row['map_erases']:,}", f"{row['moved_map_pages']:,}", f"{row['moved_data_pages']:,}",
                         f"{row['write_amplification']:.2f}", *cells])
    heads = ["trace", "layer", "map blocks erased", "data blocks", "map pages moved", "data pages moved", "WA", "against `dftl` (paper)", "`tpftl` (paper)"]
    return table(heads, rows)


def components(found):
    """Figure 3.9, or rows like it."""
    rows = []
    for name, row in found.items():
        f = figures(row)
        rows.append([name, f"{f['hits']:.1%}", f"{f['map reads']:,}", f"{f['map writes']:,}", f"{row['moved_map_pages']:,}", time(f["response"])])
    return table(["mechanisms", "hits", "a: map reads", "map writes", "b: map pages moved", "c: mean response"], rows)


def traces_part(result):
    """What the traces are like."""
    return "\n".join([TRACES, traces(result), TRACES_WHY, CORRELATIONS, correlations(result), CORRELATIONS_WHY, WORKLOAD, workload(result), WORKLOAD_WHY])


def hits_part(result):
    return "\n".join([HITS, hits(result), hits_why(result)])


def hits_why(result):
    """What explains figure 3.7a, with the figures of this run."""
    found = {(name, row["ftl"]): figures(row) for name, rows in result["layers"].items() for row in rows}
    entries = next(row for row in result["layers"]["financial"] if row["ftl"] == "cpftl")["cpftl"]["correlated_entries_built"]
    gain = lambda ftl: change(found["financial", ftl]["hits"], found["financial", "dftl"]["hits"])
    reads = change(found["web", "cpftl"]["map reads"], found["web", "tpftl"]["map reads"])
    return HITS_WHY.format(sftl=gain("sftl"), tpftl=gain("tpftl"), cpftl=gain("cpftl"), web_reads=reads, entries=entries)


def changes_why(result):
    """What explains figures 3.7b, c and e in steady state, with the figures of this run."""
    of = lambda rows, ftl: next(figures(row)["response"] for row in rows if row["ftl"] == ftl)
    means = {name: [of(rows, ftl) / 1e6 for ftl in ("dftl", "sftl", "tpftl", "cpftl")] for name, rows in result["steady"].items()}
    medians = {row["ftl"]: row["response_ns"]["p50"] / 1e3 for row in result["steady"]["financial"]}
    once = result["layers"]["financial"]
    return CHANGES_WHY.format(
        least=min(means["financial"]), most=max(means["financial"]), dftl=medians["dftl"], cpftl=medians["cpftl"],
        tpcc=min(means["tpcc"]), once=change(of(once, "cpftl"), of(once, "dftl")))


def steady_part(result):
    """The figures that need collection."""
    heads = ["trace", "map reads", "paper", "map writes", "paper", "response", "paper", "ideal: response"]
    changes = table(heads, [against(name, rows) for name, rows in result["steady"].items()])
    return "\n".join([STEADY, ANALYSIS, analysis(result), ANALYSIS_WHY, CHANGES, changes, changes_why(result), ERASES, erases(result), ERASES_WHY,
                      COMPONENTS, components(result["components"]), APART, components(result["apart"]), COMPONENTS_WHY])


TRACES = "## Properties of the traces\n\n### Sizes and arrivals (tables 3.1 and 3.2)\n"
TRACES_WHY = """The buffer is a write-back LRU cache of 5 % of what the trace touches, as in the paper. The synthetic traces are made as those behind it (table 3.2), so their replays have no further buffer; neither
have those of the given traces, which are too short for one.

- *Financial*: the paper's is Financial 2, mostly reads; ours is the head of Financial 1, mostly writes.
- *WebSearch and TPC-C*: sizes and shares of reads are those of table 3.1. The head of TPC-C arrives two hundred times as fast as the paper's trace does on average.
- *Behind the buffer*: our buffer writes page by page when pages leave it, so writes have 4 KB and are many. The paper's keep their sizes. No write of the TPC-C and WebSearch heads leaves it before they end.
"""
CORRELATIONS = """### Correlated pages (figure 3.3)

Pairs of pages that are read in this order in at least two, and in 1 ‰, of the windows of 32 reads, among the first 200,000 reads. Regions have 16 MiB. The paper has 92.9 % of its pairs in a few areas. The last column
is what `cpftl` mines in training, page by page of each request, with its windows of 256.
"""
CORRELATIONS_WHY = """- *Few areas*, as in the paper: 92.9 % of the pairs lie in 0.3 % of the pairs of regions or less, in real traces and in synthetic ones. In these it is our choice (`--cluster 512M`).
- *What clustered mining finds* is 90 to 100 % of what mining all pairs finds (the paper: its areas cover 92.9 %). Most pairs of the heads are pages of one request.
- In the WebSearch and TPC-C heads no first page of a request is read near another one twice: nothing can be learned there.
"""
WORKLOAD = """### Writes (figure 3.4)

*a* and *b* look at parts of 1,024 requests: the share of writes whose page is read later in the part, and of these reads, the share within 500 requests. *c* is the share of page writes that go to the written pages that
are written most.
"""
WORKLOAD_WHY = """- *a*: the paper has 8 to 17 % for Financial and 0 % for WebSearch. The head of Financial 1 has half of that, because it is another trace, and the synthetic one is near it. `web` has one write in a
  thousand requests, so its parts have one or none, and its large reads cover many pages: its ratios are chance.
- *b*: the paper has 99 %. Financial has that, real and synthetic; where a row has fewer, such reads are few or spread over the whole part.
- *c*: of the paper's figure only *highly skewed* is stated. The heads are too short to write a page often, and the synthetic traces draw pages by a Zipf exponent of 0.5, which is milder.
- *Test reads*: what training has seen is read again in the CloudPhysics and synthetic traces, and partly in PCMark's; the other heads hardly repeat a page in their second half.
"""
STEADY = """## On a device in steady state

`--preload=overwritten`: every page is written, then as many again at random, so collection runs from the first request on. That is the worst case. A block that is collected has 48 valid pages of 64, and they belong
to 47 translation pages, each of which has to be written. The paper does not say how its device is prepared.
"""
ANALYSIS = """### Layers under a random and a sequential workload (figure 3.2)

*a* and *b* on the device that was written once, so that nothing but translation takes time; *c* and *d* in steady state.
"""
ANALYSIS_WHY = """- *a*: as in the paper, DFTL doubles the response time of the optimum, a sequential workload helps it little, and S-FTL is optimal when it is sequential. (Below the row `ideal`, because sequential requests lie in
  fewer pages.)
- *b*: as in the paper, S-FTL reads fewer translation pages than DFTL, but still nearly one for each data page unless access is sequential; then it reads next to none, and DFTL more than before.
- *c*: blocks of data erased do not depend on the layer, as in the paper. Blocks of the map are about as many here, and half to three quarters as many there: our device is in the worst case, see above.
- *d*: most translation pages that move do so because a block of the map is collected, as in the paper (*migrating themselves*). They are fewer than the data pages here and slightly more there, because blocks of the map are collected later than those of data.
"""
HITS = """### Hits (figure 3.7a)

On the device that was written once. We count a look-up for each page that is read, reads of pages that are written in part among them; the paper counts writes, too, and seems to count a request once.
"""
HITS_WHY = """- *WebSearch*: our hits are higher for all layers, because each page of a request is looked up, and the pages of one request mostly share a translation page. The paper's 12 to 15 % are possible only with one look-up for each request.
  TPFTL reaches nearly as many here as CPFTL, because one miss brings in the rest of its request in both; CPFTL's reads of the map are {web_reads:+.0f} % beside TPFTL's.
- *Financial*: beside DFTL, S-FTL has {sftl:+.0f} % and TPFTL {tpftl:+.0f} %, as in the paper. CPFTL has {cpftl:+.0f} % and not +58 %: two fifths of the reads belong to no group, and a group is read four times in training on average, so that
  correlated pages have {entries:,} entries of the groups' 48,000 and more. A write outdates its entry only; if it dropped the page of 512 entries (algorithm 1, `outdated=0`), nothing would be left after some hundred reads.
"""
CHANGES = "### CPFTL against DFTL (figures 3.7b, c, e)\n"
CHANGES_WHY = """- *Map reads and writes* fall by less than in the paper, because most of them follow pages that collection moves, whatever the layer.
- *Response*: in steady state it is the time that requests wait for collections: {least:.1f} to {most:.1f} ms on average in `financial`, whatever the layer, although DFTL does more work (see WA) and its median is
  {dftl:.0f} us, CPFTL's {cpftl:.0f}. `tpcc` writes faster than the device collects, so that its queue grows until the end ({tpcc:.0f} ms on average and more); a layer that serves what precedes a collection faster waits longer for it. On the
  device that was written once, CPFTL's response in `financial` is {once:+.0f} % beside DFTL's (above).
"""
ERASES = "### Blocks of translation pages erased (figure 3.7d), and what collection moves\n\n`web` has 500 writes; nothing is collected for them (the paper: *only a few*).\n"
ERASES_WHY = """The layers that write dirty entries together save what requests write, and are equal among themselves; the rest follows moved data. Against TPFTL the paper has a gain of the dirty index; here neither writes
any translation page for requests, because collection writes all dirty entries of a translation page with the moved ones, before the cache is full of them.
"""
COMPONENTS = """### Components (figure 3.9), `financial`

Each row has one mechanism more. All but the last search correlated pages without mistakes.
"""
APART = """The same trace with the writes moved out of the regions in which correlated reads lie, on the device that was written once (*S. P.*, *DEI S.* and *predictive* as above):
"""
COMPONENTS_WHY = """- *a*: the paper gains most by correlations, and loses 2.6 % by prediction. Here they gain less, because most reads of the map follow pages that collection moves. Where no write outdates them (second table), they give more.
- *b*: the dirty index saves 17 % of the moved translation pages in the paper and skew 7 % more; here both together save less than 1 %, because collection writes nearly all translation pages (see figure 3.7d).
- *c*: all rows are within a few percent, which is the chance of when a collection falls.
"""
