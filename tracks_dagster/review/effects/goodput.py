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

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tracks_dagster.data.effects.known_families import check_family
from tracks_dagster.ledger.ledger_views import select_as_of, without_comments
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.ledger.time_buckets import BUCKETS, HOLDING
from tracks_dagster.ledger.timeline import EPOCH, micros
from tracks_dagster.review.effects.explain.sections import clock_time
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.text.units import counted

GROUPS_MAX = 40  # groups that are shown
_READ_MAX = 1_000_000  # groups that are summed up: as many as there are reasons, teams, weeks
OPEN = "(open)"  # the reason of an attempt that has not ended

_WEEK = (
    "(coalesce(closed_us, :as_of_us) / 86400000000 + 3) / 7"  # weeks since Monday, 29 December 1969
)
KEYS: Mapping[str, str] = {
    "reason": "reason",
    "family": "model_family",
    "team": "team",
    "week": _WEEK,
    "run": "run_id",
}
_ALL = "cast('all' as text)"  # one group of everything

Row = Mapping[str, Json]
BUCKET_LABELS = {
    "queue": "in queue, before the first rank",
    "startup": "starting the gang",
    "restore": "restoring",
    "step_kept": "steps that were kept",
    "step_lost": "steps that were lost",
    "checkpoint_blocking": "standing still for saves",
    "data_wait": "waiting for data",
    "inline_eval": "evaluating in the loop",
    "detection": "ended or hung, not yet found",
    "idle": "between attempts",
    "unknown": "not measured",
}
TERMS = {  # what a term of the account stands for, explained at the end
    "ETTR": "effective training time ratio, what part of the time went into steps that were kept",
    "MTBI": "mean time between interruptions, of the time on devices; planned ones do not count",
    "planned": "its node was drained; what a person stopped is no interruption at all",
    "MTTR": "mean time to recover, from a gang's last rank to the run's next restore",
    "cycled": "hosts that an attempt left out and the one before it did not",
    "wasted": "device hours that went into anything but steps that were kept",
}
KEY_LABELS = {
    "reason": "why attempts ended",
    "family": "model family",
    "team": "team",
    "week": "week, by its Monday",
    "run": "run",
}


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


