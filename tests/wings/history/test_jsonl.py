"""Lines of JSON, in the format that docs/import.md documents."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.wings.history.worlds import BEGIN, import_world
from tracks_dagster.review.effects.goodput import read_goodput
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.wings.history import jsonl
from tracks_dagster.wings.history.source import BadRow, SourceAttempt

FIRST = {
    "run": "12.52a",
    "started_at": "2026-01-01T00:00:00Z",
    "ended_at": "2026-01-01T02:00:00+01:00",
    "devices": 8,
    "nodes": "node-[1,39]",
    "last_step": 100,
    "evidence": {"log_tail": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"},
}


def test_a_line_is_an_attempt_with_our_verdict(tmp_path: Path) -> None:
    world = import_world(tmp_path)
    again = {
        **FIRST,
        "started_at": "2026-01-01T02:00:00Z",
        "ended_at": "2026-01-01T03:00:00Z",
        "resumed_step": 80,
        "last_step": 200,
        "succeeded": True,
        "evidence": {"exit_code": 0},
    }
    world.add([json.dumps(FIRST), json.dumps(again)], name="own", parse=jsonl.read)
    assert world.runs() == {"own.12.52a": ["gpu_oom", "completed"]}
    rows = world.ledger.query("select * from training_attempts order by attempt_id")
    assert [each["last_step"] for each in rows] == [100, 200]
    assert [each["gpu_seconds"] for each in rows] == [8 * 3600.0, 8 * 3600.0]
    assert json.loads(rows[0]["nodes_json"]) == ["node-1", "node-39"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"run": None}, "no `run`"),
        ({"ended_at": "2026-01-01T02:00:00"}, "no time zone"),
        ({"ended_at": "yesterday"}, "no time as"),
        ({"ended_at": "2025-01-01T02:00:00Z"}, "before it starts"),
        ({"devices": -1}, "its devices is '-1'"),
        ({"last_step": 1.5}, "its last_step"),
        ({"nodes": [1]}, "not a list of names"),
        ({"cause": "magic"}, "its cause"),
        ({"looses": 1}, "the key 'looses'"),
        ({"started_at": 0}, "1970-01-01 is not a time of a run"),
        ({"succeeded": "true"}, "its succeeded is 'true'; write true or false"),
        ({"evidence": {"exitcode": 1}}, "its evidence has the key 'exitcode'"),
        ({"evidence": "NODE_FAIL"}, "its evidence is not an object"),
        ({"run": True}, "no `run`"),
    ],
)
def test_a_line_that_is_wrong_is_named_and_loses_nothing_else(changes: Json, why: str) -> None:
    lines = [json.dumps(FIRST), json.dumps({**FIRST, **changes}), "{cut", json.dumps(FIRST)]
    found = list(jsonl.read(lines))
    bad = [each for each in found if isinstance(each, BadRow)]
    assert [each.line for each in bad] == [2, 3]
    assert why in bad[0].why
    assert sum(isinstance(each, SourceAttempt) for each in found) == 2


def test_a_file_of_something_else_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Nothing in it can be imported: line 1"):
        list(jsonl.read(["JobID|State"]))


def test_35_manual_restarts_100_hosts_and_70_automatic_ones_are_counted(tmp_path: Path) -> None:
    lines = []
    for number in range(106):
        at = BEGIN + timedelta(hours=number)
        lines.append(
            {
                "run": "12.52a",
                "started_at": at.isoformat(),
                "ended_at": (at + timedelta(minutes=50)).isoformat(),
                "cause": "manual_retry" if number % 3 == 1 else "retry",
                "excluded_nodes": [f"host-{number}"] if 1 <= number <= 100 else [],
                "evidence": {"slurm_state": "NODE_FAIL"},
            }
        )
    world = import_world(tmp_path)
    world.add([json.dumps(each) for each in lines], name="opt", parse=jsonl.read)
    found = read_goodput(world.ledger, as_of=BEGIN + timedelta(days=30)).retrying
    assert (found.manual_restarts, found.hosts_cycled, found.automatic_restarts) == (35, 100, 70)


@pytest.mark.parametrize("number", [0, 1, "x"])
def test_an_id_is_one_of_its_run_alone(tmp_path: Path, number: object) -> None:
    world = import_world(tmp_path)
    lines = [json.dumps({**FIRST, "run": run, "id": number}) for run in ("a", "b")]
    assert world.add(lines, name="own", parse=jsonl.read).new == 2
    later = {**FIRST, "run": "a", "id": number, "started_at": "2026-01-01T00:30:00Z"}
    assert world.add([json.dumps(later)], name="own", parse=jsonl.read).new == 0
    assert set(world.runs()) == {"own.a", "own.b"}
