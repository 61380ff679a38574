"""What is done before a decision is recorded, where its remedy is work and not a change of config.

Checkpoints that retention let go of are removed before a retry on a full disk; a snapshot whose rows
are bad is quarantined before the refusal. All of it is idempotent: a tick that died in between is
repeated by the next one, which finds the work done.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from tracks_dagster.attempts.effects.world import World
from tracks_dagster.checkpoints.effects.proving import READ_BYTES_MAX
from tracks_dagster.checkpoints.effects.retention import collect
from tracks_dagster.checkpoints.ports import CheckpointReader
from tracks_dagster.holds.effects.quarantines import consumers, quarantine_snapshot, short_id
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.rollback import CheckpointQuarantine
from tracks_dagster.track.bodies import CheckpointDecision, SnapshotRef
from tracks_dagster.track.errors import LedgerError, TracksError, UnknownRun
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.run_state import RunState

QUARANTINES_MAX = 250  # of one call, 8 s of a store that takes 30 ms; the next one goes on
QUARANTINE_CHARACTERS_MAX = 2000  # of why: a record is at most 16 KiB
COLLECT_S_MAX = 10.0  # of a tick: no further checkpoint is looked at then, and the retry is opened
WHY_CHARACTERS_MAX = 300  # of a failure's own words, in a snapshot's quarantine and in a decision


def free_space(tracks: Tracks, reader: CheckpointReader, run_id: str, *, by: str) -> str:
    """Remove what retention let go of, its grace over or not; say in words what that freed.

    As much as a tick has time for: the collector's next pass goes on. Never raises a TracksError: a
    store that is full may refuse the records too, and the retry is worth a try all the same.
    """
    try:
        done = collect(
            tracks,
            reader,
            run_id,
            by=by,
            until=tracks.now() + timedelta(seconds=COLLECT_S_MAX),
            ignores_grace=True,
            read_bytes_max=READ_BYTES_MAX,
        )
    except TracksError as error:
        return f"Collecting checkpoints first failed: {str(error)[:WHY_CHARACTERS_MAX]}"
    steps = ", ".join(str(deletion.ref.step) for deletion in done.deleted)
    named = f" ({'step' if len(done.deleted) == 1 else 'steps'} {steps})" if steps else ""
    return (
        f"Before it {_count(len(done.deleted), 'superseded checkpoint')}{named} and "
        f"{_count(done.leftover_count, 'leftover')} were removed, {done.freed_bytes} bytes in all."
    )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def quarantine_its_snapshot(world: World, state: RunState, *, by: str) -> str:
    """Quarantine the snapshot that the newest attempt trained on; say in words what has used it.

    One that its dataset's track does not know cannot be, which is said. Raises StoreUnavailable and
    Contended.
    """
    failed = state.attempts[-1]
    ref = failed.opened.snapshot
    key = attempt_key(state.run_id, failed.attempt_id)
    root = failed.ended.root_message if failed.ended else ""
    why = f"{key} ended as {failed.reason} on it, and so did a retry: {root}"
    try:
        quarantine_snapshot(world.tracks, ref, by=by, why=why[:WHY_CHARACTERS_MAX])
    except UnknownRun as error:
        return f"Its snapshot could not be quarantined: {error} {_used(world.ledger, ref)}"
    finally:
        world.holds.ask_again()
    return (
        f"Snapshot {short_id(ref)} of {ref.dataset} is quarantined. {_used(world.ledger, ref)} "
        f'`tracks snapshots release {ref.dataset} {short_id(ref)} --why "…"` releases it.'
    )


def quarantine_all(
    tracks: Tracks, state: RunState, quarantines: Sequence[CheckpointQuarantine], *, by: str
) -> bool:
    """Append what was decided on `state`, a record each; whether that was all of it.

    False: another record came in between, or there are more than one call appends. What was appended
    stands, and the caller reads and decides again. Not projected, as of `Tracks.append_to`.
    """
    for quarantine in quarantines[:QUARANTINES_MAX]:
        body = CheckpointDecision(
            manifest_sha256=quarantine.ref.manifest_sha256,
            by=by,
            why=quarantine.why[:QUARANTINE_CHARACTERS_MAX],
            is_passed_over=quarantine.is_passed_over,
        )
        after = tracks.append_to(state, tracks.draft(Kind.CHECKPOINT_QUARANTINED, body))
        if after is None:
            return False
        state = after
    return len(quarantines) <= QUARANTINES_MAX


def _used(ledger: Ledger, ref: SnapshotRef) -> str:
    try:
        return consumers(ledger, ref).sentence
    except LedgerError as error:
        return f"What has used it is not known: {str(error)[:WHY_CHARACTERS_MAX]}"
