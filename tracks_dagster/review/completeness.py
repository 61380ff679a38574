"""Which fields of an attempt's receipt are recorded, and why the others are not. Pure.

The fields are those that a stranger needs: the facts of an attempt that have a label. One that is not
recorded has a reason, or is a gap that somebody should mend: a receipt of an attempt that has ended
has none without a reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracks_dagster.ledger.facts.attempt import ATTEMPT, AttemptView
from tracks_dagster.ledger.facts.fact import Fact

GAP = "no reason is known, which is a gap"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptField:
    """One field. absence: the name of the reason why it is not recorded, why: in words; both None
    when it is recorded, or when nobody knows why it is not."""

    name: str
    is_recorded: bool
    absence: str | None = None
    why: str | None = None

    @property
    def is_gap(self) -> bool:
        """Whether it is missing without a reason."""
        return not self.is_recorded and self.absence is None


EVAL_STATE = ReceiptField(name="eval state", is_recorded=True)  # the track itself is that record


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """Every field of one receipt, in the order of the facts."""

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
        """The score in words: "27 of 28 fields are recorded; not image: …"."""
        score = f"{self.recorded_count} of {len(self.fields)} fields are recorded"
        return "; ".join([score, *self.absences])

    @property
    def absences(self) -> tuple[str, ...]:
        """The fields that are not recorded by the reason for it, a clause each."""
        groups: dict[str, list[str]] = {}
        for each in self.fields:
            if not each.is_recorded:
                groups.setdefault(each.why or GAP, []).append(each.name)
        return tuple(f"not {', '.join(names)}: {why}" for why, names in groups.items())


def completeness(view: AttemptView) -> Completeness:
    """Return which fields of the attempt's receipt are recorded."""
    judged = (_judge(fact, view) for fact in ATTEMPT if fact.label)
    return Completeness(fields=(*judged, EVAL_STATE))


def _judge(fact: Fact[AttemptView], view: AttemptView) -> ReceiptField:
    if fact.is_recorded(view):
        return ReceiptField(name=fact.label, is_recorded=True)
    absence = fact.absence(view)
    return ReceiptField(
        name=fact.label,
        is_recorded=False,
        absence=absence.name if absence else None,
        why=absence.sentence if absence else None,
    )
