"""Journals as a dead machine leaves them: segments, torn lines, gaps."""

from __future__ import annotations

import json

from tests.fakes import FakeObjectStore
from tracks_dagster.attempts.effects.evidence import read_journal_end
from tracks_dagster.stores.journals import journal_prefix, last_step, read_steps
from tracks_dagster.track.bodies import MemoryPeak

PREFIX = journal_prefix("r-1", 1, "l1", 0)


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
    return [s.step for s in read_steps(store, "r-1", 1, "l1")]


def test_segments_are_read_in_the_order_of_their_offsets(store: FakeObjectStore) -> None:
    offset = ship(store, 0, line(1) + line(2))
    offset = ship(store, offset, HEARTBEAT + line(3))
    ship(store, offset, line(4))
    assert steps(store) == [1, 2, 3, 4]
    assert read_steps(store, "r-1", 1, "l1")[3].cursor_to == 96


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
    assert last_step(store, "r-1", 1, "l1") is None


def test_the_newest_step_is_found_behind_heartbeats(store: FakeObjectStore) -> None:
    offset = ship(store, 0, line(1) + line(2))
    ship(store, offset, HEARTBEAT)
    newest = last_step(store, "r-1", 1, "l1")
    assert newest is not None
    assert newest.step == 2


def test_losses_come_back_to_the_bit(store: FakeObjectStore) -> None:
    ship(store, 0, line(1, loss=0.1 + 0.2))
    assert read_steps(store, "r-1", 1, "l1")[0].loss == 0.30000000000000004


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
