"""An object of a history that is lost is found by fsck, and the problem of its run alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wings.history.test_curves import WHOLE, add, points
from tests.wings.history.worlds import ImportWorld, import_world
from tracks_dagster.curves.effects.reading import read_curves
from tracks_dagster.curves.effects.rows import kept_rows
from tracks_dagster.recovery.effects.fsck import fsck
from tracks_dagster.track.errors import ObjectLost
from tracks_dagster.training.saves.manifest import verify_checkpoint
from tracks_dagster.wings.history.curves import parted


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
