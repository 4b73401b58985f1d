"""The page of `make bench-flash`."""

from . import figuretext
from .flashtext import HEADINGS, PAPER_MINING, PAPER_SUPPORT, against, figures, layer_rows, rivals, size, table


SUPPORT_WHY = """The number of correlated pages falls with the support as in the paper, the hits do not: here most come from pages of one request, of which one miss brings in all (see figure 3.7a). The paper's hits without correlations (1.6 %) show that it does not count such pages.
"""
CACHE_WHY = """`cpftl` has less response time than `dftl` at {faster}, and more hits at {more} (the paper: both at every size). {fewer}Its hits at 8x are {hits:.0%} and not 89 %: two fifths of
the synthetic reads go to 4 million pages with little skew, and no cache of 262,144 entries holds these. Its response is below the paper's 1.22, because nothing is collected here.
"""
CACHE_FEWER = """At {fewer} it has fewer: what no write changes any more leaves its place to reads, so
that the dirty entries of the random preload, which `dftl` keeps and finds again, are gone sooner. """
ELSEWHERE = """## Figures elsewhere

3.11 (the emulator's throughput and latency) is in flash_serve.md, 3.12 (file systems) in flash_files.md. 3.1, 3.5, 3.6 and 3.10 are drawings, tables 3.3 and 3.6 presets of `--timing` and `--geometry`.
"""
MINING_WHY = """Outdated are entries of correlated pages whose page was written or moved by collection. The paper mined full traces; ours are half of the synthetic ones. Its clustered miner ran in a JVM; ours takes less.
An entry counts once, also if a filter took a page for one of its own by mistake; the paper says neither how many of its updates are writes nor what is counted as one.
"""


def runs(found):
    """The load of the machine in each run, and the requests of synthetic traces."""
    kinds = {"given": "the given traces", "study": "the synthetic ones", "figures": "their properties and the steady state", "memory": "memory"}
    loads = ", ".join(f"{run['load']:.1f} for {kinds.get(part, f'rows of `{part}`')}" for part, run in found.items())
    requests = " or ".join(f"{count:,}" for count in sorted({run["requests"] for run in found.values()}))
    return f"load at the start: {loads}. Synthetic traces have {requests} requests"


def cache_why(cell, sizes):
    """What explains figure 3.8, with the figures of this run."""
    times = lambda chosen: " and ".join(f"{bytes_ / 2**18:g}x" for bytes_ in chosen)
    more = [bytes_ for bytes_ in sizes if cell["cpftl", bytes_]["hits"] > cell["dftl", bytes_]["hits"]]
    fewer = [bytes_ for bytes_ in sizes if bytes_ not in more]
    faster = [bytes_ for bytes_ in sizes if cell["cpftl", bytes_]["response"] < cell["dftl", bytes_]["response"]]
    why = CACHE_FEWER.format(fewer=times(fewer)) if fewer else ""
    return CACHE_WHY.format(faster=times(faster), more=times(more), fewer=why, hits=cell["cpftl", sizes[-1]]["hits"])


def memory_part(found):
    """What simulated devices take, and for each page of the capacity."""
    found = dict(found)
    base, rows = found.pop("64M, random")["ideal"], []
    for device, layers in found.items():
        capacity = device.split(",")[0]
        pages = int(capacity[:-1]) << {"G": 30, "T": 40}[capacity[-1]] >> 12
        rows += [[device, f"`{ftl}`", size(peak), f"{(peak - base) / pages:.1f}"] for ftl, peak in layers.items()]
    return (f"## Memory of simulated devices\n\nThe most memory of the process, with 256 KiB of map cache, after each page was written once in the order named. Bytes a page are of what "
            f"is more than a device of 64 MiB takes ({size(base)}). The goals are 16 bytes for each page of 4 KiB, and 1 TB in less than 8 GB. Groups of segments of `leaftl` grow and shrink, which leaves "
            "gaps in the heap; `cola` holds the whole map, twice while levels are merged.\n\n"
            + table(["device", "layer", "memory", "bytes a page"], rows))


