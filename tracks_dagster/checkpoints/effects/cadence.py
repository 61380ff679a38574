"""Measure what a run's saves cost and how often its pool interrupts, and advise how often to save.

The cost of a save and of a step comes from the run's track and its journals. How often the pool (a
launcher and a device class) interrupts comes from the ledger, over the attempts of all runs. Nothing is
written: whether to follow the advice is a person's decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from statistics import median

from tracks_dagster.checkpoints.cadence import (
    CadenceAdvice,
    Exposure,
    PoolRecord,
    SaveCost,
    StepTime,
    advise,
    pool_record,
)
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.stores.journals import newest_steps
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.run_state import RunState

STOP_REQUESTED = "stop_requested"  # the rule of the classifier that found a recorded request
PLANNED = (
    TerminationReason.NODE_DRAINED,
    TerminationReason.PREEMPTED,
)  # by a request, and only then
ATTEMPTS_MAX = 10_000  # of the pool, the newest; what it did years ago says little about now
SAVES_MAX = 1000  # of the run, the newest
JOURNALS_MAX = 5  # newest attempts whose journals are looked into for a step

# Nothing comes after these, so they wait until everything is durable: they cost more than others.
_LAST_SAVES = frozenset({"sigterm", "final"})

# How long an open attempt has been exposed is known up to its newest commit: the gang may be long
# gone by the time that somebody closes it.
_ATTEMPTS = """
select a.run_id, a.attempt_id, r.device_class, a.remediation_json, a.placed_at, a.ended_at,
       a.termination_reason, a.rule,
       case when a.ended_at is null then (
           select max(c.committed_at) from checkpoints c
           where c.run_id = a.run_id and c.attempt_id = a.attempt_id
       ) end as committed_at
from training_attempts a join training_runs r on r.run_id = a.run_id
where r.launcher = :launcher
order by a.opened_at desc, a.run_id, a.attempt_id desc
limit :attempts_max
"""


def advise_cadence(tracks: Tracks, ledger: Ledger, run_id: str) -> CadenceAdvice:
    """Return how often `run_id` should save; raises UnknownRun, LedgerError, StoreUnavailable."""
    state = tracks.run(run_id)
    newest = state.last_attempt
    compute = newest.opened.compute if newest else state.declared.compute
    return advise(
        run_id,
        saves=_save_cost(state),
        steps=_step_time(tracks.store, state),
        pool=_read_pool(ledger, compute.launcher, compute.device_class),
        now=state.declared.cadence,
    )


def _save_cost(state: RunState) -> SaveCost | None:
    """Return the median cost of the periodic saves; None when there is none."""
    periodic = [c.body.blocking_s for c in state.checkpoints if c.body.trigger not in _LAST_SAVES]
    newest = periodic[-SAVES_MAX:]
    return SaveCost(blocking_s=median(newest), save_count=len(newest)) if newest else None


def _step_time(store: ObjectStore, state: RunState) -> StepTime | None:
    """Return the median duration of the newest steps, from the newest attempt that ran any."""
    placed = [attempt for attempt in state.attempts if attempt.placed is not None]
    for attempt in reversed(placed[-JOURNALS_MAX:]):
        assert attempt.placed is not None
        lines = newest_steps(store, state.ref(attempt), attempt.placed.launch_id)
        durations = [line.step_s + line.data_s for line in lines]
        if durations and median(durations) > 0.0:
            return StepTime(
                step_s=median(durations), step_count=len(durations), attempt_id=attempt.attempt_id
            )
    return None


def _read_pool(ledger: Ledger, launcher: str, device_class: str) -> PoolRecord:
    """Return what the attempts of all runs went through in one pool."""
    rows = ledger.query(_ATTEMPTS, {"launcher": launcher, "attempts_max": ATTEMPTS_MAX})
    used = _device_classes(rows)
    exposures = (
        _exposure(row)
        for row in rows
        if row["placed_at"] is not None and used[row["run_id"], row["attempt_id"]] == device_class
    )
    return pool_record(launcher, device_class, exposures)


def _exposure(row: dict[str, Json]) -> Exposure:
    reason = row["termination_reason"]
    until: datetime = row["ended_at"] or row["committed_at"] or row["placed_at"]
    return Exposure(
        run_id=row["run_id"],
        # The end is read from the gang's clock, the placement from the writer's.
        exposed_s=max(0.0, (until - row["placed_at"]).total_seconds()),
        reason=None if reason is None else TerminationReason(reason),
        is_planned=reason in PLANNED and row["rule"] == STOP_REQUESTED,
    )


def _device_classes(rows: Iterable[dict[str, Json]]) -> dict[tuple[str, int], str]:
    """Return what each attempt asked for: what its run declared, as remedied up to it."""
    asked: dict[tuple[str, int], str] = {}
    now: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: (row["run_id"], row["attempt_id"])):
        run_id = row["run_id"]
        now.setdefault(run_id, row["device_class"])
        for device_class in _changed_to(row["remediation_json"]):
            now[run_id] = device_class
        asked[run_id, row["attempt_id"]] = now[run_id]
    return asked


def _changed_to(remediation_json: str) -> Iterator[str]:
    for change in parse_json(remediation_json):
        if change["key"] == "compute.device_class":
            yield change["after"]
