"""`status` of many runs, by the ledger, says what their tracks say; where it cannot, they are read."""

from __future__ import annotations

from random import Random

import pytest

from tests.fakes import FakeClock, FakeObjectStore
from tests.histories import History
from tests.random_histories import random_run
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.review.effects.status import read_status
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import canonical_json, format_time
from tracks_dagster.track.track import log_key


def write_journals(history: History, store: FakeObjectStore) -> None:
    """Ship one step of every launch that was placed."""
    for attempt in history.state.attempts:
        if attempt.placed is None:
            continue
        launch_id = attempt.placed.launch_id
        step = {
            "kind": "step",
            "t": format_time(history.at),
            "step": attempt.resumed_step + 3,
            "loss": 5.0 / attempt.attempt_id,
            "cursor_to": 72,
            "indices_sha256": "0" * 64,
        }
        prefix = journal_prefix(AttemptRef(history.run_id, attempt.attempt_id), launch_id, 0)
        store.put(f"{prefix}{0:012d}.jsonl", canonical_json(step) + b"\n")


def records_read(store: FakeObjectStore, history: History) -> int:
    """How many records of the track were read since the calls were last forgotten."""
    return sum(
        what == "get" and key.startswith(f"{history.name}/log/") for what, key in store.calls
    )


@pytest.mark.parametrize("seed", range(25))
def test_a_line_by_the_ledger_is_the_line_by_the_track(
    seed: int, store: FakeObjectStore, tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    history = random_run(Random(seed), records_max=60)
    history.write_to(store)
    write_journals(history, store)
    tracks.project(history.name)
    [by_ledger] = read_status(tracks, ledger)
    [by_track] = read_status(tracks, ledger, run_id=history.run_id)
    assert by_ledger == by_track, f"seed {seed}"


def trained() -> History:
    return History().declare().open().supervise().place().restore().commit(10).commit(20)


def test_of_a_run_whose_gang_works_only_the_end_of_the_track_is_read(
    store: FakeObjectStore, tracks: Tracks, ledger: Ledger
) -> None:
    history = trained()
    history.write_to(store)
    write_journals(history, store)
    tracks.project(history.name)
    store.calls.clear()
    [line] = read_status(tracks, ledger)
    assert (line.state, line.step, line.waiting_for) == (
        "running",
        20,
        None,
    )  # its commit proves it
    assert records_read(store, history) == 2  # the last one, and that none follows


def test_a_record_that_the_ledger_has_not_taken_in_makes_the_track_speak(
    store: FakeObjectStore, tracks: Tracks, ledger: Ledger
) -> None:
    history = trained()
    history.write_to(store)
    write_journals(history, store)
    tracks.project(history.name)
    history.end("gpu_oom", last_step=23).write_to(store)
    [line] = read_status(tracks, ledger)
    assert line.reason == "gpu_oom"


def test_a_ledger_that_holds_another_last_record_is_not_believed(
    store: FakeObjectStore, tracks: Tracks, ledger: Ledger
) -> None:
    history = trained()
    history.write_to(store)
    write_journals(history, store)
    tracks.project(history.name)
    last = history.records[-1].seq
    changed = store.get(log_key(history.name, last))
    assert changed is not None
    store.put(log_key(history.name, last), changed.replace(b'"loss":3.5', b'"loss":3.6'))
    store.calls.clear()
    [line] = read_status(tracks, ledger)
    assert line.state == "running"
    assert records_read(store, history) > last
