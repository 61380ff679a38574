"""The seams between decisions and the world: what the adapters implement, and what callers may trust.

A port speaks core types and documents atomicity, idempotence and errors. Fakes that honour the same
guarantees live in `tests/fakes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Protocol

from tracks_dagster.core.beats import Beat
from tracks_dagster.core.bodies import ComputeRequest, DatasetDeclared, RankPlace, SnapshotRef
from tracks_dagster.core.checkpoints import CheckpointRef
from tracks_dagster.core.device_memory import Devices
from tracks_dagster.core.evidence import Condition, RankEnd
from tracks_dagster.core.hangs import StackDump
from tracks_dagster.core.machine import MachineNow
from tracks_dagster.core.records import Json
from tracks_dagster.core.snapshots import PreparedSnapshot

Clock = Callable[[], datetime]  # an aware UTC datetime
NewUid = Callable[[], str]  # a fresh random identity, 32 hex digits


class ObjectStore(Protocol):
    """Named objects of bytes. Keys are relative, "/"-separated, of `[A-Za-z0-9._=@-]` parts; under any
    other key, which a forged record may name, nothing is and nothing can be written (InvalidInput).

    Every method may raise StoreUnavailable; all are safe to call from several threads. What is
    created or deleted never outlives a power loss without what was read through this object before.
    """

    @property
    def url(self) -> str:
        """Where this store is, without credentials, for people and for the gang's environment."""
        ...

    def get(self, key: str) -> bytes | None:
        """Return the object's bytes, or None when there is none. Reads see completed writes."""
        ...

    def read_into(self, key: str, buffer: memoryview) -> int | None:
        """Read the object into the start of `buffer`; return its size in bytes, None without one.

        An object larger than `buffer` (writable, contiguous, of bytes) fills it, and the size tells
        so. Without a copy of the whole object on the way. What `buffer` holds after an error is
        undefined.
        """
        ...

    def create(self, key: str, data: bytes | memoryview) -> bool:
        """Create the object durably if there is none; True when this call created it.

        Atomic: readers see nothing or all of it, and of all creators of one key exactly one is told
        True. False when the key was taken (perhaps by an earlier try of one's own). Raises
        OutcomeUnknown when the reply was lost or contradictory: read back.
        """
        ...

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write the object durably, replacing what was there. Atomic for readers, idempotent."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with `prefix`, in ascending order. Never used to decide."""
        ...

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield what follows `prefix` up to the next "/", once each, in the order of keys.

        `prefix` is empty or ends with "/". Cheap: what lies in the folders is not listed. May name
        a folder whose objects were all deleted.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens when there is none.

        Nothing relies on it: after a power loss the object may be there again.
        """
        ...


LEFTOVER_AGE_S = 24 * 3600.0  # a living writer is far younger: one object is written in minutes


class Leftovers(Protocol):
    """What killed writers left in an object store: bytes without a key, which no method shows."""

    def sweep(self, *, older_than_s: float = LEFTOVER_AGE_S) -> int:
        """Remove what nobody has added to for that long; return how many were removed.

        At most 10 000 are looked at; the next call goes on. Idempotent, safe beside living writers.
        Raises StoreUnavailable.
        """
        ...


class CheckpointReader(Protocol):
    """Reads committed checkpoints of one store, without torch.

    Both raise CheckpointCorrupt naming the object, the hash expected and the hash found;
    CheckpointMismatch for a manifest of another format, whose bytes are right; StoreUnavailable.
    """

    def verify(self, ref: CheckpointRef) -> int:
        """Read every byte, check every hash, and return how many bytes there are."""
        ...

    def chunk_sizes(self, ref: CheckpointRef) -> Mapping[str, int]:
        """Return the chunks that its manifest names: key → size in bytes. Reads only the manifest."""
        ...


class Datasets(Protocol):
    """The datasets that snapshots are made of. Writes nothing outside a folder for its own use."""

    def describe(self, dataset: str) -> DatasetDeclared:
        """Return what the dataset is; raises UnknownRun naming those that exist."""
        ...

    def prepare(
        self, dataset: str, source: Path | None = None
    ) -> AbstractContextManager[PreparedSnapshot]:
        """Read, check and shard what a snapshot would hold; the shards live until the exit.

        source: a file or folder of a person's own, None for what ships. The same data gives the
        same shards. Raises InvalidInput when it cannot be read as this dataset, DataRejected
        naming the bad rows.
        """
        ...


Row = Mapping[str, Json | datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far a track has been projected: `seq` and sha256 of the last record taken in."""

    seq: int
    sha256: str


