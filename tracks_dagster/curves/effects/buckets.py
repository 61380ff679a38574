"""Many runs on one axis: each metric in the same few buckets, so that a picture of fifty runs of a
million steps is a few hundred numbers a run.

A bucket keeps the smallest and the largest value, so that no spike is lost, and their mean. Only what
was kept counts. Journals are read block by block.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tracks_dagster.curves.curve import Metric, Point
from tracks_dagster.curves.effects.blocks import Block
from tracks_dagster.curves.effects.journals import Journals, tables_of, values_of
from tracks_dagster.curves.effects.pixels import Pixels, Points, in_order
from tracks_dagster.curves.effects.reading import Axis
from tracks_dagster.stores.journal_columns import BLOCK_BYTES
from tracks_dagster.stores.journal_tables import Array, Column, Table
from tracks_dagster.track.journal_lines import RANKS, STEPS
from tracks_dagster.track.states.accounting import StepAccount

RANK = 0  # whose journal is read


@dataclass(slots=True)
class Buckets:
    """One metric of one run. All arrays are of shape (N,), of the N buckets of the axis.

    low, high, low_x, high_x: the smallest and the largest value and their places; inf and -inf where
    there is none. total, count: the sum of the finite values, and how many. x0, x1: the first and the
    last place of a value. odd: whether a value is not a finite number.
    """

    low: Array
    high: Array
    low_x: Array
    high_x: Array
    total: Array
    count: Array
    x0: Array
    x1: Array
    odd: Array

    @classmethod
    def empty(cls, count: int) -> Buckets:
        """Return buckets without a value."""
        import numpy as np

        high, low = np.full(count, np.inf), np.full(count, -np.inf)
        zero = np.zeros(count)
        return cls(
            low=high.copy(),
            high=low.copy(),
            low_x=zero.copy(),
            high_x=zero.copy(),
            total=zero.copy(),
            count=np.zeros(count, np.int64),
            x0=high.copy(),
            x1=low.copy(),
            odd=np.zeros(count, bool),
        )

    @property
    def used(self) -> Array:
        """The numbers of the buckets that have a value."""
        import numpy as np

        return np.flatnonzero(self.count)

    def add(self, x: Array, value: Array, pixels: Pixels) -> None:
        """Take in values; those beyond the axis are left out."""
        import numpy as np

        inside = (x >= pixels.x0) & (x <= pixels.x1)
        if not inside.all():
            x, value = x[inside], value[inside]
        if not len(x):
            return
        place = pixels.of(x)
        if len(place) > 1 and (np.diff(place) < 0).any():
            order = np.argsort(place, kind="stable")
            x, value, place = x[order], value[order], place[order]
        begins = np.flatnonzero(np.append(True, place[1:] != place[:-1]))
        where = place[begins]
        which = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(x))))
        is_finite = np.isfinite(value)
        low = np.minimum.reduceat(np.where(is_finite, value, np.inf), begins)
        high = np.maximum.reduceat(np.where(is_finite, value, -np.inf), begins)
        low_x = np.minimum.reduceat(np.where(value == low[which], x, np.inf), begins)
        high_x = np.minimum.reduceat(np.where(value == high[which], x, np.inf), begins)
        is_lower, is_higher = low < self.low[where], high > self.high[where]
        for into, new, chosen in (
            (self.low, low, is_lower),
            (self.low_x, low_x, is_lower),
            (self.high, high, is_higher),
            (self.high_x, high_x, is_higher),
        ):
            into[where[chosen]] = new[chosen]
        with np.errstate(over="ignore"):
            self.total[where] += np.add.reduceat(np.where(is_finite, value, 0.0), begins)
        self.count[where] += np.add.reduceat(is_finite.astype(np.int64), begins)
        self.odd[where] |= np.logical_or.reduceat(~is_finite, begins)
        first = np.minimum.reduceat(np.where(is_finite, x, np.inf), begins)
        last = np.maximum.reduceat(np.where(is_finite, x, -np.inf), begins)
        self.x0[where] = np.minimum(self.x0[where], first)
        self.x1[where] = np.maximum(self.x1[where], last)

    def means(self) -> Array:
        """Return the mean of each bucket that has a value; the middle where the sum is too large."""
        import numpy as np

        used = self.used
        with np.errstate(over="ignore", invalid="ignore"):
            found = self.total[used] / self.count[used]
            middle = self.low[used] / 2 + self.high[used] / 2
        return np.where(np.isfinite(found), found, middle)


def extent(journals: Journals, axis: Axis) -> tuple[float, float] | None:
    """Return where the kept steps of a run begin and end on an axis; None without one."""
    import numpy as np

    ends: list[float] = []
    for account in journals.accounts:
        if account.end > account.resume:
            steps = np.array([account.resume, account.end])  # an evaluation may be of the first
            ends += axis.of(account.attempt_id, steps).tolist()
    known = [end for end in ends if math.isfinite(end)]
    return (min(known), max(known)) if known else None


class _Chosen(NamedTuple):
    metrics: Sequence[Metric]
    axis: Axis
    pixels: Pixels


class _Read(NamedTuple):
    """How far an attempt was read. block: the file of the last block; last: its last step."""

    block: Path
    resume: int
    last: int


class SoFar:
    """What was read of a run that trains, of blocks that never change: they are not read again.

    For one choice of metrics, axis and pixels, of an axis by step: where a step lies on another one is
    read of all blocks anyway. Begins afresh where steps were lost since. Safe in threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[int, _Read] = {}
        self._found: dict[str, Buckets] = {}

    def extend(self, journals: Journals, chosen: _Chosen) -> tuple[dict[str, Buckets], set[Path]]:
        """Return what all whole blocks have whose steps are kept, and the files of these."""
        with self._lock:
            try:
                if not self._fits(journals):
                    self._read, self._found = {}, {}
                for metric in chosen.metrics:
                    self._found.setdefault(metric.name, Buckets.empty(chosen.pixels.count))
                return self._extend(journals, chosen)
            except BaseException:  # half a block may be in it
                self._read, self._found = {}, {}
                raise

    def _extend(self, journals: Journals, chosen: _Chosen) -> tuple[dict[str, Buckets], set[Path]]:
        paths: set[Path] = set()
        for account in journals.accounts:
            known = self._read.get(account.attempt_id)
            is_new = known is None
            for block in journals.blocks[account.attempt_id]:
                last = max((each.last for each in block.index.values()), default=0)
                is_whole = block.end - block.begin >= BLOCK_BYTES
                if block.path is None or not is_whole or last > account.end:
                    break
                if is_new:
                    _add(self._found, journals, account, block, chosen)
                    self._read[account.attempt_id] = _Read(block.path, account.resume, last)
                is_new = is_new or (known is not None and block.path == known.block)
                paths.add(block.path)
        return deepcopy(self._found), paths

    def _fits(self, journals: Journals) -> bool:
        """Whether what was read is still the beginning of what was kept."""
        accounts = {account.attempt_id: account for account in journals.accounts}
        for attempt_id, read in self._read.items():
            account = accounts.get(attempt_id)
            if account is None or account.resume != read.resume or account.end < read.last:
                return False
            for block in journals.blocks[attempt_id]:
                if block.path is None or block.path == read.block:
                    break  # one that was not cached would be read once more
            else:
                return False
            if block.path != read.block:
                return False
        return True


