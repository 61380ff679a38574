"""Saves while training goes on. All ranks see the same outcome of every save.

`save` makes training wait for one copy in host memory; `committing` does the rest in a thread. One save
is under way at a time, so memory for one copy is enough.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import asdict

from tracks_dagster.core.errors import CheckpointWriteFailed, Fenced, NonFinite, TrainingError
from tracks_dagster.core.records import Json, canonical_json, sha256_hex
from tracks_dagster.training import random_state
from tracks_dagster.training.arena import Arena
from tracks_dagster.training.chunk_writer import KnownChunks
from tracks_dagster.training.committing import OUTCOME_S_MAX, PART_S_MAX, Committer, Outcome, Save
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.planning import SavePlanning
from tracks_dagster.training.staging import Staging
from tracks_dagster.training.state_dict import StateDict, Trained, collect, unwrapped
from tracks_dagster.training.storage_writer import CheckpointStorageWriter, Moment

LAST_TRIGGERS = frozenset({"sigterm", "final"})  # nothing comes after these
LAST_TRIES_MAX = 2  # of the last save, when a checkpoint whose chunks it names was withdrawn
SAVE_S_MAX = PART_S_MAX + OUTCOME_S_MAX  # how long training waits for a save under way


class Saver:
    """Saves one launch's checkpoints. `saved_step`: the newest that can be resumed from."""

    def __init__(
        self, launch: Launch, trained: Trained, known: KnownChunks, arena: Arena, *, step: int
    ) -> None:
        self.saved_step = step
        self._launch = launch
        self._trained = trained
        self._known = known
        self._staging = Staging(arena)
        self._parameters = frozenset(
            f"model.{name}" for name, _ in unwrapped(trained.model).named_parameters()
        )
        self._planning = SavePlanning(launch.ranks, self._parameters)
        self._committer = Committer(launch, known)
        self._count = 0
        self._under_way: tuple[int, threading.Thread] | None = None  # its step, its thread
        self._outcome: Outcome | None = None  # of the save under way, once its thread knows it

    @property
    def must_settle(self) -> bool:
        """Whether a save has ended in a way that training must not go on after."""
        return self._outcome is not None and self._outcome.ends != ""

    def save(
        self,
        step: int,
        trigger: str,
        *,
        data: Mapping[str, Json],
        progress: Mapping[str, Json],
        metrics: Mapping[str, float],
    ) -> None:
        """Save `step`. Collective; training waits for the copy, and for the save before.

        A save that failed is journalled and alerted, and training goes on; only when nothing comes
        after it (SIGTERM, the last step) this waits for the commit and raises CheckpointWriteFailed.
        Raises Fenced, and NonFinite for weights that are, of this save or of the one before.
        """
        began = time.monotonic()
        self.settle()
        told = {"data": data, "progress": progress, "metrics": metrics}
        self._begin(step, trigger, began, told)
        if trigger not in LAST_TRIGGERS:
            return
        outcome = self.settle()
        for _ in range(LAST_TRIES_MAX - 1):
            if outcome is not None and outcome.withdrawn:
                self._begin(step, trigger, began, told)
                outcome = self.settle()
        if outcome is not None and outcome.failed:
            raise CheckpointWriteFailed(
                f"The {trigger} save of step {step} failed: {outcome.failed} Steps after "
                f"{self.saved_step} will be run again."
            )

    def settle(self) -> Outcome | None:
        """Wait for the save under way; return how it ended, or None when there is none.

        Collective, and bounded. Raises what training must not go on after: Fenced, NonFinite,
        TrainingError.
        """
        if self._under_way is None:
            return None
        step, thread = self._under_way
        thread.join(SAVE_S_MAX)
        late = f"It took more than {SAVE_S_MAX:g} s."
        outcome = self._agreed(self._outcome or Outcome(failed=late, ends="TrainingError"))
        self._under_way, self._outcome = None, None
        if outcome.withdrawn:
            self._known.forget()
        if not outcome.failed:
            self.saved_step = step
        if outcome.ends == Fenced.__name__:
            raise Fenced(outcome.failed)
        if outcome.ends == NonFinite.__name__:
            raise NonFinite(f"{outcome.failed} The last checkpoint is of step {self.saved_step}.")
        if outcome.ends:
            raise TrainingError(f"The save of step {step} ended all: {outcome.failed}")
        return outcome

    def _agreed(self, outcome: Outcome) -> Outcome:
        """Return the outcome that holds for all ranks: rank 0's, unless one says that it ends all.

        A rank that was not told in time, or whose thread died, would go another way than the rest.
        The sums alone are one short exchange; nobody leaves before it: rank 0 keeps the words.
        """
        ranks = self._launch.ranks
        sums = ranks.sum([float(outcome.failed != ""), float(outcome.ends != "")])
        if all(each in (0.0, float(ranks.world_size)) for each in sums):
            return outcome
        outcomes = [Outcome(**told) for told in ranks.gather(asdict(outcome))]
        return next((each for each in outcomes if each.ends), outcomes[0])

    def close(self) -> None:
        """Let the save under way end, whatever it ends with; for a rank that ends itself."""
        if self._under_way is not None:
            self._under_way[1].join(PART_S_MAX)

    def _begin(self, step: int, trigger: str, began: float, told: Mapping[str, Json]) -> None:
        """Stage the state, and start the thread that does the rest."""
        state = collect(self._trained)
        planned = self._planning.plan(state.tensors)
        writer = CheckpointStorageWriter(
            self._launch.store,
            self._moment(step, state, told),
            staging=self._staging,
            known=self._known,
            parameters=self._parameters,
        )
        rng = random_state.capture()
        staged = writer.stage(planned.plan, planned.planner)
        self._count += 1
        save = Save(
            number=self._count,
            step=step,
            trigger=trigger,
            began=began,
            blocking_s=round(time.monotonic() - began, 6),
            writer=writer,
            staged=staged,
            metadata=planned.metadata,
            rng=rng,
        )
        thread = threading.Thread(target=self._complete, args=(save,), name="saver", daemon=True)
        self._under_way = (step, thread)
        thread.start()

    def _moment(self, step: int, state: StateDict, told: Mapping[str, Json]) -> Moment:
        launch = self._launch
        return Moment(
            run_id=launch.place.run_id,
            attempt_id=launch.place.attempt_id,
            launch_id=launch.launch_id,
            step=step,
            values=state.values,
            rng=(),
            config_sha256=sha256_hex(canonical_json(dict(launch.opened.config))),
            environment_sha256=launch.environment_sha256,
            **told,
        )

    def _complete(self, save: Save) -> None:
        self._outcome = self._committer.complete(save)
