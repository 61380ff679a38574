"""The memory that is left of devices that others hold, and which of them a need fits best. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from itertools import islice

_SORT_ALL = (
    8  # if more than one room in so many has changed, it is faster to sort all of them again
)


class Rooms:
    """The rooms of some devices: what memory is left of each.

    They are listed when somebody asks: most of what a plan tries is undone before that.
    """

    def __init__(self, left: Mapping[str, int]) -> None:
        self._left = dict(left)
        self._listed: list[tuple[int, str]] = []  # the smallest room first
        # of those that changed since: what the list has of them
        self._before: dict[str, int | None] = dict.fromkeys(left)

    def copy(self) -> Rooms:
        """Return the same rooms, to be changed apart from these."""
        made = Rooms.__new__(Rooms)
        made._left, made._listed = self._left.copy(), self._listed.copy()
        made._before = self._before.copy()
        return made

    def count(self, need: int) -> int:
        """Return how many rooms hold a need."""
        listed = self._list()
        return len(listed) - bisect_left(listed, (need, ""))

    def fitting(self, need: int) -> Iterator[str]:
        """Yield the devices whose room holds a need, the smallest room first."""
        listed = self._list()
        return (name for _, name in islice(listed, bisect_left(listed, (need, "")), None))

    def add(self, name: str, left: int) -> None:
        """Add the room of a device that has none."""
        self._before.setdefault(name, None)
        self._left[name] = left

    def remove(self, name: str) -> int | None:
        """Remove the room of a device and return the memory that was left; None where it has none."""
        left = self._left.pop(name, None)
        if left is not None:
            self._before.setdefault(name, left)
        return left

    def _list(self) -> list[tuple[int, str]]:
        if len(self._before) * _SORT_ALL > len(self._listed):
            # by name, then by memory: to sort pairs takes twice as long
            names = sorted(sorted(self._left), key=self._left.__getitem__)
            self._listed = [(self._left[name], name) for name in names]
            self._before.clear()
        while self._before:
            name, before = self._before.popitem()
            now = self._left.get(name)
            if now == before:
                continue
            if before is not None:
                del self._listed[bisect_left(self._listed, (before, name))]
            if now is not None:
                insort(self._listed, (now, name))
        return self._listed
