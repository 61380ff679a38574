"""The hours in which a study may start trials."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tracks_dagster.studies.off_peak import off_peak
from tracks_dagster.track.errors import InvalidInput


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("hours", "now", "opens"),
    [
        ("22:00-06:00", "2026-11-25 21:59", "2026-11-25 22:00"),
        ("22:00-06:00", "2026-11-25 22:00", None),
        ("22:00-06:00", "2026-11-26 05:59", None),
        ("22:00-06:00", "2026-11-26 06:00", "2026-11-26 22:00"),
        ("09:00-12:00", "2026-11-26 12:00", "2026-11-27 09:00"),
        ("22:00-06:00 Europe/Paris", "2026-11-25 20:59", "2026-11-25 21:00"),
        ("22:00-06:00 and weekends", "2026-11-28 12:00", None),  # a Saturday
        ("22:00-23:00 and weekends", "2026-11-27 23:30", "2026-11-28 00:00"),
        ("22:00-06:00 and weekends", "2026-11-30 09:00", "2026-11-30 22:00"),
        # Clocks go back at 03:00 of 25 October, and forward at 02:00 of 28 March.
        ("22:00-06:00 Europe/Paris", "2026-10-25 04:30", None),
        ("22:00-06:00 Europe/Paris", "2026-10-25 05:00", "2026-10-25 21:00"),
        ("02:30-06:00 Europe/Paris", "2026-10-24 23:00", "2026-10-25 00:30"),
        ("02:30-06:00 Europe/Paris", "2027-03-28 00:00", "2027-03-28 01:00"),
        ("02:10-02:50 Europe/Paris", "2027-03-28 00:00", "2027-03-29 00:10"),  # not on that day
        ("02:30-04:00 Europe/Paris", "2026-10-25 01:00", "2026-10-25 01:30"),  # 02:30 again
    ],
)
def test_runs_start_in_the_hours_alone(hours: str, now: str, opens: str | None) -> None:
    assert off_peak(hours).opens_at(at(now)) == (None if opens is None else at(opens))


@pytest.mark.parametrize(
    ("hours", "why"),
    [
        ("at night", "'at night' are not hours; write for example"),
        ("22:00-25:00", "a time that no day has"),
        ("22:00-22:00", "leave it out for the whole day"),
        ("22:00-06:00 Europe", "'Europe' is not a time zone"),
        ("22:00-06:00 Mars/Base", "'Mars/Base' is not a time zone"),
    ],
)
def test_what_are_not_hours_is_refused(hours: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        off_peak(hours)
