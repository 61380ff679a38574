"""A system that goes on while fsck reads it has no findings: what came meanwhile is not damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes import FakeObjectStore
from tests.fsck_worlds import World, make_world
from tests.histories import History
from tests.stories import Story
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.recovery.effects.fsck import fsck
from tracks_dagster.track.errors import LedgerError
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key
from tracks_dagster.track.track import log_key
from tracks_dagster.training.saves.manifest import verify_checkpoint


@pytest.fixture
def world(story: Story, store: FakeObjectStore, tmp_path: Path) -> World:
    """A store with one of everything, and its ledger."""
    return make_world(story, store, tmp_path / "ledger.db")


def _once_read(world: World, key: str, act: Callable[[], object]) -> None:
    """Do `act` right after `key` was read for the first time."""
    get, acts = world.store.get, [act]

    def get_then_act(asked: str, bytes_max: int | None = None) -> bytes | None:
        data = get(asked, bytes_max)
        if asked == key and acts:
            acts.pop()()
        return data

    world.store.get = get_then_act  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize("seq", [0, 1, 3])
def test_records_that_the_ledger_takes_in_while_their_track_is_read(seq: int, world: World) -> None:
    history = (
        History("r-busy")
        .declare(snapshot=world.story.snapshot)
        .open()
        .place(packages_sha256=None)
        .note("a note")
    )
    history.write_to(world.store)
    Projector(world.store, world.ledger).scan()

    def append() -> None:
        history.note("one more").write_to(world.store)
        Projector(world.store, world.ledger).project(history.name)

    _once_read(world, log_key(history.name, seq), append)
    assert world.findings() == []


def test_a_run_that_is_declared_meanwhile_is_not_a_lost_track(world: World) -> None:
    def declare() -> None:
        History("r-late").declare(snapshot=world.story.snapshot).write_to(world.store)
        Projector(world.store, world.ledger).scan()

    _once_read(world, log_key(world.story.history.name, 0), declare)
    assert world.findings() == []


def test_a_checkpoint_that_is_deleted_meanwhile_is_not_corrupt(world: World) -> None:
    history = world.story.history
    ref = history.state.checkpoints[1].ref

    def verify(store: ObjectStore, asked: CheckpointRef) -> object:
        if asked == ref and store.get(manifest_key(ref)) is not None:
            history.decide_checkpoint(Kind.CHECKPOINT_DELETED, ref).write_to(world.store)
            world.store.delete(manifest_key(ref))
        return verify_checkpoint(store, asked)

    assert fsck(world.store, world.ledger, verify).findings == ()


def test_a_ledger_that_fails_in_the_middle_of_a_track_hides_nothing_of_it(world: World) -> None:
    world.store.delete(log_key(world.story.history.name, 4))
    cursor, asked = world.ledger.cursor, []

    def fail_later(track: str) -> object:
        asked.append(track)
        if len(asked) > 3:
            raise LedgerError("The ledger is gone.")
        return cursor(track)

    world.ledger.cursor = fail_later  # type: ignore[assignment, method-assign]
    kinds = {finding.kind.value for finding in world.findings()}
    assert {"record_missing", "ledger_unreadable"} <= kinds
