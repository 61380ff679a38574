"""An empty ledger on each database that tracks can be projected into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import database
from tests.ledgers import new_ledger
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger

NewUrl = Callable[[str], str]


@pytest.fixture(scope="module")
def new_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NewUrl]:
    """Gives the URL of an empty database, which lives as long as the module: sqlite or postgres."""
    with ExitStack() as made:

        def make(kind: str) -> str:
            if kind == "sqlite":
                return f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}"
            return made.enter_context(database(request.getfixturevalue("postgres_server")))

        yield make


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty ledger of either kind."""
    if request.param == "sqlite":
        new_ledger(tmp_path / "ledger.db")
        yield f"sqlite:///{tmp_path / 'ledger.db'}"
        return
    server, like = map(request.getfixturevalue, ("postgres_server", "postgres_ledger"))
    with database(server, like=like) as url:
        yield url


@pytest.fixture
def ledger(ledger_url: str) -> SqlLedger:
    """An empty ledger of either kind."""
    return open_ledger(ledger_url)
