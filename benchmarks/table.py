"""What the table of 100 000 runs costs: processor seconds of its first page, by what is asked of it.

The runs are rows of a ledger in SQLite, made after one that was projected: twenty keys of the config,
ten metrics with their newest and best values, an eval, tags. `first` is the first page of a process
that has looked at nothing.
"""

from __future__ import annotations

import json
import random
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.wings.watch.board.conftest import make_home
from tracks_dagster.track.records import format_time

RUNS, KEYS, METRICS, SEEDS = 100_000, 20, 10, 5
ROUNDS = 3
# By the figure's name: what the address asks for.
PAGES = {
    "first": "/runs",
    "newest": "/runs",
    "of_a_state": "/runs?where=state%3Dsucceeded+step%3E5",
    "by_a_key": "/runs?where=key3%3C0.1",
    "by_a_metric": "/runs?where=last.metric2%3C0.0001",
    "sorted_by_a_metric": "/runs?sort=best.metric1",
    "sorted_by_an_eval": "/runs?sort=heldout.loss",
    "in_groups": "/runs?group=key1&columns=last.metric1",
    "tagged": "/runs?where=tag:paper",
}
AT_MOST = {"table_first_s": 1.0, "table_newest_s": 1.0, "table_kb": 200.0}
WHY = dict.fromkeys(AT_MOST, "a row of the table grew, or more than a page of rows is read")


def run() -> dict[str, float]:
    """Return processor seconds of each page, the lesser of ROUNDS, and what the first one weighs."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="tracks-bench-") as name:
        home = make_home(Path(name) / "home")
        with closing(sqlite3.connect(Path(name) / "home" / "ledger.db")) as ledger:
            _fill(ledger)
        board = home.visitor()
        for figure, address in PAGES.items():
            took = []
            for _ in range(1 if figure == "first" else ROUNDS):
                began_s = time.process_time()
                reply = board.get(address)
                took.append(time.process_time() - began_s)
                assert reply.status_code == 200, f"{address}: {reply.text[:500]}"
            figures[f"table_{figure}_s"] = min(took)
        figures["table_kb"] = len(board.get("/runs").content) / 1e3
    return figures


def _fill(ledger: sqlite3.Connection) -> None:
    ledger.row_factory = sqlite3.Row
    (pattern,) = ledger.execute("select * from training_runs where run_id = 'over-run'")
    names = pattern.keys()
    places = ", ".join(f":{name}" for name in names)
    ledger.executemany(
        f"insert into training_runs ({', '.join(names)}) values ({places})", _rows(dict(pattern))
    )
    ledger.commit()


def _rows(pattern: dict[str, Any]) -> Iterator[dict[str, Any]]:
    drawn = random.Random(7)
    began_at = datetime.fromisoformat(pattern["declared_at"])
    for number in range(RUNS):
        at = began_at - timedelta(minutes=number + 1)
        config = {f"key{n}": round(drawn.random(), 4) for n in range(1, KEYS)}
        config["key1"], config["seed"] = number // SEEDS % 500, number % SEEDS
        last = {f"metric{n}": drawn.random() for n in range(METRICS)}
        yield pattern | {
            "run_id": f"run-{number}",
            "declared_at": format_time(at),
            "finished_at": format_time(at + timedelta(hours=drawn.random() * 9)),
            "state": "succeeded" if number % 7 else "refused",
            "step": drawn.randrange(1000),
            "newest_config_json": json.dumps(config),
            "newest_metrics_json": json.dumps(last),
            "newest_metric_steps_json": json.dumps(dict.fromkeys(last, 1000)),
            "best_metrics_json": json.dumps({name: value / 2 for name, value in last.items()}),
            "best_metric_steps_json": json.dumps(dict.fromkeys(last, 900)),
            "measured_json": json.dumps({"heldout": {"loss": drawn.random()}}),
            "tags_json": json.dumps(["paper"] if number % 1000 == 0 else []),
        }
