"""Finds causes by the words in last words and logs: weight 6.

The tables of `numbers`, `machines`, `processes`, `software` and `capacity` hold the words,
`user_rules` a user's own. Here is how they are looked for: over all ranks, the nearest to the root
first and then the earliest, never the cascade after it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from tracks_dagster.reasons.evidence import Evidence, RankEnd
from tracks_dagster.reasons.initiator import (
    CASCADE,
    by_end,
    exit_code,
    has_last_word,
    initiator,
    last_line,
    lost_its_peer,
    own,
    signal_of,
    texts,
    waited,
)
from tracks_dagster.reasons.logs import (
    EXCEPTION,
    STEPS_WHILE_ENDING,
    has_progress,
    is_led_by_or,
    is_raised_by_code,
    last_failure,
    other_alternative,
    reports_recovery,
    steps_after,
    survived,
    without_guesses,
    works_again,
)
from tracks_dagster.reasons.rules.capacity import CAPACITY
from tracks_dagster.reasons.rules.cause import LEANING, LIKELY, Cause, Finding, Tier
from tracks_dagster.reasons.rules.machines import MACHINES
from tracks_dagster.reasons.rules.numbers import NUMBERS
from tracks_dagster.reasons.rules.processes import CRASHES, MEMORY
from tracks_dagster.reasons.rules.software import SOFTWARE
from tracks_dagster.reasons.user_rules import UserRules, evidence_for
from tracks_dagster.track.reasons import ReasonFamily, TerminationReason

# Every row of words that ships, in order. Where one line meets two rows of a tier, the row above
# counts: the particular is above the general. A row names what a family of software writes when a
# cause is met, never one program's line.
CAUSES: tuple[Cause, ...] = (*CAPACITY, *NUMBERS, *MEMORY, *MACHINES, *SOFTWARE, *CRASHES)
_NEAR = frozenset({Tier.ROOT, Tier.GENERAL})
_ALL = frozenset(Tier)

# Causes that lie outside the program. What software reports of its settings, code or data is not
# meant: there both parts of "missing or invalid" tell the same cause.
_OUTSIDE = frozenset(
    {
        ReasonFamily.AS_MEANT,
        ReasonFamily.CAPACITY,
        ReasonFamily.HARDWARE,
        ReasonFamily.COORDINATION,
        ReasonFamily.MEMORY,
    }
)
# Ends that others make, in words of which few are a row's.
_BY_OTHERS = re.compile(
    r"\b(pre-?empted|evicted|reclaimed|cancell?ed|drained|killed)\b", re.IGNORECASE
)

LINES_REMEMBERED = 4096  # ranks of a gang, and rules, read many lines more than once

_R = TerminationReason

# What a shell says of a process that somebody else ended.
_SHELL_KILLED = re.compile(r"^(.{0,60}\d+ )?(Killed|Terminated)\b.{0,80}$")
# Frames and loggers of programs that only measure a model.
_EVALUATION = re.compile(
    r"\blm_eval\b|\blm-eval|\bmteb\b|\blighteval\b|opencompass|bigcode_eval|\bhelm[./-](run|bench)"
    r"|simple_evals|evalplus|lmms_eval|\bvlmeval|(error|failed|exception) (while|during|in) eval\w*"
    r"|evaluat(ion|or) (of .{0,60})?(failed|crashed|error)",
    re.IGNORECASE,
)
# A line of a program's help: what an option is for, nothing that has happened.
_HELP = re.compile(r"-{1,2}[A-Za-z][\w-]*[ ,]")
# Exceptions that carry what another program or service said, which the code that raised them is not.
_FROM_ELSEWHERE = re.compile(
    r"\b(DEADLINE_EXCEEDED|UNAVAILABLE|ABORTED|CANCELLED|INTERNAL|UNKNOWN|FAILED_PRECONDITION|DATA_LOSS)"
    r": |\bExit Code:? \d|^wandb\.errors\.|error communicating with|see (stack trace|root cause)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseLine:
    """One cause as one rank reports it.

    survived: whether the process went on after it; is_over: whether it logged steps since.
    is_printed: whether it is not an exception; is_aside: whether it is printed, and of a kind that ends
    a process by an exception; is_last: whether nothing was said after it.
    order: nearer to the root sorts first.
    """

    rank: RankEnd
    cause: Cause
    line: str
    survived: bool
    is_over: bool
    is_printed: bool
    is_aside: bool
    is_last: bool
    order: tuple[float, ...]


def known_cause(evidence: Evidence) -> Finding | None:
    """The cause nearest to the root that any rank's words name, the earliest of several."""
    root = _root(evidence, CAUSES, among=False, tiers=_NEAR)
    if root is None or (root.cause.tier is not Tier.ROOT and _evaluates(evidence)):
        return None
    return _finding(root)


