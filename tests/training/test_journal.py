"""The journal: every line reaches the kernel at once and the store soon."""

from __future__ import annotations

import errno
import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fakes import FakeClock, FakeObjectStore, Fault
from tests.training.gangs import TrainingRun
from tracks_dagster.attempts.effects.local.launcher import LocalLauncher
from tracks_dagster.stores import journal_columns
from tracks_dagster.stores.journal_columns import (
    ColumnsWriter,
    longest_chain,
    read_index,
    read_table,
    stretch_of,
)
from tracks_dagster.track.errors import StoreError, StoreUnavailable
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.training import journal as journal_module
from tracks_dagster.training.journal import Journal


@pytest.fixture
def journal(tmp_path: Path, store: FakeObjectStore, clock: FakeClock) -> Journal:
    return Journal(tmp_path / "journal" / "rank-0.jsonl", store, prefix="j/", now=clock)


def shipped(store: FakeObjectStore) -> bytes:
    """The segments as the file they came from; their keys must follow one another."""
    whole = b""
    for key in sorted(store.objects):
        assert int(key.removeprefix("j/").removesuffix(".jsonl")) == len(whole)
        whole += store.objects[key]
    return whole


def test_a_line_is_in_the_kernel_when_write_returns(tmp_path: Path, journal: Journal) -> None:
    journal.write_step(1, {"loss": 0.5})
    (line,) = (tmp_path / "journal" / "rank-0.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "kind": "step",
        "t": "2026-01-31T02:00:00.000000Z",
        "step": 1,
        "loss": 0.5,
    }
    journal.close(ship=False)


