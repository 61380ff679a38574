"""A resume trains with what its own config builds, and says what that changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.utils.data import DataLoader, TensorDataset

from tests.training.gangs import TrainingRun
from tracks_dagster.track.errors import CheckpointMismatch
from tracks_dagster.training.attempt import Attempt

Build = Callable[[dict[str, Any], nn.Module], dict[str, Any]]
Numbers = dict[int, list[dict[str, Any]]]  # of each group, by step

CUT = 4


def sgd(c: dict[str, Any], model: nn.Module, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        model.parameters(),
        lr=c["lr"],
        momentum=c.get("momentum", 0.9),
        weight_decay=c.get("wd", 0.0),
    )


def scheduled(make: Callable[[torch.optim.Optimizer, dict[str, Any]], Any]) -> Build:
    def build(c: dict[str, Any], model: nn.Module) -> dict[str, Any]:
        optimizer = sgd(c, model)
        return {"optimizer": optimizer, "scheduler": make(optimizer, c)}

    return build


def train(a: Attempt, build: Build, *, until: int) -> Numbers:
    """Train a line; return the optimizer's numbers as each step used them."""
    torch.manual_seed(5)
    x = torch.linspace(-1, 1, 100).unsqueeze(1)
    model = nn.Linear(1, 1)
    parts = build(dict(a.config), model)
    a.register(model=model, **parts)
    loader = DataLoader(TensorDataset(x), batch_sampler=a.sampler(100, seed=5, global_batch=4))
    seen: Numbers = {}
    for step, (batch,) in a.steps(loader, until=until):
        used = [o for o in parts.values() if isinstance(o, torch.optim.Optimizer)]
        seen[step] = [
            {k: v for k, v in g.items() if k != "params"} for o in used for g in o.param_groups
        ]
        for optimizer in used:
            optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        for optimizer in used:
            optimizer.step()
        scheduler = parts.get("scheduler")
        if isinstance(scheduler, schedules.ReduceLROnPlateau):
            scheduler.step(1.0)
        elif scheduler is not None:
            scheduler.step()
        a.report(step, loss=loss)
    return seen


def numbers(folder: Path, build: Build, *, until: int = 8, **config: Any) -> Numbers:
    run = TrainingRun(folder, steps=until)
    with run.joined(run.open(resume_step=None, **config)) as a:
        return train(a, build, until=until)


def resumed(
    folder: Path, build: Build, before: dict[str, Any], after: dict[str, Any], *, until: int = 8
) -> tuple[Numbers, TrainingRun]:
    """Train to step CUT with one config, then on with another."""
    run = TrainingRun(folder, steps=until)
    with run.joined(run.open(resume_step=None, **before)) as a:
        train(a, build, until=CUT)
    with run.joined(run.open(**{**before, **after})) as a:
        return train(a, build, until=until), run


def changed(run: TrainingRun) -> str:
    restored = run.state.attempts[-1].restored
    assert restored is not None
    return "; ".join(restored.changed)


