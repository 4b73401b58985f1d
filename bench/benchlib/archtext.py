"""The page of `make bench-archsampler`: tables of figures, the paper's beside ours."""

from benchlib.report import lines_of, table

BEST, BALANCED, RANDOM, WORST = "contention-free", "load-balanced", "random", "worst"

# Reductions by ArchSampler in percent, from the paper's text on figures 2.9 to 2.12: most, mean.
PAPER = {
    ("word_count", "time_ns", WORST): (38.4, 16.9),
    ("word_count", "time_ns", RANDOM): (15.1, 6.2),
    ("word_count", "latency_ns", WORST): (97.4, 76.5),
    ("word_count", "latency_ns", RANDOM): (60.5, 40.7),
    ("rating", "time_ns", WORST): (28.9, 14.1),
    ("rating", "time_ns", RANDOM): (13.4, 6.8),
    ("rating", "latency_ns", WORST): (83.9, 80.6),
    ("rating", "latency_ns", RANDOM): (47.2, 22.3),
}
NAMES = {"word_count": "WordCount", "rating": "Average Rating", "time_ns": "time", "latency_ns": "memory latency"}
# Figure 2.13, speed-up over random sampling: most, mean.
PAPER_SPEEDUP = {"read": (1.59, 1.32), "write": (1.67, 1.38)}


def groups(rows):
    """Rows of one setup, by assignment."""
    found = {}
    for row in rows:
        setup = (row["open_ns"], row["compute_ns"], row["ahead"], row["banks"], row["per_mille"])
        found.setdefault(setup, {})[row["assignment"]] = row
    return found


def reductions(rows, against, what="time_ns"):
    """What ArchSampler takes off in each setup, in percent."""
    return [100 * (1 - g[BEST][what] / g[against][what]) for g in groups(rows).values()]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def most_mean(values):
    return f"−{max(values):.1f} %, −{mean(values):.1f} %"


def against_paper(timing):
    rows = []
    for (work, what, against), (most, average) in PAPER.items():
        rows.append([NAMES[work], NAMES[what], against, f"−{most} %, −{average} %",
                     most_mean(reductions(timing[work], against, what)),
                     most_mean(reductions(timing[work + "_swept"], against, what))])
    return table(["application", "of", "against", "paper: most, mean", "reads of 150 ns", "reads of 50 – 450 ns"], rows)


def by_banks(rows):
    """Figures 2.9 to 2.12: each assignment, normalized to the worst case, over ratios."""
    out = []
    for banks in sorted({row["banks"] for row in rows}):
        of = [g for setup, g in groups(rows).items() if setup[3] == banks]
        for name in (BEST, BALANCED, RANDOM, WORST):
            share = [g[name]["time_ns"] / g[WORST]["time_ns"] for g in of]
            spread = [g[name][end] / g[WORST]["time_ns"] for g in of for end in ("least_ns", "most_ns")]
            requests = sum(g[name]["requests"] for g in of)
            part = lambda what: sum(g[name][what] for g in of) / requests
            out.append([banks if name == BEST else "", name, f"{mean(share):.3f}", f"{min(spread):.3f} – {max(spread):.3f}",
                        f"{part('latency_ns'):,.0f} ns", f"{part('service_ns'):,.0f} ns", f"{part('hits'):.1%}",
                        f"{part('conflicts'):.1%}", f"{part('blocked'):.1%}", f"{mean(g[name]['skew'] for g in of):.2f}"])
    head = ["banks", "assignment", "time / worst", "least – greatest", "latency a line", "service", "row hits", "conflicts",
            "found its bank busy", "skew"]
    return table(head, out)


def sweep(rows, key, unit):
    out = []
    for value in sorted({row[key] for row in rows}):
        own = [row for row in rows if row[key] == value]
        out.append([f"{value} {unit}".strip(), most_mean(reductions(own, WORST)), most_mean(reductions(own, RANDOM))])
    return out


def ddr4(timing):
    names = {"ddr4_word_count": "WordCount", "ddr4_read": "synthetic read", "ddr4_write": "synthetic write"}
    rows = [[name, most_mean(reductions(timing[key], WORST)), most_mean(reductions(timing[key], RANDOM))]
            for key, name in names.items()]
    return table(["DDR4-2666", "against the worst case: most, mean", "against random: most, mean"], rows)