def symptom(evidence: Evidence) -> Finding | None:
    """Words that also appear where something else failed first, where nothing nearer to it is known.

    A hang only where the rank that failed first waited itself: else the others waited for it.
    """
    first, root = initiator(evidence.ranks), _symptom(evidence)
    if root is None or (root.cause.reason is _R.HANG and first and not waited(first)):
        return None
    return _finding(root)


def waited_for(evidence: Evidence) -> Finding | None:
    """Ranks that waited for one of which nothing is known."""
    root = _symptom(evidence)
    return None if root is None else _finding(root)


def _symptom(evidence: Evidence) -> CauseLine | None:
    """Return the symptom that counts; beside a cause that is nearer to the root it tells nothing."""
    if _evaluates(evidence) or _root(evidence, CAUSES, among=False, tiers=_NEAR) is not None:
        return None
    return _root(evidence, CAUSES, among=False, tiers=frozenset({Tier.SYMPTOM}))


def survived_cause(evidence: Evidence) -> Finding | None:
    """A cause that the process seems to have survived, where nothing else is known of its end.

    Nothing is read into it when a signal ended the process: then somebody else did.
    """
    first = initiator(evidence.ranks)
    if first is None or signal_of(first) is not None or exit_code(first) == 0:
        return None
    root = _root(evidence, CAUSES, among=True)
    return None if root is None else replace(_finding(root), confidence=LEANING)


def user_rule(evidence: Evidence, rules: UserRules) -> Finding | None:
    """The first of a user's rules that any rank's words, or those of kernels and conditions, meet."""
    for rule in rules.rules:
        root = _root(evidence_for(rule, evidence), (rule.cause,), among=None)
        if root is not None:
            return _finding(root)
    return None


def evaluation(evidence: Evidence) -> Finding | None:
    """A program that only measures a model failed, for no cause of a kind of its own.

    Never found for an attempt that was placed: an attempt trains, and evals have ends of their own.
    """
    first = initiator(evidence.ranks)
    if first is None or not _evaluates(evidence) or lost_its_peer(first):
        return None
    if signal_of(first) in (signal.SIGKILL, signal.SIGTERM):
        return None  # somebody else ended it
    lines = [line for text in texts(first) for line in text.splitlines()]
    raised = [line for line in lines if EXCEPTION.match(line)]
    shown = raised or [line for line in lines if _EVALUATION.search(line)]
    return _make_finding(_R.EVALUATOR_ERROR, LEANING, first, shown[-1])


def any_exception(evidence: Evidence) -> Finding | None:
    """An exception without a row of its own, in the rank that failed first: the code raised it."""
    first = initiator(evidence.ranks)
    if first is None or lost_its_peer(first):
        return None
    if has_last_word(first, _R.CODE_ERROR) and first.last_word is not None:
        word = first.last_word
        words = f"{word.exception}: {word.message}"
        return None if _has_row(words) else _make_finding(_R.CODE_ERROR, LIKELY, first, words)
    for text in texts(first):
        raised = _not_over(text.splitlines(), is_raised_by_code)
        if raised:
            has_other_cause = _has_row(raised[-1]) or _FROM_ELSEWHERE.search(raised[-1])
            if has_other_cause:
                return None
            return _make_finding(_R.CODE_ERROR, LEANING, first, raised[-1])
    return None


def cascade_only(evidence: Evidence) -> Finding | None:
    """Ranks that lost their peer, and none that failed of something else."""
    first = initiator(evidence.ranks)
    if first is None or not lost_its_peer(first):
        return None
    if has_last_word(first, _R.RANK_LOST_SECONDARY) and first.last_word is not None:
        words = first.last_word.message or "a peer was lost"
        return _make_finding(_R.RANK_LOST_SECONDARY, LEANING, first, words)
    for text in texts(first):
        lines = _not_over(text.splitlines(), lambda line: CASCADE.search(line) is not None)
        if lines:
            return _make_finding(_R.RANK_LOST_SECONDARY, LEANING, first, lines[0])
    return None


