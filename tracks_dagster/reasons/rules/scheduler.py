"""The lines that schedulers and providers leave in a job's own log, and what only sounds like them.

A log is full of such words that tell of no end: help texts, settings, what would be done in case, what
an earlier start of the job ended of. A verdict rests on words that say that it has happened, now.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tracks_dagster.reasons.evidence import RankEnd
from tracks_dagster.reasons.logs import EXCEPTION, FAR_LINES
from tracks_dagster.reasons.rules.restarts import goes_on, starts_again
from tracks_dagster.reasons.words.control_words import BEFORE_THE_START, SCHEDULER_LINES
from tracks_dagster.reasons.words.suppositions import is_led_by_or, without_guesses
from tracks_dagster.track.reasons import TerminationReason

# What stands before the words when they tell what would be, or what has been.
_NOT_NOW = re.compile(
    r"\b(if|in case|unless|whether|whenever|may|might|could|would|should|possibly|perhaps|likely"
    r"|upon|handles?|previous(ly)?|earlier|last (attempt|run|job|time))\b[^.;!]{0,80}$"
    r"|\b(when|once|until|after|before)\b[^.;!]{0,80}\b(is|are|gets?)\b[^.;!]{0,40}$",
    re.IGNORECASE,
)
_LOOKED_FOR = re.compile(
    r"\b(watch|wait|poll|listen|check|look)(s|es|ing)? (for|on)\b[^.;!]{0,40}$", re.IGNORECASE
)
# What stands after them when they are one of several, asked, or counted.
_NOT_SURE = re.compile(
    r"^\W{0,2}\bor\b|^[^.;!]{0,20}\?|^\W{0,2}(\d+ times|once|twice|before|earlier|previously)\b",
    re.IGNORECASE,
)
# Help, comments, the queue of an inference engine, the program's own part that waits for a notice.
_ABOUT_SOMETHING_ELSE = re.compile(
    r"^\s*(#|//|\*\s|-{1,2}[a-z])|PreemptionMode|KV[ _-]?cache|sequence group"
    r"|(notice|interruption|preemption) (handler|listener|watcher|poller|callback)",
    re.IGNORECASE,
)
# These write when they end a job, and the job may go on for its time of grace.
_ENDS_JOBS = re.compile(r"^\W*(slurmstepd|srun|PBS)\b|\bnotice\b", re.IGNORECASE)


def told_by_schedulers(ranks: Iterable[RankEnd]) -> Iterator[tuple[str, TerminationReason]]:
    """Yield each line of a scheduler that says why the job ended, with what it says."""
    for rank in ranks:
        lines = rank.log_tail.splitlines()
        again = starts_again(lines)
        for number, line in enumerate(lines):
            reason = _said(line)
            if reason is None or number < again:
                continue
            if not _is_over(line, reason, lines[number + 1 :]):
                yield line, reason


def _said(line: str) -> TerminationReason | None:
    """Return what a line says has happened."""
    told = without_guesses(line)
    if _ABOUT_SOMETHING_ELSE.search(told):
        return None
    for words, reason in SCHEDULER_LINES:
        match = words.search(told)
        if match is None:
            continue
        is_said = not (
            _NOT_NOW.search(told[: match.end()])
            or _LOOKED_FOR.search(told[: match.start()])
            or is_led_by_or(told, match.start())
            or _NOT_SURE.match(told[match.end() :])
        )
        if is_said:
            return reason
    return None


def _is_over(line: str, reason: TerminationReason, later: Sequence[str]) -> bool:
    """Whether the job went on after the line: then it had ended another start, or none."""
    if reason in BEFORE_THE_START:
        raised = any(EXCEPTION.match(each) for each in later)
        return raised or len(later) > FAR_LINES or goes_on(later)
    return _ENDS_JOBS.search(line) is None and goes_on(later)
