"""Checkpoints as bytes: written, read back, verified, and refused when anything differs."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.state_dict import get_state_dict

from tests.fakes import FakeObjectStore, Fault
from tests.training import checkpoints
from tests.training.checkpoints import read, weights_of
from tracks_dagster.track.errors import (
    CheckpointCorrupt,
    CheckpointMismatch,
    StoreUnavailable,
    TrainingError,
)
from tracks_dagster.track.records import canonical_json, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key
from tracks_dagster.training.saves import layout, loading, random_state, state_dict
from tracks_dagster.training.saves.chunk_writer import KnownChunks
from tracks_dagster.training.saves.loading import CheckpointStorageReader, load_into
from tracks_dagster.training.saves.manifest import (
    MEMBERS,
    read_manifest,
    verify_checkpoint,
    weights_sha256,
)
from tracks_dagster.training.saves.staging import Arena, Staging
from tracks_dagster.training.saves.storage_writer import CheckpointStorageWriter, WrittenCheckpoint
from tracks_dagster.training.saves.trained import Trained


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
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    return Trained(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)


def write(
    store: FakeObjectStore, what: Trained, *, step: int = 2, known: KnownChunks | None = None
) -> WrittenCheckpoint:
    written = checkpoints.write(store, what, step=step, known=known).written
    assert written is not None
    return written


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
    load_into(fresh, read(store, write(store, saved).ref, fresh))
    assert flat(fresh.model.state_dict()) == flat(saved.model.state_dict())
    assert flat(fresh.optimizer.state_dict()) == flat(saved.optimizer.state_dict())
    assert saved.scheduler is not None
    assert fresh.scheduler is not None
    assert flat(fresh.scheduler.state_dict()) == flat(saved.scheduler.state_dict())
    assert saved.scaler is not None
    assert fresh.scaler is not None
    assert fresh.scaler.state_dict() == saved.scaler.state_dict()


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
    model.register_parameter("weight", nn.Parameter(torch.zeros(1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    written = write(store, Trained(model=model, optimizer=optimizer, scheduler=None))
    assert flat(weights_of(store, written.ref)) == flat(dict(sorted(model.state_dict().items())))


def test_a_manifest_holds_all_seven_kinds_of_state_of_one_step(store: FakeObjectStore) -> None:
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
    ref = put_manifest(store, replace(manifest, format=4).to_bytes())
    with pytest.raises(CheckpointMismatch, match="has format 4; this version reads 2 and 3"):
        read(store, ref, trained())


@pytest.mark.parametrize("member", MEMBERS)
def test_members_of_two_steps_are_refused(store: FakeObjectStore, member: str) -> None:
    """torchtitan#4686: the model of step 500 with the data of step 501."""
    manifest = read_manifest(store, write(store, trained()).ref)
    mixed = dict(manifest.members) | {member: replace(manifest.members[member], step=3)}
    ref = put_manifest(store, replace(manifest, members=mixed).to_bytes())
    with pytest.raises(CheckpointCorrupt, match=f"mixes steps: {member} is of step 3"):
        read(store, ref, trained())


def test_a_member_that_was_exchanged_is_refused(store: FakeObjectStore) -> None:
    manifest = json.loads(read_manifest(store, write(store, trained()).ref).to_bytes())
    manifest["members"]["data"]["values"]["cursor"] = 36
    ref = put_manifest(store, canonical_json(manifest))
    with pytest.raises(CheckpointCorrupt, match="data has sha256"):
        read(store, ref, trained())


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
                read(store, ref, trained())
            assert key in str(found.value)
            assert "expected" in str(found.value)
        store.objects[key] = whole
    assert verify_checkpoint(store, ref) > 0


def test_a_missing_chunk_is_found_and_named(store: FakeObjectStore) -> None:
    ref = write(store, trained()).ref
    key = next(key for key in store.objects if "/chunks/" in key)
    store.delete(key)
    with pytest.raises(CheckpointCorrupt, match=f"{key} is missing; expected blake3"):
        read(store, ref, trained())


