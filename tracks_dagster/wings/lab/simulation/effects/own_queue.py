"""The ledger's last days as a workload: what was declared and evaluated, with the time it really took.

Reads the ledger only and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate

from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.scheduling.policy import EVAL
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.text.units import counted
from tracks_dagster.wings.lab.simulation.effects.simulate import past_runs
from tracks_dagster.wings.lab.simulation.past_runs import PastRun
from tracks_dagster.wings.lab.simulation.workloads import Submission, Workload, cluster

LEDGER = "ledger"
EVALS_MAX = 1_000_000  # of the window, the newest
WORK_S_MIN = 1.0  # of what ended before its first step

ASSUMPTIONS = (
    "A run works as long as its attempts did between restore and end, in one piece.",
    "Runs of one team, project, size and length, and evals of one suite, are the same task.",
    "Every rank takes one device, every eval one; all devices are alike.",
)

_RUNS = """
select run_id, team, owner, model_family, workload_class, max_steps, branched_from_step
from training_runs
where run_id in (
    select run_id from training_attempts where termination_reason is not null and ended_at >= :since
)
"""
_EVALS = """
select e.run_id, e.eval_id, e.number, e.suite, e.opened_at, e.started_at, e.ended_at,
       r.team, r.owner
from evals e join training_runs r on r.run_id = e.run_id
where e.started_at is not null and e.ended_at >= :since
order by e.ended_at desc, e.run_id, e.eval_id, e.number
limit :evals_max
"""


def own_workload(
    ledger: Ledger, *, since: datetime, nodes: int | None, devices_per_node: int | None
) -> Workload:
    """Return what ended after `since`, on one node with the most devices that were held at once.

    nodes, devices_per_node: others to play it on. Raises InvalidInput where nothing ended, or the
    largest gang is larger than all devices, and LedgerError.
    """
    submissions = own_queue(ledger, since=since)
    nodes = nodes or 1
    per_node = devices_per_node or -(-peak_devices(submissions) // nodes)
    largest = max(each.devices for each in submissions)
    if largest > nodes * per_node:
        raise InvalidInput(
            f"The largest run has {largest} ranks, and {nodes} × {per_node} devices are too few for "
            "it; give more with --nodes and --devices-per-node."
        )
    return Workload(
        name=LEDGER,
        submissions=tuple(submissions),
        devices=cluster(nodes, per_node),
        origin=f"{counted(len(submissions), 'run or eval', 'runs and evals')} of this home",
    )


def own_queue(ledger: Ledger, *, since: datetime) -> list[Submission]:
    """Return what ended after `since`, by the time of its submission.

    Raises InvalidInput when nothing did, and LedgerError.
    """
    given: dict[str, Json] = {"since": format_time(since)}
    facts = {row["run_id"]: row for row in ledger.query(_RUNS, given)}
    evals = ledger.query(_EVALS, given | {"evals_max": EVALS_MAX})
    runs = past_runs(ledger, since)
    times_s = [_run_at_s(run) for run in runs] + [_eval_at_s(row, since) for row in evals]
    if not times_s:
        raise InvalidInput(
            f"Nothing has ended since {since:%Y-%m-%d %H:%M} UTC, so there is no queue to play; look "
            "further back with --last, or play a file, eight-nodes, pai or acme."
        )
    first_s = min(times_s)  # what was submitted first may be older than the window
    found = [_run(run, facts[run.run_id], _run_at_s(run) - first_s) for run in runs]
    found += [_eval(row, _eval_at_s(row, since) - first_s) for row in evals]
    return sorted(found, key=lambda each: each.at_s)


def peak_devices(submissions: Sequence[Submission]) -> int:
    """Return the most devices that would be held at once if nothing ever waited."""
    changes = sorted(_changes(submissions), key=lambda each: (each[0], each[1]))
    return max(accumulate(change for _, change in changes), default=1)


def _changes(submissions: Sequence[Submission]) -> Iterator[tuple[float, int]]:
    for each in submissions:
        yield each.at_s, each.devices
        yield each.at_s + each.work_s, -each.devices


def _run_at_s(run: PastRun) -> float:
    return min(attempt.opened_s for attempt in run.attempts)


def _eval_at_s(row: Mapping[str, Json], since: datetime) -> float:
    return float((row["opened_at"] - since).total_seconds())


def _run(run: PastRun, facts: Mapping[str, Json], at_s: float) -> Submission:
    work_s = sum(attempt.held_s - attempt.start_s for attempt in run.attempts)
    every_s = None if run.every_steps is None else run.every_steps * run.costs.step_s
    return Submission(
        name=run.name,
        at_s=at_s,
        devices=run.devices,
        work_s=max(WORK_S_MIN, work_s),
        workload_class=facts["workload_class"] or "",
        team=facts["team"],
        owner=facts["owner"],
        task=_task(run, facts),
        saves_every_s=every_s or None,
    )


def _task(run: PastRun, facts: Mapping[str, Json]) -> str:
    """Return the task that it is of, as of `scheduling.effects.recurrence`; "" for none."""
    if facts["max_steps"] is None:
        return ""
    begins_at = facts["branched_from_step"] or 0
    project = f"{facts['team']}/{facts['model_family']}"
    return f"{project}, {run.devices} ranks, steps {begins_at} to {facts['max_steps']}"


def _eval(row: Mapping[str, Json], at_s: float) -> Submission:
    took_s = (row["ended_at"] - row["started_at"]).total_seconds()
    return Submission(
        name=f"{row['run_id']}/{row['eval_id']}/{row['number']}",
        at_s=at_s,
        devices=1,
        work_s=max(WORK_S_MIN, took_s),
        workload_class=EVAL,
        team=row["team"],
        owner=row["owner"],
        task=f"eval {row['suite']}",
        near=(row["run_id"],),
    )