def skew_table(timing):
    ratios = sorted({row["per_mille"] for row in timing["skew"]})
    found = {(row["banks"], row["per_mille"]): row["skew"] for row in timing["skew"]}
    rows = [[banks, *(f"{found[banks, ratio]:.2f}" for ratio in ratios)] for banks in sorted({b for b, _ in found})]
    return table(["banks", *(f"{ratio / 10:g} %" for ratio in ratios)], rows)


def contention_table(timing):
    threads = sorted({row["threads"] for row in timing["contention"]})
    found = {(row["banks"], row["threads"]): row["blocked"] for row in timing["contention"]}
    rows = [[banks, *(f"{found[banks, t]:.0%}" for t in threads)] for banks in sorted({b for b, _ in found})]
    return table(["banks", *(f"{t} threads" for t in threads)], rows)


def speedups(timing):
    rows = []
    for work, (most, average) in PAPER_SPEEDUP.items():
        ours = [g[RANDOM]["time_ns"] / g[BEST]["time_ns"] for g in groups(timing[work]).values()]
        worst = [g[WORST]["time_ns"] / g[BEST]["time_ns"] for g in groups(timing[work]).values()]
        rows.append([f"synthetic {work}", f"{most}, {average}", f"{max(ours):.2f}, {mean(ours):.2f}",
                     f"{max(worst):.2f}, {mean(worst):.2f}"])
    return table(["workload", "paper, over random: most, mean", "ours, over random", "ours, over the worst case"], rows)


def load_text(timing):
    load = timing["load"]
    off = [100 * (1 - max(load["balanced"]) / most) for most in load["random_most"]]
    return (f"With 32 banks a balanced sample of 4 % has {min(load['balanced'])} to {max(load['balanced'])} rows of every bank; one random "
            f"sample had {min(load['random'])} to {max(load['random'])}. Over {len(off)} random samples the most loaded bank loses "
            f"{min(off):.1f} to {max(off):.1f} % ({mean(off):.1f} % on average) by balancing; the paper has 21.1 to 32.4 % (26.4 %).")


def accuracy_table(accuracy):
    found = {(r["set"], r["percent"], r["assignment"]): r for r in accuracy["rows"]}
    rows = []
    for (name, percent, assignment), balanced in found.items():
        if assignment != BEST:
            continue
        random = found[name, percent, RANDOM]
        pair = lambda key: f"{balanced[key]:.2%} / {random[key]:.2%}"
        covered = lambda row: f"{row['covered']:.0%}, {row['bootstrap_covered']:.0%}"
        rows.append([name, f"{percent:g} %", pair("error"), f"{100 * (balanced['error'] / random['error'] - 1):+.0f} %",
                     pair("half"), pair("bootstrap_half"), f"{covered(balanced)} / {covered(random)}"])
    head = ["data", "ratio", "mean error", "change", "± claimed", "± by bootstrap", "covered: claimed, bootstrap"]
    return table(head, rows)


def content_tables(content):
    rows = [["sampling sort", f"{r['ratio']:.1%}", f"{r['skew']:.3f}", f"{r['equal_skew']:.2f}",
             f"{r['seconds']:.2f} s (one thread, `sort_unstable`: {r['alone_s']:.2f} s)"] for r in content["sort"]]
    rows += [["graph sampling", f"{r['ratio']:.1%}", f"{r['skew']:.3f}", f"{r['equal_skew']:.2f}",
              f"{r['seconds']:.3f} s for the sample"] for r in content["graph"]]
    return table(["case", "ratio", "skew, cut by a sample", "skew, equal ranges", "time"], rows)


def real_table(real):
    """Rates count the sampled elements. The last column scales time by the square of the interval."""
    rows = []
    for r in real["rows"]:
        rate = 4 * r["elements"] / r["seconds"] / 1e6
        goal = 1e3 * r["seconds"] * (r["half"] / 0.001) ** 2
        rows.append([r["data"], f"{r['ratio']:.2%}", r["sample"], f"{r['elements']:,.0f}", f"{1e3 * r['seconds']:,.2f} ms",
                     f"{rate:,.0f} MB/s", f"{r['half']:.3%}", f"{r['error']:.3%}", f"{goal:,.2f} ms"])
    head = ["data", "ratio", "sample", "elements", "time", "rate", "± of the mean", "mean error", "time for ± 0.1 %"]
    return table(head, rows)


