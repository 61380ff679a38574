"""Weights as a safetensors file: equal to the bit by the library's own loader, or no file at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tests.fakes import FakeObjectStore
from tests.training.checkpoints import moment, ref_of, write_tensors
from tracks_dagster.track.errors import CheckpointCorrupt, CheckpointMismatch, InvalidInput
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.training.saves import layout
from tracks_dagster.training.saves.export import export_weights
from tracks_dagster.training.saves.manifest import weights_sha256

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
)


def saved(store: ObjectStore, weights: dict[str, torch.Tensor]) -> CheckpointRef:
    """Store a checkpoint of a model that holds `weights`, as one rank alone writes it."""
    tensors = {f"model.{name}": tensor for name, tensor in weights.items()}
    return ref_of(write_tensors(store, tensors, replace(moment(40), attempt_id=3)))


def random_bytes(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor of this type whose bytes are anything that it can hold, NaN included."""
    torch.manual_seed(7)
    if dtype is torch.bool:
        return torch.randint(2, shape).to(torch.bool)
    raw = torch.randint(256, (torch.Size(shape).numel() * dtype.itemsize,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return tensor.dtype, tensor.shape, raw


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_shape_comes_back_to_the_bit(
    dtype: torch.dtype, store: FakeObjectStore, tmp_path: Path
) -> None:
    weights = {
        "a matrix": random_bytes(dtype, 3, 5),
        "a number": random_bytes(dtype),
        "nothing": random_bytes(dtype, 0, 4),
        "odd": random_bytes(dtype, 7),  # puts what follows off any alignment
        "z.strided": random_bytes(dtype, 2, 3).t(),
    }
    path = tmp_path / "weights.safetensors"
    exported = export_weights(store, saved(store, weights), path)
    loaded = load_file(path)
    assert {name: bits(t) for name, t in loaded.items()} == {
        name: bits(t) for name, t in weights.items()
    }
    assert exported.tensor_count == 5
    assert exported.total_bytes == sum(t.nbytes for t in weights.values())


def test_the_file_says_where_it_comes_from(store: FakeObjectStore, tmp_path: Path) -> None:
    ref = saved(store, {"w": torch.ones(2)})
    path = tmp_path / "weights.safetensors"
    exported = export_weights(store, ref, path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert metadata == exported.metadata
    assert metadata == {
        "format": "pt",
        "run_id": "r",
        "attempt_id": "3",
        "step": "40",
        "manifest_sha256": ref.manifest_sha256,
        "weights_sha256": weights_sha256(store, ref),
    }


def test_nothing_else_is_left_in_the_folder(store: FakeObjectStore, tmp_path: Path) -> None:
    export_weights(store, saved(store, {"w": torch.ones(2)}), tmp_path / "w.safetensors")
    assert files(tmp_path) == ["w.safetensors"]


def test_a_file_that_is_there_is_replaced_only_when_asked_to(
    store: FakeObjectStore, tmp_path: Path
) -> None:
    ref, path = saved(store, {"w": torch.ones(2)}), tmp_path / "w.safetensors"
    path.write_bytes(b"precious")
    with pytest.raises(InvalidInput, match="is there already"):
        export_weights(store, ref, path)
    assert path.read_bytes() == b"precious"
    export_weights(store, ref, path, overwrite=True)
    assert load_file(path)["w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["", "no such folder/w.safetensors", "x" * 5000])
def test_a_path_that_names_no_file_is_refused(
    name: str, store: FakeObjectStore, tmp_path: Path
) -> None:
    ref = saved(store, {"w": torch.ones(2)})
    with pytest.raises(InvalidInput, match="a file in a folder that exists"):
        export_weights(store, ref, tmp_path / name, overwrite=True)
    assert files(tmp_path) == []


def test_every_flipped_bit_is_named_and_no_file_is_left(
    store: FakeObjectStore, tmp_path: Path
) -> None:
    ref = saved(store, {"w": torch.arange(100.0)})
    for key, whole in list(store.objects.items()):
        for place in range(0, len(whole), max(1, len(whole) // 16)):
            store.objects[key] = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
            with pytest.raises(CheckpointCorrupt) as found:
                export_weights(store, ref, tmp_path / "w.safetensors")
            for word in (key, "expected", "No file was written"):
                assert word in str(found.value)
        store.objects[key] = whole
    assert files(tmp_path) == []


def test_every_object_is_read_once(
    store: FakeObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "CHUNK_BYTES_MAX", 2048)
    monkeypatch.setattr(layout, "SHARED_BYTES_MAX", 1024)
    ref = saved(store, {f"w{index}": torch.arange(256.0) + index for index in range(8)})
    read: list[str] = []
    real = store.get

    def counted(key: str, bytes_max: int | None = None) -> bytes | None:
        read.append(key)
        return real(key, bytes_max)

    monkeypatch.setattr(store, "get", counted)
    export_weights(store, ref, tmp_path / "w.safetensors")
    assert sorted(read) == sorted(store.objects)


def test_tensors_lie_at_multiples_of_their_width(store: FakeObjectStore, tmp_path: Path) -> None:
    weights = {
        "a": torch.ones(3, dtype=torch.int8),
        "b": torch.ones(3, dtype=torch.float16),
        "c": torch.ones(1, dtype=torch.float64),
    }
    path = tmp_path / "w.safetensors"
    export_weights(store, saved(store, weights), path)
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert size % 8 == 0
    begins = {name: header[name]["data_offsets"][0] for name in weights}
    assert begins == {"c": 0, "b": 8, "a": 14}


def test_a_failure_to_write_replaces_nothing_and_leaves_no_half_file(
    store: FakeObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, path = saved(store, {"w": torch.ones(2)}), tmp_path / "w.safetensors"
    path.write_bytes(b"precious")

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidInput, match="No space left on device"):
        export_weights(store, ref, path, overwrite=True)
    assert (files(tmp_path), path.read_bytes()) == (["w.safetensors"], b"precious")


def test_a_type_that_safetensors_has_no_word_for_is_named(
    store: FakeObjectStore, tmp_path: Path
) -> None:
    ref = saved(store, {"phase": torch.ones(2, dtype=torch.complex128)})
    with pytest.raises(CheckpointMismatch, match="Tensor phase is complex128"):
        export_weights(store, ref, tmp_path / "w.safetensors")
    assert files(tmp_path) == []


def test_another_run_s_prefix_is_refused(store: FakeObjectStore, tmp_path: Path) -> None:
    ref = replace(saved(store, {"w": torch.ones(2)}), run_id="other")
    with pytest.raises(CheckpointCorrupt, match="is of run r, attempt 3, step 40"):
        export_weights(store, ref, tmp_path / "w.safetensors")


def test_exporting_needs_no_torch() -> None:
    code = "import sys, tracks_dagster.training.saves.export; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
