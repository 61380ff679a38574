"""The world of the append model: a run's log, the actors that append to it, and what must hold.

What is real here: the state machines of `track.append` (every request that an actor makes and every
reply that it takes goes through `Walk` or `Claim`), the bytes of `track.records`, the hash chain, and
the fold and the objections of `track.states.run_state`, from which the sensors decide.

What is abstracted, and why nothing is lost by it:

- The log is the tuple of stored records, extended one record at a time. Every log that is ever
  reached exists once (`Log.append` interns it), so what must hold of a log is judged once.
- What `track.trainer_track` adds (set out at one's own `attempt_opened`, go on where the last
  fact ended, take no chunks from what was seen withdrawn, give way before a decision of one's own) is
  restated in `Cast._next_fact`, `_sources` and `_decide`; its own tests drive the real one.
- A gang is its rank 0: it starts at any time after its attempt was opened, by whatever cause, places
  itself and commits. All that the other ranks may do hangs on what rank 0 hears.
- A checkpoint is the set of chunks that its manifest names: one of its own, and all those of the
  checkpoints that its launch may lean on. Where checkpoints can be withdrawn, a gang records what it
  restored before it commits. A collector verifies, supersedes and deletes what the product's own
  check allows; its deletions name the chunks that go.
- A sensor is stateless between two decisions. It folds the log, chooses any decision that the state
  allows (also to end an attempt whose gang is alive and well: nobody can tell for sure), and makes
  its claim, perhaps much later. A person at the command line is such a sensor.
- A lost reply is one of three: the write took effect, it never will, or it is still on its way and
  lands at any later moment (`World.flying`). Their number is bounded.
- A kill is an actor that is never scheduled again, which every state allows; what it had under way
  lands or not by whether it was scheduled once more. A killed sensor comes back empty-handed.
- Clocks stand still: no rule reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from tests.model.drafts import RUN_DECLARED_DRAFT, author
from tracks_dagster.track import append
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.records import Kind, Record, parse, seal
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.checkpoints import resume_target
from tracks_dagster.track.states.run_fold import AFTER_FINISH
from tracks_dagster.track.states.run_state import RunState

AT = datetime(2026, 1, 31, 2, 0, tzinfo=UTC)

Machine = append.Walk | append.Claim


@dataclass(slots=True, eq=False)
class Log:
    """One content of the track; `wrong` names the property that its last record breaks."""

    data: tuple[bytes, ...] = ()
    records: tuple[Record, ...] = ()
    state: RunState | None = None
    wrong: str | None = None
    before: Log | None = None
    _longer: dict[bytes, Log] = field(default_factory=dict)

    def append(self, data: bytes) -> Log:
        """Return the log with one more record; the same one for the same bytes."""
        if data not in self._longer:
            record = parse(data, seq=len(self.data))
            log = Log(data=(*self.data, data), records=(*self.records, record), before=self)
            log.wrong = _objection(self, record)
            try:
                log.state = run_fold.apply(self.state, record)
            except TrackBroken:
                log.wrong = log.wrong or "the fold refuses the record"
            self._longer[data] = log
        return self._longer[data]

    def sha256_before(self, seq: int) -> str | None:
        """Return the sha256 that the record at `seq` has to name."""
        return self.records[seq - 1].sha256 if seq else None

    def until(self, seq: int) -> Log:
        """Return the log as it was before the record at `seq`."""
        log = self
        while len(log.data) > seq:
            assert log.before is not None
            log = log.before
        return log

    def find(self, kind: Kind, attempt_id: int | None) -> Record | None:
        """Return the first record of that kind and attempt."""
        wanted = (kind, attempt_id)
        return next((r for r in self.records if (r.kind, r.attempt_id) == wanted), None)

    def lines(self) -> list[str]:
        """Return the log as text, a record a line, for a failing test."""
        return [f"{r.seq:2} {r.kind} a{r.attempt_id} by {r.uid}" for r in self.records]


def first_log() -> Log:
    """Return a run that is declared, with no attempt yet."""
    return Log().append(seal(RUN_DECLARED_DRAFT, seq=0, at=AT, prev_sha256=None))


@dataclass(frozen=True, slots=True, eq=False)
class Writer:
    """A gang's rank 0 named by its launch, or the author of a note (attempt_id None).

    fact: how many facts of its program it has appended; machine: None before its start and after
    its end, which `over` tells apart. Equal actors are one object (`Model.same`), for speed.
    """

    name: str
    attempt_id: int | None
    fact: int = 0
    machine: Machine | None = None
    over: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """What makes it equal to another."""
        return (self.name, self.fact, self.machine, self.over)


@dataclass(frozen=True, slots=True, eq=False)
class Sensor:
    """One process that decides; machine: its claim under way."""

    name: str
    machine: Machine | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What makes it equal to another."""
        return (self.name, self.machine)


