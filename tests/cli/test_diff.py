"""Two attempts, or two checkpoints, as a person reads them side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from tests.bodies import EVAL_RESULT, HELDOUT
from tests.cli.conftest import Call
from tests.fakes import FakeEvaluator, FakeObjectStore
from tests.histories import History
from tests.stories import RUN_ID, Story
from tests.visitors import Visitor
from tracks_dagster.evals.effects.running import run_eval
from tracks_dagster.settings import Settings
from tracks_dagster.track.addressed import write_addressed
from tracks_dagster.track.bodies import EvalOpened
from tracks_dagster.track.records import Kind, sha256_hex
from tracks_dagster.wings.watch.board.effects.serving import guarded
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wiring import build


@pytest.fixture
def evaluated(story: Story) -> Story:
    """The story, with its first checkpoint evaluated by another version of the suite."""
    first = story.history.state.checkpoints[0].ref
    opened = EvalOpened(
        eval_id=f"heldout-loss@{first.step}",
        number=1,
        checkpoint=first,
        suite="heldout-loss",
        suite_version="2",
        snapshot=HELDOUT,
        seed=7,
        decision="To compare.",
        decided_by="tests",
    )
    story.history.add(Kind.EVAL_OPENED, opened).end_eval(opened)
    story.write_tracks()
    build(Settings.from_environment()).projector.scan()
    return story


def test_two_attempts_are_reported_with_what_both_descend_from(story: Story, call: Call) -> None:
    answer = call("diff", f"{RUN_ID}/a01", f"{RUN_ID}/a03")
    assert answer.exit_code == 0
    assert f"Both descend from {RUN_ID}@20 (attempt 1): A went 3 steps beyond it" in answer.stdout
    assert "Samples that both consumed alike: 480" in answer.stdout
    lines = [line.split() for line in answer.stdout.splitlines()]
    assert ["config", "accumulation", "6", "12"] in lines
    assert ["micro_batch", "4", "2"] in lines
    assert ["placement", "the", "same"] in lines


def test_metrics_of_different_evals_are_refused_with_words_and_shown_by_force(
    evaluated: Story, call: Call
) -> None:
    at = f"{RUN_ID}@10", f"{RUN_ID}@40"
    answer = call("diff", *at)
    assert answer.exit_code == 1
    assert "not comparable: suite v2 against v1" in answer.stdout
    assert "--force" in answer.stdout
    assert "3.25" not in answer.stdout
    assert "training loss" in answer.stdout  # the rest is shown anyway
    forced = call("diff", *at, "--force")
    assert forced.exit_code == 0
    assert "3.25" in forced.stdout
    assert "not comparable: suite v2 against v1" in forced.stdout
    labelled = json.loads(call("diff", *at, "--force", "--json").stdout)
    assert labelled["evals"][0]["a"] is not None
    assert "not comparable: suite v2 against v1" in labelled["evals"][0]["label"]
    refused = json.loads(call("diff", *at, "--json").stdout)
    assert refused["evals"][0]["a"] is None
    assert "suite v2 against v1" in refused["refused"][0]


def test_a_run_is_its_last_checkpoint_and_of_a_step_an_attempt_may_be_named(
    story: Story, call: Call
) -> None:
    wanted = call("diff", f"{RUN_ID}@30", f"{RUN_ID}@40").stdout
    assert f"{RUN_ID}@40 (attempt 3)" in wanted
    assert call("diff", f"{RUN_ID}/a02@30", RUN_ID).stdout == wanted
    refused = call("diff", RUN_ID, "gpt-stroy")
    assert (refused.exit_code, "did you mean" in refused.stderr) == (2, True)


def test_a_manifest_names_a_checkpoint(story: Story, call: Call) -> None:
    sha256 = story.history.state.checkpoints[0].ref.manifest_sha256
    answer = call("diff", sha256, f"{RUN_ID}@20")
    assert answer.exit_code == 0
    assert f"A  {RUN_ID}@10 (attempt 1)" in answer.stdout


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        (f"{RUN_ID[:-1]}/a01", f"did you mean {RUN_ID}"),
        (f"{RUN_ID}/a07", f"{RUN_ID}/a03"),
        (f"{RUN_ID}@39", f"{RUN_ID}@40"),
        (f"{RUN_ID}@x", "RUN@STEP"),
        (RUN_ID, "RUN/aNN"),
        ("f" * 64, "No committed checkpoint"),
    ],
)
def test_an_id_that_does_not_exist_offers_the_nearest(
    name: str, hint: str, story: Story, call: Call
) -> None:
    answer = call("diff", name, f"{RUN_ID}/a01")
    assert answer.exit_code == 2
    assert hint in answer.stderr


def test_a_checkpoint_that_was_not_evaluated_is_once_somebody_asks(
    story: Story, call: Call
) -> None:
    first, final = f"{RUN_ID}@20", f"{RUN_ID}@40"
    assert "not evaluated: A (tracks eval RUN@STEP)" in call("diff", first, final).stdout
    asked = call("eval", first, "--by", "ada", "--why", "it looked better")
    assert asked.exit_code == 0
    assert asked.stdout.startswith(f"Asked for heldout-loss@20 of {RUN_ID}, seed 7: attempt 1")
    assert "It waits: no daemon has looked at this store yet" in asked.stderr
    app = build(Settings.from_environment())
    for at, seed, is_new, loss in (
        (first, "7", False, 3.0),
        (first, "8", True, 3.2),
        (final, "7", True, 2.5),  # the story's own was measured on other data
        (final, "8", True, 2.6),
    ):
        [answer] = json.loads(call("eval", at, "--seed", seed, "--json").stdout)
        assert answer["is_new"] is is_new
        result = {**EVAL_RESULT, "metrics": {"loss": loss}}
        evaluator = FakeEvaluator(cast(FakeObjectStore, app.store), result)
        opened = answer["opened"]
        run_eval(app.tracks, evaluator, RUN_ID, opened["eval_id"], opened["number"])
    done = call("eval", first)
    assert done.exit_code == 0
    assert "is done: loss 3. Nothing was written" in done.stdout
    lines = json.loads(call("diff", first, final, "--json").stdout)["evals"]
    [loss_line] = [line for line in lines if line["metric"] == "loss"]
    assert loss_line["a"]["seeds"] == loss_line["b"]["seeds"] == [7, 8]
    assert loss_line["a"]["mean"] == pytest.approx(3.1)
    assert loss_line["a"]["spread"] == pytest.approx(0.1414, abs=1e-4)  # 0.2 / √2
    assert loss_line["is_within_spread"] is False  # 0.55 is more than 2 · √(0.02 / 2 + 0.005 / 2)
    assert call("promote", first, "--why", "the best", "--alias", "best").exit_code == 0


def test_the_code_of_two_attempts_is_compared_in_the_terminal_and_on_the_board(
    home: Path, call: Call
) -> None:
    app = build(Settings.from_environment())
    for name in ("one", "two"):
        data = f"name = '{name}'\n".encode()
        key = f"runs/{name}/trainer/{sha256_hex(data)}.py"
        write_addressed(app.store, key, data)
        History(name).declare(trainer=key).open().write_to(app.store)
    app.projector.scan()
    printed = call("diff", "one", "two/a01", "--code").stdout
    assert "-name = 'one'\n+name = 'two'" in printed
    (file,) = json.loads(call("diff", "one", "two", "--code", "--json").stdout)["files"]
    assert file["what"] == "changed"
    assert "Equal: 1 file." in call("diff", "one", "one", "--code").stdout
    visitor = Visitor(guarded(Sources(app.settings)))
    assert "/compare/code?run=one&amp;run=two" in visitor.get("/compare?run=one&run=two").text
    assert "+name = &#39;two&#39;" in visitor.get("/compare/code?run=one&run=two").text
    assert "Two runs that have an attempt" in visitor.get("/compare/code?run=one").text
