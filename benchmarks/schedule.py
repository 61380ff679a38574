"""What a decision of the queue costs: 1 000 that wait, 10 000 devices, nearly all of them taken.

Processor time of one process, the lowest of several turns: what the code costs when nothing disturbs
it. The worlds are the same each time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

from tracks_dagster.scheduling.model import Demand, Device, Running
from tracks_dagster.scheduling.policy import Allowance, Order, Placement, SchedulingPolicy
from tracks_dagster.scheduling.rules import PlanContext, plan

NODES, DEVICES_A_NODE = 1250, 8
WAITING = 1000
ROUNDS = 9
GIB = 2**30
SEED = 17

TEAMS = [f"team-{number}" for number in range(20)]
POLICIES: Mapping[str, SchedulingPolicy] = {
    "decision_ms": SchedulingPolicy(order=Order.FAIR),
    "decision_by_memory_ms": SchedulingPolicy(order=Order.FAIR),
    "decision_with_caps_ms": SchedulingPolicy(
        order=Order.FAIR, teams={team: Allowance(devices=600) for team in TEAMS}
    ),
    "decision_spread_ms": SchedulingPolicy(placement=Placement.SPREAD),
    "decision_of_an_empty_pool_ms": SchedulingPolicy(),
}
AT_MOST = dict.fromkeys(POLICIES, 50.0)
WHY = dict.fromkeys(
    POLICIES, "every device, run and demand is looked at once; a slower or a busy machine"
)


def run() -> dict[str, float]:
    """Return milliseconds of processor time a decision, by kind of world."""
    return {
        name: _decision_ms(
            policy,
            busy=0.0 if name == "decision_of_an_empty_pool_ms" else 0.98,
            is_measured=name == "decision_by_memory_ms",
        )
        for name, policy in POLICIES.items()
    }


def _decision_ms(policy: SchedulingPolicy, *, busy: float, is_measured: bool) -> float:
    devices, running, waiting = _world(busy=busy, is_measured=is_measured)
    took_s = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        plan(waiting, running, devices, PlanContext(policy=policy, now_s=0.0))
        took_s.append(time.process_time() - began_s)
    return min(took_s) * 1000


def _world(*, busy: float, is_measured: bool) -> tuple[list[Device], list[Running], list[Demand]]:
    """Return devices, what runs on a part of them, and what waits. is_measured: needs are known."""
    drawn = random.Random(SEED)
    devices = [
        Device(
            name=f"node-{node}/{place}",
            kind="gpu",
            node=f"node-{node}",
            memory_bytes=80 * GIB,
            islands=(f"NUMA {place // 4}", f"switch {place // 2}"),
        )
        for node in range(NODES)
        for place in range(DEVICES_A_NODE)
    ]
    running, at = [], 0
    while at < len(devices):
        count = drawn.choice([1, 1, 1, 2, 4, 8])
        held = tuple(device.name for device in devices[at : at + count])
        if drawn.random() < busy:
            running.append(
                Running(
                    demand=_demand(drawn, f"run-{at}/a01", len(held), is_measured=is_measured),
                    devices=held,
                    began_s=-drawn.uniform(0.0, 1e5),
                    left_s=drawn.choice([None, drawn.uniform(0.0, 1e5)]),
                    committed_s=-drawn.uniform(0.0, 3000.0),
                    unsaved_ranks_s=drawn.uniform(0.0, 1000.0),
                )
            )
        at += count
    counts = [1, 1, 1, 2, 4, 8, 16, 64]
    waiting = [
        _demand(drawn, f"wait-{number}/a01", drawn.choice(counts), is_measured=is_measured)
        for number in range(WAITING)
    ]
    return devices, running, waiting


def _demand(drawn: random.Random, key: str, count: int, *, is_measured: bool) -> Demand:
    return Demand(
        key=key,
        count=count,
        kind="gpu",
        memory_bytes=drawn.choice([None, 20 * GIB, 40 * GIB]) if is_measured else None,
        workload_class=drawn.choice(["single", "distributed", "sweep", "deferred", "eval"]),
        team=drawn.choice(TEAMS),
        since_s=-drawn.uniform(0.0, 1e5),
        work_s=drawn.choice([None, 300.0, drawn.uniform(0.0, 1e5)]),
        is_interrupted=drawn.random() < 0.3,
    )
