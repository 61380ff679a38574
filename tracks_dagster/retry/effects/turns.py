"""How long one part of a sensor's tick takes, whose turn it is when that was not enough, and how many
runs are looked at at once.

Dagster ends a tick after 60 s and forgets what it was about to say. So each part of a tick begins work
for a bounded time, and the next tick goes on after the run that was the last one begun. Nearly all of
a run's time is spent waiting for the store, so a few runs at once take little longer than one.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

PART_S_MAX = 10.0  # a tick has at most three such parts, and two of upkeep
UPKEEP_S_MAX = 5.0  # which leaves its slow runs 20 of its 60 s
AT_ONCE_MAX = 8  # runs of one part; five sensors tick at once in one process

Seconds = Callable[[], float]  # a clock that only goes forward


class Turns:
    """The runs of one part of a tick, in turn. cut_at: the last one begun if time ran out.

    They come in the order given as long as time suffices. After a cut they come by name, from the one
    after `after` on and round to it: whatever was decided, ended or declared meanwhile, each run has
    had its turn before any has a second one.
    """

    def __init__(
        self,
        run_ids: Sequence[str],
        *,
        after: str | None = None,
        seconds: Seconds = time.monotonic,
        part_s_max: float = PART_S_MAX,
    ) -> None:
        self._run_ids = list(run_ids) if after is None else _from(run_ids, after)
        self._seconds = seconds
        self._part_s_max = part_s_max
        self.cut_at: str | None = None

    def __iter__(self) -> Iterator[str]:
        """Yield at least one run, and on until the time is used up."""
        began_s = self._seconds()
        for index, run_id in enumerate(self._run_ids):
            if index and self._seconds() - began_s >= self._part_s_max:
                self.cut_at = self._run_ids[index - 1]
                return
            yield run_id

    def work(self, look: Callable[[str], T]) -> list[T]:
        """Look at each run in turn, several at once; return what came of each, in their order.

        No further one is begun once the time is used up; those that were are seen to their end. An
        error of `look` is raised when all others have ended.
        """
        free = threading.Semaphore(AT_ONCE_MAX)

        def looked(run_id: str) -> T:
            try:
                return look(run_id)
            finally:
                free.release()

        begun: list[Future[T]] = []
        with ThreadPoolExecutor(max_workers=AT_ONCE_MAX) as threads:
            turns = iter(self)
            while True:
                free.acquire()  # the time is asked for when there is a thread for the next one
                run_id = next(turns, None)
                if run_id is None:
                    break
                begun.append(threads.submit(looked, run_id))
        return [each.result() for each in begun]


def _from(run_ids: Sequence[str], after: str) -> list[str]:
    by_name = sorted(run_ids)
    begin = bisect_right(by_name, after)
    return [*by_name[begin:], *by_name[:begin]]
