"""Read, of any size, the checkpoints that retries wait for: what the collector does first of all.

Which those are, `decide` says. Nothing is retried here: the sensor that owns the reason finds the bytes
verified or quarantined, and decides anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.checkpoints.effects.proving import refusal_of, unreadable, without_proof
from tracks_dagster.checkpoints.effects.verification import Verified, verify
from tracks_dagster.checkpoints.ports import CheckpointReader
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.decide import decide
from tracks_dagster.retry.decision import Refuse, Wait
from tracks_dagster.retry.effects.due import runs_between_attempts
from tracks_dagster.retry.policy import NEED_A_RULE, RetryPolicy
from tracks_dagster.track.errors import CheckpointMismatch, TracksError
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import run_track


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisive:
    """What was read because a retry waited for it, and what could not be, in words."""

    read: tuple[Verified, ...] = ()
    problems: tuple[str, ...] = ()


def read_what_decides(
    tracks: Tracks,
    ledger: Ledger,
    reader: CheckpointReader,
    policy: RetryPolicy,
    *,
    by: str,
    until: datetime,
) -> Decisive:
    """Read every checkpoint that a decision waits for, the run that ended first first.

    No further one is begun from `until` on; one that is begun is read to its end. One that cannot be
    read keeps no other waiting; one that this version can never read has its retry refused. Raises
    LedgerError.
    """
    holds = Holds(tracks)
    read: list[Verified] = []
    problems: list[str] = []
    for run_id in runs_between_attempts(ledger, NEED_A_RULE):
        if tracks.now() >= until:
            break
        try:
            state = tracks.run(run_id)
            lost = holds.on_source(state)
            wait = decide(state, policy, tracks.now(), () if lost is None else (lost,))
            if isinstance(wait, Wait) and wait.verify is not None:
                read += _read(tracks, reader, state, wait, wait.verify, by=by, policy=policy)
        except TracksError as error:
            problems.append(f"{run_id}: {error}")
    return Decisive(read=tuple(read), problems=tuple(problems))


def _read(
    tracks: Tracks,
    reader: CheckpointReader,
    state: RunState,
    wait: Wait,
    ref: CheckpointRef,
    *,
    by: str,
    policy: RetryPolicy,
) -> list[Verified]:
    """Read one; where this version never can, refuse the retry, unless somebody decided meanwhile."""
    try:
        return [verify(tracks, reader, ref, by=by)]
    except CheckpointMismatch as error:
        refuse = without_proof(state, wait, unreadable(error), tracks.now())
        if isinstance(refuse, Refuse):
            tracks.append_to(state, refusal_of(tracks, state, refuse, by=by, policy=policy))
            tracks.project(run_track(state.run_id))
        return []
