"""The faults that drills play inside a rank, each as near to the real thing as a machine allows."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tracks_dagster.attempts.effects.local.processes import write_json
from tracks_dagster.track.errors import DataRejected, StoreUnavailable
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.checkpoints import resume_target
from tracks_dagster.training import memory_cgroup
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.machine import DRILL_CGROUP
from tracks_dagster.training.saves.verifying import read_manifest

HANG_S_MAX = 6 * 3600.0  # a hang that nobody ends
OUTGROWN_BYTES = 96 * 1024 * 1024  # the limit of the cgroup that a rank outgrows
BLOCK_BYTES = 8 * 1024 * 1024
_SHARDS = "/shards/"  # in the key of a snapshot's data
_CHUNKS = "/chunks/"  # and of a checkpoint's


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
    parent = memory_cgroup.find()
    if parent is None:
        return "no memory cgroup is to be seen from here."
    try:
        memory_cgroup.make_below(
            parent, f"tracks-try-{os.getpid()}", limit_bytes=OUTGROWN_BYTES
        ).rmdir()
    except OSError as error:
        return f"no memory cgroup can be made below {parent}: {error}."
    return ""


def outgrow_memory(work: Path, run_id: str) -> None:
    """Enter a memory cgroup of 96 MiB and allocate until the kernel ends this process.

    The gang's parent reads what that cgroup counted, and removes it. Raises MemoryError should the
    kernel let it be.
    """
    parent = memory_cgroup.find()
    if parent is None:
        raise MemoryError("drill host_oom: the memory cgroup is gone")
    folder = memory_cgroup.make_below(
        parent, f"tracks-{run_id}-{os.getpid()}", limit_bytes=OUTGROWN_BYTES
    )
    (work / DRILL_CGROUP).parent.mkdir(parents=True, exist_ok=True)
    write_json(work / DRILL_CGROUP, {"path": str(folder)})
    memory_cgroup.enter(folder)
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

    def get(self, key: str) -> bytes | None:
        """Return the object's bytes, or None."""
        return self._store.get(key)

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

    def get(self, key: str) -> bytes | None:
        """Return the object's bytes, or None."""
        data = super().get(key)
        if data is None or _SHARDS not in key:
            return data
        return data[:-1] + bytes([data[-1] ^ 1])
