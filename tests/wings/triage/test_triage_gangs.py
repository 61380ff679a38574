"""How triage asks a launcher that answers with errors, until its time is over."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.fakes import FakeGangs
from tracks_dagster.attempts.ports import GangReport
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.wings.triage.effects.reading import Gangs

LIMIT = "tracks_dagster.wings.triage.effects.reading.ANSWERS_S_MAX"
REFUSED = "the API server answered 403"


class Failing(FakeGangs):
    """Answers a glance with an error, and of the run "hangs" not at all until `over`."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()

    def glance(self, ref: AttemptRef) -> GangReport:
        self.calls.append(("glance", ref.run_id, ref.attempt_id))
        if ref.run_id == "hangs":
            self.over.wait(60)
        raise GangError(REFUSED)


@pytest.fixture
def failing() -> Iterator[Failing]:
    failing = Failing()
    yield failing
    failing.over.set()


def test_a_launcher_whose_errors_took_all_the_time_is_not_asked_again(
    failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    gangs = Gangs(lambda name: failing, clean=lambda text: text)
    assert gangs.look("kubernetes", AttemptRef("r-1", 1)) == (None, REFUSED)
    monkeypatch.setattr(LIMIT, 0.0)  # as if that had taken all of it
    for run_id in ("r-2", "r-3"):
        report, problem = gangs.look("kubernetes", AttemptRef(run_id, 1))
        assert report is None
        assert (problem or "").endswith(f"the last one: {REFUSED}")
    assert len(failing.calls) == 1


def test_where_errors_came_before_the_silence_the_last_of_them_is_reported(
    failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMIT, 2.0)  # the first answer has to come within it
    gangs = Gangs(lambda name: failing, clean=lambda text: text)
    result = [
        gangs.look("kubernetes", AttemptRef(run_id, 1))[1] for run_id in ("r-1", "hangs", "r-3")
    ]
    given_up = f"launcher kubernetes gave nothing but errors in 2 s, the last one: {REFUSED}"
    assert result == [REFUSED, given_up, given_up]
    assert len(failing.calls) == 2
