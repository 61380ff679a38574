"""What a run's record has of each metric: its newest and its best value, each with its step. Pure.

Checkpoints have what was reported at their step, and the end of an attempt what was reported last
before it. The newest value is of what the run rests on; the best one of a checkpoint, so that it may
be used. What comes of a checkpoint in quarantine is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tracks_dagster.track.states.accounting import kept_and_lost
from tracks_dagster.track.states.run_state import RunState

RECORDED_METRICS_MAX = 16  # a record is small; manifests and journals hold all of them
METRIC_NAME_CHARS_MAX = 64  # no record holds a metric of a longer name
LEAST_IS_BEST = ("loss", "error", "perplexity")  # in the name of a metric that no rule names

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValues:
    """By metric. steps: of `newest`, where the record says them; best_steps: of `best`."""

    newest: Mapping[str, float]
    steps: Mapping[str, int]
    best: Mapping[str, float]
    best_steps: Mapping[str, int]


def metric_values(state: RunState) -> MetricValues:
    """Return what the record of a run has of its metrics."""
    rule = state.declared.retention
    newest: dict[str, tuple[int, int, float]] = {}  # attempt, step, value
    best: dict[str, tuple[float, int]] = {}
    known = [each for each in state.checkpoints if not each.quarantined]
    for each in sorted(known, key=lambda each: (each.ref.attempt_id, each.ref.step)):
        for name, value in each.body.metrics.items():
            newest[name] = (each.ref.attempt_id, each.ref.step, value)
            direction = rule.direction if name == rule.metric else direction_of(name)
            if name not in best or is_better(value, best[name][0], direction):
                best[name] = (value, each.ref.step)
    unknown = set[str]()  # whose step the record does not say
    for name, attempt_id, step, value in _reported_last(state):
        at = newest.get(name, (0, 0, 0.0))
        if step is None and name not in newest:
            unknown.add(name)
        if (attempt_id, step or 0) > at[:2]:
            newest[name] = (attempt_id, step or 0, value)
    return MetricValues(
        newest={name: value for name, (_, _, value) in newest.items()},
        steps={name: step for name, (_, step, _) in newest.items() if name not in unknown},
        best={name: value for name, (value, _) in best.items()},
        best_steps={name: step for name, (_, step) in best.items()},
    )


def _reported_last(state: RunState) -> Iterator[tuple[str, int, int | None, float]]:
    """Yield what attempts reported last: name, attempt, step, value; of each but the newest attempt
    what the run still rests on."""
    spoiled = {each.ref.attempt_id for each in state.checkpoints if each.quarantined}
    for attempt, account in zip(state.attempts, kept_and_lost(state), strict=True):
        if attempt.ended is None or attempt.attempt_id in spoiled:
            continue
        steps = attempt.ended.metric_steps or {}
        for name, value in (attempt.ended.metrics or {}).items():
            step = steps.get(name)
            if attempt is state.last_attempt or (step is not None and step <= account.end):
                yield name, attempt.attempt_id, step, value


def direction_of(name: str) -> str:
    """Return whether the least or the greatest value of a metric is its best, by its name."""
    return "min" if any(word in name.lower() for word in LEAST_IS_BEST) else "max"


def is_better(value: float, other: float, direction: str) -> bool:
    """Whether a value is better than another; direction: "min" or "max"."""
    return value < other if direction == "min" else value > other


def few_metrics(metrics: Mapping[str, T], *, first: Sequence[str]) -> dict[str, T]:
    """Return what a record has of the metrics: those of `first` in their order, others by name."""
    names = [
        name
        for name in dict.fromkeys((*first, *sorted(metrics)))
        if name in metrics and len(name) <= METRIC_NAME_CHARS_MAX
    ]
    return {name: metrics[name] for name in names[:RECORDED_METRICS_MAX]}
