"""Gangs that have lost their attempt: they end fenced and commit nothing more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.gangs import TrainingRun
from tracks_dagster.stores import open_store
from tracks_dagster.track.names import EXIT_FENCED
from tracks_dagster.track.records import Kind


@pytest.fixture(params=["a folder", "S3"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store of either kind."""
    if request.param == "a folder":
        return str(tmp_path / "store")
    url: str = request.getfixturevalue("s3_url")
    return url


def test_a_zombie_that_meets_the_end_of_its_attempt_commits_nothing_more(
    tmp_path: Path, store_url: str
) -> None:
    run = TrainingRun(tmp_path, ranks=2, steps=100_000, every_steps=20, store=open_store(store_url))
    gang = run.start()
    gang.wait(until=lambda: len(run.records(Kind.CHECKPOINT_COMMITTED)) >= 2)
    run.open()  # ends attempt 1 and opens attempt 2, while the gang of attempt 1 trains on
    fence = run.records(Kind.ATTEMPT_ENDED)[-1].seq
    gang.wait()
    assert gang.exit_codes == [EXIT_FENCED, EXIT_FENCED]
    assert [record.kind for record in run.records() if record.seq > fence] == [Kind.ATTEMPT_OPENED]
    assert [word.reason for word in run.last_words(1)] == ["fenced", "fenced"]


def test_the_second_launch_of_one_attempt_is_fenced_before_its_first_step(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=3)
    attempt_id = run.open()
    assert run.train(attempt_id).exit_codes == [0]
    second = run.train(attempt_id)
    assert second.exit_codes == [EXIT_FENCED]
    assert "fenced by record" in second.log()
    assert len(run.records(Kind.ATTEMPT_PLACED)) == 1
    assert sorted(word.reason for word in run.last_words(attempt_id)) == ["completed", "fenced"]


def test_of_two_launches_at_once_exactly_one_trains(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, ranks=2, steps=3)
    attempt_id = run.open()
    gangs = [run.start(attempt_id), run.start(attempt_id)]
    for gang in gangs:
        gang.wait()
    assert sorted(gang.exit_codes for gang in gangs) == [[0, 0], [EXIT_FENCED, EXIT_FENCED]]
