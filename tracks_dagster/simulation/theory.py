"""What could be had at best: with the interruptions known beforehand, and by closed form."""

from __future__ import annotations

import math

from tracks_dagster.checkpoints.cadence import best_interval_s
from tracks_dagster.simulation.play import Scenario
from tracks_dagster.simulation.tracks import SimulatedRun
from tracks_dagster.simulation.world import Start

LAUNCHES_MAX = 100_000


def best_kept_s(scenario: Scenario) -> float:
    """Return the time kept by whoever knows each interruption: it saves once, right before each.

    Of `u` seconds of capacity it keeps u − restart − save, in whole steps, and nothing where that is
    less than a step; the last, which nothing ends before the horizon, needs no save. Worlds whose
    ends come at times only: a defect has no best. Nobody waits for a decision or a person.
    """
    world, costs, job = scenario.world(), scenario.costs, scenario.job
    compute = SimulatedRun(job).state.declared.compute
    now_s = kept_s = 0.0
    for number in range(1, LAUNCHES_MAX):
        launch = world.launch(number, now_s, compute)
        if launch is None or launch.at_s >= scenario.horizon_s:
            return kept_s
        ends = world.ends(Start(launch=launch, resumed_step=0, config=job.config, met={}))
        end_s = min((e.at_s for e in ends if e.at_s is not None), default=math.inf)
        is_cut = end_s <= scenario.horizon_s
        until_s = min(end_s, scenario.horizon_s)
        up_s = until_s - launch.at_s - launch.restart_s - (costs.blocking_s if is_cut else 0.0)
        kept_s += max(0, math.floor(up_s / costs.step_s)) * costs.step_s
        now_s = until_s
        if not is_cut:
            return kept_s
    raise AssertionError(f"{scenario.name}: {LAUNCHES_MAX} launches and no end.")


def best_ettr(*, blocking_s: float, restart_s: float, mean_time_s: float) -> float:
    """Return the ETTR at Young's interval τ = √(2·δ·M), for interruptions without memory.

    Daly (2006): with a restart of R seconds, which may itself be interrupted, τ of work and its save
    take M·e^(R/M)·(e^((τ+δ)/M) − 1) on average. For δ = 30 s, R = 300 s, M = 11 135 s: τ = 817 s
    takes 904 s, so 0.904. To first order 1 − √(2·δ/M) − R/M = 0.900.
    """
    interval_s = best_interval_s(blocking_s, mean_time_s)
    took_s = (
        mean_time_s
        * math.exp(restart_s / mean_time_s)
        * math.expm1((interval_s + blocking_s) / mean_time_s)
    )
    return interval_s / took_s
