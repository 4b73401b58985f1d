"""The page of `make bench-approxssd`: goals, and tables of figures, the paper's beside ours."""

from statistics import mean, median

from benchlib.report import lines_of, table

BASELINE, TESSERA = "random", "tessera"
NAMES = {"WC": "Word Count", "PR": "Page Rank", "RR": "Request Rate", "PP": "Page Popularity"}
# From the paper's text: speed-up at 0.01 % and at 100 %.
PAPER_SPEEDUP = {"WC": (2.70, 1.28), "PR": (2.09, 1.45), "RR": (1.70, 1.33), "PP": (1.55, 1.55)}
LEAST_BALANCE = 0.95
MOST_OVER_FLOOR = 1.1
LOWEST, MIDDLE = 0.0001, 0.01


def pick(rows, **want):
    """The rows that have these values."""
    return [row for row in rows if all(row.get(key) == value for key, value in want.items())]


def one(rows, **want):
    found = pick(rows, **want)
    assert len(found) == 1, (want, len(found))
    return found[0]


def spread(values, form="{:.2f}"):
    """Median, least and greatest."""
    if not values:
        return "–"
    text = form.format(median(values))
    return text if len(values) == 1 else f"{text} ({form.format(min(values))} – {form.format(max(values))})"


def percent(ratio):
    return f"{100 * ratio:g} %"


def verdict(hit):
    return "hit" if hit else "**missed**"


def pair(times, **want):
    """Rows of the baseline and of Tessera."""
    return [one(times["rows"], strategy=name, **want) for name in (BASELINE, TESSERA)]


def speedup(times, app, ratio, unstable=False, key="seconds"):
    """Median time of the baseline compared with Tessera's."""
    baseline, tessera = pair(times, app=app, ratio=ratio, unstable=unstable)
    return median(baseline[key]) / median(tessera[key])


def over_floor(row, key="seconds"):
    return median(row[key]) / row["floor_s"]


def ratios(times):
    return sorted({row["ratio"] for row in times["rows"]}, reverse=True)


def apps(times):
    return [app for app in NAMES if pick(times["rows"], app=app)]


def goals(result):
    """What is judged: (goal, what is asked, by the clock, hit, simulated, hit)."""
    times, rows = result["time"], []
    computed = one(result["balance"]["rows"], disks=8, partitions=2600, strategy=TESSERA)["balance"]
    read = [value for app in apps(times) for value in one(times["rows"], app=app, ratio=MIDDLE, strategy=TESSERA)["balance"]]
    rows.append(("balance of 8 disks at 1 %: mean, least", f"≥ {percent(LEAST_BALANCE)}", f"{mean(read):.1%}, {min(read):.1%}",
                 mean(read) >= LEAST_BALANCE, f"{mean(computed):.1%}, {min(computed):.1%}", mean(computed) >= LEAST_BALANCE))
    for ratio in ratios(times):
        own = pick(times["rows"], ratio=ratio, strategy=TESSERA, unstable=False)
        clock, simulated = [max(over_floor(row, key) for row in own) for key in ("seconds", "simulated_s")]
        rows.append((f"time / floor at {percent(ratio)}, worst of four applications", f"≤ {MOST_OVER_FLOOR}", f"{clock:.2f}",
                     clock <= MOST_OVER_FLOOR, f"{simulated:.2f}", simulated <= MOST_OVER_FLOOR))
    for unstable in (False, True):
        for app in apps(times):
            goal = PAPER_SPEEDUP[app][0]
            clock, simulated = [speedup(times, app, LOWEST, unstable, key) for key in ("seconds", "simulated_s")]
            disks = "unstable" if unstable else "steady"
            rows.append((f"speed-up at 0.01 %, {NAMES[app]}, {disks} disks", f"≥ {goal:.2f}", f"{clock:.2f}", clock >= goal,
                         f"{simulated:.2f}", simulated >= goal))
    return rows


def goal_table(result):
    rows = [[goal, asked, clock, verdict(hit), simulated, verdict(also)] for goal, asked, clock, hit, simulated, also in goals(result)]
    return table(["goal", "", "by the clock", "", "in simulated time", ""], rows)


