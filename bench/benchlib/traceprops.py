"""What block traces are like: the properties that the CPFTL paper shows of its own (tables 3.1 and 3.2, figures 3.3 and 3.4)."""

import collections
import itertools
import statistics

PAGE, REGION_PAGES, COMPACT = 4096, 4096, 1 << 20
# Requests of a part, and the distance within which figure 3.4b has 99 % of the reads of what was written.
PART, NEAR = 1024, 500
# Figure 3.3: reads of a window, least windows per mille that have a pair, and reads that are looked at.
WINDOW, SUPPORT, READS = 32, 1, 200_000
# The share of the correlated pairs that figure 3.3 has in its areas.
COVERED = 0.929

Request = collections.namedtuple("Request", "second is_read pages bytes")


def parse(lines):
    """Requests of a trace in SPC's format (device, sector, bytes, operation, second). Pages are numbered over all devices."""
    bases, found = {}, []
    for line in lines:
        if line.startswith("#") or not line.strip():
            continue
        device, sector, size, operation, second = line.split(",")[:5]
        start, size = int(sector) * 512 + bases.setdefault(device, len(bases) << 50), int(size)
        is_read = operation in "rR"
        found.append(Request(float(second), is_read, range(start // PAGE, -(-(start + size) // PAGE)), size))
    return found


def footprint(requests):
    """Bytes of the regions that are touched, as `--compact` counts them."""
    regions = {page * PAGE // COMPACT for request in requests for page in request.pages}
    return len(regions) * COMPACT


def buffered(requests, pages):
    """What a write-back LRU cache of so many pages lets through: reads of runs of missing pages, and replaced dirty pages."""
    cache, out = collections.OrderedDict(), []
    for request in requests:
        missing = []
        for page in request.pages:
            dirty = cache.pop(page, None)
            if dirty is None:
                missing.append(page)
                if len(cache) >= pages:
                    old, was_dirty = cache.popitem(last=False)
                    if was_dirty:
                        out.append(Request(request.second, False, range(old, old + 1), PAGE))
            cache[page] = bool(dirty) or not request.is_read
        if request.is_read:
            out += [Request(request.second, True, run, len(run) * PAGE) for run in runs(missing)]
    return out


def runs(pages):
    """Ranges of neighbours."""
    for _, group in itertools.groupby(enumerate(pages), lambda item: item[1] - item[0]):
        run = [page for _, page in group]
        yield range(run[0], run[-1] + 1)


def shape(requests):
    """The columns of tables 3.1 and 3.2."""
    sizes = {kind: [r.bytes for r in requests if r.is_read == kind] for kind in (True, False)}
    mean = {kind: statistics.fmean(found) / 1024 if found else None for kind, found in sizes.items()}
    gap = (requests[-1].second - requests[0].second) / max(1, len(requests) - 1) if requests else 0
    return {"requests": len(requests), "read_kb": mean[True], "write_kb": mean[False],
            "reads": len(sizes[True]) / max(1, len(requests)), "gap_ms": gap * 1e3}


def reuse(requests):
    """Figures 3.4a and b, in parts of 1,024 requests: writes that are read after, and how far after, and reads that are read again."""
    ratios, distances, again, reads = [], [], 0, 0
    for first in range(0, len(requests), PART):
        part, written, seen, hits, writes = requests[first : first + PART], {}, set(), 0, 0
        for number, request in enumerate(part):
            if request.is_read:
                sources = {written.pop(page) for page in request.pages if page in written}
                hits += len(sources)
                distances += [number - source for source in sources]
                again += any(page in seen for page in request.pages)
                reads += 1
                seen.update(request.pages)
            else:
                writes += 1
                written.update((page, number) for page in request.pages)
        if writes:
            ratios.append(min(1, hits / writes))
    return {"dirty_reads": [min(ratios), statistics.fmean(ratios), max(ratios)] if ratios else None,
            "near": sum(d < NEAR for d in distances) / len(distances) if distances else None, "reads_again": again / max(1, reads)}


def skew(requests):
    """Figure 3.4c: the shares of page writes that go to the hundredth and the tenth of the written pages that are written most."""
    counts = collections.Counter(page for r in requests if not r.is_read for page in r.pages)
    most, total = sorted(counts.values(), reverse=True), sum(counts.values())
    return {str(share): sum(most[: max(1, round(len(most) * share))]) / total for share in (0.01, 0.1)} if total else None


def clusters(requests):
    """Figure 3.3: pairs of pages that are read one soon after the other, and how few pairs of regions have most of them."""
    reads = [r.pages[0] for r in requests if r.is_read and len(r.pages)][:READS]
    counts = collections.Counter()
    for first in range(0, len(reads), WINDOW):
        window = dict.fromkeys(reads[first : first + WINDOW])
        counts.update(itertools.combinations(window, 2))
    least = max(2, SUPPORT * len(reads) / WINDOW / 1000)
    pairs = [pair for pair, count in counts.items() if count >= least]
    regions = collections.Counter((a // REGION_PAGES, b // REGION_PAGES) for a, b in pairs)
    covered, needed = 0, 0
    for count in sorted(regions.values(), reverse=True):
        if covered >= COVERED * len(pairs):
            break
        covered, needed = covered + count, needed + 1
    touched = len({page // REGION_PAGES for page in reads})
    return {"pairs": len(pairs), "region_pairs": needed, "of": touched * touched}


def properties(requests, buffer_share):
    """All of these; with a share, also of what a host's cache of that share of what is touched lets through."""
    half = len(requests) // 2
    trained = {page for r in requests[:half] if r.is_read for page in r.pages}
    tested = [page for r in requests[half:] if r.is_read for page in r.pages]
    out = {"raw": shape(requests), "footprint": footprint(requests), "skew": skew(requests), "clusters": clusters(requests),
           "reuse": reuse(requests), "test_reads_trained": sum(page in trained for page in tested) / max(1, len(tested))}
    if buffer_share:
        out["buffered"] = shape(buffered(requests, max(1, int(out["footprint"] * buffer_share / PAGE))))
    return out
