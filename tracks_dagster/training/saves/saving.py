"""Saves while training goes on. All ranks see the same outcome of every save.

`save` makes training wait for one copy in host memory; `committing` does the rest in a thread. One save
is under way at a time, so memory for one copy is enough. What is saved is a stager's: `TensorStager`
here, `folders.FolderStager` for files that the script wrote itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from queue import SimpleQueue
from typing import Any, Protocol

from tracks_dagster.track.bodies import TimeSpent
from tracks_dagster.track.errors import (
    CheckpointWriteFailed,
    Fenced,
    InvalidInput,
    NonFinite,
    RankLost,
    TracksError,
    TrainingError,
)
from tracks_dagster.track.records import Json, canonical_json, sha256_hex
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.saves.chunk_writer import KnownChunks
from tracks_dagster.training.saves.committing import (
    OUTCOME_S_MAX,
    PART_S_MAX,
    SLOWEST_BYTES_PER_S,
    Committer,
    Outcome,
    Save,
    SaveWriter,
)
from tracks_dagster.training.saves.storage_writer import (
    Moment,
)

LAST_TRIGGERS = frozenset({"sigterm", "final"})  # nothing comes after these
LAST_TRIES_MAX = 2  # of the last save, when it is abandoned for another checkpoint's quarantine
SAVE_S_MAX = PART_S_MAX + OUTCOME_S_MAX  # how long a save may take; its `slowest_s` more
SETTLE_S_MIN = 60.0  # how long training waits for one that has taken that long already
RANK_LOST_S_MAX = 3.0  # for one that has all its parts: the gang is ended five seconds after a rank

_ENDS: dict[str, type[TracksError]] = {
    error.__name__: error
    for error in (CheckpointWriteFailed, Fenced, InvalidInput, NonFinite, RankLost, TrainingError)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnderWay:
    """A save that `thread` completes, as far as training has to know it.

    Only the thread has the save itself: letting go of its thousand entries takes half a millisecond,
    for which training would wait at the next save.
    """

    step: int
    began: float
    slowest_s: float
    thread: threading.Thread


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSave:
    """What a stager hands over. total_bytes: of all ranks; is_copied: training may go on before the
    commit."""

    writer: SaveWriter
    total_bytes: int
    is_copied: bool = True


class Stager(Protocol):
    """Knows what a launch's checkpoints hold. Collective."""

    def stage(self, moment: Moment) -> StagedSave:
        """Return the save of `moment`, which the stager completes."""
        ...


