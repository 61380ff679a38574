"""From a killed rank to the first new step, on the embedded default: real processes, real records.

A run trains under the real daemon; rank 0 is killed with SIGKILL in the middle of it, and the track and
the journal show when each part of the way back was done:

    detected     the kill → the gang's end, as its own parent saw it
    classified   → `attempt_ended`: the supervisor gathered the evidence and judged it
    decided      → `attempt_opened` of the next attempt: a sensor's tick, and the backoff
    launched     → `attempt_placed`: another tick, a Dagster run, python, torch, the gang together
    restored     → `attempt_restored`
    stepped      → the first line of a step in its journal
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from tracks_dagster.attempts.effects.local.project_code import read_project_code
from tracks_dagster.attempts.effects.preparing import prepare
from tracks_dagster.attempts.effects.runs import declare
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.cli.start.snapshots import datasets_of, ensure_snapshots
from tracks_dagster.holds.effects.stops import request_stop
from tracks_dagster.processes.process import Process
from tracks_dagster.projects.effects.registered import DEFAULT_PROJECT
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.settings import Settings
from tracks_dagster.stores.journals import last_step, read_steps
from tracks_dagster.track import names
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Json, parse_time
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.wiring import App, build, open_dagster_home

T = TypeVar("T")

ROUNDS = 9  # ten ends in one pool are a storm, and the retry of the last one would wait for its end
# Steps of a fifth of a second or so: the run is still training when it is killed.
CONFIG: dict[str, Json] = {"steps": 3000, "global_batch": 48, "context": 64, "d_model": 64}
CHECKPOINT_EVERY_STEPS = 10
KILL_FROM_STEP = 15
WAIT_S_MAX = 300.0
POLL_S = 0.2
PARTS = ("detected", "classified", "decided", "launched", "restored", "stepped")


def figures(rounds: int) -> dict[str, float]:
    """Return the median of each part over `rounds` kills, and of the whole."""
    with tempfile.TemporaryDirectory(prefix="tracks-bench-") as folder:
        settings = Settings.from_environment({"TRACKS_HOME": str(Path(folder).absolute())})
        app, home = build(settings), open_dagster_home(settings)
        code = read_project_code(
            settings.examples / DEFAULT_PROJECT, store_url=app.store.url, clean=app.redact
        )
        ensure_snapshots(app, home, datasets_of(code.project))
        measured = []
        with home.daemon():
            for number in range(1, rounds + 1):
                measured.append(_round(app, code, f"bench-kill-{number}"))
                parts = ", ".join(f"{name} {s:.1f}" for name, s in measured[-1].items())
                print(f"  kill {number} of {rounds}: {parts}", file=sys.stderr)
    found = {"kill_to_first_step_s": [sum(parts.values()) for parts in measured]}
    found |= {f"kill_to_first_step_s @{name}": [each[name] for each in measured] for name in PARTS}
    medians = {name: statistics.median(values) for name, values in found.items()}
    slowest = max(found["kill_to_first_step_s"])
    return {**medians, f"kill_to_first_step_s @slowest of {rounds}": slowest}


def _round(app: App, code: FoundCode, run_id: str) -> dict[str, float]:
    """Run, kill, and return the seconds of each part of the way back."""
    prepared = prepare(
        {
            "run_id": run_id,
            "intent": "See how long it takes from a kill to the next step.",
            "owner": "bench",
            "checkpoint_every_steps": CHECKPOINT_EVERY_STEPS,
        },
        CONFIG,
        code,
        family=code.project.name,
        origin=None,
        policy=DEFAULT_POLICY,
        otherwise={},
    )
    declare(app.tracks, prepared)
    try:
        first = _wait(run_id, "a step to kill it after", lambda: _trained(app, run_id))
        killed_at = _kill(first)
        second = _wait(run_id, "the next attempt's first step", lambda: _back(app, run_id))
        return _parts(app, run_id, killed_at, second)
    finally:  # also of one that SIGTERM ends: the folder of the gang is removed next
        request_stop(app.tracks, run_id, by="bench", why="It was measured.", mode="stop")
        newest = app.tracks.run(run_id).attempts[-1].attempt_id
        app.launcher_of(names.LOCAL).kill(AttemptRef(run_id, newest))
        _wait(run_id, "its end", lambda: _is_over(app, run_id) or None)


def _trained(app: App, run_id: str) -> AttemptState | None:
    """Return the first attempt once it has come far enough to be killed."""
    attempt = app.tracks.run(run_id).attempts[0]
    if attempt.placed is None:
        return None
    newest = last_step(app.store, AttemptRef(run_id, 1), attempt.placed.launch_id)
    return attempt if newest is not None and newest.step >= KILL_FROM_STEP else None


def _kill(attempt: AttemptState) -> datetime:
    """Kill rank 0, if its pid is still the process that was placed; return when."""
    assert attempt.placed is not None
    place = attempt.placed.ranks[0]
    process = Process(pid=place.pid, started=place.pid_started, boot_id=place.boot_id)
    if not process.lives:
        raise RuntimeError(f"rank 0 of attempt 1, pid {place.pid}, is gone before it was killed")
    killed_at = datetime.now(UTC)
    os.kill(place.pid, signal.SIGKILL)
    return killed_at


def _back(app: App, run_id: str) -> AttemptState | None:
    """Return the second attempt once it has finished a step."""
    second = app.tracks.run(run_id).attempt(2)
    if second is None or second.placed is None or second.restored_at is None:
        return None
    steps = last_step(app.store, AttemptRef(run_id, 2), second.placed.launch_id)
    return second if steps is not None else None


def _parts(app: App, run_id: str, killed_at: datetime, second: AttemptState) -> dict[str, float]:
    first = app.tracks.run(run_id).attempts[0]
    assert first.ended is not None
    assert first.ended.finished_at is not None
    assert second.placed is not None
    steps = read_steps(app.store, AttemptRef(run_id, 2), second.placed.launch_id)
    times = [
        killed_at,
        parse_time(first.ended.finished_at),
        first.ended_at,
        second.opened_at,
        second.placed_at,
        second.restored_at,
        parse_time(steps[0].at),
    ]
    known = [each for each in times if each is not None]
    spans = [(after - before).total_seconds() for before, after in pairwise(known)]
    return dict(zip(PARTS, spans, strict=True))


def _is_over(app: App, run_id: str) -> bool:
    return app.tracks.run(run_id).finished is not None


def _wait(run_id: str, what: str, look: Callable[[], T | None]) -> T:
    """Return what `look` finds; raises TimeoutError naming what did not come."""
    give_up_at = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < give_up_at:
        found = look()
        if found is not None:
            return found
        time.sleep(POLL_S)
    raise TimeoutError(f"{run_id}: {what} did not come within {WAIT_S_MAX:g} s")
