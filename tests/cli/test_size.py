"""`tracks size`, with a stand-in for the process that runs the script's steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call
from tests.histories import History
from tests.stories import RUN_ID, Story
from tracks_dagster.attempts.sizing import GIB, SizeRequest, StepMemory
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import MemoryPeak, Program
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.track import code_key
from tracks_dagster.wings.lab.edge import size
from tracks_dagster.wiring import build

PROJECT = """\
version: 1
name: mine
entry: train.py
config: {steps: 10, global_batch: 48, micro_batch: 4}
"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The configs that were sized; a step takes 1 GiB, and 1 GiB for each sample of a pass."""
    configs: list[dict[str, Any]] = []

    def size_steps(request: SizeRequest, **how: object) -> StepMemory:
        config = request.declared["config"]
        configs.append(config)
        kinds = {"weights": GIB, "activations": config["micro_batch"] * GIB}
        return StepMemory(
            torch="2.13.0",
            device="cpu",
            steps=2,
            peak_bytes=sum(kinds.values()),
            by_kind={} if request.measures else kinds,
            parameters=1234567,
        )

    monkeypatch.setattr(size, "size_steps", size_steps)
    return configs


@pytest.fixture
def project(story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder, which is the current one."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "tracks.yaml").write_text(PROJECT)
    (folder / "train.py").write_text("")
    monkeypatch.chdir(folder)
    return folder


def test_a_project_is_sized_by_kind_and_fitted_to_devices(
    call: Call, asked: list[dict[str, Any]], project: Path
) -> None:
    shown = call("size", "--device", "H100", "--device", "20GiB", "--device", "1GiB")
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert lines[0] == "mine (1 234 567 parameters), micro_batch 4: memory of one step on one rank"
    assert "  activations    4.0 GiB" in lines
    assert "  at its peak    5.0 GiB" in lines
    # 0.5 + 1.1 × (1 + 48) = 54.4 GiB on the H100's 79.6; 16 samples take 19.2 of 20.
    assert [line.split() for line in lines if line.startswith(("H100", "20GiB", "1GiB"))] == [
        ["H100", "79.6", "GiB", "48,", "the", "whole", "share", "of", "a", "rank", "54.4", "GiB"],
        ["20GiB", "20.0", "GiB", "16", "19.2", "GiB"],
        ["1GiB", "1.0", "GiB", "none", "fits", "2.7", "GiB"],
    ]
    # Two passes are sized where a step has more: from the second on gradients are there too.
    assert asked[0] | {"micro_batch": 4, "accumulation": 2, "global_batch": 8} == asked[0]
    assert asked[1] | {"micro_batch": 48, "accumulation": 1, "global_batch": 48} == asked[1]
    assert len({config["micro_batch"] for config in asked}) == len(asked) <= size.SIZINGS_MAX


def test_a_stored_run_is_sized_beside_what_its_attempt_measured(
    call: Call, asked: list[dict[str, Any]], story: Story, home: Path
) -> None:
    config = {"steps": 10, "global_batch": 48, "micro_batch": 4, "accumulation": 12}
    trainer = code_key("mine-1", sha256_hex(b"code"))
    story.store.put(trainer, b"code")
    memory = MemoryPeak(
        device_bytes=5 * GIB, reserved_bytes=6 * GIB, total_bytes=16 * GIB, host_bytes=2 * GIB
    )
    run = History("mine-1").declare(
        model_family="mine", config=config, trainer=trainer, program=Program(entry=("train.py",))
    )
    run.open(config=config).supervise().place().restore().end("completed", memory=memory)
    run.write_to(story.store)
    build(Settings.from_environment()).projector.scan()
    shown = call("size", "mine-1", "--device", "20GiB")
    assert shown.exit_code == 0, shown.stderr
    assert (
        "mine-1/a01 measured: 5.0 GiB in use on its GPU at most, 6.0 GiB held by torch's allocator."
    ) in shown.stdout
    assert "20 % that the allocator held beside" in shown.stdout.replace("20%", "20 %")
    # 0.5 + 1.2 × (1 + 12) = 16.1 of 20 GiB; 16 samples of 48 would take 20.9.
    assert ["20GiB", "20.0", "GiB", "12", "16.1", "GiB"] in [
        line.split() for line in shown.stdout.splitlines()
    ]
    found = json.loads(call("size", "mine-1", "--json").stdout)
    assert found["run_measured"]["device_bytes"] == 5 * GIB
    assert found["predicted"]["peak_bytes"] == 5 * GIB


def test_a_run_without_stored_code_is_distinguished(
    call: Call, asked: list[dict[str, Any]], story: Story
) -> None:
    shown = call("size", RUN_ID)
    assert (shown.exit_code, asked) == (2, [])
    assert "its code family is missing" in shown.stderr


def test_code_that_was_changed_in_the_store_is_not_sized(
    call: Call, asked: list[dict[str, Any]], story: Story
) -> None:
    trainer = code_key("mine-1", sha256_hex(b"code"))
    story.store.put(trainer, b"other code")
    History("mine-1").declare(
        trainer=trainer, program=Program(entry=("train.py",))
    ).open().write_to(story.store)
    shown = call("size", "mine-1")
    assert (shown.exit_code, asked) == (2, [])
    assert "mine-1 cannot be sized: its code runs/mine-1/trainer/" in shown.stderr
    assert "; expected sha256" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "GTX"), "'GTX' is not a known device: T4"),
        (("--trainer", "train.py", "--project", "."), "each name what to size"),
        ((RUN_ID, "--ranks", "2"), "RUN is sized as it was stored"),
        (("--set", "micro_batch=5"), "cannot be divided into micro-batches"),
        (("--set", "hidden=5"), "hidden"),
    ],
)
def test_bad_input_is_refused_before_anything_is_started(
    call: Call, asked: list[dict[str, Any]], project: Path, arguments: tuple[str, ...], words: str
) -> None:
    shown = call("size", *arguments)
    assert (shown.exit_code, asked) == (2, [])
    assert words in shown.stderr
