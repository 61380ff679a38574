"""A gang that hangs: its stacks are kept as evidence before anything ends it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tracks_dagster.attempts.ports import GangLauncher, GangPhase, GangReport
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons import hangs
from tracks_dagster.reasons.beats import Beat
from tracks_dagster.reasons.evidence import Condition
from tracks_dagster.reasons.hangs import Hang, StackDump
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import format_time, sha256_hex
from tracks_dagster.track.states.run_state import AttemptState

# --- silence --------------------------------------------------------------------------------------
#
# Since when nothing was heard of an open attempt: then nobody knows from the record that it lives.
#
# For people only: what is done about a gang is decided by who looks at its processes.

SILENT_S_MIN = 600  # from which on one should look whether the attempt still lives


def heard_at(attempt: AttemptState, last_line_at: datetime | None) -> datetime | None:
    """Return when an attempt was heard of last; None before its ranks have come together.

    last_line_at: of its journal's newest line, None where it has none.
    """
    return last_line_at or attempt.restored_at or attempt.placed_at


def silence(run_id: str, heard: datetime | None, now: datetime) -> str | None:
    """Say that nothing was heard of the run's attempt for long, and what tells more; None if it was."""
    silent_s = (now - heard).total_seconds() if heard is not None else 0.0
    if heard is None or silent_s < SILENT_S_MIN:
        return None
    return (
        f"But nothing was heard of it for {silent_s / 60:.0f} min, since "
        f"{format_time(heard)[:19]}Z: `tracks triage {run_id}` tells whether it lives."
    )


def judged_beats(report: GangReport) -> Sequence[Beat]:
    """Return the beats to look for a hang in: none once a rank has ended, the others follow it."""
    if report.phase is not GangPhase.ALIVE or any(rank.has_ended for rank in report.ranks):
        return ()
    return report.beats


def keep_hang(tracks: Tracks, gangs: GangLauncher, ref: AttemptRef, hang: Hang) -> Condition:
    """Take a stack dump of every rank, store them, and return the finding as a condition.

    The dumps are objects beside the evidence, named by their sha256. A launcher that cannot dump
    keeps nobody from ending the gang.
    """
    try:
        dumps = gangs.dump_stacks(ref.run_id, ref.attempt_id)
    except GangError as error:
        dumps = tuple(StackDump(rank=b.rank, text="", problem=str(error)) for b in hang.beats)
    kept = [
        f"stacks of rank {dump.rank}: {_keep(tracks, ref, tracks.clean(dump.text))}"
        for dump in dumps
        if dump.text
    ]
    behind = hangs.laggards(hang, dumps)
    return Condition(
        type=hangs.CONDITION,
        reason=hangs.reason_of(behind),
        message="\n".join([hangs.describe(hang, dumps), *kept]),
        at=format_time(tracks.now()),
        source="supervisor",
        rank=behind[0].rank if len(behind) == 1 else None,
    )


def _keep(tracks: Tracks, ref: AttemptRef, text: str) -> str:
    data = text.encode()
    key = f"runs/{ref.run_id}/attempts/{ref.attempt_id}/evidence/{sha256_hex(data)}.txt"
    tracks.store.put(key, data)
    return key
