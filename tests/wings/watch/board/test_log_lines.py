"""The logs of all ranks as one: their order, what is chosen of them, and the first traceback."""

from __future__ import annotations

import pytest

from tracks_dagster.wings.watch.board.log_lines import (
    ALL,
    BEFORE_TRACEBACK,
    ERRORS,
    LINES_MAX,
    TRACEBACK,
    WARNINGS,
    LogAsked,
    chosen,
    first_traceback,
    in_order,
    log_page,
    order_words,
    time_of,
)

FIRST = """starting
2026-11-28 10:00:01,500 INFO step 1
2026-11-28 10:00:03 ERROR a rank is gone
"""
SECOND = f"""2026-11-28T10:00:02Z WARNING slow
{TRACEBACK}:
  File "train.py", line 12, in step
ValueError: no
2026-11-28T10:00:04Z INFO end
"""


def asked(**changes: object) -> LogAsked:
    """Return what a page is asked for."""
    return LogAsked(attempt_id=1, **changes)  # type: ignore[arg-type]


def test_lines_of_all_ranks_come_by_time_and_a_traceback_stays_together() -> None:
    found = [(line.rank, line.text[-9:]) for line in in_order({0: FIRST, 1: SECOND})]
    assert [rank for rank, _ in found] == [0, 0, 1, 1, 1, 1, 0, 1]
    assert found[0] == (0, "starting")


def test_a_clock_that_goes_back_moves_no_line_before_one_of_its_own_rank() -> None:
    text = "2026-11-28 10:00:05 a\n2026-11-28 10:00:01 b\n"
    assert [line.text[-1] for line in in_order({0: text})] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("1970-01-01 00:00:10 a", 10.0),
        ("[1970-01-01T00:00:10.250Z] a", 10.25),
        ("INFO 1970-01-01 00:00:10,5 a", 10.5),
        ("1970-01-01T01:00:10+01:00 a", 10.0),
        ("1970-13-41 00:00:10 a", None),
        ("step 12", None),
        (f"{' ' * 60}1970-01-01 00:00:10", None),
    ],
)
def test_the_time_of_a_line_is_what_it_begins_with(line: str, seconds: float | None) -> None:
    assert time_of(line) == seconds


def test_lines_are_chosen_by_rank_level_and_text() -> None:
    lines = in_order({0: FIRST, 1: SECOND})
    assert {line.rank for line in chosen(lines, rank=1)} == {1}
    errors = [line.text for line in chosen(lines, level=ERRORS)]
    assert [text.split()[0] for text in errors] == ["Traceback", "ValueError:", "2026-11-28"]
    assert len(chosen(lines, level=WARNINGS)) == len(errors) + 1
    assert [line.text for line in chosen(lines, text="VALUEerror")] == ["ValueError: no"]
    assert len(chosen(lines, level=ALL)) == len(lines)


def test_the_first_traceback_is_found_and_marked() -> None:
    lines = in_order({0: FIRST, 1: SECOND})
    at = first_traceback(lines)
    assert at is not None
    assert lines[at].begins_traceback
    page = log_page("r-1", {0: FIRST, 1: SECOND}, asked(), attempts=[1], is_cut=False)
    assert page.mark == at
    assert page.lines[page.mark].begins_traceback
    assert log_page("r-1", {0: FIRST}, asked(), attempts=[1], is_cut=False).traceback is None


def test_a_page_shows_the_end_and_leads_to_what_is_before() -> None:
    text = "".join(f"line {number}\n" for number in range(3 * LINES_MAX))
    text = f"{text[:5000]}{TRACEBACK}\n{text[5000:]}"
    page = log_page("r-1", {0: text}, asked(), attempts=[1], is_cut=True)
    assert len(page.lines) == LINES_MAX
    assert page.lines[-1].text == f"line {3 * LINES_MAX - 1}"
    assert (page.newer, page.mark) == (None, None)
    assert page.older is not None
    assert page.traceback is not None
    there = log_page("r-1", {0: text}, asked(first=page.traceback), attempts=[1], is_cut=True)
    assert there.mark == BEFORE_TRACEBACK
    assert there.newer == page.traceback + LINES_MAX
    assert "the download has all" in page.words


def test_an_address_keeps_what_was_chosen() -> None:
    page = log_page(
        "r-1", {0: FIRST}, asked(rank=0, level=ERRORS, text="a b"), attempts=[1], is_cut=False
    )
    assert page.at(7) == "?attempt=1&rank=0&level=errors&text=a+b&first=7"
    assert page.query == "attempt=1&rank=0"


def test_how_several_ranks_are_ordered_is_said() -> None:
    assert order_words(in_order({0: "a\n"})) == ""
    assert "No rank prints times" in order_words(in_order({0: "a\n", 1: "b\n"}))
    words = order_words(in_order({0: FIRST, 1: "b\n"}))
    assert (
        words == "Ordered by the times that the lines begin with. Without times, so first: rank 1."
    )
