"""Ask a running gang for a checkpoint, in a person's name, and see it come.

Nothing is recorded: the commit is the record. A rank that was asked saves at the end of the step that
it is in, so nothing is lost when nobody waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tracks_dagster.attempts.ports import GangReport, LauncherOf
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import RankPlace
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.states.lifecycle import run_status
from tracks_dagster.track.states.run_state import (
    AttemptState,
    CheckpointState,
    RunState,
    program_of,
)

POLL_S = 0.5
SETTLED = ("demand", "sigterm", "final")  # triggers of a save that holds every step so far


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequest:
    """A gang that was asked. seq: the last record of the run's track before it was."""

    ref: AttemptRef
    seq: int


def ask_to_save(tracks: Tracks, launcher_of: LauncherOf, run_id: str) -> SaveRequest:
    """Ask the gang of the run's open attempt for a checkpoint.

    Raises UnknownRun, InvalidInput naming why no gang here could save, and GangError.
    """
    state = tracks.run(run_id)
    attempt = state.open_attempt
    if attempt is None:
        raise InvalidInput(f"{run_id} has no attempt that runs: {run_status(state).why}")
    ref = AttemptRef(run_id, attempt.attempt_id)
    if attempt.placed is None or attempt.restored is None:
        raise InvalidInput(
            f"{ref.key} has not begun to train yet, so there is nothing to save; `tracks status "
            f"{run_id}` shows when it has."
        )
    program = program_of(state, attempt)
    if program is not None and program.by_files:
        raise InvalidInput(
            f"{ref.key} was not asked: its trainer publishes folders when it likes (checkpoint: folder "
            "in its tracks.yaml), and knows no other request than SIGTERM: `tracks drain` ends it with "
            "a checkpoint."
        )
    gangs = launcher_of(attempt.opened.compute.launcher)
    place = attempt.placed.ranks[0]  # one rank's wish is enough
    if not gangs.ask_to_save(ref, place):
        here = gangs.observe(ref)
        raise InvalidInput(f"{ref.key} was not asked: {_unreachable(place, here, run_id)}")
    return SaveRequest(ref=ref, seq=state.head.seq)


def wait_for_save(
    tracks: Tracks,
    asked: SaveRequest,
    *,
    wait_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> CheckpointState | None:
    """Return the checkpoint that followed; None without one in `wait_s` seconds or before the attempt
    ends."""
    give_up_at = time.monotonic() + wait_s
    while True:
        state = tracks.run(asked.ref.run_id)
        found = saved_since(state, asked)
        if found is not None or not _is_open(state.attempt(asked.ref.attempt_id)):
            return found
        if time.monotonic() >= give_up_at:
            return None
        sleep(POLL_S)


def saved_since(state: RunState, asked: SaveRequest) -> CheckpointState | None:
    """Return the first commit that surely holds what was done when the gang was asked, or None.

    One save at a time is under way, and the first commit may be of one that was begun before. The
    second is not, whatever its trigger: a save on demand that falls on the interval is called by that.
    """
    new = [
        c
        for c in state.checkpoints
        if c.seq > asked.seq and c.ref.attempt_id == asked.ref.attempt_id
    ]
    return next((c for index, c in enumerate(new) if index > 0 or c.body.trigger in SETTLED), None)


def why_not_saved(state: RunState, asked: SaveRequest) -> str:
    """Describe a save that did not come."""
    key = asked.ref.key
    alerts = [a.body.text for a in state.alerts if a.seq > asked.seq]
    if alerts:
        return f"No checkpoint of {key} came: {alerts[-1]}"
    attempt = state.attempt(asked.ref.attempt_id)
    if attempt is not None and attempt.ended is not None:
        return f"No checkpoint of {key} came: it ended ({attempt.reason})."
    return (
        f"No checkpoint of {key} came yet. It is saved at the end of the running step; `tracks "
        f"checkpoints list {asked.ref.run_id}` shows it then."
    )


def _unreachable(place: RankPlace, here: GangReport, run_id: str) -> str:
    """Describe why rank 0 was not asked. On a cluster there is no other machine to call this on."""
    if not here.sees_all_nodes and place.boot_id not in here.boot_ids.values():
        return (
            f"its rank 0 runs on {place.node}, or ran before this machine was rebooted. Call this "
            "on that machine, or let the script call a.save_soon()."
        )
    process = f"process {place.pid}" + (f" in pod {place.pod} on {place.node}" if place.pod else "")
    return (
        f"its rank 0, {process}, does not live any more or does not listen for SIGUSR1; "
        f"`tracks status {run_id}` shows its state."
    )


def _is_open(attempt: AttemptState | None) -> bool:
    return attempt is not None and attempt.is_open
