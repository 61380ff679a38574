"""How an attempt really stands after something happened to its machine: one verdict. Pure.

What was recorded (track), what is left (the gang's files, the journal) and what this machine says now
(boot, pids, start times) are held against each other. What cannot be seen from here is never called
dead.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from tracks_dagster.attempts.machine import MachineNow
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.reasons.hangs import Phase
from tracks_dagster.recovery.signs import (
    RANKS_SHOWN_MAX,
    Seen,
    Sign,
    booted_anew,
    describe_ends,
    gang_signs,
    heartbeat_signs,
    rank_signs,
    supervision,
)
from tracks_dagster.track.names import EXIT_DRAINED
from tracks_dagster.track.placement import nodes_of

AS_MEANT = frozenset({0, EXIT_DRAINED})  # exit codes of a rank that ended by itself


class Verdict(Enum):
    """How an attempt, or a run without an open one, stands."""

    ALIVE = "its gang lives and is supervised"
    ORPHANED = "its gang lives and nobody supervises it"
    DEAD = "nothing of its gang lives, and nothing says that it ended as meant"
    FINISHED_UNRECORDED = "its gang ended as meant, and nobody recorded it"
    NOT_SEEN = "it was placed where nobody can look from here"
    QUEUED = "it was opened, and no gang was ever started for it"
    NOT_STARTED = "the run was declared, and no attempt was ever opened"
    ENDED = "its newest attempt has ended, and what follows is still to be decided"
    REFUSED = "no further attempt is opened by itself"
    DONE = "the run is finished"

    @property
    def word(self) -> str:
        """The verdict's name for people and programs."""
        return self.name.lower()


BAD_NEWS = frozenset(
    {Verdict.ORPHANED, Verdict.DEAD, Verdict.FINISHED_UNRECORDED, Verdict.NOT_SEEN}
)
CLOSABLE = frozenset({Verdict.DEAD, Verdict.FINISHED_UNRECORDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A verdict and what it rests on. is_supervised: None where that cannot be told."""

    verdict: Verdict
    why: str
    signs: tuple[Sign, ...] = ()
    is_supervised: bool | None = None


def judge(seen: Seen, machine: MachineNow, daemon_at: datetime | None, now: datetime) -> Judged:
    """Return the verdict on an open attempt. daemon_at: when the daemon ticked last, if it ever did."""
    supervised, watched = supervision(seen, machine, daemon_at, now)
    lives, signs = rank_signs(seen, machine)
    signs = (*gang_signs(seen, machine), *signs, *heartbeat_signs(seen, now), watched)
    verdict, why = _verdict(seen, machine, lives=lives, supervised=supervised)
    if verdict in CLOSABLE and supervised:
        why = f"{why} Its supervisor lives, and is about to record it."
    return Judged(verdict=verdict, why=why, signs=signs, is_supervised=supervised)


def _verdict(
    seen: Seen, machine: MachineNow, *, lives: bool, supervised: bool | None
) -> tuple[Verdict, str]:
    """Return the verdict and the sentence that says why."""
    report = seen.report
    if lives or (report is not None and report.phase is GangPhase.ALIVE):
        if supervised:
            return Verdict.ALIVE, "Its gang lives and is supervised: nothing to do."
        nobody = (
            "nobody supervises it" if supervised is False else "no daemon ticks that would watch"
        )
        return Verdict.ORPHANED, f"Its gang lives and {nobody}: `tracks up` adopts it."
    if report is None:
        return Verdict.NOT_SEEN, f"Not seen from here: {seen.problem}"
    if report.phase is GangPhase.GONE:
        return _gone(seen, machine, report)
    return _never_started_here(seen, machine, report)


def _gone(seen: Seen, machine: MachineNow, report: GangReport) -> tuple[Verdict, str]:
    """Tell an end as meant, which only the record lacks, from one in mid-work."""
    if report.ranks and all(end.exit_code in AS_MEANT for end in report.ranks):
        return Verdict.FINISHED_UNRECORDED, "Every rank wrote down an end as meant."
    unknown = not any(end.has_ended for end in report.ranks)
    if unknown and seen.saved_last:
        return Verdict.FINISHED_UNRECORDED, "Its final checkpoint is committed, and it is gone."
    if unknown and report.beats and all(beat.phase is Phase.ENDING for beat in report.beats):
        return Verdict.FINISHED_UNRECORDED, "Every rank had done its last step, and is gone."
    since = "; the machine was booted anew" if booted_anew(seen, machine) else ""
    return Verdict.DEAD, f"Nothing of its gang lives{since}: {describe_ends(report.ranks)}."


def _never_started_here(seen: Seen, machine: MachineNow, report: GangReport) -> tuple[Verdict, str]:
    placed = seen.attempt.placed
    if placed is None:
        host = seen.attempt.claims[-1].body.host if seen.attempt.claims else machine.node
        if host != machine.node and not report.sees_all_nodes:
            return (
                Verdict.NOT_SEEN,
                f"Not seen from here: {host} claimed it, and may have started it.",
            )
        return Verdict.QUEUED, "Opened; no gang of it was ever started."
    elsewhere = [node for node in nodes_of(placed) if node != report.where]
    if elsewhere and not report.sees_all_nodes:
        return Verdict.NOT_SEEN, (
            f"Not seen from here: it was placed on {', '.join(elsewhere[:RANKS_SHOWN_MAX])}, and this "
            f"is {report.where}. Ask there."
        )
    if report.sees_all_nodes:
        return Verdict.DEAD, f"It was placed, and {report.where} has no Job and no pod of it."
    since = "; the machine was booted anew" if booted_anew(seen, machine) else ""
    return (
        Verdict.DEAD,
        f"It was placed here{since}: nothing of it is left, not even its gang's files.",
    )
