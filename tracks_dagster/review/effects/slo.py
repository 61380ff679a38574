"""Read from the ledger how long the workload classes waited, and tell of a class that misses.

The objectives are those of the policy as it is now, for every stretch of time. The account of time is
that of `goodput`: an attempt's wait ends with its first rank, of an open one when its ranks have come
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tracks_dagster.ledger.effects.ticks import Tick
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ledger_views import select_as_of, without_comments
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.timeline import EPOCH, micros
from tracks_dagster.review.daily import day_bounds
from tracks_dagster.review.slo import Judged, Wait, Waits, judge, missed, objectives
from tracks_dagster.scheduling.policy import SchedulingPolicy
from tracks_dagster.track.bodies import Alert
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import ALERT_OBJECTIVE_MISSED
from tracks_dagster.track.records import Json, Kind, format_time
from tracks_dagster.track.unforeseen import problem_of

DAY = timedelta(days=1)
LOOK_EVERY = timedelta(minutes=10)  # for a class that misses


@dataclass(frozen=True, slots=True, kw_only=True)
class SloReport:
    """What the classes waited since a time, judged by their objectives."""

    since: str
    as_of: str
    judged: tuple[Judged, ...]


def read_slo(
    ledger: Ledger, policy: SchedulingPolicy, *, as_of: datetime, last: timedelta
) -> SloReport:
    """Return the report on what was over in the time `last` before `as_of`. Raises LedgerError."""
    since = EPOCH + max(timedelta(), as_of - EPOCH - last)
    table, given = _objectives(policy)
    sql = Path(__file__).with_name("sql").joinpath("slo.sql").read_text("utf-8")
    query = without_comments(sql).replace("{objectives}", table).replace("{evaluated}", _EVALUATED)
    rows = ledger.query(
        select_as_of(query),
        {
            **given,
            "as_of_us": micros(as_of),
            "since_us": micros(since),
            "default_class": policy.default_class,
        },
    )
    judged = judge(policy.classes, map(_waits, rows))
    return SloReport(since=format_time(since), as_of=format_time(as_of), judged=judged)


def tell_of_misses(
    tracks: Tracks, ledger: Ledger, policy: SchedulingPolicy, *, now: datetime
) -> Tick[str]:
    """Append an alert for each class that misses an objective on the last day, once a day (UTC).

    The alert is in the track of the run that waited longest. decided: those appended.
    Raises LedgerError.
    """
    day = now.date().isoformat()
    alerted, problems = [], []
    for each in missed(read_slo(ledger, policy, as_of=now, last=DAY).judged):
        mark = {"workload_class": each.workload_class, "wait": each.wait.value, "day": day}
        if each.waits is None or _is_alerted(ledger, mark, now):
            continue
        run_id, text = each.waits.longest_run_id, f"On the last day, {each.sentence}."
        body = Alert(rule=ALERT_OBJECTIVE_MISSED, text=text, data=mark)
        try:
            tracks.note_run(run_id, tracks.draft(Kind.ALERT, body))
        except Exception as error:  # noqa: BLE001 - of that run alone
            problems.append(f"{run_id}: {problem_of(error)}")
            continue
        alerted.append(f"{run_id}: alert: {each.sentence}")
    return Tick(decided=tuple(alerted), problems=tuple(problems))


def _is_alerted(ledger: Ledger, mark: Mapping[str, Json], now: datetime) -> bool:
    """Whether an alert of today says it, of any run."""
    rows = ledger.query(
        "select data_json from notes where kind = 'alert' and author = :rule and noted_at >= :begin",
        {"rule": ALERT_OBJECTIVE_MISSED, "begin": format_time(day_bounds(now.date())[0])},
    )
    return any(mark.items() <= parse_json(str(row["data_json"])).items() for row in rows)


# All tries of an eval are looked at together, and of runs long ago none.
_EVALUATED = "select run_id from evals where ended_us is null or ended_us >= :since_us"


def _objectives(policy: SchedulingPolicy) -> tuple[str, dict[str, Json]]:
    """Return a SELECT of (workload_class, wait, objective_s), and its parameters."""
    selects: list[str] = []
    given: dict[str, Json] = {}
    for name, rule in policy.classes.items():
        for wait, objective_s in objectives(rule).items():
            number = len(selects)
            given |= {f"class_{number}": name, f"objective_{number}": objective_s}
            selects.append(
                f"select cast(:class_{number} as text) as workload_class, "
                f"cast('{wait.value}' as text) as wait, "
                f"cast(:objective_{number} as double precision) as objective_s"
            )
    return " union all ".join(selects), given


def _waits(row: Mapping[str, Json]) -> Waits:
    return Waits(
        workload_class=row["workload_class"],
        wait=Wait(row["wait"]),
        count=row["waits"],
        still=row["still"],
        late=row["late"],
        p50_s=row["p50_s"],
        p95_s=row["p95_s"],
        longest_s=row["longest_s"],
        longest_run_id=row["longest_run_id"],
    )
