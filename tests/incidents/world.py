"""A world in which incidents happen: a store, a ledger, a clock, a gang that a test moves by hand.

Everything that a record says is said by the project's own parts: the evidence is gathered and judged
by `close_attempt`, what follows is decided by `Retries` under the shipped policy, evals are opened, run
and ended by their services. Only the gang is played: what its ranks saw, wrote and left behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.bodies import declared
from tests.deciders import closed, settled_run, world_of
from tests.fakes import FakeClock, FakeEvaluator, FakeObjectStore, FakeOrchestrator, SequentialUids
from tests.histories import DatasetHistory
from tests.incidents.gang import (
    ENVIRONMENT,
    SAMPLES_PER_STEP,
    GoneGangs,
    committed,
    exited,
    last_word,
    placed,
)
from tests.stories import step_line, store_checkpoint
from tracks_dagster.attempts.effects.evidence import EndProblem
from tracks_dagster.attempts.effects.runs import open_first_attempt
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.evals.effects.running import run_eval
from tracks_dagster.evals.effects.tick import EvalsOfRun, tick_evals
from tracks_dagster.ledger.effects.deciding import Settled
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.ticks import Tick
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.reasons.evidence import Condition, RankEnd
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.next_sensor import sensor_of
from tracks_dagster.review.effects.explain.run import ExplainContext, explain_attempt
from tracks_dagster.review.explain.explanation import AttemptExplanation
from tracks_dagster.review.explain.text import attempt_text
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.bodies import (
    AttemptRestored,
    AttemptSupervised,
    CodeVersion,
    ComputeRequest,
    EvalRequirement,
    SnapshotRef,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.names import AttemptRef, attempt_key
from tracks_dagster.track.records import Json, Kind, canonical_json, format_time, sha256_hex
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.training.saves.manifest import StoredCheckpoints

CONFIG: Mapping[str, Json] = {
    "steps": 60,
    "seed": 7,
    "lr": 0.001,
    "global_batch": 48,
    "micro_batch": 4,
    "accumulation": 6,
    "heads": 4,
    "d_model": 64,
}
COMMIT = "4be1d8f02c7a95e36d1b8a90cf2e7715d3a6c0b1"


class World:
    """One training run on two ranks, each on a node of its own."""

    def __init__(self, run_id: str, ledger: Ledger, clock: FakeClock) -> None:
        self.run_id = run_id
        self.store = FakeObjectStore()
        self.clock = clock
        self.ledger = ledger
        project = Projector(self.store, ledger).project
        self.tracks = Tracks(self.store, now=clock, new_uid=SequentialUids(), project=project)
        self.gangs = GoneGangs()
        self.orchestrator = FakeOrchestrator()
        self.environment: Mapping[str, Json] = ENVIRONMENT
        self.data, self.heldout = (self._dataset(n) for n in ("aws-docs", "aws-docs-heldout"))
        self._declare()

    # --- what a gang does ---------------------------------------------------------------------

    def start(self) -> World:
        """Open the first attempt if need be; claim, place and restore the newest."""
        open_first_attempt(self.tracks, self.run_id, decided_by="ann")
        self.claim()
        place = placed(self.run_id, self.launch_id, self.environment)
        self._fact(Kind.ATTEMPT_PLACED, place)
        source = self.attempt.opened.resume
        step = source.step if source else 0
        restored = AttemptRestored(
            launch_id=self.launch_id, step=step, checkpoint=source, cursor=SAMPLES_PER_STEP * step
        )
        return self._fact(Kind.ATTEMPT_RESTORED, restored)

    def claim(self) -> World:
        """Let a Dagster run claim the newest attempt."""
        claim = AttemptSupervised(dagster_run_id=f"8c1e-{self.attempt.attempt_id}", host="head-1")
        self.orchestrator.put(self.key, claim.dagster_run_id)
        return self._fact(Kind.ATTEMPT_SUPERVISED, claim)

    def train(self, last_step: int, *, every: int = 10) -> World:
        """Run steps up to `last_step`, a second each, and commit each one that `every` divides."""
        first = self.attempt.resumed_step + 1
        lines = []
        for step in range(first, last_step + 1):
            self.clock.advance(1)
            line = step_line(step, at=format_time(self.clock.at))
            done = step - first + 1
            spent = {"steps_s": 0.8 * done, "data_s": 0.1 * done, "saving_s": 0.0, "eval_s": 0.0}
            lines.append({**line, "cursor_to": SAMPLES_PER_STEP * step, "spent": spent})
            if step % every == 0:
                self._commit(step)
        prefix = journal_prefix(AttemptRef(self.run_id, self.attempt.attempt_id), self.launch_id, 0)
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        self.store.put(f"{prefix}{0:012d}.jsonl", data)
        return self

    def say(self, rank: int, reason: str, said: str, **more: Any) -> World:
        """Let a rank leave its last word; said: "package.Type: message"."""
        word = last_word(rank, reason, said, self.clock.at, **more)
        key = f"runs/{self.run_id}/attempts/{self.attempt.attempt_id}/{self.launch_id}/exit"
        self.store.put(f"{key}/rank-{rank}.json", canonical_json(to_json(word)))
        return self

    # --- what becomes of it -------------------------------------------------------------------

    def end(self, *ends: RankEnd, after_s: float = 2, **seen: Any) -> AttemptState:
        """Let the gang be gone and close the attempt; seen: fields of the launcher's report, and
        `observed`, conditions that the supervisor adds."""
        observed: Sequence[Condition] = seen.pop("observed", ())
        placed_at = self.attempt.placed_at or self.clock.at
        self.clock.advance(after_s)
        began, ended = format_time(placed_at), format_time(self.clock.at)
        self.gangs.reports[self.run_id, self.attempt.attempt_id] = GangReport(
            phase=GangPhase.GONE,
            ranks=tuple(
                replace(end, started_at=began, ended_at=ended if end.has_ended else None)
                for end in ends
            ),
            **seen,
        )
        return self.close(observed)

    def complete(self) -> AttemptState:
        """End both ranks after their last step, which each of them says as a trainer does."""
        ranks = [exited(rank, 0) for rank in range(2)]
        for each in ranks:
            self.say(each.rank, "completed", "")
        return self.end(*ranks)

    def close(self, observed: Iterable[Condition] = ()) -> AttemptState:
        """Close the newest attempt by what the gang's report says."""
        return closed(
            self.tracks,
            self.gangs,
            self.run_id,
            attempt_id=self.attempt.attempt_id,
            by="watch_attempts",
            problem=EndProblem(conditions=tuple(observed)),
            orchestrator=self.orchestrator,
        )

    def decide(self, *, after_s: float = 3600) -> Settled:
        """Let the sensor whose reason it is decide what follows, once the backoff is over."""
        self.clock.advance(after_s)
        reason = self.attempt.reason
        assert reason is not None
        return settled_run(
            self.tracks,
            self.run_id,
            reasons=None,
            decided_by=sensor_of(reason),
            policy=DEFAULT_POLICY,
            checkpoints=StoredCheckpoints(self.store),
            ledger=self.ledger,
        )

    def evaluate(self, *answers: Any) -> World:
        """Open the evals that are due, one try after the other, and let each find its answer."""
        for answer in answers:
            (request,) = [each for run in self._tick_evals().done for each in run.requests]
            eval_id, number = (
                self.state.evals[-1].opened.eval_id,
                self.state.evals[-1].opened.number,
            )
            self.orchestrator.put(request.run_key, f"eval-{number}")
            evaluator = FakeEvaluator(self.store, answer)
            run_eval(self.tracks, evaluator, self.run_id, eval_id, number)
            self.clock.advance(60)
        return self

    def promote(self) -> World:
        """Let the evals decide the promotion, and the run be finished."""
        self._tick_evals()
        self.decide(after_s=5)
        return self

    def text(self, attempt_id: int) -> str:
        """Return what `tracks explain --full` prints of an attempt."""
        return attempt_text(self.explain(attempt_id))

    def explain(self, attempt_id: int) -> AttemptExplanation:
        """Return what the record says of an attempt."""
        return explain_attempt(
            self.tracks, self.run_id, attempt_id, ExplainContext(ledger=self.ledger)
        )

    # --- what there is ------------------------------------------------------------------------

    @property
    def state(self) -> RunState:
        """The run as it stands."""
        return self.tracks.run(self.run_id)

    @property
    def attempt(self) -> AttemptState:
        """The newest attempt."""
        return self.state.attempts[-1]

    @property
    def launch_id(self) -> str:
        """The launch of the newest attempt."""
        return f"{self.attempt.attempt_id:02d}c0ffee{self.run_id[-2:]}"

    @property
    def key(self) -> str:
        """The newest attempt's key."""
        return attempt_key(self.run_id, self.attempt.attempt_id)

    def _tick_evals(self) -> Tick[EvalsOfRun]:
        return tick_evals(world_of(self.tracks, self.ledger, orchestrator=self.orchestrator))

    def _declare(self) -> None:
        required = EvalRequirement(
            suite="heldout-loss", suite_version="1", snapshot=self.heldout, seed=7
        )
        body = declared(
            self.run_id,
            config=CONFIG,
            snapshot=self.data,
            code=CodeVersion(git_commit=COMMIT, branch="main", dirty=True, package_version="0.1.0"),
            compute=ComputeRequest(launcher="kubernetes", ranks=2, device_class="h100"),
            evals=(required,),
            intent="Does a smaller learning rate end lower?",
        )
        self.tracks.declare_run(body)

    def _dataset(self, name: str) -> SnapshotRef:
        dataset = DatasetHistory(name).declare().commit(sha256_hex(name.encode()))
        dataset.write_to(self.store)
        self.tracks.project(dataset.name)
        return SnapshotRef(dataset=name, snapshot_id=sha256_hex(name.encode()))

    def _commit(self, step: int) -> None:
        number = self.attempt.attempt_id
        ref = store_checkpoint(self.store, self.run_id, number, self.launch_id, step)
        body = committed(ref, self.launch_id)
        self._fact(Kind.CHECKPOINT_COMMITTED, body)

    def _fact(self, kind: Kind, body: object) -> World:
        draft = self.tracks.draft(kind, body, attempt_id=self.attempt.attempt_id)
        assert self.tracks.decide_run(self.run_id, lambda state: draft) is not None
        self.clock.advance(1)
        return self
