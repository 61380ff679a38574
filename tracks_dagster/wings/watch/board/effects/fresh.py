"""Values that are made once for all who ask, and made again when they are old."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
LONGER_S_MAX = 10.0  # that a value is kept because making it took long


@dataclass(slots=True)
class _Entry(Generic[T]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    value: T | None = None
    old_at: float = 0.0  # by the monotonic clock


class Fresh(Generic[T]):
    """Values that one thread makes for all that ask: ten people at one page cost what one does.

    Keeps `entries_max` of them, each for `for_s` seconds, and as long as making it took, up to
    LONGER_S_MAX: a slow store is asked half of the time at most.
    """

    def __init__(self, *, for_s: float, entries_max: int) -> None:
        self._for_s = for_s
        self._entries_max = entries_max
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()
        self._lock = threading.Lock()  # of the table; nothing is made under it

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of `key`, made by `make` where there is none that is fresh.

        Another thread that makes it is waited for. What `make` raises is raised, and not kept.
        """
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._entries_max:
                self._entries.popitem(last=False)
        with entry.lock:
            if entry.value is None or time.monotonic() >= entry.old_at:
                began_at = time.monotonic()
                entry.value = make()
                took_s = time.monotonic() - began_at
                entry.old_at = began_at + took_s + max(self._for_s, min(took_s, LONGER_S_MAX))
            return entry.value
