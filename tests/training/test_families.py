"""The shipped families: they learn, and a checkpoint of theirs is evaluated alike every time."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.training.gangs import SMALL, TrainingRun, make_snapshot
from tracks_dagster.data.families import FAMILIES, find_family, resolve_config
from tracks_dagster.data.ports import EvalSpec
from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import DataRejected, InvalidInput
from tracks_dagster.training.data import load_snapshot
from tracks_dagster.training.evaluate import evaluate
from tracks_dagster.training.families import family_code, gpt, tabular
from tracks_dagster.training.main import lr_share

CPU = torch.device("cpu")


def eval_spec(run: TrainingRun) -> EvalSpec:
    family = find_family(run.declared.model_family)
    return EvalSpec(
        store_url=run.store.url,
        run_id="r",
        checkpoint=run.final(),
        config=run.config,
        family=family.name,
        snapshot=run.declared.snapshot,
        suite=family.suite,
        suite_version=family.suite_version,
        seed=3,
        result_key="runs/r/evals/e/1/result.json",
    )


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family_learns_and_is_evaluated_alike_every_time(tmp_path: Path, family: str) -> None:
    run = TrainingRun(tmp_path, family=family, steps=60, every_steps=None, lr=0.01)
    run.train_to_the_end()
    losses = [line["loss"] for line in run.steps(1).values()]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    results = [evaluate(run.store, eval_spec(run), CPU) for _ in range(2)]
    assert results[0]["metrics"] == results[1]["metrics"]
    assert results[0]["metrics"][find_family(family).metric] < losses[0]
    assert results[0]["sample_count"] > 0
    assert len(results[0]["environment_sha256"]) == 64


def test_the_evaluators_command_leaves_its_result_in_the_store(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=1)
    run.train_to_the_end()
    spec = eval_spec(run)
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(to_json(spec)))
    command = [sys.executable, "-m", "tracks_dagster.training.evaluate", str(path)]
    subprocess.run(command, check=True, timeout=240)
    result = json.loads(run.store.get(spec.result_key) or b"")
    assert set(result["metrics"]) >= {"loss", "accuracy"}
    assert result["started_at"] <= result["finished_at"]


def test_an_eval_suite_that_is_not_the_familys_is_refused(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=1)
    run.train_to_the_end()
    with pytest.raises(InvalidInput, match="has no eval suite 'other'"):
        evaluate(run.store, replace(eval_spec(run), suite="other"), CPU)


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
    windows = gpt.samples({"context": 4}, table)
    assert len(windows) == 2
    pairs = [windows[0], windows[1]]
    assert [bytes(x.tolist()) for x, _ in pairs] == [b"abcd", b"efgh"]
    assert [bytes(y.tolist()) for _, y in pairs] == [b"bcde", b"fgh\n"]
    with pytest.raises(DataRejected, match="9 bytes and one sample needs 17"):
        gpt.samples({"context": 16}, table)


def test_the_gpt_does_not_see_the_future() -> None:
    config = resolve_config(find_family("gpt"), SMALL["gpt"], ranks=1)
    torch.manual_seed(0)
    model = gpt.build(config, pa.table({})).eval()
    x = torch.randint(0, 256, (1, 8))
    changed = x.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 256
    with torch.no_grad():
        before, after = model(x), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])
    # fresh weights guess every byte alike
    assert math.isclose(gpt.loss(model, (x, x)).item(), math.log(256), rel_tol=0.05)


def test_the_classifier_standardises_by_what_it_was_trained_on() -> None:
    table = pa.table({"a": [1.0, 3.0], "same": [5.0, 5.0], "late": [0, 1]})
    config = {"hidden": 2, "layers": 1, "dropout": 0.0}
    model = tabular.build(config, table)
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
        tabular.samples({}, pa.table(columns))


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
    assert math.isclose(lr_share(done, {"warmup_steps": 10, "steps": 40}), share)


def test_every_family_has_its_code() -> None:
    for name in FAMILIES:
        assert family_code(name)
    with pytest.raises(InvalidInput, match="no model family 'no'"):
        family_code("no")
