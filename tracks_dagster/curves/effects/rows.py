"""The kept steps of a run, each once and in order, whatever its attempts lost."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tracks_dagster.curves.curve import Metric
from tracks_dagster.curves.effects.blocks import Block, CacheLost
from tracks_dagster.curves.effects.journals import (
    TRIES_MAX,
    Journals,
    again,
    needed,
    values_of,
)
from tracks_dagster.curves.effects.pixels import in_order
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.stores.journal_tables import STEP_MAX, Column
from tracks_dagster.track.errors import InvalidInput, ObjectLost
from tracks_dagster.track.journal_lines import EVALUATED, STEPS
from tracks_dagster.track.states.accounting import StepAccount
from tracks_dagster.track.states.run_state import RunState


class Row(NamedTuple):
    """One kept step. at: seconds since 1970; values: what it has of the metrics, by name."""

    step: int
    attempt_id: int
    at: float
    values: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The kept steps of a run. columns: the metrics asked for, in order; end: the last of the steps.

    count: how many kept steps there are; rows has fewer where lines of a journal never came.
    """

    columns: tuple[str, ...]
    end: int
    count: int
    rows: Iterator[Row]


def kept_rows(
    tracks: Tracks,
    run: str | RunState,
    metrics: Collection[str] | None = None,
    *,
    cache: Path | None,
    after: int = -1,
    committed_only: bool = False,
) -> Rows:
    """Return each kept step past `after` once, in order, with what was evaluated of it.

    committed_only: up to the newest checkpoint that the run would resume from, so that nothing is
    taken back but by a rollback. Raises as `read_curves`, InvalidInput for a metric by rank, and
    ObjectLost where rows cannot be read.
    """
    state = tracks.run(run) if isinstance(run, str) else run
    until = committed_step(state) if committed_only else STEP_MAX

    def read(cache: Path | None) -> Rows:
        journals = Journals(tracks, state, cache)
        if journals.lost:
            raise ObjectLost(journals.lost[0])
        chosen = journals.choose(metrics)
        by_rank = [metric.name for metric in chosen if metric.is_by_rank]
        if by_rank:
            raise InvalidInput(
                f"{by_rank[0]} has a value of each rank, and a row is one step; choose --json for it."
            )
        spans = [_span(account, after, until) for account in journals.accounts]
        return Rows(
            columns=tuple(metric.name for metric in chosen),
            end=max((end for _, end in spans), default=max(after, 0)),
            count=sum(end - max(begin, 0) for begin, end in spans),
            rows=_rows_to_the_end(tracks, journals, chosen, after, until),
        )

    return again(read, cache)


def committed_step(state: RunState) -> int:
    """Return the step that the run would resume from, or ended with; 0 where it saved none."""
    own = state.finished.final if state.finished is not None else state.resumes_from
    return 0 if own is None or own.run_id != state.run_id else own.step


def _span(account: StepAccount, after: int, until: int) -> tuple[int, int]:
    """Return the steps of an attempt that were kept: past the first, up to the second."""
    begin = max(account.first - 1, after)
    return begin, max(begin, min(account.end, until))


def _rows_to_the_end(
    tracks: Tracks, journals: Journals, metrics: Sequence[Metric], after: int, until: int
) -> Iterator[Row]:
    """Yield the rows, also where stored blocks are removed meanwhile."""
    for _ in range(TRIES_MAX):
        try:
            for row in _rows(journals, metrics, after, until):
                after = row.step
                yield row
        except CacheLost:
            journals = Journals(tracks, journals.state, None)
        else:
            return


def _rows(journals: Journals, metrics: Sequence[Metric], after: int, until: int) -> Iterator[Row]:
    of_steps = [metric for metric in metrics if metric.kind == STEPS]
    evaluated = [metric for metric in metrics if metric.kind == EVALUATED]
    for account in journals.accounts:
        attempt_id = account.attempt_id
        begin, end = _span(account, after, until)
        if begin == end:
            continue
        blocks = journals.blocks[attempt_id]
        also = _evaluated(blocks, evaluated, begin, end)
        for block in blocks:
            index = block.index.get(STEPS)
            if index is None or index.last <= begin or index.first > end:
                continue
            batch = journals.batches[attempt_id]
            for step, at, values in _of_block(block, of_steps, batch):
                if begin < step <= end:
                    begin = step
                    yield Row(step, attempt_id, at, {**values, **also.get(step, {})})


def _of_block(
    block: Block, metrics: Sequence[Metric], batch: int | None
) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Yield step, time and values of the block's steps, in order."""
    names = dict.fromkeys(name for metric in metrics for name in needed(metric))
    table = block.read(STEPS, names)
    if table is None:
        return
    columns: dict[str, list[float | None]] = {}
    for metric in metrics:
        column = values_of(table, metric, batch)
        if column is not None:
            columns[metric.name] = _listed(column, len(table.step))
    step, at, order = table.step.tolist(), table.at.tolist(), in_order(table.step)
    for row in range(len(step)) if order is None else order.tolist():
        known = ((name, values[row]) for name, values in columns.items())
        yield step[row], at[row], {name: value for name, value in known if value is not None}


def _listed(column: Column, count: int) -> list[float | None]:
    """Return the value of each line, None where it has none."""
    values: list[float] = column.values.tolist()
    if column.rows is None:
        return [*values]
    listed: list[float | None] = [None] * count
    for row, value in zip(column.rows.tolist(), values, strict=True):
        listed[row] = value
    return listed


def _evaluated(
    blocks: Sequence[Block], metrics: Sequence[Metric], begin: int, end: int
) -> dict[int, dict[str, float]]:
    """Return what was evaluated of these steps, by step; of one evaluated twice the later."""
    found: dict[int, dict[str, float]] = {}
    for block in blocks:
        table = block.read(EVALUATED, [metric.column for metric in metrics])
        if table is None:
            continue
        for metric in metrics:
            step, _, value = table.points(metric.column)
            is_asked = (step > begin) & (step <= end)
            for each, number in zip(step[is_asked].tolist(), value[is_asked].tolist(), strict=True):
                found.setdefault(each, {})[metric.name] = number
    return found
