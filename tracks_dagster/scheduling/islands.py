"""Which of the free devices of one node a gang gets: those with the best links among them. Pure.

Each device names the islands that it is in, those of the fastest link first. From link to link, and so
that a slower one only decides between what is alike by all faster ones:

1. those in the islands of what the gang asked to be close to;
2. as many pairs inside an island as possible;
3. out of the islands with the least free devices: the larger holes stay whole.

Example: two islands, 3 of 4 and 4 of 4 free. A gang of 2 or 3 gets the first, one of 4 the second; one
of 5 the second and one device of the first (6 pairs inside), not the first and two of the second (4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

Islands = tuple[str, ...]  # of one device, that of the fastest link first


@lru_cache(maxsize=1024)  # the nodes of a pool are alike, and so are their free devices
def best_linked(
    free: tuple[Islands, ...], count: int, near: frozenset[str] = frozenset()
) -> tuple[int, ...]:
    """Return the places in `free` of `count` devices; those that are alike by islands in its order.

    near: islands to be close to. Looked at is one choice around each of the free devices: the one
    itself, then what is closest to it. So it is not always the best one where islands cross.
    """
    kinds: dict[Islands, int] = {}
    for place, islands in enumerate(free):
        kinds.setdefault(islands, place)
    if len(kinds) == 1:
        return tuple(range(count))
    sizes = Counter(chain.from_iterable(free))
    if count == 1:
        single = max(kinds, key=lambda islands: [(i in near, -sizes[i]) for i in islands])
        return (kinds[single],)
    around = (_closest(free, each, sizes)[:count] for each in kinds)
    return max(around, key=lambda places: _score([free[at] for at in places], sizes, near))


def _closest(free: Sequence[Islands], center: Islands, sizes: Counter[str]) -> tuple[int, ...]:
    """Return the places in `free`, those closest to `center` first, then those of large islands."""

    def distance(place: int) -> list[tuple[bool, int]]:
        pairs = zip(free[place], center, strict=False)
        return [(mine != its, -sizes[mine]) for mine, its in pairs]

    return tuple(sorted(range(len(free)), key=distance))


def _score(
    chosen: Sequence[Islands], sizes: Counter[str], near: frozenset[str]
) -> list[tuple[int, int, int]]:
    """Return by link: devices that are near, pairs inside an island, and what is free around them."""
    scores = []
    for islands in zip(*chosen, strict=False):
        counts = Counter(islands)
        close = sum(n for island, n in counts.items() if island in near)
        inside = sum(n * (n - 1) // 2 for n in counts.values())
        scores.append((close, inside, -sum(sizes[island] for island in counts)))
    return scores
