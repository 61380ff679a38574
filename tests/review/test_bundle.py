"""A bundle has all that is needed to use a checkpoint, and nothing of ours is needed to read it."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes import FakeObjectStore
from tests.histories import History
from tests.training.checkpoints import moment, ref_of, write_tensors
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.review.effects.bundle import Bundle, write_bundle
from tracks_dagster.track.bodies import Artifact, EvalRequirement, Program
from tracks_dagster.track.errors import CheckpointCorrupt, InvalidInput
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.track import code_key, packages_key

PROGRAM = Program(entry=("evaluate.py",))
QUALITY = EvalRequirement(
    suite="quality", suite_version="1", snapshot=None, seed=7, program=PROGRAM
)
PACKAGES = b"torch==2\n"

# In a process of its own, in which every import of the package fails.
STRANGER = """
import sys
sys.modules["tracks_dagster"] = None
folder = sys.argv[1]
sys.path.insert(0, folder + "/code")
import torch
from model import build
model = build()
model.load_state_dict(torch.load(folder + "/weights.pt", weights_only=True))
print(float(model(torch.ones(2))))
"""
MODEL = "import torch\n\ndef build():\n    return torch.nn.Linear(2, 1)\n"


def code() -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, text in {"model.py": MODEL, "tokenizer.json": "{}"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return written.getvalue()


@pytest.fixture
def model() -> torch.nn.Linear:
    return torch.nn.Linear(2, 1)


@pytest.fixture
def bundle(
    store: FakeObjectStore, tracks: Tracks, ledger: Ledger, model: torch.nn.Linear
) -> Callable[..., Bundle]:
    """Makes the bundle of a run of a project: trained, packed, evaluated, promoted."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    ref = ref_of(
        write_tensors(store, tensors, replace(moment(40, run_id="r-1"), launch_id="launch-1"))
    )
    key = code_key("r-1", sha256_hex(code()))
    store.put(key, code())
    store.put(packages_key("r-1", sha256_hex(PACKAGES)), PACKAGES)
    store.put("runs/r-1/evals/quality@40/1/artifacts/a/confusion.csv", b"1,0")
    history = History().declare(
        snapshot=None, trainer=key, program=PROGRAM, evals=(QUALITY,), promotion=None
    )
    history.open().place(packages_sha256=sha256_hex(PACKAGES)).restore().commit(40, ref=ref)
    history.end("completed", last_step=40).open_eval(ref, suite="quality")
    opened = history.state.evals[-1].opened
    artifact = Artifact(name="a/confusion.csv", size_bytes=3, sha256=sha256_hex(b"1,0"))
    history.end_eval(opened, artifacts=(artifact,)).promote(opened).write_to(store)
    Projector(store, ledger).scan()

    def make(folder: Path, **options: Any) -> Bundle:
        state = tracks.run("r-1")
        return write_bundle(tracks, ledger, state, state.checkpoints[-1], folder, **options)

    return make


def test_a_bundle_is_used_by_a_process_that_cannot_import_this_package(
    bundle: Callable[..., Bundle], tmp_path: Path, model: torch.nn.Linear
) -> None:
    folder = tmp_path / "bundle"
    (tmp_path / "notes.txt").write_text("mine")
    made = bundle(folder, added=(tmp_path / "notes.txt",))
    assert made.missing == ()
    done = subprocess.run(
        [sys.executable, "-B", "-c", STRANGER, str(folder)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert float(done.stdout) == float(model(torch.ones(2)).detach())
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {
        *("weights.pt", "config.json", "checkpoint.json", "packages.txt", "notes.txt"),
        *("code/model.py", "code/tokenizer.json", "evals.json", "lineage.json", "SHA256SUMS"),
        "evals/quality/1/a/confusion.csv",
    }
    sums = dict(
        reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines()
    )
    assert sums == {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in found - {"SHA256SUMS"}
    }


def test_a_bundle_says_what_was_measured_and_where_it_comes_from(
    bundle: Callable[..., Bundle], tmp_path: Path
) -> None:
    bundle(tmp_path / "bundle")
    (measured,) = json.loads((tmp_path / "bundle" / "evals.json").read_text())
    assert (measured["suite"], measured["metrics"]) == ("quality", {"loss": 3.25})
    lineage = json.loads((tmp_path / "bundle" / "lineage.json").read_text())
    assert lineage["run"]["run_id"] == "r-1"
    assert [each["alias"] for each in lineage["promotions"]] == ["best"]
    (link,) = lineage["rests_on"]["chain"]
    assert (link["attempt"], link["snapshot"]) == ("attempt:r-1/a01", None)
    assert lineage["rests_on"]["missing"] is None


def test_what_the_store_lost_is_named_and_the_rest_is_there(
    bundle: Callable[..., Bundle], store: FakeObjectStore, tmp_path: Path
) -> None:
    key = packages_key("r-1", sha256_hex(PACKAGES))
    store.put(key, b"torch==3\n")
    made = bundle(tmp_path / "bundle")
    found = sha256_hex(store.objects[key])
    assert made.missing == (f"{key} has sha256 {found}; expected sha256 {sha256_hex(PACKAGES)}",)
    assert (tmp_path / "bundle" / "weights.pt").is_file()


def test_a_bundle_is_whole_or_not_there(
    bundle: Callable[..., Bundle], store: FakeObjectStore, tmp_path: Path
) -> None:
    key = next(each for each in store.list("runs/") if "/chunks/" in each)
    data = bytearray(store.get(key) or b"")
    data[0] ^= 1
    store.put(key, bytes(data))
    with pytest.raises(CheckpointCorrupt, match="Nothing was left"):
        bundle(tmp_path / "bundle")
    assert not [path for path in tmp_path.iterdir() if "bundle" in path.name]


def test_a_folder_that_is_there_is_left_alone(
    bundle: Callable[..., Bundle], tmp_path: Path
) -> None:
    (tmp_path / "bundle").mkdir()
    with pytest.raises(InvalidInput, match="name a folder that is not there yet"):
        bundle(tmp_path / "bundle")
    added = tmp_path / "weights.pt"
    added.write_text("")
    with pytest.raises(InvalidInput, match=r"another file of the bundle is called weights.pt"):
        bundle(tmp_path / "other", added=(added,))
