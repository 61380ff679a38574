"""Checkpoints as bytes: written, read back, verified, and refused when anything differs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.fakes import FakeObjectStore, Fault
from tracks_dagster.core.checkpoints import CheckpointRef, manifest_key
from tracks_dagster.core.errors import (
    CheckpointCorrupt,
    CheckpointMismatch,
    StoreUnavailable,
    TrainingError,
)
from tracks_dagster.core.records import canonical_json, sha256_hex
from tracks_dagster.training import chunk_writer, random_state
from tracks_dagster.training.checkpoint_files import (
    Moment,
    Trained,
    Written,
    load_into,
    read_checkpoint,
    write_checkpoint,
)
from tracks_dagster.training.chunk_writer import KnownChunks
from tracks_dagster.training.manifest import (
    MEMBERS,
    read_manifest,
    verify_checkpoint,
    weights_sha256,
)


def trained(width: int = 4, *, steps: int = 2, seed: int = 0) -> Trained:
    """A small model with a buffer, trained a little, so that the optimizer has a state."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)  # its best is infinite
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
    return Trained(model=model, optimizer=optimizer, scheduler=scheduler)


def moment(step: int = 2) -> Moment:
    return Moment(
        run_id="r",
        attempt_id=1,
        launch_id="launch",
        step=step,
        rng=[random_state.capture()],
        data={"cursor": step * 12, "epoch": 0},
        metrics={"loss": 0.5},
        config_sha256="c",
        environment_sha256="e",
    )


def write(
    store: FakeObjectStore, what: Trained, *, step: int = 2, known: KnownChunks | None = None
) -> Written:
    return write_checkpoint(store, what, moment(step), known or KnownChunks())