def _not_over(lines: list[str], matches: Callable[[str], bool]) -> list[str]:
    """Return the lines that tell, or none when the process went on for many steps after the last."""
    found = [number for number, line in enumerate(lines) if matches(line)]
    if not found or has_progress(lines[found[-1] + 1 :]):
        return []
    return [lines[number] for number in found]


def _root(
    evidence: Evidence,
    rows: tuple[Cause, ...],
    *,
    among: bool | None,
    tiers: frozenset[Tier] = _ALL,
) -> CauseLine | None:
    """Return the cause nearest to the root; of several the one of the rank that ended first.

    among: only of lines that their process survived or did not, or None for all lines. What others did
    to the job is nothing that it could have survived.
    A symptom counts only on the rank that ended first when a signal ended that one.
    """
    first = initiator(evidence.ranks)
    is_signalled = first is not None and signal_of(first) is not None
    found = [
        each
        for rank in own(evidence.ranks)
        for each in _causes_of(rank, rows)
        if among in (None, each.survived)
        and each.cause.tier in tiers
        and not (among is True and each.cause in CAPACITY)
        and not (each.cause.tier is Tier.SYMPTOM and is_signalled and rank is not first)
        and not (each.is_aside and _ended_otherwise(rank))
        and not (among is True and (each.is_over or reports_recovery(each.line)))
    ]
    if not found:
        return None
    nearest = min((each.cause.tier, each.is_printed) for each in found)
    candidates = [each for each in found if (each.cause.tier, each.is_printed) == nearest]
    earliest = by_end([each.rank for each in candidates])
    return min(
        (each for each in candidates if each.rank in earliest),
        key=lambda each: (-each.cause.confidence, earliest.index(each.rank), each.order),
    )


def _causes_of(rank: RankEnd, rows: tuple[Cause, ...]) -> Iterator[CauseLine]:
    """Yield the cause of each tier that is nearest to the root in the rank's own words."""
    found: dict[tuple[Tier, bool, bool, bool], CauseLine] = {}
    for text_number, text in enumerate(texts(rank)):
        shown = _read(rank, text)
        for line_number, line in enumerate(shown.lines):
            for row_number, row in _rows_of(line, rows):
                if row.beside is not None and not any(row.beside.search(t) for t in texts(rank)):
                    continue
                is_printed = EXCEPTION.match(line) is None
                # Of symptoms the surest counts: which came first says little of what failed. What was
                # raised first caused the rest; of what was printed, the last thing said is the end.
                sureness = -row.confidence if row.tier is Tier.SYMPTOM else 0.0
                place_in_text = -line_number if is_printed else line_number
                order = (sureness, text_number, is_printed, place_in_text, row_number)
                each = CauseLine(
                    rank=rank,
                    cause=row,
                    line=line,
                    survived=_has_survived(shown, line_number, row),
                    is_over=shown.steps_after[line_number] > STEPS_WHILE_ENDING,
                    is_printed=is_printed,
                    is_aside=is_printed and _is_software(row),
                    is_last=line_number == len(shown.lines) - 1,
                    order=order,
                )
                place = (row.tier, each.survived, is_printed, row in CAPACITY)
                if place not in found or order < found[place].order:
                    found[place] = each
    yield from found.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """One text of a rank from its last start on, with what is to be known of each line.

    raised_at: where the failure begins that the program raised itself, 0 where it raised none;
    names_cause: whether that exception names its cause; taken_at: the last line by which a platform
    publishes that it took the place away, 0 where there is none.
    """

    lines: list[str]
    survived: list[bool]
    steps_after: list[int]
    raised_at: int
    names_cause: bool
    taken_at: int


def _read(rank: RankEnd, text: str) -> _Text:
    lines = text.splitlines()
    lines = lines[works_again(lines) :]
    begins = last_failure(lines).begins
    raised = lines[begins:]
    word = rank.last_word
    if begins == len(lines):
        begins = 0
    if word is not None and word.exception is not None and text == rank.log_tail:
        begins, raised = len(lines), texts(rank)[0].splitlines()  # its word came after its log
    return _Text(
        lines=lines,
        survived=survived(lines),
        steps_after=steps_after(lines),
        raised_at=begins,
        names_cause=any(map(_names_cause, raised)),
        taken_at=max((n for n, line in enumerate(lines) if _is_published(line)), default=0),
    )


