"""`tracks curves --tensorboard` and its like, as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.stories import RUN_ID, Story
from tracks_dagster.wings.watch.edge import trackers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tensorboard"


@pytest.mark.usefixtures("story")
def test_it_says_how_many_steps_were_sent_where_and_the_second_time_that_nothing_is_new(
    call: Call, folder: Path
) -> None:
    first = call("curves", RUN_ID, "--tensorboard", str(folder))
    where = f"TensorBoard's folder {folder}, which has it up to step 40"
    assert first.stdout == f"{RUN_ID}: 40 steps to {where}\n"
    assert call("curves", RUN_ID, "--tensorboard", str(folder)).stdout == (
        f"{RUN_ID}: nothing new to {where}\n"
    )
    facts = json.loads(call("curves", RUN_ID, "--tensorboard", str(folder), "--json").stdout)
    assert (facts["steps"], facts["to_step"], facts["is_whole"]) == (0, 40, True)


@pytest.mark.usefixtures("story")
def test_following_ends_with_the_run(call: Call, folder: Path) -> None:
    done = call("curves", RUN_ID, "--tensorboard", str(folder), "--follow")
    assert done.exit_code == 0
    assert "40 steps" in done.stdout


@pytest.mark.usefixtures("story")
def test_a_tracker_that_is_away_keeps_no_other_waiting_and_ends_with_bad_news(
    call: Call, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    away = str(tmp_path / "file" / "below")
    done = call("curves", RUN_ID, "--tensorboard", away)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"tracks: {RUN_ID} cannot be exported to {away}")


@pytest.mark.usefixtures("story")
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--experiment", "e"), "--experiment is of MLflow"),
        (("loss", "--tensorboard", "t"), "A tracker gets every metric"),
        (("--csv", "--tensorboard", "t"), "--csv prints"),
        (("--by", "hours", "--tensorboard", "t"), "--by"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    call: Call, options: tuple[str, ...], problem: str
) -> None:
    refused = call("curves", RUN_ID, *options)
    assert refused.exit_code == 2
    assert problem in refused.stderr


def test_following_waits_for_a_tracker_that_is_away_for_so_long_and_no_longer(
    call: Call, story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "POLL_S", 0.0)
    monkeypatch.setattr(trackers, "AWAY_S_MAX", 0.0)
    (tmp_path / "file").touch()
    away = str(tmp_path / "file" / "below")
    assert call("curves", RUN_ID, "--tensorboard", away, "--follow").exit_code == 1
