"""A round of drills beside other work: declared, and scored once it is over."""

from __future__ import annotations

import pytest

from tests.examples import EXAMPLES
from tests.fakes import FakeObjectStore, SequentialUids
from tests.histories import History
from tests.stories import Story
from tracks_dagster.attempts.drills import claim_note, parse_drill
from tracks_dagster.attempts.effects.local.project_code import find_shipped
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import DRILL_JOB
from tracks_dagster.track.records import Kind
from tracks_dagster.wings.lab.effects.drill_round import begin_round, score_rounds


def shipped(name: str) -> FoundCode | None:
    return find_shipped(EXAMPLES, name, store_url="memory://fake", clean=str)


def test_a_round_declares_a_small_run_for_each_kind(
    data: Story, tracks: Tracks, ledger: Ledger, new_uid: SequentialUids
) -> None:
    for dataset in data.datasets:
        tracks.project(dataset.name)
    run_ids = begin_round(tracks, shipped, new_uid, ["preempt", "hang", "preempt"])
    runs = [tracks.run(run_id).declared for run_id in run_ids]
    assert [run.drills[0].kind for run in runs] == ["preempt", "hang"]
    assert {run.owner for run in runs} == {DRILL_JOB}
    assert score_rounds(tracks, ledger) == []  # they are not over


@pytest.mark.parametrize("kind", ["kill_daemon", "bad_batch", "preemt"])
def test_what_needs_the_home_for_itself_is_refused(tracks: Tracks, kind: str) -> None:
    with pytest.raises(InvalidInput, match="not a drill to play beside other work"):
        begin_round(tracks, lambda name: None, lambda: "", [kind])


def test_the_rounds_of_late_are_scored(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    drill = parse_drill("nan@13")
    for run_id, owner in (("drill-nan-1", DRILL_JOB), ("drill-nan-2", "ann")):
        history = History(run_id).declare(drills=(drill,), owner=owner).open().place().restore()
        history.add(Kind.NOTE, claim_note(0, drill), attempt_id=1)
        history.end("code_error", last_step=12).refuse().write_to(store)
        tracks.project(history.name)
    [row] = score_rounds(tracks, ledger)
    assert row.run_id == "drill-nan-1"
    assert "ended as code_error" in row.missing
