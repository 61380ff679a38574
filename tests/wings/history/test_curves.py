"""Points of other systems become curves where ours do, and a step that falls a new attempt."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from tests.wings.history.worlds import BEGIN, ImportWorld, import_world
from tracks_dagster.curves.effects.reading import read_curves
from tracks_dagster.curves.effects.rows import kept_rows
from tracks_dagster.reasons.evidence import Evidence
from tracks_dagster.reasons.user_rules import NO_RULES
from tracks_dagster.wings.history.curves import PIECES_MAX, parted, point, segments
from tracks_dagster.wings.history.effects.importing import Imported, import_history
from tracks_dagster.wings.history.source import Point, Read, SourceAttempt

AT = BEGIN.timestamp()
WHOLE = SourceAttempt(
    id="one",
    run="one",
    title="one",
    submitted_at=BEGIN,
    started_at=BEGIN,
    ended_at=datetime.fromtimestamp(AT + 1000, BEGIN.tzinfo),
    evidence=Evidence(run_id="", attempt_id=0, launch_id=None, ranks=()),
    row={},
    succeeded="it said so",
)


class Given:
    """A source that has these attempts."""

    system = origin = "given"

    def __init__(self, *attempts: Read) -> None:
        self._attempts = attempts

    def read(self) -> list[Read]:
        return list(self._attempts)


def add(world: ImportWorld, *attempts: Read) -> Imported:
    return import_history(world.tracks, Given(*attempts), "own", rules=NO_RULES, by="tests")


def points(*steps: int, name: str = "loss") -> list[Point]:
    return [point(name, step, 2.0 / (step + 1), AT + 10 * at) for at, step in enumerate(steps)]


def test_the_points_of_an_imported_run_are_curves_as_ours_are(tmp_path: Path) -> None:
    world = import_world(tmp_path)
    given = [*points(0, 1, 2, 3, 2, 3, 4), point("val", 4, math.nan, AT + 65)]
    add(world, *parted(WHOLE, given))
    assert world.runs() == {"own.one": ["unknown", "completed"]}
    curves = read_curves(world.tracks, "own.one", cache=tmp_path / "cache")
    loss = curves.find("loss")
    assert loss is not None
    found = {
        (each.attempt_id, each.is_kept): [round(2.0 / p.value - 1) for p in each.points]
        for each in loss.series
    }
    assert found == {(1, True): [0, 1], (1, False): [2, 3], (2, True): [2, 3, 4]}
    assert loss.last is not None
    assert loss.last.at == AT + 65  # of a step the newest
    rows = list(kept_rows(world.tracks, "own.one", cache=None).rows)
    assert [each.step for each in rows] == [0, 1, 2, 3, 4]
    assert math.isnan(rows[-1].values["val"])
    newest = world.ledger.query("select newest_metrics_json as m from training_runs")
    assert newest == [{"m": '{"loss":0.4}'}]


@pytest.mark.parametrize("by", ["hours", "wall"])
def test_a_run_without_a_loss_lies_on_the_axes_of_time(tmp_path: Path, by: str) -> None:
    world = import_world(tmp_path)
    add(world, *parted(WHOLE, points(1, 2, 3, name="mAP")))
    curves = read_curves(world.tracks, "own.one", cache=None, by=by)
    assert [round(p.x * 3600) for c in curves.curves for s in c.series for p in s.points] == [
        0,
        10,
        20,
    ]


def test_metrics_with_steps_of_their_own_do_not_part_a_run() -> None:
    epochs = [point("epoch_loss", n, 1.0, AT + 25 * n) for n in (0, 1, 2)]
    found = list(parted(WHOLE, [*points(0, 10, 20, 30), *epochs]))
    assert [(each.id, each.last_step, each.succeeded) for each in found] == [
        ("one/1", 30, "it said so")
    ]


def test_several_writers_of_one_metric_are_one_attempt() -> None:
    found = list(parted(WHOLE, points(*[5, 1] * (PIECES_MAX + 1))))
    assert len(found) == 1
    assert "several wrote at once" in found[0].unknown["attempts"]


def test_a_long_curve_is_several_segments_of_one_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracks_dagster.wings.history.curves.SEGMENT_BYTES", 500)
    assert len(list(segments(points(*range(50))))) > 5
    world = import_world(tmp_path)
    add(world, *parted(WHOLE, points(*range(50))))
    curves = read_curves(world.tracks, "own.one", cache=tmp_path / "cache")
    assert [len(s.points) for c in curves.curves for s in c.series] == [50]


def test_what_is_secret_in_a_config_is_not_stored(tmp_path: Path) -> None:
    world = import_world(tmp_path)
    config = {"api_token": "hunter2hunter2", "optimizer": {"lr": 1e-3, "b": (1, 2)}}
    add(world, replace(WHOLE, config=config, row={"config": config}))
    stored = world.ledger.query("select newest_config_json as c from training_runs")
    assert stored == [{"c": '{"api_token":"[hidden]","optimizer.b":"(1, 2)","optimizer.lr":0.001}'}]
    assert b"hunter2" not in b"".join(world.store.get(k) or b"" for k in world.store.list(""))


def test_a_config_of_any_size_is_imported_as_far_as_a_record_has_room(tmp_path: Path) -> None:
    world = import_world(tmp_path)
    config = {f"key{n}": "x" * 1000 for n in range(1000)}
    metrics = {f"metric{n}": n / 7 for n in range(1000)}
    add(world, replace(WHOLE, config=config, metrics=metrics))
    assert "for 981 of 1000" in str(
        world.store._histories.run("own.one")[0].unknown  # what is named as not known
    )
    assert world.runs() == {"own.one": ["completed"]}


@pytest.mark.parametrize(
    ("step", "value", "at"),
    [(-1, 1.0, AT), (1.5, 1.0, AT), ("1", 1.0, AT), (1, "x", AT), (1, 1.0, -5.0), (1, 1.0, 1e30)],
)
def test_what_is_not_a_point_is_named(step: object, value: object, at: float) -> None:
    with pytest.raises(ValueError, match=r"^its (step|value|time) is"):
        point("loss", step, value, at)
