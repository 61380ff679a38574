"""The account of `goodput` as text, about 90 characters wide; its terms are explained at the end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tracks_dagster.attempts.idle import Nobody
from tracks_dagster.ledger.time_buckets import BUCKETS
from tracks_dagster.review.effects.goodput import Goodput, Group
from tracks_dagster.review.explain.sections import clock_time
from tracks_dagster.track.text.units import cost_digits, counted

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
    "planned": "its node was drained; what a person stopped is not an interruption at all",
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
        if goodput.nobody is not None:
            yield _nobody(goodput.nobody, goodput.currency)
        return
    yield ""
    yield from _buckets(goodput.total, goodput.currency)
    if goodput.nobody is not None:
        yield _nobody(goodput.nobody, goodput.currency)
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
        taken = total.device_hours.get(bucket)
        share = "" if taken is None or not total.total_hours else f"{taken / total.total_hours:.1%}"
        hours = "–" if taken is None else _hours(taken, total.total_hours)
        rows.append(
            (BUCKET_LABELS[bucket], hours, share, _hours(total.seconds[bucket] / 3600, wall_h))
        )
    rows.append(("all", _hours(total.total_hours, total.total_hours), "", _hours(wall_h, wall_h)))
    yield from _columns(rows)
    if currency and total.unpriced_hours > 0:
        yield f"{_hours(total.unpriced_hours, total.total_hours)} device hours have no price."


def _nobody(nobody: Nobody, currency: str | None) -> str:
    """Say what devices did that no attempt had: beside the account, for it is of attempts."""
    hours = _hours(nobody.idle_hours, nobody.seen_hours)
    seen = _hours(nobody.seen_hours, nobody.seen_hours)
    cost = "" if nobody.cost is None else f", {_money(nobody.cost)} {currency}"
    unpriced = ""
    if currency and nobody.unpriced_hours > 0:
        unpriced = f"; {_hours(nobody.unpriced_hours, nobody.seen_hours)} hours have no price"
    return (
        f"held by nobody: {hours} device hours{cost}, of {seen} in which the daemon saw "
        f"{counted(nobody.devices, 'device')}{unpriced}"
    )


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
    return f"{amount:,.{cost_digits(amount)}f}".replace(",", " ")