def test_a_tensor_that_does_not_fit_is_named_with_both_shapes(store: FakeObjectStore) -> None:
    ref = write(store, trained(width=4)).ref
    with pytest.raises(CheckpointMismatch, match=r"Tensor model\.0\.bias .*\[4\].*\[5\]"):
        read(store, ref, trained(width=5))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of at most 128 bytes; tensors above 64 bytes have their own."""
    monkeypatch.setattr(layout, "CHUNK_BYTES_MAX", 128)
    monkeypatch.setattr(layout, "SHARED_BYTES_MAX", 64)


def test_large_tensors_span_chunks_and_small_ones_share_them(
    store: FakeObjectStore, request: pytest.FixtureRequest
) -> None:
    whole = weights_sha256(store, write(store, trained(width=40)).ref)
    request.getfixturevalue("small_chunks")
    other = FakeObjectStore()
    written = write(other, trained(width=40))
    assert all(chunk.size_bytes <= 128 for chunk in written.manifest.chunks)
    pieces = {
        entry.name: [(p.offset_bytes, p.size_bytes) for p in shard.pieces]
        for entry in written.manifest.members["model"].tensors
        for shard in entry.shards
    }
    # 160 bytes of 0.bias take 192, in two chunks of 128 and 64; those of the batch count share one
    assert pieces["0.bias"] == [(0, 128), (0, 32)]
    assert len(pieces["1.num_batches_tracked"]) == 1
    assert weights_sha256(other, written.ref) == whole
    fresh = trained(width=40, steps=0)
    load_into(fresh, read(other, written.ref, fresh))
    assert flat(fresh.model.state_dict()) == flat(trained(width=40).model.state_dict())


@pytest.mark.usefixtures("small_chunks")
def test_tensors_of_equal_bytes_are_stored_once_and_come_back(store: FakeObjectStore) -> None:
    model = nn.Module()
    for name in ("a", "b"):
        model.register_buffer(name, torch.arange(8.0).repeat(20))  # five chunks, four of them equal
    model.register_parameter("weight", nn.Parameter(torch.zeros(1)))
    what = Trained(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    written = write(store, what)
    assert sum("/chunks/" in key for key in store.objects) < len(written.manifest.chunks) * 2
    assert sum("/chunks/" in key for key in store.objects) <= 4
    before = flat(model.state_dict())
    for buffer in model.buffers():
        buffer.zero_()
    load_into(what, read(store, written.ref, what))
    assert flat(model.state_dict()) == before


@pytest.mark.usefixtures("small_chunks")
def test_a_known_chunk_is_named_and_its_checkpoint_remembered(store: FakeObjectStore) -> None:
    what, known = trained(), KnownChunks()
    first = write(store, what, step=2, known=known)
    known.learn_commit(first.ref.manifest_sha256, first.manifest.chunks)
    with torch.no_grad():
        what.model[2].bias.add_(1)  # type: ignore[index, union-attr, operator]
    second = write(store, what, step=3, known=known)
    reused = [chunk for chunk in second.manifest.chunks if "/step-2/" in chunk.key]
    assert len(second.manifest.chunks) - len(reused) == 1
    assert known.sources(second.manifest.chunks) == {first.ref.manifest_sha256}
    known.forget()
    third = write(store, what, step=4, known=known)
    assert known.sources(third.manifest.chunks) == frozenset()
    assert {chunk.key.rpartition("/chunks/")[0] for chunk in third.manifest.chunks} == {
        "runs/r/attempts/1/launch/step-4"
    }


@pytest.mark.usefixtures("small_chunks")
def test_a_chunk_of_the_restored_checkpoint_leans_on_it_also_by_way_of_a_commit(
    store: FakeObjectStore,
) -> None:
    what, known = trained(), KnownChunks()
    restored = write(store, what, step=2)
    known.learn_restored(restored.ref.manifest_sha256, restored.manifest.chunks)
    commit = write(store, what, step=3, known=known)
    known.learn_commit(commit.ref.manifest_sha256, commit.manifest.chunks)
    third = write(store, what, step=4, known=known)
    both = {restored.ref.manifest_sha256, commit.ref.manifest_sha256}
    assert known.sources(third.manifest.chunks) == both


@pytest.mark.usefixtures("small_chunks")
def test_chunks_of_commits_before_the_newest_are_written_again(store: FakeObjectStore) -> None:
    """A collector may delete them at any time; what was restored and the newest commit it may not."""
    what, known = trained(), KnownChunks()
    first = write(store, what, step=2, known=known)
    known.learn_commit(first.ref.manifest_sha256, first.manifest.chunks)
    known.learn_commit("another", ())
    second = write(store, what, step=3, known=known)
    assert {chunk.key.rpartition("/chunks/")[0] for chunk in second.manifest.chunks} == {
        "runs/r/attempts/1/launch/step-3"
    }


def test_a_later_save_holds_the_later_weights(store: FakeObjectStore) -> None:
    """NeMo-RL#3312: every save after the first held the weights of the first."""
    what, known = trained(), KnownChunks()
    first = write(store, what, step=2, known=known)
    known.learn_commit(first.ref.manifest_sha256, first.manifest.chunks)
    with torch.no_grad():
        what.model[0].weight.mul_(2)  # type: ignore[index, union-attr, operator]
    second = write(store, what, step=3, known=known)
    assert weights_sha256(store, first.ref) != weights_sha256(store, second.ref)
    weights = weights_of(store, second.ref)
    assert flat(weights) == flat(dict(sorted(what.model.state_dict().items())))


