"""A ledger of every older version is brought up to date, and projects its tracks anew."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from tests.fakes import FakeObjectStore
from tests.histories import History
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.database.engine import make_engine, transaction
from tracks_dagster.ledger.effects.database.migrate import HEAD, MIGRATIONS
from tracks_dagster.ledger.effects.projector import Projector

CONFIG = Config()
CONFIG.set_main_option("script_location", str(MIGRATIONS))
OLDER = sorted(
    each.revision
    for each in ScriptDirectory.from_config(CONFIG).walk_revisions()
    if each.revision != HEAD
)


@pytest.mark.parametrize("revision", OLDER)
def test_an_older_ledger_gets_the_new_columns_of_every_row(
    revision: str, tmp_path: Path, store: FakeObjectStore
) -> None:
    source = History("r-0").declare().open().place().restore().commit(20)
    branch = History("b-1").declare(branched_from=source.state.checkpoints[0].ref).open().place()
    for history in (source, branch.restore()):
        history.write_to(store)
    url = f"sqlite:///{tmp_path}/ledger.db"
    with transaction(make_engine(url), "make", write=True) as connection:
        CONFIG.attributes["connection"] = connection
        command.upgrade(CONFIG, revision)
        connection.execute(
            sa.text("insert into track_cursors (track, seq, sha256) values ('runs/b-1', 3, 'x')")
        )
    ledger = open_ledger(url)
    Projector(store, ledger).scan()
    fresh = open_ledger(f"sqlite:///{tmp_path}/fresh.db")
    Projector(store, fresh).scan()
    assert ledger.dump() == fresh.dump()
    [row] = ledger.query("select resumed_from_run_id from training_attempts where run_id = 'b-1'")
    assert row["resumed_from_run_id"] == "r-0"
