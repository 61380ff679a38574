"""The curves of a run, stitched of its attempts by the account of their steps.

Journals are read block by block, and one block is in memory at a time. An attempt's path on an axis
begins where the one that it resumed from was at that step, so that a curve goes on there, whatever was
lost in between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tracks_dagster.curves.curve import (
    AXES,
    HOURS,
    SAMPLES,
    STEP,
    WALL,
    Curve,
    Curves,
    Mark,
    Metric,
    Series,
    marks_of,
)
from tracks_dagster.curves.effects.blocks import Block
from tracks_dagster.curves.effects.journals import (
    OWN_TOKENS,
    Journals,
    again,
    tables_of,
    values_of,
)
from tracks_dagster.curves.effects.pixels import (
    Pixels,
    Points,
    as_points,
    fewer,
    in_order,
    joined,
    round_up,
)
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.stores.journal_tables import CURSOR, SPENT_S, STEP_MAX, Array, Column, Table
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.journal_lines import DEVICE, LOSS, RANKS, STEPS
from tracks_dagster.track.roles import GLOBAL_BATCH
from tracks_dagster.track.states.accounting import StepAccount
from tracks_dagster.track.states.run_state import RunState

POINTS_MAX = 1000  # of a curve; a screen shows no more
POINTS_ALL_MAX = 40_000  # of a curve whose attempts lie over each other
PIXELS_MIN = 10


def read_curves(
    tracks: Tracks,
    run: str | RunState,
    metrics: Collection[str] | None = None,
    *,
    cache: Path | None,
    by: str = STEP,
    steps: tuple[int, int] | None = None,
    points_max: int = POINTS_MAX,
    ranks: Collection[int] = (0,),
) -> Curves:
    """Return the curves of a run as it is now.

    metrics: names, or "ranks/*" for all of a group; None for all that are not by rank. cache: this
    machine's folder for what may be removed, None keeps nothing. by: what the axis counts. steps: only
    from the first to the second. points_max: of a curve, by rank of each rank's. ranks: whose own
    journals are read for their devices. Safe in several threads.

    Raises UnknownRun; InvalidInput for a metric that the run does not have, and for an axis that its
    journals do not have.
    """
    if by not in AXES:
        raise InvalidInput(f"{by!r} is not an axis of curves; choose of: {', '.join(AXES)}.")
    state = tracks.run(run) if isinstance(run, str) else run

    def read(cache: Path | None) -> Curves:
        # Only a device's curve needs another rank's journal: nobody else reads 64 of them.
        others = ranks if any(f"{DEVICE}/" in name for name in metrics or ()) else ()
        journals = Journals(tracks, state, cache, others)
        chosen = journals.choose(metrics)
        return _curves(journals, chosen, by, steps or (0, STEP_MAX), points_max, ranks)

    return again(read, cache)


def read_metrics(
    tracks: Tracks, state: RunState, *, cache: Path | None
) -> tuple[tuple[Metric, ...], int]:
    """Return the metrics of a run that are not by rank, the loss first, and how many names of its
    script are left out, at least. No value is read."""

    def read(cache: Path | None) -> tuple[tuple[Metric, ...], int]:
        journals = Journals(tracks, state, cache)
        return journals.choose(None), journals.left_out

    return again(read, cache)


def _curves(
    journals: Journals,
    metrics: Sequence[Metric],
    by: str,
    steps: tuple[int, int],
    points_max: int,
    ranks: Collection[int],
) -> Curves:
    axis = axis_of(journals, by)
    pixels = _pixels(journals, axis, steps, points_max)
    series: dict[str, list[Series]] = {metric.name: [] for metric in metrics}
    for attempt, account in zip(journals.state.attempts, journals.accounts, strict=True):
        found = _Attempt(account, axis, pixels, steps)
        batch = journals.batches[attempt.attempt_id]
        for rank in sorted({0, *ranks}):
            chosen = [m for m in metrics if _is_in(m, rank, ranks)]
            for block in journals.of_rank(attempt, rank) if chosen else ():
                found.add(block, chosen, rank, batch)
        for name, each in found.series():
            series[name].append(each)
    return Curves(
        run_id=journals.state.run_id,
        head_seq=journals.state.head.seq,
        by=by,
        x_label=axis.label,
        curves=tuple(Curve(metric=metric, series=tuple(series[metric.name])) for metric in metrics),
        marks=_marks(journals, axis),
        names_left_out=journals.left_out,
        lost=tuple(journals.lost),
    )


def _is_in(metric: Metric, rank: int, ranks: Collection[int]) -> bool:
    """Whether the journal of that rank has the metric: of its device it has, all else rank 0's has."""
    return rank in ranks if metric.kind == DEVICE else rank == 0


