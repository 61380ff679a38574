"""The examples that ship: they learn, and a checkpoint of theirs is evaluated alike every time."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.examples import EXAMPLES, example, example_config, import_example
from tests.training.gangs import SMALL, TrainingRun, make_snapshot
from tracks_dagster.attempts.effects.local.code_archive import pack_folder
from tracks_dagster.evals.ports import EvalSpec
from tracks_dagster.projects.project import requirement_of
from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import DataRejected
from tracks_dagster.track.track import code_key
from tracks_dagster.training.data import data_folder, load_snapshot
from tracks_dagster.training.saves.handoff import write_checkpoint

GPT_TRAIN, GPT_MODEL, GPT_DATA = import_example("gpt", "train", "model", "data")
TABULAR_MODEL, TABULAR_DATA = import_example("tabular", "model", "data")


@pytest.mark.parametrize("name", ["gpt", "tabular"])
def test_an_example_learns_and_is_evaluated_alike_every_time(tmp_path: Path, name: str) -> None:
    run = TrainingRun(tmp_path, family=name, steps=60, every_steps=None, lr=0.01)
    run.train_to_the_end()
    losses = [line["loss"] for line in run.steps(1).values()]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    metrics = [measured(run, tmp_path / each) for each in ("first", "second")]
    assert metrics[0] == metrics[1]
    assert metrics[0]["loss"] < losses[0]
    promotion = example(name).promotion
    assert promotion is not None
    assert promotion.metric in metrics[0]


def measured(run: TrainingRun, work: Path) -> dict[str, float]:
    """Return what the example's eval measures of the final checkpoint on what it was trained on."""
    assert run.declared.snapshot is not None
    write_checkpoint(run.store, run.final(), work / "checkpoint", config=run.config)
    data = data_folder(run.store, run.declared.snapshot, cache=work / "cache", folder=work / "data")
    [module] = import_example(run.declared.model_family, "evaluate")
    found = module.evaluate(work / "checkpoint", data)
    return {name: value for name, value in found.items() if name != "seconds"}


def test_the_evaluators_command_leaves_its_result_in_the_store(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=1)
    run.train_to_the_end()
    packed = pack_folder(EXAMPLES / "tabular")
    key = code_key("r", packed.sha256)
    run.store.put(key, packed.data)
    [own] = example("tabular").evals
    asked = requirement_of(example("tabular"), own, run.declared.snapshot, seed=3)
    spec = EvalSpec(
        store_url=run.store.url,
        run_id="r",
        checkpoint=run.final(),
        config=run.config,
        family="tabular",
        snapshot=asked.snapshot,
        suite=asked.suite,
        suite_version=asked.suite_version,
        seed=asked.seed,
        result_key="runs/r/evals/e/1/result.json",
        program=asked.program,
        code_key=key,
    )
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(to_json(spec)))
    command = [sys.executable, "-m", "tracks_dagster.training.evaluate", str(path)]
    subprocess.run(command, check=True, timeout=240)
    result = json.loads(run.store.get(spec.result_key) or b"")
    expected = measured(run, tmp_path / "here")
    assert {**result["metrics"], "samples": result["sample_count"]} == expected
    assert result["environment"]["stored_code_sha256"] == packed.sha256
    assert result["started_at"] <= result["finished_at"]


def test_a_snapshot_with_other_bytes_is_refused(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path)
    snapshot = make_snapshot(run.store, "tabular")
    assert load_snapshot(run.store, snapshot).num_rows == 100
    (key,) = list(run.store.list("datasets/flights/shards/"))
    run.store.put(key, (run.store.get(key) or b"") + b"!")
    with pytest.raises(DataRejected, match=f"{key} has sha256"):
        load_snapshot(run.store, snapshot)
    with pytest.raises(DataRejected, match="is missing"):
        load_snapshot(run.store, SnapshotRef(dataset="flights", snapshot_id="0" * 64))


def test_windows_cover_the_text_and_predict_the_next_byte() -> None:
    table = pa.table({"document": ["a"], "text": ["abcdefgh"]})  # and a line break: 9 bytes
    windows = GPT_DATA.Windows(table, 4)
    assert len(windows) == 2
    pairs = [windows[0], windows[1]]
    assert [bytes(x.tolist()) for x, _ in pairs] == [b"abcd", b"efgh"]
    assert [bytes(y.tolist()) for _, y in pairs] == [b"bcde", b"fgh\n"]
    with pytest.raises(DataRejected, match="9 bytes and one sample needs 17"):
        GPT_DATA.Windows(table, 16)


def test_the_gpt_does_not_see_the_future() -> None:
    torch.manual_seed(0)
    model = GPT_MODEL.Gpt(example_config(SMALL["gpt"])).eval()
    x = torch.randint(0, 256, (1, 8))
    changed = x.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 256
    with torch.no_grad():
        before, after = model(x), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])
    # fresh weights guess every byte alike
    assert math.isclose(GPT_MODEL.loss(model, (x, x)).item(), math.log(256), rel_tol=0.05)


def test_the_classifier_standardises_by_what_it_was_trained_on() -> None:
    table = pa.table({"a": [1.0, 3.0], "same": [5.0, 5.0], "late": [0, 1]})
    config = {"hidden": 2, "layers": 1, "dropout": 0.0}
    model = TABULAR_MODEL.Classifier(*TABULAR_DATA.Rows(table).statistics(), config)
    assert model.state_dict()["mean"].tolist() == [2.0, 5.0]
    assert model.state_dict()["std"].tolist() == [1.0, 1.0]  # never divides by 0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1.0]}, "needs rows, the label 'late'"),
        ({"late": [1]}, "at least one feature"),
        ({"a": [], "late": []}, "has 0 rows"),
        ({"a": ["x"], "late": [1]}, "Column 'a' is string"),
        ({"a": [None, 1.0], "late": [1, 0]}, "1 values missing"),
    ],
)
def test_a_table_that_cannot_be_learned_from_is_refused(
    columns: dict[str, list[object]], message: str
) -> None:
    with pytest.raises(DataRejected, match=message):
        TABULAR_DATA.Rows(pa.table(columns))


@pytest.mark.parametrize(
    ("done", "share"),
    [
        (0, 0.1),  # (0 + 1) / 10
        (9, 1.0),
        (10, 1.0),
        (25, 0.55),  # half of the way: 0.1 + 0.9 · 0.5 · (1 + cos(π/2))
        (40, 0.1),
        (50, 0.1),  # a scheduler that is asked beyond the end stays there
    ],
)
def test_the_learning_rate_warms_up_and_falls_as_a_cosine(done: int, share: float) -> None:
    assert math.isclose(GPT_TRAIN.lr_share(done, {"warmup_steps": 10, "steps": 40}), share)
