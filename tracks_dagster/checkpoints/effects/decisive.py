"""Read, of any size, the checkpoints that retries wait for: what the collector does first of all.

Which those are, `decide` says. Nothing is retried here: the sensor that owns the reason finds the bytes
verified or quarantined, and decides anew.
"""

from __future__ import annotations

from datetime import datetime

from tracks_dagster.checkpoints.effects.proving import refusal_of, unreadable, without_proof
from tracks_dagster.checkpoints.effects.verification import Verified, verify
from tracks_dagster.checkpoints.ports import CheckpointReader
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.ledger.deciding import Wait
from tracks_dagster.ledger.effects.ticks import Tick, slice_until, take_turns
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.decide import decide
from tracks_dagster.retry.decision import Refuse
from tracks_dagster.retry.effects.due import runs_between_attempts
from tracks_dagster.retry.policy import NEED_A_RULE, RetryPolicy
from tracks_dagster.track.errors import CheckpointMismatch
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import run_track


def read_what_decides(
    tracks: Tracks,
    ledger: Ledger,
    reader: CheckpointReader,
    policy: RetryPolicy,
    *,
    by: str,
    until: datetime,
) -> Tick[Verified]:
    """Read every checkpoint that a decision waits for, the run that ended first first.

    No further one is begun from `until` on; one that is begun is read to its end. One that cannot be
    read keeps no other waiting; one that this version can never read has its retry refused. Raises
    LedgerError.
    """
    holds = Holds(tracks)

    def look(run_id: str) -> Tick[Verified]:
        state = tracks.run(run_id)
        lost = holds.on_source(state)
        wait = decide(state, policy, tracks.now(), () if lost is None else (lost,))
        if not isinstance(wait, Wait) or wait.verify is None:
            return Tick()
        return Tick(done=_read(tracks, reader, state, wait, wait.verify, by=by, policy=policy))

    return take_turns(runs_between_attempts(ledger, NEED_A_RULE), look, slice_until(tracks, until))


def _read(
    tracks: Tracks,
    reader: CheckpointReader,
    state: RunState,
    wait: Wait,
    ref: CheckpointRef,
    *,
    by: str,
    policy: RetryPolicy,
) -> tuple[Verified, ...]:
    """Read one; where this version never can, refuse the retry, unless somebody decided meanwhile."""
    try:
        return (verify(tracks, reader, ref, by=by),)
    except CheckpointMismatch as error:
        refuse = without_proof(state, wait, unreadable(error), tracks.now())
        if isinstance(refuse, Refuse):
            tracks.append_to(state, refusal_of(tracks, state, refuse, by=by, policy=policy))
            tracks.project(run_track(state.run_id))
        return ()
