"""A real application on an empty home, and a Dagster instance of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance

from tests.examples import EXAMPLES
from tracks_dagster.settings import Settings
from tracks_dagster.wiring import App, build


@pytest.fixture
def app(tmp_path: Path) -> App:
    """An application whose tests replace what they want to play."""
    home = tmp_path / "home"
    return build(Settings(home=home, store_url=str(home / "store"), root=EXAMPLES.parent))


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    """Dagster without a daemon; its storage also keeps which sensors are switched off."""
    with DagsterInstance.local_temp(str(tmp_path)) as made:
        yield made
