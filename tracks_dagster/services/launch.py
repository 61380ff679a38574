"""Which attempts need a supervisor: the plan of the one sensor that requests training runs.

Pure. An attempt is supervised while a Dagster run of it lives, whether it has claimed the attempt
already or is on its way to. A run key is never given twice: it counts the Dagster runs that died.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracks_dagster.core.names import attempt_key
from tracks_dagster.core.placement import nodes_of
from tracks_dagster.core.ports import GangPhase, GangReport, OrchestratorRun
from tracks_dagster.core.run_state import AttemptState

# Dagster runs of one attempt that died before they started its gang: then something is wrong that
# another one will not cure (code that does not load, a full disk), and a person has to look.
FRUITLESS_RUNS_MAX = 20
REQUESTS_MAX = (
    200  # of one tick: Dagster registers a few hundred partitions at a time; the rest follow
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAttempt:
    """An open attempt, every Dagster run it has had, and what is known of its gang here.

    parent, root: the Dagster runs that supervised last and first in this training run, of those that
    Dagster still has; None where there is none, and while the attempt is supervised.
    """

    run_id: str
    attempt: AttemptState
    runs: Sequence[OrchestratorRun]
    gang: GangReport
    parent: str | None = None
    root: str | None = None

    @property
    def key(self) -> str:
        """The attempt's partition key."""
        return attempt_key(self.run_id, self.attempt.attempt_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One Dagster run to request; the same request twice is one run, by its run key.

    parent, root: as of `OpenAttempt`; Dagster shows what names a root in the root's group.
    """

    attempt_key: str
    run_key: str
    run_id: str
    parent: str | None = None
    root: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What to request, and in words what is given up on."""

    requests: tuple[LaunchRequest, ...]
    given_up: tuple[str, ...]


def plan_launches(open_attempts: Sequence[OpenAttempt]) -> LaunchPlan:
    """Return a request for each attempt that nobody supervises and that has not its end behind it.

    At most REQUESTS_MAX, the attempts opened first; those asked for are supervised by the next tick.
    """
    needy = [each for each in open_attempts if needs_supervisor(each)]
    given_up = [each for each in needy if fruitless_count(each) >= FRUITLESS_RUNS_MAX]
    return LaunchPlan(
        requests=tuple(_request(each) for each in needy if each not in given_up)[:REQUESTS_MAX],
        given_up=tuple(
            f"{each.key}: {FRUITLESS_RUNS_MAX} Dagster runs died before its gang ran; see why, "
            "then delete them in Dagster to have it requested again"
            for each in given_up
        ),
    )


def is_supervised(each: OpenAttempt) -> bool:
    """Whether a Dagster run of the attempt lives, one that claimed it or is on its way to."""
    return any(not run.is_finished for run in each.runs)


def needs_supervisor(each: OpenAttempt) -> bool:
    """Whether to ask for one: only where a gang lives or none was ever placed.

    A gang that is gone, or that was placed and does not live here, is the watcher's to close.
    """
    if is_supervised(each) or each.gang.phase is GangPhase.GONE:
        return False
    return each.gang.phase is GangPhase.ALIVE or each.attempt.placed is None


def is_lost(each: OpenAttempt) -> bool:
    """Whether the watcher has to close the attempt, because nobody else will.

    A gang that was placed on another node and never started here is not known to be gone.
    """
    if is_supervised(each) or each.gang.phase is GangPhase.ALIVE:
        return False
    if each.gang.phase is GangPhase.GONE:
        return True
    placed = each.attempt.placed
    if placed is not None and each.gang.sees_all_nodes:
        return True
    return placed is not None and all(node == each.gang.where for node in nodes_of(placed))


def fruitless_count(each: OpenAttempt) -> int:
    """Return how many Dagster runs of the attempt died and left no gang behind.

    Where a gang lives, only those that never claimed the attempt: the others watched it.
    """
    claimed = {claim.body.dagster_run_id for claim in each.attempt.claims}
    if each.gang.phase is GangPhase.NEVER_STARTED:
        claimed = set()
    return sum(run.is_finished and run.dagster_run_id not in claimed for run in each.runs)


def _request(each: OpenAttempt) -> LaunchRequest:
    dead_count = sum(run.is_finished for run in each.runs)
    return LaunchRequest(
        attempt_key=each.key,
        run_key=f"{each.key}/{dead_count}",
        run_id=each.run_id,
        parent=each.parent,
        root=each.root,
    )
