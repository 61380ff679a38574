"""A real application on an empty home, and a Dagster instance of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance

from tests.examples import EXAMPLES
from tests.ledgers import new_ledger
from tracks_dagster.settings import Settings
from tracks_dagster.wiring import App, build


@pytest.fixture
def app(tmp_path: Path) -> App:
    """An application whose tests replace what they want to play."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    new_ledger(home / "ledger.db")
    return build(Settings(home=home, store_url=str(home / "store"), root=EXAMPLES.parent))


@pytest.fixture(scope="session")
def empty_storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Dagster's storage; making one takes five times as long as copying it."""
    folder = tmp_path_factory.mktemp("storage")
    with DagsterInstance.local_temp(str(folder)) as made:
        made.all_instigator_state()
    return folder


@pytest.fixture
def instance(tmp_path: Path, empty_storage: Path) -> Iterator[DagsterInstance]:
    """Dagster without a daemon; its storage also keeps which sensors are switched off."""
    shutil.copytree(empty_storage, tmp_path, dirs_exist_ok=True)
    with DagsterInstance.local_temp(str(tmp_path)) as made:
        yield made
