"""The journals of a run's attempts: which metrics they have, and their values in a block."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from tracks_dagster.curves.curve import SAMPLES_PER_S, TOKENS_PER_S, Metric, metrics_of
from tracks_dagster.curves.effects.blocks import Block, CacheLost, read_blocks
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.stores.journal_tables import SAMPLES, Column, Table
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.errors import InvalidInput, ObjectLost
from tracks_dagster.track.journal_lines import DEVICE, EVALUATED, OWN, RANKS, STEPS
from tracks_dagster.track.roles import GLOBAL_BATCH, value_of
from tracks_dagster.track.states.accounting import kept_and_lost
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.text.nearest import did_you_mean

FOLDER = "curves"  # of the cache
SETTLED_S = 600.0  # after an attempt's end: by then its last lines were shipped, or never will be
NAMES_LISTED_MAX = 20  # in an error
ALL = "/*"  # behind the name of a group: all of its metrics
TRIES_MAX = 3  # of a reading whose stored blocks are removed meanwhile
OWN_TOKENS = f"{OWN}tokens"  # what the script reports of each step

_KINDS = {STEPS, EVALUATED, RANKS, DEVICE}

T = TypeVar("T")


def again(read: Callable[[Path | None], T], cache: Path | None) -> T:
    """Read; once more where another process removed stored blocks meanwhile."""
    folder = None if cache is None else cache / FOLDER
    for _ in range(TRIES_MAX - 1):
        try:
            return read(folder)
        except CacheLost:
            continue
    return read(None)


class Journals:
    """A run's journals, and what of their steps the run rests on.

    blocks: of rank 0, by attempt; batches: the samples of a step by the config, None where it does not
    say. left_out: how many names of the script are not metrics here, at least. ranks: others, whose
    journals are read for their devices. lost: what cannot be read of an imported run, a sentence each.
    """

    def __init__(
        self, tracks: Tracks, state: RunState, cache: Path | None, ranks: Collection[int] = ()
    ) -> None:
        self._tracks = tracks
        self._cache = cache
        self.state = state
        self._read: dict[tuple[int, int], list[Block]] = {}  # by attempt and rank
        self.lost: list[str] = []
        self.blocks = {a.attempt_id: self.of_rank(a, 0) for a in state.attempts}
        last = {
            attempt_id: max(b.index[STEPS].last for b in blocks if STEPS in b.index)
            for attempt_id, blocks in self.blocks.items()
            if any(STEPS in block.index for block in blocks)
        }
        self.accounts = kept_and_lost(state, last)
        self.batches = {a.attempt_id: _batch(state, a) for a in state.attempts}
        self.metrics, left_out = metrics_of(self._columns(ranks))
        dropped = (block.left_out for blocks in self.blocks.values() for block in blocks)
        self.left_out = left_out + max(dropped, default=0)

    def of_rank(self, attempt: AttemptState, rank: int) -> list[Block]:
        """Return the journal of one rank of an attempt."""
        if attempt.placed is None or rank >= attempt.placed.world_size:
            return []
        key = (attempt.attempt_id, rank)
        if key not in self._read:
            launch_id = attempt.placed.launch_id
            prefix = journal_prefix(self.state.ref(attempt), launch_id, rank)
            store, is_over = self._tracks.store, self._is_over(attempt)
            try:
                self._read[key] = read_blocks(store, prefix, self._cache, is_over=is_over)
            except ObjectLost as error:
                self._read[key] = []
                self.lost.append(
                    f"The curves of attempt {attempt.attempt_id} of {self.state.run_id} cannot be "
                    f"shown: {error}. `tracks fsck` names what to do."
                )
        return self._read[key]

    def choose(self, names: Collection[str] | None) -> tuple[Metric, ...]:
        """Return the metrics of these names, None for all that are not by rank.

        "ranks/*" names all of that group, of which there may be none. Raises InvalidInput for a name
        that there is not; not before the first line.
        """
        if names is None:
            return tuple(metric for metric in self.metrics if not metric.is_by_rank)
        known = {metric.name: metric for metric in self.metrics}
        groups = {name.removesuffix(ALL) for name in names if name.endswith(ALL)}
        of_groups = [metric.name for metric in self.metrics if metric.group in groups]
        names = [*of_groups, *(name for name in names if not name.endswith(ALL))]
        missing = [name for name in names if name not in known]
        if missing and known:
            raise InvalidInput(_no_metric(self.state.run_id, missing[0], list(known)))
        return tuple(known[name] for name in dict.fromkeys(names) if name in known)

    def _columns(self, ranks: Collection[int]) -> dict[str, dict[str, int]]:
        """Return by kind of line the columns, each with how many values it has."""
        columns: dict[str, dict[str, int]] = {}
        for attempt in self.state.attempts:
            for rank in sorted({0, *ranks}):
                for block in self.of_rank(attempt, rank):
                    for kind in block.index.keys() & ({DEVICE} if rank else _KINDS):
                        known = columns.setdefault(kind, {})
                        for name, count in self._of_block(block, kind, attempt).items():
                            known[name] = known.get(name, 0) + count
        return columns

    def _of_block(self, block: Block, kind: str, attempt: AttemptState) -> dict[str, int]:
        """Return the columns of a kind of line in a block, and what is computed of them."""
        columns = dict(block.index[kind].columns)
        timed = columns.get("step_s") if kind == STEPS else None
        if timed and (SAMPLES in columns or self.batches[attempt.attempt_id]):
            columns[SAMPLES_PER_S] = timed
        if timed and OWN_TOKENS in columns:
            columns[TOKENS_PER_S] = timed
        return columns

    def _is_over(self, attempt: AttemptState) -> bool:
        ended_at = attempt.ended_at
        return ended_at is not None and (self._tracks.now() - ended_at).total_seconds() > SETTLED_S


def _batch(state: RunState, attempt: AttemptState) -> int | None:
    """Return the samples of a step by the attempt's config; None where it does not say."""
    batch = value_of(attempt.opened.config, state.declared.roles, GLOBAL_BATCH)
    return batch if type(batch) is int and batch > 0 else None


