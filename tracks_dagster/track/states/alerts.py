"""Alerts of a track as episodes: each begins with an `alert`, and is open until something ends it.

An episode ends with its `alert_cleared`. In a run's track it ends without one where its cause is gone
by the record itself: what was raised about an attempt ends with that attempt, what was raised before
there was a gang ends when one is placed, and everything ends with the run. So no alert stays open
because a daemon was off, and alerts of older versions, which no record cleared, are over too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from tracks_dagster.track.bodies import Alert, AlertCleared
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertState:
    """One `alert`. cleared_seq, cleared_at, cleared_why: of what ended its episode; None while open."""

    seq: int
    at: datetime
    attempt_id: int | None
    body: Alert
    cleared_seq: int | None = None
    cleared_at: datetime | None = None
    cleared_why: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether its episode is not over."""
        return self.cleared_seq is None


Alerts = tuple[AlertState, ...]


def open_alerts(alerts: Alerts) -> Alerts:
    """Return those whose episode is not over, the oldest first."""
    return tuple(each for each in alerts if each.is_open)


def raised(alerts: Alerts, record: Record) -> Alerts:
    """Take in an `alert`."""
    body = body_of(Alert, record)
    added = AlertState(seq=record.seq, at=record.at, attempt_id=record.attempt_id, body=body)
    return (*alerts, added)


def cleared(alerts: Alerts, record: Record) -> Alerts:
    """Take in an `alert_cleared`; where no such episode is open, nothing changes."""
    body = body_of(AlertCleared, record)
    return ended(alerts, record, body.why, lambda each: each.seq == body.alert_seq)


def ended(
    alerts: Alerts, record: Record, why: str, is_over: Callable[[AlertState], bool]
) -> Alerts:
    """End the open episodes for which `is_over` holds, by `record`; the same tuple where none is."""
    if not any(each.is_open and is_over(each) for each in alerts):
        return alerts
    end = {"cleared_seq": record.seq, "cleared_at": record.at, "cleared_why": why}
    return tuple(
        replace(each, **end) if each.is_open and is_over(each) else each  # type: ignore[arg-type]
        for each in alerts
    )
