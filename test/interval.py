"""The statistics of the scripts that judge ratios."""
import math, statistics

def interval(x):
    """The median and its 95 % interval, by order statistics (binomial)."""
    x, n, k, tail = sorted(x), len(x), 0, 0.0
    while k < n // 2 and (tail := tail + math.comb(n, k) / 2**n) <= 0.025:
        k += 1
    k = max(k - 1, 0)
    return statistics.median(x), x[k], x[n - 1 - k]
