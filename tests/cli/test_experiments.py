"""`tracks diff --experiment`: what each run changed from the baseline, and what came of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.histories import History
from tracks_dagster.cli.compare import diff
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import PromotionRule
from tracks_dagster.track.records import Kind
from tracks_dagster.wiring import App, build

RULE = PromotionRule(
    alias="best", suite="heldout-loss", metric="loss", direction="min", threshold=4.0
)


def add(app: App, run_id: str, loss: float, *, lr: float, **declared: object) -> None:
    """Write a run of that learning rate whose final checkpoint has that loss."""
    config = {"steps": 40, "seed": 7, "lr": lr}
    history = History(run_id).declare(promotion=RULE, config=config, **declared)
    history.open().place().restore().commit(40).end("completed", last_step=40)
    history.open_eval(history.state.resumable[-1])
    opened = history.state.evals[-1].opened
    history.end_eval(opened, metrics={"loss": loss}).promote(opened, loss=loss).finish().write_to(
        app.store
    )


@pytest.fixture
def app(home: Path) -> App:
    """An experiment of two runs against a baseline that is outside of it, and another experiment."""
    app = build(Settings.from_environment())
    add(app, "r-0", 3.0, lr=0.1)
    add(app, "r-1", 2.5, lr=0.2, experiment="rates", baseline="r-0")
    add(app, "r-2", 3.25, lr=0.4, experiment="rates", baseline="r-0")
    add(app, "r-3", 9.0, lr=0.1, experiment="depth")
    app.projector.scan()
    return app


def test_each_run_shows_what_it_changed_and_what_came_of_it(app: App, call: Call) -> None:
    shown = call("diff", "--experiment", "rates")
    assert shown.exit_code == 0, shown.output
    assert "rates: 2 runs. Baseline: r-0, named by r-2." in shown.stdout
    lines = [line.split() for line in shown.stdout.splitlines() if line.startswith("r-")]
    assert lines[0][:8] == ["r-0", "the", "baseline", "succeeded", "40", "3", "at", "40"]
    assert lines[1][:7] == ["r-1", "lr", "0.1", "→", "0.2", "succeeded", "40"]
    assert lines[1][7:12] == ["2.5", "at", "40", "-0.5", "good"]
    assert lines[2][7:12] == ["3.25", "at", "40", "+0.25", "bad"]
    assert "r-3" not in shown.stdout
    assert "outside: of no experiment" in shown.stdout


def test_a_promotion_of_another_step_changes_no_verdict(app: App, call: Call) -> None:
    """`tracks promote r-1@20 --alias other` showed the value of step 20, and the verdict turned."""
    for run_id, experiment in (("s-0", None), ("s-1", "steps")):
        history = History(run_id).declare(promotion=RULE, experiment=experiment, baseline="s-0")
        history.open().place().restore().commit(20, metrics={"loss": 3.5}).commit(40)
        history.end("completed", last_step=40)
        for step, loss in ((40, 2.0 if experiment else 3.0), (20, 9.0)):  # the earlier one later
            [ref] = [each for each in history.state.resumable if each.step == step]
            opened = history.open_eval(ref).state.evals[-1].opened
            history.end_eval(opened, metrics={"loss": loss})
            history.promote(opened, loss=loss)
        history.finish().write_to(app.store)
    app.projector.scan()
    found = json.loads(call("diff", "--experiment", "steps", "--json").stdout)
    assert found["measured_by"] == {"suite": "heldout-loss", "metric": "loss", "direction": "min"}
    results = {run["run_id"]: run["result"] for run in found["runs"]}
    assert results["s-0"] == {"value": 3.0, "step": 40, "difference": None, "verdict": ""}
    assert results["s-1"] == {"value": 2.0, "step": 40, "difference": -1.0, "verdict": "good"}


def test_a_checkpoint_in_quarantine_is_not_a_result(app: App, call: Call) -> None:
    history = History("q-1").declare(promotion=RULE, experiment="bad").open().place().restore()
    for step in (20, 40):
        history.commit(step, metrics={"loss": 0.5, "val_loss": 0.75, "lr": 0.1})
        opened = history.open_eval(history.state.resumable[-1]).state.evals[-1].opened
        history.end_eval(opened, metrics={"loss": step / 10})
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, history.state.resumable[-1])
    history.write_to(app.store)
    app.projector.scan()
    [run] = json.loads(call("diff", "--experiment", "bad", "--json").stdout)["runs"]
    assert (run["result"]["value"], run["result"]["step"]) == (2.0, 20)
    assert (run["trained"], run["trained_step"]) == ({"loss": 0.5, "val_loss": 0.75}, 20)
    shown = " ".join(call("diff", "--experiment", "bad").stdout.split())
    assert "eval heldout-loss loss" in shown
    assert "2 at 20" in shown


def test_of_a_large_experiment_it_says_that_only_the_newest_are_shown(
    app: App, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diff, "EXPERIMENT_RUNS_MAX", 1)
    shown = call("diff", "--experiment", "rates").stdout
    assert "rates: the newest 1 of 2 runs. Baseline: r-0, named by r-2." in shown
    assert "r-1" not in shown


def test_it_is_the_same_as_json_with_the_money_where_there_are_prices(
    app: App, home: Path, call: Call
) -> None:
    (home / "prices.yaml").write_text("currency: USD\nper_device_hour: {cpu: 3.6}\n")
    answer = json.loads(call("diff", "--experiment", "rates", "r-2", "--json").stdout)
    assert (answer["baseline"], [run["run_id"] for run in answer["runs"]]) == (
        "r-0",
        ["r-0", "r-2"],
    )
    assert answer["runs"][0]["is_outside"]
    assert answer["runs"][1]["changes"] == [{"name": "lr", "before": 0.1, "after": 0.4}]
    result = {"value": 3.25, "step": 40, "difference": 0.25, "verdict": "bad"}
    assert answer["runs"][1]["result"] == result
    assert answer["runs"][1]["cost"]["currency"] == "USD"
    chosen = json.loads(call("diff", "--experiment", "rates", "--baseline", "r-1", "--json").stdout)
    assert (chosen["baseline"], chosen["baseline_why"]) == ("r-1", "as you chose")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--experiment", "rates", "r-3"), "r-3: outside of the experiment rates, so not compared"),
        (("--experiment", "rates", "--baseline", "r-3"), "r-3: outside of the experiment rates"),
        (("--experiment", "gpt"), "No run belongs to an experiment 'gpt'"),
        (("r-1/a01",), "Name two attempts or checkpoints, or an experiment"),
        (("r-1/a01", "r-2/a01", "--baseline", "r-1"), "Name two attempts or checkpoints"),
    ],
)
def test_what_is_outside_says_so(
    app: App, call: Call, arguments: tuple[str, ...], words: str
) -> None:
    refused = call("diff", *arguments)
    assert refused.exit_code == 2
    assert words in refused.stderr
