"""What the sensors do in a tick: look at every open run, close what nobody will, decide what is due.

Every step can be repeated, and done by two sensors at once; one run's trouble does not keep the others
waiting. Which attempts need a Dagster run is planned by `services.launch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tracks_dagster.core import names
from tracks_dagster.core.errors import TrackBroken, TracksError
from tracks_dagster.core.lifecycle import RunLifecycle
from tracks_dagster.core.names import attempt_key
from tracks_dagster.core.policy import RetryPolicy, reasons_of
from tracks_dagster.core.ports import GangLauncher, Ledger, ObjectStore, Orchestrator
from tracks_dagster.core.records import canonical_json, format_time, parse_time
from tracks_dagster.core.redact import Redact
from tracks_dagster.core.run_state import AttemptState
from tracks_dagster.core.track import run_track
from tracks_dagster.services.closing import close_attempt
from tracks_dagster.services.launch import OpenAttempt, is_lost
from tracks_dagster.services.projector import Projector
from tracks_dagster.services.retry import settle
from tracks_dagster.services.runs import open_first_attempt
from tracks_dagster.services.status import HEARTBEAT_KEY
from tracks_dagster.services.tracks import Tracks

SCAN_EVERY = timedelta(days=1)  # a full scan finds tracks that no process of ours has projected


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Every open attempt as it stands, and the runs that could not be looked at, in words."""

    attempts: tuple[OpenAttempt, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What a tick did, and what it could not do, in words. closed: run id and attempt."""

    closed: tuple[tuple[str, AttemptState], ...] = ()
    decided: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def open_run_ids(ledger: Ledger) -> list[str]:
    """Return the runs that are neither finished nor refused, oldest first."""
    rows = ledger.query(
        "select run_id from training_runs where state in (:running, :waiting) "
        "order by declared_at, run_id",
        {"running": RunLifecycle.RUNNING.value, "waiting": RunLifecycle.WAITING.value},
    )
    return [row["run_id"] for row in rows]


def survey(
    tracks: Tracks, ledger: Ledger, gangs: GangLauncher, orchestrator: Orchestrator
) -> Survey:
    """Look at every open attempt: what its track, its gang and Dagster say of it now.

    What ranks appended since reaches the ledger here.
    """
    attempts, problems = [], []
    for run_id in open_run_ids(ledger):
        try:
            tracks.project(run_track(run_id))
            attempt = tracks.run(run_id).open_attempt
            if attempt is None:
                continue
            key = attempt_key(run_id, attempt.attempt_id)
            runs = orchestrator.runs_of_attempt(key)
            gang = gangs.observe(run_id, attempt.attempt_id)
        except TracksError as error:
            problems.append(f"{run_id}: {error}")
            continue
        attempts.append(OpenAttempt(run_id=run_id, attempt=attempt, runs=runs, gang=gang))
    return Survey(attempts=tuple(attempts), problems=tuple(problems))


def close_lost(
    tracks: Tracks,
    ledger: Ledger,
    gangs: GangLauncher,
    orchestrator: Orchestrator,
    *,
    clean: Redact,
) -> Tick:
    """Close every attempt whose gang is gone and that no Dagster run supervises."""
    found = survey(tracks, ledger, gangs, orchestrator)
    closed, problems = [], list(found.problems)
    for each in found.attempts:
        if not is_lost(each):
            continue
        try:
            attempt = close_attempt(
                tracks,
                gangs,
                orchestrator,
                each.run_id,
                each.attempt.attempt_id,
                names.WATCH_ATTEMPTS,
                clean=clean,
            )
        except TracksError as error:
            problems.append(f"{each.key}: {error}")
            continue
        closed.append((each.run_id, attempt))
    return Tick(closed=tuple(closed), problems=tuple(problems))


def settle_open_runs(tracks: Tracks, ledger: Ledger, *, sensor: str, policy: RetryPolicy) -> Tick:
    """Make the decisions that are due on every open run, for the reasons that `sensor` owns.

    The watcher also opens the first attempt of a run whose declaring process did not come to it.
    """
    decided, problems = [], []
    for run_id in open_run_ids(ledger):
        try:
            if sensor == names.WATCH_ATTEMPTS:
                first = open_first_attempt(tracks, run_id, decided_by=sensor)
                decided += [] if first is None else [f"{run_id}: opened: its first attempt"]
            settled = settle(
                tracks, run_id, reasons=reasons_of(sensor), decided_by=sensor, policy=policy
            )
        except TracksError as error:
            problems.append(f"{run_id}: {error}")
            continue
        if settled.record is not None:
            decided.append(f"{run_id}: {settled.what}: {settled.why}")
    return Tick(decided=tuple(decided), problems=tuple(problems))


def write_heartbeat(store: ObjectStore, now: datetime, sensors: Mapping[str, bool]) -> None:
    """Overwrite the daemon's heartbeat: when it ticked, and which sensors are on. For people only."""
    value = {"at": format_time(now), "sensors": dict(sensors)}
    store.put(HEARTBEAT_KEY, canonical_json(value))


def scan_if_due(
    projector: Projector, last_scan_at: str | None, now: datetime
) -> tuple[str | None, tuple[str, ...]]:
    """Scan the whole store once a day; return when it was last scanned, and in words what failed.

    A broken track waits for a person and is met again tomorrow; what could not be reached is tried
    again at the next tick. Neither keeps the runs waiting.
    """
    if not scan_is_due(last_scan_at, now):
        return last_scan_at, ()
    try:
        projector.scan()
    except TrackBroken as error:
        return format_time(now), (str(error),)
    except TracksError as error:
        return last_scan_at, (str(error),)
    return format_time(now), ()


def scan_is_due(last_scan_at: str | None, now: datetime) -> bool:
    """Whether the daily scan of the whole store is due; never scanned means yes."""
    return last_scan_at is None or now - parse_time(last_scan_at) >= SCAN_EVERY
