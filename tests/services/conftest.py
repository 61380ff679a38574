"""A story in memory, the tracks that read it, and a ledger that has taken it in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import FakeClock, FakeGangs, FakeObjectStore, SequentialUids
from tests.six_variants import MORNING, NODE, FakeMachine, sources_of
from tests.stories import Story
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.recovery.effects.triage.judge import Sources


@pytest.fixture
def story(store: FakeObjectStore) -> Story:
    """A run that has only been declared; the test lets it grow."""
    return Story(store)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty ledger."""
    return open_ledger(f"sqlite:///{tmp_path}/ledger.db")


@pytest.fixture
def tracks(
    store: FakeObjectStore, ledger: Ledger, clock: FakeClock, new_uid: SequentialUids
) -> Tracks:
    """The tracks of the story's store, projected into the ledger."""
    return Tracks(store, now=clock, new_uid=new_uid, project=Projector(store, ledger).project)


@pytest.fixture
def data(story: Story, tracks: Tracks) -> Story:
    """The snapshots of the gpt family are there; the run of the story is not."""
    for dataset in story.datasets:
        dataset.write_to(story.store)
    return story


@pytest.fixture
def gangs() -> FakeGangs:
    """The launcher that triage asks."""
    return FakeGangs(NODE)


@pytest.fixture
def machine() -> FakeMachine:
    """NODE, booted anew since anything was placed on it."""
    return FakeMachine()


@pytest.fixture
def morning() -> FakeClock:
    """When somebody looks."""
    return FakeClock(MORNING)


@pytest.fixture
def sources(
    store: FakeObjectStore,
    ledger: Ledger,
    gangs: FakeGangs,
    machine: FakeMachine,
    morning: FakeClock,
) -> Sources:
    """What triage looks at."""
    return sources_of(store, ledger, gangs, machine=machine, now=morning)
