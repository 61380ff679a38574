"""A gang is ended in bounded time, whatever its pods and nodes do."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tests.fakes import FakeClock
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.wings.kubernetes.effects.kube_requests import Object
from tracks_dagster.wings.kubernetes.effects.lifecycle import KILL_S_MAX, Ending
from tracks_dagster.wings.kubernetes.pod_lives import OVERDUE_S

ASKED_BEFORE_S = 60.0  # a drain with 120 s of grace was begun so long ago
READY, SILENT = {"type": "Ready", "status": "True"}, {"type": "Ready", "status": "Unknown"}


class FakeHome:
    def __init__(self, *, is_ours: bool) -> None:
        self._is_ours = is_ours

    def owns(self, found: Object) -> bool:
        return self._is_ours


class FakeApi:
    """One pod that does not go. obeys: whether a deletion is at least written down."""

    home = FakeHome(is_ours=True)

    def __init__(self, clock: FakeClock, *, obeys: bool, node: Object | None = None) -> None:
        self._clock, self._obeys, self._node = clock, obeys, node
        self._leaves_at: str | None = None
        self.calls: list[str] = []

    def pods(self, ref: AttemptRef) -> list[Object]:
        self.calls.append("pods")
        meta: Object = {"name": "p-0", "uid": "u"}
        if self._leaves_at is not None:
            meta["deletionTimestamp"] = self._leaves_at
        return [{"metadata": meta, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}]

    def delete_pods(self, ref: AttemptRef, *, grace_s: int) -> None:
        self.calls.append("delete_pods")
        if self._obeys and self._leaves_at is None:
            until = self._clock() + timedelta(seconds=grace_s)
            self._leaves_at = until.strftime("%Y-%m-%dT%H:%M:%SZ")

    def job_of_anybody(self, ref: AttemptRef, kind: str) -> Object | None:
        return {"metadata": {"uid": "job-uid"}}

    def delete_job(self, name: str, kind: str, *, uid: str, doing: str) -> None:
        assert uid == "job-uid"
        self.calls.append("delete_job")

    def delete_service(self, name: str, *, doing: str) -> None:
        self.calls.append("delete_service")

    def node(self, name: str) -> Object | None:
        self.calls.append("node")
        if self._node is None:
            raise GangError("may not get nodes")
        return self._node


def ending(clock: FakeClock, api: FakeApi) -> Ending:
    return Ending(
        api,  # type: ignore[arg-type]
        now=clock,
        sleep=clock.advance,
        seconds=lambda: clock.at.timestamp(),
    )


def test_the_job_goes_first_so_that_it_makes_no_pods_in_place_of_the_ended_ones(
    clock: FakeClock,
) -> None:
    api = FakeApi(clock, obeys=True)
    ending(clock, api).kill(AttemptRef("r-1", 1), "Job")
    assert api.calls[0] == "delete_job"
    assert api.calls[-1] == "delete_service"


def test_a_pod_that_does_not_go_is_given_up_when_its_time_is_long_up(clock: FakeClock) -> None:
    api, began = FakeApi(clock, obeys=True), clock.at
    result = ending(clock, api).kill(AttemptRef("r-1", 1), "Job")["p-0"]
    assert result.reason == "DeletionOverdue"
    assert OVERDUE_S < (clock.at - began).total_seconds() < KILL_S_MAX


def test_a_pod_of_a_node_that_does_not_answer_is_given_up_sooner(clock: FakeClock) -> None:
    api = FakeApi(clock, obeys=True, node={"status": {"conditions": [SILENT]}})
    began = clock.at
    result = ending(clock, api).kill(AttemptRef("r-1", 1), "Job")["p-0"]
    assert result.reason == "NodeLost"
    assert (clock.at - began).total_seconds() < 10
    assert api.calls.count("node") == 1


def test_a_node_that_answers_is_asked_about_once(clock: FakeClock) -> None:
    api = FakeApi(clock, obeys=True, node={"status": {"conditions": [READY]}})
    result = ending(clock, api).kill(AttemptRef("r-1", 1), "Job")["p-0"]
    assert result.reason == "DeletionOverdue"
    assert api.calls.count("node") == 1


def test_pods_that_nobody_may_end_are_named_in_bounded_time(clock: FakeClock) -> None:
    api, began = FakeApi(clock, obeys=False), clock.at
    with pytest.raises(GangError, match=r"gang of r-1/a01: p-0 on n1 still live 40 s after"):
        ending(clock, api).kill(AttemptRef("r-1", 1), "Job")
    assert (clock.at - began).total_seconds() < KILL_S_MAX + 5


class DrainedApi(FakeApi):
    """Its pod was drained before, and goes two seconds after it is killed.

    As the API server writes it: a shorter grace counts from the first deletion
    (k8s.io/apiserver/pkg/registry/rest/delete.go, BeforeDelete).
    """

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock, obeys=True)
        self._asked_at = clock.at - timedelta(seconds=ASKED_BEFORE_S)
        self._killed_at: datetime | None = None
        self._end(grace_s=120)

    def pods(self, ref: AttemptRef) -> list[Object]:
        is_gone = self._killed_at and self._clock() - self._killed_at >= timedelta(seconds=2)
        return [] if is_gone else super().pods(ref)

    def delete_pods(self, ref: AttemptRef, *, grace_s: int) -> None:
        self._killed_at = self._killed_at or self._clock()
        self._end(grace_s)

    def _end(self, grace_s: int) -> None:
        until = self._asked_at + timedelta(seconds=grace_s)
        self._leaves_at = until.strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize("ahead_s", [0.0, 3600.0, -3600.0])
def test_a_pod_whose_grace_is_cut_short_late_is_seen_gone_whatever_the_clocks_say(
    clock: FakeClock, ahead_s: float
) -> None:
    api = DrainedApi(clock)
    began = clock.at
    here = Ending(
        api,  # type: ignore[arg-type]
        now=lambda: clock() + timedelta(seconds=ahead_s),
        sleep=clock.advance,
        seconds=lambda: clock.at.timestamp(),
    )
    assert here.kill(AttemptRef("r-1", 1), "Job") == {}
    assert 2 <= (clock.at - began).total_seconds() < 5


def test_what_another_home_made_is_not_ended(clock: FakeClock) -> None:
    api = FakeApi(clock, obeys=True)
    api.home = FakeHome(is_ours=False)
    api.pods = lambda ref: []  # type: ignore[method-assign]
    assert ending(clock, api).kill(AttemptRef("r-1", 1), "Job") == {}
    assert api.calls == []