@pytest.mark.parametrize(
    ("key", "value", "name"), [("wd", 0.5, "weight_decay"), ("momentum", 0.5, "momentum")]
)
def test_another_number_of_the_optimizer_is_used_and_said(
    tmp_path: Path, key: str, value: float, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    build: Build = lambda c, model: {"optimizer": sgd(c, model)}  # noqa: E731
    seen, run = resumed(tmp_path, build, {"lr": 0.01}, {key: value})
    assert {each[0][name] for each in seen.values()} == {value}
    assert f"{name} " in changed(run)
    assert f"→ {value}" in changed(run)
    assert f"{name} " in capsys.readouterr().err


def test_betas_are_used_and_said(tmp_path: Path) -> None:
    build: Build = lambda c, model: {  # noqa: E731
        "optimizer": torch.optim.AdamW(model.parameters(), lr=c["lr"], betas=(0.9, c["beta2"]))
    }
    seen, run = resumed(tmp_path, build, {"lr": 0.01, "beta2": 0.999}, {"beta2": 0.95})
    assert {each[0]["betas"] for each in seen.values()} == {(0.9, 0.95)}
    assert "betas.1 0.999 → 0.95" in changed(run)


def test_each_optimizer_follows_its_own_rate(tmp_path: Path) -> None:
    def build(c: dict[str, Any], model: nn.Module) -> dict[str, Any]:
        other = nn.Linear(1, 1)
        other.bias.grad = other.weight.grad = None
        return {
            "optimizer": torch.optim.Adam(model.parameters(), lr=c["lr"]),
            "head": other,
            "optimizer_d": torch.optim.Adam(other.parameters(), lr=c["lr_d"]),
        }

    before = {"lr": 0.01, "lr_d": 0.1}
    seen, run = resumed(tmp_path, build, before, {"lr": 0.001})
    assert {tuple(g["lr"] for g in each) for each in seen.values()} == {(0.001, 0.1)}
    assert changed(run) == "optimizer: lr 0.01 → 0.001"


def warm_up(o: torch.optim.Optimizer, c: dict[str, Any]) -> Any:
    steps = c["steps_"]
    return schedules.LambdaLR(
        o, lambda s: min(1.0, s / 3) * 0.5 * (1 + math.cos(math.pi * s / steps))
    )


def two_phases(o: torch.optim.Optimizer, c: dict[str, Any]) -> Any:
    first = schedules.LinearLR(o, 0.1, total_iters=2)
    return schedules.SequentialLR(
        o, [first, schedules.CosineAnnealingLR(o, T_max=c["steps_"] - 2)], milestones=[2]
    )


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer, dict[str, Any]], Any]] = {
    "cosine": lambda o, c: schedules.CosineAnnealingLR(o, T_max=c["steps_"], eta_min=1e-4),
    "one-cycle": lambda o, c: schedules.OneCycleLR(o, max_lr=0.4, total_steps=c["steps_"]),
    "polynomial": lambda o, c: schedules.PolynomialLR(o, total_iters=c["steps_"]),
    "step": lambda o, c: schedules.StepLR(o, step_size=c["steps_"] // 4),
    "multi-step": lambda o, c: schedules.MultiStepLR(o, milestones=[c["steps_"] // 2]),
    "linear": lambda o, c: schedules.LinearLR(o, 0.1, total_iters=c["steps_"]),
    "cyclic": lambda o, c: schedules.CyclicLR(o, 0.01, 0.1, step_size_up=c["steps_"] // 4),
    "restarts": lambda o, c: schedules.CosineAnnealingWarmRestarts(o, T_0=c["steps_"] // 2),
    "lambda": warm_up,
    "sequential": two_phases,
    "chained": lambda o, c: schedules.ChainedScheduler(
        [
            schedules.ConstantLR(o, 0.5, total_iters=3),
            schedules.CosineAnnealingLR(o, T_max=c["steps_"]),
        ]
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("change", [{"steps_": 24}, {"lr": 0.003}, {"steps_": 24, "lr": 0.003}])
def test_a_schedule_stands_where_that_of_a_run_with_the_new_config_would(
    tmp_path: Path, name: str, change: dict[str, Any]
) -> None:
    """The second attempt's rates are those of a run that was built so from its first step."""
    build, before = scheduled(SCHEDULES[name]), {"lr": 0.01, "steps_": 12}
    seen, run = resumed(tmp_path / "cut", build, before, change)
    calm = numbers(tmp_path / "calm", build, **{**before, **change})
    assert seen == {step: calm[step] for step in seen}
    assert changed(run) or calm == numbers(tmp_path / "old", build, **before)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_of_the_same_config_is_restored_to_the_bit(tmp_path: Path, name: str) -> None:
    build, before = scheduled(SCHEDULES[name]), {"lr": 0.01, "steps_": 12}
    seen, run = resumed(tmp_path / "cut", build, before, {"unused": 1})
    calm = numbers(tmp_path / "calm", build, **before)
    assert seen == {step: calm[step] for step in seen}
    assert changed(run) == ""


def test_what_follows_a_metric_takes_the_new_numbers_from_now_on(tmp_path: Path) -> None:
    build = scheduled(
        lambda o, c: schedules.ReduceLROnPlateau(o, patience=c["patience"], factor=0.5)
    )
    seen, run = resumed(tmp_path, build, {"lr": 0.08, "patience": 0}, {"patience": 9, "lr": 0.04})
    # Step 1 sets the best value, so three of four steps halve the rate; then half of that.
    assert {each[0]["lr"] for each in seen.values()} == {0.08 / 8 / 2}
    assert "patience 0 → 9, from now on" in changed(run)


@pytest.mark.parametrize("floor", [0.03, [0.03]])
def test_the_new_floor_of_what_follows_a_metric_holds(tmp_path: Path, floor: Any) -> None:
    build = scheduled(
        lambda o, c: schedules.ReduceLROnPlateau(o, patience=0, factor=0.5, min_lr=c["floor"])
    )
    seen, run = resumed(tmp_path, build, {"lr": 0.08, "floor": 0.04}, {"floor": floor})
    assert min(each[0]["lr"] for each in seen.values()) == 0.03
    assert "min_lr 0.04 → " in changed(run)


def test_a_rate_that_the_script_set_itself_keeps_its_ratio(tmp_path: Path) -> None:
    """A schedule that does not say how the rate came about is not replayed over it."""

    def build(c: dict[str, Any], model: nn.Module) -> dict[str, Any]:
        optimizer = sgd(c, model)

        class Halved(schedules.LRScheduler):
            def get_lr(self) -> list[float]:
                lower = 0.5 if self.last_epoch == 2 and not c.get("again") else 1.0
                return [group["lr"] * lower for group in self.optimizer.param_groups]

        return {"optimizer": optimizer, "scheduler": Halved(optimizer)}

    seen, run = resumed(tmp_path, build, {"lr": 0.08}, {"lr": 0.04, "again": True})
    assert {each[0]["lr"] for each in seen.values()} == {0.02}
    assert changed(run) == "optimizer: lr 0.08 → 0.04"


def test_what_the_first_step_uses_is_in_the_record(tmp_path: Path) -> None:
    build = scheduled(SCHEDULES["cosine"])
    seen, run = resumed(tmp_path, build, {"lr": 0.01, "steps_": 12}, {"steps_": 24, "wd": 0.1})
    first, second = (attempt.restored for attempt in run.state.attempts)
    assert first is not None
    assert second is not None
    assert first.in_use is not None
    assert second.in_use is not None
    assert first.in_use["optimizer"][0]["weight_decay"] == 0.0
    [group] = second.in_use["optimizer"]
    assert (group["weight_decay"], group["parameters"]) == (0.1, 2)
    assert group["lr"] == seen[CUT + 1][0]["lr"]
    assert second.in_use["scheduler"]["kind"] == "CosineAnnealingLR"
    assert second.in_use["scheduler"]["T_max"] == 24


def test_a_scaler_follows_its_numbers_and_keeps_its_scale(tmp_path: Path) -> None:
    scales = []

    def build(c: dict[str, Any], model: nn.Module) -> dict[str, Any]:
        scaler = torch.amp.GradScaler("cpu", init_scale=c["scale"], growth_interval=c["interval"])
        scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
        scales.append(scaler)
        return {"optimizer": sgd(c, model), "scaler": scaler}

    before = {"lr": 0.01, "scale": 8.0, "interval": 100}
    _, run = resumed(tmp_path, build, before, {"scale": 64.0, "interval": 7})
    assert (scales[1].get_scale(), scales[1].get_growth_interval()) == (8.0, 7)
    assert changed(run) == "scaler: growth_interval 100 → 7"


def test_what_was_thawed_in_the_loop_stays_thawed(tmp_path: Path) -> None:
    models = []

    def build(c: dict[str, Any], model: nn.Module) -> dict[str, Any]:
        first = c.get("first", True)
        model.bias.requires_grad_(False)
        models.append(model)
        optimizer = sgd(c, model)
        if first:
            optimizer.register_step_post_hook(lambda *_: model.bias.requires_grad_(True))
        return {"optimizer": optimizer}

    resumed(tmp_path, build, {"lr": 0.01}, {"first": False})
    assert models[1].bias.requires_grad


def test_a_part_that_the_loop_put_into_evaluation_mode_stays_so(tmp_path: Path) -> None:
    models = []

    def build(c: dict[str, Any], model: nn.Module) -> dict[str, Any]:
        beside = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
        models.append(beside)
        optimizer = sgd(c, model)
        if c.get("first", True):
            optimizer.register_step_post_hook(lambda *_: beside[0].eval() and None)
        return {"optimizer": optimizer, "beside": beside}

    resumed(tmp_path, build, {"lr": 0.01}, {"first": False})
    assert [part.training for part in models[1].modules()] == [True, False, True]


@pytest.mark.parametrize(("before", "after"), [(None, True), (True, None)])
def test_a_number_that_was_none_is_followed(
    tmp_path: Path, before: bool | None, after: bool | None
) -> None:
    build: Build = lambda c, model: {  # noqa: E731
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, foreach=c["each"])
    }
    seen, run = resumed(tmp_path, build, {"each": before}, {"each": after})
    assert {each[0]["foreach"] for each in seen.values()} == {after}
    assert changed(run) == f"optimizer: foreach {before} → {after}"


def test_a_drop_that_moved_is_seen_wherever_it_is(tmp_path: Path) -> None:
    build = scheduled(
        lambda o, c: schedules.LambdaLR(o, lambda step: 1.0 if step < c["drop"] else 0.1)
    )
    seen, run = resumed(tmp_path, build, {"lr": 0.01, "drop": 3}, {"drop": 1000})
    assert {each[0]["lr"] for each in seen.values()} == {0.01}
    assert changed(run) == "scheduler: it is built otherwise, replayed to where it was"


@pytest.mark.parametrize(
    ("then", "now", "why"),
    [
        ("SGD", "AdamW", "optimizer is a AdamW and the checkpoint is of a SGD"),
        ("Adam", "RAdam", "optimizer is a RAdam and the checkpoint is of a Adam"),
        ("Adam", "amsgrad", "amsgrad False → True needs a state that the checkpoint lacks"),
    ],
)
def test_another_kind_of_optimizer_is_refused_by_name(
    tmp_path: Path, then: str, now: str, why: str
) -> None:
    def build(c: dict[str, Any], model: nn.Module) -> dict[str, Any]:
        if c["kind"] == "amsgrad":
            return {"optimizer": torch.optim.Adam(model.parameters(), amsgrad=True)}
        return {"optimizer": getattr(torch.optim, c["kind"])(model.parameters())}

    with pytest.raises(CheckpointMismatch, match=why):
        resumed(tmp_path, build, {"kind": then}, {"kind": now})


def test_groups_are_named_by_their_number(tmp_path: Path) -> None:
    def build(c: dict[str, Any], model: nn.Module) -> dict[str, Any]:
        groups = [
            {"params": [model.weight], "lr": c["lr"]},
            {"params": [model.bias], "lr": c["lr"] / 10, "weight_decay": c["wd"]},
        ]
        return {"optimizer": torch.optim.SGD(groups, lr=1.0)}

    _, run = resumed(tmp_path, build, {"lr": 0.1, "wd": 0.0}, {"lr": 0.2, "wd": 0.5})
    assert changed(run).split("; ") == [
        "optimizer, group 0: lr 0.1 → 0.2",
        "optimizer, group 1: lr 0.01 → 0.02",
        "optimizer, group 1: weight_decay 0 → 0.5",
    ]


@pytest.mark.parametrize(("then", "now"), [("both", "each"), ("each", "both"), ("both", "one")])
def test_parameters_that_are_grouped_otherwise_are_refused_by_name(
    tmp_path: Path, then: str, now: str
) -> None:
    def build(c: dict[str, Any], model: nn.Module) -> dict[str, Any]:
        both = {"params": [model.weight, model.bias]}
        one, other = {"params": [model.weight]}, {"params": [model.bias]}
        groups = {"both": [both], "each": [one, other], "one": [one]}[c["groups"]]
        return {"optimizer": torch.optim.Adam(groups, lr=0.1)}

    says = r"no group of exactly|group of exactly .* this one lacks|has state of bias"
    with pytest.raises(CheckpointMismatch, match=says):
        resumed(tmp_path, build, {"groups": then}, {"groups": now})


def test_a_number_of_a_state_of_ones_own_is_said_not_to_be_used(tmp_path: Path) -> None:
    class Average:
        def __init__(self, decay: float) -> None:
            self.decay = decay

        def state_dict(self) -> dict[str, Any]:
            return {"decay": self.decay}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.decay = state["decay"]

    build: Build = lambda c, model: {  # noqa: E731
        "optimizer": sgd(c, model),
        "average": Average(c["decay"]),
    }
    _, run = resumed(tmp_path, build, {"lr": 0.1, "decay": 0.9}, {"decay": 0.99})
    assert changed(run) == (
        "average: decay 0.9 → 0.99 is not used: what the checkpoint has of it holds"
    )


def test_a_schedule_whose_position_nobody_can_read_is_not_played_again(tmp_path: Path) -> None:
    class Own(schedules.LRScheduler):
        def __init__(self, optimizer: torch.optim.Optimizer, lowest: float) -> None:
            self.lowest = lowest
            super().__init__(optimizer)

        def get_lr(self) -> list[float]:
            return [group["lr"] for group in self.optimizer.param_groups]

        def state_dict(self) -> dict[str, Any]:
            return {"lowest": self.lowest}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.lowest = state_dict["lowest"]

    build = scheduled(lambda o, c: Own(o, c["lowest"]))
    seen, run = resumed(tmp_path, build, {"lr": 0.08, "lowest": 0.1}, {"lr": 0.04, "lowest": 0.2})
    assert {each[0]["lr"] for each in seen.values()} == {0.04}
    assert "scheduler: lowest 0.1 → 0.2, from now on" in changed(run)