def test_segments_follow_one_another_and_the_newest_grows(
    tmp_path: Path,
    store: FakeObjectStore,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES_MAX", 200)
    for step in range(1, 30):
        journal.write_step(step, {})
        if step % 2 == 0:
            journal.ship()
            whole = (tmp_path / "journal" / "rank-0.jsonl").read_bytes()
            assert shipped(store) == whole
    assert 1 < len(store.objects) < 20
    assert all(len(data) <= 200 for data in store.objects.values())
    journal.close(ship=True)
    assert shipped(store).count(b"\n") == 29


def with_columns(tmp_path: Path, store: FakeObjectStore, clock: FakeClock) -> Journal:
    """Return a journal of small segments whose columns are stored beside it."""
    prefix = "j/journal/rank-0/"
    columns = ColumnsWriter(store, journal=prefix)
    return Journal(tmp_path / "rank-0.jsonl", store, prefix=prefix, now=clock, columns=columns)


def write_steps(journal: Journal, first: int, last: int) -> None:
    for step in range(first, last + 1):
        journal.write_step(step, {"loss": 1 / step, "metrics": {"a": step}})
        journal.ship()


def stored_columns(store: FakeObjectStore) -> dict[str, list[int]]:
    """Return the steps of each file of columns, by its name."""
    files = {k.rpartition("/")[2]: v for k, v in store.objects.items() if "/columns-1/" in k}
    return {k: read_table(v, read_index(v), "step", []).step.tolist() for k, v in files.items()}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES_MAX", 300)
    monkeypatch.setattr(journal_columns, "BLOCK_BYTES", 1500)


def test_full_segments_are_stored_as_columns_too(
    tmp_path: Path, store: FakeObjectStore, clock: FakeClock, small: None
) -> None:
    journal = with_columns(tmp_path, store, clock)
    write_steps(journal, 1, 100)
    journal.close(ship=True)
    found = stored_columns(store)
    names = sorted(found)
    steps = [step for name in names for step in found[name]]
    assert steps == list(range(1, len(steps) + 1))
    assert 80 < len(steps) <= 100  # all but the last block's, which is not full
    stretches = [stretch_of(name) for name in names]
    assert longest_chain([each for each in stretches if each]) == stretches


class PickyStore(FakeObjectStore):
    """A store that takes no columns while it refuses them."""

    refuses = True

    def put(self, key: str, data: bytes | memoryview) -> None:
        if self.refuses and "/columns-" in key:
            raise StoreUnavailable(f"cannot put {key}")
        super().put(key, data)


@pytest.mark.parametrize("steps_refused", [20, 1000])
def test_columns_that_the_store_refuses_come_later_and_cost_no_line(
    steps_refused: int, tmp_path: Path, clock: FakeClock, small: None
) -> None:
    store = PickyStore()
    journal = with_columns(tmp_path, store, clock)
    for step in range(1, steps_refused + 1):
        journal.write_step(step, {"loss": 1.0})
        with suppress(StoreError):
            journal.ship()
    store.refuses = False
    write_steps(journal, steps_refused + 1, steps_refused + 50)
    journal.close(ship=True)
    segments = [key for key in sorted(store.objects) if "/journal/" in key]
    lines = b"".join(store.objects[key] for key in segments).count(b'"kind":"step"')
    assert lines == steps_refused + 50
    stretches = [stretch_of(name) for name in sorted(stored_columns(store))]
    chain = longest_chain([each for each in stretches if each])
    assert chain
    assert (chain == stretches) == (steps_refused == 20)  # else too many waited: there is a gap
    assert chain[-1][1] < int(segments[-1].rpartition("/")[2].removesuffix(".jsonl")) + 300


def test_columns_that_cannot_be_made_cost_themselves_alone(
    tmp_path: Path,
    store: FakeObjectStore,
    clock: FakeClock,
    small: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(journal_columns, "parse", broken)
    journal = with_columns(tmp_path, store, clock)
    write_steps(journal, 1, 100)
    journal.close(ship=True)
    assert stored_columns(store) == {}
    assert (
        b"".join(store.objects[key] for key in sorted(store.objects)).count(b'"kind":"step"') == 100
    )
    assert capsys.readouterr().err.count("no more columns") == 1


def test_nothing_new_means_nothing_is_written(store: FakeObjectStore, journal: Journal) -> None:
    journal.write("start")
    journal.ship()
    calls = len(store.calls)
    journal.ship()
    assert len(store.calls) == calls
    journal.close(ship=True)
    assert len(store.calls) == calls


def test_a_store_that_is_down_costs_no_line(store: FakeObjectStore, journal: Journal) -> None:
    journal.write("start")
    store.fail("put", 1, Fault.FAILS)
    with pytest.raises(StoreError):
        journal.ship()
    journal.write_step(1, {})
    journal.close(ship=True)
    assert shipped(store).count(b"\n") == 2


def test_a_full_disk_costs_lines_and_tears_none(
    tmp_path: Path,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write = os.write
    room = 100  # bytes that the disk takes, 7 at a time

    def scarce(file: int, data: bytes) -> int:
        nonlocal room
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(file, data[:7])
        room -= count
        return count

    with monkeypatch.context() as patch:
        patch.setattr(journal_module.os, "write", scarce)
        for step in range(1, 5):
            journal.write_step(step, {})
    journal.write_step(5, {})
    text = (tmp_path / "journal" / "rank-0.jsonl").read_text()
    assert [json.loads(line)["step"] for line in text.splitlines()] == [1, 5]
    assert capsys.readouterr().err.count("No space left on device") == 1
    journal.close(ship=False)
    assert "lost 3 lines" in capsys.readouterr().err


def test_a_line_that_comes_after_the_end_goes_nowhere(tmp_path: Path, journal: Journal) -> None:
    journal.close(ship=False)
    with (tmp_path / "another").open("w") as taken:  # may have the number of the closed file
        journal.write("save", step=2)
        assert taken.tell() == 0
    assert (tmp_path / "another").read_text() == ""
    journal.close(ship=False)


def test_a_fenced_journal_ships_nothing_more(store: FakeObjectStore, journal: Journal) -> None:
    journal.write("start")
    journal.close(ship=False)
    assert store.objects == {}


def test_the_journal_survives_kill_minus_nine(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=100_000, every_steps=None)
    gang = run.start()
    folder = gang.work / "journal"

    def steps_on_disk() -> int:
        return sum(path.read_text().count('"kind":"step"') for path in folder.glob("*/*.jsonl"))

    gang.wait(until=lambda: steps_on_disk() >= 30)
    assert gang.ranks[0].pid is not None
    os.kill(gang.ranks[0].pid, signal.SIGKILL)
    gang.ranks[0].join()
    (path,) = folder.glob("*/rank-0.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [line["step"] for line in lines if line["kind"] == "step"]
    assert lines[0]["kind"] == "start"
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 30


def test_what_a_killed_rank_did_not_ship_its_launcher_does(
    tmp_path: Path, store: FakeObjectStore, clock: FakeClock
) -> None:
    path = tmp_path / "r" / "a01" / "journal" / "launch" / "rank-0.jsonl"
    prefix = "runs/r/attempts/1/launch/journal/rank-0/"
    journal = Journal(path, store, prefix=prefix, now=clock)
    journal.write("start")
    journal.ship()
    journal.write_step(1, {})
    journal.close(ship=False)
    LocalLauncher(tmp_path).ship(AttemptRef("r", 1), store)
    assert b"".join(store.objects[key] for key in sorted(store.objects)) == path.read_bytes()


def test_a_store_that_is_away_is_complained_of_once_and_counted(
    journal: Journal, store: FakeObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    journal._closing.set()  # its own thread ships nothing
    for number in range(1, 6):
        store.fail("put", number, Fault.FAILS)
    journal.write_step(1, {})
    for _ in range(6):
        journal._try_ship()
    result = capsys.readouterr().err.splitlines()
    assert len(result) == 2
    assert "cannot ship rank-0.jsonl, trying on" in result[0]
    assert "shipped rank-0.jsonl after 5 failed tries" in result[1]
    journal.close(ship=False)