def test_a_failed_restore_leaves_the_model_as_it_was(store: FakeObjectStore) -> None:
    ref = write(store, trained()).ref
    fresh = trained(seed=1)
    before = flat(fresh.model.state_dict()), flat(fresh.optimizer.state_dict())
    key = next(key for key in store.objects if "/chunks/" in key)
    store.objects[key] = store.objects[key][:-1]
    with pytest.raises(CheckpointCorrupt, match="bytes; expected"):
        read(store, ref, fresh)
    assert (flat(fresh.model.state_dict()), flat(fresh.optimizer.state_dict())) == before


@pytest.mark.usefixtures("small_chunks")
def test_no_tensor_is_written_before_every_chunk_has_its_hash(
    store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the model's own nor the new ones for the optimizer, whichever chunk is damaged."""
    ref = write(store, trained(width=40)).ref
    fresh = trained(width=40, seed=1)
    targets = state_dict.targets(fresh, read_manifest(store, ref))
    before = flat(targets)
    monkeypatch.setattr(state_dict, "targets", lambda trained, manifest, **ranks: targets)
    keys = [key for key in store.objects if "/chunks/" in key]
    for key in keys:
        whole = store.objects[key]
        store.objects[key] = whole[:-1] + bytes([whole[-1] ^ 1])
        with pytest.raises(CheckpointCorrupt, match="has blake3"):
            read(store, ref, fresh)
        assert flat(targets) == before
        store.objects[key] = whole
    assert len(keys) > 8


def test_each_thread_of_a_restore_is_woken_once_however_many_the_tensors(
    store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "READERS", 3)
    tasks: list[object] = []

    class CountingPool(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            tasks.append(args)
            return super().submit(*args, **kwargs)

    saved, fresh = trained(), trained(seed=1)
    fetched = read(store, write(store, saved).ref, fresh)
    assert len(fetched.plan.items) > 20
    monkeypatch.setattr(loading, "ThreadPoolExecutor", CountingPool)
    load_into(fresh, fetched)
    assert len(tasks) == 3
    assert flat(fresh.optimizer.state_dict()) == flat(saved.optimizer.state_dict())


def test_names_are_those_of_dcp(store: FakeObjectStore) -> None:
    what = trained()
    model, optimizer = get_state_dict(what.model, what.optimizer)
    theirs, _ = flatten_state_dict({"model": model, "optimizer": optimizer})
    ours = state_dict.collect(replace(what, scheduler=None, scaler=None)).tensors
    tensors = {name: value for name, value in theirs.items() if isinstance(value, torch.Tensor)}
    assert flat(dict(sorted(ours.items()))) == flat(dict(sorted(tensors.items())))


def test_names_do_not_depend_on_whether_the_model_is_compiled(store: FakeObjectStore) -> None:
    def compiled(model: nn.Module) -> nn.Module:
        wrapper = nn.Module()  # what torch.compile returns, without the seconds of its import
        wrapper.add_module("_orig_mod", model)
        return wrapper

    what, fresh = trained(), trained(seed=1)
    wrapped = replace(what, model=compiled(what.model))
    assert list(state_dict.collect(wrapped).tensors) == list(state_dict.collect(what).tensors)
    into = replace(fresh, model=compiled(fresh.model))
    load_into(into, read(store, write(store, what).ref, into))
    assert flat(fresh.model.state_dict()) == flat(what.model.state_dict())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process is meant
def test_dcp_itself_saves_and_loads_through_the_storage_writer_and_reader(
    store: FakeObjectStore,
) -> None:
    what, arena = trained(), Arena(torch.device("cpu"))
    writer = CheckpointStorageWriter(
        store, checkpoints.moment(), staging=Staging(arena), known=KnownChunks()
    )
    dcp.save({"model": what.model.state_dict()}, storage_writer=writer, no_dist=True)
    assert writer.written is not None
    fresh = {"model": trained(seed=1).model.state_dict()}
    manifest = read_manifest(store, writer.written.ref)
    reader = CheckpointStorageReader(store, manifest, arena=Arena(torch.device("cpu")))
    dcp.load(fresh, storage_reader=reader, no_dist=True)
    assert flat(fresh["model"]) == flat(what.model.state_dict())


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
        "import sys, tracks_dagster.training, tracks_dagster.training.saves.manifest, "
        "tracks_dagster.training.data; print('torch' in sys.modules)"
    )
    assert printed_by(code) == "False"


def test_a_trainer_starts_without_the_compiler_that_it_may_never_use() -> None:
    code = "import sys, tracks_dagster.training.attempt as _; print('torch._dynamo' in sys.modules)"
    assert printed_by(code) == "False"


def printed_by(code: str) -> str:
    python = [sys.executable, "-c", code]
    done = subprocess.run(python, check=True, timeout=240, capture_output=True, text=True)
    return done.stdout.strip()