def read_buckets(
    journals: Journals,
    axis: Axis,
    metrics: Sequence[Metric],
    pixels: Pixels,
    so_far: SoFar | None = None,
) -> dict[str, Buckets]:
    """Return of each metric what was kept, in the buckets of the axis, by name.

    Of a device rank 0's; a metric of every rank is left out. so_far: of an earlier call with the same
    metrics, axis and pixels. Raises CacheLost.
    """
    chosen = _Chosen([metric for metric in metrics if metric.kind != RANKS], axis, pixels)
    found = {metric.name: Buckets.empty(pixels.count) for metric in chosen.metrics}
    read: set[Path] = set()
    if so_far is not None:
        found, read = so_far.extend(journals, chosen)
    for account, block in _blocks(journals):
        if block.path is None or block.path not in read:
            _add(found, journals, account, block, chosen)
    return found


def _add(
    found: dict[str, Buckets],
    journals: Journals,
    account: StepAccount,
    block: Block,
    chosen: _Chosen,
) -> None:
    """Take in a block."""
    metrics, axis, pixels = chosen
    batch = journals.batches[account.attempt_id]
    for table, of_kind in tables_of(block, metrics):
        index = block.index[of_kind[0].kind]
        if not _is_near(axis, account, index.first, index.last, pixels):
            continue
        for metric in of_kind:
            column = values_of(table, metric, batch)
            if column is not None:
                points = _kept(table, column, account, metric, axis)
                found[metric.name].add(points.x, points.value, pixels)


def newest_values(journals: Journals, metrics: Collection[Metric]) -> dict[str, Point]:
    """Return the newest finite value of each metric that was kept, by name, read from as few blocks as
    that takes; x is the step. Raises CacheLost."""
    import numpy as np

    missing = {metric.name: metric for metric in metrics if metric.kind != RANKS}
    found: dict[str, Point] = {}
    for account, block in reversed(list(_blocks(journals))):
        if not missing:
            break
        batch = journals.batches[account.attempt_id]
        for table, of_kind in tables_of(block, list(missing.values())):
            for metric in of_kind:
                column = values_of(table, metric, batch)
                if column is None:
                    continue
                points = _kept(table, column, account, metric, Axis("step"))
                places = np.flatnonzero(np.isfinite(points.value))
                if len(places):
                    del missing[metric.name]
                    step, x, value, at = (each[places[-1]].item() for each in points)
                    found[metric.name] = Point(step, x, value, at)
    return found


def _blocks(journals: Journals) -> Iterator[tuple[StepAccount, Block]]:
    """Yield the blocks of rank 0, oldest first, each with its attempt's account."""
    for account in journals.accounts:
        for block in journals.blocks[account.attempt_id]:
            yield account, block


def _is_near(axis: Axis, account: StepAccount, first: int, last: int, pixels: Pixels) -> bool:
    """Whether a block with these steps may have a value on the axis."""
    import numpy as np

    begin, end = axis.of(account.attempt_id, np.array([first, last])).tolist()
    return not (end < pixels.x0 or begin > pixels.x1)


def _kept(table: Table, column: Column, account: StepAccount, metric: Metric, axis: Axis) -> Points:
    """Return the points that were kept, by their steps; of a step with two lines the later."""
    step, at = table.step, table.at
    if column.rows is not None:
        step, at = step[column.rows], at[column.rows]
    # What is not a step's own, an evaluation, may come before the first step after a resume.
    begin = account.first if metric.kind == STEPS else account.resume
    x = axis.of(account.attempt_id, step)
    points = Points(step, x, column.values, at)
    is_kept = (step >= begin) & (step <= account.end)
    if not is_kept.all():
        points = points.take(is_kept)
    order = in_order(points.step)
    return points if order is None else points.take(order)
