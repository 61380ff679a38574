"""A review in sentences and in numbers: its headline, what its checks say, what a chart shows.

The UI and the command line use the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tracks_dagster.reasons.endings import Ending
from tracks_dagster.review.daily import EndedAttempt, MatterKind, ReasonCount, Review
from tracks_dagster.track.text.safe_text import table
from tracks_dagster.track.text.units import cost_digits

MESSAGE_CHARACTERS_MAX = 300  # of a message in a table; `tracks explain --full` has the whole of it

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
    "message",
    "device hours",
    "steps lost",
    "owner",
    "its run now",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyTable:
    """One table. intro: a sentence above it; left_out: how many rows it does not show."""

    title: str
    intro: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int = 0


def sections(review: Review) -> tuple[DailyTable, ...]:
    """Return the tables that are not empty, in the order in which a person should read them."""
    sections = (
        _unexplained(review),
        _unevaluated(review),
        _matters(review),
        _ended(review, Ending.FAILURE),
        _failures(review),
        _ended(review, Ending.INTERRUPTION),
        _ended(review, Ending.AS_MEANT),
    )
    return tuple(section for section in sections if section.rows)


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


def _unexplained(review: Review) -> DailyTable:
    return DailyTable(
        title="Without a verdict",
        intro="Nobody knows why these ended; the check is red until somebody does.",
        columns=_ATTEMPT_COLUMNS,
        rows=tuple(_attempt_row(each) for each in review.unexplained),
        left_out=review.unexplained_count - len(review.unexplained),
    )


def _unevaluated(review: Review) -> DailyTable:
    return DailyTable(
        title="Promoted without an eval",
        intro="No eval was measured for these; the check is red.",
        columns=("checkpoint", "alias", "eval that is missing"),
        rows=tuple(
            (f"{each.run_id}@{each.step}", each.alias, each.eval_id) for each in review.unevaluated
        ),
        left_out=review.unevaluated_count - len(review.unevaluated),
    )


def _matters(review: Review) -> DailyTable:
    rows = [
        (each.kind.value, each.who, _cut(each.what), each.to_do)
        for matters in review.matters
        for each in matters.shown
    ]
    return DailyTable(
        title="Needs a person",
        intro="What does not go on, or should not, until somebody has decided.",
        columns=("kind", "who", "what", "to do"),
        rows=tuple(rows),
        left_out=review.matter_count - len(rows),
    )


def _ended(review: Review, ending: Ending) -> DailyTable:
    reasons, columns = review.of(ending), _REASON_COLUMNS
    rows = tuple(_reason_row(each) for each in reasons)
    if review.currency is not None:
        columns = (*columns, f"cost {review.currency}")
        costs = [_money_text(each.cost) for each in reasons]
        rows = tuple((*row, cost) for row, cost in zip(rows, costs, strict=True))
    return DailyTable(title=_TITLES[ending], intro=ending.sentence, columns=columns, rows=rows)


def _failures(review: Review) -> DailyTable:
    return DailyTable(
        title="Failed attempts",
        intro="The dearest of each reason; `tracks explain` shows the whole record of each.",
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
    return "no price" if cost is None else f"{cost:,.{cost_digits(cost)}f}"


def _attempt_row(each: EndedAttempt) -> tuple[str, ...]:
    return (
        each.key,
        each.reason,
        f"{each.confidence:.0%}",
        _cut(each.message) or "–",
        hours(each.device_s),
        f"{each.lost_steps:,}",
        each.owner,
        each.run_state,
    )


def _cut(text: str) -> str:
    line = " ".join(text.split())
    whole = len(line) <= MESSAGE_CHARACTERS_MAX
    return line if whole else f"{line[: MESSAGE_CHARACTERS_MAX - 1]}…"


def headline(review: Review) -> str:
    """Return the day in a few sentences."""
    day = f"{review.day.isoformat()} UTC{'' if review.is_over else ' (so far)'}"
    if not review.attempt_count:
        return f"{day}: no attempt ended. {_person(review)}"
    ended = ", ".join(
        f"{review.count(ending)} {words}"
        for ending, words in (
            (Ending.FAILURE, "failed"),
            (Ending.INTERRUPTION, "interrupted"),
            (Ending.AS_MEANT, "as meant"),
        )
    )
    device_s = sum(each.device_s for each in review.reasons)
    lost = sum(each.lost_steps for each in review.reasons)
    return (
        f"{day}: {_counted(review.attempt_count, 'attempt')} ended, {ended}. They took "
        f"{hours(device_s)} device hours{_priced(review)} and lost {_counted(lost, 'step')}. "
        f"{_person(review)}"
    )


def describe_unexplained(review: Review) -> str:
    """Say which attempts have no verdict, and what to do; that there are none otherwise."""
    if not review.unexplained_count:
        return "Every attempt that failed on this day has a verdict."
    named = _named([each.key for each in review.unexplained], review.unexplained_count)
    return (
        f"{_counted(review.unexplained_count, 'failed attempt')} without a verdict: {named}. "
        "`tracks explain RUN/aNN` shows what was seen. If you know better, `tracks reclassify RUN/aNN "
        '--as REASON --why "…"`; if its log shows it, a rule of your own in TRACKS_RULES, then `tracks '
        'reclassify RUN/aNN --why "…"`. Then materialize this day again.'
    )


def describe_unevaluated(review: Review) -> str:
    """Say which promotions have no eval, and what to do; that there are none otherwise."""
    if not review.unevaluated_count:
        return "Every checkpoint that holds an alias since this day has the eval of its promotion."
    named = _named(
        [f"{each.run_id}@{each.step} as {each.alias}" for each in review.unevaluated],
        review.unevaluated_count,
    )
    return (
        f"{_counted(review.unevaluated_count, 'promotion')} without a completed eval: {named}. "
        "Do not serve it: `tracks fsck` says whether a record is missing; promote a checkpoint with "
        'an eval instead, `tracks promote RUN@STEP --alias NAME --why "…"`.'
    )


def numbers(review: Review) -> dict[str, int | float]:
    """Return what a chart over days can show, by name; units are in the names."""
    values: dict[str, int | float] = {
        "needs_a_person": review.person_count,
        "attempts_ended": review.attempt_count,
        "attempts_failed": review.count(Ending.FAILURE),
        "attempts_interrupted": review.count(Ending.INTERRUPTION),
        "attempts_as_meant": review.count(Ending.AS_MEANT),
        "attempts_without_verdict": review.unexplained_count,
        "device_hours": _device_h(review.reasons),
        "device_hours_of_failures": _device_h(review.of(Ending.FAILURE)),
        "device_hours_of_interruptions": _device_h(review.of(Ending.INTERRUPTION)),
        "lost_steps": sum(each.lost_steps for each in review.reasons),
        "kept_steps": sum(each.kept_steps for each in review.reasons),
        "promotions": review.promoted_count,
        "promotions_without_eval": review.unevaluated_count,
        "alerts": review.matter_count_of(MatterKind.ALERT),
    }
    return {**values, **_money(review)}


def hours(device_s: float) -> str:
    """Return seconds as hours: two decimals from an hour on, three digits below."""
    device_h = device_s / 3600
    return f"{device_h:,.2f}" if device_h >= 1 else f"{device_h:.3g}"


def _money(review: Review) -> dict[str, int | float]:
    if review.currency is None:
        return {}
    unit = review.currency.lower()
    failed = review.of(Ending.FAILURE)
    return {
        f"cost_{unit}": _cost(review.reasons),
        f"cost_of_failures_{unit}": _cost(failed),
        "device_hours_without_price": round(review.unpriced_device_s / 3600, 6),
    }


def _priced(review: Review) -> str:
    return f" ({_money_text(_cost(review.reasons))} {review.currency})" if review.currency else ""


def _cost(reasons: Sequence[ReasonCount]) -> float:
    return round(sum(each.cost or 0.0 for each in reasons), 6)


def _device_h(reasons: Sequence[ReasonCount]) -> float:
    return round(sum(each.device_s for each in reasons) / 3600, 6)


def _person(review: Review) -> str:
    earlier = review.earlier_count
    since = (
        f" {_counted(earlier, 'run')} of earlier days still {_do(earlier)} one." if earlier else ""
    )
    count = review.person_count
    if not count:
        return f"Nothing of this day needs a person.{since}"
    return f"{_counted(count, 'thing')} of this day {_do(count)} a person.{since}"


def _do(count: int) -> str:
    return "needs" if count == 1 else "need"


def _named(names: Sequence[str], count: int) -> str:
    more = f", and {count - len(names):,} more" if count > len(names) else ""
    return ", ".join(names) + more


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
