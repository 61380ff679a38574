"""The attempts of a run as a short list: neighbours that ended alike are grouped when they are many.

The text, the time line and the picture of a run with 300 attempts all show these stretches, so that
they name the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tracks_dagster.review.effects.receipts import Receipt, RunReceipts
from tracks_dagster.review.explain.explanation import Stretch

STRETCHES_MAX = 24  # lines that still are a picture; more is a table to be searched
OLDEST_KEPT = 4  # of them, where even the stretches are too many: how the run began
SEVERAL = "several reasons"


def stretches(run: RunReceipts) -> tuple[Stretch, ...]:
    """Return the attempts in order, each alone while they are at most `STRETCHES_MAX`.

    Of more, neighbours that ended for the same reason become one; where that is not enough, what lies
    between the oldest `OLDEST_KEPT` and the newest is one stretch of several reasons.
    """
    receipts = run.receipts
    alone = [_stretch([receipt], run) for receipt in receipts]
    if len(alone) <= STRETCHES_MAX:
        return tuple(alone)
    groups = [list(group) for _, group in groupby(receipts, lambda r: r.attempt.reason)]
    together = [_stretch(group, run) for group in groups]
    if len(together) <= STRETCHES_MAX:
        return tuple(together)
    newest = STRETCHES_MAX - OLDEST_KEPT - 1
    between = [r for group in groups[OLDEST_KEPT:-newest] for r in group]
    return (*together[:OLDEST_KEPT], _stretch(between, run), *together[-newest:])


def members(stretch: Stretch, receipts: Sequence[Receipt]) -> Sequence[Receipt]:
    """Return the receipts of the attempts of a stretch."""
    return receipts[stretch.first - 1 : stretch.last]


def _stretch(group: Sequence[Receipt], run: RunReceipts) -> Stretch:
    reasons = {receipt.attempt.reason for receipt in group}
    (reason,) = reasons if len(reasons) == 1 else (SEVERAL,)
    first = group[0].attempt
    return Stretch(
        first=first.attempt_id,
        last=group[-1].attempt.attempt_id,
        reason=None if reason is None else str(reason),
        from_step=first.resumed_step,
        to_step=max(receipt.account.last for receipt in group),
        kept_steps=sum(receipt.account.kept for receipt in group),
        lost_steps=sum(receipt.account.lost for receipt in group),
        repeats=_repeats(group[0], run) if len(group) == 1 else None,
        repeat_count=sum(_repeats(receipt, run) is not None for receipt in group),
    )


def _repeats(receipt: Receipt, run: RunReceipts) -> int | None:
    """Return the newest earlier attempt that failed just so, when nothing was kept since."""
    fingerprint = receipt.attempt.fingerprint
    if fingerprint is None or receipt.account.kept:
        return None
    for earlier in reversed(run.receipts[: receipt.attempt.attempt_id - 1]):
        if earlier.attempt.fingerprint == fingerprint:
            return earlier.attempt.attempt_id
        if earlier.account.kept:
            return None
    return None