Actor = Writer | Sensor


class World(NamedTuple):
    """One state of everything. flying: creations that may still land; losses: replies left to lose."""

    log: Log
    actors: tuple[Actor, ...]
    flying: frozenset[append.Create]
    losses: int


# --- what must hold of every log ------------------------------------------------------------------


def _objection(log: Log, record: Record) -> str | None:
    """Name the property that `record` breaks when it follows `log`."""
    kind, attempt_id = record.kind, record.attempt_id or 0
    if record.seq != len(log.records) or record.prev_sha256 != log.sha256_before(record.seq):
        return "the chain breaks"
    if any(
        (r.kind, r.attempt_id, r.body) == (kind, record.attempt_id, record.body)
        for r in log.records
    ):
        return "a record landed twice"
    if log.find(Kind.RUN_FINISHED, None) and kind not in AFTER_FINISH:
        return "the run went on after it was finished"
    if kind is Kind.ATTEMPT_OPENED and (
        log.find(kind, attempt_id)
        or (attempt_id > 1 and not log.find(Kind.ATTEMPT_ENDED, attempt_id - 1))
    ):
        return "an attempt was opened twice, or before the end of the one before"
    if kind is Kind.ATTEMPT_ENDED and log.find(kind, attempt_id):
        return "an attempt ended twice"
    if kind is Kind.ATTEMPT_PLACED and log.find(kind, attempt_id):
        return "two launches of one attempt were placed"
    return _zombie(log, record) or _poisoned(log, record)


def _zombie(log: Log, record: Record) -> str | None:
    launch = author(record)
    if launch is None:
        return None
    attempt_id = record.attempt_id or 0
    if any(r.kind is Kind.ATTEMPT_OPENED and (r.attempt_id or 0) > attempt_id for r in log.records):
        return "a launch wrote after a newer attempt was opened"
    if log.find(Kind.ATTEMPT_ENDED, attempt_id):
        return "a launch wrote after the end of its attempt"
    placed = log.find(Kind.ATTEMPT_PLACED, attempt_id)
    if placed is not None and author(placed) != launch:
        return "a launch wrote beside the one that was placed"
    return None


def _poisoned(log: Log, record: Record) -> str | None:
    """Name what would make a checkpoint that stands unreadable, or one that must not be read."""
    match record.kind:
        case Kind.CHECKPOINT_COMMITTED:
            sources = set(record.body["chunks_from"])
            if sources & _decided(log, Kind.CHECKPOINT_QUARANTINED):
                return "a commit names chunks of a checkpoint in quarantine"
            if sources & _decided(log, Kind.CHECKPOINT_DELETED):
                return "a commit names chunks of a deleted checkpoint"
            if set(record.body["chunks"]) & _chunks_gone(log):
                return "a commit names a chunk that is gone"
        case Kind.CHECKPOINT_DELETED:
            assert log.state is not None
            manifest = record.body["manifest_sha256"]
            kept = {c.ref.manifest_sha256 for c in log.state.checkpoints if not c.deleted}
            if set(record.body["chunks"]) & chunks_of(log, frozenset(kept - {manifest})):
                return "a deletion takes a chunk that another checkpoint names"
            if manifest == _resumes_from(log.state):
                return "the checkpoint to resume from was deleted"
        case Kind.ATTEMPT_RESTORED if record.body["checkpoint"] is not None:
            manifest = record.body["checkpoint"]["manifest_sha256"]
            if manifest in _decided(log, Kind.CHECKPOINT_DELETED):
                return "a launch restored a checkpoint that was deleted"
    return None


def _resumes_from(state: RunState) -> str | None:
    return resume_target(state.resumable).manifest_sha256 if state.resumable else None


def _decided(log: Log, kind: Kind) -> set[str]:
    return {record.body["manifest_sha256"] for record in log.records if record.kind is kind}


def _chunks_gone(log: Log) -> set[str]:
    deletions = [r for r in log.records if r.kind is Kind.CHECKPOINT_DELETED]
    return {chunk for record in deletions for chunk in record.body["chunks"]}


def chunks_of(log: Log, manifests: frozenset[str]) -> frozenset[str]:
    """Return the chunks that the manifests of some commits name."""
    commits = [r for r in log.records if r.kind is Kind.CHECKPOINT_COMMITTED]
    named = [r.body["chunks"] for r in commits if r.body["ref"]["manifest_sha256"] in manifests]
    return frozenset(chunk for chunks in named for chunk in chunks)
