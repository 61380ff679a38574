"""How long work takes that has run before under the same name, and how long it still takes. Pure.

Most work comes back: a nightly training, the same eval of every checkpoint. So its own past predicts
it, with nothing asked of anybody. This is not a model: what never ran before has no prediction.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

NEWEST = 5  # times that count: data and code change, so old ones predict little


def expected_s(times_s: Sequence[float]) -> float | None:
    """Return the median of the newest times, oldest first; None where there is none.

    The median, because one run that hung or failed early must not move it: 60, 62, 61, 900 and 59 s
    predict 61 s.
    """
    return statistics.median(times_s[-NEWEST:]) if times_s else None


def left_s(expected: float | None, elapsed_s: float) -> float | None:
    """Return how long work still takes that has run for `elapsed_s`; None where nobody knows.

    What has outlived its prediction is expected to take as long again as it has run: of times that
    spread over orders of magnitude the longest are left, and "any moment now" would break every
    promise that is made on it.
    """
    if expected is None:
        return None
    return expected - elapsed_s if expected > elapsed_s else max(elapsed_s, 0.0)