class _Key(NamedTuple):
    """Which points belong together."""

    name: str
    rank: int | None
    is_kept: bool
    is_once: bool  # whether a step has one value


class _Attempt:
    """One attempt's points, made fewer as they come."""

    def __init__(
        self, account: StepAccount, axis: Axis, pixels: Pixels, steps: tuple[int, int]
    ) -> None:
        self._account = account
        self._axis = axis
        self._pixels = pixels
        self._steps = steps
        self._parts: dict[_Key, list[Points]] = {}
        self._counts: dict[_Key, int] = {}

    def add(self, block: Block, metrics: Sequence[Metric], rank: int, batch: int | None) -> None:
        """Take in a block of the journal of a rank."""
        first, last = self._steps
        for table, chosen in tables_of(block, metrics):
            index = block.index[chosen[0].kind]
            if index.last < first or index.first > last:
                continue
            for metric in chosen:
                column = values_of(table, metric, batch)
                if column is not None:
                    self._take(table, metric, column, rank)

    def _take(self, table: Table, metric: Metric, column: Column, rank: int) -> None:
        import numpy as np

        step, at = table.step, table.at
        if column.rows is not None:
            step, at = step[column.rows], at[column.rows]
        x = self._axis.of(self._account.attempt_id, step)
        if metric.kind != RANKS:
            of = rank if metric.kind == DEVICE else None
            self._cut(metric, of, Points(step, x, column.values, at))
            return
        for number in range(column.values.shape[1]):
            points = Points(step, x, column.values[:, number], at)
            self._cut(metric, number, points.take(~np.isnan(points.value)))

    def _cut(self, metric: Metric, rank: int | None, points: Points) -> None:
        """Part what was kept from what was lost."""
        step, account = points.step, self._account
        # What is not a step's own, an evaluation, may come before the first step after a resume.
        begin = account.first if metric.kind == STEPS else account.resume
        is_asked = (step >= self._steps[0]) & (step <= self._steps[1])
        parts = {
            True: is_asked & (step >= begin) & (step <= account.end),
            False: is_asked & (step >= begin) & (step > account.end),
        }
        for is_kept, chosen in parts.items():
            if not chosen.any():
                continue
            key = _Key(metric.name, rank, is_kept, metric.kind != DEVICE)
            found = points if chosen.all() else points.take(chosen)
            self._counts[key] = self._counts.get(key, 0) + len(found.step)
            self._parts.setdefault(key, []).append(fewer(found, self._pixels))

    def series(self) -> Iterator[tuple[str, Series]]:
        """Yield each series with its metric's name; what was kept before what was lost."""
        for key in sorted(self._parts, key=lambda key: (key.name, key.rank or 0, not key.is_kept)):
            points = fewer(joined(self._parts[key], is_once=key.is_once), self._pixels)
            series = Series(
                attempt_id=self._account.attempt_id,
                rank=key.rank,
                is_kept=key.is_kept,
                points=as_points(points),
                count=self._counts[key],
            )
            yield key.name, series