def gain(real, data, ratio, per_error=False):
    """How many times faster rows are than elements at random."""
    pick = {r["sample"]: r for r in real["rows"] if (r["data"], r["ratio"]) == (data, ratio)}
    cost = lambda r: r["seconds"] / r["elements"] if not per_error else r["seconds"] * r["half"] ** 2
    return cost(pick["elements at random"]) / cost(pick["rows"])


def real_text(real):
    times = ", ".join(f"{a['assignment']} {1e3 * a['seconds']:.1f} ms" for a in real["assignments"])
    return [
        f"{real['bytes'] / 1e9:.0f} GB of 4-byte integers, {real['threads']} threads, {real['domains']} NUMA domain(s), median of {real['runs']} runs. "
        "Pages have 4 KiB unless huge pages are `always`, so an element at a random place also misses the TLB. *Elements at random* are drawn with replacement by a generator of a few instructions; *in order* visits addresses with gaps "
        f"of random size. A scan of everything takes {1e3 * real['scan_s']:,.0f} ms ({real['bytes'] / real['scan_s'] / 1e9:.1f} GB/s).", "",
        f"An element of a row is {gain(real, 'shuffled', 0.01):.0f} times cheaper than one at a random place at 1 %. On shuffled data that is the gain "
        f"at equal error: {gain(real, 'shuffled', 0.01, True):.0f} times. On data whose mean changes from MiB to MiB rows resemble themselves, and the gain at equal "
        f"error is {gain(real, 'clustered', 0.01, True):.3f}: single elements win. The design effect that every estimate carries tells which case it is.",
        "", f"The assignments at 1 %: {times}. They differ within the noise of a shared machine, because "
        + ("two threads rarely meet in a bank." if real["banks_are_known"] else
           "virtual addresses do not tell banks of 8 KiB rows on 4 KiB pages (see `banks_are_known`), and two threads rarely meet in a bank."),
    ]


def differences(timing):
    unequal = [100 * (1 - row["best_ns"] / row["unequal_ns"]) for row in timing["unequal"]]
    at4 = [100 * (1 - g[BEST]["time_ns"] / g[RANDOM]["time_ns"]) for s, g in groups(timing["word_count"]).items() if s[3] == 4]
    return [
        "- *One constant is set.* The paper does not state how long the cores work on a line. With all eight cores in one bank, each request finds "
        "another row open, so a line takes 8 · (t_RCD + t_CL). The work is chosen so that ArchSampler takes as much off that as the paper says at most: "
        "797 ns (WordCount) and 922 ns (rating) if that was at 150 ns, 2,272 and 2,626 ns if it was at 450 ns. All other figures follow from it.",
        "- *Mean against the worst case.* All requests in one bank take equally long however many banks there are. At 150 ns alone the mean must then be near the most; "
        "the paper's mean is less than half of it. It is near ours over reads of 50 to 450 ns, so the paper's numbers seem to be over table 2.1's latencies, though its text does not say so.",
        "- *Against random.* At 150 ns most and mean are within three points of the paper's, and smaller. Here threads get equal numbers of random rows. Where each row goes to a random thread, "
        f"the slowest thread has more than its share and ArchSampler takes off {most_mean(unequal)}: more than the paper says, the more so the fewer rows there are. "
        "A little of this inequality in the paper's runs could explain what is left. "
        f"With four banks and eight cores two cores share a bank. They go in lockstep from row to row, find no row open, and ArchSampler is no better than random ({min(at4):+.1f} to {max(at4):+.1f} % taken off).",
        "- *Memory latency.* Ours counts from request to answer of the memory alone. A fixed part in every latency, for caches and controller, would lower the reductions: 40 ns give "
        "WordCount's 60.5 % against random, but would also lower those against the worst case to 90 %. So one cause does not explain both, and we know no other.",
        "- *Load-balanced alone gains nothing.* It takes as long as random sampling: cores meet in a bank as often, and a bank with more rows than others is no bottleneck while eight cores work on what they read. "
        "What gains is that threads own banks.",
        "- *Ratios.* The paper's text says 2 to 32 ‰ and its captions say percent. These are ‰ of 32,000 rows; the reductions in time hardly depend on them.",
        "- *Bank bits.* Bank bits 6 to 10 (methodology) interleave lines; `row % banks` (the same section) interleaves rows of 8 KiB. The model follows the latter, which the "
        "paper's example and its assignments need.",
    ]


