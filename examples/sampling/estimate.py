"""Totals of a sample of pieces, drawn from each host for itself (Cochran, Sampling Techniques, chapter 5; ApproxSSD, equations 1.1 to 1.3 with all
records of a piece read)."""

import math
from statistics import NormalDist


def student(confidence, freedom):
    """The quantile of Student's law for a two-sided interval: the expansion around the normal one (Abramowitz and Stegun, 26.7.5)."""
    x, v = NormalDist().inv_cdf(0.5 + confidence / 2), max(freedom, 3)
    terms = ((x**3 + x) / 4, (5 * x**5 + 16 * x**3 + 3 * x) / 96, (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384)
    return x + sum(term / v ** (i + 1) for i, term in enumerate(terms))


def total(strata, confidence=0.95):
    """The estimated total, and the ends of its interval. `strata`: for each host the number of its pieces, and the totals of those drawn."""
    value = variance = by_freedom = 0.0
    for pieces, drawn in strata:
        n, mean = len(drawn), sum(drawn) / len(drawn)
        value += pieces * mean
        if n == pieces:
            continue
        spread = sum((y - mean) ** 2 for y in drawn) / (n - 1)
        own = pieces * (pieces - n) / n * spread
        variance += own
        by_freedom += own * own / (n - 1)
    if variance == 0:
        return value, value, value
    # Degrees of freedom after Satterthwaite.
    half = student(confidence, variance * variance / by_freedom) * math.sqrt(variance)
    return value, value - half, value + half