def balance_table(balance):
    rows = []
    samples = sorted({row["partitions"] for row in balance["rows"]})
    for disks in sorted({row["disks"] for row in balance["rows"]}):
        found = [one(balance["rows"], disks=disks, partitions=n, strategy=BASELINE)["balance"] for n in samples]
        own = [min(one(balance["rows"], disks=disks, partitions=n, strategy=TESSERA)["balance"]) for n in samples]
        rows.append([disks, *(f"{mean(f):.0%} ({min(f):.0%} – {max(f):.0%})" for f in found), f"{min(own):.1%}"])
    return table(["disks", *(f"random, {n:,}" for n in samples), "Tessera, the least of all"], rows)


def read_balance_table(times):
    rows = []
    for app in apps(times):
        baseline, tessera = pair(times, app=app, ratio=MIDDLE, unstable=False)
        rows.append([NAMES[app], f"{baseline['units']:,}", spread(baseline["balance"], "{:.1%}"), spread(tessera["balance"], "{:.1%}"),
                     f"{mean(tessera['balance']) / mean(baseline['balance']):.2f}"])
    return table(["1 %, bytes that disks served", "units", "random", "Tessera", "largest load, random / Tessera"], rows)


def contention_table(contention):
    found = contention["rows"]
    disks = sorted({row["disks"] for row in found})
    rows = [[percent(ratio), *(f"{one(found, disks=d, ratio=ratio)['blocked']:.0%}" for d in disks)]
            for ratio in sorted({row["ratio"] for row in found}, reverse=True)]
    return table(["ratio", *(f"{d} disks" for d in disks)], rows)


def time_table(times):
    rows = []
    for app in apps(times):
        for ratio in ratios(times):
            baseline, tessera = pair(times, app=app, ratio=ratio, unstable=False)
            rows.append([NAMES[app] if ratio == 1 else "", percent(ratio), f"{tessera['units']:,}", f"{tessera['floor_s']:.2f} s",
                         spread(baseline["seconds"]), spread(tessera["seconds"]), f"{over_floor(tessera):.2f}",
                         f"{speedup(times, app, ratio):.2f}", f"{over_floor(tessera, 'simulated_s'):.2f}",
                         f"{speedup(times, app, ratio, key='simulated_s'):.2f}"])
    head = ["application", "ratio", "units", "floor", "random, s", "Tessera, s", "/ floor", "speed-up", "simulated: / floor", "speed-up"]
    return table(head, rows)


def speedup_table(times):
    rows = []
    for app in apps(times):
        lowest, whole = PAPER_SPEEDUP[app]
        clock = [speedup(times, app, LOWEST, unstable) for unstable in (False, True)]
        simulated = [speedup(times, app, LOWEST, unstable, "simulated_s") for unstable in (False, True)]
        own = one(times["rows"], app=app, ratio=LOWEST, strategy=TESSERA, unstable=False)
        rows.append([NAMES[app], f"{lowest:.2f}", *(f"{c:.2f} ({s:.2f})" for c, s in zip(clock, simulated)),
                     f"{median(own['idle']):.0%}", f"{whole:.2f}", f"{speedup(times, app, 1.0):.2f} ({speedup(times, app, 1.0, key='simulated_s'):.2f})"])
    head = ["application", "0.01 %: paper", "steady disks (simulated)", "unstable disks (simulated)", "Tessera's disks idle", "100 %: paper", "steady disks (simulated)"]
    return table(head, rows)


def error_table(errors):
    found, rows = errors["rows"], []
    part = lambda value: "–" if value is None else f"{value:.1%}"
    for app in NAMES:
        for ratio in sorted({row["ratio"] for row in found}, reverse=True):
            baseline, own = [one(found, app=app, ratio=ratio, strategy=name) for name in (BASELINE, TESSERA)]
            cells = [f"{part(baseline[key])} / {part(own[key])}" for key in ("error", "half", "claimed", "covered")]
            rows.append([NAMES[app] if ratio == 0.1 else "", percent(ratio), f"{own['units']:,}", own["groups"], *cells])
    return table(["application", "ratio", "units", "groups", "mean error", "± claimed", "share with a claim", "covered"], rows)


def waiting_table(times):
    rows = []
    for ratio in ratios(times):
        of = lambda key, name: [value for row in pick(times["rows"], ratio=ratio, strategy=name, unstable=False) for value in row[key]]
        rows.append([percent(ratio), *(spread(of(key, name), "{:.0%}") for key in ("waiting", "simulated_waiting") for name in (BASELINE, TESSERA))])
    return table(["ratio", "random", "Tessera", "simulated: random", "Tessera"], rows)


