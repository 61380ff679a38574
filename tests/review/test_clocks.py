"""A clock that is set back or ahead, at any record: everything that walks a run by its times holds."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.fakes import FakeClock, FakeObjectStore, SequentialUids
from tests.histories import History
from tests.reports import render_report
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.track_states import rows_of
from tracks_dagster.review.effects.explain.run import explain_attempt, explain_run
from tracks_dagster.review.effects.status import run_line
from tracks_dagster.review.explain.text import run_text
from tracks_dagster.track.states.lifecycle import run_status
from tracks_dagster.wings.watch.health.effects.looking import look_back

JUMPS = {
    "a second back": timedelta(seconds=-1),
    "an hour back": timedelta(hours=-1),
    "a day back": timedelta(days=-1),
    "a day ahead": timedelta(days=1),
    "ten years ahead": timedelta(days=3650),
}
RECORDS = 13  # of the longest run below


def jumped(at: int, jump: timedelta, *, finishes: bool) -> History:
    """Return a run of two attempts, whose writer's clock jumps before the record `at`."""
    history = History("r-1")
    real = history.add_draft

    def add_draft(draft: object) -> None:
        if len(history.records) == at:
            history.at += jump
        real(draft)  # type: ignore[arg-type]

    history.add_draft = add_draft  # type: ignore[method-assign,assignment]
    history.declare().open().supervise().place().restore().commit(20)
    history.end("preempted", last_step=23).open().place().restore().commit(40)
    if finishes:
        history.end("completed", last_step=40).finish()
    return history


@pytest.mark.parametrize("finishes", [True, False], ids=["finished", "open"])
@pytest.mark.parametrize("jump", JUMPS)
def test_a_clock_that_jumps_keeps_no_run_from_being_explained(jump: str, finishes: bool) -> None:
    for at in range(RECORDS):
        store = FakeObjectStore()
        history = jumped(at, JUMPS[jump], finishes=finishes)
        history.write_to(store)
        clock = FakeClock()
        tracks = Tracks(store, now=clock, new_uid=SequentialUids(), project=lambda track: None)
        explained = explain_run(tracks, "r-1")
        assert len(explained.attempts) == 2, at
        assert run_text(explained), at
        assert explain_attempt(tracks, "r-1", 2).attempt_id == 2
        assert "attempt 2" in render_report(tracks, "r-1"), at
        assert run_line(tracks, history.state, None).attempt_id == 2
        assert run_status(history.state).why
        look_back(store, history.records, {1, 2}, clock())
        assert rows_of(history.name, history.state, None, history.records)