def _names_cause(line: str) -> bool:
    """Whether a line is an exception that names its cause, and not only a guess at it."""
    rows = _rows_of(line, CAUSES) if EXCEPTION.match(line) else ()
    return any(row.tier in _NEAR and row.confidence > LEANING for _, row in rows)


def _is_published(line: str) -> bool:
    """Whether a line has the name that a platform publishes for taking a job's place away."""
    rows = (row for _, row in _rows_of(line, CAUSES) if row in CAPACITY)
    return any(row.tier is Tier.SYMPTOM and row.confidence == LIKELY for row in rows)


def _has_survived(text: _Text, number: int, row: Cause) -> bool:
    """Whether the process went on after a line that `row` is met by.

    What others do to a job is over with the next step, and is news, not a warning. What was only
    printed before an exception is not a cause where that exception names its own, or where the row
    blames settings, libraries or rights: code that needs them raises an error.
    """
    is_printed = EXCEPTION.match(text.lines[number]) is None
    was_printed_before = is_printed and number < text.raised_at
    if row in CAPACITY:
        has_started = row.tier is Tier.ROOT and was_printed_before  # and so has its place
        return has_started or text.steps_after[number] > 0
    if text.survived[number]:
        return True
    if number < text.taken_at and text.steps_after[text.taken_at] == 0:
        return is_printed  # it worked until its place was taken
    return was_printed_before and (text.names_cause or _is_software(row))


@lru_cache(maxsize=LINES_REMEMBERED)
def _rows_of(line: str, rows: tuple[Cause, ...]) -> tuple[tuple[int, Cause], ...]:
    """Return the rows that one line matches, with their numbers."""
    if _HELP.match(line):
        return ()
    certain = without_guesses(line)
    found = [(number, row) for number, row in enumerate(rows) if row.matches(certain)]
    if " or " in certain.lower():
        return tuple(each for each in found if not _is_one_of_several(each[1], certain, rows))
    return tuple(found)


def _is_one_of_several(row: Cause, line: str, rows: tuple[Cause, ...]) -> bool:
    """Whether a line that matches `row` names its cause only beside another one, of `rows` or not.

    "the worker failed, or ran out of memory" was written by a program that could not tell the two
    apart: it is not evidence for either.
    """
    found = row.words.search(line)
    if found is None or not _lies_outside(row.reason):
        return False
    if is_led_by_or(line, found.start()):
        return True
    other = other_alternative(line, found.end())
    if not other or row.words.search(other) is not None:
        return False
    if _BY_OTHERS.search(other) is not None:
        return True
    return any(each.reason is not row.reason and each.matches(other) for each in rows)


def _lies_outside(reason: TerminationReason) -> bool:
    return reason.family in _OUTSIDE or reason is TerminationReason.NATIVE_CRASH


def _ended_otherwise(rank: RankEnd) -> bool:
    """Whether somebody else ended the process, or nothing did before its work was done."""
    if signal_of(rank) in (signal.SIGKILL, signal.SIGTERM) or exit_code(rank) == 0:
        return True
    return not rank.has_ended and _SHELL_KILLED.match(last_line(rank)) is not None


def _is_software(row: Cause) -> bool:
    """Whether a row blames settings, libraries, rights or code."""
    return row.reason.family is ReasonFamily.SOFTWARE


def _evaluates(evidence: Evidence) -> bool:
    if evidence.placed:
        return False
    return any(_EVALUATION.search(text) for rank in evidence.ranks for text in texts(rank))


def _has_row(text: str) -> bool:
    """Whether a row of `CAUSES` speaks for an exception by itself: then it is not just the code's."""
    rows = (row for line in text.splitlines() for _, row in _rows_of(line, CAUSES))
    return any(row.beside is None for row in rows)


def _finding(root: CauseLine) -> Finding:
    sure = root.cause.confidence
    if root.is_aside:
        sure = min(sure, LIKELY if root.is_last else LEANING)
    found = _make_finding(root.cause.reason, sure, root.rank, root.line)
    return replace(found, row=root.cause.name)


def _make_finding(
    reason: TerminationReason, confidence: float, rank: RankEnd, line: str
) -> Finding:
    return Finding(
        reason=reason,
        confidence=confidence,
        lines=(f"rank {rank.rank}: {line}",),
        root_message=line,
    )
