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
    assert lines[0][:6] == ["r-0", "the", "baseline", "succeeded", "40", "3"]
    assert lines[1][:9] == ["r-1", "lr", "0.1", "→", "0.2", "succeeded", "40", "2.5", "-0.5"]
    assert lines[1][9] == "good"
    assert lines[2][7:10] == ["3.25", "+0.25", "bad"]
    assert "r-3" not in shown.stdout
    assert "outside: of no experiment" in shown.stdout


def test_of_a_large_experiment_it_says_that_only_the_newest_are_shown(
    app: App, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diff, "EXPERIMENT_RUNS_MAX", 1)
    shown = call("diff", "--experiment", "rates").stdout
    assert "rates: the newest 1 run. Baseline: r-0, named by r-1." in shown
    assert "r-2" not in shown


def test_it_is_the_same_as_json_with_the_money_where_there_are_prices(
    app: App, home: Path, call: Call
) -> None:
    (home / "prices.yaml").write_text("currency: USD\nper_device_hour: {cpu: 3.6}\n")
    told = json.loads(call("diff", "--experiment", "rates", "r-2", "--json").stdout)
    assert (told["baseline"], [run["run_id"] for run in told["runs"]]) == ("r-0", ["r-0", "r-2"])
    assert told["runs"][0]["is_outside"]
    assert told["runs"][1]["changes"] == [{"name": "lr", "before": 0.1, "after": 0.4}]
    assert told["runs"][1]["difference"] == [0.25, "bad"]
    assert told["runs"][1]["cost"]["currency"] == "USD"
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
