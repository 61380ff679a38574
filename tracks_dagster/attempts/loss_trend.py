"""Whether a loss falls: the last quarter's median against the first's, and the Mann-Kendall trend test.

Both must say so. The medians say how much, and one outlier does not move them; the test says that
chance alone would seldom order the losses so. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LOSSES_MIN = 8  # two in a quarter; a smaller test could hardly come below p = 0.05
LOSSES_MAX = 10_000  # tested: the median of as many equal blocks where there are more


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTrend:
    """falls: both criteria hold. first, last: medians of the first and last quarter; p: of the
    Mann-Kendall test, two-sided; None where there are too few losses."""

    falls: bool
    why: str
    count: int
    first: float | None = None
    last: float | None = None
    p: float | None = None


def judge_loss(losses: Sequence[float], *, by: float, p_max: float) -> LossTrend:
    """Return whether `losses`, in the order of their steps, fall by the share `by`.

    3.0, 2.9, 2.5, 2.4, 2.2, 2.1, 2.0, 1.9: the quarters' medians are 2.95 and 1.95, which is 33.9 %
    less; every pair falls, S = -28, and p = 0.0008.
    """
    count = len(losses)
    if count < LOSSES_MIN:
        why = f"{count} steps reported a loss, and {LOSSES_MIN} are the fewest that show a trend"
        return LossTrend(falls=False, why=why, count=count)
    if not all(math.isfinite(each) for each in losses):
        return LossTrend(falls=False, why="a loss is not finite", count=count)
    quarter = count // 4
    first, last = median(losses[:quarter]), median(losses[-quarter:])
    s, p = mann_kendall(_blocks(losses))
    fallen = first - last
    is_lower = fallen >= by * abs(first) and fallen > 0
    is_trend = s < 0 and p < p_max
    share = f"{fallen / abs(first):.1%}" if first else f"{fallen:.4g}"
    why = (
        f"the median loss of the last quarter of {count} steps is {last:.4g}, {share} below the "
        f"first's {first:.4g} (asked: {by:.0%}); its trend has p = {p:.2g} (asked: below {p_max:g})"
    )
    return LossTrend(falls=is_lower and is_trend, why=why, count=count, first=first, last=last, p=p)


def mann_kendall(values: Sequence[float]) -> tuple[int, float]:
    """Return S, pairs that rise less pairs that fall, and the two-sided p by the normal approximation.

    Source: Mann 1945, Kendall 1975; the variance of S with ties is
    (n(n-1)(2n+5) - sum of t(t-1)(2t+5)) / 18. Four falling values: S = -6, variance 4·3·13 / 18 = 8.67,
    Z = (-6 + 1) / 2.94 = -1.70, p = 0.089.
    """
    seen: list[float] = []
    s = 0
    for value in values:
        below, up_to = bisect_left(seen, value), bisect_right(seen, value)
        s += below - (len(seen) - up_to)
        insort(seen, value)
    ties = sum(t * (t - 1) * (2 * t + 5) for t in Counter(values).values())
    n = len(values)
    variance = (n * (n - 1) * (2 * n + 5) - ties) / 18
    if s == 0 or variance <= 0:
        return s, 1.0
    z = (abs(s) - 1) / math.sqrt(variance)
    return s, math.erfc(z / math.sqrt(2))


def _blocks(losses: Sequence[float]) -> Sequence[float]:
    """Return the losses, or where they are many the medians of at most LOSSES_MAX blocks in order."""
    if len(losses) <= LOSSES_MAX:
        return losses
    size = -(-len(losses) // LOSSES_MAX)
    return [median(losses[at : at + size]) for at in range(0, len(losses), size)]
