"""How an attempt ended and what followed: the verdict, its evidence, each rank's end, the decision.

Stored evidence is believed only while it has the hash that the verdict's record names. A rank's log
often ends with what another rank's failure did to it, so the rank that failed first is named first.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator

from tracks_dagster.holds.hold import CleanStart, HoldAct
from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.evidence import Evidence, LastWord, RankEnd
from tracks_dagster.reasons.initiator import failed_first
from tracks_dagster.reasons.logs import newest_own_frame
from tracks_dagster.reasons.user_rules import UserRules
from tracks_dagster.review.effects.receipts import RunReceipts
from tracks_dagster.review.explain.explanation import (
    FAILED_FIRST,
    NOT_KNOWN,
    Break,
    CountedRecord,
    Ended,
    Next,
)
from tracks_dagster.review.narrate import sentence
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.json_text import SMALL_BYTES_MAX, parse_json
from tracks_dagster.track.names import AttemptRef, attempt_key
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.reasons import ReasonFamily, TerminationReason
from tracks_dagster.track.records import Record, format_time
from tracks_dagster.track.states.end_words import sentence_of
from tracks_dagster.track.states.lifecycle import FOR_A_PERSON, RunLifecycle, asked_end
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.track.text.redact import redact

TRACEBACK_LINES_MAX = 8  # the last lines name the error and the line that raised it
RANKS_MAX = 8  # the earliest to end; the evidence has all of them
LATE_MAX = 4
KILLED = (signal.SIGKILL, signal.SIGTERM)
LINE_CHARACTERS_MAX = 240
FROM_OUTSIDE = (ReasonFamily.AS_MEANT, ReasonFamily.CAPACITY)  # no rank began it


def explain_end(
    attempt: AttemptState,
    evidence: Evidence | None,
    rules: UserRules,
    late: tuple[str, ...] = (),
) -> Ended | None:
    """Return why the attempt ended; None while it is open.

    rules: a user's own, as they read now. late: messages of ranks after the end.
    """
    if attempt.ended is None or attempt.ended_at is None:
        return None
    newest = attempt.reclassified or attempt.ended
    return Ended(
        reason=newest.reason,
        sentence=sentence_of(newest, attempt.ended.root_message),
        confidence=newest.confidence,
        rule=newest.rule,
        lines=newest.lines,
        against=_against(evidence, newest.reason, rules),
        root_message=attempt.ended.root_message,
        traceback_tail=_traceback(evidence, newest.reason),
        evidence_key=attempt.ended.evidence_key,
        ended_at=format_time(attempt.ended_at),
        closed_by=attempt.ended.closed_by,
        reclassified_why=attempt.reclassified.why if attempt.reclassified else None,
        ranks=tuple(rank_ends(evidence, TerminationReason(newest.reason))),
        late=late,
    )


def _against(evidence: Evidence | None, reason: str, rules: UserRules) -> tuple[str, ...]:
    """Return what speaks against `reason`: where the evidence is read otherwise today, that reading.

    It is where a person knew better, or a rule has changed since; `unknown` speaks for nothing.
    """
    if evidence is None:
        return ()
    verdict = classify(evidence, rules)
    if verdict.reason == reason:
        return verdict.against
    if verdict.reason == TerminationReason.UNKNOWN:
        return ()
    seen = " | ".join(verdict.lines[:1])
    return (f"{verdict.rule} speaks for {verdict.reason} as it is read today: {seen}",)


def raised_at(evidence: Evidence | None, reason: str) -> tuple[str, ...]:
    """Return the newest frame of the user's own code in the traceback of an end; none: ()."""
    lines = _traceback(evidence, reason)
    own = newest_own_frame(lines)
    return () if own is None else tuple(line.strip() for line in lines[own.start : own.stop])


