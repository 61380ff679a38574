"""Whether the workload classes met their objectives: waits of a stretch of time, judged. Pure.

`review.effects.slo` reads them from the ledger. A class misses an objective where the 95th percentile
is above it: of a hundred waits five may be longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tracks_dagster.scheduling.policy import WorkloadClass
from tracks_dagster.track.text.units import about, duration


class Wait(StrEnum):
    """What is measured of a class, from the first moment to the second."""

    QUEUE = (
        "queue"  # an attempt, or an eval, was opened → its first rank, or the evaluator, started
    )
    COMPLETION = "completion"  # a run was declared, or an eval opened → it succeeded
    RECOVERY = (
        "recovery"  # ranks ended as nobody meant → the run restored; an eval failed → it began
    )


COUNT_MIN = 20  # waits of which one is the 5 % that may be late: of fewer a percentile says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """The waits of one class, of one kind.

    count: all of them; still: those that are not over, which count once they are late. late: longer
    than the objective. p50_s, p95_s: the nearest rank. longest_s, longest_run_id: of the longest.
    """

    workload_class: str
    wait: Wait
    count: int
    still: int
    late: int
    p50_s: float
    p95_s: float
    longest_s: float
    longest_run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One kind of wait of one class beside its objective. waits: None where nothing waited."""

    workload_class: str
    wait: Wait
    objective_s: float | None
    waits: Waits | None

    @property
    def is_missed(self) -> bool:
        """Whether the class misses this objective, by as many waits as show it."""
        if self.objective_s is None or self.waits is None:
            return False
        return self.waits.count >= COUNT_MIN and self.waits.p95_s > self.objective_s

    @property
    def doubt(self) -> str:
        """Why a late wait is not a miss yet; empty where none is late, or enough are known."""
        found = self.waits
        if found is None or self.objective_s is None or not found.late or found.count >= COUNT_MIN:
            return ""
        return (
            f"class {self.workload_class}, {self.wait.value}: {found.late} of {found.count} took "
            f"longer than {duration(self.objective_s)}; fewer than {COUNT_MIN} show no miss"
        )

    @property
    def sentence(self) -> str:
        """What is missed, and by whom the most; empty where nothing was measured or is asked for."""
        found, objective_s = self.waits, self.objective_s
        if found is None or objective_s is None:
            return ""
        return (
            f"class {self.workload_class}: 95 of 100 times {_WORDS[self.wait]} within "
            f"{about(found.p95_s)}, and the objective is {duration(objective_s)}; "
            f"{found.late} of {found.count} took longer, {found.longest_run_id} the longest, "
            f"{about(found.longest_s)}"
        )


_WORDS: Mapping[Wait, str] = {
    Wait.QUEUE: "it started",
    Wait.COMPLETION: "it was done",
    Wait.RECOVERY: "it had recovered",
}


def judge(classes: Mapping[str, WorkloadClass], found: Iterable[Waits]) -> tuple[Judged, ...]:
    """Return all that was measured or is asked for, in the order of the classes."""
    measured = {(each.workload_class, each.wait): each for each in found}
    return tuple(_judged(classes, measured))


def _judged(
    classes: Mapping[str, WorkloadClass], measured: Mapping[tuple[str, Wait], Waits]
) -> Iterator[Judged]:
    for name, rule in classes.items():
        for wait, objective_s in objectives(rule).items():
            waits = measured.get((name, wait))
            if waits is not None or objective_s is not None:
                yield Judged(workload_class=name, wait=wait, objective_s=objective_s, waits=waits)


def objectives(rule: WorkloadClass) -> dict[Wait, float | None]:
    """Return the objective of each kind of wait, in seconds; None where there is none."""
    return {
        Wait.QUEUE: rule.queue_s,
        Wait.COMPLETION: rule.completion_s,
        Wait.RECOVERY: rule.recovery_s,
    }


def missed(judged: Sequence[Judged]) -> tuple[Judged, ...]:
    """Return the objectives that are missed."""
    return tuple(each for each in judged if each.is_missed)
