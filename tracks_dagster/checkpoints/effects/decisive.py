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
        try:
            return Tick(done=(verify(tracks, reader, wait.verify, by=by),))
        except CheckpointMismatch as error:
            refuse = without_proof(state, wait, unreadable(error), tracks.now())
        if isinstance(refuse, Refuse):  # unless somebody decided meanwhile
            tracks.append_to(state, refusal_of(tracks, state, refuse, by=by, policy=policy))
            tracks.project(run_track(run_id))
        return Tick()

    return take_turns(runs_between_attempts(ledger, NEED_A_RULE), look, slice_until(tracks, until))
