"""Journals as a dead machine leaves them: segments, torn lines, gaps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes import FakeObjectStore
from tracks_dagster.attempts.effects.evidence import read_journal_end
from tracks_dagster.stores.journals import (
    DeviceLine,
    EvaluatedLine,
    RanksLine,
    StepLine,
    journal_prefix,
    last_step,
    newest_values,
    parse_line,
    read_steps,
    read_tail,
)
from tracks_dagster.track.bodies import MemoryPeak
from tracks_dagster.track.names import AttemptRef

PREFIX = journal_prefix(AttemptRef("r-1", 1), "l1", 0)


def line(step: int, loss: float = 1.0) -> bytes:
    """A step's line as rank 0 writes it."""
    return (
        json.dumps(
            {
                "kind": "step",
                "t": "2026-01-31T02:00:00.000000Z",
                "step": step,
                "loss": loss,
                "metrics": {"lr": 0.1},
                "step_s": 0.5,
                "data_s": 0.1,
                "cursor_to": step * 24,
                "indices_sha256": f"{step:064x}",
            }
        ).encode()
        + b"\n"
    )


HEARTBEAT = b'{"kind":"heartbeat","t":"2026-01-31T02:00:00.000000Z","step":2}\n'


def ship(store: FakeObjectStore, offset: int, data: bytes) -> int:
    """Store one segment; return the offset after it."""
    store.put(f"{PREFIX}{offset:012d}.jsonl", data)
    return offset + len(data)


def steps(store: FakeObjectStore) -> list[int]:
    return [s.step for s in read_steps(store, AttemptRef("r-1", 1), "l1")]


def test_the_newest_value_of_a_metric_is_a_number_that_can_be_kept(store: FakeObjectStore) -> None:
    damaged = line(8).replace(b"0.1", b"1" + b"0" * 400, 1)  # of its metric lr
    offset = ship(store, 0, line(6) + line(7) + HEARTBEAT)
    ship(store, offset, damaged + b'{"kind":"step","t')
    ref = AttemptRef("r-1", 1)
    found = newest_values(store, ref, "l1", lines_max=10)
    assert found == {"loss": (1.0, 8), "lr": (0.1, 7)}
    assert newest_values(store, ref, "l1", lines_max=1) == {"loss": (1.0, 8)}


def test_segments_are_read_in_the_order_of_their_offsets(store: FakeObjectStore) -> None:
    offset = ship(store, 0, line(1) + line(2))
    offset = ship(store, offset, HEARTBEAT + line(3))
    ship(store, offset, line(4))
    assert steps(store) == [1, 2, 3, 4]
    assert read_steps(store, AttemptRef("r-1", 1), "l1")[3].cursor_to == 96


def test_a_line_over_two_segments_is_one_line(store: FakeObjectStore) -> None:
    whole = line(1) + line(2)
    offset = ship(store, 0, whole[:-20])
    ship(store, offset, whole[-20:])
    assert steps(store) == [1, 2]


def test_a_torn_last_line_is_left_out(store: FakeObjectStore) -> None:
    ship(store, 0, line(1) + line(2) + line(3)[:-10])
    assert steps(store) == [1, 2]


def test_a_segment_that_never_came_tears_only_its_neighbours(store: FakeObjectStore) -> None:
    ship(store, 0, line(1) + line(2)[:30])
    ship(store, 5000, line(3)[40:] + line(4))
    assert steps(store) == [1, 4]


def test_a_segment_shipped_again_with_more_adds_what_is_new(store: FakeObjectStore) -> None:
    first = line(1) + line(2)
    ship(store, 0, first)
    ship(store, len(line(1)), line(2) + line(3))
    assert steps(store) == [1, 2, 3]


def test_a_launch_without_a_journal_ran_no_step(store: FakeObjectStore) -> None:
    assert steps(store) == []
    assert last_step(store, AttemptRef("r-1", 1), "l1") is None


def test_the_newest_step_is_found_behind_heartbeats(store: FakeObjectStore) -> None:
    offset = ship(store, 0, line(1) + line(2))
    ship(store, offset, HEARTBEAT)
    newest = last_step(store, AttemptRef("r-1", 1), "l1")
    assert newest is not None
    assert newest.step == 2


def test_losses_come_back_to_the_bit(store: FakeObjectStore) -> None:
    ship(store, 0, line(1, loss=0.1 + 0.2))
    assert read_steps(store, AttemptRef("r-1", 1), "l1")[0].loss == 0.30000000000000004