def milliseconds(latency, *keys):
    return [f"{1e3 * latency[key]:.1f}" for key in keys]


def scheduling_table(scheduling):
    rows = []
    for row in scheduling["rows"]:
        rows.append([percent(row["balance"]) if row["strategy"] == "dealt" else "", row["strategy"], spread(row["reads_per_s"], "{:.0f}"),
                     *milliseconds(row["latency"], "mean_s", "p50_s", "p95_s", "p99_s", "most_s")])
    return table(["balance", "threads", "reads / s", "mean, ms", "median", "95 %", "99 %", "most"], rows)


def window_table(scheduling):
    rows = []
    for name in ("dealt", "own disk"):
        found = pick(scheduling["windows"], strategy=name)
        for key, what in (("mean_s", "mean"), ("p95_s", "95 %")):
            rows.append([f"{name}, {what}", *(milliseconds(row["latency"], key)[0] for row in found)])
    width = max(len(row) for row in rows)
    rows = [row + [""] * (width - len(row)) for row in rows]
    return table(["latency in ms, by tenth of the run", *(str(i) for i in range(1, width))], rows)


def sizes_table(sizes):
    rows = []
    for kib in sorted({row["kib"] for row in sizes["rows"]}):
        baseline, own = [one(sizes["rows"], kib=kib, strategy=name) for name in (BASELINE, TESSERA)]
        rows.append([f"{kib} KiB", f"{own['units']:,}", spread(baseline["simulated_s"]), spread(own["simulated_s"]),
                     f"{median(baseline['simulated_s']) / median(own['simulated_s']):.2f}", f"{over_floor(own, 'simulated_s'):.2f}",
                     spread(baseline["seconds"]), spread(own["seconds"]),
                     f"{baseline['errors']:.2%} / {own['errors']:.2%}"])
    return table(["size", "units", "simulated: random, s", "Tessera, s", "speed-up", "/ floor", "by the clock, a seventh: random, s", "Tessera, s",
                  "mean error"], rows)


PAPER_PARTS = {"balanced": "−37.5 %", "balanced, own disk": "−14.2 % more", "drop 10 %": "−9.8 % more", "drop 50 %": "−5.2 % more"}


def breakdown_table(breakdown, unstable):
    rows, before = [], {}
    for row in pick(breakdown["rows"], unstable=unstable):
        cells = []
        for key in ("seconds", "simulated_s"):
            first = median(pick(breakdown["rows"], unstable=unstable, parts=BASELINE)[0][key])
            share = 100 * median(row[key]) / first
            step = "" if row["parts"] == BASELINE else f"{share - before[key]:+.1f} %"
            before[key] = share
            cells += [spread(row[key]), step]
        rows.append([row["parts"], PAPER_PARTS.get(row["parts"], ""), *cells, f"{mean(row['balance']):.0%}"])
    return table(["parts", "paper", "by the clock, s", "step", "simulated, s", "step", "balance of reads"], rows)


def capacity(result):
    """How long unstable disks take on average for the floor's reads, if none waits for another."""
    slow = result["time"]["slow"]
    return result["breakdown"]["floor_s"] / (1 - slow["lasts_s"] / slow["period_s"] * (1 - 1 / slow["factor"]))


def straggler_table(straggler):
    rows = []
    for row in straggler["rows"]:
        cover = lambda c: f"{c['covered'] / c['reported']:.1%} of {c['reported']:,} ({c['claimed']:,})"
        bias = f"{mean(row['own_bias']):+.1%}" + (f" ± {two_errors(row['own_bias']):.1%}" if len(row["own_bias"]) > 1 else "")
        rows.append([row["strategy"], spread(row["seconds"]), spread(row["simulated_s"]), f"{median(row['slow_disk_reads']):.0f}",
                     f"{mean(row['total_error']):+.3%}", f"{mean(row['error']):.1%}", cover(row["top"]), bias,
                     cover(row["own"])])
    head = ["strategy", "by the clock, s", "simulated, s", "reads of the slow disk", "bias of all words", "error of the 100 top words", "covered (claimed)",
            "bias of the slow disk's own words", "covered (claimed)"]
    return table(head, rows)


