"""An object of a history that is lost is found by fsck, and the problem of its run alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.visitors import Visitor
from tests.wings.history.test_curves import WHOLE, Given, add, points
from tests.wings.history.worlds import ImportWorld, import_world
from tracks_dagster.curves.effects.reading import read_curves
from tracks_dagster.curves.effects.rows import kept_rows
from tracks_dagster.reasons.user_rules import NO_RULES
from tracks_dagster.recovery.effects.fsck import fsck
from tracks_dagster.settings import Settings
from tracks_dagster.track import imported
from tracks_dagster.track.errors import ObjectLost
from tracks_dagster.track.track import history_curves_key
from tracks_dagster.training.saves.manifest import verify_checkpoint
from tracks_dagster.wings.history.curves import parted
from tracks_dagster.wings.history.effects.importing import import_history
from tracks_dagster.wings.watch.board.effects.serving import guarded
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wiring import build


@pytest.fixture
def world(tmp_path: Path) -> ImportWorld:
    """A home with one imported run of two attempts."""
    found = import_world(tmp_path)
    add(found, *parted(WHOLE, points(0, 1, 2, 1, 2, 3)))
    return found


def lose(world: ImportWorld, folder: str) -> str:
    """Delete the first object of that folder of the history."""
    key = next(iter(world.store.below.list(f"histories/own/{folder}/")))
    world.store.below.delete(key)
    return key


@pytest.mark.parametrize(
    ("folder", "meaning"),
    [
        ("chunks", "is not known: these have no page"),
        ("uids", "nothing more of this history can be imported"),
        ("curves", "Curves of the attempt of own.one that ended at"),
    ],
)
def test_fsck_names_what_is_lost_of_a_history(
    world: ImportWorld, folder: str, meaning: str
) -> None:
    assert fsck(world.store, world.ledger, verify_checkpoint).findings == ()
    key = lose(world, folder)
    (found,) = fsck(world.store, world.ledger, verify_checkpoint).findings
    assert (found.kind, found.where) == ("history_wrong", key)
    assert meaning in found.meaning
    assert "import the same source again with another --name" in found.to_do


def test_curves_that_are_lost_are_named_and_the_others_shown(
    world: ImportWorld, tmp_path: Path
) -> None:
    key = lose(world, "curves")
    for _ in range(2):  # what is lost is not taken for nothing by this machine's cache
        curves = read_curves(world.tracks, "own.one", cache=tmp_path / "cache")
        assert len(curves.lost) == 1
        assert f"of own.one cannot be shown: {key} is missing" in curves.lost[0]
        assert len({s.attempt_id for c in curves.curves for s in c.series}) == 1
    with pytest.raises(ObjectLost, match="cannot be shown"):
        kept_rows(world.tracks, "own.one", cache=None)


def test_a_run_whose_curves_are_lost_is_compared_with_others(tmp_path: Path) -> None:
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    two = replace(WHOLE, id="two", run="two", title="two")
    given = Given(*parted(WHOLE, points(0, 1, 2)), *parted(two, points(0, 1, 2, name="other")))
    import_history(app.tracks, given, "own", rules=NO_RULES, by="tests")
    attempts = imported.unpack(app.store.get(next(app.store.list("histories/own/chunks/"))) or b"")
    (sha256,) = next(each for each in attempts if each.run_id == "own.one").curves.values()
    app.store.delete(history_curves_key("own", sha256))
    visitor = Visitor(guarded(Sources(settings)))
    for page in ("/runs/own.one", "/runs/own.one/report", "/compare?run=own.one&run=own.two"):
        answer = visitor.get(page)
        assert answer.status_code == 200, (page, answer.text)
        assert "The curves of attempt 1 of own.one cannot be shown" in answer.text, page
    assert "other" in answer.text
