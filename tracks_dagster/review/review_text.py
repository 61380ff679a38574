"""A review in sentences and in numbers: its headline, what its checks say, what a chart shows.

The UI and the command line use the same ones; its tables are `review.review_tables`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracks_dagster.reasons.endings import Ending
from tracks_dagster.review.review import MatterKind, ReasonCount, Review


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


def unexplained_words(review: Review) -> str:
    """Say which attempts have no verdict, and what to do; that there are none otherwise."""
    if not review.unexplained_count:
        return "Every attempt that failed on this day has a verdict."
    named = _named([each.key for each in review.unexplained], review.unexplained_count)
    return (
        f"{_counted(review.unexplained_count, 'failed attempt')} without a verdict: {named}. "
        "`tracks explain RUN/aNN` shows what was seen. If you know better, `tracks reclassify RUN/aNN "
        '--as REASON --why "…"`; if its log tells, a rule of your own in TRACKS_RULES, then `tracks '
        'reclassify RUN/aNN --why "…"`. Then materialize this day again.'
    )


def unevaluated_words(review: Review) -> str:
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
    """Return what a chart over days can show, by name; units stand in the names."""
    told: dict[str, int | float] = {
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
    return {**told, **_money(review)}


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
    return f" ({_cost(review.reasons):,.2f} {review.currency})" if review.currency else ""


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
