"""A review as tables, in the order in which a person should read them, and as markdown for the UI."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracks_dagster.reasons.endings import Ending
from tracks_dagster.review.review import EndedAttempt, ReasonCount, Review
from tracks_dagster.review.review_text import headline, hours
from tracks_dagster.track.text.markdown import table

SAID_CHARACTERS_MAX = 300  # of a message in a table; `tracks explain` has the whole of it

_TITLES = {
    Ending.FAILURE: "Failures",
    Ending.INTERRUPTION: "Interruptions",
    Ending.AS_MEANT: "Ended as meant",
}

_REASON_COLUMNS: tuple[str, ...] = (
    "reason",
    "family",
    "attempts",
    "runs",
    "device hours",
    "steps kept",
    "steps lost",
)

_ATTEMPT_COLUMNS: tuple[str, ...] = (
    "attempt",
    "ended as",
    "sure",
    "what was said",
    "device hours",
    "steps lost",
    "owner",
    "its run now",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One table. intro: a sentence above it; left_out: how many rows it does not show."""

    title: str
    intro: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int = 0


def sections(review: Review) -> tuple[Section, ...]:
    """Return the tables that are not empty, in the order in which a person should read them."""
    told = (
        _unexplained(review),
        _unevaluated(review),
        _matters(review),
        _ended(review, Ending.FAILURE),
        _failures(review),
        _ended(review, Ending.INTERRUPTION),
        _ended(review, Ending.AS_MEANT),
    )
    return tuple(section for section in told if section.rows)


def markdown(review: Review) -> str:
    """Return the whole review as markdown."""
    return "\n".join(_markdown_lines(review))


def _markdown_lines(review: Review) -> Iterator[str]:
    yield headline(review)
    for section in sections(review):
        yield from ("", f"### {section.title}", "", section.intro, "")
        yield table(section.columns, section.rows)
        if section.left_out:
            yield from ("", f"{section.left_out:,} more are not shown.")


def _unexplained(review: Review) -> Section:
    return Section(
        title="Without a verdict",
        intro="Nobody knows why these ended; the check is red until somebody does.",
        columns=_ATTEMPT_COLUMNS,
        rows=tuple(_attempt_row(each) for each in review.unexplained),
        left_out=review.unexplained_count - len(review.unexplained),
    )


def _unevaluated(review: Review) -> Section:
    return Section(
        title="Promoted without an eval",
        intro="Nothing measured stands behind these; the check is red.",
        columns=("checkpoint", "alias", "eval that is missing"),
        rows=tuple(
            (f"{each.run_id}@{each.step}", each.alias, each.eval_id) for each in review.unevaluated
        ),
        left_out=review.unevaluated_count - len(review.unevaluated),
    )


def _matters(review: Review) -> Section:
    rows = [
        (each.kind.value, each.who, _cut(each.what), each.to_do)
        for matters in review.matters
        for each in matters.shown
    ]
    return Section(
        title="Needs a person",
        intro="What does not go on, or should not, until somebody has decided.",
        columns=("kind", "who", "what", "to do"),
        rows=tuple(rows),
        left_out=review.matter_count - len(rows),
    )


def _ended(review: Review, ending: Ending) -> Section:
    reasons, columns = review.of(ending), _REASON_COLUMNS
    rows = tuple(_reason_row(each) for each in reasons)
    if review.currency is not None:
        columns = (*columns, f"cost {review.currency}")
        costs = [_money_text(each.cost) for each in reasons]
        rows = tuple((*row, cost) for row, cost in zip(rows, costs, strict=True))
    return Section(title=_TITLES[ending], intro=ending.sentence, columns=columns, rows=rows)


def _failures(review: Review) -> Section:
    return Section(
        title="Failed attempts",
        intro="The dearest of each reason; `tracks explain` tells each of them from its record.",
        columns=_ATTEMPT_COLUMNS,
        rows=tuple(_attempt_row(each) for each in review.failures),
        left_out=review.count(Ending.FAILURE) - len(review.failures),
    )


def _reason_row(each: ReasonCount) -> tuple[str, ...]:
    return (
        each.reason,
        each.family,
        f"{each.attempt_count:,}",
        f"{each.run_count:,}",
        hours(each.device_s),
        f"{each.kept_steps:,}",
        f"{each.lost_steps:,}",
    )


def _money_text(cost: float | None) -> str:
    return "no price" if cost is None else f"{cost:,.2f}"


def _attempt_row(each: EndedAttempt) -> tuple[str, ...]:
    return (
        each.key,
        each.reason,
        f"{each.confidence:.0%}",
        _cut(each.said) or "–",
        hours(each.device_s),
        f"{each.lost_steps:,}",
        each.owner,
        each.run_state,
    )


def _cut(text: str) -> str:
    line = " ".join(text.split())
    whole = len(line) <= SAID_CHARACTERS_MAX
    return line if whole else f"{line[: SAID_CHARACTERS_MAX - 1]}…"