class Ledger(Protocol):
    """The SQL projection of all tracks. It can be lost: `tracks reindex` rebuilds it.

    Every method may raise LedgerError.
    """

    def cursor(self, track: str) -> Cursor | None:
        """Return how far `track` has been projected, or None."""
        ...

    def apply(
        self,
        track: str,
        *,
        expected: Cursor | None,
        advanced: Cursor,
        rows: Mapping[str, Sequence[Row]],
        afresh: bool = False,
    ) -> bool:
        """Upsert `rows` by table and move the cursor, in one transaction, if it stands at `expected`.

        afresh: every other row of the track goes in the same transaction. False, with nothing written,
        when another projector was faster. Raises RowRefused at a value that no such database takes.
        """
        ...

    def query(
        self, sql: str, parameters: Mapping[str, Json] | None = None
    ) -> list[dict[str, Json]]:
        """Return the rows of one read-only SELECT with `:name` parameters."""
        ...

    def search(
        self,
        phrases: Sequence[str],
        *,
        since: datetime | None = None,
        run_id: str | None = None,
        attempt_id: int | None = None,
        limit: int,
    ) -> list[dict[str, Json]]:
        """Return rows of `texts`, but `words`, in which all `phrases` occur, the newest first.

        phrases: as `core.searching` makes them. The same rows in the same order on every database.
        """
        ...

    def kept_open(self) -> AbstractContextManager[Ledger]:
        """Give the same ledger for many calls in a row: no connection is made for each of them."""
        ...

    def forget(self, track: str) -> None:
        """Remove every row of a track and its cursor."""
        ...

    def sweep(self) -> None:
        """Remove every row of tracks that have no cursor."""
        ...


class GangPhase(Enum):
    """Whether the processes of an attempt's gang exist."""

    NEVER_STARTED = "no gang of this attempt was ever started here"
    ALIVE = "its processes, or the parent that watches them, live"
    GONE = "it was started and nothing of it lives any more"


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSpec:
    """What to start: one gang of `ranks` processes for one attempt.

    compute: what the attempt asks for.
    trainer: "family", or the name of a trainer of one's own; `script` is its source then.
    opened_seq: the seq of the attempt's `attempt_opened`, for the trainer's walk.
    environment: more variables for each rank (never secrets: these stay in the parent's own).
    """

    run_id: str
    attempt_id: int
    opened_seq: int
    compute: ComputeRequest
    store_url: str
    trainer: str
    script: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """How many processes there are."""
        return self.compute.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class GangReport:
    """What a launcher knows of a gang now; ranks and conditions grow as things happen.

    where: the node that was asked; sees_all_nodes: the answer holds on every other node too.
    boot_ids: node → the identity of its boot now.
    beats: where each rank that started stood last; a rank that has not begun stands at its start.
    cgroup, kernel_lines: what the machine told at the newest end of a rank, as evidence.
    """

    phase: GangPhase
    ranks: tuple[RankEnd, ...] = ()
    conditions: tuple[Condition, ...] = ()
    started_at: str | None = None
    ended_at: str | None = None
    where: str = ""
    sees_all_nodes: bool = False
    boot_ids: Mapping[str, str] = field(default_factory=dict)
    beats: tuple[Beat, ...] = ()
    cgroup: Mapping[str, Json] = field(default_factory=dict)
    kernel_lines: tuple[str, ...] = ()


# What the ranks of a gang that starts now would compute with: names and versions, as
# `AttemptPlaced.environment` has them; what is not known beforehand is left out. Cheap.
ForeseeEnvironment = Callable[[], Mapping[str, Json]]


