"""Lists alerts by the ledger: the open ones, and those of a stretch of time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.bodies import Alert
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import pool_named
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.states.alerts import AlertState
from tracks_dagster.track.states.mute_state import Mute
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.wings.watch.health.rules import RULES, command_of, runbook_of, severity_of

ALERTS_MAX = 500

_ALERTS = """
select n.run_id, n.seq, n.attempt_id, n.author, n.text, n.data_json, n.severity, n.light,
       n.noted_at, n.cleared_at, n.cleared_why
from notes n
where n.kind = 'alert'
  and (:run_id is null or n.run_id = :run_id)
  and (:rule is null or n.author = :rule)
  and (:since is null or n.noted_at >= :since)
  and (:ended = 1 or n.cleared_at is null)
order by n.noted_at desc, n.run_id, n.seq desc
limit :alerts_max
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertLine:
    """One alert, of a run, or of a machine in a pool. cleared_at, cleared_why: None while it is open.

    muted: why and until when nobody is sent it, None where it is sent. runbook: None for a rule that
    is unknown here.
    """

    run_id: str | None
    pool: str | None
    seq: int
    attempt_id: int | None
    rule: str
    severity: str
    light: str | None
    text: str
    at: str
    cleared_at: str | None
    cleared_why: str | None
    runbook: str | None
    command: str
    muted: str | None = None


def read_alerts(
    tracks: Tracks,
    ledger: Ledger,
    *,
    run_id: str | None = None,
    rule: str | None = None,
    since: datetime | None = None,
    ended: bool = False,
) -> AlertList:
    """Return the newest alerts, at most ALERTS_MAX, newest first; ended: also those that are over.

    Raises LedgerError.
    """
    problems: list[str] = []
    asked = {
        "run_id": run_id,
        "rule": rule,
        "since": None if since is None else format_time(since),
        "ended": int(ended),
        "alerts_max": ALERTS_MAX,
    }
    mutes, now = None, tracks.now()
    try:
        mutes = tracks.find_mutes()
    except Exception as error:  # noqa: BLE001 - of the mutes alone
        problems.append(f"Mutes are not known: {problem_of(error)}")
    rows = ledger.query(_ALERTS, asked)
    for pool in _pools(ledger) if run_id is None else ():
        try:
            rows += _of_machines(tracks, pool, rule=rule, since=since, ended=ended)
        except Exception as error:  # noqa: BLE001 - of that pool alone
            problems.append(f"The alerts of pool {pool} are not known: {problem_of(error)}")
    lines = []
    for row in sorted(rows, key=lambda row: row["noted_at"], reverse=True)[:ALERTS_MAX]:
        try:
            mute = None if mutes is None else mutes.mute_of(row["author"], row["run_id"], now)
            lines.append(_line(row, mute))
        except Exception as error:  # noqa: BLE001 - of that alert alone
            whose = row["run_id"] or row.get("pool")
            problems.append(f"Alert {row['seq']} of {whose} is not shown: {problem_of(error)}")
    in_force = () if mutes is None else mutes.in_force(now)
    return AlertList(lines=tuple(lines), mutes=in_force, problems=tuple(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertList:
    """Alerts, newest first. mutes: that hold now; problems: what could not be read, in words."""

    lines: tuple[AlertLine, ...]
    mutes: tuple[Mute, ...]
    problems: tuple[str, ...]


def _pools(ledger: Ledger) -> list[str]:
    rows = ledger.query(
        "select track from track_cursors where track >= 'pools/' and track < 'pools0'"
    )
    return [pool_named(row["track"]) for row in rows]


def _of_machines(
    tracks: Tracks, pool: str, *, rule: str | None, since: datetime | None, ended: bool
) -> list[dict[str, Json]]:
    """Return the alerts of a pool as rows of `_ALERTS`: those are in no table."""
    state, found = tracks.find_pool(pool), []
    for alert in () if state is None else state.alerts:
        is_asked = (ended or alert.is_open) and rule in (None, alert.body.rule)
        if is_asked and (since is None or alert.at >= since):
            found.append(_row(pool, alert))
    return found


def _row(pool: str, alert: AlertState) -> dict[str, Json]:
    return {
        "run_id": None,
        "pool": pool,
        "seq": alert.seq,
        "attempt_id": None,
        "author": alert.body.rule,
        "text": alert.body.text,
        "data_json": json.dumps(dict(alert.body.data)),
        "severity": alert.body.severity,
        "light": alert.body.light,
        "noted_at": alert.at,
        "cleared_at": alert.cleared_at,
        "cleared_why": alert.cleared_why,
    }


def describe_mute(mute: Mute) -> str:
    """Return a mute in words."""
    whose = f" of {mute.body.run_id}" if mute.body.run_id is not None else ""
    until = f"{format_time(mute.until_at)[:19]}Z"
    return f"{mute.body.rule}{whose} is muted until {until} by {mute.body.by}: {mute.body.why}"


def _line(row: Mapping[str, Json], mute: Mute | None) -> AlertLine:
    name = row["author"]
    body = Alert(
        rule=name,
        text=row["text"],
        data=parse_json(row["data_json"]),
        severity=row["severity"],
        light=row["light"],
    )
    rule, over_at = RULES.get(name), row["cleared_at"]
    return AlertLine(
        run_id=row["run_id"],
        pool=row.get("pool"),
        seq=row["seq"],
        attempt_id=row["attempt_id"],
        rule=name,
        severity=severity_of(body),
        light=body.light or (rule.light.value if rule is not None else None),
        text=body.text,
        at=format_time(row["noted_at"]),
        cleared_at=None if over_at is None else format_time(over_at),
        cleared_why=row["cleared_why"],
        runbook=runbook_of(name),
        command=command_of(name, row["run_id"]),
        muted=None if mute is None or over_at is not None else describe_mute(mute),
    )
