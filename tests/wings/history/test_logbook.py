"""A logbook in the manner of OPT's."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.wings.history.worlds import BEGIN, import_world
from tracks_dagster.review.effects.goodput import read_goodput
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wings.history.logbook import Logbook
from tracks_dagster.wings.history.source import BadRow, NotEnded, SourceAttempt

READ = Logbook(zone=UTC).read
BOOK = """\
2021-11-18 10:14 launched 12.52
2021-11-18 22:40 Node down – requeue for 12.52a, swap out 68
2021-11-19 03:05 lost a host
replaced node-[1,39]
2021-11-19 03:10 replaced node-[1,39], auto-requeue of 12.52b
2021-11-20 09:00 12.52b finished
""".splitlines()


def test_each_line_that_names_a_run_starts_it_again(tmp_path: Path) -> None:
    world = import_world(tmp_path)
    done = world.add(BOOK, name="opt", parse=READ)
    assert (done.bad, done.new) == ([], 3)
    assert world.runs() == {"opt.12.52": ["node_failure", "node_failure", "completed"]}
    rows = world.ledger.query("select * from training_attempts order by attempt_id")
    assert [each["cause"] for each in rows] == ["first", "manual_retry", "retry"]
    assert [json.loads(each["config_json"])["lineage"] for each in rows] == [
        *("12.52", "12.52a", "12.52b"),
    ]
    state = world.tracks.run("opt.12.52")
    assert [each.opened.compute.excluded_nodes for each in state.attempts] == [
        (),
        ("node-68",),
        ("node-68", "node-1", "node-39"),
    ]


def test_35_manual_restarts_100_hosts_and_70_automatic_ones_are_counted(tmp_path: Path) -> None:
    lines = ["2026-01-01 00:00 launched 12.52"]
    for number in range(105):
        at = BEGIN + timedelta(hours=number + 1)
        how = "requeue" if number % 3 == 0 else "auto-requeue"
        swap = f", swap out {number}" if number < 100 else ""
        lines.append(f"{at:%Y-%m-%d %H:%M} Node down – {how} for 12.52a{swap}")
    lines.append("2026-01-20 00:00 12.52a finished")
    world = import_world(tmp_path)
    world.add(lines, name="opt", parse=READ)
    found = read_goodput(world.ledger, as_of=datetime(2026, 2, 1, tzinfo=UTC)).retrying
    assert (found.manual_restarts, found.hosts_cycled, found.automatic_restarts) == (35, 100, 70)


def test_a_line_that_goes_back_is_named_and_a_run_that_runs_is_left_out() -> None:
    found = list(READ([BOOK[0], "2021-11-17 00:00 requeue for 12.52a", "2021-13-40 00:00 x"]))
    assert [type(each) for each in found] == [BadRow, BadRow, NotEnded]


def ends(*lines: str) -> list[tuple[str, str, bool]]:
    """Return run, name at its start and whether it finished, of what each line ended."""
    dated = [f"2021-11-18 {10 + at}:00 {line}" for at, line in enumerate(lines)]
    found = [each for each in READ(dated) if isinstance(each, SourceAttempt)]
    assert not [each for each in READ(dated) if isinstance(each, BadRow)]
    return [(each.run, str(each.config["lineage"]), bool(each.succeeded)) for each in found]


@pytest.mark.parametrize(
    "line",
    [
        "loss went to 2.31, node down - requeue for 12.52a",
        "moved to CUDA 11.3, auto-requeue of 12.52a",
        "restarted 2.5 hours later from 10.0.0.1: 12.52a",
        "step took 1.5x of 2.3s, 12.52a",
        "swap done, requeue for 12.52a",
        "swap done on node 12; 12.52a is up again",
        "launched 12.52a, 3.5 times as fast as 11.3",
    ],
)
def test_other_numbers_of_a_line_are_not_its_run(line: str) -> None:
    assert ends("launched 12.52", line, "12.52a finished") == [
        ("12.52", "12.52", False),
        ("12.52", "12.52a", True),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "12.52 is done",
        "12.52 – finished",
        "training completed: 12.52",
        "all of 12.52 is now done, hurray",
    ],
)
def test_the_end_of_a_run_is_known_by_what_is_beside_it(line: str) -> None:
    assert ends("launched 12.52", line) == [("12.52", "12.52", True)]


def test_a_run_that_begins_from_another_is_not_the_other() -> None:
    assert ends(
        "launched 12.52", "launched 12.53 from 12.52a, lr 7.5e-5 is less than 12.52's", "12.53 done"
    ) == [("12.53", "12.53", True)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("loss went to 2.31", "2.31 is not known as a run"),
        ("from 2.31 to 1.97", "none of 2.31, 1.97 is known as a run"),
        ("12.52 finished, launched 12.53", "it names 12.52 and 12.53; a line for each"),
        ("12.53 finished", "it ends 12.53, which no line before it starts"),
        ("18/11/2021 22:40 requeue for 12.52a", "its time is not as 2021-11-18 22:40"),
    ],
)
def test_a_line_that_may_mean_another_run_is_named(line: str, why: str) -> None:
    at = "" if "/" in line else "2021-11-18 10:00 "
    found = list(
        READ([BOOK[0].replace("10:14", "09:00"), at + line, "2021-11-18 13:00 12.52 done"])
    )
    bad, ended = sorted(found, key=lambda each: isinstance(each, SourceAttempt))
    assert isinstance(bad, BadRow)
    assert isinstance(ended, SourceAttempt)
    assert (bad.line, ended.succeeded is not None) == (2, True)
    assert why in bad.why


def test_numbers_that_name_no_node_are_not_excluded() -> None:
    book = [BOOK[0], "2021-11-18 12:00 cycled 12 hosts, replaced 68, 12.52a requeued"]
    book += [
        "and swapped 70",
        "2021-11-18 13:00 requeue for 12.52b",
        "2021-11-18 14:00 12.52b done",
    ]
    found = [each.excluded_nodes for each in READ(book) if isinstance(each, SourceAttempt)]
    assert found == [(), ("node-68",), ("node-68", "node-70")]


def test_a_file_without_a_run_is_refused() -> None:
    with pytest.raises(InvalidInput, match="No line of it"):
        list(READ(["dear diary"]))