class RankSignals(Protocol):
    """What the ranks of a living gang can be asked for; it never ends one. May raise GangError."""

    def ask_to_save(self, run_id: str, attempt_id: int, place: RankPlace) -> bool:
        """Ask a rank to save at the end of its running step, without waiting for that; bounded. False
        when that very process does not live where it could be asked, or does not listen: then it was
        sent nothing."""
        ...

    def dump_stacks(self, run_id: str, attempt_id: int) -> tuple[StackDump, ...]:
        """Let every rank that lives write down where it stands; bounded, and ends none of them."""
        ...


class GangLauncher(RankSignals, Protocol):
    """Starts and watches the gang of an attempt; at most one gang per attempt, ever.

    Every method may raise GangError and is safe from two processes at once.
    """

    def start(self, spec: GangSpec) -> bool:
        """Start the gang; False when one of this attempt was started before (adopt it)."""
        ...

    def glance(self, run_id: str, attempt_id: int) -> GangReport:
        """Return the phase and where it was looked for, up to seconds old. Cheap for any number of
        gangs, one after the other: every tick of a sensor asks for each open attempt."""
        ...

    def observe(self, run_id: str, attempt_id: int) -> GangReport:
        """Return all that is known now, and from now on keep what happens to the gang, as long as
        this process lives. Cheap from the second call on: called every second or so."""
        ...

    def drain(self, run_id: str, attempt_id: int, *, grace_s: float) -> None:
        """Ask every rank to save and end (SIGTERM); what lives after `grace_s` is killed. Returns
        at once; idempotent."""
        ...

    def kill(self, run_id: str, attempt_id: int) -> None:
        """End every process of the gang now and return when they are seen gone (bounded)."""
        ...

    def ship(self, run_id: str, attempt_id: int, store: ObjectStore) -> None:
        """Bring what a gone gang left on its machine (the journals' tails) into the store.

        What stays on the machine and may hold secrets (what its ranks printed) is cleaned.
        """
        ...


class Machine(Protocol):
    """The machine that this process runs on. Both only read, and are bounded."""

    def look(self, pids: Iterable[int]) -> MachineNow:
        """Return its boot, and which of `pids` live on it."""
        ...

    def devices(self) -> Devices:
        """Return its accelerators and who holds memory of them; none where there are none."""
        ...


# The launcher of that name (`ComputeRequest.launcher`); raises GangError where it is not set up.
LauncherOf = Callable[[str], GangLauncher]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSpec:
    """One attempt at one eval; the evaluator leaves what it measured as JSON at `result_key`."""

    store_url: str
    run_id: str
    checkpoint: CheckpointRef
    config: Mapping[str, Json]
    family: str
    snapshot: SnapshotRef
    suite: str
    suite_version: str
    seed: int
    result_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOutcome:
    """How the evaluator's process ended. message: the last lines it wrote, cleaned of secrets.

    exit_code: None when a signal or the time limit ended it. Only 0 promises a stored result.
    """

    exit_code: int | None
    message: str
    started_at: str
    finished_at: str

    @property
    def succeeded(self) -> bool:
        """Whether the result stands in the store."""
        return self.exit_code == 0


class Evaluator(Protocol):
    """Runs one evaluation apart from training, so that it can fail without harm."""

    def run(self, spec: EvalSpec) -> EvalOutcome:
        """Evaluate and return how it ended; bounded by a time limit. Safe to repeat."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorRun:
    """A Dagster run, as far as decisions need it.

    asked_at, ended_at: when it was made and when it ended, None where that is not known. problem: what
    its launch met, in words; empty where nothing is known.
    """

    dagster_run_id: str
    is_finished: bool
    is_canceling: bool
    is_failed: bool
    asked_at: datetime | None = None
    ended_at: datetime | None = None
    problem: str = ""


class Orchestrator(Protocol):
    """What services ask of Dagster."""

    def runs_of_attempt(self, attempt_key: str) -> Sequence[OrchestratorRun]:
        """Return every Dagster run that carries this attempt's tag, newest first."""
        ...

    def runs_of_eval(self, eval_attempt_key: str) -> Sequence[OrchestratorRun]:
        """Return every Dagster run that was asked for this attempt at an eval, newest first."""
        ...

    def find(self, dagster_run_id: str) -> OrchestratorRun | None:
        """Return the Dagster run of that id, or None when it was deleted."""
        ...
