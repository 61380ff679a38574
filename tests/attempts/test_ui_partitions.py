"""Which partitions leave Dagster's UI, and that nothing of an unfinished run does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.bodies import BEGIN
from tracks_dagster.attempts.effects.watch import leaving

DAY = timedelta(days=1)
KEYS = ["old/a01", "old/a02", "new/a01/step-10", "open/a01", "older/loss@40"]
FINISHED = {"old": BEGIN - 91 * DAY, "older": BEGIN - 92 * DAY, "new": BEGIN - 2 * DAY}


@pytest.mark.parametrize(
    ("days", "keys_max", "left"),
    [
        (90, 100, ["older/loss@40", "old/a01", "old/a02"]),
        (91.5, 100, ["older/loss@40"]),
        (1000, 100, []),
        (1000, 5, []),
        (1000, 3, ["older/loss@40", "old/a01"]),  # 5 keys, 2 too many: the oldest
        (1000, 0, ["older/loss@40", "old/a01", "old/a02", "new/a01/step-10"]),  # never open ones
    ],
)
def test_what_is_old_or_too_much_leaves_and_the_first_to_finish_goes_first(
    days: float, keys_max: int, left: list[str]
) -> None:
    assert leaving(KEYS, FINISHED, BEGIN, keep_days=days, keys_max=keys_max) == left


def test_a_run_that_finished_today_stays_however_many_there_are() -> None:
    finished = {"old": BEGIN - timedelta(hours=23)}
    assert leaving(KEYS, finished, BEGIN, keep_days=90, keys_max=0) == []