def read_goodput(
    ledger: Ledger,
    *,
    as_of: datetime,
    last: timedelta | None = None,
    by: str = "reason",
    family: str | None = None,
    prices: Prices | None = None,
) -> Goodput:
    """Return the account as of `as_of`.

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
    )


def _groups(
    ledger: Ledger, key: str, asked: Row, prices: Prices | None, groups_max: int
) -> list[dict[str, Json]]:
    """Return a row for each group of attempts with the same `key`, the worst waste first."""
    table, priced = _price_table(prices)
    query = _sql("groups").replace("{prices}", table).replace("{key}", key)
    return ledger.query(select_as_of(query), {**asked, **priced, "groups_max": groups_max})


def _price_table(prices: Prices | None) -> tuple[str, dict[str, Json]]:
    """Return a SELECT of (name, per_hour), and its parameters."""
    per_hour = list(prices.per_device_hour.items()) if prices else []
    parameters: dict[str, Json] = {}
    selects = ["select cast('' as text) as name, cast(null as double precision) as per_hour"]
    for number, (name, price) in enumerate(per_hour):
        parameters |= {f"device_{number}": name, f"price_{number}": price}
        selects.append(f"select :device_{number}, cast(:price_{number} as double precision)")
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


def format_goodput(goodput: Goodput) -> str:
    """Return the whole account, in lines of about 90 characters, and last what its terms mean."""
    text = "\n".join(_lines(goodput))
    words = [f"{term} = {meaning}" for term, meaning in TERMS.items() if _is_used(term, text)]
    return "\n".join([text, "", *words] if words else [text])


def _is_used(term: str, text: str) -> bool:
    return re.search(rf"\b{term}\b", text) is not None and f"{term} –" not in text  # "–": no value


def _lines(goodput: Goodput) -> Iterator[str]:
    yield _heading(goodput)
    if goodput.total.attempts == 0:
        yield "Nothing ran: no attempt ended in that time, and none is open."
        return
    yield ""
    yield from _buckets(goodput.total, goodput.currency)
    yield ""
    yield from _group_rows(goodput)
    yield ""
    yield from _figures(goodput)


def _heading(goodput: Goodput) -> str:
    of = f" of family {goodput.family}" if goodput.family else ""
    since = f" that ended since {clock_time(goodput.since)}, or are open" if goodput.since else ""
    total = goodput.total
    cost = "" if total.cost is None else f", {_money(total.cost)} {goodput.currency}"
    return (
        f"Goodput as of {clock_time(goodput.as_of)}: {counted(total.attempts, 'attempt')}{of}{since}, "
        f"of {counted(goodput.runs, 'run')}; "
        f"{_hours(total.total_hours, total.total_hours)} device hours{cost}."
    )


def _buckets(total: Group, currency: str | None) -> Iterator[str]:
    rows = [("where the time went", "device hours", "share", "wall hours")]
    wall_h = sum(total.seconds.values()) / 3600
    for bucket in BUCKETS:
        held = total.device_hours.get(bucket)
        share = "" if held is None or not total.total_hours else f"{held / total.total_hours:.1%}"
        hours = "–" if held is None else _hours(held, total.total_hours)
        rows.append(
            (BUCKET_LABELS[bucket], hours, share, _hours(total.seconds[bucket] / 3600, wall_h))
        )
    rows.append(("all", _hours(total.total_hours, total.total_hours), "", _hours(wall_h, wall_h)))
    yield from _columns(rows)
    if currency and total.unpriced_hours > 0:
        yield f"{_hours(total.unpriced_hours, total.total_hours)} device hours have no price."


def _group_rows(goodput: Goodput) -> Iterator[str]:
    head = (KEY_LABELS[goodput.by], "attempts", "device hours", "wasted", "lost steps")
    rows = [(*head, f"wasted {goodput.currency}") if goodput.currency else head]
    for group in goodput.groups:
        row = (
            group.name,
            str(group.attempts),
            _hours(group.total_hours, goodput.total.total_hours),
            _hours(group.wasted_hours, goodput.total.total_hours),
            str(group.lost_steps),
        )
        cost = "–" if group.wasted_cost is None else _money(group.wasted_cost)
        rows.append((*row, cost) if goodput.currency else row)
    yield from _columns(rows)
    if goodput.left_out:
        yield f"and {goodput.left_out} more, of less waste."


def _figures(goodput: Goodput) -> Iterator[str]:
    failing, retrying, all_hours = goodput.failing, goodput.retrying, goodput.total.total_hours
    yield (
        f"ETTR {_share(goodput.ettr_wall)} of all time, {_share(goodput.ettr)} of the time on devices; "
        f"goodput of device hours {_share(goodput.gpu_goodput)}"
    )
    yield (
        f"{counted(failing.interruptions, 'interruption')} (and {failing.planned} planned): "
        f"MTBI {_span(failing.mtbi_s)}, found in {_span(failing.detect_s)}, "
        f"MTTR {_span(failing.mttr_s)}"
    )
    yield (
        f"restarts: {retrying.manual_restarts} manual, {retrying.automatic_restarts} automatic; "
        f"{counted(retrying.hosts_cycled, 'host')} cycled"
    )
    yield (
        f"dead retries (no step kept): {retrying.dead}, {_hours(retrying.dead_hours, all_hours)} "
        f"device hours; {retrying.same_failure} failed as the attempt before, "
        f"{_hours(retrying.same_failure_hours, all_hours)} device hours"
    )
    burn = ", ".join(f"{each.reason} {each.amount:g}" for each in goodput.burn if each.amount)
    yield f"budgets paid: {burn or 'nothing'}"
    lag = goodput.eval_lag
    if lag.evals:
        yield (
            f"evals: {lag.evals} ended {_span(lag.mean_s)} after their commit on average, "
            f"{_span(lag.max_s)} at most"
        )
    else:
        yield "evals: none was completed"


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows in columns: the first to the left, numbers to the right."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        first, *others = (
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join((first, *others)).rstrip()


def _hours(hours: float, total: float) -> str:
    """Return hours with as many decimals as their total needs, the same in a whole column."""
    digits = 3 if total < 10 else 2 if total < 1000 else 1
    return f"{hours:,.{digits}f}".replace(",", " ")


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _money(amount: float) -> str:
    return f"{amount:,.2f}".replace(",", " ")