def two_errors(values):
    """Twice the standard error of a mean."""
    m = mean(values)
    return 2 * (sum((v - m) ** 2 for v in values) / (len(values) - 1) / len(values)) ** 0.5


def reasons(result):
    """Why goals are missed; empty where none is."""
    times, out = result["time"], []
    own = pick(times["rows"], strategy=TESSERA, unstable=False)
    late = [row for row in own if over_floor(row) > MOST_OVER_FLOOR]
    if late:
        load = times["load"]
        where = ", ".join(f"{NAMES[row['app']]} at {percent(row['ratio'])}: {over_floor(row):.2f}, of which the answer takes {median(row['answer_s']) / row['floor_s']:.2f}" for row in late)
        out.append(f"- *Floor.* By the clock {len(late)} of {len(own)} medians are above {MOST_OVER_FLOOR} ({where}). In simulated time, where disks and queues are the same and the processor is "
                   f"left out, the worst is {max(over_floor(row, 'simulated_s') for row in own):.2f}: the engine plans no read too many and leaves no disk without one. What is left is "
                   "the answer at the end, for which the moments of every word in each of 32 strata are put together while disks rest, and threads that the processor wakes late. "
                   f"The load of this machine was {load[0]:.1f} before and {load[1]:.1f} after.")
    missed = [app for app in apps(times) if speedup(times, app, LOWEST) < PAPER_SPEEDUP[app][0]]
    if missed:
        baseline = pair(times, app=missed[0], ratio=LOWEST, unstable=False)[0]
        wait = mean(baseline["simulated_waiting"])
        out.append(f"- *Speed-up* of {', '.join(NAMES[app] for app in missed)}. Tessera is at its floor in simulated time, so no order of reads on steady disks gains more. The baseline here "
                   f"loses only what the paper's text describes: {wait:.0%} of its threads' time waits for busy disks, and its most loaded disk has more than the mean. The paper's "
                   "baseline is Spark on a RAID controller; it is slower by 1.28 to 1.55 even at 100 %, where neither balance nor order matters (here 1.0), "
                   "which is the cost of its stack. Divided by that, the paper's speed-ups are "
                   + ", ".join(f"{low / whole:.2f} ({NAMES[app]})" for app, (low, whole) in PAPER_SPEEDUP.items())
                   + f"; ours, simulated, is {min(speedup(times, app, LOWEST, key='simulated_s') for app in apps(times)):.2f} on steady disks and "
                   f"{min(speedup(times, app, LOWEST, True, 'simulated_s') for app in apps(times)):.2f} on unstable ones.")
    return out or ["All goals are hit."]


