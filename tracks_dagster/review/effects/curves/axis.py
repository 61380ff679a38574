"""Where the steps of a run lie on an axis: by step, by tokens or samples, by hours of training.

An attempt's path begins where the one that it resumed from was at that step, so that a curve goes on
there, whatever was lost in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tracks_dagster.review.curves import HOURS, STEP
from tracks_dagster.review.effects.curves.blocks import Block
from tracks_dagster.review.effects.curves.journals import OWN_TOKENS, Journals
from tracks_dagster.review.effects.curves.pixels import in_order
from tracks_dagster.stores.journal_tables import CURSOR, SPENT_S, Array
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.journal_lines import LOSS, STEPS
from tracks_dagster.track.roles import GLOBAL_BATCH

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
    for label, counted in (("tokens", _tokens), ("samples", _samples)):
        try:
            return Axis(label, _paths(journals, counted))
        except KeyError:
            continue
    raise InvalidInput(
        f"How many samples the steps of {journals.state.run_id} took is not known: its config names no "
        "global batch, and its script reports no tokens. Choose --by step or --by hours."
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
    import numpy as np

    tables = [table for block in blocks if (table := block.read(STEPS, [name])) is not None]
    if not tables:
        return np.zeros(0, np.int64), np.zeros(0)
    points = [table.points(name) for table in tables]
    step, _, value = (np.concatenate(parts) for parts in zip(*points, strict=True))
    order = in_order(step)
    return (step, value) if order is None else (step[order], value[order])
