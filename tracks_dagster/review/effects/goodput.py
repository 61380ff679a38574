"""Where the device hours went, what failures cost, how fast runs came back: the ledger's account.

The attempts that count are those that ended since a time, or are open, each with all of its seconds.
The words are the field's, and this is what they mean here:

- ettr_wall: kept step seconds by all seconds, queue and idle included: the effective training time
  ratio of a job run (Kokolis et al., "Revisiting Reliability in Large-Scale ML Research Clusters").
- ettr: kept step seconds divided by the seconds in which attempts held devices.
- gpu_goodput: device seconds of kept steps divided by all device seconds held.
- MTBI: seconds in which attempts held devices, by interruptions: ends that nobody meant, without
  planned drains of nodes. MTTR: mean time from such an end of the ranks to the run's next restore.
- time to detect: mean time from a hang's last step, else from the ranks' end, to its record.
- a dead retry: one that ended, not as meant, without a step that the run kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tracks_dagster.attempts.effects.idle import read_days
from tracks_dagster.attempts.idle import Nobody, idle_total
from tracks_dagster.ledger.ledger_views import select_as_of, without_comments
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.ledger.time_buckets import BUCKETS, HOLDING
from tracks_dagster.ledger.timeline import EPOCH, micros
from tracks_dagster.projects.effects.known_families import check_family
from tracks_dagster.track.errors import StoreError
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, format_time

GROUPS_MAX = 40  # groups that are shown
_READ_MAX = 1_000_000  # groups that are summed up: as many as there are reasons, teams, weeks
OPEN = "(open)"  # the reason of an attempt that has not ended

# Weeks since Monday, 29 December 1969.
_WEEK = "(coalesce(closed_us, :as_of_us) / 86400000000 + 3) / 7"
KEYS: Mapping[str, str] = {
    "reason": "reason",
    "family": "model_family",
    "team": "team",
    "week": _WEEK,
    "run": "run_id",
}
_ALL = "cast('all' as text)"  # one group of everything

Row = Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What some attempts have in common, and what they cost. Device hours by bucket; seconds of all.

    wasted: of device hours, all that did not go into kept steps. cost: None without a price of any
    of the devices; unpriced_hours: device hours without a price.
    """

    name: str
    attempts: int
    kept_steps: int
    lost_steps: int
    seconds: Mapping[str, float]
    device_hours: Mapping[str, float]
    held_s: float
    total_hours: float
    wasted_hours: float
    cost: float | None
    wasted_cost: float | None
    unpriced_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """How often attempts were interrupted, and how fast that was found and repaired; means.

    None where there was nothing to take a mean of.
    """

    interruptions: int
    planned: int
    mtbi_s: float | None
    mttr_s: float | None
    detect_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """Restarts, the hosts that they left out newly, and retries that came to nothing."""

    manual_restarts: int
    hosts_cycled: int
    automatic_restarts: int
    dead: int
    dead_hours: float
    same_failure: int
    same_failure_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Debits:
    """What retries took from the budget of one reason."""

    reason: str
    debits: int
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalLag:
    """From a checkpoint's commit to the end of its eval; None without any."""

    evals: int
    mean_s: float | None
    max_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """The account. since: None from the beginning on; groups: by `by`, the worst waste first.

    nobody: devices that were seen and that nobody held; None where none was seen or the store cannot be
    read, and of one family.
    left_out: how many groups, of less waste, are not shown. ettr_wall, ettr, gpu_goodput: None without
    any seconds.
    """

    as_of: str
    since: str | None
    by: str
    family: str | None
    currency: str | None
    runs: int
    total: Group
    groups: tuple[Group, ...]
    left_out: int
    ettr_wall: float | None
    ettr: float | None
    gpu_goodput: float | None
    failing: Failing
    retrying: Retrying
    burn: tuple[Debits, ...]
    eval_lag: EvalLag
    nobody: Nobody | None = None


def read_goodput(
    ledger: Ledger,
    *,
    as_of: datetime,
    last: timedelta | None = None,
    by: str = "reason",
    family: str | None = None,
    prices: Prices | None = None,
    store: ObjectStore | None = None,
) -> Goodput:
    """Return the account as of `as_of`.

    store: what the daemon saw of devices that nobody held; None leaves that out.

    last: of attempts that ended in so much time before, or were open; by: a key of KEYS; family: of
    that model family only. Raises UnknownRun for a family without a run.
    """
    check_family(ledger, family)
    since = None if last is None else EPOCH + max(timedelta(), as_of - EPOCH - last)
    asked: dict[str, Json] = {
        "as_of_us": micros(as_of),
        "since_us": 0 if since is None else micros(since),
        "family": family,
    }
    runs = ledger.query(_sql("runs"), asked)[0]["runs"]
    rows = _groups(ledger, KEYS[by], asked, prices, GROUPS_MAX if by == "run" else _READ_MAX)
    total = _summed(_groups(ledger, _ALL, asked, prices, 1) if by == "run" else rows)
    count = runs if by == "run" else len(rows)
    return Goodput(
        as_of=format_time(as_of),
        since=None if since is None else format_time(since),
        by=by,
        family=family,
        currency=prices.currency if prices else None,
        runs=runs,
        total=_group("all", total),
        groups=tuple(_group(_name(by, row["name"]), row) for row in rows[:GROUPS_MAX]),
        left_out=max(0, count - GROUPS_MAX),
        ettr_wall=_ratio(total["step_kept_s"], sum(total[f"{bucket}_s"] for bucket in BUCKETS)),
        ettr=_ratio(total["step_kept_s"], total["held_s"]),
        gpu_goodput=_ratio(total["step_kept_device_s"], total["device_s"]),
        failing=_failing(total),
        retrying=_retrying(total),
        burn=tuple(Debits(**row) for row in ledger.query(_sql("burn"), asked)),
        eval_lag=_eval_lag(ledger, asked),
        nobody=None
        if store is None or family is not None
        else _nobody(store, since, as_of, prices),
    )


