"""Runs and tails as a test wants them: values only, with a clock that the test gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from tests.histories import History
from tracks_dagster.wings.watch.health.tail import ByRank, Gang, Step, Tail, Use

STEP_S, DATA_S = 0.4, 0.05


def training(ranks: int = 8, **declared: Any) -> History:
    """Return a run whose first attempt has restored."""
    history = History().declare(**declared).open().supervise().place(world_size=ranks)
    return history.restore()


def steps(
    count: int,
    *,
    at: datetime,
    first: int = 1,
    step_s: float | Callable[[int], float] = STEP_S,
    data_s: float | Callable[[int], float] = DATA_S,
    own_s: float | Callable[[int], float] | None = None,
    loss: Callable[[int], float] = lambda step: 5.0 / step,
    norm: Callable[[int], float] | None = None,
) -> tuple[Step, ...]:
    """Return `count` steps from `first` on, the last of them done at `at`."""
    last = first + count - 1
    return tuple(
        Step(
            step=step,
            at=at - timedelta(seconds=(last - step) * (STEP_S + DATA_S)),
            loss=loss(step),
            step_s=_of(step_s, step),
            data_s=_of(data_s, step),
            own_s=None if own_s is None else _of(own_s, step),
            grad_norm=None if norm is None else norm(step),
        )
        for step in range(first, last + 1)
    )


def tail(ran: Sequence[Step], *, attempt_id: int = 1, **fields: Any) -> Tail:
    """Return the tail of an attempt that ran these steps, from its first one on."""
    known: dict[str, Any] = {
        "attempt_id": attempt_id,
        "steps": tuple(ran[-128:]),
        "early": tuple(ran[:60]),
        "losses": tuple((s.step, s.loss) for s in ran if s.loss is not None),
        "last_line_at": ran[-1].at if ran else None,
    }
    return Tail(**known | fields)


def gangs(
    own_s: Sequence[float], *, data_s: Sequence[float] | None = None, step_s: float = STEP_S
) -> tuple[Gang, ...]:
    """Return four lines of five steps each, in which every rank does what it always does."""
    ranks = len(own_s)
    data: ByRank = tuple(data_s) if data_s is not None else (DATA_S,) * ranks
    return tuple(
        Gang(step=5 * n, over=5, step_s=(step_s,) * ranks, own_s=tuple(own_s), data_s=data)
        for n in range(1, 5)
    )


def use(
    percent: int, *, for_s: float, at: datetime, ranks: int = 1, every_s: float = 10.0
) -> tuple[Use, ...]:
    """Return samples up to `at`, the first of them `for_s` before it."""
    moments = [
        at - timedelta(seconds=min(for_s, n * every_s)) for n in range(int(for_s // every_s) + 2)
    ]
    return tuple(
        Use(first_at=each, last_at=each, percent=(percent,) * ranks)
        for each in sorted(set(moments))
    )


def _of(value: float | Callable[[int], float], step: int) -> float:
    return value(step) if callable(value) else value
