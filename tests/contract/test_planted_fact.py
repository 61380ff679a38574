"""One entry in the table of facts shows a new fact everywhere that facts are shown."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# Planted before anything else is imported, as an entry in the file would be.
SCRIPT = """
import json, sys
from tracks_dagster.ledger.facts import attempt
from tracks_dagster.ledger.facts.fact import Fact, Type

attempt.ATTEMPT += (
    Fact(
        "fan_speed", Type.REAL, lambda view: 0.75 if view.attempt.ended else None, "of its fans",
        absent=(attempt.OPEN,), group="where", ui="where/fan_speed", diff="placement/fan_speed",
        label="fan speed", since=11,
    ),
)

from tests.fakes import FakeClock, FakeObjectStore, SequentialUids
from tests.histories import History
from tests.reference import with_reference
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects.comparing import compare_named
from tracks_dagster.review.explain.explanation import explanation_json
from tracks_dagster.review.effects.explain.run import explain_run
from tracks_dagster.review.effects.metadata import attempt_metadata

store = FakeObjectStore()
history = History("r-1").declare().open().supervise().place().restore().commit(20)
history.end("preempted", last_step=23).open().place().write_to(store)
ledger = open_ledger(sys.argv[1])
project = Projector(store, ledger).project
project(history.name)
tracks = Tracks(store, now=FakeClock(), new_uid=SequentialUids(), project=project)
result = explanation_json(explain_run(tracks, "r-1"))
print(json.dumps({
    "sql": [row["fan_speed"] for row in ledger.query(
        "select fan_speed from training_attempts order by attempt_id")],
    "json": [each["where"]["fan_speed"] for each in result["attempts"]],
    "ui": [attempt_metadata(tracks, "r-1", number).get("where/fan_speed") for number in (1, 2)],
    "receipt": [field for each in result["attempts"] for field in each["completeness"]["fields"]
                if field["name"] == "fan speed"],
    "diff": [[each.a, each.b] for each in compare_named(
        tracks, lambda: ledger, "r-1/a01", "r-1/a02").placement if each.name == "fan_speed"],
    "docs": [line for line in with_reference("").splitlines() if "fan_speed" in line],
}))
"""


def test_a_planted_fact_is_in_sql_json_ui_diff_receipt_and_docs(database_url: str) -> None:
    root = Path(__file__).parents[2]
    run = [sys.executable, "-c", SCRIPT, database_url]
    found = json.loads(subprocess.run(run, cwd=root, check=True, capture_output=True).stdout)
    assert found["sql"] == [0.75, None]
    assert found["json"] == [0.75, None]
    assert found["ui"] == [0.75, None]
    assert found["diff"] == [[0.75, None]]
    recorded, absent = found["receipt"]
    assert recorded["is_recorded"]
    assert (absent["is_recorded"], absent["absence"]) == (False, "open")
    assert found["docs"] == [
        "| `fan_speed` | real | of its fans | open | `where.fan_speed` | `where/fan_speed` "
        "| `placement/fan_speed` | 11 |"
    ]
