"""The chance that a run finishes in time, with checkpoints and without them.

A run of each length is started at several times, evenly over each history, and has WITHIN times its
length to finish. With checkpoints it saves and retries as `choice` decides. Without them it begins at
step 0 after each interruption, at once, while there is time: the best that can be had without them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tracks_dagster.track.records import Json
from tracks_dagster.wings.lab.simulation.compare import Choice, spans
from tracks_dagster.wings.lab.simulation.play import Scenario, simulate

LENGTHS_S = (3600.0, 6 * 3600.0, 86_400.0, 7 * 86_400.0)  # of a run that nothing interrupts
STARTS = 20  # of each length, in each history
WITHIN = 2.0  # times its length


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishChance:
    """How many of `starts` runs of `work_s` finish. with_checkpoints, without: shares, 0 to 1."""

    work_s: float
    starts: int
    with_checkpoints: float
    without: float


def finish_chances(scenarios: Sequence[Scenario], choice: Choice) -> list[FinishChance]:
    """Return the chances for each length that has room in a history; none where no history has any.

    Of worlds whose ends come at times only, as for `best_kept_s`.
    """
    found = []
    for work_s in LENGTHS_S:
        tries = [one for scenario in scenarios for one in _starts(scenario, work_s)]
        if not tries:
            continue
        saved = [simulate(one, choice.decider, choice.pacer).complete for one in tries]
        found.append(
            FinishChance(
                work_s=work_s,
                starts=len(tries),
                with_checkpoints=sum(saved) / len(tries),
                without=sum(_finishes_in_one_go(one, work_s) for one in tries) / len(tries),
            )
        )
    return found


def finish_json(chances: Sequence[FinishChance]) -> list[dict[str, Json]]:
    """Return the chances as JSON."""
    return [
        {
            "work_s": chance.work_s,
            "within_s": WITHIN * chance.work_s,
            "starts": chance.starts,
            "with_checkpoints": chance.with_checkpoints,
            "without_checkpoints": chance.without,
        }
        for chance in chances
    ]


def _starts(scenario: Scenario, work_s: float) -> Iterator[Scenario]:
    """Yield a run of that length at each of its starts; none where the history is too short."""
    room_s = scenario.horizon_s - WITHIN * work_s
    if room_s < 0 or math.isinf(room_s):
        return
    steps = math.ceil(work_s / scenario.costs.step_s)
    job = replace(scenario.job, steps=steps, estimated_s=work_s)
    for number in range(STARTS):
        begins_s = room_s * number / (STARTS - 1)
        horizon_s = begins_s + WITHIN * work_s
        yield replace(scenario, job=job, begins_s=begins_s, horizon_s=horizon_s)


def _finishes_in_one_go(scenario: Scenario, work_s: float) -> bool:
    """Whether some time between two interruptions is long enough for all steps and the last save."""
    need_s = work_s + scenario.costs.blocking_s
    return any(until_s - from_s >= need_s for from_s, until_s in spans(scenario))
