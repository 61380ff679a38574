"""What rank 0's journal says of an attempt now, as plain values. `effects.tails` reads it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One finished step. step_s: from its data to its report; data_s: of the wait for its data, before.

    own_s: this rank's own forward; grad_norm: None where it is not known; loss: None of a step that
    ended without one.
    """

    step: int
    at: datetime
    loss: float | None
    step_s: float
    data_s: float
    own_s: float | None = None
    grad_norm: float | None = None

    @property
    def whole_s(self) -> float:
        """The step and the wait for its data."""
        return self.step_s + self.data_s


ByRank = tuple[float | None, ...]  # by rank; empty where nothing of it was written, None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """The ranks side by side: medians over `over` steps, the newest of them `step`."""

    step: int
    over: int
    step_s: ByRank
    own_s: ByRank = ()
    data_s: ByRank = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How much the devices were used between two moments: the greatest percentage of each rank's."""

    first_at: datetime
    last_at: datetime
    percent: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Metrics of one evaluation inside the loop."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The end of a journal, and the few lines of its beginning that the end is compared with.

    attempt_id: whose; None where there is no journal. steps: the newest, in order. early: the first
    steps of the attempt. losses: (step, loss), farther back than `steps`, and thinned out there.
    gangs, evaluated: the newest, in order; use: of the last ten minutes or so, in order.
    """

    attempt_id: int | None = None
    steps: tuple[Step, ...] = ()
    early: tuple[Step, ...] = ()
    losses: tuple[tuple[int, float], ...] = ()
    gangs: tuple[Gang, ...] = ()
    use: tuple[Use, ...] = ()
    evaluated: tuple[Evaluated, ...] = field(default=())
    last_line_at: datetime | None = None


NO_TAIL = Tail()
