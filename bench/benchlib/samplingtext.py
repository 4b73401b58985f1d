"""The page of `make bench-sampling`: goals, and what each system took for each question."""

from benchlib.report import spread, table

NAMES = {"words": "WordCount", "links": "link count", "rate": "requests an hour", "pages": "page popularity",
         "regions": "accesses to regions (block traces)"}
# What a run is compared with: (goal, our run, the peer, its runs, least ratio of times). Of several runs of the peer the
# fastest counts whose answer was within 2 %; only the person who knows the truth could have chosen it.
GOALS = [
    ("a sample of 10 %, beside Spark's", "10 %", "spark", ("sample 10 %",), 2.7),
    ("within 2 %, beside Spark", "error 2 %", "spark", ("exact", "sample 10 %", "sample 1 %", "sample 0.1 %"), 10),
    ("within 2 %, beside DuckDB's bernoulli", "error 2 %", "duckdb", ("bernoulli 10 %", "bernoulli 1 %", "bernoulli 0.1 %"), 2),
    ("everything, beside DuckDB", "exact", "duckdb", ("exact",), 0.8),
]
WITHIN = 0.02
FULL_BYTES = 4e9


def errors(row, truth):
    """Relative errors of the true largest groups and of the total, if it was asked for; what was not found is wrong by 100 %."""
    found = [abs(row["groups"].get(key, 0) - value) / value for key, value in truth["groups"].items()]
    return found + ([] if row["total"] is None else [abs(row["total"] - truth["total"]) / truth["total"]])


def claims(row, truth):
    """Of the groups with intervals that are among the true ones: the widest half relative to the truth, and how many hold it."""
    known = [(low, high, truth["groups"][key]) for key, (low, high) in row.get("claims", {}).items() if key in truth["groups"]]
    if not known:
        return None
    return {"half": max((high - low) / 2 / value for low, high, value in known),
            "hold": sum(low <= value <= high for low, high, value in known), "of": len(known)}


def of(rows, **want):
    return [row for row in rows if all(row[key] == value for key, value in want.items())]


def seconds(rows):
    return spread([row["seconds"] for row in rows])


def judge(rows):
    """For each goal and question: the ratio of median times, and which run of the peer it is beside."""
    found = []
    for text, ours, peer, theirs, least in GOALS:
        for question in NAMES:
            mine = of(rows, question=question, system="tessera", run=ours)
            each = [of(rows, question=question, system=peer, run=run) for run in theirs]
            each = [runs for runs in each if runs and (len(theirs) == 1 or max(row["error"] for row in runs) <= WITHIN)]
            if not each:
                # None of the samples was within 2 %, so whoever needs that reads everything.
                each = [of(rows, question=question, system=peer, run="exact")]
            if mine and each[0]:
                best = min(each, key=lambda runs: seconds(runs)["median"])
                ratio = seconds(best)["median"] / seconds(mine)["median"]
                found.append({"goal": text, "question": question, "least": least, "ratio": ratio, "beside": best[0]["run"],
                              "hit": ratio >= least})
    return found


def percent(share):
    return f"{100 * share:.2g} %" if share < 1 else f"{100 * share:.0f} %"


def run_line(rows):
    """One line of a table: a system's runs of one kind."""
    time, first = seconds(rows), rows[0]
    claimed = [row["claim"] for row in rows if row["claim"]]
    held = f"± {percent(max(c['half'] for c in claimed))}, {sum(c['hold'] for c in claimed)} of {sum(c['of'] for c in claimed)} hold" if claimed else "none"
    return [first["system"], first["run"], f"{time['median']:.2f} s ({time['min']:.2f} – {time['max']:.2f})",
            f"{spread([row['cpu_s'] for row in rows])['median']:.2f} s", f"{spread([row['read_bytes'] for row in rows])['median'] / 1e9:.3f} GB",
            percent(max(row["error"] for row in rows)), held]


def everything_read(rows):
    """Of which questions `--error 2%` read everything, and why."""
    asked = [of(rows, question=question, system="tessera", run="error 2 %") for question in NAMES]
    names = [NAMES[runs[0]["question"]] for runs in asked if runs and min(row["read_bytes"] for row in runs) > FULL_BYTES]
    if not names:
        return []
    return ["", f"`--error 2%` read everything of {', '.join(names)}: what is counted lies in runs there (the words of a package, the hours of a file, the accesses "
            "of a program), so that one of the 20 largest groups at least needs nearly all units. It promises the error before it knows the truth; that a peer's sample was within 2 % "
            "is known here only because the truth is."]


def report(result):
    machine, rows = result["machine"], result["rows"]
    size = ", ".join(f"{name} {size / 1e9:.1f} GB" for name, size in result["bytes"].items())
    lines = [
        "# Answers from samples, beside Spark and DuckDB", "",
        f"Tessera {result['versions']['tessera']}, DuckDB {result['versions']['duckdb']}, Spark {result['versions']['spark']} on the same local "
        f"files, all in the page cache: {size}, in eight directories. Machine: {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB memory, {machine['kernel']}. {result['rounds']} interleaved rounds ({result['spark_rounds']} of Spark); median "
        f"(least – greatest). Load average when started: {result['load']:.1f}."
        + (f" {', '.join(result['again'])} measured again later, on the same machine." if result.get("again") else "")
        + (" Shortened run: **not final**." if min(result["bytes"].values()) < FULL_BYTES or result["rounds"] < 3 else ""), "",
        "`tessera` is `tessera sample`, `query` is `tessera query`, which is not asked for words and totals. The floor of a sample is to read and count its share; DuckDB and Spark read every byte to sample rows. Spark's and DuckDB's start-up is not "
        "counted, that of our commands is. *Error made* is the largest relative error among the 20 truly largest groups and the total, in any round. *Interval "
        "claimed* is the widest of these groups, and how many hold the truth; groups of one sample are not independent, and may miss together "
        "(bench/results/sampling.md has the shares of 1,000 samples). DuckDB and Spark claim none.", "",
        "## Goals", "",
    ]
    lines += table(["goal", "question", "at least", "measured", "beside its run", ""],
                   [[g["goal"], NAMES[g["question"]], f"{g['least']}x", f"{g['ratio']:.1f}x" if g["ratio"] >= 2 else f"{g['ratio']:.2f}x", g["beside"],
                     "hit" if g["hit"] else f"**missed** by {100 * (1 - g['ratio'] / g['least']):.0f} %"] for g in result["goals"]])
    lines += ["", "*Beside its run*: the fastest of that peer's runs whose answer was within 2 %."] + everything_read(rows)
    for question, name in NAMES.items():
        asked = of(rows, question=question)
        kinds = dict.fromkeys((row["system"], row["run"]) for row in asked)
        lines += ["", f"## {name[0].upper()}{name[1:]}", ""]
        lines += table(["system", "run", "time", "CPU", "read", "error made", "interval claimed"],
                       [run_line(of(asked, system=system, run=run)) for system, run in kinds])
    return "\n".join(lines) + "\n"
