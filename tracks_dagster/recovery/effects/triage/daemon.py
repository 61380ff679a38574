"""What the daemon does about a run by itself, as far as its last heartbeat tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tracks_dagster.attempts.effects.heartbeat import Heartbeat, describe_launch
from tracks_dagster.recovery.triage_signs import DAEMON_AGE_S_MAX
from tracks_dagster.track.names import LAUNCH_ATTEMPTS, RUN_EVALS
from tracks_dagster.track.records import format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """at: when it ticked last, None where none ever did; ticks: whether that was just now. openers: the
    sensors that open attempts and were switched on then, whether it still ticks or not. late: what
    became of launches that do not come, by the key of an attempt, or of an attempt at an eval.
    """

    at: str | None
    ticks: bool
    openers: tuple[str, ...]
    late: Mapping[str, str] = field(default_factory=dict)


def daemon_of(heartbeat: Heartbeat | None, now: datetime) -> Daemon:
    """Return what the last heartbeat tells of the daemon."""
    if heartbeat is None:
        return Daemon(at=None, ticks=False, openers=())
    others = (LAUNCH_ATTEMPTS, RUN_EVALS)
    openers = (name for name, on in heartbeat.sensors.items() if on and name not in others)
    return Daemon(
        at=format_time(heartbeat.at),
        ticks=(now - heartbeat.at).total_seconds() <= DAEMON_AGE_S_MAX,
        openers=tuple(sorted(openers)),
        late={
            each.key: words for each in heartbeat.launches if (words := describe_launch(each, now))
        },
    )
