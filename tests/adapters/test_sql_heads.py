"""Where the first rows of a table are enough, no others are read, and the answer is the same."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa

from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.database.tables import metadata
from tracks_dagster.ledger.effects.sql.embedded_sql import _read, run_embedded
from tracks_dagster.ledger.effects.sql.sql_parse import parse_select

NOTES = metadata.tables["notes"]
TEXTS = ["", "a", "A", "ä", "a ", "10", "9"]
COUNT = 60


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of 60 notes: the authors are few, and many are of no attempt."""
    rng = Random(0)
    file = tmp_path_factory.mktemp("ledger") / "ledger.db"
    open_ledger(f"sqlite:///{file}")
    engine = sa.create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        connection.execute(sa.insert(NOTES), [note(rng, seq) for seq in range(COUNT)])
    engine.dispose()
    return file


def note(rng: Random, seq: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        c.name: rng.choice(TEXTS) for c in NOTES.c if isinstance(c.type, sa.Text)
    }
    noted_at = datetime(2026, 1, rng.randrange(1, 28), tzinfo=UTC)
    return row | {"seq": seq, "attempt_id": rng.choice([None, 1, 2, 9, 10]), "noted_at": noted_at}


@pytest.mark.parametrize("seed", range(20))
def test_an_answer_is_the_same_with_fewer_rows_read(seed: int, ledger: Path) -> None:
    rng = Random(f"heads-{seed}")
    columns = rng.sample(["author", "attempt_id", "noted_at", "n.text"], rng.randrange(3))
    ways = ["", " asc", " desc", " nulls first", " desc nulls last"]
    order = ", ".join(f"{column}{rng.choice(ways)}" for column in [*columns, "seq"])
    offset = rng.choice(["", " offset 0", " offset 7", " offset 100"])
    what = rng.choice(["*", "n.*", "author, seq", "n", "1", "cast(seq as text)"])
    text = f"select {what} from notes n order by {order} limit {rng.choice([0, 1, 9, 70])}{offset}"
    select = parse_select(text)
    assert select.head is not None, text
    every = run_embedded(ledger, replace(select, head=None)).to_pylist()
    assert run_embedded(ledger, select).to_pylist() == every, text


@pytest.mark.parametrize(
    ("query", "sql"),
    [
        ("from Notes limit 3", "limit 3"),
        ("select seq, text from notes limit 3 offset 2", "limit 5"),
        ("select * from attempt_time limit 3", "limit 3"),
        (
            "select * from notes n order by n.Author desc, seq limit 1",
            'order by "author" desc nulls first, "seq" asc nulls last limit 1',
        ),
    ],
)
def test_the_first_rows_are_enough_for_a_plain_look(query: str, sql: str) -> None:
    select = parse_select(query)
    assert select.head is not None
    assert select.head.sql == sql


def test_sqlite_reads_no_more(ledger: Path) -> None:
    select = parse_select("select author from notes order by text, seq limit 3 offset 2")
    assert _read(ledger, select, {})["notes"].num_rows == 5


@pytest.mark.parametrize(
    "query",
    [
        "select * from notes",
        "select * from notes order by seq",
        "select * from notes offset 3",
        "select * from notes limit 10%",
        "select * from notes limit (select 1)",
        "select * from notes limit null",
        "select * from notes limit 9999999999",
        "select * from notes where seq > 3 limit 3",
        "select distinct author from notes limit 3",
        "select count(*) from notes limit 3",
        "select seq, row_number() over () from notes limit 3",
        "select seq, (select count(*) from notes) from notes limit 3",
        "select author from notes group by author limit 3",
        "select author from notes group by all limit 3",
        "select seq from notes qualify row_number() over () < 3 limit 3",
        "select * from notes using sample 3 limit 3",
        "select * from notes, datasets limit 3",
        "select * from notes union all select * from notes limit 3",
        "with notes as (select 1 as seq) select * from notes limit 3",
        "select n from notes as n(a, b) limit 3",
        "select text as author from notes order by author limit 3",
        "select * replace (text as author) from notes order by author limit 3",
        "select * from notes order by 1 limit 3",
        "select * from notes order by all limit 3",
        "select * from notes order by lower(author) limit 3",
        "select * from notes order by author collate nocase limit 3",
        "select * from attempt_time order by run_id limit 3",  # a view: values of other types
    ],
)
def test_in_doubt_all_rows_are_read(query: str) -> None:
    assert parse_select(query).head is None
