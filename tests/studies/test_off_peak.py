"""The hours in which a study may start trials, and what goes on outside of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.studies.played import Played, make_study
from tracks_dagster.studies.deciding import Answer, Drain, Spent, decide
from tracks_dagster.studies.off_peak import off_peak, wait_words
from tracks_dagster.studies.search import Waits
from tracks_dagster.track.bodies import StudyFinished, StudyStopped, TrialStopped
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Kind


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("hours", "now", "opens"),
    [
        ("22:00-06:00", "2026-11-25 21:59", "2026-11-25 22:00"),
        ("22:00-06:00", "2026-11-25 22:00", None),
        ("22:00-06:00", "2026-11-26 05:59", None),
        ("22:00-06:00", "2026-11-26 06:00", "2026-11-26 22:00"),
        ("09:00-12:00", "2026-11-26 12:00", "2026-11-27 09:00"),
        ("22:00-06:00 Europe/Paris", "2026-11-25 20:59", "2026-11-25 21:00"),
        ("22:00-06:00 and weekends", "2026-11-28 12:00", None),  # a Saturday
        ("22:00-23:00 and weekends", "2026-11-27 23:30", "2026-11-28 00:00"),
        ("22:00-06:00 and weekends", "2026-11-30 09:00", "2026-11-30 22:00"),
        # Clocks go back at 03:00 of 25 October, and forward at 02:00 of 28 March.
        ("22:00-06:00 Europe/Paris", "2026-10-25 04:30", None),
        ("22:00-06:00 Europe/Paris", "2026-10-25 05:00", "2026-10-25 21:00"),
        ("02:30-06:00 Europe/Paris", "2026-10-24 23:00", "2026-10-25 00:30"),
        ("02:30-06:00 Europe/Paris", "2027-03-28 00:00", "2027-03-28 01:00"),
        ("02:10-02:50 Europe/Paris", "2027-03-28 00:00", "2027-03-29 00:10"),  # not on that day
        ("02:30-04:00 Europe/Paris", "2026-10-25 01:00", "2026-10-25 01:30"),  # 02:30 again
    ],
)
def test_runs_start_in_the_hours_alone(hours: str, now: str, opens: str | None) -> None:
    assert off_peak(hours).opens_at(at(now)) == (None if opens is None else at(opens))


@pytest.mark.parametrize(
    ("hours", "why"),
    [
        ("at night", "'at night' are not hours; write for example"),
        ("22:00-25:00", "a time that no day has"),
        ("22:00-22:00", "leave it out for the whole day"),
        ("22:00-06:00 Europe", "'Europe' is not a time zone"),
        ("22:00-06:00 Mars/Base", "'Mars/Base' is not a time zone"),
    ],
)
def test_what_are_not_hours_is_refused(hours: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        off_peak(hours)


def test_hours_that_another_machine_could_read_are_a_sentence_and_no_error() -> None:
    now = at("2026-11-26 12:00")
    assert wait_words("22:00-06:00 Mars/Base", now).startswith("No run starts here: 'Mars/Base'")
    assert wait_words("", now) == ""


# --- outside of the hours -------------------------------------------------------------------------

CLOSED = Waits("outside of the hours")
HALVING = {"scheduler": {"kind": "halving", "eta": 3}, "budgets": (10, 30), "trials": 3}


def begun(proposed: int, *, judged: int, **changes: Any) -> Played:
    """Return a study that has proposed so many trials, of which the first so many are judged."""
    study = Played(make_study(**changes), lambda config, steps: float(config["lr"]))
    for _ in range(proposed):
        assert study.decide()
    for rung in study.state.open_rungs[:judged]:
        study.judge(rung)
    return study


def closed(study: Played, *, device_s: float = 0.0) -> Answer:
    """Return what follows outside of the hours, while the runs that are open train."""
    running = [rung.proposed.run_id for rung in study.state.open_rungs]
    spent = Spent(device_s=device_s, cost=0.0, running=running)
    return decide(study.state, spent, lambda: study.search, closed=CLOSED)


def test_outside_of_the_hours_no_trial_no_budget_and_no_repeat_is_begun() -> None:
    assert closed(begun(0, judged=0)) == CLOSED
    assert closed(begun(2, judged=0)) == CLOSED  # two slots are free
    assert closed(begun(3, judged=3, **HALVING)) == CLOSED
    repeated = begun(2, judged=2, trials=2, repeat={"best": 1, "seeds": 1})
    assert closed(repeated) == CLOSED


def test_outside_of_the_hours_what_trains_goes_on_and_trials_are_stopped() -> None:
    answer = closed(begun(2, judged=1, trials=2))
    assert isinstance(answer, Waits)
    assert "1 of 4 slots train" in answer.why
    halved = begun(3, judged=3, **HALVING)
    assert halved.decide()  # the best goes on, in the hours
    assert isinstance(closed(halved), TrialStopped)


def test_a_study_ends_at_any_hour() -> None:
    complete = closed(begun(2, judged=2, trials=2))
    assert isinstance(complete, StudyFinished)
    assert complete.cause == "complete"
    capped = begun(2, judged=0, max_device_hours=1.0)
    assert isinstance(closed(capped, device_s=3600.0), Drain)
    stopped = begun(2, judged=2)
    stopped.add(Kind.STUDY_STOPPED, StudyStopped(by="ann", why="Enough."))
    ended = closed(stopped)
    assert isinstance(ended, StudyFinished)
    assert ended.cause == "user"
