"""Retention as a state machine: everything that can happen to a run's checkpoints, in any order.

Collectors crash at any call to the store, and anybody may act in the middle of one. After every step
the oracle reads the new records, and every byte of every checkpoint that is not deleted is read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.bodies import BEGIN, HELDOUT, ended
from tests.checkpoints.retention_oracle import Oracle
from tests.checkpoints.retention_world import (
    BRANCH,
    RUN_ID,
    Crash,
    Interrupted,
    Reader,
    Trainer,
    World,
)
from tests.fakes import FakeObjectStore
from tracks_dagster.checkpoints.effects.pins import pin, unpin
from tracks_dagster.checkpoints.effects.retention import collect
from tracks_dagster.track.bodies import (
    CheckpointDecision,
    EvalEnded,
    EvalOpened,
    PromotionDecided,
    RetentionRule,
    RunFinished,
)
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Kind, Record, format_time
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key

RULES = st.builds(
    RetentionRule,
    keep_last=st.integers(1, 2),
    keep_best=st.integers(0, 1),
    milestone_every_steps=st.sampled_from([None, None, 40]),
    delete_after_s=st.sampled_from([0.0, 60.0]),
)
LAYERS = st.tuples(*[st.integers(0, 2)] * 3)
LOSSES = st.sampled_from([1.0, 2.0, 3.0, 4.0])
PICKS = st.integers(0, 50)  # which of those that there are, counted around
CALLS = st.integers(1, 40)  # to the store, of a pass that has read the track
CHANGES = 12  # of those, about as many as a pass makes
SECONDS = st.sampled_from([0.0, 1.0, 59.0, 61.0, 4000.0, 90_000.0])
PASSES_MAX = 6  # of a collector over a run in which nothing happens any more


class Retention(RuleBasedStateMachine):
    """The machine; `draw` values are small numbers, so that a failure shrinks to a short story."""

    world: World
    oracle: Oracle

    @initialize(retention=RULES, saves=st.lists(st.tuples(LAYERS, LOSSES), max_size=8))
    def begin(
        self, retention: RetentionRule, saves: list[tuple[tuple[int, int, int], float]]
    ) -> None:
        self.world = World(retention)
        self.oracle = Oracle(retention)
        self.seen = 0
        self.world.open_attempt()
        for layers, loss in saves:
            for _ in range(2):
                self._train(1, layers, loss)

    # --- training ---------------------------------------------------------------------------------

    @rule(pick=PICKS, layers=LAYERS, loss=LOSSES, halves=st.integers(1, 10))
    def train(self, pick: int, layers: tuple[int, int, int], loss: float, halves: int) -> None:
        """A trainer restores if it has not, or does some halves of saves; also an old one."""
        for number in range(halves):
            first, *others = layers
            self._train(pick, ((first + number) % 3, others[0], others[1]), loss + number % 2)

    @rule(reason=st.sampled_from(["preempted", "completed"]), opens=st.booleans())
    def end(self, reason: str, opens: bool) -> None:
        """The open attempt ends; its trainer does not know it yet."""
        self._end(reason)
        if opens:
            self.world.open_attempt()

    @rule()
    def open(self) -> None:
        """The next attempt is opened, if none is open."""
        self.world.open_attempt()

    @precondition(lambda self: self._is_idle)
    @rule(finishes=st.sampled_from([False, False, False, True]))
    def finish(self, finishes: bool) -> None:
        """The run ends for good."""
        if finishes:
            body = RunFinished(stop_cause="user", why="enough", decided_by="tests", final=None)
            self.world.decide(Kind.RUN_FINISHED, body)

    # --- what people and policies decide ----------------------------------------------------------

    @rule(pick=PICKS)
    def quarantine(self, pick: int) -> None:
        """Somebody says that nobody may resume from a checkpoint."""
        ref = self._pick(pick, "resumable")
        if ref is not None:
            body = CheckpointDecision(manifest_sha256=ref.manifest_sha256, by="tests", why="rot")
            self.world.decide(Kind.CHECKPOINT_QUARANTINED, body)

    @rule(pick=PICKS, holder=st.sampled_from(["hold:ann", BRANCH]))
    def hold(self, pick: int, holder: str) -> None:
        """Somebody pins a checkpoint, perhaps one that is just being collected."""
        self._hold(pick, holder)

    @rule(pick=PICKS)
    def let_go(self, pick: int) -> None:
        """Somebody takes a pin back."""
        held = [(c.ref, holder) for c in self.world.state.checkpoints for holder in sorted(c.pins)]
        if held:
            ref, holder = held[pick % len(held)]
            try:
                unpin(self.world.tracks, ref, holder=holder, by="tests", why="done")
            except InvalidInput:
                assert holder == BRANCH
                assert self.world.branch is not None

    @rule(finishes=st.booleans())
    def branch(self, finishes: bool) -> None:
        """The branch that pins for itself is declared, or finished; from then on no pass may err."""
        if self.world.branch is None:
            self.world.declare_branch()
        elif finishes:
            self.world.finish_branch()

    @rule(pick=PICKS)
    def evaluate(self, pick: int) -> None:
        """An eval of a checkpoint is opened, or the one that is open ends."""
        self._evaluate(pick)

    @rule(pick=PICKS, alias=st.sampled_from(["best", "candidate"]))
    def promote(self, pick: int, alias: str) -> None:
        """A checkpoint is given an alias, which another may have had."""
        ref = self._pick(pick, "resumable")
        if ref is not None:
            self.world.decide(Kind.PROMOTION_DECIDED, _promotion(ref, alias))

    # --- collecting -------------------------------------------------------------------------------

    @rule(seconds=SECONDS)
    def collect(self, seconds: float) -> None:
        """One pass, undisturbed."""
        self.world.now.advance(seconds)
        self._collect(self.world.store)

    @rule(
        seconds=SECONDS,
        at=CALLS,
        after=st.booleans(),
        only_changes=st.booleans(),
        what=st.sampled_from(
            ["crash", "crash", "train", "train", "collect", "end", "open", "hold", "evaluate"]
        ),
        pick=PICKS,
        layers=LAYERS,
        loss=LOSSES,
    )
    def collect_disturbed(
        self,
        seconds: float,
        at: int,
        after: bool,
        only_changes: bool,
        what: str,
        pick: int,
        layers: tuple[int, int, int],
        loss: float,
    ) -> None:
        """A pass that crashes, or in whose middle another one, a trainer or a decision comes."""

        def crash() -> None:
            raise Crash

        act: dict[str, Callable[[], None]] = {
            "crash": crash,
            "collect": lambda: self._collect(self.world.store),
            "train": lambda: self._train(pick, layers, loss),
            "end": lambda: self._end("preempted"),
            "open": self.world.open_attempt,
            "hold": lambda: self._hold(pick, "hold:ann"),
            "evaluate": lambda: self._evaluate(pick),
        }
        self.world.now.advance(seconds)
        disturbed = Interrupted(
            self.world.store,
            at=1 + at % CHANGES if only_changes else at,
            action=act[what],
            after=after,
            only_changes=only_changes,
        )
        with contextlib.suppress(Crash):
            self._collect(disturbed)

    # --- what must hold ---------------------------------------------------------------------------

    @invariant()
    def every_decision_was_allowed(self) -> None:
        records = self.world.tracks.records(f"runs/{RUN_ID}")
        for record in records[self.seen :]:
            self.oracle.see(record)
            if record.kind is Kind.CHECKPOINT_UNPINNED and record.body["by"] == "collector":
                self._check_released(record)
        self.seen = len(records)

    @invariant()
    def every_checkpoint_that_is_not_deleted_can_be_read(self) -> None:
        for checkpoint in self.world.state.checkpoints:
            if not checkpoint.deleted:
                Reader(self.world.store).verify(checkpoint.ref)

    @invariant()
    def nothing_committed_is_gone_without_a_record(self) -> None:
        gone_by_record: set[str] = set()
        for checkpoint in self.world.state.checkpoints:
            if checkpoint.deletion is not None:
                gone_by_record |= {manifest_key(checkpoint.ref), *checkpoint.deletion.chunks}
        for checkpoint in self.world.state.checkpoints:
            ref = checkpoint.ref
            named = {manifest_key(ref), *self.world.ever_named[ref.manifest_sha256]}
            missing = named - self.world.store.objects.keys()
            assert missing <= gone_by_record, f"{missing - gone_by_record} went without a record"

    def teardown(self) -> None:
        """Collected to the end, nothing is left that nobody needs."""
        if not hasattr(self, "world"):
            return
        self._end("preempted")
        for _ in range(PASSES_MAX):
            self.world.now.advance(4000.0)
            self._collect(self.world.store)
        self.every_decision_was_allowed()
        self.every_checkpoint_that_is_not_deleted_can_be_read()
        needed: set[str] = set()
        for checkpoint in self.world.state.checkpoints:
            if not checkpoint.deleted:
                needed |= {manifest_key(checkpoint.ref)}
                needed |= self.world.ever_named[checkpoint.ref.manifest_sha256]
        there = {key for key in self.world.store.objects if "/step-" in key}
        assert there == needed, f"left over: {sorted(there - needed)}"

    # --- helpers ----------------------------------------------------------------------------------

    @property
    def _is_idle(self) -> bool:
        state = self.world.state
        return state.finished is None and state.open_attempt is None and bool(state.attempts)

    def _check_released(self, record: Record) -> None:
        """A pass may only let go for a branch that is finished, or was not declared for a day."""
        assert record.body["pin"] == BRANCH, "a pass took a person's pin"
        branch = self.world.branch
        waited_s = (
            record.at - self.oracle.pinned_at[record.body["manifest_sha256"]]
        ).total_seconds()
        is_finished = branch is not None and branch.finished is not None
        was_undeclared = branch is None or branch.declared_at >= record.at
        assert is_finished or (was_undeclared and waited_s >= 86_400.0), (
            f"let go {waited_s} s after it was pinned, and the branch needed it"
        )

    def _collect(self, store: FakeObjectStore | Interrupted) -> None:
        tracks = self.world.fresh_tracks(store)
        tracks.run(RUN_ID)
        if isinstance(store, Interrupted):
            store.arm()
        collect(tracks, Reader(store), RUN_ID, by="collector")

    def _train(self, pick: int, layers: tuple[int, int, int], loss: float) -> None:
        trainers = self.world.trainers
        if not trainers:
            return
        trainer: Trainer = trainers[-1] if pick % 3 else trainers[pick % len(trainers)]
        open_attempt = self.world.state.open_attempt
        is_newest = open_attempt is not None and open_attempt.attempt_id == trainer.attempt_id
        if is_newest and open_attempt is not None and open_attempt.placed is None:
            trainer.start()
        elif trainer.step or not is_newest or (open_attempt and open_attempt.restored):
            self.world.save(trainer, layers, loss)

    def _end(self, reason: str) -> None:
        attempt = self.world.state.open_attempt
        if attempt is not None:
            body = ended(reason, at=BEGIN + timedelta(hours=1))
            self.world.decide(Kind.ATTEMPT_ENDED, body, attempt_id=attempt.attempt_id)

    def _hold(self, pick: int, holder: str) -> None:
        ref = self._pick(pick, "any")
        if ref is None:
            return
        checkpoint = self.world.state.checkpoint(ref.manifest_sha256)
        assert checkpoint is not None
        try:
            pin(self.world.tracks, ref, holder=holder, by="tests", why="needed")
        except InvalidInput:
            assert not checkpoint.is_resumable

    def _evaluate(self, pick: int) -> None:
        running = [e.opened for e in self.world.state.evals if e.ended is None]
        if running and pick % 2:
            draft = self.world.tracks.draft(Kind.EVAL_ENDED, _eval_ended(running[0]))
            self.world.tracks.note_run(RUN_ID, draft)
            return
        ref = self._pick(pick, "resumable")
        if ref is not None:
            number = len(self.world.state.evals) + 1
            self.world.decide(Kind.EVAL_OPENED, _eval(ref, number))

    def _pick(self, pick: int, which: str) -> CheckpointRef | None:
        checkpoints = self.world.state.checkpoints
        refs = [c.ref for c in checkpoints if which == "any" or c.is_resumable]
        return refs[pick % len(refs)] if refs else None


def _eval(ref: CheckpointRef, number: int) -> EvalOpened:
    return EvalOpened(
        eval_id=f"heldout-loss@{ref.step}",
        number=number,
        checkpoint=ref,
        suite="heldout-loss",
        suite_version="1",
        snapshot=HELDOUT,
        seed=7,
        decision="It is wanted.",
        decided_by="tests",
    )


def _eval_ended(opened: EvalOpened) -> EvalEnded:
    return EvalEnded(
        eval_id=opened.eval_id,
        number=opened.number,
        reason="completed",
        metrics={"loss": 1.0},
        sample_count=1,
        environment={},
        environment_sha256="",
        started_at=format_time(BEGIN),
        finished_at=format_time(BEGIN),
        device_seconds=1.0,
    )


def _promotion(ref: CheckpointRef, alias: str) -> PromotionDecided:
    return PromotionDecided(
        alias=alias,
        promoted=True,
        checkpoint=ref,
        eval_id="heldout-loss",
        eval_number=1,
        suite="heldout-loss",
        suite_version="1",
        snapshot=HELDOUT,
        seed=7,
        environment_sha256="",
        metrics={"loss": 1.0},
        metric="loss",
        direction="min",
        threshold=5.0,
        decided_by="tests",
        why="It is good.",
    )