def _nobody(
    store: ObjectStore, since: datetime | None, as_of: datetime, prices: Prices | None
) -> Nobody | None:
    first = None if since is None else since.date()
    try:
        return idle_total(read_days(store, since=first, until=as_of.date()), prices)
    except StoreError:  # the account itself is the ledger's
        return None


def _groups(
    ledger: Ledger, key: str, asked: Row, prices: Prices | None, groups_max: int
) -> list[dict[str, Json]]:
    """Return a row for each group of attempts with the same `key`, the worst waste first."""
    table, priced = _price_table(prices)
    query = _sql("groups").replace("{prices}", table).replace("{key}", key)
    return ledger.query(select_as_of(query), {**asked, **priced, "groups_max": groups_max})


def _price_table(prices: Prices | None) -> tuple[str, dict[str, Json]]:
    """Return a SELECT of (pool, name, per_hour), as `Prices.rows`, and its parameters."""
    parameters: dict[str, Json] = {}
    selects = [
        "select cast('' as text) as pool, cast('' as text) as name, "
        "cast(null as double precision) as per_hour"
    ]
    for number, (pool, name, price) in enumerate(prices.rows() if prices else ()):
        values = {f"pool_{number}": pool, f"device_{number}": name, f"price_{number}": price}
        parameters |= values
        selects.append(
            f"select :pool_{number}, :device_{number}, cast(:price_{number} as double precision)"
        )
    return " union all ".join(selects), parameters


def _sql(name: str) -> str:
    text = Path(__file__).with_name("sql").joinpath(f"goodput_{name}.sql").read_text("utf-8")
    return select_as_of(without_comments(text)) if name != "groups" else without_comments(text)


def _summed(rows: Iterable[Row]) -> Row:
    """Return a row that sums all of them; what none of them knows is None."""
    total: dict[str, Json] = dict.fromkeys(_NEVER_NULL, 0)
    for row in rows:
        for name, value in row.items():
            if name != "name" and value is not None:
                total[name] = (total.get(name) or 0) + value
    return total


_NEVER_NULL = (
    *(f"{bucket}_s" for bucket in BUCKETS),
    *(f"{bucket}_device_s" for bucket in HOLDING),
    *("attempts", "kept_steps", "lost_steps", "held_s", "device_s", "unpriced_device_s"),
    *("dead_retries", "dead_device_s", "same_failure_retries", "same_failure_device_s"),
    *("manual_restarts", "automatic_restarts", "hosts_cycled"),
    *("interruptions", "planned_interruptions", "detect_s", "repair_s", "repaired"),
)


def _group(name: str, row: Row) -> Group:
    return Group(
        name=name,
        attempts=row["attempts"],
        kept_steps=row["kept_steps"],
        lost_steps=row["lost_steps"],
        seconds={bucket: float(row[f"{bucket}_s"]) for bucket in BUCKETS},
        device_hours={bucket: row[f"{bucket}_device_s"] / 3600 for bucket in HOLDING},
        held_s=float(row["held_s"]),
        total_hours=row["device_s"] / 3600,
        wasted_hours=(row["device_s"] - row["step_kept_device_s"]) / 3600,
        cost=row.get("cost"),
        wasted_cost=row.get("wasted_cost"),
        unpriced_hours=row["unpriced_device_s"] / 3600,
    )


def _name(by: str, value: Json) -> str:
    """Return what a group is called: a week by its Monday."""
    if by == "week":
        return (EPOCH + timedelta(days=7 * int(value) - 3)).date().isoformat()
    return OPEN if value is None else str(value)


def _failing(total: Row) -> Failing:
    interruptions = total["interruptions"]
    return Failing(
        interruptions=interruptions,
        planned=total["planned_interruptions"],
        mtbi_s=_ratio(total["held_s"], interruptions),
        mttr_s=_ratio(total["repair_s"], total["repaired"]),
        detect_s=_ratio(total["detect_s"], interruptions),
    )


def _retrying(total: Row) -> Retrying:
    return Retrying(
        manual_restarts=total["manual_restarts"],
        hosts_cycled=total["hosts_cycled"],
        automatic_restarts=total["automatic_restarts"],
        dead=total["dead_retries"],
        dead_hours=total["dead_device_s"] / 3600,
        same_failure=total["same_failure_retries"],
        same_failure_hours=total["same_failure_device_s"] / 3600,
    )


def _eval_lag(ledger: Ledger, asked: Row) -> EvalLag:
    [row] = ledger.query(_sql("eval_lag"), asked)
    return EvalLag(
        evals=row["evals"],
        mean_s=_ratio(row["lag_s"] or 0, row["evals"]),
        max_s=row["lag_s_max"],
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
