"""What a person expects of a run that costs much more than the one it branched from. Pure.

Asked before it is declared, kept in its declaration, and shown beside what came of it. What it will
cost is what its source's steps cost, as often as it has steps left: more samples in a step cost more in
proportion, and so do more ranks, for nobody knows yet whether they make a step faster.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import GLOBAL_BATCH, value_of
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.units import about

TIMES_MIN = 2.0
METRICS_MAX = 8  # that are compared


def device_s_of(state: RunState) -> float:
    """Return the device seconds of all attempts that have ended."""
    return sum((a.ended.device_seconds for a in state.attempts if a.ended is not None), start=0.0)


def times_its_source(
    source: RunState, *, steps: int | None, ranks: int, global_batch: int | None
) -> float | None:
    """Return how many times its source a branch of `steps` more steps costs; None below TIMES_MIN.

    None too where nothing is known: the source ran no step, or the branch names no number of them.
    """
    ran = sum(
        max(0, a.ended.last_step - a.resumed_step)
        for a in source.attempts
        if a.ended is not None and a.ended.last_step is not None
    )
    spent_s = device_s_of(source)
    if steps is None or ran == 0 or spent_s <= 0:
        return None
    before = value_of(source.declared.config, source.declared.roles, GLOBAL_BATCH)
    larger = global_batch / before if global_batch and type(before) is int and before else 1.0
    step_s = spent_s / ran * (ranks / source.declared.compute.ranks) * larger
    times = steps * step_s / spent_s
    return times if times >= TIMES_MIN else None


def question_of(run_id: str, source: RunState, times: float) -> str:
    """Return why an expectation is asked for, and how to give it."""
    return (
        f"{run_id} would cost about {times:.1f} times as much as {source.run_id}, which it branches "
        f"from ({about(device_s_of(source))} of a device). Say first what you expect of it, for "
        'example --expect "heldout loss below 2.4": it is kept, and compared at its end.'
    )


def compare(state: RunState, source: RunState | None) -> Iterator[str]:
    """Yield what was expected of a run and what came of it so far, a line each; nothing where nothing
    was. source: the run that it branched from."""
    expected = state.declared.expect
    if expected is None:
        return
    yield f"expected: {expected}"
    is_over = state.finished is not None
    yield f"{'came of it' if is_over else 'so far'}: {_figures(state)}"
    if source is not None:
        yield f"{source.run_id}, which it branched from: {_figures(source)}"


def _figures(state: RunState) -> str:
    spent = f"{about(device_s_of(state))} of a device"
    if not state.checkpoints:
        return f"no checkpoint; {spent}"
    newest = state.checkpoints[-1]
    metrics: dict[str, Json] = dict(newest.body.metrics)
    for each in state.evals:
        if each.ended is not None and each.opened.checkpoint == newest.ref:
            metrics |= {f"{each.opened.suite} {k}": v for k, v in each.ended.metrics.items()}
    shown = [f"{name} {value:.5g}" for name, value in sorted(metrics.items())][:METRICS_MAX]
    return f"{', '.join(shown) or 'no metrics'} at step {newest.ref.step}; {spent}"
