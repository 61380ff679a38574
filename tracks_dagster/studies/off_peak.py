"""The hours in which a study may start the runs of its trials. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.text.units import shown, time_zone

SATURDAY = 5  # of date.weekday
MINUTE = timedelta(minutes=1)
AHEAD_MAX = 3 * 24 * 60  # minutes: where clocks are put forward, a day may lack the hours
_TEXT = re.compile(r"(\d\d:\d\d)-(\d\d:\d\d)( and weekends)?(?: (\S+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPeak:
    """From `begin` to `end` each day, over midnight where it is not after it, in the clock of `zone`;
    with weekends: Saturday and Sunday whole."""

    begin: time
    end: time
    with_weekends: bool
    zone: ZoneInfo

    def opens_at(self, now: datetime) -> datetime | None:
        """Return when runs may start, in UTC; None where they may now."""
        if self._is_open(now):
            return None
        minute = now.astimezone(UTC).replace(second=0, microsecond=0)
        ahead = (minute + count * MINUTE for count in range(1, AHEAD_MAX))
        return next(each for each in ahead if self._is_open(each))

    def _is_open(self, at: datetime) -> bool:
        local = at.astimezone(self.zone)
        if self.with_weekends and local.weekday() >= SATURDAY:
            return True
        clock = local.time()
        if self.begin < self.end:
            return self.begin <= clock < self.end
        return clock >= self.begin or clock < self.end


def wait_words(hours: str, now: datetime) -> str:
    """Say that no run of a study with these hours starts now, and from when on; empty where one may.

    Where this machine cannot read the hours, say that: another one may have recorded them.
    """
    try:
        at = off_peak(hours).opens_at(now) if hours else None
    except InvalidInput as error:
        return f"No run starts here: {error}"
    if at is None:
        return ""
    return f"No run starts before {at:%Y-%m-%d %H:%M} UTC: off-peak is {hours}."


def off_peak(text: str) -> OffPeak:
    """Return the hours of a text such as "22:00-06:00 and weekends Europe/Paris", by UTC where it names
    no zone; raises InvalidInput."""
    found = _TEXT.fullmatch(text)
    valid = (
        'write for example "22:00-06:00 Europe/Paris", or "22:00-06:00 and weekends Europe/Paris"'
    )
    if found is None:
        raise InvalidInput(f"{shown(text)} are not hours; {valid}.")
    try:
        begin, end = time.fromisoformat(found[1]), time.fromisoformat(found[2])
    except ValueError:
        raise InvalidInput(f"{shown(text)} has a time that no day has; {valid}.") from None
    if begin == end:
        raise InvalidInput(f"{shown(text)} begins when it ends; leave it out for the whole day.")
    try:
        zone = time_zone(found[4] or "UTC")
    except ValueError as error:
        raise InvalidInput(str(error)) from None
    return OffPeak(begin=begin, end=end, with_weekends=found[3] is not None, zone=zone)