def flat(state: Any) -> Any:
    """A state dict with its tensors as bytes, to compare."""
    if isinstance(state, torch.Tensor):
        raw = state.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return str(state.dtype), tuple(state.shape), raw
    if isinstance(state, dict):
        return {key: flat(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state), [flat(value) for value in state]
    return state


def test_what_was_saved_is_restored_to_the_bit(store: FakeObjectStore) -> None:
    saved, fresh = trained(), trained(seed=1, steps=0)
    load_into(fresh, read_checkpoint(store, write(store, saved).ref))
    assert flat(fresh.model.state_dict()) == flat(saved.model.state_dict())
    assert flat(fresh.optimizer.state_dict()) == flat(saved.optimizer.state_dict())
    assert saved.scheduler is not None
    assert fresh.scheduler is not None
    assert flat(fresh.scheduler.state_dict()) == flat(saved.scheduler.state_dict())


def test_dtypes_and_shapes_of_every_kind_come_back(store: FakeObjectStore) -> None:
    model = nn.Module()
    tensors = {
        "brain": torch.randn(3, 2).to(torch.bfloat16),
        "flag": torch.tensor([True, False]),
        "count": torch.tensor(7),
        "empty": torch.empty(0, 4),
        "strided": torch.arange(6.0).reshape(2, 3).t(),
    }
    for name, tensor in tensors.items():
        model.register_buffer(name, tensor)
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    written = write(store, Trained(model=model, optimizer=optimizer, scheduler=None))
    stored = read_checkpoint(store, written.ref)
    assert flat(stored.model) == flat({name: tensors[name] for name in sorted(tensors)})


def test_a_manifest_holds_all_five_kinds_of_state_of_one_step(store: FakeObjectStore) -> None:
    manifest = read_manifest(store, write(store, trained()).ref)
    assert set(manifest.members) == set(MEMBERS)
    assert {member.step for member in manifest.members.values()} == {2}
    stored = json.loads(store.get(manifest_key(write(store, trained()).ref)) or b"")
    assert all(len(stored["members"][name]["sha256"]) == 64 for name in MEMBERS)
    assert manifest.members["data"].values["cursor"] == 24
    assert set(manifest.members["rng"].values[0]) == {"python", "numpy", "torch", "cuda"}
    assert (manifest.metrics, manifest.config_sha256) == ({"loss": 0.5}, "c")


def test_a_manifest_of_another_format_does_not_count_as_corrupt(store: FakeObjectStore) -> None:
    """Corrupt means quarantined: an older checkout would throw a newer one's checkpoints away."""
    manifest = read_manifest(store, write(store, trained()).ref)
    ref = put_manifest(store, replace(manifest, format=2).to_bytes())
    with pytest.raises(CheckpointMismatch, match="has format 2; this version reads 1"):
        read_checkpoint(store, ref)


@pytest.mark.parametrize("member", MEMBERS)
def test_members_of_two_steps_are_refused(store: FakeObjectStore, member: str) -> None:
    """torchtitan#4686: the model of step 500 with the data of step 501."""
    manifest = read_manifest(store, write(store, trained()).ref)
    mixed = dict(manifest.members) | {member: replace(manifest.members[member], step=3)}
    ref = put_manifest(store, replace(manifest, members=mixed).to_bytes())
    with pytest.raises(CheckpointCorrupt, match=f"mixes steps: {member} is of step 3"):
        read_checkpoint(store, ref)


def test_a_member_that_was_exchanged_is_refused(store: FakeObjectStore) -> None:
    manifest = json.loads(read_manifest(store, write(store, trained()).ref).to_bytes())
    manifest["members"]["data"]["values"]["cursor"] = 36
    ref = put_manifest(store, canonical_json(manifest))
    with pytest.raises(CheckpointCorrupt, match="data has sha256"):
        read_checkpoint(store, ref)


def put_manifest(store: FakeObjectStore, data: bytes) -> CheckpointRef:
    ref = CheckpointRef("r", 1, 2, "runs/r/attempts/1/launch/step-2/", sha256_hex(data))
    store.put(manifest_key(ref), data)
    return ref


def test_every_flipped_bit_is_found_and_named(store: FakeObjectStore) -> None:
    ref = write(store, trained()).ref
    for key, whole in list(store.objects.items()):
        for place in range(0, len(whole), max(1, len(whole) // 16)):
            store.objects[key] = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
            with pytest.raises(CheckpointCorrupt) as found:
                read_checkpoint(store, ref)
            assert key in str(found.value)
            assert "expected" in str(found.value)
        store.objects[key] = whole
    assert verify_checkpoint(store, ref) > 0


def test_a_missing_chunk_is_found_and_named(store: FakeObjectStore) -> None:
    ref = write(store, trained()).ref
    key = next(key for key in store.objects if "/chunks/" in key)
    store.delete(key)
    with pytest.raises(CheckpointCorrupt, match=f"{key} is missing; expected blake3"):
        read_checkpoint(store, ref)


def test_a_tensor_that_does_not_fit_is_named_with_both_shapes(store: FakeObjectStore) -> None:
    stored = read_checkpoint(store, write(store, trained(width=4)).ref)
    with pytest.raises(CheckpointMismatch, match=r"Tensor 0\.bias .*\[4\].*\[5\]"):
        load_into(trained(width=5), stored)


def test_large_tensors_span_chunks_and_small_ones_share_them(
    store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = weights_sha256(store, write(store, trained(width=40)).ref)
    monkeypatch.setattr(chunk_writer, "CHUNK_BYTES_MAX", 100)
    other = FakeObjectStore()
    written = write(other, trained(width=40))
    assert all(chunk.size_bytes <= 100 for chunk in written.manifest.chunks)
    pieces = {
        entry.name: [(p.offset_bytes, p.size_bytes) for p in entry.pieces]
        for entry in written.manifest.members["model"].tensors
    }
    # 160 bytes of 0.bias span two; 8 bytes of the batch count follow others in a shared chunk
    assert pieces["0.bias"] == [(0, 100), (0, 60)]
    assert len(written.manifest.chunks) < sum(len(p) for p in pieces.values()) * 4
    assert weights_sha256(other, written.ref) == whole
    load_into(trained(width=40, steps=0), read_checkpoint(other, written.ref))


def test_a_known_chunk_is_named_and_its_checkpoint_remembered(
    store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_writer, "CHUNK_BYTES_MAX", 16)
    what, known = trained(), KnownChunks()
    first = write(store, what, step=2, known=known)
    known.learn(first.ref.manifest_sha256, first.manifest.chunks)
    with torch.no_grad():
        what.model[2].bias.add_(1)  # type: ignore[index, union-attr, operator]
    second = write(store, what, step=3, known=known)
    assert 0 < second.written_bytes < first.written_bytes / 10
    assert second.sources == {first.ref.manifest_sha256}
    known.forget()
    third = write(store, what, step=4, known=known)
    assert third.sources == frozenset()
    assert {chunk.key.rpartition("/chunks/")[0] for chunk in third.manifest.chunks} == {
        "runs/r/attempts/1/launch/step-4"
    }


def test_a_later_save_holds_the_later_weights(store: FakeObjectStore) -> None:
    """NeMo-RL#3312: every save after the first held the weights of the first."""
    what, known = trained(), KnownChunks()
    first = write(store, what, step=2, known=known)
    known.learn(first.ref.manifest_sha256, first.manifest.chunks)
    with torch.no_grad():
        what.model[0].weight.mul_(2)  # type: ignore[index, union-attr, operator]
    second = write(store, what, step=3, known=known)
    assert weights_sha256(store, first.ref) != weights_sha256(store, second.ref)
    stored = read_checkpoint(store, second.ref)
    assert flat(stored.model) == flat(dict(sorted(what.model.state_dict().items())))


def test_chunks_are_durable_before_the_manifest_and_a_failure_leaves_none(
    store: FakeObjectStore,
) -> None:
    write(store, trained())
    puts = [key for method, key in store.calls if method == "put"]
    assert "/manifest-" in puts[-1]
    assert not any("/manifest-" in key for key in puts[:-1])
    broken = FakeObjectStore()
    broken.fail("put", 1, Fault.FAILS)
    with pytest.raises(StoreUnavailable):
        write(broken, trained())
    assert not any("/manifest-" in key for key in broken.objects)


def test_a_state_that_is_neither_tensor_nor_json_is_refused_by_name(store: FakeObjectStore) -> None:
    what = trained()
    what.optimizer.param_groups[0]["made_by"] = object()
    with pytest.raises(TrainingError, match=r"optimizer\.param_groups\.0\.made_by: a object"):
        write(store, what)


def test_random_numbers_go_on_where_they_were_saved() -> None:
    def draw() -> list[Any]:
        import random

        import numpy as np

        return [random.random(), random.gauss(0, 1), np.random.rand(), float(torch.rand(()))]

    random_state.seed_all(3, rank=0)
    draw()
    state = json.loads(canonical_json(random_state.capture()))
    after = draw()
    random_state.seed_all(4, rank=1)
    random_state.restore(state)
    assert draw() == after


def test_reading_weights_and_snapshots_needs_no_torch() -> None:
    code = (
        "import sys, tracks_dagster.training, tracks_dagster.training.manifest, "
        "tracks_dagster.training.data; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
