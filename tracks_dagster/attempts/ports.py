"""Gangs, machines and Dagster's runs as the supervisor sees them: what the launchers implement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Protocol, runtime_checkable

from tracks_dagster.attempts.machine import Devices, MachineNow
from tracks_dagster.projects.project import Project
from tracks_dagster.reasons.evidence import Condition, RankEnd
from tracks_dagster.reasons.hangs import Beat, StackDump
from tracks_dagster.track.bodies import CodeVersion, ComputeRequest, RankPlace
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json

DRAIN_GRACE_S = 30.0  # to finish a step and save; on a cluster its settings say
SCRIPT = "trainer.py"  # how the one script is called that a run of an older version stored


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCode:
    """A project, its packed files, its folder and the version of the checkout that it lies in.

    folder: None of one that a run of an older version stored. remarks: what a person should
    read before the code is stored.
    """

    project: Project
    archive: bytes = field(repr=False)
    folder: str | None
    code: CodeVersion
    code_diff: bytes | None
    remarks: tuple[str, ...] = ()

    def called(self, name: str) -> FoundCode:
        """Return the same code as that of a project of another name, whose run it continues."""
        return replace(self, project=replace(self.project, name=name))


# The code of the example of that name as it ships now; None where none of that name ships.
FindShipped = Callable[[str], FoundCode | None]


class GangPhase(Enum):
    """Whether the processes of an attempt's gang exist."""

    NEVER_STARTED = "no gang of this attempt was ever started here"
    ALIVE = "its processes, or the parent that watches them, live"
    GONE = "it was started and nothing of it lives any more"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCommand:
    """What each rank starts, in a folder with the attempt's own copy of the stored code.

    words: a script of that code, `-m` and a module, or a program, with arguments. python: the
    interpreter; None for the launcher's own. files: name → text, laid over the code.
    """

    words: tuple[str, ...]
    python: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSpec:
    """What to start: one gang of `ranks` processes for one attempt.

    compute: what the attempt asks for.
    command: what each rank starts. code_key: of the stored code, None without any; `code` are its
    bytes, for a launcher whose gang reads no store.
    opened_seq: the seq of the attempt's `attempt_opened`, for the trainer's walk.
    workload_class: of its run, the policy's default where that names none.
    environment: more variables for each rank (never secrets: these stay in the parent's own).
    """

    run_id: str
    attempt_id: int
    opened_seq: int
    compute: ComputeRequest
    store_url: str
    command: RankCommand
    code_key: str | None = None
    code: bytes | None = field(default=None, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict)
    workload_class: str | None = None

    @property
    def ref(self) -> AttemptRef:
        """Whose gang it is."""
        return AttemptRef(self.run_id, self.attempt_id)

    @property
    def ranks(self) -> int:
        """How many processes there are."""
        return self.compute.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class GangReport:
    """What a launcher knows of a gang now; ranks and conditions grow as things happen.

    where: the node that was asked; sees_all_nodes: the answer holds on every other node too.
    boot_ids: node → the identity of its boot now.
    beats: the newest beat of each rank; a rank that has not begun is starting.
    cgroup, kernel_lines: what the machine reported at the newest end of a rank, as evidence.
    slurm_state: in which Slurm left the job; allocated: what it gave it, as evidence.
    waits: for what a gang that has not begun waits in a queue of its place, in words; empty where
    nobody says so.
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
    slurm_state: str | None = None
    waits: str = ""
    allocated: str | None = None


# What the ranks of a gang that starts now would compute with: names and versions, as
# `AttemptPlaced.environment` has them; what is not known beforehand is left out. Given its trainer, as
# in `RunDeclared`, and its interpreter, None for the own. Cheap but where another one is asked.
ForeseeEnvironment = Callable[[str, str | None], Mapping[str, Json]]


class RankSignals(Protocol):
    """What can be asked of the ranks of a living gang; ends none. May raise GangError."""

    def ask_to_save(self, ref: AttemptRef, place: RankPlace) -> bool:
        """Ask a rank to save at the end of its running step, without waiting for that; bounded. False
        when that very process does not live where it could be asked, or does not listen: then it was
        sent nothing."""
        ...

    def dump_stacks(self, ref: AttemptRef) -> tuple[StackDump, ...]:
        """Let every rank that lives write down where it stands; bounded, and ends none of them."""
        ...


@runtime_checkable
class EndsInSteps(Protocol):
    """A launcher whose `kill` may wait for long, and can be gone through a step at a time."""

    def end_in_steps(self, ref: AttemptRef) -> bool:
        """Take the next step of `kill` and wait for nothing; True once `kill` would wait no more.
        Raises as `kill`."""
        ...


class GangLauncher(RankSignals, Protocol):
    """Starts and watches the gang of an attempt; at most one gang per attempt, ever.

    Every method may raise GangError and is safe from two processes at once.
    """

    def start(self, spec: GangSpec) -> bool:
        """Start the gang; False when one of this attempt was started before (adopt it)."""
        ...

    def glance(self, ref: AttemptRef) -> GangReport:
        """Return the phase and where it was looked for, up to seconds old. Cheap for any number of
        gangs, one after the other: every tick of a sensor asks for each open attempt."""
        ...

    def observe(self, ref: AttemptRef) -> GangReport:
        """Return all that is known now, and from now on keep what happens to the gang, as long as
        this process lives. Cheap from the second call on: called every second or so."""
        ...

    def drain(self, ref: AttemptRef, *, grace_s: float) -> None:
        """Ask every rank to save and end (SIGTERM); what lives after `grace_s` is killed. Returns
        at once; idempotent."""
        ...

    def kill(self, ref: AttemptRef) -> None:
        """End every process of the gang now and return when they are seen gone (bounded)."""
        ...

    def ship(self, ref: AttemptRef, store: ObjectStore) -> None:
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
class OrchestratorRun:
    """A Dagster run, as far as decisions need it.

    asked_at, ended_at: when it was made and when it ended, None where that is not known. problem: what
    its launch met, in words; empty where nothing is known. had_no_devices: it started nothing, because
    what it was to start on was given to somebody else. run_key: that a sensor asked for it with.
    """

    dagster_run_id: str
    is_finished: bool
    is_canceling: bool
    is_failed: bool
    asked_at: datetime | None = None
    ended_at: datetime | None = None
    problem: str = ""
    had_no_devices: bool = False
    run_key: str | None = None


class Orchestrator(Protocol):
    """What services ask of Dagster."""

    def runs_of_attempt(self, attempt_key: str) -> Sequence[OrchestratorRun]:
        """Return the Dagster runs that supervise this attempt, did, or are about to, newest first.

        A run of something else with the same partition key is none of them.
        """
        ...

    def runs_of_eval(self, eval_attempt_key: str) -> Sequence[OrchestratorRun]:
        """Return every Dagster run that was asked for this attempt at an eval, newest first."""
        ...

    def find(self, dagster_run_id: str) -> OrchestratorRun | None:
        """Return the Dagster run of that id, or None when it was deleted."""
        ...

    def was_cancelled(self, dagster_run_id: str) -> bool:
        """Whether a person asked for the end of that Dagster run, whatever became of it since.

        An end that Dagster decides by itself (a time limit, a worker that died) is none. False when the
        run was deleted.
        """
        ...
