"""What an open page is sent: what differs, and from it comes the page again."""

from __future__ import annotations

import json
import os
import random

import pytest

from tests.wings.watch.board.conftest import applied
from tracks_dagster.wings.watch.board.difference import Piece, difference

LINES = ("", "</tr>", "</tr>", '<td class="number">', "12 34", "12 35", "Größe", "schön 🚂", "🚂🚃")


@pytest.mark.parametrize(
    ("before", "after", "pieces"),
    [
        ("a\nb\nc", "a\nb\nc", [(0, 3)]),
        ("a\nb\nc", "a\nc", [(0, 1), (2, 1)]),
        ("a\nc", "a\nb\nc", [(0, 1), "b", (1, 1)]),
        ("a\nb\nc", "c\na\nb", [(2, 1), "a", "b"]),  # what moved up is sent again
        ("points 1 2/>", "points 1 2 3/>", [(0, 10, " 3", 2)]),  # of a curve its new points
        ("aa", "aaa", [(0, 2, "a", 0)]),
        ("🚂 1", "🚂 2", [(0, 3, "2", 0)]),  # units of UTF-16
        ("", "", [(0, 1)]),
    ],
)
def test_only_what_differs_is_sent(before: str, after: str, pieces: list[Piece]) -> None:
    assert difference(before, after) == pieces


def test_the_page_after_comes_of_the_page_before_and_what_differs() -> None:
    seed = int(os.environ.get("TRACKS_DIFFERENCE_SEED", random.randrange(2**32)))
    print(f"TRACKS_DIFFERENCE_SEED={seed}")
    chance = random.Random(seed)
    for _ in range(500):
        before, after = ("\n".join(chance.choices(LINES, k=chance.randrange(12))) for _ in range(2))
        sent = json.loads(json.dumps(difference(before, after)))
        assert applied(sent, before) == after, (before, after)
