"""An empty ledger on each database that tracks can be projected into."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import new_database
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger

NewUrl = Callable[[str], str]


@pytest.fixture(scope="session")
def new_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NewUrl:
    """Gives the URL of an empty database: sqlite or postgres."""

    def made(database: str) -> str:
        if database == "sqlite":
            return f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}"
        return new_database(request.getfixturevalue("postgres_server"))

    return made


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, new_url: NewUrl) -> str:
    """The URL of an empty database of either kind."""
    return new_url(request.param)


@pytest.fixture
def ledger(ledger_url: str) -> SqlLedger:
    """An empty ledger of either kind."""
    return open_ledger(ledger_url)
