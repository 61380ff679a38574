"""Which step a run has finished, and from which a restart goes on."""

from __future__ import annotations

from tracks_dagster.attempts.ports import GangReport
from tracks_dagster.reasons.beats import Phase
from tracks_dagster.recovery.effects.triage.reading import RunRead

# Where each of these phases stands, the step itself is done; in the others it is under way.
_AFTER_THE_STEP = frozenset({Phase.SAVING, Phase.EVALUATING, Phase.ENDING})


def last_step(read: RunRead, report: GangReport | None, *, lives: bool) -> int:
    """Return the last step that was finished, by journal, beat, commit or the record of the end.

    lives: the newest attempt does, and what one before it finished beyond its checkpoint is lost.
    """
    attempt = read.tail.attempt if read.tail is not None else None
    known = [committed_step(read), read.row["final_step"] or 0]
    if not lives:
        known += [ended["last_step"] or 0 for ended in read.attempts[-1:]]
    if not lives or (attempt is not None and read.paced == attempt.attempt_id):
        known += [step.step for step in read.journal.steps[-1:]]
    if attempt is not None and attempt.ended is not None:
        known.append(attempt.ended.last_step or 0)
    for beat in report.beats if report is not None else ():
        if beat.rank == 0:
            known.append(beat.step if beat.phase in _AFTER_THE_STEP else beat.step - 1)
    return max(known)


def committed_step(read: RunRead) -> int:
    """Return the step of the checkpoint that a restart goes on from; 0 for the beginning."""
    if read.commit is not None:
        return read.commit.step
    return int(read.row["branched_from_step"] or 0)
