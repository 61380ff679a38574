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
from collections.abc import Collection, Sequence

from tracks_dagster.scheduling.model import Device


def best_linked(
    free: Sequence[Device], count: int, near: Collection[str] = frozenset()
) -> list[Device]:
    """Return `count` devices of `free`, those that are alike by their islands in its order.

    near: islands to be close to. Looked at is one choice around each of the free devices: the one
    itself, then what is closest to it. So it is not always the best one where islands cross.
    """
    kinds: dict[tuple[str, ...], Device] = {}
    for device in free:
        kinds.setdefault(device.islands, device)
    if len(kinds) == 1:
        return list(free[:count])
    sizes = Counter(island for device in free for island in device.islands)
    if count == 1:
        return [max(kinds.values(), key=lambda one: [(i in near, -sizes[i]) for i in one.islands])]
    around = (_closest(free, each, sizes)[:count] for each in kinds.values())
    return max(around, key=lambda chosen: _score(chosen, sizes, near))


def _closest(free: Sequence[Device], center: Device, sizes: Counter[str]) -> list[Device]:
    """Return the free devices, those closest to `center` first, then those of large islands."""

    def distance(device: Device) -> list[tuple[bool, int]]:
        pairs = zip(device.islands, center.islands, strict=False)
        return [(mine != its, -sizes[mine]) for mine, its in pairs]

    return sorted(free, key=distance)


def _score(
    chosen: Sequence[Device], sizes: Counter[str], near: Collection[str]
) -> list[tuple[int, int, int]]:
    """Return by link: devices that are near, pairs inside an island, and what is free around them."""
    scores = []
    for islands in zip(*(device.islands for device in chosen), strict=False):
        counts = Counter(islands)
        close = sum(n for island, n in counts.items() if island in near)
        inside = sum(n * (n - 1) // 2 for n in counts.values())
        scores.append((close, inside, -sum(sizes[island] for island in counts)))
    return scores
