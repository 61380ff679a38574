"""Review one day from the ledger: what ended, what it cost, what needs a person.

Reads the ledger and nothing else, a bounded number of rows of each kind; writes nothing.
The values are in `review.daily`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.reasons.endings import Ending
from tracks_dagster.review.daily import (
    EndedAttempt,
    Matter,
    MatterKind,
    Matters,
    ReasonCount,
    Review,
    UnevaluatedPromotion,
    day_bounds,
    in_order,
)
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.reasons import ReasonFamily, TerminationReason
from tracks_dagster.track.records import Json, format_time

ROWS_MAX = 50  # of a list; what is left out is counted
FAILURES_MAX = 10  # attempts named for one reason

Rows = Sequence[Mapping[str, Json]]


def review_day(ledger: Ledger, day: date, *, now: datetime, prices: Prices | None = None) -> Review:
    """Review `day` (UTC) as the ledger is now; without prices there is no money in it.

    An attempt belongs to the day on which its end was recorded, so that none falls between two
    reviews. Raises LedgerError.
    """
    asked = _Day.of(ledger, day)
    costs, unpriced_s = _costs(asked, prices)
    reasons = in_order(_reason(row, costs) for row in asked.rows("reasons"))
    unexplained = asked.rows(
        "unexplained",
        as_meant=ReasonFamily.AS_MEANT.value,
        unknown=TerminationReason.UNKNOWN.value,
        rows_max=ROWS_MAX,
    )
    unevaluated = asked.rows("unevaluated", rows_max=ROWS_MAX)
    return Review(
        day=day,
        is_over=now >= day_bounds(day)[1],
        reasons=reasons,
        currency=prices.currency if prices is not None else None,
        unpriced_device_s=unpriced_s,
        failures=tuple(_failures(asked, reasons)),
        unexplained=tuple(_ended(row) for row in unexplained),
        unexplained_count=_total(unexplained),
        unexplained_in_matters=int(unexplained[0]["matter_total"]) if unexplained else 0,
        matters=tuple(each for each in _matters(asked) if each.count),
        promoted_count=_total(asked.rows("promotions")),
        unevaluated=tuple(_unevaluated(row) for row in unevaluated),
        unevaluated_count=_total(unevaluated),
        earlier_count=_total(asked.rows("earlier")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Day:
    """The ledger, asked about one day."""

    ledger: Ledger
    begin: str
    end: str

    @classmethod
    def of(cls, ledger: Ledger, day: date) -> _Day:
        begin, end = day_bounds(day)
        return cls(ledger=ledger, begin=format_time(begin), end=format_time(end))

    def rows(self, name: str, **parameters: Json) -> Rows:
        """Run `sql/day_<name>.sql`."""
        sql = Path(__file__).with_name("sql").joinpath(f"day_{name}.sql").read_text("utf-8")
        return self.ledger.query(sql, {"begin": self.begin, "end": self.end, **parameters})


def _total(rows: Rows) -> int:
    """Return how many rows there are, those beyond the limit too."""
    return rows[0]["total"] if rows else 0


def _costs(asked: _Day, prices: Prices | None) -> tuple[Mapping[str, float], float]:
    """Return what each reason cost, and the device seconds that have no price."""
    if prices is None:
        return {}, 0.0
    costs: dict[str, float] = {}
    unpriced_s = 0.0
    for row in asked.rows("devices"):
        per_hour = prices.of(row["accelerator"], row["device_class"], pool=row["pool"])
        if per_hour is None:
            unpriced_s += row["device_s"]
        else:
            reason = row["termination_reason"]
            costs[reason] = costs.get(reason, 0.0) + row["device_s"] / 3600 * per_hour
    return costs, unpriced_s


def _reason(row: Mapping[str, Json], costs: Mapping[str, float]) -> ReasonCount:
    return ReasonCount(
        reason=row["termination_reason"],
        family=row["reason_family"],
        attempt_count=row["attempt_count"],
        run_count=row["run_count"],
        device_s=row["device_s"],
        kept_steps=row["kept_steps"],
        lost_steps=row["lost_steps"],
        cost=costs.get(row["termination_reason"]),
    )


def _failures(asked: _Day, reasons: Sequence[ReasonCount]) -> Iterator[EndedAttempt]:
    """Yield the dearest attempts of each reason that is a failure, so that none hides another."""
    for each in reasons:
        if each.ending is Ending.FAILURE:
            rows = asked.rows("failures", reason=each.reason, rows_max=FAILURES_MAX)
            yield from (_ended(row) for row in rows)


def _ended(row: Mapping[str, Json]) -> EndedAttempt:
    return EndedAttempt(
        key=row["partition_key"],
        reason=row["termination_reason"],
        confidence=row["confidence"] or 0.0,
        message=row["root_message"] or "",
        device_s=row["gpu_seconds"] or 0.0,
        lost_steps=row["lost_steps"],
        owner=row["owner"],
        run_state=row["run_state"],
    )


def _unevaluated(row: Mapping[str, Json]) -> UnevaluatedPromotion:
    return UnevaluatedPromotion(
        run_id=row["run_id"], step=row["step"], alias=row["alias"], eval_id=row["eval_id"]
    )


def _matters(asked: _Day) -> Iterator[Matters]:
    """Yield what needs a person, by kind."""
    for kind in (MatterKind.REFUSED, MatterKind.WAITING):
        rows = asked.rows("runs", state=kind.value, rows_max=ROWS_MAX)
        yield _all_of(kind, rows, [_run(kind, row) for row in rows])
    rows = asked.rows("aliases", rows_max=ROWS_MAX)
    yield _all_of(MatterKind.ALIAS, rows, [_alias(row) for row in rows])
    rows = asked.rows("sources", rows_max=ROWS_MAX)
    yield _all_of(MatterKind.SOURCE, rows, [_source(row) for row in rows])
    rows = asked.rows("evals", rows_max=ROWS_MAX)
    yield _all_of(MatterKind.EVAL, rows, [_eval(row) for row in rows])
    rows = asked.rows("alerts", rows_max=ROWS_MAX)
    yield _all_of(MatterKind.ALERT, rows, [_alert(row) for row in rows])
    rows = asked.rows("skips", rows_max=ROWS_MAX)
    yield _all_of(MatterKind.GATE, rows, [_skip(row) for row in rows])


def _all_of(kind: MatterKind, rows: Rows, shown: Sequence[Matter]) -> Matters:
    return Matters(kind=kind, count=_total(rows), shown=tuple(shown))


def _run(kind: MatterKind, row: Mapping[str, Json]) -> Matter:
    run_id = row["run_id"]
    to_do = f"tracks explain {run_id} (it says what to change, and the command that resumes)"
    return Matter(kind=kind, who=run_id, what=row["state_why"], to_do=to_do)


def _alias(row: Mapping[str, Json]) -> Matter:
    why = "is" if row["is_itself"] else f"descends from {row['called']}, which is"
    return Matter(
        kind=MatterKind.ALIAS,
        who=f"{row['run_id']}@{row['step']}",
        what=f"holds {row['alias']} and {why} in quarantine: do not serve it",
        to_do=f'tracks promote RUN@STEP --alias {row["alias"]} --why "…" with another one',
    )


def _source(row: Mapping[str, Json]) -> Matter:
    return Matter(
        kind=MatterKind.SOURCE,
        who=row["run_id"],
        what=f"uses {row['called']}, which is in quarantine: {row['why']}",
        to_do=f"tracks blast {row['source']}",
    )


def _eval(row: Mapping[str, Json]) -> Matter:
    return Matter(
        kind=MatterKind.EVAL,
        who=f"{row['run_id']}/{row['eval_id']}",
        what=f"try {row['number']} ended as {row['reason']}: {row['message']}",
        to_do=f"correct the cause, then tracks eval {row['run_id']}@{row['step']}, or "
        f'tracks waive {row["run_id"]} {row["suite"]} --why "…"',
    )


def _alert(row: Mapping[str, Json]) -> Matter:
    times = f" ({row['alert_count']} times)" if row["alert_count"] > 1 else ""
    return Matter(
        kind=MatterKind.ALERT,
        who=row["run_id"],
        what=f"{row['author']}{times}: {row['text']}",
        to_do=f"tracks explain {row['run_id']}",
    )


def _skip(row: Mapping[str, Json]) -> Matter:
    gates = ", ".join(parse_json(row["skipped_gates_json"]))
    return Matter(
        kind=MatterKind.GATE,
        who=row["run_id"],
        what=f"declared without {gates}, by {row['skipped_by']}: {row['skipped_why']}",
        to_do="ask whether it was worth it; docs/stages.md says what each gate shows",
    )
