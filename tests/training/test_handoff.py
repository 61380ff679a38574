"""A checkpoint's folder is read by torch alone: equal to the bit, without this package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.fakes import FakeObjectStore
from tests.training.gangs import TrainingRun
from tests.training.test_export import DTYPES, bits, random_bytes, saved
from tracks_dagster.track.errors import CheckpointCorrupt
from tracks_dagster.training.saves.handoff import WEIGHTS, write_checkpoint
from tracks_dagster.training.saves.manifest import weights_sha256

# In a process of its own, in which every import of the package fails.
STRANGER = """
import json, sys, torch
sys.modules["tracks_dagster"] = None
folder = sys.argv[1]
model = torch.nn.Linear(3, 2)
model.load_state_dict(torch.load(folder + "/weights.pt", weights_only=True, mmap=True))
config = json.load(open(folder + "/config.json"))
print(json.dumps([config, model(torch.ones(3)).tolist()]))
"""


@pytest.mark.parametrize("is_mapped", [False, True])
def test_weights_of_every_dtype_and_shape_come_back_to_the_bit(
    store: FakeObjectStore, tmp_path: Path, is_mapped: bool
) -> None:
    weights = {
        f"{dtype}/{name}": tensor
        for dtype in DTYPES
        for name, tensor in {
            "a matrix": random_bytes(dtype, 3, 5),
            "a number": random_bytes(dtype),
            "nothing": random_bytes(dtype, 0, 4),
            "odd": random_bytes(dtype, 7),
            "z.strided": random_bytes(dtype, 2, 3).t(),
        }.items()
    }
    ref = saved(store, weights)
    digest = write_checkpoint(store, ref, tmp_path / "c", config={"lr": 0.1})
    found = torch.load(tmp_path / "c" / WEIGHTS, weights_only=True, mmap=is_mapped)
    assert {name: bits(each) for name, each in found.items()} == {
        name: bits(each) for name, each in weights.items()
    }
    assert digest == weights_sha256(store, ref)
    origin = json.loads((tmp_path / "c" / "checkpoint.json").read_text())
    assert (origin["step"], origin["attempt_id"], origin["weights_sha256"]) == (40, 3, digest)


def test_a_process_that_cannot_import_this_package_loads_the_folder(
    store: FakeObjectStore, tmp_path: Path
) -> None:
    model = torch.nn.Linear(3, 2)
    write_checkpoint(store, saved(store, dict(model.state_dict())), tmp_path / "c", config={"a": 1})
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, str(tmp_path / "c")],
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout) == [{"a": 1}, model(torch.ones(3)).tolist()]


def test_a_damaged_chunk_is_not_handed_over(store: FakeObjectStore, tmp_path: Path) -> None:
    ref = saved(store, {"w": torch.ones(3)})
    key = next(each for each in store.list("runs/") if "/chunks/" in each)
    data = bytearray(store.get(key) or b"")
    data[0] ^= 1
    store.put(key, bytes(data))
    with pytest.raises(CheckpointCorrupt, match=key):
        write_checkpoint(store, ref, tmp_path / "c", config={})


def test_a_folder_that_a_script_wrote_is_handed_over_as_it_was_committed(
    store: FakeObjectStore, tmp_path: Path
) -> None:
    own = {"config.json": b"mine", "empty": b"", "deep/weights.bin": bytes(range(256)) * 40_000}
    for name, data in own.items():
        (tmp_path / "checkpoint-1" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkpoint-1" / name).write_bytes(data)
    run = TrainingRun(tmp_path, store=store)
    with run.joined() as a:
        a.folder()
        a.ends(1)
        a.commit_folder(1, tmp_path / "checkpoint-1")
    digest = write_checkpoint(store, run.final(), tmp_path / "c", config={"lr": 0.1})
    files = {path for path in (tmp_path / "c").rglob("*") if path.is_file()}
    found = {path.relative_to(tmp_path / "c").as_posix(): path.read_bytes() for path in files}
    assert json.loads(found.pop("config.json")) == {"lr": 0.1}
    origin = json.loads(found.pop("checkpoint.json"))
    assert found == {f"files/{name}": data for name, data in own.items()}
    assert (origin["folder"], origin["weights_sha256"]) == ("checkpoint-1", digest)
    assert digest == weights_sha256(store, run.final())