def report(result):
    """The text of bench/results/archsampler.md."""
    m, timing = result["machine"], result["timing"]
    lines = [
        "# ArchSampler: the paper's figures, and this machine's memory", "",
        f"Model: {timing['threads']} cores, {timing['rows']:,} rows of 8 KiB, table 2.1's PCM (t_RCD 150 ns, t_CL 15 ns, writes 500 ns, FR-FCFS) unless said otherwise; "
        "docs/sampling.md describes it. Means of ten seeds. Simulated figures do not depend on the machine.",
        f"Machine: {m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB memory, {m['kernel']}, huge pages: {result['huge_pages']}, load {result['load']:.1f} at the start.",
    ]
    lines += lines_of("Against the paper", "4 to 32 banks, 2 to 32 ‰. Each cell is what ArchSampler takes off: most, mean.",
                      against_paper(timing), "Where they differ, and why:", differences(timing))
    lines += lines_of("Figure 2.4: skew of random samples", "Most rows of a bank compared with the mean; balanced samples have 1.", skew_table(timing))
    lines += lines_of("Figure 2.5: contention", "How likely another of T threads is in the bank that a thread chooses at random: 1 − (1 − 1/N)^(T − 1). The paper's "
                      "60 % is that of as many banks as cores, eight.", contention_table(timing))
    lines += lines_of("Figures 2.9 and 2.10: WordCount", by_banks(timing["word_count"]))
    lines += lines_of("Figures 2.11 and 2.12: Average Rating", by_banks(timing["rating"]))
    head = ["", "against the worst case: most, mean", "against random: most, mean"]
    lines += lines_of("What the gain depends on", "At 8 ‰, over banks. Reads, for WordCount at 797 ns a line:",
                      table(head, sweep(timing["read_latency"], "open_ns", "ns")), "Work on a line:", table(head, sweep(timing["compute"], "compute_ns", "ns")),
                      "Lines that a core requests ahead, without work:", table(head, sweep(timing["ahead"], "ahead", "")),
                      "DRAM opens rows ten times faster, so little is left to gain where cores work on what they read:", ddr4(timing))
    lines += lines_of("Figure 2.13: synthetic reads and writes", speedups(timing), "No work between requests, two lines ahead, so banks bound the time and the gain is larger than the "
                      "paper's, whose cores spend instructions on each load.", by_banks(timing["read"]), by_banks(timing["write"]))
    lines += lines_of("Figure 2.14: load of banks", load_text(timing))
    lines += lines_of("Figures 2.7 and 2.8: errors", f"{result['accuracy']['seeds']} seeds; made data (the reviews cannot be had), 32 banks. Pairs are balanced / random.",
                      accuracy_table(result["accuracy"]),
                      "The paper finds errors that are 33 to 43 % smaller at 2 % and gives diversity as the reason. Here they are equal within the noise of the seeds, as theory says: a bank is every 32nd row, so what lies in one "
                      "resembles what lies in another, and strata that resemble each other gain nothing. Only where banks differ (third set) is a balanced sample better, by the share of variance "
                      "that lies between banks. With two or three rows of a bank (0.5 %) the claimed interval is wider than need be, because the estimators distrust variances of few units.")
    lines += lines_of("Content-dependent cases", f"{result['content']['elements']:,} elements whose keys follow a power law, {result['content']['parts']} parts. Skew: the largest part compared with the mean.",
                      content_tables(result["content"]))
    lines += lines_of("This machine's memory", real_text(result["real"]), real_table(result["real"]))
    return "\n".join(lines) + "\n"
