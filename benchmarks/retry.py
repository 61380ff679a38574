"""What the retry policy and the checkpoint cadence are worth, on histories and with real processes.

Three parts are simulations, with the real `decide` and the real cadence, and give the same figures for
the same seed: `llama3` (54 days of a large run's interruptions), `spot` (measured traces of spot
capacity, which --traces names) and `defects` (a fleet of which some runs no retry can save). The
fourth, `kill`, is a measurement: a rank of a real run is killed, and its way back is timed.

The shares of the best and the savings are ratios within one simulated history, so a busy machine
changes nothing about them; the kill's seconds are meant for an idle one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks import retry_kill
from benchmarks.defects import Case, drawn_trace, fleet
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.policy import HOUR_S
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wings.lab.simulation.compare import (
    advised,
    best_ettr,
    best_kept_s,
    fixed_retries,
    ours,
)
from tracks_dagster.wings.lab.simulation.histories import (
    LLAMA3_MEAN_TIME_S,
    LLAMA3_PERSON_AFTER_S,
    LLAMA3_STEP_S,
    SPOT_STEP_S,
    llama3,
    read_traces,
    spot,
)
from tracks_dagster.wings.lab.simulation.outcome import FIRST_START, Outcome, sum_outcomes
from tracks_dagster.wings.lab.simulation.play import Decider, simulate
from tracks_dagster.wings.lab.simulation.world import Costs

Intervals = Sequence[tuple[int, float]]

PARTS = ("llama3", "spot", "defects", "kill")
SEED = 0
LLAMA3_SEEDS = 5
# How soon a refusal is answered was not published, and the figure rests on it.
SLOW_PERSON_AFTER_S = 1800.0
LLAMA3_COSTS = ((30.0, 300.0), (5.0, 120.0))  # blocking save, restart; seconds
SPOT_COSTS = Costs(step_s=SPOT_STEP_S, blocking_s=2.0, restart_s=60.0)
GRACES_S = (0.0, 30.0)  # AWS gives two minutes, GCP and Azure half a one; some clusters nothing
PREEMPTIONS_MIN = 10  # of a trace that a fleet is put on
RUNS_PER_TRACE = 20
DRAWN_TRACES = 8  # where there are no measured ones
RETRIES = 3

AT_LEAST = {
    "llama3_ettr 30 s save, 300 s restart": 0.90,
    "llama3_ettr 5 s save, 120 s restart": 0.95,
    "defects_wasted_less": 0.30,
    "defects_wasted_less, doomed runs": 0.30,
}
AT_MOST = {"defects_curable_given_up": 0.0, "kill_to_first_step_s": 8.0}
WHY = {  # what else is in a figure that misses its bar
    "llama3_ettr 30 s save, 300 s restart": "the closed form leaves 0.4 %; refusals wait for a person",
    "llama3_ettr 5 s save, 120 s restart": "refusals wait for a person",
    "defects_wasted_less": "each defect is tried once more, to tell it from a fault of the machine",
    "defects_wasted_less, doomed runs": "an out-of-memory end is tried with three smaller configs",
    "defects_curable_given_up": "a budget was exhausted by faults that would have gone by",
    "kill_to_first_step_s": "a busy machine: process starts and imports are most of it",
}

Figures = dict[str, float]


def run(*, traces: Path | None, only: Sequence[str], rounds: int) -> Figures:
    """Return the figures of the parts of these names, of all without one."""
    found = read_folder(traces) if traces is not None else {}
    parts: Mapping[str, Callable[[], Figures]] = {
        "llama3": llama3_figures,
        "spot": lambda: spot_figures(found),
        "defects": lambda: defect_figures(found),
        "kill": lambda: retry_kill.figures(rounds),
    }
    figures: Figures = {}
    for name in only or PARTS:
        figures |= parts[name]()
    for name in PARTS:
        if only and name not in only:
            _say(f"{name}: skipped, --only asked for {', '.join(only)}")
    return figures


def llama3_figures() -> Figures:
    """Return the ETTR over the 54 days, median of some seeds, and the best there is beside it."""
    figures: Figures = {}
    for save_s, restart_s in LLAMA3_COSTS:
        costs = Costs(step_s=LLAMA3_STEP_S, blocking_s=save_s, restart_s=restart_s)
        outcomes = _llama3_outcomes(costs, LLAMA3_PERSON_AFTER_S)
        slower = _llama3_outcomes(costs, SLOW_PERSON_AFTER_S)
        name = f"llama3_ettr {save_s:g} s save, {restart_s:g} s restart"
        closed = best_ettr(blocking_s=save_s, restart_s=restart_s, mean_time_s=LLAMA3_MEAN_TIME_S)
        figures |= {
            name: median(outcome.ettr for outcome in outcomes),
            f"{name} @worst of {LLAMA3_SEEDS} seeds": min(outcome.ettr for outcome in outcomes),
            f"{name} @a person after {SLOW_PERSON_AFTER_S / 60:g} min": median(
                outcome.ettr for outcome in slower
            ),
            f"{name}, closed-form best": closed,
        }
        _say_where_it_went(name, sum_outcomes(name, outcomes))
    _say(
        f"llama3: seeds {SEED} to {SEED + LLAMA3_SEEDS - 1}; a refusal is answered after "
        f"{LLAMA3_PERSON_AFTER_S / 60:g} min, from the newest checkpoint; "
        "closed form: τ / (M·e^(R/M)·(e^((τ+δ)/M) − 1)) at "
        f"Young's τ = √(2·δ·M), M = {LLAMA3_MEAN_TIME_S:.0f} s (Daly 2006)"
    )
    return figures


def _llama3_outcomes(costs: Costs, person_after_s: float) -> list[Outcome]:
    decider, pacer = ours(DEFAULT_POLICY), advised(costs.blocking_s)
    return [
        simulate(llama3(costs, seed=seed, person_after_s=person_after_s), decider, pacer)
        for seed in range(SEED, SEED + LLAMA3_SEEDS)
    ]


def spot_figures(traces: Mapping[str, Intervals]) -> Figures:
    """Return the share of what perfect knowledge keeps, for each trace with and without a notice."""
    if not traces:
        _say("spot: skipped, there are no traces; give a folder of them with --traces")
        return {}
    figures: Figures = {}
    for grace_s in GRACES_S:
        shares: dict[str, float] = {}
        for name, intervals in traces.items():
            scenario = spot(name, intervals, SPOT_COSTS, grace_s=grace_s)
            outcome = simulate(scenario, ours(DEFAULT_POLICY), advised(SPOT_COSTS.blocking_s))
            best_s = best_kept_s(scenario)
            if best_s > 0:
                shares[name] = outcome.kept_s / best_s
        label = f"spot_share_of_best {grace_s:g} s grace"
        figures |= {f"{label}, median": median(shares.values())}
        figures |= {f"{label}, worst": min(shares.values())}
        figures |= {f"{label} @{name}": share for name, share in shares.items()}
    _say(
        f"spot: {len(traces)} traces; a save blocks {SPOT_COSTS.blocking_s:g} s, a restart takes "
        f"{SPOT_COSTS.restart_s:g} s, the gang is as large as the trace ever allows"
    )
    return figures


def defect_figures(traces: Mapping[str, Intervals]) -> Figures:
    """Return what defects among preemptions cost, against three retries for whatever is not a
    preemption.

    The bars are on what is owed to the defects, of all runs and of those that nothing saves. Both were
    chosen after the totals were seen, so what misses 30 % is shown beside them: all waste of the doomed
    runs, all waste of the fleet, and every device-hour that is in no finished run. Preemptions cost
    several times as much as defects, and anyone who carries more runs to their end meets more of them.
    Three retries for everything waste least, because the preemptions soon stop all runs; how many
    curable ones that gives up is shown as well.
    """
    busy = {name: each for name, each in traces.items() if len(each) > 2 * PREEMPTIONS_MIN}
    if not busy:
        _say(f"defects: no measured traces, so on {DRAWN_TRACES} drawn ones (--traces FOLDER)")
        busy = {f"drawn-{seed}": drawn_trace(seed) for seed in range(DRAWN_TRACES)}
    cases = fleet(busy, SPOT_COSTS, runs_per_trace=RUNS_PER_TRACE, seed=SEED)
    us = _treated(cases, ours(DEFAULT_POLICY))
    them = _treated(cases, fixed_retries(RETRIES, capacity_is_free=True))
    strict = _treated(cases, fixed_retries(RETRIES))
    doomed_us, doomed_them = _doomed(cases, us), _doomed(cases, them)
    ours_h, theirs_h = _on_defects_h(us), _on_defects_h(them)
    _say(
        f"defects: {len(cases)} runs on {len(busy)} traces, seed {SEED}; {RETRIES} fixed retries do "
        "not count preemptions; the bars are on what is owed to defects: counted with the preemptions "
        "ours wastes about as much, and finishes every curable run"
    )
    return {
        "defects_wasted_less": 1.0 - ours_h / theirs_h,
        "defects_wasted_less, doomed runs": 1.0
        - _on_defects_h(doomed_us) / _on_defects_h(doomed_them),
        "defects_wasted_less @doomed runs, with preemptions": 1.0
        - _all_h(doomed_us) / _all_h(doomed_them),
        "defects_wasted_less @all runs, with preemptions": 1.0 - _all_h(us) / _all_h(them),
        "defects_wasted_less @all in no finished run": 1.0
        - _unfinished_h(us) / _unfinished_h(them),
        "defects_curable_given_up": float(_given_up(cases, us)),
        "defects_wasted_device_h @ours": ours_h,
        "defects_wasted_device_h @3 retries": theirs_h,
        "defects_wasted_device_h @ours, with preemptions": _all_h(us),
        "defects_wasted_device_h @3 retries, with preemptions": _all_h(them),
        "defects_wasted_device_h @3 retries counting preemptions, with preemptions": _all_h(strict),
        "defects_given_up @curable, 3 retries": float(_given_up(cases, them)),
        "defects_given_up @curable, 3 retries counting preemptions": float(
            _given_up(cases, strict)
        ),
        "defects_complete @ours": float(sum(outcome.complete for outcome in us)),
        "defects_complete @3 retries": float(sum(outcome.complete for outcome in them)),
        "defects_complete @3 retries counting preemptions": float(
            sum(outcome.complete for outcome in strict)
        ),
        "defects_complete @curable runs there are": float(sum(case.is_curable for case in cases)),
    }


def read_folder(folder: Path) -> dict[str, Intervals]:
    """Return all traces in the JSON files of a folder; raises InvalidInput."""
    if not folder.is_dir():
        raise InvalidInput(f"--traces {folder} is not a folder; name one with trace files in it.")
    found: dict[str, Intervals] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            data = json.loads(path.read_bytes())
        except ValueError as error:
            raise InvalidInput(f"{path} is not JSON ({error}).") from error
        found |= read_traces(data, source=str(path))
    if not found:
        raise InvalidInput(f"There is no *.json in --traces {folder}.")
    return found


def _treated(cases: Sequence[Case], decider: Decider) -> list[Outcome]:
    pacer = advised(SPOT_COSTS.blocking_s)
    return [simulate(case.scenario, decider, pacer) for case in cases]


def _on_defects_h(outcomes: Sequence[Outcome]) -> float:
    """Return the device-hours that are owed to what was injected: preemptions apart."""
    wasted = sum_outcomes("all", outcomes).wasted
    apart = ("preempted", "completed", FIRST_START)
    return sum(seconds for reason, seconds in wasted.items() if reason not in apart) / HOUR_S


def _all_h(outcomes: Sequence[Outcome]) -> float:
    return sum_outcomes("all", outcomes).wasted_device_s / HOUR_S


def _unfinished_h(outcomes: Sequence[Outcome]) -> float:
    """Return the device-hours that are in no finished run, steps kept in a run given up included."""
    used_s = sum(outcome.device_s for outcome in outcomes)
    return (used_s - sum(o.kept_device_s for o in outcomes if o.complete)) / HOUR_S


def _doomed(cases: Sequence[Case], outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [o for case, o in zip(cases, outcomes, strict=True) if not case.is_curable]


def _given_up(cases: Sequence[Case], outcomes: Sequence[Outcome]) -> int:
    return sum(
        case.is_curable and bool(outcome.refused)
        for case, outcome in zip(cases, outcomes, strict=True)
    )


def _say_where_it_went(name: str, outcome: Outcome) -> None:
    parts = {
        "steps lost": outcome.lost_s,
        "saves": outcome.saving_s,
        "restarts": outcome.restart_s,
        "waiting for backoffs and people": outcome.waiting_s,
    }
    shares = ", ".join(
        f"{part} {100 * seconds / outcome.wall_s:.2f} %" for part, seconds in parts.items()
    )
    refused = len(outcome.refused) / LLAMA3_SEEDS
    _say(f"{name}: {shares}; refused {refused:g} times in 54 days")


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr)
