"""What `training.observing` writes of a small loop, and that it changes nothing of it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from tracks_dagster.track import names
from tracks_dagster.training.observing import ELEMENTS_MAX, digest, observed, running_step
from tracks_dagster.wings.lab.conformance.seen import Loader, RankSeen, read_rank

WORDS = "planted"


def train(folder: Path, *, steps: int = 4, again: bool = False) -> torch.Tensor:
    """Train a line with dropout, an average and a scaler; look at it after each step."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.BatchNorm1d(2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    average, scaler = AveragedModel(model), GradScaler("cpu")
    loader = DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=4, shuffle=True)
    for number in range(1, steps + 1):
        running[0] = number
        if again or number in (1, 3):
            batches = iter(loader)
        (x,) = next(batches)
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(model)
        model.eval()
        model(x)  # an evaluation is not an input of the step
        model.train()
        torch.save({"model": model, "means": [torch.ones(1)], "step": number}, folder / "last.pt")
    return torch.cat([each.detach().flatten() for each in model.parameters()])


running = [0]


def look_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    again: bool = False,
    every: int = 1,
    **fault: object,
) -> RankSeen:
    """Return what was seen of the loop, which tells of its steps only every so often."""
    asked = {"folder": str(tmp_path / "observed"), "leave_out": [], **fault}
    monkeypatch.setenv(names.ENV_OBSERVE, json.dumps(asked))
    running[0] = 0
    fails = pytest.raises(RuntimeError, match=WORDS) if "fail_step" in fault else nullcontext()
    with fails, observed(lambda: running[0] - (running[0] - 1) % every):
        train(tmp_path, again=again)
    lines = (tmp_path / "observed" / "rank-0.jsonl").read_text().splitlines()
    return read_rank(map(json.loads, lines))


def test_each_step_is_seen_with_what_it_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = look_on(tmp_path, monkeypatch)
    assert list(seen.steps) == [1, 2, 3, 4]
    for number, step in seen.steps.items():
        assert len(step.inputs) == 1
        assert len(step.rows) == 4
        assert step.lr == (0.1,)
        assert step.state.keys() == {
            *("weights", "buffers", "unsaved", "optimizer", "scaler", "trained", "averaged")
        }
        assert step.attributes["training"] == step.attributes["0.weight.requires_grad"] == "True"
        if number > 1:
            before = seen.steps[number - 1]
            assert step.state["weights"] == before.state["trained"]
            assert step.state["optimizer"] != before.state["optimizer"]
            assert step.random["torch"] != before.random["torch"]
            assert step.random["numpy"] == before.random["numpy"]
    assert len({step.inputs for step in seen.steps.values()}) == 4
    # Two epochs of the same eight samples.
    rows = [seen.steps[n].rows for n in (1, 2, 3, 4)]
    assert rows[0] | rows[1] == rows[2] | rows[3]
    assert seen.loaders == (Loader(made=2, given=4, length=2),)
    assert seen.files == {str(tmp_path / "last.pt")}
    assert {"last.pt: model.0.weight", "last.pt: means.0"} <= seen.saved.keys()
    assert not any("step" in name for name in seen.saved)


def test_looking_on_changes_nothing_and_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (nn.Module.__call__, DataLoader.__iter__, GradScaler.step, torch.save)
    alone = train(tmp_path)
    asked = {"folder": str(tmp_path / "observed"), "leave_out": []}
    monkeypatch.setenv(names.ENV_OBSERVE, json.dumps(asked))
    with observed(lambda: running[0]):
        assert nn.Module.__call__ is not before[0]
        watched = train(tmp_path)
    assert torch.equal(alone, watched)
    assert (nn.Module.__call__, DataLoader.__iter__, GradScaler.step, torch.save) == before


def test_a_loader_that_is_made_again_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert look_on(tmp_path, monkeypatch, again=True).loaders == (
        Loader(made=4, given=4, length=2),
    )


def test_a_step_fails_and_weights_are_nan_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = look_on(tmp_path, monkeypatch, fail_step=2, fail_words=WORDS)
    assert (failed.is_played, list(failed.steps)) == (True, [1, 2])
    assert failed.steps[2].inputs == ()
    (tmp_path / "third").mkdir()
    third = look_on(tmp_path / "third", monkeypatch, every=3, fail_step=2, fail_words=WORDS)
    assert (third.is_played, list(third.steps)) == (True, [1, 4])
    (tmp_path / "nan").mkdir()
    nan = look_on(tmp_path / "nan", monkeypatch, nan_step=3)
    assert nan.is_played
    # The scaler leaves these updates out.
    assert [n for n, step in nan.steps.items() if "trained" in step.state] == [1, 2]


def test_a_digest_is_of_bytes_and_of_a_part_of_what_is_large() -> None:
    one, other = torch.tensor([1.0, -2.0]), torch.tensor([1.0, 2.0])
    assert digest([one]) == digest([one.clone()])
    assert digest([one])[0] != digest([other])[0]
    assert digest([one])[1] == digest([other])[1] == 3.0
    large = torch.zeros(4 * ELEMENTS_MAX)
    assert digest([large])[0] == digest([torch.zeros(ELEMENTS_MAX)])[0]
    assert digest([torch.tensor([1.0, float("nan")])])[1] == -1.0
    assert digest([torch.tensor(True), torch.tensor([], dtype=torch.int64)])[1] == 0.0


def test_a_mask_that_a_model_makes_again_is_not_a_state_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Masked(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.register_buffer("mask", torch.rand(2), persistent=False)
            return super().forward(x * self.mask)

    asked = {"folder": str(tmp_path), "leave_out": []}
    monkeypatch.setenv(names.ENV_OBSERVE, json.dumps(asked))
    model = nn.Sequential(Masked(2, 2), nn.BatchNorm1d(2))
    with observed(lambda: running[0]):
        for running[0] in (1, 2, 3):
            model(torch.ones(4, 2))
            model[1].running_mean.zero_()
            model[1].running_var.fill_(1.0)
            model[1].num_batches_tracked.zero_()
    seen = read_rank(map(json.loads, (tmp_path / "rank-0.jsonl").read_text().splitlines()))
    assert len({step.state["buffers"] for step in seen.steps.values()}) == 1


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ("", 5),
        ('{"step": 5, "loss": 1.0}\n', 6),
        ('{"step": 10, "loss": NaN}\n{"step": 20}\n', 21),  # every tenth
        ('{"step": 5}\nno step\n[]\n{"step": 6, "lo', 6),  # the last line is being written
    ],
)
def test_a_command_is_in_the_step_after_the_last_that_it_reported(
    metrics: str, expected: int, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    assert running_step(path, 4) == 5
    path.write_text(metrics)
    assert running_step(path, 4) == expected


def test_nothing_is_looked_at_where_nobody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(names.ENV_OBSERVE, raising=False)
    call = nn.Module.__call__
    with observed(lambda: 1):
        assert nn.Module.__call__ is call
