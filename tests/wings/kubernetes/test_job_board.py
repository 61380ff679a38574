"""Many gangs are looked at with one list, and wait once for a server that cannot be reached."""

from __future__ import annotations

from typing import cast

import pytest

from tests.fakes import FakeClock
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.wings.kubernetes.effects.gang_api import GangApi
from tracks_dagster.wings.kubernetes.effects.gang_job import BOARD_S, JobBoard, JobState
from tracks_dagster.wings.kubernetes.effects.kube_requests import Object


class FakeApi:
    """Lists nothing, or fails after a while."""

    def __init__(self, clock: FakeClock) -> None:
        self.is_down, self.lists, self._clock = True, 0, clock

    def jobs(self) -> list[Object]:
        self.lists += 1
        if self.is_down:
            self._clock.advance(40.0)
            raise GangError("Cannot list the gangs: out of reach.")
        return []


def board_on(clock: FakeClock, api: FakeApi) -> JobBoard:
    return JobBoard(cast(GangApi, api), seconds=lambda: clock.at.timestamp())


def test_of_many_gangs_only_one_waits_for_a_server_out_of_reach(clock: FakeClock) -> None:
    api, began = FakeApi(clock), clock.at
    board = board_on(clock, api)
    for number in range(20):
        with pytest.raises(GangError, match="out of reach"):
            board.look(AttemptRef(f"r-{number}", 1))
    assert api.lists == 1
    assert (clock.at - began).total_seconds() == 40.0


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_a_server_that_is_back_is_asked_again(clock: FakeClock, is_forgotten: bool) -> None:
    api = FakeApi(clock)
    board = board_on(clock, api)
    with pytest.raises(GangError):
        board.look(AttemptRef("r-1", 1))
    api.is_down = False
    if is_forgotten:
        board.forget()
    else:
        clock.advance(BOARD_S + 1)
    assert board.look(AttemptRef("r-1", 1)) is JobState.ABSENT
    assert api.lists == 2
