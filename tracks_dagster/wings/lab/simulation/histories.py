"""Published histories to simulate: traces of spot capacity, and the interruptions of Llama 3."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json
from tracks_dagster.wings.lab.simulation.play import Scenario
from tracks_dagster.wings.lab.simulation.tracks import Job
from tracks_dagster.wings.lab.simulation.world import (
    Costs,
    InterruptedWorld,
    Interruption,
    PooledWorld,
)

_R = TerminationReason

# Grattafiori et al., "The Llama 3 Herd of Models" (arXiv 2407.21783), section 3.3.4, table 5: the
# unexpected interruptions of 54 days of pre-training on 16 384 GPUs, by root cause, and the reason
# that we would give. A software bug that a restart gets past is nearest to a native crash; one that
# raises the same error at the same step would be code_error, and no retry's business.
LLAMA3_DAYS = 54.0
LLAMA3_GPUS = 16_384
LLAMA3_CAUSES: Mapping[str, tuple[int, TerminationReason]] = {
    "faulty GPU": (148, _R.GPU_HARDWARE),
    "GPU HBM3 memory": (72, _R.GPU_HARDWARE),
    "software bug": (54, _R.NATIVE_CRASH),
    "network switch or cable": (35, _R.NETWORK_FABRIC),
    "host maintenance": (32, _R.NODE_DRAINED),
    "GPU SRAM memory": (19, _R.GPU_HARDWARE),
    "GPU system processor": (17, _R.GPU_HARDWARE),
    "NIC": (7, _R.NETWORK_FABRIC),
    "NCCL watchdog timeout": (7, _R.HANG),
    "silent data corruption": (6, _R.SILENT_CORRUPTION),
    "GPU thermal interface and sensor": (6, _R.GPU_HARDWARE),
    "SSD": (3, _R.STORAGE_IO),
    "power supply": (3, _R.NODE_FAILURE),
    "server chassis": (2, _R.NODE_FAILURE),
    "IO expansion board": (2, _R.NODE_FAILURE),
    "dependency": (2, _R.DEPENDENCY_MISMATCH),
    "CPU": (2, _R.NODE_FAILURE),
    "system memory": (2, _R.NODE_FAILURE),
}
LLAMA3_INTERRUPTIONS = sum(count for count, _ in LLAMA3_CAUSES.values())  # 419
LLAMA3_MEAN_TIME_S = LLAMA3_DAYS * 86_400.0 / LLAMA3_INTERRUPTIONS  # 11 135 s, about 3 h
LLAMA3_STEP_S = 5.0  # not published; only what is cut off inside a step depends on it
# Not published: until who is on call answers a refusal. There are about six in the 54 days, so each
# quarter of an hour more takes 0.1 % of them; with a save of 30 s, half an hour ends at 0.900.
LLAMA3_PERSON_AFTER_S = 900.0
# The gang tells which node failed first for faults of a node, not for those of all nodes at once.
_BLAMES_NODE = frozenset({_R.GPU_HARDWARE, _R.NODE_FAILURE, _R.SILENT_CORRUPTION, _R.STORAGE_IO})

# Spot capacity is taken for others; what a step takes is of no weight beside minutes.
SPOT_STEP_S = 1.0
SCHEDULING_S = 600.0  # until a gang that waits for capacity gives up
HOURS_MAX = 24.0 * 3650
INTERVALS_MAX = 1_000_000  # of one trace
SHOWN_MAX = 60  # characters of a value in an error
CONFIG: Mapping[str, Json] = {"micro_batch": 8, "accumulation": 1}


def llama3(costs: Costs, *, seed: int, person_after_s: float | None) -> Scenario:
    """Return 54 days with the 419 interruptions at random times, in random order.

    Uniform over the days: what interruptions without memory are, once their number is known.
    """
    chance = random.Random(seed)
    horizon_s = LLAMA3_DAYS * 86_400.0
    causes = [cause for cause, (count, _) in LLAMA3_CAUSES.items() for _ in range(count)]
    chance.shuffle(causes)
    times = sorted(chance.uniform(0.0, horizon_s) for _ in causes)
    interruptions = [
        Interruption(
            at_s=time_s,
            reason=LLAMA3_CAUSES[cause][1],
            message=cause,
            blamed_node=(
                f"node-{chance.randrange(LLAMA3_GPUS // 8)}"
                if LLAMA3_CAUSES[cause][1] in _BLAMES_NODE
                else None
            ),
        )
        for time_s, cause in zip(times, causes, strict=True)
    ]
    return Scenario(
        name="llama3-405b",
        job=Job(run_id="llama3", devices=LLAMA3_GPUS, estimated_s=horizon_s, config=CONFIG),
        costs=costs,
        world=lambda: InterruptedWorld(
            interruptions=interruptions, costs=costs, person_after_s=person_after_s
        ),
        horizon_s=horizon_s,
    )


def read_traces(data: Json, *, source: str) -> dict[str, list[tuple[int, float]]]:
    """Return the (instances, seconds) of each trace of spot capacity.

    data: {name: {"intervals": [[instances up, seconds], …], …}, …}. Raises InvalidInput naming the
    first thing that is wrong; source: what it was read from.
    """
    if not isinstance(data, Mapping) or not data:
        raise _unusable(source, f"it holds {_shown(data)}, not traces by name")
    return {name: _intervals(f"{source}: trace {name!r}", trace) for name, trace in data.items()}


def spot(
    name: str,
    intervals: Sequence[tuple[int, float]],
    costs: Costs,
    *,
    nodes: int | None = None,
    grace_s: float = 0.0,
    person_after_s: float | None = None,
) -> Scenario:
    """Return a gang on spot capacity, which runs while `nodes` instances are up.

    nodes: None for the most that the trace ever has. Every loss of capacity is a preemption.
    """
    most = max(count for count, _ in intervals)
    needed = most if nodes is None else nodes
    if not 1 <= needed <= most:
        raise InvalidInput(
            f"{name} has at most {most} instances at once, so a gang of {needed} never runs; choose "
            f"1 to {most}."
            if most
            else f"{name} never has an instance, so nothing runs on it."
        )
    horizon_s = sum(seconds for _, seconds in intervals)
    spans = spans_of(intervals, needed)
    interruptions = interruptions_of(spans, horizon_s, grace_s=grace_s)
    return Scenario(
        name=name,
        job=Job(run_id="spot", devices=needed, estimated_s=horizon_s, config=CONFIG),
        costs=costs,
        world=lambda: InterruptedWorld(
            interruptions=interruptions,
            costs=costs,
            first_up_s=spans[0][0],
            person_after_s=person_after_s,
        ),
        horizon_s=horizon_s,
    )


def zones(spots: Sequence[Scenario]) -> list[Scenario]:
    """Return one run for each of these traces as its own pool, which may go on in the others.

    A run whose pool has no capacity gives up after SCHEDULING_S. Beyond the shortest trace nothing is
    known of a pool.
    """
    horizon_s = min(each.horizon_s for each in spots)
    pools = {each.name: each.world for each in spots}
    return [
        replace(
            each,
            job=replace(each.job, pool=each.name),
            world=lambda: PooledWorld(
                {name: world() for name, world in pools.items()}, scheduling_s=SCHEDULING_S
            ),
            horizon_s=horizon_s,
        )
        for each in spots
    ]


def ring(names: Sequence[str]) -> dict[str, str]:
    """Return `other_pools` in which each pool is followed by the next, and the last by the first."""
    return dict(zip(names, [*names[1:], *names[:1]], strict=True)) if len(names) > 1 else {}


def interruptions_of(
    spans: Sequence[tuple[float, float]], horizon_s: float, *, grace_s: float = 0.0
) -> list[Interruption]:
    """Return the preemption at the end of each span of capacity but one that outlasts the trace."""
    following = [*(from_s for from_s, _ in spans[1:]), horizon_s]
    return [
        Interruption(
            at_s=until_s,
            reason=_R.PREEMPTED,
            message="the instance was reclaimed",
            down_s=next_s - until_s,
            grace_s=grace_s,
        )
        for (_, until_s), next_s in zip(spans, following, strict=True)
        if until_s < horizon_s
    ]


def spans_of(intervals: Sequence[tuple[int, float]], needed: int) -> list[tuple[float, float]]:
    """Return (from, until) of each time with at least `needed` instances, in order."""
    spans: list[tuple[float, float]] = []
    now_s = 0.0
    for count, seconds in intervals:
        until_s = now_s + seconds
        if count >= needed and spans and spans[-1][1] == now_s:
            spans[-1] = (spans[-1][0], until_s)
        elif count >= needed:
            spans.append((now_s, until_s))
        now_s = until_s
    return spans


def _intervals(where: str, trace: Json) -> list[tuple[int, float]]:
    """Return one trace's intervals, or raise InvalidInput."""
    listed = trace.get("intervals") if isinstance(trace, Mapping) else None
    if not isinstance(listed, list) or not listed:
        raise _unusable(where, 'it has no list "intervals" with an entry')
    if len(listed) > INTERVALS_MAX:
        raise _unusable(where, f"it has more than {INTERVALS_MAX} intervals")
    found: list[tuple[int, float]] = []
    for number, entry in enumerate(listed, start=1):
        if not isinstance(entry, list) or len(entry) != 2:
            raise _unusable(where, f"interval {number} is {_shown(entry)}, not two numbers")
        count, seconds = entry
        if type(count) is not int or count < 0:
            raise _unusable(where, f"interval {number} has {_shown(count)} instances")
        if type(seconds) not in (int, float) or not 0 < seconds < math.inf:
            raise _unusable(where, f"interval {number} lasts {_shown(seconds)} seconds")
        found.append((count, float(seconds)))
    hours = sum(seconds for _, seconds in found) / 3600.0
    if hours > HOURS_MAX:
        raise _unusable(where, f"it lasts {hours:.0f} hours, which is more than ten years")
    return found


def _unusable(where: str, problem: str) -> InvalidInput:
    return InvalidInput(
        f"{where} cannot be simulated: {problem}. A trace file is JSON: "
        '{"NAME": {"intervals": [[INSTANCES_UP, SECONDS], …]}}, for example '
        '{"zone-a": {"intervals": [[1, 3600], [0, 300], [1, 7200]]}}.'
    )


def _shown(value: Json) -> str:
    if isinstance(value, Mapping):
        return "an object" if value else "an empty object"
    return "a list" if isinstance(value, list) else json.dumps(value)[:SHOWN_MAX]
