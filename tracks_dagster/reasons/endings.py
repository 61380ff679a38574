"""What an attempt's end asks of people: nothing, patience, or a look.

A coarser word than the reason's family, so that ten preemptions do not hide the one failure between
them. No budget and no decision depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tracks_dagster.track.reasons import ReasonFamily, TerminationReason


class Ending(StrEnum):
    """How an attempt ended, for anyone who reads many of them; what asks most comes first."""

    FAILURE = "failure"
    INTERRUPTION = "interruption"
    AS_MEANT = "as_meant"

    @property
    def sentence(self) -> str:
        """One sentence for people."""
        return _SENTENCES[self]


_SENTENCES = {
    Ending.FAILURE: "Something is broken, or nobody knows what: look at it.",
    Ending.INTERRUPTION: "The place was taken away; nothing is wrong with the run, it continues.",
    Ending.AS_MEANT: "The attempt ended as somebody or its plan wanted.",
}


def ending_of(reason: TerminationReason) -> Ending:
    """Return what `reason` asks of people."""
    if reason.family is ReasonFamily.AS_MEANT:
        return Ending.AS_MEANT
    taken_away = reason.family is ReasonFamily.CAPACITY
    if taken_away or reason is TerminationReason.ORCHESTRATOR_LOST:
        return Ending.INTERRUPTION
    return Ending.FAILURE


def ending_named(reason: str) -> Ending:
    """Return what a reason of the ledger asks of people; an unknown, newer one needs a look."""
    try:
        return ending_of(TerminationReason(reason))
    except ValueError:
        return Ending.FAILURE


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingCheck:
    """Whether an attempt ended as meant. is_failure: it needs a look, and not only patience."""

    passed: bool
    is_failure: bool
    words: str


def ending_check(reason: TerminationReason, how: str) -> EndingCheck:
    """Return the check that the UI shows: a failure, an interruption, or as meant. how: in words."""
    ending, words = ending_of(reason), f"{reason}: {how}"
    passed = ending is Ending.AS_MEANT
    return EndingCheck(
        passed=passed,
        is_failure=ending is Ending.FAILURE,
        words=words if passed else f"{words} {ending.sentence}",
    )
