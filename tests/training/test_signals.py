"""What a step writes down of itself, from the script's loop to the lines that are read back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.fakes import FakeObjectStore
from tests.training.gangs import TrainingRun
from tests.training.loops import train_linear
from tracks_dagster.attempts.drills import fit_drill, parse_drill
from tracks_dagster.stores.journals import (
    DeviceLine,
    EvaluatedLine,
    RanksLine,
    StepLine,
    parse_line,
)
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.metric_values import RECORDED_METRICS_MAX, few_metrics

STEPS = 12


def run_of(folder: Path, store: FakeObjectStore, *drills: str) -> TrainingRun:
    parsed = tuple(parse_drill(each) for each in drills)
    return TrainingRun(folder, store=store, steps=STEPS, every_steps=None, drills=parsed)


def test_a_step_tells_its_own_time_rate_norm_and_samples(
    tmp_path: Path, store: FakeObjectStore
) -> None:
    run = run_of(tmp_path, store)
    model = nn.Linear(1, 1)
    with run.joined() as a:
        train_linear(a, until=STEPS, model=model)
        assert not model._forward_hooks  # the loop is over
    steps = [parse_line(line) for line in run.journal(1) if line["kind"] == "step"]
    assert len(steps) == STEPS
    for step in steps:
        assert isinstance(step, StepLine)
        assert 0.0 < (step.own_s or 0.0) < step.step_s
        assert step.lr == 0.1
        assert (step.grad_norm or 0.0) > 0.0
        assert step.samples == 12
        assert step.metrics == {}


def test_what_the_script_reports_counts_in_place_of_what_is_measured(
    tmp_path: Path, store: FakeObjectStore
) -> None:
    run = run_of(tmp_path, store)
    with run.joined() as a:
        train_linear(a, until=2, lr=7.0, grad_norm=math.inf, tokens=96)
    (_, line) = run.steps(1).values()
    assert "lr" not in line
    assert "grad_norm" not in line
    assert line["metrics"] == {"lr": 7.0, "tokens": 96.0}
    assert line["non_finite"] == {"grad_norm": "inf"}
    step = parse_line(line)
    assert isinstance(step, StepLine)
    assert (step.lr, step.grad_norm) == (7.0, None)


def test_a_norm_that_is_not_finite_is_reported_as_such(
    tmp_path: Path, store: FakeObjectStore
) -> None:
    run = run_of(tmp_path, store)
    model = nn.Linear(1, 1)
    with run.joined() as a:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        a.register(model=model, optimizer=optimizer)
        for step, _ in a.steps(until=1):
            model.weight.grad = torch.full((1, 1), math.nan)
            optimizer.step()
            nn.init.zeros_(model.weight)  # else the save finds it
            a.report(step, loss=1.0, other=math.nan)
    line = run.steps(1)[1]
    assert run.state.checkpoints[-1].body.non_finite == ("other",)
    assert line["non_finite"] == {"other": "nan", "grad_norm": "nan"}
    assert "own_s" not in line  # no pass was made


def test_of_ten_thousand_metrics_the_first_thousand_are_written_and_the_rest_counted(
    tmp_path: Path, store: FakeObjectStore
) -> None:
    run = run_of(tmp_path, store)
    many = {f"metric_{number:05d}": float(number) for number in range(10_000)}
    with run.joined() as a:
        train_linear(a, until=1, **many)
    line = run.steps(1)[1]
    assert list(line["metrics"]) == list(many)[:1000]
    assert line["metrics_left_out"] == 9000


def test_a_commit_has_what_the_policy_asks_for_before_other_metrics() -> None:
    many = {f"a{number:02d}": 1.0 for number in range(20)}
    metrics = {**many, "val": 2.0, "loss": 3.0, "zeta": 4.0}
    kept = few_metrics(metrics, first=("val", "loss", "zeta", "unreported"))
    assert list(kept) == ["val", "loss", "zeta", *list(many)[: RECORDED_METRICS_MAX - 3]]


def test_every_five_steps_the_ranks_are_written_side_by_side(
    tmp_path: Path, store: FakeObjectStore
) -> None:
    run = run_of(tmp_path, store)
    with run.joined() as a:
        train_linear(a, until=STEPS)
    found = [parse_line(line) for line in run.journal(1) if line["kind"] == "ranks"]
    assert [(each.step, each.over) for each in found if isinstance(each, RanksLine)] == [
        (5, 5),
        (10, 5),
    ]
    first, by_step = found[0], run.steps(1)
    assert isinstance(first, RanksLine)
    for name in ("step_s", "own_s", "data_s"):
        middle = sorted(by_step[step][name] for step in range(1, 6))[2]
        assert getattr(first, name) == (middle,)
    assert first.util == ()  # nobody knows


def test_hooks_are_gone_after_a_loop_that_failed(tmp_path: Path, store: FakeObjectStore) -> None:
    run = run_of(tmp_path, store)
    model = nn.Linear(1, 1)

    def on_step(step: int, model: nn.Module) -> None:
        raise ValueError("as meant")

    with pytest.raises(ValueError, match="as meant"), run.joined() as a:
        train_linear(a, until=STEPS, model=model, on_step=on_step)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_folder_script_tells_of_models_that_it_arms_whenever_it_reports(
    tmp_path: Path, store: FakeObjectStore
) -> None:
    run = run_of(tmp_path, store)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    passes = {1: 1, 2: 3, 3: 1, 4: 3, 5: 1, 6: 3, 7: 1}
    own_s = {}
    with run.joined() as a:
        a.folder()
        a.arm(model)
        a.follow_rate([optimizer], [])
        for step, count in passes.items():
            for _ in range(count):
                model(torch.ones(1)).sum().backward()
            optimizer.step()
            own_s[step] = a._log.own._watch._sum_s  # type: ignore[attr-defined]
            if step in (1, 2):
                a.report(step, loss=1.0)
            a.ends(step)
            if step in (4, 6):
                a.report(step, loss=1.0)
    lines = run.steps(1)
    assert sorted(lines) == [1, 2, 3, 4, 5, 6]  # of the seventh nothing more was reported
    for step, line in lines.items():
        assert line["own_s"] == pytest.approx(own_s[step], abs=1e-6)
        assert line["lr"] == 0.5
        assert line["grad_norm"] > 0.0
        assert "samples" not in line
        assert ("loss" in line) == (step not in (3, 5))
    assert [line["step"] for line in run.journal(1) if line["kind"] == "ranks"] == [5]


def test_drills_flatten_evaluations_and_idle_the_device(
    tmp_path: Path, store: FakeObjectStore
) -> None:
    run = run_of(tmp_path, store, "flat_validation@4", "idle_device@4")
    with run.joined() as a:
        watch = a._launch.journal.watch
        assert watch is not None
        reported: list[object] = []

        def on_step(step: int, model: nn.Module) -> None:
            a.evaluated(step, heldout=10.0 - step, extra=float(step))
            reported.append(watch.look().get("util_percent"))

        train_linear(a, until=6, on_step=on_step)
        line = {"kind": "device", "t": "2026-01-31T02:00:00.000000Z", "step": 6, **watch.look()}
    found = [parse_line(line) for line in run.journal(1) if line["kind"] == "evaluated"]
    heldout = [each.metrics["heldout"] for each in found if isinstance(each, EvaluatedLine)]
    assert heldout == [9.0, 8.0, 7.0, 7.0, 7.0, 7.0]
    assert reported == [None, None, None, 3.0, 3.0, 3.0]
    device = parse_line(line)
    assert isinstance(device, DeviceLine)
    assert device.drill == "idle_device"
    fired = [note.body["text"] for note in run.records(Kind.NOTE)]
    assert sorted(fired) == ["Drill flat_validation@4 fires.", "Drill idle_device@4 fires."]


def test_without_an_evaluation_before_there_is_nothing_to_freeze(
    tmp_path: Path, store: FakeObjectStore
) -> None:
    run = run_of(tmp_path, store, "flat_validation@4")
    with run.joined() as a:
        train_linear(a, until=5)
    (note,) = run.records(Kind.NOTE)
    assert "reported no evaluation" in note.body["data"]["skipped"]


def test_a_slow_rank_shows_in_its_own_time_and_one_whose_data_is_late_in_that(
    tmp_path: Path,
) -> None:
    texts = ("slow@6,rank=1,factor=30", "data_slow@6,rank=0,factor=2")
    config = {"steps": 11, "micro_batch": 2}
    drills = tuple(fit_drill(parse_drill(text), config, {}, ranks=2) for text in texts)
    run = TrainingRun(tmp_path, ranks=2, steps=11, every_steps=None, drills=drills)
    gang = run.train()
    assert gang.exit_codes == [0, 0], gang.log()
    found = [parse_line(line) for line in run.journal(1) if line["kind"] == "ranks"]
    slow = found[-1]
    assert isinstance(slow, RanksLine)
    assert (slow.step, slow.over) == (10, 5)
    own, data = slow.own_s, slow.data_s
    # 30 times its own, and what a step computes: far beyond what a busy machine adds to a median.
    assert (own[1] or 0.0) > 5 * (own[0] or math.inf)
    assert (data[0] or 0.0) > 5 * (data[1] or math.inf)