class Saver:
    """Saves one launch's checkpoints. `saved_step`: the newest that can be resumed from; `slowest_s`:
    the longest that one took until it was committed, 0 before the first.

    waits: called with how many seconds training may now wait for a save that is under way.
    """

    def __init__(
        self,
        launch: Launch,
        stager: Stager,
        known: KnownChunks,
        *,
        step: int,
        waits: Callable[[float], None],
    ) -> None:
        self.saved_step = step
        self.slowest_s = 0.0
        self._waits = waits
        self._launch = launch
        self._stager = stager
        self._known = known
        self._committer = Committer(launch, known)
        self._count = 0
        self._under_way: _UnderWay | None = None
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
        non_finite: Collection[str] = (),
        spent: TimeSpent | None = None,
    ) -> None:
        """Save `step`. Collective; training waits for the copy, and for the save before.

        A save that failed is journalled and alerted, and training goes on; only when nothing comes
        after it (SIGTERM, the last step) this waits for the commit and raises CheckpointWriteFailed.
        spent: what the launch had spent by then, for the commit; non_finite: metrics of the step that
        are not finite, for it too.
        Raises what `settle` does, of this save or of the one before.
        """
        began = time.monotonic()
        self.settle()
        facts = {"data": data, "progress": progress, "metrics": metrics}
        beside = {"spent": spent, "non_finite": non_finite}
        self._begin(step, trigger, began, facts, beside)
        if trigger not in LAST_TRIGGERS:
            return
        outcome = self.settle()
        for _ in range(LAST_TRIES_MAX - 1):
            if outcome is not None and outcome.is_abandoned:
                self._begin(step, trigger, began, facts, beside)
                outcome = self.settle()
        if outcome is not None and outcome.failed:
            raise CheckpointWriteFailed(
                f"The {trigger} save of step {step} failed: {outcome.failed} Steps after "
                f"{self.saved_step} will be run again."
            )

    def settle(self) -> Outcome | None:
        """Wait for the save under way; return how it ended, or None when there is none.

        Collective, and bounded. Raises what training must not go on after: Fenced, NonFinite,
        CheckpointWriteFailed when it took too long (it still reads the memory that the next save
        would be copied to), TrainingError.
        """
        if self._under_way is None:
            return None
        save = self._under_way
        may_take_s = SAVE_S_MAX + save.slowest_s
        left_s = max(save.began + may_take_s - time.monotonic(), SETTLE_S_MIN)
        self._waits(left_s)
        save.thread.join(left_s)
        outcome = self._agreed(self._outcome or _unknown(save.thread, may_take_s))
        self._under_way, self._outcome = None, None
        if outcome.is_abandoned:
            self._known.forget()
        if not outcome.failed:
            self.saved_step = save.step
        if outcome.ends:
            why = (
                f"The save of step {save.step} ended all: {outcome.failed} "
                f"The last checkpoint is of step {self.saved_step}."
            )
            raise _error(outcome.ends, why, save.step)
        return outcome

    def _agreed(self, outcome: Outcome) -> Outcome:
        """Return the outcome that holds for all ranks: rank 0's, unless one says that it ends all.

        What they do next follows from the flags, so all of these must be equal. A rank that got no
        answer in time, or whose thread died, would go another way than the rest. The sums alone are
        one short exchange; nobody leaves before it: rank 0 keeps the words.
        """
        ranks = self._launch.ranks
        flags = (outcome.failed != "", outcome.is_abandoned, outcome.ends != "")
        sums = ranks.sum([float(flag) for flag in flags])
        if all(each in (0.0, float(ranks.world_size)) for each in sums):
            return outcome
        outcomes = [Outcome(**facts) for facts in ranks.gather(asdict(outcome))]
        return next((each for each in outcomes if each.ends), outcomes[0])

    def close(self, *, rank_is_lost: bool) -> None:
        """Let the save under way end, whatever it ends with; for a rank that ends itself.

        rank_is_lost: another rank is gone. Then a save that has all its parts is still committed; for
        one that has not nobody waits, because what is left of the gang is ended soon.
        """
        if self._under_way is None:
            return
        if rank_is_lost:
            self._committer.lose_rank()
        self._under_way.thread.join(RANK_LOST_S_MAX if rank_is_lost else PART_S_MAX)

    def _begin(
        self,
        step: int,
        trigger: str,
        began: float,
        facts: Mapping[str, Json],
        beside: Mapping[str, Any],
    ) -> None:
        """Stage what is saved, and let a thread do the rest."""
        # Started before the copy: after it, `start` would wait for the GIL while the new thread works,
        # which was a third of what training waits for.
        staged_save: SimpleQueue[Save | None] = SimpleQueue()
        thread = threading.Thread(
            target=self._complete, args=(staged_save,), name="saver", daemon=True
        )
        thread.start()
        try:
            save = self._stage(step, trigger, began, facts, beside)
        except BaseException:
            staged_save.put(None)
            raise
        self._under_way = _UnderWay(step=step, began=began, slowest_s=save.slowest_s, thread=thread)
        staged_save.put(save)

    def _stage(
        self,
        step: int,
        trigger: str,
        began: float,
        facts: Mapping[str, Json],
        beside: Mapping[str, Any],
    ) -> Save:
        """Stage what is saved; copied tensors may change as soon as this returns."""
        staged = self._stager.stage(self._moment(step, facts))
        self._count += 1
        return Save(
            number=self._count,
            step=step,
            trigger=trigger,
            began=began,
            blocking_s=round(time.monotonic() - began, 6) if staged.is_copied else None,
            writer=staged.writer,
            slowest_s=staged.total_bytes / SLOWEST_BYTES_PER_S,
            **beside,
        )

    def _moment(self, step: int, facts: Mapping[str, Json]) -> Moment:
        launch = self._launch
        return Moment(
            run_id=launch.place.run_id,
            attempt_id=launch.place.attempt_id,
            launch_id=launch.launch_id,
            step=step,
            values={},
            rng=(),
            config_sha256=sha256_hex(canonical_json(dict(launch.opened.config))),
            environment_sha256=launch.environment_sha256,
            **facts,
        )

    def _complete(self, staged_save: SimpleQueue[Save | None]) -> None:
        save = staged_save.get()
        if save is None:
            return  # it could not be staged, which its caller knows
        self._outcome = outcome = self._committer.complete(save)
        self.slowest_s = max(self.slowest_s, time.monotonic() - save.began)
        self._committer.journal(save, outcome)


def _error(ends: str, why: str, step: int) -> TracksError:
    """Return what is raised, made here: the line that raises is read in tracebacks, as a cause too."""
    kind = _ENDS[ends]
    return NonFinite(why, onset_step=step) if kind is NonFinite else kind(why)


def _unknown(thread: threading.Thread, may_take_s: float) -> Outcome:
    """Return the outcome of a save whose thread left none."""
    if thread.is_alive():
        late = f"It took more than {may_take_s:.3g} s."
        return Outcome(failed=late, ends=CheckpointWriteFailed.__name__)
    died = "Its thread died and did not say how it ended; see stderr."
    return Outcome(failed=died, ends=TrainingError.__name__)