def test_the_memory_of_the_newest_heartbeat_is_found_before_the_last_steps(
    store: FakeObjectStore,
) -> None:
    lines = [
        {"kind": "heartbeat", "step": 1, "memory": {"host_bytes": 50}},
        {"kind": "heartbeat", "step": 2, "memory": {"host_bytes": 70, "of a later version": 1}},
        {"kind": "memory", "memory": "damaged"},
        {"kind": "step", "t": "2026-01-31T02:00:00.000000Z", "step": 3},
    ]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    store.put("journal/000000000000.jsonl", data)
    end = read_journal_end(store, "journal/")
    assert (end.last_step, end.memory) == (3, MemoryPeak(host_bytes=70))


def test_the_end_of_a_journal_is_its_last_whole_step(store: FakeObjectStore) -> None:
    whole = {"kind": "step", "t": "2026-01-31T02:00:00.000000Z", "step": 7, "cursor_to": 56}
    damaged = [{"kind": "step", "t": 5}, {"kind": "step", "step": "8"}, {"t": None}]
    lines = b"".join(json.dumps(line).encode() + b"\n" for line in (whole, *damaged))
    store.put("journal/000000000000.jsonl", lines)
    end = read_journal_end(store, "journal/")
    assert (end.began, end.last_step, end.cursor_to) == (True, 7, 56)
    assert end.last_line_at == end.last_stepped_at == whole["t"]


AT = "2026-01-31T02:00:00.000000Z"


def test_a_line_of_each_kind_is_read() -> None:
    step = json.loads(line(7)) | {"own_s": 0.2, "samples": 24, "grad_norm": 1.5, "lr": 9.0}
    found = parse_line(step)
    assert isinstance(found, StepLine)
    # lr: what the script reports by that name
    assert (found.own_s, found.samples, found.grad_norm, found.lr) == (0.2, 24, 1.5, 0.1)
    ranks = {
        "kind": "ranks",
        "t": AT,
        "step": 10,
        "over": 5,
        "step_s": [0.5, 0.6],
        "util": [None, 9],
    }
    assert parse_line(ranks) == RanksLine(
        at=AT, step=10, over=5, step_s=(0.5, 0.6), util=(None, 9.0)
    )
    device = {
        "kind": "device",
        "t": AT,
        "step": 3,
        "power_w": 300,
        "throttled": ["hw_thermal_slowdown"],
    }
    assert parse_line(device) == DeviceLine(
        at=AT, step=3, power_w=300.0, throttled=("hw_thermal_slowdown",)
    )
    evaluated = {"kind": "evaluated", "t": AT, "step": 3, "metrics": {"loss": 2, "bad": "nan"}}
    assert parse_line(evaluated) == EvaluatedLine(at=AT, step=3, metrics={"loss": 2.0})
    assert parse_line({"kind": "heartbeat", "t": AT, "step": 3}) is None


def test_a_line_of_an_older_journal_knows_nothing_of_the_newer_figures() -> None:
    found = parse_line(json.loads(line(7)))
    assert isinstance(found, StepLine)
    assert (found.own_s, found.samples, found.grad_norm) == (None, None, None)


@pytest.mark.parametrize("value", [None, "x", True, [], {}, float("nan"), 10**400])
def test_what_is_not_a_number_is_unknown(value: Any) -> None:
    step = parse_line(json.loads(line(7)) | {"own_s": value, "samples": value})
    assert isinstance(step, StepLine)
    assert (step.own_s, step.samples) == (None, None)
    ranks = parse_line({"kind": "ranks", "t": AT, "step": 1, "over": 5, "own_s": [1.0, value]})
    assert isinstance(ranks, RanksLine)
    assert ranks.own_s == (1.0, None)
    for kind in ("ranks", "device", "evaluated"):
        assert parse_line({"kind": kind, "t": value, "step": 1, "over": 5}) is None
        assert parse_line({"kind": kind, "t": AT, "step": "1"}) is None


def test_a_tail_has_the_other_lines_between_its_steps_and_behind_them(
    store: FakeObjectStore,
) -> None:
    def other(kind: str, step: int) -> bytes:
        return json.dumps({"kind": kind, "t": AT, "step": step, "over": 5}).encode() + b"\n"

    offset = ship(store, 0, other("device", 0) + line(1) + other("device", 1) + line(2))
    ship(store, offset, other("ranks", 2) + line(3) + other("evaluated", 3) + other("device", 3))
    tail = read_tail(store, AttemptRef("r-1", 1), "l1", steps_max=2)
    assert [each.step for each in tail.steps] == [2, 3]
    assert [each.step for each in tail.ranks] == [2]
    assert [each.step for each in tail.evaluated] == [3]
    assert [each.step for each in tail.devices] == [3]
    assert [
        each.step for each in read_tail(store, AttemptRef("r-1", 1), "l1", steps_max=9).devices
    ] == [
        0,
        1,
        3,
    ]