def _no_metric(run_id: str, given: str, known: Sequence[str]) -> str:
    listed = ", ".join(known[:NAMES_LISTED_MAX])
    more = f" and {len(known) - NAMES_LISTED_MAX} more" if len(known) > NAMES_LISTED_MAX else ""
    hint = did_you_mean(given, known)
    return f"{run_id} has no metric {given!r} so far; {hint}it has: {listed}{more}."


# --- of a block -------------------------------------------------------------------------------------


def needed(metric: Metric) -> tuple[str, ...]:
    """Return the columns of which a metric is made."""
    if metric.kind == STEPS and metric.column == SAMPLES_PER_S:
        return ("step_s", "data_s", SAMPLES)
    if metric.kind == STEPS and metric.column == TOKENS_PER_S:
        return ("step_s", "data_s", OWN_TOKENS)
    return (metric.column,)


def tables_of(block: Block, metrics: Sequence[Metric]) -> Iterator[tuple[Table, list[Metric]]]:
    """Yield each table of the block that has some of the metrics, with these."""
    for kind in block.index:
        chosen = [metric for metric in metrics if metric.kind == kind]
        names = dict.fromkeys(name for metric in chosen for name in needed(metric))
        if chosen and (table := block.read(kind, names)) is not None:
            yield table, chosen


def values_of(table: Table, metric: Metric, batch: int | None) -> Column | None:
    """Return the values of a metric in a table; None where it has none."""
    if metric.kind != STEPS or metric.column not in (SAMPLES_PER_S, TOKENS_PER_S):
        return table.columns.get(metric.column)
    took = table.columns.get("step_s")
    counted = table.columns.get(needed(metric)[-1])
    if took is None or (counted is None and (batch is None or metric.column == TOKENS_PER_S)):
        return None
    return _per_second(took, table.columns.get("data_s"), counted, batch)


def _per_second(
    took: Column, waited: Column | None, counted: Column | None, batch: int | None
) -> Column | None:
    """Return counted values by the seconds of their steps and of the waits before."""
    import numpy as np

    seconds = took.values
    if waited is not None and len(waited.values) == len(seconds):
        seconds = seconds + waited.values
    amount = np.full(len(seconds), float(batch or 0)) if counted is None else counted.values
    if len(amount) != len(seconds):  # of some steps only
        return None
    is_timed = seconds > 0
    if bool(is_timed.all()):
        return Column(rows=took.rows, values=amount / seconds)
    rows = np.flatnonzero(is_timed) if took.rows is None else took.rows[is_timed]
    return Column(rows=rows, values=amount[is_timed] / seconds[is_timed])
