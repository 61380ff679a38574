"""The client in Python: what it declares, waits for, and hands over of what was promoted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.examples import EXAMPLES
from tests.integration.pasting import blocks
from tests.stories import RUN_ID, Story
from tracks_dagster import client
from tracks_dagster.client import Tracks
from tracks_dagster.stores.local import LocalStore
from tracks_dagster.track.errors import (
    InvalidInput,
    ModelOnHold,
    SettingsError,
    StillWaiting,
    StoreUnavailable,
    UnknownRun,
)

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


@pytest.fixture
def tracks(story: Story, home: Path) -> Tracks:
    return Tracks(home=home, by="ann")


def test_the_client_is_imported_without_dagster_torch_or_a_database() -> None:
    program = (
        "import sys, tracks_dagster.client\n"
        "heavy = 'click dagster duckdb numpy pyarrow pydantic sqlalchemy torch yaml'.split()\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_what_is_returned_is_what_the_commands_print_as_json(tracks: Tracks, call: Call) -> None:
    query = "select run_id, state from training_runs"
    assert tracks.run(RUN_ID).status() == json.loads(call("status", RUN_ID, "--json").stdout)[0]
    assert tracks.sql(query) == json.loads(call("sql", query, "--json").stdout)
    lineage = json.loads(call("lineage", f"{RUN_ID}@40", "--json").stdout)
    assert json.loads(json.dumps(tracks.lineage(f"{RUN_ID}@40"))) == lineage


def test_a_submitted_run_is_noted_drained_stopped_and_named_by_who_did_it(
    tracks: Tracks, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    run = tracks.submit(tmp_path / "train.py", run_id="r-1", intent="See it.", config={"lr": 1})
    assert tracks.submit(tmp_path / "train.py", run_id="r-1", config={"lr": 1}).run_id == "r-1"
    with pytest.raises(InvalidInput, match=r"r-1 exists with lr = 1, and .* lr = 2"):
        tracks.submit(tmp_path / "train.py", run_id="r-1", config={"lr": 2})
    with pytest.raises(InvalidInput, match=r"'rank' is not a field of a run; did you mean ranks\?"):
        tracks.submit(tmp_path / "train.py", rank=2)
    run.note("It is slow.")
    run.drain("Make room.")
    with pytest.raises(InvalidInput, match="has not ended"):
        run.retry("Again.")
    run.stop("Enough.")
    state = tracks.stored.run("r-1")
    assert state.declared.owner == "ann"
    assert [(each.body.mode, each.body.by) for each in state.stops] == [
        ("drain", "ann"),
        ("stop", "ann"),
    ]
    assert [each.body.text for each in state.notes] == ["It is slow."]


def test_to_wait_returns_the_outcome_of_a_run_that_is_over(tracks: Tracks) -> None:
    outcome = tracks.run(RUN_ID).wait(5)
    assert (outcome["state"], outcome["promotion"]["alias"]) == ("succeeded", "best")


def test_a_wait_says_what_it_waits_for_and_ends_by_its_bound(
    tracks: Tracks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "POLL_S", 0.01)
    (tmp_path / "train.py").write_text("print('hello')\n")
    run = tracks.submit(tmp_path / "train.py")
    words: list[str] = []
    with pytest.raises(StillWaiting, match=r"is not over after 0.05 s\. .*`tracks up`"):
        run.wait(0.05, report=words.append)
    assert words == [f"{run.run_id}: {run.status()['waiting_for']}"]


def test_a_store_that_is_away_is_waited_for(
    tracks: Tracks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "POLL_S", 0.01)
    run, get, calls = tracks.run(RUN_ID), LocalStore.get, [0]

    def away_at_first(*arguments: object) -> bytes | None:
        calls[0] += 1
        if calls[0] < 4:
            raise StoreUnavailable("The store is away.")
        return get(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalStore, "get", away_at_first)
    words: list[str] = []
    assert run.wait(60, report=words.append)["state"] == "succeeded"
    assert words == [f"{RUN_ID}: The store is away."]


def test_a_promoted_model_is_a_verified_folder_and_its_tensors(tracks: Tracks) -> None:
    model = tracks.promoted("gpt", "best")
    assert (model.name, model.decided_by) == (f"{RUN_ID}@40", "tests")
    folder = model.path()
    assert json.loads((folder / "checkpoint.json").read_text())["step"] == 40
    assert (folder / "lineage.json").is_file()
    before = (folder / "weights.pt").read_bytes()
    assert list(model.state_dict())
    (folder / "weights.pt").write_bytes(b"x" + before[1:])
    assert (model.path() / "weights.pt").read_bytes() == before  # it is made again
    assert model.lineage()["thing"] == f"checkpoint:{RUN_ID}/a03@40"


def test_the_interpreter_of_a_study_is_looked_for_where_its_project_trains(
    tracks: Tracks, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str | None] = []

    def find_code(app: object, project: object, origin: object, *, launcher: str | None) -> None:
        found.append(launcher)
        raise InvalidInput("It is far enough.")

    monkeypatch.setattr("tracks_dagster.submitting.find_code", find_code)
    with pytest.raises(InvalidInput, match="far enough"):
        tracks.tune(
            EXAMPLES / "gpt", {"name": "lr", "metric": "loss", "space": {"lr": [0.1]}, "trials": 1}
        )
    assert found == [None]  # as its file says, not this machine whatever it says


def test_a_study_is_declared_continued_with_a_larger_cap_and_stopped_by_who_did_it(
    tracks: Tracks,
) -> None:
    asked = {
        "name": "lr",
        "metric": "loss",
        "space": {"lr": {"loguniform": [1e-3, 1e-2]}},
        "trials": 2,
    }
    with pytest.raises(SettingsError, match=r"The study cannot be used:\nmetric is missing"):
        tracks.tune(EXAMPLES / "gpt", {"name": "lr", "space": {"lr": [1, 2]}})
    study = tracks.tune(EXAMPLES / "gpt", asked)
    assert tracks.tune(EXAMPLES / "gpt", {**asked, "trials": 3}).name == "lr"
    assert tracks.study("lr").status() == study.status()
    assert tracks.stored.study("lr").declared.trials == 3
    words: list[str] = []
    with pytest.raises(StillWaiting, match=r"lr \(open\): 0 of 3 trials"):
        study.wait(0.01, report=words.append)
    assert words[0] == "lr: 2 trials by random search."
    study.stop("Enough.")
    stopped = tracks.stored.study("lr").stopped
    assert (stopped.by, stopped.why) == ("ann", "Enough.")


def test_an_alias_that_nothing_has_is_refused_with_those_that_there_are(tracks: Tracks) -> None:
    with pytest.raises(UnknownRun, match="has no model 'prod'; it has best"):
        tracks.promoted("gpt", "prod")
    with pytest.raises(UnknownRun, match="nothing of it was promoted yet"):
        tracks.promoted("other", "prod")


def test_a_model_that_was_put_in_quarantine_meanwhile_is_not_handed_over(
    tracks: Tracks, call: Call
) -> None:
    model = tracks.promoted("gpt", "best")
    call("quarantine", f"{RUN_ID}@40", "--why", "bad data")
    for use in (model.path, model.state_dict, lambda: tracks.promoted("gpt", "best")):
        with pytest.raises(ModelOnHold, match=rf"gpt/best may not be used: {RUN_ID}@40"):
            use()
    call("release", f"{RUN_ID}@40", "--why", "it was not")
    assert model.path().is_dir()


def test_what_the_page_shows_works_as_it_is_pasted(
    tracks: Tracks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mine := tmp_path / "mine").mkdir()
    (mine / "tracks.yaml").write_text("name: mine\nentry: train.py\nconfig: {lr: 0.1}\n")
    (mine / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    shown = [each for each in blocks(PAGE.read_text()) if not each.startswith("tracks submit")]
    space: dict[str, object] = {}
    for block in shown:
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), space)
    assert "weights" in space
