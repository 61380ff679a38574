"""One race, at every call: a save takes a chunk of a checkpoint whose deletion is just decided."""

from __future__ import annotations

import pytest

from tests.checkpoints.retention_mutants import a_commit_in_between_is_not_seen
from tests.checkpoints.retention_world import RUN_ID, Interrupted, Reader, World
from tracks_dagster.checkpoints.effects.retention import collect
from tracks_dagster.track.bodies import RetentionRule
from tracks_dagster.track.errors import CheckpointCorrupt

CHANGES = range(1, 13)  # calls that write or delete; the pass makes fewer


def race(at: int, *, after: bool) -> World:
    """Begin a save that shares a chunk with the first checkpoint; it commits in mid-collection."""
    world = World(RetentionRule(keep_last=1, keep_best=0, delete_after_s=0.0))
    world.open_attempt()
    (trainer,) = world.trainers
    trainer.start()
    for layers in ((0, 0, 0), (1, 0, 0), (2, 0, 0)):
        world.save(trainer, layers, 1.0)
        world.save(trainer, layers, 1.0)
    trainer.begin_save((0, 0, 0), 1.0)  # the first layer's chunk is named by the first commit only
    disturbed = Interrupted(
        world.store, at=at, action=trainer.finish_save, after=after, only_changes=True
    )
    tracks = world.fresh_tracks(disturbed)
    tracks.run(RUN_ID)
    disturbed.arm()
    collect(tracks, Reader(disturbed), RUN_ID, by="collector")
    return world


def check_all() -> None:
    for at in CHANGES:
        check(race(at, after=False))


def check(world: World) -> None:
    for checkpoint in world.state.checkpoints:
        if not checkpoint.deleted:
            Reader(world.store).verify(checkpoint.ref)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", CHANGES)
def test_a_commit_keeps_its_chunks_or_is_abandoned(at: int, after: bool) -> None:
    check(race(at, after=after))


def test_a_deletion_that_misses_the_commit_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    a_commit_in_between_is_not_seen(monkeypatch)
    with pytest.raises(CheckpointCorrupt, match="has sha256 nothing"):
        check_all()