def report(result):
    """The text of bench/results/approxssd.md."""
    m, times = result["machine"], result["time"]
    slow = times["slow"]
    quick = any(part.get("quick") for part in result.values() if isinstance(part, dict))
    lines = [
        "# ApproxSSD: the paper's figures on played disks", "",
        f"Eight played disks: each serves one read at a time, in {times['latency_ms']:g} ms and {times['bytes_per_s'] / 1e6:g} MB/s, slow so that the processor is not the bound. "
        f"Units have {times['unit_bytes'] // 1024} KiB; 1 KiB more is read to end the last record. Text (Zipf's law, articles, links, words of each disk's own) and request logs are made "
        "from seeds; for small ratios the files are repeated up to 1,000 times, so that a sample has hundreds of units as the paper's has. Unstable disks are "
        f"{slow['factor']:g} times slower for {slow['lasts_s']:g} s at a random time of each {slow['period_s']:g} s.",
        "*Random*: units at random, each thread is dealt every eighth one in the order of a striped volume, all are waited for. *Tessera*: equal shares of disks, a thread for each disk, "
        f"{times['drop']:.0%} more selected than needed and the last dropped. Both have eight threads that read and two that compute, and the same estimators. Cells are medians (least – greatest).",
        "*Simulated* columns run the same selections and queues without a clock and without computing (20 seeds). They are equal on every machine; columns by the clock are not.",
        f"Machine: {m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB memory, {m['kernel']}; load {times['load'][0]:.1f} before and {times['load'][1]:.1f} after figure 1.6."
        + (" **Other programs were running: figures by the clock are noisy.**" if times["load"][0] > 0.5 else "")
        + (" Shortened run (`--quick`): **not final**." if quick else ""),
    ]
    lines += lines_of("Goals", goal_table(result), "What is missed, and why:", reasons(result))
    lines += lines_of("Figures 1.3 and 1.8: balance at 1 %", "Mean load of a disk compared with the largest, 20 runs, mean (least – greatest), computed; columns are the number of partitions in the sample. "
                      "Paper: random about 60 % with deviations up to 20 %; the largest load 1.48 times that of ApproxSSD, whose deviation is below 10 %.",
                      balance_table(result["balance"]),
                      "60 % is what 32 partitions on eight disks have. 49 GB in partitions of 8 KiB give 59,800, and 98 %: so the paper's samples must have had few large "
                      "pieces, or its data was unevenly spread. Tessera reads at least 24 units of each disk, equally many of each.",
                      read_balance_table(times))
    lines += lines_of("Figure 1.4: blocked tasks", f"{result['contention']['threads']} threads that take tasks in rounds; all but one of the tasks that meet on a disk are blocked. Computed. Paper: at most about 60 %, "
                      "falling with the number of disks, rising as the ratio falls, none with 100 % and 32 disks.", contention_table(result["contention"]),
                      "With a thread for each disk none is blocked.")
    lines += lines_of("Figure 1.6: time", "The floor is a disk's equal share of what the ratio asks for, read without a gap.", speedup_table(times), time_table(times),
                      "The paper's abstract has its 2.7 at 10 %, its evaluation at 0.01 %. At 100 % a striped order keeps the baseline's threads apart, so nothing is left to gain. The four applications read alike; what differs between them is computing.")
    lines += lines_of("Figure 1.7: errors", f"Random / balanced, no clock; the {result['error']['top']:,} largest groups (168 hours for Request Rate), true values counted from all records. "
                      "A group of which nothing was seen has error 1. An interval is claimed from 30 units on. Paper: errors of both selections are close; WC and PR hardly depend on the ratio, RR and PP much at 0.01 %.",
                      error_table(result["error"]),
                      "An hour of Request Rate lies in 0.6 % of the units, so samples of this size see it in fewer than 30 and claim nothing of it; the paper's logs are longer. "
                      "Requests are heavy-tailed; intervals from one stratum (random) cover less of them than those from 32.")
    lines += lines_of("Figure 1.9: waiting for busy disks", "Share of the threads' time in which their disk serves another thread. Paper: the baseline wastes three times as much of the processor on I/O wait.",
                      waiting_table(times))
    lines += lines_of("Figures 1.10 and 1.11: reads per second and latency", "Word Count, 10 %: the same number of units, one disk with more than the others, read by threads that are dealt tasks and by threads that own disks. "
                      f"Eight disks give {result['scheduling']['disks_reads_per_s']:.0f} reads a second. Paper: with balance IOPS rise under both; the baseline's latency falls, ApproxSSD's is always low and steadier.",
                      scheduling_table(result["scheduling"]), window_table(result["scheduling"]))
    lines += lines_of("Figure 1.12: sizes of partitions", "Page Rank, 1 %; errors are those of the 100 top pages, random / balanced. Paper: twice as fast at 2 KiB, no difference in time above 64 KiB, larger errors with larger partitions.",
                      sizes_table(result["sizes"]))
    lines += lines_of("Figure 1.13: breakdown", "Word Count, 10 %, unstable disks; steps in percent of the baseline's time.", breakdown_table(result["breakdown"], True), "The same on steady disks:",
                      breakdown_table(result["breakdown"], False),
                      "Balance alone gains least here and own threads most, while the paper has it the other way round: its random samples have a balance of 60 %, ours of hundreds of units about 90 %. "
                      "With drops the reads of a slow disk are fewer (last column), and weights follow. "
                      f"Disks that are {slow['factor']:g} times slower for a tenth of the time need {capacity(result):.2f} s at least: 10 % come near to it, and more drops gain nothing.")
    lines += lines_of("A straggler", "Word Count, 10 %; one disk is ten times slower, and holds words that no other has.", straggler_table(result["straggler"]),
                      f"The floor without a straggler is {result['straggler']['floor_s']:.2f} s. 24 units of the slow disk always arrive, so its own words are seen in fewer than 30 units with drops, "
                      "and nothing is claimed of them; their intervals are counted all the same. Bias is the mean over runs, ± two standard errors.")
    return "\n".join(lines) + "\n"