def _traceback(evidence: Evidence | None, reason: str) -> tuple[str, ...]:
    """Return the last lines of a rank's traceback: of one that names `reason`, else of any.

    The newest frame of the user's own code comes first where these lines do not hold it.
    """
    words = [r.last_word for r in evidence.ranks if r.last_word] if evidence else []
    with_tail = [word for word in words if word.traceback_tail]
    if not with_tail:
        return ()
    root = next((word for word in with_tail if word.reason == reason), with_tail[0])
    lines = root.traceback_tail.strip().splitlines()
    own = newest_own_frame(lines)
    begin = max(0, len(lines) - TRACEBACK_LINES_MAX)
    if own is None or own.start >= begin:
        return tuple(lines[begin:])
    begin = max(begin, own.stop)
    return (*lines[own.start : own.stop], *(("  …",) if begin > own.stop else ()), *lines[begin:])


def rank_ends(evidence: Evidence | None, reason: TerminationReason) -> Iterator[str]:
    """Yield a line for each of the ranks that ended first, before all the one that failed first."""
    ends = evidence.ranks if evidence is not None else ()
    first = (
        None if reason.family in FROM_OUTSIDE else _failed_by_itself(failed_first(ends, len(ends)))
    )
    ordered = sorted(ends, key=lambda end: (end != first, end.ended_at or "~", end.rank))
    for end in ordered[:RANKS_MAX]:
        began = f", {FAILED_FIRST}," if end == first and len(ordered) > 1 else ""
        yield f"rank {end.rank}{began} {_how(end)}{_last_line(end)}"
    if len(ordered) > RANKS_MAX:
        yield f"{len(ordered) - RANKS_MAX} more ranks ended later"


def _failed_by_itself(end: RankEnd | None) -> RankEnd | None:
    """Return the rank if it failed by itself: one that was killed is not a sign of who failed first."""
    if end is None or end.exit_code == 0 or end.signal in KILLED:
        return None
    return end if end.has_ended else None


def _how(end: RankEnd) -> str:
    at = f" at {end.ended_at[:19]}Z" if end.ended_at else ""
    killed = ", OOM-killed" if end.oom_killed else ""
    if end.signal is not None:
        return f"was ended by {_signal(end.signal)}{at}{killed}"
    if end.exit_code is not None:
        return f"ended with exit code {end.exit_code}{at}{killed}"
    return f"left no exit code: nobody saw it end{killed}"


