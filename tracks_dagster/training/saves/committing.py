"""From a staged save to its commit, in a thread of each rank: chunks, manifest, journal, one record.

Each rank stores its chunks and tells rank 0 where they lie. Rank 0 waits for all of them, but not for
ever, writes the manifest, appends the commit, and tells the others how it went.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol

from tracks_dagster.track.bodies import Alert, CheckpointCommitted, TimeSpent
from tracks_dagster.track.errors import (
    CheckpointWriteFailed,
    Fenced,
    InvalidInput,
    NonFinite,
    RankLost,
    StoreError,
    TrainingError,
)
from tracks_dagster.track.names import ALERT_SAVE_FAILED
from tracks_dagster.track.records import Draft, Json, Kind
from tracks_dagster.track.states.metric_values import few_metrics
from tracks_dagster.training.feeding import describe_state
from tracks_dagster.training.journal import complain
from tracks_dagster.training.last_word import is_of_lost_rank
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.saves.chunk_writer import KnownChunks
from tracks_dagster.training.saves.manifest import Chunk
from tracks_dagster.training.saves.storage_writer import Moment, WrittenCheckpoint

PART_S_MAX = 120.0  # how long rank 0 waits for the others' chunks after its own; `slowest_s` more
OUTCOME_S_MAX = 300.0  # how long the others wait for the outcome; `slowest_s` more
SLOWEST_BYTES_PER_S = 16 * 1024 * 1024  # of a store for all ranks; a slower one counts as down
ALERT_CHARS_MAX = 2000
ALERTS_WAITING_MAX = 100  # for a store that is down; of more the oldest are let go


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a save ended, the same on every rank. All empty: it was committed.

    failed: no commit, and training goes on. is_abandoned: because a checkpoint whose chunks it names
    was quarantined or deleted.
    ends: name of an error of `track.errors`: training must not go on; failed says why.
    """

    failed: str = ""
    is_abandoned: bool = False
    ends: str = ""


class SaveWriter(Protocol):
    """One rank's side of one save, of tensors or of a folder, with all that it needs to store it.

    results: what a rank tells rank 0 of its part. chunks, written_bytes: known once it is stored.
    """

    @property
    def moment(self) -> Moment:
        """What is saved; complete once `finish` has returned."""
        ...

    @property
    def chunks(self) -> Sequence[Chunk]:
        """The chunks of this rank's part."""
        ...

    @property
    def written_bytes(self) -> int:
        """How many bytes of it are new."""
        ...

    def store(self) -> Any:
        """Store this rank's part; durable when it returns its results.

        Raises StoreError or CheckpointWriteFailed when it cannot be stored now; NonFinite or
        InvalidInput for what must not be."""
        ...

    def encode(self, results: Any) -> Json:
        """Return results as JSON, for rank 0."""
        ...

    def decode(self, stored: Json) -> Any:
        """Return the results that another rank encoded."""
        ...

    def finish(self, parts: Sequence[Any]) -> WrittenCheckpoint:
        """Store the manifest of all ranks' results, by rank.

        Raises as `store` does, and TrainingError where the ranks disagree on what is one for all."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """One save under way. number: counts a launch's saves; began: monotonic seconds.

    blocking_s: how long training waited for it; None: it waits for the commit. slowest_s: what a
    store may need for the bytes of all ranks, beyond what any save may take.
    """

    number: int
    step: int
    trigger: str
    began: float
    blocking_s: float | None
    writer: SaveWriter
    slowest_s: float
    spent: TimeSpent | None = None
    non_finite: Collection[str] = ()

    @property
    def blocked_s(self) -> float:
        """How long training has waited by now."""
        return self.waited_s if self.blocking_s is None else self.blocking_s

    @property
    def waited_s(self) -> float:
        """Seconds since it began."""
        return round(time.monotonic() - self.began, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one rank stored of a save. failed: why it could not; ends: as in `Outcome`."""

    results: Any = ()
    written_bytes: int = 0
    sources: frozenset[str] = frozenset()
    failed: str = ""
    ends: str = ""

    def to_json(self, writer: SaveWriter) -> dict[str, Json]:
        """Return it as it goes to rank 0; without results where it failed."""
        message = {each.name: getattr(self, each.name) for each in fields(self)}
        results = None if self.failed else writer.encode(self.results)
        return {**message, "results": results, "sources": sorted(self.sources)}

    @classmethod
    def from_json(cls, message: Mapping[str, Json], writer: SaveWriter) -> Part:
        """Return the part that another rank sent."""
        results = () if message["failed"] else writer.decode(message["results"])
        return cls(**{**message, "results": results, "sources": frozenset(message["sources"])})


