"""Checkpoints of one process without an attempt: written and read as a launch does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.training.ranks import Ranks
from tracks_dagster.training.saves import random_state, state_dict
from tracks_dagster.training.saves.chunk_writer import KnownChunks
from tracks_dagster.training.saves.loading import Fetched, fetch
from tracks_dagster.training.saves.manifest import read_manifest, read_tensors
from tracks_dagster.training.saves.staging import Arena, Staging
from tracks_dagster.training.saves.storage_writer import (
    CheckpointStorageWriter,
    Moment,
    SavePlanning,
)
from tracks_dagster.training.saves.trained import Trained

CPU = torch.device("cpu")


def moment(
    step: int = 2, *, run_id: str = "r", metrics: Mapping[str, Json] | None = None
) -> Moment:
    """What a checkpoint of that step says besides tensors."""
    return Moment(
        run_id=run_id,
        attempt_id=1,
        launch_id="launch",
        step=step,
        values={},
        rng=[random_state.capture()],
        data={"cursor": step * 12, "epoch": 0},
        progress={"metric": "loss", "direction": "min", "best": None, "recent": []},
        metrics=metrics or {"loss": 0.5},
        config_sha256="c",
        environment_sha256="e",
    )


def write(
    store: ObjectStore,
    trained: Trained,
    *,
    step: int = 2,
    run_id: str = "r",
    known: KnownChunks | None = None,
    arena: Arena | None = None,
    attempt_id: int = 1,
    launch_id: str = "launch",
) -> CheckpointStorageWriter:
    """Write a checkpoint; its bytes are durable and `written` is set when this returns."""
    what = replace(moment(step, run_id=run_id), attempt_id=attempt_id, launch_id=launch_id)
    state = state_dict.collect(trained)
    what = replace(what, values=state.values, kinds=trained.kinds)
    return write_tensors(store, state.tensors, what, known=known, arena=arena)


def write_tensors(
    store: ObjectStore,
    tensors: Mapping[str, torch.Tensor],
    moment: Moment,
    *,
    known: KnownChunks | None = None,
    arena: Arena | None = None,
) -> CheckpointStorageWriter:
    """Write a checkpoint of these tensors, by flat name (`model.…`)."""
    planned = SavePlanning(Ranks(rank=0, world_size=1, device=CPU)).plan(dict(tensors))
    writer = CheckpointStorageWriter(
        store,
        moment,
        staging=Staging(arena or Arena(CPU)),
        known=known or KnownChunks(),
    )
    results = writer.write_data(planned.plan, planned.planner).wait()
    writer.finish(planned.metadata, [results])
    return writer


def ref_of(writer: CheckpointStorageWriter) -> CheckpointRef:
    """The reference of what was written."""
    assert writer.written is not None
    return writer.written.ref


def read(store: ObjectStore, ref: CheckpointRef, into: Trained) -> Fetched:
    """Fetch a checkpoint for `into`, which is not changed."""
    return fetch(store, ref, into, arena=Arena(CPU))


def weights_of(store: ObjectStore, ref: CheckpointRef) -> dict[str, torch.Tensor]:
    """A checkpoint's model tensors, whole, by name."""
    return {
        entry.name: (
            torch.frombuffer(bytearray(data), dtype=getattr(torch, entry.dtype)).reshape(
                entry.shape
            )
            if data
            else torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
        )
        for entry, data in read_tensors(store, read_manifest(store, ref), "model")
    }