def _signal(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _last_line(end: RankEnd) -> str:
    """Return the last line of its log, or its last word where there is no log."""
    lines = [line for line in end.log_tail.splitlines() if line.strip()]
    if lines:
        return f"; its log ends: {lines[-1].strip()[:LINE_CHARACTERS_MAX]}"
    word = end.last_word
    return f"; its last word: {_word(word)}" if word is not None else "; no log of it is kept"


def _word(word: LastWord) -> str:
    message = f", {redact(word.message)}" if word.message else ""
    return f"{word.reason}{message}"[:LINE_CHARACTERS_MAX]


def late_messages(store: ObjectStore, run_id: str, attempt: AttemptState) -> Iterator[str]:
    """Yield the messages of ranks (zombies) after the attempt's end had been recorded."""
    if attempt.placed is None or attempt.ended_at is None:
        return
    ref = AttemptRef(run_id, attempt.attempt_id)
    prefix = f"{ref.folder}{attempt.placed.launch_id}/exit/"
    ended_at = f"{attempt.ended_at:%Y-%m-%dT%H:%M:%S.%fZ}"
    words = (_read_word(store, key) for key in store.list(prefix))
    late = sorted((w for w in words if w and w.at > ended_at), key=lambda word: word.at)
    for word in late[:LATE_MAX]:
        step = f" at step {word.step}" if word.step is not None else ""
        yield (
            f"after this end was recorded, rank {word.rank} of the same launch still lived: at "
            f"{word.at[:19]}Z{step} it gave up as {_word(word)}. What it wrote after the end does "
            "not count."
        )


def _read_word(store: ObjectStore, key: str) -> LastWord | None:
    try:
        return from_json(LastWord, parse_json(store.get(key, SMALL_BYTES_MAX) or b"null"))
    except (ValueError, TrackBroken):
        return None


def explain_next(
    run: RunReceipts, attempt: AttemptState, records: list[Record], broken: Break | None
) -> Next:
    """Return what was decided once the attempt had ended, with the records that were counted."""
    state = run.state
    successor = state.attempt(attempt.attempt_id + 1)
    if successor is not None:
        return Next(
            what="retried",
            decided_by=successor.opened.decided_by,
            decision=successor.opened.decision,
            counted=_counted(records, successor.opened.counted_seqs),
        )
    if state.finished is not None:
        return Next(
            what="finished",
            decided_by=state.finished.decided_by,
            decision=f"{state.finished.why} (stop cause: {state.finished.stop_cause})",
            counted=(),
        )
    if state.refusal is not None:
        return Next(
            what="refused",
            decided_by=state.refusal.body.decided_by,
            decision=state.refusal.body.decision,
            counted=_counted(records, state.refusal.body.counted_seqs),
        )
    if broken is not None:
        decision = f"what came after record {broken.seq - 1} cannot be read"
        return Next(what=NOT_KNOWN, decided_by=None, decision=decision, counted=())
    return Next(what="undecided", decided_by=None, decision=run.status.why, counted=())


def what_to_do(
    run: RunReceipts,
    attempt: AttemptState,
    broken: Break | None,
    start: CleanStart,
    waits: str | None,
) -> str:
    """Say what a person should do now; first of all about a quarantine that would refuse a retry.

    waits: what the run waits for that is late or will not come by itself.
    """
    to_do, state = _to_do(run, attempt, broken, waits), run.state
    asks_nothing = attempt is not state.last_attempt and state.refusal is None
    is_quarantined = start.hold is not None and start.hold.act is HoldAct.QUARANTINE
    if (
        not (is_quarantined and start.words)
        or broken is not None
        or asks_nothing
        or "tracks release" in to_do
    ):
        return to_do
    return f"First the quarantine, which would refuse a retry: {start.words} Then: {to_do}"


def _to_do(run: RunReceipts, attempt: AttemptState, broken: Break | None, waits: str | None) -> str:
    state = run.state
    if broken is not None:
        return f"First{'' if broken.is_newer else ' mend the record'}: {broken.to_do}"
    if state.attempt(attempt.attempt_id + 1) is not None:
        return _went_on(run, attempt.attempt_id + 1)
    if state.refusal is not None:
        return state.refusal.body.what_to_do
    if state.finished is not None:
        return "Nothing: the run is finished."
    if attempt.is_open and (asked := asked_end(state)):
        return f"Nothing yet: {asked}; `tracks status {state.run_id}` shows what that waits for."
    if attempt.is_open:
        return f"Nothing yet: it is open; `tracks status {state.run_id}` shows how far it is."
    return _undecided(run, waits)


def _undecided(run: RunReceipts, waits: str | None) -> str:
    if run.status.state == RunLifecycle.WAITING:  # for a person
        return run.status.why
    if run.status.state == RunLifecycle.SUCCEEDED:  # a script that nobody finishes
        return f"Nothing: {run.status.why}"
    if waits is not None and waits.startswith(FOR_A_PERSON):
        return f"{waits.removeprefix(FOR_A_PERSON)}."
    return f"Nothing yet; `tracks status {run.state.run_id}` shows what it waits for."


def _went_on(run: RunReceipts, following_id: int) -> str:
    """Say that the run went on, and what is to be done where it did not get far."""
    state, following = run.state, attempt_key(run.state.run_id, following_id)
    went_on = f"the run went on; `tracks explain {following}` shows how."
    newest = state.attempts[-1]
    if state.refusal is None or state.finished is not None or newest.is_open:
        return f"Nothing: {went_on}"
    return (
        f"Here nothing: {went_on} But attempt {newest.attempt_id} ended as {newest.reason} and is not "
        f"retried. {state.refusal.body.what_to_do}"
    )


def _counted(records: list[Record], seqs: Iterable[int]) -> tuple[CountedRecord, ...]:
    return tuple(
        CountedRecord(
            seq=seq,
            kind=records[seq].kind.value,
            at=format_time(records[seq].at),
            sentence=sentence(records[seq]),
        )
        for seq in seqs
        if seq < len(records)
    )
