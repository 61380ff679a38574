"""A day in words: which day, what comes first, what a chart gets, what the checks say."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pytest

from tracks_dagster.review.daily import (
    EndedAttempt,
    Matter,
    MatterKind,
    Matters,
    ReasonCount,
    Review,
    UnevaluatedPromotion,
    in_order,
    parse_day,
)
from tracks_dagster.review.daily_text import (
    describe_unevaluated,
    describe_unexplained,
    headline,
    hours,
    markdown,
    numbers,
    sections,
)
from tracks_dagster.track.errors import InvalidInput

NOW = datetime(2026, 1, 31, 23, 30, tzinfo=UTC)


def counted(reason: str, family: str, count: int, device_s: float, **more: Any) -> ReasonCount:
    return ReasonCount(
        reason=reason,
        family=family,
        attempt_count=count,
        run_count=1,
        device_s=device_s,
        kept_steps=40,
        lost_steps=3,
        **more,
    )


def attempt(key: str) -> EndedAttempt:
    return EndedAttempt(
        key=key,
        reason="unknown",
        confidence=0.3,
        message="SIGKILL | and\nmore" + 400 * "x",
        device_s=1.0,
        lost_steps=2,
        owner="ann",
        run_state="refused",
    )


def review(**changes: Any) -> Review:
    fields: dict[str, Any] = {
        "day": date(2026, 1, 30),
        "is_over": True,
        "reasons": (),
        "currency": None,
        "unpriced_device_s": 0.0,
        "failures": (),
        "unexplained": (),
        "unexplained_count": 0,
        "matters": (),
        "promoted_count": 0,
        "unevaluated": (),
        "unevaluated_count": 0,
        "earlier_count": 0,
    }
    return Review(**fields | changes)


BUSY = review(
    reasons=in_order(
        [
            counted("completed", "ended as meant", 1, 99999.0),
            counted("preempted", "capacity", 9, 36000.0),
            counted("gpu_oom", "memory and disk", 1, 3600.0),
            counted("unknown", "unknown", 2, 7200.0),
        ]
    ),
    failures=(attempt("u/a01"),),
    unexplained=(attempt("u/a01"),),
    unexplained_count=2,
    matters=(
        Matters(
            kind=MatterKind.REFUSED,
            count=3,
            shown=(Matter(kind=MatterKind.REFUSED, who="u", what="it is", to_do="tracks retry u"),),
        ),
    ),
    earlier_count=1,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("today", date(2026, 1, 31)),
        ("yesterday", date(2026, 1, 30)),
        ("2025-12-24", date(2025, 12, 24)),
    ],
)
def test_a_day_is_named_by_date_or_by_word(text: str, expected: date) -> None:
    assert parse_day(text, now=NOW) == expected


@pytest.mark.parametrize(
    ("text", "said"), [("monday", "write one as 2026-01-31"), ("2026-02-01", "has not begun")]
)
def test_what_is_not_a_day_that_has_begun_is_refused_in_words(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        parse_day(text, now=NOW)


def test_reasons_that_want_a_look_come_before_dearer_ones_that_do_not() -> None:
    assert [each.reason for each in BUSY.reasons] == [
        *("unknown", "gpu_oom"),
        "preempted",
        "completed",
    ]


def test_the_headline_tells_the_day_in_a_few_sentences() -> None:
    # (99999 + 36000 + 3600 + 7200) / 3600 = 40.78 h
    assert headline(BUSY) == (
        "2026-01-30 UTC: 13 attempts ended, 3 failed, 9 interrupted, 1 as meant. They took 40.78 "
        "device hours and lost 12 steps. 5 things of this day need a person. 1 run of earlier days "
        "still needs one."
    )
    assert headline(review(is_over=False)) == (
        "2026-01-30 UTC (so far): no attempt ended. Nothing of this day needs a person."
    )


@pytest.mark.parametrize("red", ["unexplained_count", "unevaluated_count"])
def test_a_day_with_a_red_check_needs_a_person(red: str) -> None:
    result = review(**{red: 1})
    assert result.is_bad_news
    assert "1 thing of this day needs a person." in headline(result)
    assert numbers(result)["needs_a_person"] == 1


def test_an_attempt_without_a_verdict_whose_run_is_a_matter_counts_once() -> None:
    both = replace(BUSY, unexplained_in_matters=2)
    assert numbers(both)["needs_a_person"] == 3
    assert "3 things of this day need a person." in headline(both)


def test_the_tables_begin_with_what_nobody_knows_and_end_with_what_went_well() -> None:
    result = sections(BUSY)
    assert [each.title for each in result] == [
        "Without a verdict",
        "Needs a person",
        "Failures",
        "Failed attempts",
        "Interruptions",
        "Ended as meant",
    ]
    assert [each.left_out for each in result] == [1, 2, 0, 2, 0, 0]


def test_markdown_is_bounded_and_whole_in_each_row() -> None:
    text = markdown(BUSY)
    assert "SIGKILL \\| and more" in text
    assert max(len(line) for line in text.splitlines()) < 500
    assert "2 more are not shown." in text
    widths = {line.replace("\\|", "").count("|") for line in text.splitlines() if "|" in line}
    assert widths == {5, 8, 9}  # of 4, 7 and 8 columns


def test_numbers_are_what_a_chart_can_show_with_units_in_their_names() -> None:
    result = numbers(BUSY)
    assert result["device_hours_of_failures"] == 3.0
    assert result["device_hours_of_interruptions"] == 10.0
    assert (result["attempts_without_verdict"], result["needs_a_person"]) == (2, 5)
    assert not any("cost" in name for name in result)


def test_money_is_reported_only_with_prices_and_says_what_has_none() -> None:
    priced = review(
        reasons=(
            counted("gpu_oom", "memory and disk", 1, 3600.0, cost=2.5),
            counted("hang", "coordination", 1, 3600.0),
        ),
        currency="USD",
        unpriced_device_s=3600.0,
    )
    result = numbers(priced)
    assert (result["cost_usd"], result["cost_of_failures_usd"]) == (2.5, 2.5)
    assert result["device_hours_without_price"] == 1.0
    assert "2.00 device hours (2.50 USD)" in headline(priced)
    assert [row[-1] for row in sections(priced)[0].rows] == ["2.50", "no price"]


def test_a_red_check_names_whom_it_means_and_what_to_do() -> None:
    assert "has a verdict" in describe_unexplained(review())
    said = describe_unexplained(BUSY)
    assert "2 failed attempts without a verdict: u/a01, and 1 more." in said
    assert "tracks reclassify" in said
    assert "has the eval" in describe_unevaluated(review())
    promoted = UnevaluatedPromotion(run_id="r", step=40, alias="best", eval_id="loss@40")
    said = describe_unevaluated(review(unevaluated=(promoted,), unevaluated_count=1))
    assert "1 promotion without a completed eval: r@40 as best." in said
    assert "tracks promote" in said


@pytest.mark.parametrize(
    ("device_s", "said"), [(0.0, "0"), (6.0, "0.00167"), (3600.0, "1.00"), (4.5e9, "1,250,000.00")]
)
def test_hours_are_short_at_every_size(device_s: float, said: str) -> None:
    assert hours(device_s) == said
