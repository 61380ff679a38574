"""Lines and columns of a terminal: no word of a table is cut, no command is broken that fits."""

from __future__ import annotations

import pytest

from tracks_dagster.track.text.wrapping import breaks_a_cell, column_widths, wrap_line


@pytest.mark.parametrize(
    ("line", "width", "lines"),
    [
        ("short", 10, ["short"]),
        ("one two three", 8, ["one two", "three"]),
        ("  indented one two", 12, ["  indented", "    one two"]),
        ("see `tracks status` now", 18, ["see", "`tracks status`", "now"]),
        ("see `tracks status now` ok", 12, ["see", "`tracks status now`", "ok"]),  # to be copied
        ("a wholly-unbreakable-word b", 10, ["a", "wholly-unbreakable-word", "b"]),
    ],
)
def test_a_line_is_broken_between_words(line: str, width: int, lines: list[str]) -> None:
    assert wrap_line(line, width).split("\n") == lines


def test_every_column_has_room_for_its_words_and_the_shorter_ones_for_all() -> None:
    rows = [("reason", "what follows"), ("node_drained", "the next attempt at once, elsewhere")]
    assert column_widths(rows, 60) == [12, 35]
    assert column_widths(rows, 32) == [12, 20]
    assert column_widths(rows, 22) == [12, 10]  # "elsewhere" and 1 to spare
    assert column_widths(rows, 20) is None
    assert column_widths(rows, 45, whole=[1]) is None


def test_a_letter_of_two_columns_is_counted_as_two() -> None:
    rows = [("run", "name"), ("r-1", "宽模型")]
    assert column_widths(rows, 40) == [3, 6]
    assert breaks_a_cell(rows, [3, 5])
    assert not breaks_a_cell(rows, [3, 6])
