"""A machine's own alert: an accelerator that nobody holds. Pure.

It is no run's, so its episodes are in the pool's track; they begin and end as those of a run.
"""

from __future__ import annotations

from datetime import datetime

from tracks_dagster.attempts.idle import IdleDay
from tracks_dagster.health.finding import Colour, Finding, Question
from tracks_dagster.health.rules import EPISODE_S_MIN, alert_of
from tracks_dagster.track.bodies import Alert, AlertCleared
from tracks_dagster.track.names import ALERT_DEVICE_UNHELD
from tracks_dagster.track.records import parse_time
from tracks_dagster.track.states.alerts import Alerts, open_alerts
from tracks_dagster.track.text.units import about, counted

UNHELD_S = 3600.0


def next_of_machine(alerts: Alerts, day: IdleDay, now: datetime) -> Alert | AlertCleared | None:
    """Return the next episode to begin or to end. alerts: of the pool's track; day: of its devices."""
    idle_s = unheld_s(day, now)
    long = tuple(name for name, seconds in idle_s.items() if seconds >= UNHELD_S)
    standing = [each for each in open_alerts(alerts) if each.body.rule == ALERT_DEVICE_UNHELD]
    for each in standing:
        named = set(each.body.data.get("about", ()))
        lasted_s = (now - each.at).total_seconds()
        if not named & set(idle_s) and lasted_s >= EPISODE_S_MIN:
            return AlertCleared(
                rule=ALERT_DEVICE_UNHELD, alert_seq=each.seq, why="It is held, used or gone."
            )
    told = {name for each in standing for name in each.body.data.get("about", ())}
    new = tuple(name for name in long if name not in told)
    if not new:
        return None
    longest = max(idle_s[name] for name in new)
    finding = Finding(
        rule=ALERT_DEVICE_UNHELD,
        severity=Colour.YELLOW,
        light=Question.RESOURCES,
        sentence=(
            f"Nobody has held {counted(len(new), 'accelerator')} of {day.node} for {about(longest)}."
        ),
        numbers={"node": day.node, "devices": len(new), "idle_s": round(longest)},
        about=new,
    )
    return alert_of(finding)


def unheld_s(day: IdleDay, now: datetime) -> dict[str, float]:
    """Return how long each device that nobody holds has been so, in seconds, as far as it was seen."""
    return {
        name: max(0.0, (now - parse_time(device.idle_since)).total_seconds())
        for name, device in day.devices.items()
        if device.idle_since is not None
    }
