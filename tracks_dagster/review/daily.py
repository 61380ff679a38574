"""What happened on one day, over all runs: what ended, what it cost, what needs a person. Pure values.

`review.effects.daily` reads them from the ledger, `review.daily_text` formats them.
A review depends on its day and on the ledger alone: reviewed again, an old day shows
what became of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum

from tracks_dagster.reasons.endings import Ending, ending_named
from tracks_dagster.track.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonCount:
    """The attempts that ended for one reason. device_s: device seconds of all of them.

    cost: in the review's currency; None where no device of theirs has a price.
    """

    reason: str
    family: str
    attempt_count: int
    run_count: int
    device_s: float
    kept_steps: int
    lost_steps: int
    cost: float | None = None

    @property
    def ending(self) -> Ending:
        """What such an end asks of people."""
        return ending_named(self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """One attempt that a person should look at. message: what the verdict rests on."""

    key: str
    reason: str
    confidence: float
    message: str
    device_s: float
    lost_steps: int
    owner: str
    run_state: str


class MatterKind(StrEnum):
    """Why something needs a person; what cannot go on without one comes first."""

    REFUSED = "refused"
    WAITING = "waiting"
    ALIAS = "quarantined, promoted"
    SOURCE = "quarantined source"
    EVAL = "failed eval"
    ALERT = "alert"
    GATE = "skipped gate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Matter:
    """One thing that needs a person. who: a run, or an eval; to_do: a command, or a sentence."""

    kind: MatterKind
    who: str
    what: str
    to_do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matters:
    """All of one kind: the first few, and how many there are."""

    kind: MatterKind
    count: int
    shown: tuple[Matter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevaluatedPromotion:
    """A checkpoint that holds an alias without the completed eval that its promotion names."""

    run_id: str
    step: int
    alias: str
    eval_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """One day in UTC. is_over: whether the day was over when it was reviewed.

    reasons: what asks most first. failures, unexplained, unevaluated: the first few; unexplained_count
    and unevaluated_count say how many there are, of failures `count` does. unexplained_in_matters: how
    many of them are the newest attempt of a run that is among the matters. earlier_count: runs that
    have needed a person since before this day. currency: None without a price table; then nothing has
    a cost. unpriced_device_s: device seconds that the price table names no price for.
    """

    day: date
    is_over: bool
    reasons: tuple[ReasonCount, ...]
    currency: str | None
    unpriced_device_s: float
    failures: tuple[EndedAttempt, ...]
    unexplained: tuple[EndedAttempt, ...]
    unexplained_count: int
    unexplained_in_matters: int = 0
    matters: tuple[Matters, ...]
    promoted_count: int
    unevaluated: tuple[UnevaluatedPromotion, ...]
    unevaluated_count: int
    earlier_count: int

    def of(self, ending: Ending) -> tuple[ReasonCount, ...]:
        """Return the reasons that ask this of people."""
        return tuple(each for each in self.reasons if each.ending is ending)

    def count(self, ending: Ending) -> int:
        """Return how many attempts ended like this."""
        return sum(each.attempt_count for each in self.of(ending))

    @property
    def attempt_count(self) -> int:
        """How many attempts ended on the day."""
        return sum(each.attempt_count for each in self.reasons)

    @property
    def matter_count(self) -> int:
        """How many things of the day go on, or end well, only by a person's decision."""
        return sum(each.count for each in self.matters)

    @property
    def person_count(self) -> int:
        """How many things of the day need a person: its matters, and what a check is red for. A run
        and its newest attempt, which has no verdict, are one."""
        unexplained = self.unexplained_count - self.unexplained_in_matters
        return self.matter_count + unexplained + self.unevaluated_count

    def matter_count_of(self, kind: MatterKind) -> int:
        """Return how many things of this kind there are."""
        return sum(each.count for each in self.matters if each.kind is kind)

    @property
    def is_bad_news(self) -> bool:
        """Whether one of the day's two checks fails."""
        return bool(self.unexplained_count or self.unevaluated_count)


def day_bounds(day: date) -> tuple[datetime, datetime]:
    """Return when the day begins and when the next one does, in UTC."""
    begin = datetime.combine(day, time(), tzinfo=UTC)
    return begin, begin + timedelta(days=1)


def parse_day(text: str, *, now: datetime) -> date:
    """Return the day of `2026-01-31`, `today` or `yesterday`, in UTC.

    Raises InvalidInput for anything else, and for a day that has not begun.
    """
    today = now.astimezone(UTC).date()
    named = {"today": today, "yesterday": today - timedelta(days=1)}
    try:
        day = named[text] if text in named else date.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{text!r} is not a day; write one as {today.isoformat()}, or today or yesterday (UTC)."
        ) from error
    if day > today:
        raise InvalidInput(f"{text} has not begun: it is {today.isoformat()} in UTC.")
    return day


def in_order(reasons: Iterable[ReasonCount]) -> tuple[ReasonCount, ...]:
    """Return the reasons with failures first, and of each kind of ending the dearest first."""
    rank = list(Ending)
    return tuple(
        sorted(reasons, key=lambda each: (rank.index(each.ending), -each.device_s, each.reason))
    )