def _pixels(journals: Journals, axis: Axis, steps: tuple[int, int], points_max: int) -> Pixels:
    """Return the pixels of the whole axis, or of the steps asked for."""
    import numpy as np

    places: list[float] = []
    shares: list[float] = []
    for account in journals.accounts:
        ends = np.clip([account.resume, account.last], steps[0], steps[1])
        begin, end = axis.of(account.attempt_id, ends).tolist()
        places += (begin, end)
        shares.append(end - begin)
    x0, x1 = min(places, default=0.0), max(places, default=0.0)
    layers = max(1.0, sum(shares) / (x1 - x0)) if x1 > x0 else len(shares) or 1.0
    count = min(points_max // 2, int(POINTS_ALL_MAX / layers) // 2)
    end = x1 if journals.state.open_attempt is None else round_up(x1)
    return Pixels(x0, end, max(PIXELS_MIN, count))


def _marks(journals: Journals, axis: Axis) -> tuple[Mark, ...]:
    import numpy as np

    marks = marks_of(journals.state, journals.accounts)
    steps = np.array([mark.step for mark in marks])
    return tuple(
        replace(mark, x=float(axis.of(mark.attempt_id, steps[number : number + 1])[0]))
        for number, mark in enumerate(marks)
    )


# --- where the steps lie on the axis --------------------------------------------------------------


HOUR_S = 3600.0


class Axis:
    """Where a step of an attempt lies. label: what is counted."""

    def __init__(self, label: str, paths: Mapping[int, tuple[Array, Array]] | None = None) -> None:
        self.label = label
        self._paths = paths

    def of(self, attempt_id: int, step: Array) -> Array:
        """Return where these steps lie."""
        import numpy as np

        if self._paths is None:
            return step.astype(np.float64)
        return np.interp(step, *self._paths[attempt_id])


def axis_of(journals: Journals, by: str) -> Axis:
    if by == STEP:
        return Axis("step")
    if by == HOURS:
        return Axis("hours of training", _paths(journals, _hours))
    if by == WALL:
        return Axis("hours since it began", _paths(journals, _wall))
    ways = (("tokens", _tokens), ("samples", _samples))
    for label, counted in ways[1:] if by == SAMPLES else ways:
        try:
            return Axis(label, _paths(journals, counted))
        except KeyError:
            continue
    raise InvalidInput(
        f"How many samples the steps of {journals.state.run_id} took is not known: its config names no "
        "global batch, and its script reports no tokens. Choose by step, hours or wall."
    )


def _paths(
    journals: Journals, counted: Callable[[Journals, int, float], tuple[Array, Array]]
) -> dict[int, tuple[Array, Array]]:
    """Return steps and their places by attempt; each begins where the one it resumed from was."""
    import numpy as np

    paths: dict[int, tuple[Array, Array]] = {}
    for attempt in journals.state.attempts:
        resumed, before = attempt.resumed_step, 0.0
        ref = attempt.resumed_from
        if ref is not None and ref.run_id == journals.state.run_id and ref.attempt_id in paths:
            before = float(np.interp(resumed, *paths[ref.attempt_id]))
        steps, places = counted(journals, attempt.attempt_id, before)
        if before or not len(steps):
            is_past = steps > resumed
            steps = np.append(resumed, steps[is_past])
            places = np.append(before, places[is_past])
        paths[attempt.attempt_id] = (steps, places)
    return paths


def _hours(journals: Journals, attempt_id: int, before: float) -> tuple[Array, Array]:
    """Count by the launch's own clock, which never jumps: steps, waits for data, saves, evaluations."""
    import numpy as np

    blocks = journals.blocks[attempt_id]
    steps, spent_s = _column(blocks, SPENT_S)
    if not len(steps):  # an older journal
        steps, step_s = _column(blocks, "step_s")
        spent_s = np.cumsum(step_s)
    return steps, before + np.maximum.accumulate(spent_s) / HOUR_S


def _wall(journals: Journals, attempt_id: int, before: float) -> tuple[Array, Array]:
    """Count from the first attempt's opening by the clocks of the ranks, waits included; a clock that
    jumps back takes no step with it."""
    import numpy as np

    blocks = journals.blocks[attempt_id]
    steps, at, _ = _points(blocks, LOSS)
    if not len(steps):  # of a script that reports none
        steps, at, _ = _points(blocks, SPENT_S)
    began = journals.state.attempts[0].opened_at.timestamp()
    hours = np.fmax.accumulate(np.append(before, (at - began) / HOUR_S))[1:]
    return steps, hours


def _tokens(journals: Journals, attempt_id: int, before: float) -> tuple[Array, Array]:
    """Count the tokens that the script reports of each step; KeyError where it reports none."""
    import numpy as np

    blocks = journals.blocks[attempt_id]
    if any(STEPS in b.index and OWN_TOKENS not in b.index[STEPS].columns for b in blocks):
        raise KeyError(OWN_TOKENS)
    steps, tokens = _column(blocks, OWN_TOKENS)
    return steps, before + np.cumsum(np.where(np.isfinite(tokens), tokens, 0.0))


def _samples(journals: Journals, attempt_id: int, before: float) -> tuple[Array, Array]:
    """Count samples by the sampler's own cursor, else by the batch; KeyError where none is known."""
    blocks = journals.blocks[attempt_id]
    steps, cursor = _column(blocks, CURSOR)
    if len(steps):
        return steps, cursor
    steps, _ = _column(blocks, LOSS)
    batch = journals.batches[attempt_id]
    if batch is None and len(steps):
        raise KeyError(GLOBAL_BATCH)
    return steps, steps * float(batch or 0)


def _column(blocks: Sequence[Block], name: str) -> tuple[Array, Array]:
    """Return step and value of one column of an attempt's steps, in order, each step once."""
    step, _, value = _points(blocks, name)
    return step, value


def _points(blocks: Sequence[Block], name: str) -> tuple[Array, Array, Array]:
    """Return step, time and value of one column of an attempt's steps, in order, each step once."""
    import numpy as np

    tables = [table for block in blocks if (table := block.read(STEPS, [name])) is not None]
    if not tables:
        return np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
    points = [table.points(name) for table in tables]
    step, at, value = (np.concatenate(parts) for parts in zip(*points, strict=True))
    order = in_order(step)
    return (step, at, value) if order is None else (step[order], at[order], value[order])
