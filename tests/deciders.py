"""The worlds in which tests let deciders decide, and ticks as the sensors have them."""

from __future__ import annotations

from typing import Any, cast

from tests.fakes import FakeGangs, FakeOrchestrator
from tracks_dagster.attempts.effects.closing import close_attempt
from tracks_dagster.attempts.effects.evidence import NO_PROBLEM, EndProblem
from tracks_dagster.attempts.effects.manual_retry import ManualRetry, retry_by_person
from tracks_dagster.attempts.effects.retry import Retries
from tracks_dagster.attempts.effects.runs import FirstAttempts
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.evals.effects.promoting import Promotions
from tracks_dagster.evals.effects.running import Evals
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.ledger.effects.deciding import Settled, decide_due, settle
from tracks_dagster.ledger.effects.ticks import AT_ONCE_MAX, Seconds, Tick, TimeSlice
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.effects.node_health import NodeHealth
from tracks_dagster.track import names
from tracks_dagster.track.bodies import EvalOpened, PromotionDecided
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Record
from tracks_dagster.track.states.run_state import AttemptState


class _Empty:
    def query(self, *_: object) -> list[dict[str, object]]:
        return []


LEDGER = cast(Ledger, _Empty())  # of a world in which nothing else was recorded


def world_of(tracks: Tracks, ledger: Ledger = LEDGER, **fields: Any) -> World:
    """Return a world with no gangs, no Dagster runs, and without storms, strikes or bytes to read."""
    gangs = FakeGangs()
    given = {
        "launcher_of": lambda _: gangs,
        "orchestrator": FakeOrchestrator(),
        "policy": DEFAULT_POLICY,
        "holds": Holds(tracks),
        **fields,
    }
    return World(tracks=tracks, ledger=ledger, **given)


def settled_run(
    tracks: Tracks,
    run_id: str = "r-1",
    *,
    reasons: frozenset[TerminationReason] | None = None,
    decided_by: str = "tests",
    ledger: Ledger = LEDGER,
    **fields: Any,
) -> Settled:
    """Decide what follows on a run's newest attempt, in anybody's name."""
    retries = Retries(name=decided_by, reasons=reasons)
    return settle(world_of(tracks, ledger, **fields), retries, run_id)


def ticked(
    tracks: Tracks,
    ledger: Ledger,
    *,
    sensor: str,
    after: str | None = None,
    seconds: Seconds | None = None,
    **fields: Any,
) -> Tick[Settled]:
    """Let one of the sensors that decide retries do so for every run that is due."""
    deciders = (Retries.of(sensor), *([FirstAttempts()] if sensor == names.WATCH_ATTEMPTS else []))
    clock = {} if seconds is None else {"seconds": seconds}
    time_slice = TimeSlice(after=after, at_once=AT_ONCE_MAX, **clock)
    return decide_due(world_of(tracks, ledger, **fields).for_tick(), deciders, time_slice)


def first_settled(tracks: Tracks, run_id: str) -> Settled:
    """Open a run's first attempt, or say why not."""
    return settle(world_of(tracks), FirstAttempts(name="tests"), run_id)


def decided_promotion(
    tracks: Tracks, run_id: str, *, by: str, ledger: Ledger = LEDGER, **fields: Any
) -> PromotionDecided | None:
    """Decide a run's promotion by its own rule; None where that is not due."""
    record = settle(world_of(tracks, ledger, **fields), Promotions(name=by), run_id).record
    return None if record is None else from_json(PromotionDecided, record.body)


def opened_evals(tracks: Tracks, run_id: str) -> list[EvalOpened]:
    """Open the evals of a run that are due; return all that are open then."""
    settle(world_of(tracks), Evals(name="tests"), run_id)
    return [each.opened for each in tracks.run(run_id).evals if each.ended is None]


def evals_wait_for(tracks: Tracks, run_id: str) -> str:
    """Say what the evals of a run wait for; empty where for nothing."""
    settled = settle(world_of(tracks), Evals(name="tests"), run_id)
    return settled.why if settled.what == "waiting" else ""


def closed(
    tracks: Tracks,
    gangs: FakeGangs,
    run_id: str = "r-1",
    *,
    attempt_id: int = 1,
    by: str = "tests",
    problem: EndProblem = NO_PROBLEM,
    **fields: Any,
) -> AttemptState:
    """Close an attempt by what its gang's report says."""
    ref = AttemptRef(run_id, attempt_id)
    return close_attempt(world_of(tracks, **fields), gangs, ref, by=by, problem=problem)


def retried(
    tracks: Tracks,
    run_id: str = "r-1",
    *,
    by: str,
    why: str,
    nodes: NodeHealth | None = None,
    **asked: Any,
) -> Record:
    """Open the next attempt in a person's name."""
    retry = ManualRetry(name=by, why=why, **asked)
    return retry_by_person(world_of(tracks, nodes=nodes), run_id, retry)
