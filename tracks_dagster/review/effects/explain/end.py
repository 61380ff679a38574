"""Explain the end of an attempt: the verdict, the evidence that it rests on, what speaks against it.

Stored evidence is believed only while it has the hash that the verdict's record names.
"""

from __future__ import annotations

from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.evidence import Evidence
from tracks_dagster.reasons.logs import newest_own_frame
from tracks_dagster.reasons.user_rules import UserRules
from tracks_dagster.review.effects.explain.explanation import Ended
from tracks_dagster.review.effects.explain.ranks import rank_ends
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import format_time
from tracks_dagster.track.states.run_state import AttemptState

TRACEBACK_LINES_MAX = 8  # the last lines name the error and the line that raised it


def explain_end(
    attempt: AttemptState,
    evidence: Evidence | None,
    rules: UserRules,
    late: tuple[str, ...] = (),
) -> Ended | None:
    """Return why the attempt ended; None while it is open.

    rules: a user's own, as they read now; what speaks against the reason is told while they, and the
    words that ship, still read it from the evidence. late: what ranks said after the end.
    """
    if attempt.ended is None or attempt.ended_at is None:
        return None
    newest = attempt.reclassified or attempt.ended
    against: tuple[str, ...] = ()
    if evidence is not None:
        verdict = classify(evidence, rules)
        against = verdict.against if verdict.reason == newest.reason else ()
    return Ended(
        reason=newest.reason,
        sentence=TerminationReason(newest.reason).sentence,
        confidence=newest.confidence,
        rule=newest.rule,
        lines=newest.lines,
        against=against,
        root_message=attempt.ended.root_message,
        traceback_tail=_traceback(evidence, newest.reason),
        evidence_key=attempt.ended.evidence_key,
        ended_at=format_time(attempt.ended_at),
        closed_by=attempt.ended.closed_by,
        reclassified_why=attempt.reclassified.why if attempt.reclassified else None,
        ranks=tuple(rank_ends(evidence, TerminationReason(newest.reason))),
        late=late,
    )


def _traceback(evidence: Evidence | None, reason: str) -> tuple[str, ...]:
    """Return the last lines of a rank's traceback: of one that names `reason`, else of any.

    The newest frame of the user's own code comes first where these lines do not hold it.
    """
    words = [r.last_word for r in evidence.ranks if r.last_word] if evidence else []
    told = [word for word in words if word.traceback_tail]
    if not told:
        return ()
    root = next((word for word in told if word.reason == reason), told[0])
    lines = root.traceback_tail.strip().splitlines()
    own = newest_own_frame(lines)
    begin = max(0, len(lines) - TRACEBACK_LINES_MAX)
    if own is None or own.start >= begin:
        return tuple(lines[begin:])
    begin = max(begin, own.stop)
    return (*lines[own.start : own.stop], *(("  …",) if begin > own.stop else ()), *lines[begin:])
