"""Which fields of an attempt's receipt are recorded, and why the others are not. Pure.

The fields are those that a stranger needs (identity, what was tried, on what, where, from where, why
it ended, what it cost). One that is not recorded has a reason, or is a gap that somebody should mend:
a receipt of an attempt that has ended has none without a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tracks_dagster.track.names import LOCAL
from tracks_dagster.track.states.run_state import AttemptState, RunState


class Absence(StrEnum):
    """Why a field may rightly be empty; the value stands in JSON, the sentence in the text."""

    OPEN = "open"
    NEVER_PLACED = "never_placed"
    NEVER_STARTED = "never_started"
    NO_CONTAINER = "no_container"
    NO_CHECKOUT = "no_checkout"
    FIRST_ATTEMPT = "first_attempt"
    MANUAL = "manual"
    NO_STEP = "no_step"
    NOT_SHIPPED = "not_shipped"
    EVIDENCE_LOST = "evidence_lost"
    NOT_CLAIMED = "not_claimed"

    @property
    def sentence(self) -> str:
        """Say it in words."""
        return _SENTENCES[self]


_SENTENCES = {
    Absence.OPEN: "the attempt has not ended",
    Absence.NEVER_PLACED: "no rank 0 came up, so nobody could tell",
    Absence.NEVER_STARTED: "no rank was seen to start",
    Absence.NO_CONTAINER: "its processes ran on the machine itself, in no container",
    Absence.NO_CHECKOUT: "the run was declared outside of a git checkout",
    Absence.FIRST_ATTEMPT: "a first attempt spends nothing from the retry budget",
    Absence.MANUAL: "what a person opens spends nothing from the retry budget",
    Absence.NO_STEP: "it ran no step",
    Absence.NOT_SHIPPED: "the end of its journal was not shipped",
    Absence.EVIDENCE_LOST: "the stored evidence is gone or was changed",
    Absence.NOT_CLAIMED: "no Dagster run has claimed it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptField:
    """One field. absence: None when it is recorded, or when nobody knows why it is not."""

    name: str
    is_recorded: bool
    absence: Absence | None = None

    @property
    def is_gap(self) -> bool:
        """Whether it is missing without a reason."""
        return not self.is_recorded and self.absence is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """Every field of one receipt, in the order of FIELDS."""

    fields: tuple[ReceiptField, ...]

    @property
    def recorded_count(self) -> int:
        """How many fields are recorded."""
        return sum(each.is_recorded for each in self.fields)

    @property
    def gaps(self) -> tuple[str, ...]:
        """The names of the fields that are missing without a reason."""
        return tuple(each.name for each in self.fields if each.is_gap)

    @property
    def sentence(self) -> str:
        """The score in words: "27 of 28 fields are recorded; image is not: …"."""
        told = f"{self.recorded_count} of {len(self.fields)} fields are recorded"
        return "; ".join([told, *self.absences])

    @property
    def absences(self) -> tuple[str, ...]:
        """The fields that are not recorded by the reason for it, a clause each."""
        groups: dict[str, list[str]] = {}
        for each in self.fields:
            if not each.is_recorded:
                why = (
                    each.absence.sentence if each.absence else "no reason is known, which is a gap"
                )
                groups.setdefault(why, []).append(each.name)
        return tuple(f"not {', '.join(names)}: {why}" for why, names in groups.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a receipt is judged by.

    is_journal_whole: the journal reaches the last step. is_evidence_there: the stored evidence has
    the hash that the verdict's record names.
    """

    state: RunState
    attempt: AttemptState
    is_journal_whole: bool
    is_evidence_there: bool


def completeness(seen: Seen) -> Completeness:
    """Return which fields of the attempt's receipt are recorded."""
    return Completeness(fields=tuple(_judge(name, *rule, seen) for name, rule in FIELDS.items()))


Recorded = Callable[[Seen], bool]
Why = Callable[[Seen], Absence | None]


def _judge(name: str, recorded: Recorded, why: Why, seen: Seen) -> ReceiptField:
    if recorded(seen):
        return ReceiptField(name=name, is_recorded=True)
    return ReceiptField(name=name, is_recorded=False, absence=why(seen))