class Committer:
    """Brings one launch's staged saves to their end, one at a time; `complete` is a thread's body."""

    def __init__(self, launch: Launch, known: KnownChunks) -> None:
        self._launch = launch
        self._known = known
        self._alerts: deque[Draft] = deque(maxlen=ALERTS_WAITING_MAX)
        self._rank_is_lost = threading.Event()

    def lose_rank(self) -> None:
        """Take in that another rank is gone: what has not come by now is waited for no more."""
        self._rank_is_lost.set()

    def complete(self, save: Save) -> Outcome:
        """Store and commit a staged save; return how it ended, whatever happens."""
        try:
            return self._exchange(save, self._own_part(save))
        except BaseException as error:  # noqa: BLE001 - a thread's edge: `settle` raises it
            why = f"{type(error).__name__}: {error}"
            ends = RankLost if is_of_lost_rank(error) else TrainingError
            outcome = Outcome(failed=why, ends=ends.__name__)
            with suppress(
                RuntimeError
            ):  # as torch raises where the ranks' store is gone with a rank
                self._post_outcome(save, outcome, None)
            return outcome

    def journal(self, save: Save, outcome: Outcome) -> None:
        """Write down how a save ended."""
        fields: dict[str, Json] = {
            "step": save.step,
            "blocking_s": save.blocked_s,
            "save_s": save.waited_s,
            "written_bytes": save.writer.written_bytes,
        }
        if outcome.failed:
            error = self._launch.clean(outcome.failed)
            self._launch.journal.write("save_failed", error=error, **fields)
        else:
            self._launch.journal.write("save", **fields)

    def _own_part(self, save: Save) -> Part:
        """Store this rank's chunks; return where they lie, or what kept it from storing them."""
        try:
            results = save.writer.store()
        except (NonFinite, InvalidInput) as error:
            return Part(failed=str(error), ends=type(error).__name__)
        except (StoreError, CheckpointWriteFailed) as error:
            return Part(failed=str(error))
        return Part(
            results=results,
            written_bytes=save.writer.written_bytes,
            sources=self._known.sources(save.writer.chunks),
        )

    def _exchange(self, save: Save, part: Part) -> Outcome:
        """Let rank 0 commit what all ranks stored; return the outcome that it found."""
        ranks = self._launch.ranks
        key = f"save-{save.number}"
        if not ranks.is_first:
            ranks.post(f"{key}/part-{ranks.rank}", part.to_json(save.writer))
            wait_s = OUTCOME_S_MAX + save.slowest_s
            message = self._fetch(f"{key}/outcome", wait_s)
            if message is None:
                return Outcome(failed=f"Rank 0 did not say{self._in_time(wait_s)} how it ended.")
            outcome = Outcome(**message["outcome"])
        else:
            written, outcome = self._gather_and_commit(save, key, part)
            message = self._post_outcome(save, outcome, written)
        if message["manifest"] and not outcome.failed:
            self._known.learn_commit(message["manifest"], save.writer.chunks)
        return outcome

    def _post_outcome(
        self, save: Save, outcome: Outcome, written: WrittenCheckpoint | None
    ) -> dict[str, Json]:
        """Post what rank 0 found to the other ranks; return the message."""
        ranks = self._launch.ranks
        message = {"outcome": asdict(outcome), "manifest": written and written.ref.manifest_sha256}
        if ranks.is_first and ranks.world_size > 1:
            ranks.post(f"save-{save.number}/outcome", message)
        return message

    def _gather_and_commit(
        self, save: Save, key: str, part: Part
    ) -> tuple[WrittenCheckpoint | None, Outcome]:
        ranks = self._launch.ranks
        parts = [part]
        wait_s = PART_S_MAX + save.slowest_s
        deadline = time.monotonic() + wait_s
        for rank in range(1, ranks.world_size):
            left_s = max(0.0, deadline - time.monotonic())
            message = self._fetch(f"{key}/part-{rank}", left_s)
            late = f"Rank {rank} had not stored its part{self._in_time(wait_s)}."
            parts.append(
                Part(failed=late) if message is None else Part.from_json(message, save.writer)
            )
        failed = [each for each in parts if each.failed]
        if failed:
            first = next((each for each in failed if each.ends), failed[0])
            return None, self._failed(save, first.failed, ends=first.ends)
        try:
            return self._commit(save, parts)
        except Fenced as error:
            return None, Outcome(failed=str(error), ends=Fenced.__name__)
        except (InvalidInput, TrainingError) as error:
            return None, self._failed(save, str(error), ends=type(error).__name__)
        except (StoreError, CheckpointWriteFailed) as error:
            return None, self._failed(save, str(error))

    def _fetch(self, key: str, wait_s: float) -> Json | None:
        is_vain = self._rank_is_lost.is_set
        return self._launch.ranks.fetch(key, timeout_s=wait_s, is_vain=is_vain)

    def _in_time(self, wait_s: float) -> str:
        if self._rank_is_lost.is_set():
            return " before a rank was lost"
        return f" in {wait_s:.3g} s"

    def _commit(self, save: Save, parts: list[Part]) -> tuple[WrittenCheckpoint | None, Outcome]:
        writer = save.writer
        written = writer.finish([part.results for part in parts])
        self._launch.journal.ship()
        sources = frozenset(source for part in parts for source in part.sources)
        bytes_written = sum(part.written_bytes for part in parts)
        record = self._launch.append(self._draft(save, written, bytes_written), sources=sources)
        if record is None:
            text = "A checkpoint whose chunks it names was quarantined or deleted meanwhile."
            return None, replace(self._failed(save, text), is_abandoned=True)
        self._send_alerts()
        return written, Outcome()

    def _draft(self, save: Save, written: WrittenCheckpoint, written_bytes: int) -> Draft:
        moment = save.writer.moment
        declared = self._launch.declared
        first = (declared.retention.metric, "loss", *declared.required_signals)
        body = CheckpointCommitted(
            launch_id=moment.launch_id,
            ref=written.ref,
            cursor=moment.data["cursor"],
            epoch=moment.data["epoch"],
            pass_samples=moment.data.get("dataset_length"),
            data_state=_data_state(moment),
            trigger=save.trigger,
            total_bytes=written.total_bytes,
            written_bytes=written_bytes,
            blocking_s=save.blocked_s,
            metrics=few_metrics(moment.metrics, first=first),
            non_finite=tuple(few_metrics(dict.fromkeys(save.non_finite), first=first)),
            spent=save.spent,
            kind=written.manifest.kind,
        )
        return self._launch.draft(Kind.CHECKPOINT_COMMITTED, body)

    def _failed(self, save: Save, why: str, *, ends: str = "") -> Outcome:
        """Say on stderr and in the track that a save failed; rank 0 only."""
        text = f"The {save.trigger} save of step {save.step} failed: {why}"
        complain(text)
        alert = Alert(rule=ALERT_SAVE_FAILED, text=text[:ALERT_CHARS_MAX], data={"step": save.step})
        self._alerts.append(self._launch.draft(Kind.ALERT, alert))
        self._send_alerts()
        return Outcome(failed=why, ends=ends)

    def _send_alerts(self) -> None:
        """Append what has not landed yet; a store that is down gets it with the next save."""
        try:
            while self._alerts:
                self._launch.whole_track().note(self._alerts[0])
                self._alerts.popleft()
        except Exception as error:  # noqa: BLE001 - whatever it is, the save ended as it did
            complain(f"an alert waits for the next save: {type(error).__name__}: {error}")


def _data_state(moment: Moment) -> str | None:
    """Return where the loader says that it stands; None where the order is ours or it says nothing."""
    name = moment.data.get("state")
    if name is None:
        return None
    own = moment.own.get(name)
    return describe_state(moment.values[name] if own is None else own[0]) or None
