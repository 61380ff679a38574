"""Fresh seeds for the long proofs. They are printed: `TRACKS_TEST_SEED=<n>` plays them again."""

from __future__ import annotations

import os
import random


def fresh_seeds(count: int) -> range:
    """Return so many seeds that no run before this one had."""
    first = int(os.environ.get("TRACKS_TEST_SEED") or random.randrange(2**32))
    print(f"TRACKS_TEST_SEED={first}")
    return range(first, first + count)
