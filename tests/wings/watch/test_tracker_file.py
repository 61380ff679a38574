"""The file of trackers: what it may say, and every mistake with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracks_dagster.settings import Settings
from tracks_dagster.track.effects.settings_file import parse_settings
from tracks_dagster.track.errors import SettingsError
from tracks_dagster.wings.watch.edge.tracker_settings import load_trackers
from tracks_dagster.wings.watch.effects.trackers.mlflow import Mlflow
from tracks_dagster.wings.watch.effects.trackers.tensorboard import TensorBoard
from tracks_dagster.wings.watch.effects.trackers.tracker_file import (
    LIST_KEY,
    NamedTracker,
    read_trackers,
)
from tracks_dagster.wings.watch.effects.trackers.wandb import WandbFolder


def read(text: str) -> tuple[NamedTracker, ...]:
    return read_trackers(parse_settings(text, "The file of trackers /t.yaml", list_key=LIST_KEY))


def test_a_list_of_trackers_is_read_in_its_order_each_with_a_cursor_of_its_own() -> None:
    found = read(
        """
- tensorboard: /data/tensorboard
- {mlflow: "http://mlflow:5000", experiment: team-nlp, projects: [gpt]}
- mlflow: http://mlflow:5000
- wandb: /data/wandb
"""
    )
    assert [each.tracker for each in found] == [
        TensorBoard(Path("/data/tensorboard")),
        Mlflow("http://mlflow:5000", "team-nlp"),
        Mlflow("http://mlflow:5000"),
        WandbFolder(Path("/data/wandb")),
    ]
    assert [each.projects for each in found] == [(), ("gpt",), (), ()]
    assert len({each.cursor for each in found}) == 4
    assert all(each.cursor.replace("-", "").isalnum() for each in found)  # part of a key in a store


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- tensorboard: runs", "line 1: trackers[0].tensorboard: 'runs' is not an absolute path"),
        ("- {}", "line 1: trackers[0]: name one of tensorboard, mlflow, wandb in each item; none"),
        (
            "\n- {mlflow: http://m, wandb: /w}",
            "line 2: trackers[0]: name one of tensorboard, mlflow, wandb in each item; mlflow and",
        ),
        (
            "- {wandb: /w, experiment: e}",
            "line 1: trackers[0]: experiment is of mlflow; wandb has none",
        ),
        ("- {mlfow: http://m}", "'mlfow' is not a key; did you mean mlflow?"),
        ("- mlflow: 5000", "trackers[0].mlflow: 5000 is not a name"),
        ("\n".join(f"- wandb: /{n}" for n in range(11)), "11 trackers are more than 10."),
        ("tensorboard: /data", "'tensorboard' is not a key"),
    ],
)
def test_every_mistake_is_reported_with_its_line_and_what_is_valid(text: str, problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(text)
    assert problem in str(caught.value)


def test_a_home_without_the_file_sends_nothing(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, store_url=str(tmp_path / "store"))
    assert load_trackers(settings) == ()
    (tmp_path / "trackers.yaml").write_text("- tensorboard: /data\n")
    assert [each.tracker for each in load_trackers(settings)] == [TensorBoard(Path("/data"))]
