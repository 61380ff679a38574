"""What /metrics exposes, as plain values: of runs with an open attempt, with bounded labels. Pure.

A series is of a run, never of a rank, a step or an attempt: there are at most RUNS_MAX of each gauge,
however long the runs train. The Grafana dashboard in docs/grafana.json reads these names.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tracks_dagster.review.lights import Colour
from tracks_dagster.wings.watch.board.reading import RunReading
from tracks_dagster.wings.watch.health.rules import severity_of

RUNS_MAX = 200  # open attempts, oldest run first
LEVEL = {Colour.GREY: 0.0, Colour.GREEN: 1.0, Colour.YELLOW: 2.0, Colour.RED: 3.0}
RUN_LABELS = ("run", "family", "team")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One metric of Prometheus. samples: values of the labels in their order, and the number."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    samples: list[tuple[tuple[str, ...], float]] = field(default_factory=list)


def _step_s(reading: RunReading) -> float | None:
    return None if reading.pace is None else reading.pace.step_s


def _left_s(reading: RunReading) -> float | None:
    return None if reading.left is None else reading.left.seconds


def _cost(reading: RunReading) -> float | None:
    return None if reading.cost is None else reading.cost.amount


def _since_commit(reading: RunReading) -> float | None:
    at = reading.committed_at
    return None if at is None else max(0.0, (reading.now - at).total_seconds())


_OF_A_RUN: Sequence[tuple[str, str, Callable[[RunReading], float | None]]] = (
    ("tracks_run_step", "newest step", lambda r: r.step),
    ("tracks_run_steps_wanted", "steps that it is to run", lambda r: r.steps),
    ("tracks_run_attempt", "number of its open attempt", lambda r: len(r.state.attempts)),
    ("tracks_run_loss", "newest training loss", lambda r: r.loss),
    ("tracks_run_step_seconds", "mean of its newest steps", _step_s),
    ("tracks_run_samples_per_second", "of the whole gang", lambda r: r.samples_per_s),
    ("tracks_run_data_wait_ratio", "of its newest steps", lambda r: r.data_share),
    ("tracks_run_seconds_left", "to its last step, at its pace", _left_s),
    ("tracks_run_devices", "devices of its open attempt", lambda r: r.devices),
    ("tracks_run_seconds_since_commit", "since its newest checkpoint", _since_commit),
    ("tracks_run_cost", "so far, in the price table's currency", _cost),
)


def gauges(
    readings: Mapping[str, RunReading],
    *,
    running: Collection[str] = (),
    problems: Collection[str] = (),
) -> list[Gauge]:
    """Return every gauge of the runs with an open attempt.

    readings: by run; running: run ids that the ledger has as running; problems: of those that cannot be
    read. One without a reading, and one of which no gauge can be made, counts as unread.
    """
    unread = {*problems, *(run_id for run_id in running if run_id not in readings)}
    open_count = sum(run_id not in readings for run_id in running)
    shown: list[RunReading] = []
    for run_id, each in readings.items():
        try:
            if each.state.open_attempt is None:
                continue
            open_count += 1
            if len(shown) < RUNS_MAX:
                _ = [*_of_runs([each]), *_of_lights([each])]
                shown.append(each)
        except Exception:  # noqa: BLE001 - of that run alone; its page says it
            unread.add(run_id)
    problem_count = Gauge(
        name="tracks_runs_unread",
        meaning="open runs that are in no gauge of a run, because they cannot be read, or were not yet",
        samples=[((), float(len(unread)))],
    )
    attempts = Gauge(
        name="tracks_open_attempts",
        meaning="runs with an open attempt, read or not",
        samples=[((), float(open_count))],
    )
    return [*_of_runs(shown), *_of_lights(shown), attempts, problem_count]


def _of_runs(readings: Sequence[RunReading]) -> Iterator[Gauge]:
    for name, meaning, read in _OF_A_RUN:
        gauge = Gauge(name=name, meaning=meaning, labels=RUN_LABELS)
        for each in readings:
            value = read(each)
            if value is not None and not math.isnan(value):
                gauge.samples.append((_labels(each), float(value)))
        yield gauge


def _of_lights(readings: Sequence[RunReading]) -> Iterator[Gauge]:
    lights = Gauge(
        name="tracks_run_light",
        meaning="0 grey, 1 green, 2 yellow, 3 red",
        labels=(*RUN_LABELS, "light"),
    )
    alerts = Gauge(
        name="tracks_run_alerts_open",
        meaning="alerts that have not ended",
        labels=(*RUN_LABELS, "severity"),
    )
    for each in readings:
        for light in each.lights.all:
            label = (*_labels(each), light.question.value)
            lights.samples.append((label, LEVEL[light.colour]))
        counts = Counter(severity_of(alert.body) for alert in each.state.open_alerts)
        for severity in ("yellow", "red"):
            alerts.samples.append(((*_labels(each), severity), float(counts[severity])))
    yield lights
    yield alerts


def _labels(reading: RunReading) -> tuple[str, ...]:
    declared = reading.state.declared
    return (declared.run_id, declared.model_family, declared.team)
