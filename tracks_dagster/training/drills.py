"""Plays the faults of a run (`attempts.drills`) inside its gang, at the steps that it names.

Every rank and every attempt knows them from the track. A drill that fires once is claimed there by a
note before it fires, so that an attempt that replays the step is not hit again. What ends processes
from outside is played by the gang's parent, on request. Each fault is as near to the real thing as a
machine allows.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tracks_dagster.attempts.drills import KINDS, claim_note, was_claimed
from tracks_dagster.evals.ports import EvalSpec
from tracks_dagster.processes.process import write_json
from tracks_dagster.track.bodies import Drill, RunDeclared
from tracks_dagster.track.body_json import body_of, to_json
from tracks_dagster.track.errors import DataRejected, StoreUnavailable, TrainingError
from tracks_dagster.track.names import run_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Draft, Json, Kind
from tracks_dagster.track.roles import MICRO_BATCH, value_of
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.checkpoints import resume_target
from tracks_dagster.track.track import Track
from tracks_dagster.training.launch import Launch, utc_now
from tracks_dagster.training.machine import DRILL_CGROUP, enter_cgroup, find_cgroup, make_cgroup
from tracks_dagster.training.saves.manifest import read_manifest
from tracks_dagster.training.signals.own_time import DRAG_S_MAX, OwnTime
from tracks_dagster.training.triggers import StopSignal

SIGNAL_S_MAX = 60.0  # how long a rank that is to be ended from outside waits for it
POLL_S = 0.02
SPIKE_FACTOR = 20.0
_AFTER = ("preempt", "sigkill", "corrupt_checkpoint")  # fire once the step is reported
_AMID = ("rank_crash", "host_oom", "disk_full")  # hit in the step what is being saved then, too
_ENDS = (*_AFTER, *_AMID)
_SLOWS = ("slow", "data_slow")
HANG_S_MAX = 6 * 3600.0  # a hang that nobody ends
OUTGROWN_BYTES = 96 * 1024 * 1024  # the limit of the cgroup that a rank outgrows
BLOCK_BYTES = 8 * 1024 * 1024
_SHARDS = "/shards/"  # in the key of a snapshot's data
_CHUNKS = "/chunks/"  # and of a checkpoint's


class Drills:
    """The drills of one rank. `begin` is called for every step; step 0 is before the first.

    All methods but `arm`, `evaluated` and `snapshot_store` are collective in the steps where a drill
    is due. own: stretches the passes of the models that it sees.
    """

    def __init__(self, launch: Launch, own: OwnTime) -> None:
        self._launch = launch
        self._own = own
        self._drills = launch.declared.drills
        self._steps_due = frozenset(drill.step for drill in self._drills)
        self._ends_due_after = frozenset(
            drill.step - (drill.kind in _AMID) for drill in self._drills if drill.kind in _ENDS
        )
        self._step = 0
        self._spikes_until = 0
        self._is_timed = any(self._has(kind) for kind in _SLOWS)
        self._began_s = time.perf_counter()  # when the running step's data had come
        self._took_s = 0.0  # by the step before, until its report
        self._data_factor = 1.0
        self._is_flat = False
        self._found: dict[str, float] = {}  # by the evaluations so far
        self._writes = FullDiskStore(launch.store)

    @property
    def store(self) -> ObjectStore:
        """The store for this launch's checkpoints: its own, or one whose disk can be played full."""
        return self._writes if self._has("disk_full") else self._launch.store

    @property
    def snapshot_store(self) -> ObjectStore:
        """The store to read the snapshot from: its own, or one that changes a byte of it."""
        return (
            BadShardStore(self._launch.store) if self._has("bad_snapshot") else self._launch.store
        )

    def arm(self, model: nn.Module) -> None:
        """Let the model's forward run out of memory where a drill says so."""
        if self._has("gpu_oom"):
            model.register_forward_pre_hook(self._before_forward)

    def begin(self, step: int) -> None:
        """Begin `step`; raises where a drill says so."""
        self._step = step
        if any(drill.kind == "code_error" and drill.step == step for drill in self._drills):
            raise RuntimeError(f"drill code_error@{step}: the training code fails on purpose")
        if self._fires("disk_full", step):
            self._writes.is_full = True
        if self._fires("storage_error", step):
            raise StoreUnavailable(
                f"drill storage_error@{step}: Cannot read from {self._launch.store.url}: the read "
                "timed out."
            )

    def fetch(self, step: int) -> None:
        """Fetch the data of `step`: hang, fail or be late where a drill says so."""
        if self._fires("hang", step, only=lambda drill: drill.how == "loader"):
            hang()
        if self._fires("bad_batch", step):
            raise bad_sample(step)
        for drill in self._fires("data_slow", step):
            self._data_factor = drill.factor
        if self._data_factor > 1.0:
            time.sleep(min((self._data_factor - 1.0) * self._took_s, DRAG_S_MAX))

    def compute(self, step: int) -> None:
        """Begin to compute `step`: hang, crash or outgrow the memory where a drill says so."""
        for drill in self._fires("hang", step, only=lambda drill: drill.how != "loader"):
            stop_process() if drill.how == "stopped" else hang()
        if self._fires("rank_crash", step):
            crash()
        if self._fires("host_oom", step, why_not=why_no_memory_cgroup):
            outgrow_memory(self._launch.place.work, self._launch.place.run_id)
        if step in self._steps_due:
            self._begin_signals(step)
        if self._is_timed:
            self._began_s = time.perf_counter()

    def loss(self, step: int, loss: float) -> float:
        """Return the loss of `step` as a drill wants it, and as late."""
        if self._is_timed:
            self._drag_rest()
        for drill in self._fires("spike", step):
            self._spikes_until = step + drill.steps
        if self._fires("nan", step):
            return math.nan
        return loss * SPIKE_FACTOR if step < self._spikes_until else loss

    def evaluated(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return what an evaluation found as a drill wants it."""
        self._found = {**metrics, **self._found} if self._is_flat else {**self._found, **metrics}
        return {name: self._found[name] for name in metrics}

    def is_due_after(self, step: int) -> bool:
        """Whether a drill may end the gang after `step`, or a rank in the step that follows."""
        return step in self._ends_due_after

    def play_after(self, step: int, stop: StopSignal) -> bool:
        """End the gang from outside where a drill says so; True when it was preempted.

        Returns once SIGTERM came, or not at all; raises TrainingError after a minute.
        """
        if self._fires("sigkill", step):
            self._ask_parent("sigkill", step, {"rank": self._launch.ranks.rank}, stop)
        if self._fires("corrupt_checkpoint", step):
            self._launch.ranks.from_first(partial(corrupt_newest_checkpoint, self._launch))
            self._ask_parent("preempt", step, {"grace_s": 0.0}, stop)
        preemptions = self._fires("preempt", step)
        for drill in preemptions:
            self._ask_parent("preempt", step, {"grace_s": drill.grace_s}, stop)
        return bool(preemptions)

    def _begin_signals(self, step: int) -> None:
        """Change from `step` on what this rank says of itself, where a drill says so."""
        for drill in self._fires("slow", step):
            self._own.factor = drill.factor
        flat = self._fires("flat_validation", step, why_not=self._why_not_flat)
        self._is_flat = bool(flat) or self._is_flat
        if self._fires("idle_device", step) and self._launch.journal.watch is not None:
            self._launch.journal.watch.play_idle()

    def _why_not_flat(self) -> str:
        """Return why no evaluation can stay what it was; "" where one can. Rank 0's counts."""
        if self._found:
            return ""
        return "the script has reported no evaluation (a.evaluated) before this step."

    def _drag_rest(self) -> None:
        """Let what the step computes beside its passes, backward mostly, take that much longer too."""
        self._took_s = time.perf_counter() - self._began_s
        rest_s = max(0.0, self._took_s - self._own.dragged_s)
        time.sleep(min((self._own.factor - 1.0) * rest_s, DRAG_S_MAX))

    def _has(self, kind: str) -> bool:
        return any(drill.kind == kind for drill in self._drills)

    def _fires(
        self,
        kind: str,
        step: int,
        *,
        only: Callable[[Drill], bool] = lambda drill: True,
        why_not: Callable[[], str] | None = None,
    ) -> list[Drill]:
        """Return the drills of that kind that fire now and concern this rank."""
        if step not in self._steps_due:  # nearly every step, several times
            return []
        due = [
            (index, drill)
            for index, drill in enumerate(self._drills)
            if drill.kind == kind and drill.step == step and only(drill)
        ]
        launch = self._launch
        fired = [
            drill
            for index, drill in due
            if launch.ranks.from_first(partial(claim, launch, index, drill, why_not))
        ]
        return [drill for drill in fired if self._concerns_me(drill)]

    def _concerns_me(self, drill: Drill) -> bool:
        """Whether this rank is meant: the named one, else the last where one rank is enough."""
        if drill.rank is not None:
            return drill.rank == self._launch.ranks.rank
        kind, ranks = KINDS[drill.kind], self._launch.ranks
        is_of_one = "rank" in kind.options and not kind.of_all
        return not is_of_one or ranks.rank == ranks.world_size - 1

    def _ask_parent(self, what: str, step: int, request: dict[str, Any], stop: StopSignal) -> None:
        """Ask the gang's parent to end this rank, or all, and wait for it."""
        folder = self._launch.place.work / "drill"
        folder.mkdir(parents=True, exist_ok=True)
        name = what if what == "preempt" else f"{what}-{self._launch.ranks.rank}"
        if what != "preempt" or self._launch.ranks.is_first:
            write_json(folder / f"{name}.json", request)
        deadline = time.monotonic() + SIGNAL_S_MAX
        while not stop.received:
            if time.monotonic() > deadline:
                raise TrainingError(
                    f"The drill {what}@{step} asked for a signal and none came within "
                    f"{SIGNAL_S_MAX:g} s; only a gang's parent plays it: declare the drill with "
                    "`tracks run`."
                )
            time.sleep(POLL_S)

    def _before_forward(self, module: nn.Module, arguments: Any) -> None:
        config, roles = self._launch.opened.config, self._launch.declared.roles
        micro_batch = value_of(config, roles, MICRO_BATCH) or 0
        for drill in self._drills:
            limit = drill.micro_batch_max
            if drill.kind != "gpu_oom" or drill.step != self._step or limit is None:
                continue
            if micro_batch > limit:
                raise torch.OutOfMemoryError(
                    f"drill gpu_oom@{drill.step}: CUDA out of memory, as played: the micro-batch "
                    f"of {micro_batch} is above {limit}"
                )


def claim(launch: Launch, index: int, drill: Drill, why_not: Callable[[], str] | None) -> bool:
    """Claim the drill, on rank 0; False when an earlier attempt did, or it cannot be played here.

    why_not: returns why it cannot, "" when it can. Raises Fenced. The note is in the track before
    the drill fires, whatever dies meanwhile.
    """
    launch.own_track.refresh()  # a fenced gang must not use up the next one's drill
    track = launch.whole_track()
    if was_claimed(track.refresh(), index):
        return False
    skipped = why_not() if why_not is not None else ""
    note = claim_note(index, drill, skipped=skipped)
    track.note(launch.draft(Kind.NOTE, note))
    return not skipped


def play_evaluator_crash(store: ObjectStore, spec: EvalSpec) -> None:
    """Die here if a drill of the run says so for this checkpoint, and none died of it before."""
    track = Track(store, run_track(spec.run_id), now=utc_now)
    records = track.refresh()
    if not records or records[0].kind is not Kind.RUN_DECLARED:
        return
    for index, drill in enumerate(body_of(RunDeclared, records[0]).drills):
        is_due = drill.kind == "evaluator_crash" and spec.checkpoint.step >= drill.step
        if not is_due or was_claimed(records, index):
            continue
        note = to_json(claim_note(index, drill))
        track.note(Draft(uid=uuid.uuid4().hex, kind=Kind.NOTE, body=note, attempt_id=None))
        crash()


def hang() -> None:
    """Go no further."""
    deadline = time.monotonic() + HANG_S_MAX
    while time.monotonic() < deadline:
        time.sleep(1.0)


def stop_process() -> None:
    """Be stopped, as by a debugger: no code of this process runs any more."""
    os.kill(os.getpid(), signal.SIGSTOP)


def crash() -> None:
    """Die of a segmentation fault, without a core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signal.SIGSEGV)


def bad_sample(step: int) -> DataRejected:
    """Return the error of a loader that cannot read a sample."""
    return DataRejected(f"drill bad_batch@{step}: a sample of the batch is truncated")


def why_no_memory_cgroup() -> str:
    """Return why no memory cgroup can be made for this process here; "" where one can."""
    parent = find_cgroup()
    if parent is None:
        return "no memory cgroup is to be seen from here."
    try:
        make_cgroup(parent, f"tracks-try-{os.getpid()}", limit_bytes=OUTGROWN_BYTES).rmdir()
    except OSError as error:
        return f"no memory cgroup can be made below {parent}: {error}."
    return ""


def outgrow_memory(work: Path, run_id: str) -> None:
    """Enter a memory cgroup of 96 MiB and allocate until the kernel ends this process.

    The gang's parent reads what that cgroup counted, and removes it. Raises MemoryError should the
    kernel let it be.
    """
    parent = find_cgroup()
    if parent is None:
        raise MemoryError("drill host_oom: the memory cgroup is gone")
    folder = make_cgroup(parent, f"tracks-{run_id}-{os.getpid()}", limit_bytes=OUTGROWN_BYTES)
    (work / DRILL_CGROUP).parent.mkdir(parents=True, exist_ok=True)
    write_json(work / DRILL_CGROUP, {"path": str(folder)})
    enter_cgroup(folder)
    blocks = [
        bytearray(os.urandom(1) * BLOCK_BYTES) for _ in range(4 * OUTGROWN_BYTES // BLOCK_BYTES)
    ]
    raise MemoryError(f"drill host_oom: {len(blocks)} blocks fitted into {OUTGROWN_BYTES} bytes")


def corrupt_newest_checkpoint(launch: Launch) -> Json:
    """Change one byte of the first chunk of what the run would resume from; returns its step."""
    state = run_fold.fold(launch.whole_track().refresh())
    if state is None or not state.resumable:
        return None
    newest = resume_target(state.resumable)
    key = read_manifest(launch.store, newest).chunks[0].key
    data = launch.store.get(key) or b"\0"
    launch.store.put(key, bytes([data[0] ^ 1]) + data[1:])
    return newest.step


class StoreLikeAnother:
    """A store that does what another does; drills change one thing of it."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def url(self) -> str:
        """Where it is."""
        return self._store.url

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        """Return the object's bytes, or None."""
        return self._store.get(key, bytes_max)

    def read_into(self, key: str, buffer: memoryview) -> int | None:
        """Read the object into the start of `buffer`."""
        return self._store.read_into(key, buffer)

    def create(self, key: str, data: bytes | memoryview) -> bool:
        """Create the object if there is none."""
        return self._store.create(key, data)

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write the object."""
        self._store.put(key, data)

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with `prefix`."""
        return self._store.list(prefix)

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield what follows `prefix` up to the next "/"."""
        return self._store.folders(prefix)

    def delete(self, key: str) -> None:
        """Remove the object."""
        self._store.delete(key)


class FullDiskStore(StoreLikeAnother):
    """While `is_full`, takes no chunk of a checkpoint, in the words of the local store."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.is_full = False

    def create(self, key: str, data: bytes | memoryview) -> bool:
        """Create the object if there is none."""
        self._check(key)
        return super().create(key, data)

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write the object."""
        self._check(key)
        super().put(key, data)

    def _check(self, key: str) -> None:
        if self.is_full and _CHUNKS in key:
            raise StoreUnavailable(
                f"drill disk_full: Cannot write {key} in {self.url}: the disk is full; free some "
                "space and try again."
            )


class BadShardStore(StoreLikeAnother):
    """Changes the last byte of every shard of a snapshot that is read."""

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        """Return the object's bytes, or None."""
        data = super().get(key, bytes_max)
        if data is None or _SHARDS not in key:
            return data
        return data[:-1] + bytes([data[-1] ^ 1])
