"""Following a journal as it grows: every line once, few reads of the store, bounded memory."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.fakes import FakeObjectStore
from tests.histories import History
from tests.seeds import fresh_seeds
from tests.wings.watch.health_cases import training
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import format_time
from tracks_dagster.wings.watch.health.effects import tails
from tracks_dagster.wings.watch.health.effects.tails import LOSSES_MAX, STEPS_MAX, Tails
from tracks_dagster.wings.watch.health.tail import NO_TAIL, Tail

BEGIN = datetime(2026, 1, 31, 2, 0, tzinfo=UTC)


class Journal:
    """A journal as a rank ships it: segments follow one another, the newest is put again, longer."""

    def __init__(self, store: FakeObjectStore, history: History, segment_bytes: int) -> None:
        self.store = store
        attempt = history.state.attempts[-1]
        self.prefix = journal_prefix(
            AttemptRef(history.run_id, attempt.attempt_id), history.launch_id, 0
        )
        self._segment_bytes = segment_bytes
        self._start = 0
        self._data = b""
        self.shipped = self._before = 0  # lines

    def write(self, kind: str, *, t: datetime, **fields: Any) -> None:
        line = json.dumps({"kind": kind, "t": format_time(t), **fields}).encode() + b"\n"
        if self._data and len(self._data) + len(line) > self._segment_bytes:
            self.ship()  # all but the line that does not fit any more
            self._start += len(self._data)
            self._before = self.shipped
            self._data = b""
        self._data += line

    def step(self, step: int, **fields: Any) -> None:
        line = {"step": step, "loss": 5.0 / step, "metrics": {}, "step_s": 0.4, "data_s": 0.1}
        self.write("step", t=BEGIN + timedelta(seconds=step), **line | fields)

    def ship(self) -> None:
        self.store.put(self.key, self._data)
        self.shipped = self._data.count(b"\n") + self._before

    @property
    def key(self) -> str:
        return f"{self.prefix}{self._start:012d}.jsonl"


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def history() -> History:
    return training(ranks=2)


@pytest.fixture
def seconds() -> Clock:
    return Clock()


def read(reader: Tails, history: History, seconds: Clock, *, after_s: float = 30.0) -> Tail:
    seconds.s += after_s
    return reader.read(history.state)


def test_a_run_without_a_gang_has_no_tail(store: FakeObjectStore, seconds: Clock) -> None:
    declared = History().declare()
    assert read(Tails(store, seconds=seconds), declared, seconds) == NO_TAIL
    assert read(Tails(store, seconds=seconds), declared.open(), seconds) == NO_TAIL


def test_however_it_is_shipped_each_line_is_taken_in_once(
    store: FakeObjectStore, history: History, seconds: Clock
) -> None:
    [seed] = fresh_seeds(1)
    chance = random.Random(seed)
    journal = Journal(store, history, segment_bytes=1000)
    reader = Tails(store, seconds=seconds)
    last = 0
    for _ in range(40):
        for _ in range(chance.randrange(12)):
            last += 1
            journal.step(last)
        if chance.random() < 0.8:
            journal.ship()
        seen = read(reader, history, seconds)
        first, shipped = max(1, journal.shipped - STEPS_MAX + 1), journal.shipped
        assert [s.step for s in seen.steps] == list(range(first, shipped + 1))
        assert seen.losses == tuple((n, 5.0 / n) for n in range(1, shipped + 1))


def test_a_look_costs_two_reads_and_no_list(
    store: FakeObjectStore, history: History, seconds: Clock
) -> None:
    journal = Journal(store, history, segment_bytes=10_000)
    for step in range(1, 200):
        journal.step(step)
    journal.ship()
    reader = Tails(store, seconds=seconds)
    read(reader, history, seconds)
    store.calls.clear()
    journal.step(200)
    journal.ship()
    assert read(reader, history, seconds).steps[-1].step == 200
    read(reader, history, seconds)  # nothing new
    assert Counter(method for method, _ in store.calls if method != "put") == {"get": 4}
    store.calls.clear()
    assert read(reader, history, seconds, after_s=0.5).steps[-1].step == 200
    assert store.calls == []  # just read


def test_of_a_long_journal_the_end_and_the_first_steps_are_read(
    store: FakeObjectStore, history: History, seconds: Clock
) -> None:
    journal = Journal(store, history, segment_bytes=10_000)
    for step in range(1, 3000):
        journal.step(step)
    journal.ship()
    seen = read(Tails(store, seconds=seconds), history, seconds)
    assert seen.steps[-1].step == 2999
    assert [s.step for s in seen.early] == list(range(1, 61))
    assert sum(method == "get" for method, _ in store.calls) <= tails.SEGMENTS_FIRST_MAX + 3
    assert len([key for key in store.objects if key.startswith(journal.prefix)]) > 20


def test_memory_is_bounded_and_old_losses_are_thinned_out(
    store: FakeObjectStore, history: History, seconds: Clock
) -> None:
    journal = Journal(store, history, segment_bytes=200_000)
    reader = Tails(store, seconds=seconds)
    for step in range(1, 5000):
        journal.step(step)
        if step % 500 == 0:
            journal.ship()
            read(reader, history, seconds)
    journal.ship()
    seen = read(reader, history, seconds)
    assert len(seen.losses) <= LOSSES_MAX
    assert seen.losses[0][0] < 1000
    newest = [step for step, _ in seen.losses[-64:]]
    assert newest == list(range(4936, 5000))


def test_torn_lines_nan_and_lines_of_a_newer_version_are_left_out(
    store: FakeObjectStore, history: History, seconds: Clock
) -> None:
    journal = Journal(store, history, segment_bytes=10_000)
    journal.step(1)
    journal.step(2, loss="nan")
    journal.write("step", t=BEGIN, step=3, step_s=0.2)  # a step that ended without a loss
    journal.write("of a newer version", t=BEGIN, anything=[1])
    journal.ship()
    store.objects[journal.key] += b'{"kind":"step","t":"2026'
    seen = read(Tails(store, seconds=seconds), history, seconds)
    assert [(s.step, s.loss) for s in seen.steps] == [(1, 5.0), (3, None)]
    assert seen.losses == ((1, 5.0),)


def test_a_step_twice_counts_by_its_later_line(
    store: FakeObjectStore, history: History, seconds: Clock
) -> None:
    journal = Journal(store, history, segment_bytes=10_000)
    for step in (1, 2, 3, 2):
        journal.step(step, loss=float(step * 10))
    journal.ship()
    seen = read(Tails(store, seconds=seconds), history, seconds)
    assert [s.step for s in seen.steps] == [1, 2]
    assert seen.losses == ((1, 10.0), (2, 20.0))


def test_a_segment_that_never_came_is_passed_after_a_while(
    store: FakeObjectStore, history: History, seconds: Clock
) -> None:
    journal = Journal(store, history, segment_bytes=500)
    reader = Tails(store, seconds=seconds)
    for step in range(1, 4):
        journal.step(step)
    journal.ship()
    read(reader, history, seconds)
    for step in range(4, 20):
        journal.step(step)
        if journal.key not in store.objects and step < 12:
            continue
        journal.ship()
    lost = sorted(key for key in store.objects if key.startswith(journal.prefix))[1]
    del store.objects[lost]
    assert read(reader, history, seconds).steps[-1].step < 19
    assert read(reader, history, seconds, after_s=tails.RELIST_S).steps[-1].step == 19


def test_ranks_devices_and_evaluations_are_taken_in(
    store: FakeObjectStore, history: History, seconds: Clock
) -> None:
    journal = Journal(store, history, segment_bytes=10_000)
    at = BEGIN
    for step in range(5, 30, 5):
        journal.step(step)
        at += timedelta(seconds=4)
        journal.write(
            "ranks",
            t=at,
            step=step,
            over=5,
            step_s=[0.4, 0.4],
            own_s=[0.2, 0.3],
            data_s=[0.1, 0.1],
            util=[40, None if step == 5 else 60 + step],
        )
    journal.write("evaluated", t=at, step=25, metrics={"validation_loss": 2.5})
    journal.ship()
    seen = read(Tails(store, seconds=seconds), history, seconds)
    assert [(g.step, g.own_s) for g in seen.gangs][-1] == (25, (0.2, 0.3))
    # Samples within 10 s are one, with the greatest of each rank.
    assert [each.percent for each in seen.use] == [(40, 75), (40, 85)]
    assert seen.evaluated[-1].metrics == {"validation_loss": 2.5}
    assert seen.last_line_at == at


def test_another_attempt_is_another_tail(
    store: FakeObjectStore, history: History, seconds: Clock
) -> None:
    journal = Journal(store, history, segment_bytes=10_000)
    journal.step(1)
    journal.ship()
    reader = Tails(store, seconds=seconds)
    assert read(reader, history, seconds).attempt_id == 1
    history.end("preempted", last_step=1).open().place().restore()
    assert read(reader, history, seconds).steps == ()
