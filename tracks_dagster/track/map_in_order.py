"""Calls that mostly wait for a store, several at once, their results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def map_in_order(
    pool: ThreadPoolExecutor, call: Callable[[T], U], items: Iterable[T], *, at_once: int
) -> Iterator[U]:
    """Yield `call` of every item in their order; `items` may be without end.

    at_once: so many items, at most, are under way or wait for their turn to be yielded. After an error,
    and where nobody asks for more, the items not begun yet are dropped.
    """
    waiting: deque[Future[U]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(call, item))
            if len(waiting) == at_once:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
