"""Which ends are failures, interruptions, or as meant."""

from __future__ import annotations

import pytest

from tracks_dagster.reasons.endings import Ending, ending_check, ending_named, ending_of
from tracks_dagster.track.reasons import ReasonFamily, TerminationReason


@pytest.mark.parametrize("reason", TerminationReason)
def test_every_reason_asks_exactly_one_thing_of_people(reason: TerminationReason) -> None:
    expected = {
        ReasonFamily.AS_MEANT: Ending.AS_MEANT,
        ReasonFamily.CAPACITY: Ending.INTERRUPTION,
    }.get(reason.family, Ending.FAILURE)
    if reason is TerminationReason.ORCHESTRATOR_LOST:
        expected = Ending.INTERRUPTION  # the training itself did not fail
    assert ending_of(reason) is ending_named(reason.value) is expected


def test_a_reason_of_a_newer_version_wants_a_look() -> None:
    assert ending_named("eaten_by_bears") is Ending.FAILURE


@pytest.mark.parametrize(
    ("reason", "passed", "is_failure"),
    [("completed", True, False), ("preempted", False, False), ("unknown", False, True)],
)
def test_the_check_of_an_attempt_passes_warns_or_fails(
    reason: str, passed: bool, is_failure: bool
) -> None:
    told = ending_check(TerminationReason(reason))
    assert (told.passed, told.is_failure) == (passed, is_failure)
    assert told.words.startswith(f"{reason}: ")