def _always(seen: Seen) -> bool:
    """A field that the record's own shape forces: the record cannot be read without it."""
    return True


def _never(seen: Seen) -> Absence | None:
    return None


def _placed(seen: Seen) -> bool:
    return seen.attempt.placed is not None


def _unplaced(seen: Seen) -> Absence | None:
    return Absence.NEVER_PLACED if seen.attempt.placed is None else None


def _ended(seen: Seen) -> bool:
    return seen.attempt.ended is not None


def _open(seen: Seen) -> Absence | None:
    return Absence.OPEN if seen.attempt.ended is None else None


def _has_image(seen: Seen) -> bool:
    return seen.attempt.placed is not None and seen.attempt.placed.image is not None


def _no_image(seen: Seen) -> Absence | None:
    if seen.attempt.opened.compute.launcher == LOCAL:
        return Absence.NO_CONTAINER
    return _unplaced(seen)


def _has_commit(seen: Seen) -> bool:
    return seen.state.declared.code.git_commit is not None


def _has_dirty_flag(seen: Seen) -> bool:
    return seen.state.declared.code.dirty is not None


def _no_commit(seen: Seen) -> Absence | None:
    return None if _has_commit(seen) else Absence.NO_CHECKOUT


def _has_debit(seen: Seen) -> bool:
    return seen.attempt.opened.debit is not None


def _no_debit(seen: Seen) -> Absence | None:
    causes = {"first": Absence.FIRST_ATTEMPT, "manual_retry": Absence.MANUAL}
    return causes.get(seen.attempt.opened.cause)


def _has_cursor(seen: Seen) -> bool:
    ended = seen.attempt.ended
    return seen.attempt.restored is not None and (
        seen.is_journal_whole or (ended is not None and ended.cursor_to is not None)
    )


def _no_cursor(seen: Seen) -> Absence | None:
    attempt = seen.attempt
    if attempt.placed is None:
        return Absence.NEVER_PLACED
    last = attempt.ended.last_step if attempt.ended is not None else None
    if (last or 0) <= attempt.resumed_step:
        return Absence.NO_STEP if attempt.ended is not None else Absence.OPEN
    return Absence.NOT_SHIPPED


def _has_evidence(seen: Seen) -> bool:
    return _ended(seen) and seen.is_evidence_there


def _no_evidence(seen: Seen) -> Absence | None:
    return _open(seen) or Absence.EVIDENCE_LOST


def _has_started(seen: Seen) -> bool:
    ended = seen.attempt.ended
    return seen.attempt.placed_at is not None or (
        ended is not None and ended.started_at is not None
    )


def _claimed(seen: Seen) -> bool:
    return bool(seen.attempt.claims)


# The receipt, in the order that people ask for it.
FIELDS: dict[str, tuple[Recorded, Why]] = {
    "training run": (_always, _never),
    "attempt": (_always, _never),
    "owner": (_always, _never),
    "intent": (_always, _never),
    "config": (_always, _never),
    "config change": (_always, _never),
    "code commit": (_has_commit, _no_commit),
    "local changes": (_has_dirty_flag, _no_commit),
    "environment": (_placed, _unplaced),
    "image": (_has_image, _no_image),
    "snapshot": (_always, _never),
    "cursor range": (_has_cursor, _no_cursor),
    "launch": (_placed, _unplaced),
    "ranks": (_placed, _unplaced),
    "nodes": (_placed, _unplaced),
    "devices": (_placed, _unplaced),
    "Dagster run": (_claimed, lambda seen: Absence.NOT_CLAIMED),
    "checkpoint resumed from": (_always, _never),
    "checkpoints made": (_always, _never),
    "cause": (_always, _never),
    "budget debit": (_has_debit, _no_debit),
    "termination reason": (_ended, _open),
    "evidence": (_has_evidence, _no_evidence),
    "device seconds": (_ended, _open),
    "steps kept and lost": (_ended, _open),
    "opened at": (_always, _never),
    "started at": (_has_started, lambda seen: Absence.NEVER_STARTED),
    "ended at": (_ended, _open),
    "eval state": (_always, _never),
}
