"""A fleet of runs on spot capacity, some with a defect: curable ones, and what no retry gets past."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.wings.lab.simulation.histories import CONFIG, interruptions_of, spans_of
from tracks_dagster.wings.lab.simulation.play import Scenario
from tracks_dagster.wings.lab.simulation.tracks import Job
from tracks_dagster.wings.lab.simulation.world import Costs, Defect, InterruptedWorld, Interruption

_R = TerminationReason

DEVICES = 8
WORK_H = 12.0  # of one run, undisturbed
# Of the GPU jobs of two clusters 43 % and 40 % failed (ACME, Hu et al., NSDI 2024, CC BY 4.0).
DOOMED_SHARE = 0.4
CURABLE_SHARE = 0.3  # and the rest has nothing but its preemptions
BAD_NODE, GOOD_NODE = "node-bad", "node-good"
# Where no trace is given: capacity as short-lived as on the V100 spots of 2023.
MEAN_UP_S, MEAN_DOWN_S, SPOT_S = 3600.0, 600.0, 7 * 86_400.0

Intervals = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run of the fleet. is_curable: whether it comes to its end when it is treated right."""

    scenario: Scenario
    kind: str
    is_curable: bool


def fleet(
    traces: Mapping[str, Intervals], costs: Costs, *, runs_per_trace: int, seed: int
) -> list[Case]:
    """Return runs on each trace, begun at random times; the same seed gives the same fleet."""
    chance = random.Random(seed)
    return [
        _case(f"{name}#{number}", intervals, costs, chance)
        for name, intervals in traces.items()
        for number in range(1, runs_per_trace + 1)
    ]


def drawn_trace(seed: int) -> list[tuple[int, float]]:
    """Return a week of spot capacity with exponential spans, for where there is no measured one."""
    chance = random.Random(seed)
    intervals: list[tuple[int, float]] = []
    while sum(seconds for _, seconds in intervals) < SPOT_S:
        intervals.append((1, max(1.0, chance.expovariate(1 / MEAN_UP_S))))
        intervals.append((0, max(1.0, chance.expovariate(1 / MEAN_DOWN_S))))
    return intervals


def _case(name: str, intervals: Intervals, costs: Costs, chance: random.Random) -> Case:
    steps = round(WORK_H * 3600.0 / costs.step_s)
    kind, defects = _defects(steps, chance)
    turned = _turned(intervals, chance)
    spans = spans_of(turned, max(count for count, _ in turned))
    horizon_s = sum(seconds for _, seconds in turned)
    preemptions: list[Interruption] = interruptions_of(spans, horizon_s)
    nodes = (BAD_NODE, GOOD_NODE) if any(d.node for d in defects) else None
    scenario = Scenario(
        name=name,
        job=Job(
            run_id="fleet",
            devices=DEVICES,
            estimated_s=WORK_H * 3600.0,
            steps=steps,
            config=CONFIG,
        ),
        costs=costs,
        world=lambda: InterruptedWorld(
            interruptions=preemptions,
            costs=costs,
            first_up_s=spans[0][0],
            defects=defects,
            nodes=nodes,
        ),
        horizon_s=horizon_s,
    )
    return Case(scenario=scenario, kind=kind, is_curable=all(d.is_curable for d in defects))


def _defects(steps: int, chance: random.Random) -> tuple[str, tuple[Defect, ...]]:
    """Draw what is wrong with a run, and at which step it shows first."""
    drawn = chance.random()
    if drawn < DOOMED_SHARE:
        kind = chance.choice(sorted(_DOOMED))
    elif drawn < DOOMED_SHARE + CURABLE_SHARE:
        kind = chance.choice(sorted(_CURABLE))
    else:
        return "none", ()
    defect = {**_DOOMED, **_CURABLE}[kind]
    return kind, (replace(defect, step=chance.randint(1, steps)),)


def _turned(intervals: Intervals, chance: random.Random) -> list[tuple[int, float]]:
    """Return a trace from a random interval on, and what was before that behind it."""
    first = chance.randrange(len(intervals))
    return [*intervals[first:], *intervals[:first]]


_DOOMED: Mapping[str, Defect] = {
    "code error": Defect(reason=_R.CODE_ERROR, message="KeyError: 'labels'", step=1),
    "bad data": Defect(reason=_R.BAD_INPUT_DATA, message="a row without text", step=1),
    "OOM that no change cures": Defect(reason=_R.GPU_OOM, message="out of memory", step=1),
}
_CURABLE: Mapping[str, Defect] = {
    "OOM that half the micro-batch cures": Defect(
        reason=_R.GPU_OOM, message="out of memory", step=1, micro_batch_max=4
    ),
    "OOM that a quarter cures": Defect(
        reason=_R.GPU_OOM, message="out of memory", step=1, micro_batch_max=2
    ),
    "network fault, once": Defect(
        reason=_R.NETWORK_FABRIC, message="NCCL: connection reset", step=1, times=1
    ),
    "hang, twice": Defect(reason=_R.HANG, message="no step for 60 s", step=1, times=2),
    "native crash, once": Defect(
        reason=_R.NATIVE_CRASH, message="segmentation fault", step=1, times=1
    ),
    "bad node": Defect(reason=_R.GPU_HARDWARE, message="Xid 79", step=1, node=BAD_NODE),
}