def report(result):
    machine, parts = result["machine"], []
    parts.append(f"""# Translation layers side by side

{machine['cpu']}, {machine['cores']} cores; {runs(result['runs'])}. Every device is written in random order before a trace begins. Layers serve the first half
of each trace, `cpftl` learns from it, and figures are of the second half. *Map writes* include translation pages that collection moved. *M ops/s* are millions of page
operations simulated in a second of CPU time, reading the trace included, on a machine as busy as said; the goals are 2 for `ideal`, and 1 for `dftl` and `cpftl`.

## The given traces

Heads and samples of public traces, on devices as large as what they touch (`--compact`), with 64 KiB of map cache. They are short and hardly read a page twice. Times of the Tencent
sample are whole seconds, so its requests arrive all at once and its response times say nothing.
""")
    parts.append(table(HEADINGS, [line for name, rows in result["given"].items() for line in layer_rows(name, rows)]))
    parts.append(figuretext.traces_part(result))
    labels = "\n".join(f"- `{name}`: {' — '.join(lines)}" for name, lines in result["labels"].items())
    parts.append(f"""## The setup of the CPFTL paper: 16 GB, 256 + 16 + 16 KB of map cache

**The traces are synthetic**: sizes, shares of reads and arrivals are those of the paper's table 3.2; which reads are correlated is our choice. So the paper's
figures are goals here, and not a reproduction.

{labels}

`{result['setup']}`, `--cpftl {result['cpftl']}`. The 288 KiB are the paper's 256 for the map, 16 for the directory of translation pages and 16 for the prediction directory. Ours has the first directory on top,
so entries have 16 KiB more than there; the prediction directory may take half of the cache, because 16 KiB have filters for some 10,000 entries only. The host's buffer of 5 % is in the traces.
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
""")
    parts.append(rivals(result))
    parts.append(figuretext.hits_part(result))
    parts.append("### Support (figure 3.7f)\n")
    rows = [[f"{s} ‰", f"{figures(row)['hits']:.1%}", row["cpftl"]["correlated_pages_built"], row["cpftl"]["mined_pairs"],
             PAPER_SUPPORT.get(int(s), "")] for s, row in result["support"].items()]
    parts.append(table(["support", "hits", "correlated pages", "pairs", "paper"], rows))
    parts.append(SUPPORT_WHY)
    parts.append("### Size of the map cache (figure 3.8), `financial`\n\nResponse times as multiples of the ideal. Paper, 8x: 89 % of hits, 1.22. With a large cache `dftl` still "
                 "writes entries one by one that the random preload left dirty.\n")
    ideal = next(figures(row)["response"] for row in result["cache"] if row["ftl"] == "ideal")
    sizes = sorted({row["map_cache_bytes"] for row in result["cache"] if row["map_cache_bytes"]})
    cell = {(row["ftl"], row["map_cache_bytes"]): figures(row) for row in result["cache"]}
    rows = [[f"{bytes_ >> 10} KiB ({bytes_ / 2**18:g}x)"] + [text for ftl in ("dftl", "cpftl") for text in
            (f"{cell[ftl, bytes_]['hits']:.1%}", f"{cell[ftl, bytes_]['response'] / ideal:.2f}")] for bytes_ in sizes]
    parts.append(table(["map cache", "`dftl`: hits", "response", "`cpftl`: hits", "response"], rows))
    parts.append(cache_why(cell, sizes))
    parts.append("### Memory of mining, and updates of correlated pages (table 3.4)\n")
    rows = []
    for name, full in result["full_mining"].items():
        clustered = next(row for row in result["layers"][name] if row["ftl"] == "cpftl")
        peaks = [size(row["cpftl"]["mining_peak_bytes"]) for row in (full, clustered)]
        fate = clustered["cpftl"]
        changed = fate["correlated_entries_outdated"]
        rows.append([name, peaks[0], PAPER_MINING[name][0], peaks[1], PAPER_MINING[name][1], f"{changed / max(1, fate['correlated_entries_built']):.1%}", PAPER_MINING[name][2]])
    parts.append(table(["trace", "all pairs", "paper", "clustered", "paper", "entries outdated", "paper"], rows))
    parts.append(MINING_WHY)
    parts.append(figuretext.steady_part(result))
    parts.append(memory_part(result["memory"]))
    parts.append(ELSEWHERE)
    return "\n".join(parts)
