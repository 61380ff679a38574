"""A supervisor on a cluster: a person's stop and a gang that cannot begin both leave no Job behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.evidences import leave_word
from tests.fakes import FakeObjectStore, FakeOrchestrator, SequentialUids
from tests.histories import History
from tests.wings.kubernetes.double.faults import Misbehaviour
from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tests.wings.kubernetes.double.launching import Clock, launcher_on, running
from tracks_dagster.attempts.effects.supervise import Supervisor
from tracks_dagster.holds.effects.stops import request_stop
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons.evidence import START_FAILED, Evidence
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.track.track import code_key
from tracks_dagster.wings.kubernetes.effects.kube_requests import WAITS_S
from tracks_dagster.wings.kubernetes.effects.launcher import KubernetesLauncher

ROUNDS_MAX = 2000
TRIES = len(WAITS_S) + 1  # of one request
COMPUTE = ComputeRequest(launcher="kubernetes", ranks=2)


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubeDouble]:
    """A double whose pods have no processes."""
    with kube_double(tmp_path / "kube", pretend=True) as double:
        yield double


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tracks(store: FakeObjectStore, clock: Clock) -> Tracks:
    history = (
        History("r-1").declare(trainer=code_key("r-1", sha256_hex(b"a tar"))).open(compute=COMPUTE)
    )
    store.put(code_key("r-1", sha256_hex(b"a tar")), b"a tar")
    history.write_to(store)
    return Tracks(store, now=clock.now, new_uid=SequentialUids(), project=lambda track: None)


def supervise(
    tracks: Tracks, launcher: KubernetesLauncher, clock: Clock, sleep: Callable[[int], object]
) -> AttemptState | None:
    """Supervise r-1/a01; `sleep` is called between two looks, with their number."""
    rounds = iter(range(ROUNDS_MAX))
    supervisor = Supervisor(
        tracks=tracks,
        gangs=launcher,
        orchestrator=FakeOrchestrator(),
        foresee=lambda *_: {},
        policy=DEFAULT_POLICY,
        dagster_run_id="mine",
        host="run-worker",
        sleep=lambda seconds: sleep(next(rounds)),
        on_growth=lambda state: None,
        drain_grace_s=120.0,
        monotonic=clock.seconds,
    )
    return supervisor.supervise("r-1", 1)


def complete(kube: KubeDouble, store: FakeObjectStore, names: Iterable[str]) -> None:
    """End the pods as a gang that trained does: with 0, after a last word."""
    leave_word(store, "launch-1/exit/rank-0.json", "completed")
    for name in names:
        kube.finish(name, 0)


def test_a_stop_drains_the_gang_and_deletes_its_job(
    kube: KubeDouble, store: FakeObjectStore, tracks: Tracks, clock: Clock
) -> None:
    def day(number: int) -> None:
        if number == 0:
            running(kube)
        if number == 1:
            request_stop(tracks, "r-1", mode="drain", by="ann", why="its run was cancelled")
        if number > 1:
            clock.advance(0.1)

    with launcher_on(kube, store, clock) as launcher:
        attempt = supervise(tracks, launcher, clock, day)
    assert attempt is not None
    assert attempt.reason == "user_cancelled"
    assert kube.requests["deletecollection", "pods"] == 1  # by their grace; nobody had to kill
    assert [kube.objects.all(each)[0] for each in ("jobs.batch", "services", "pods")] == [[]] * 3


def test_a_gang_that_no_node_can_take_ends_its_attempt_and_leaves_no_job(
    kube: KubeDouble, store: FakeObjectStore, tracks: Tracks, clock: Clock
) -> None:
    with launcher_on(kube, store, clock, node_selector={"zone": "moon"}) as launcher:
        attempt = supervise(tracks, launcher, clock, lambda number: clock.advance(10))
    assert attempt is not None
    assert attempt.ended is not None
    assert attempt.reason == "scheduling_timeout"
    assert "nodes are available" in attempt.ended.root_message
    assert not attempt.ended.first_line_ran
    assert kube.objects.all("jobs.batch")[0] == []


def test_a_supervisor_that_dies_leaves_the_gang_to_the_next_one(
    kube: KubeDouble, store: FakeObjectStore, tracks: Tracks, clock: Clock
) -> None:
    def dies(number: int) -> None:
        raise KeyboardInterrupt

    with launcher_on(kube, store, clock) as launcher, pytest.raises(KeyboardInterrupt):
        supervise(tracks, launcher, clock, dies)
    names = running(kube)

    def day(number: int) -> None:
        if number == 1:
            complete(kube, store, names)

    with launcher_on(kube, store, clock) as launcher:
        attempt = supervise(tracks, launcher, clock, day)
    assert attempt is not None
    assert attempt.reason == "completed"
    assert kube.requests["create", "jobs.batch"] == 1


def test_a_cluster_that_refuses_the_gang_ends_the_attempt_with_its_words_as_evidence(
    kube: KubeDouble, store: FakeObjectStore, tracks: Tracks, clock: Clock
) -> None:
    kube.set_quota("team", {"count/jobs.batch": "0"})
    with launcher_on(kube, store, clock) as launcher:
        attempt = supervise(tracks, launcher, clock, lambda number: None)
    assert attempt is not None
    assert attempt.ended is not None
    evidence = from_json(Evidence, json.loads(store.objects[attempt.ended.evidence_key]))
    (result,) = [c for c in evidence.conditions if c.type == START_FAILED]
    assert "exceeds the quota team of namespace tracks" in result.message
    assert kube.objects.all("services")[0] == []


def test_an_api_server_in_trouble_ends_no_attempt_that_begins(
    kube: KubeDouble, store: FakeObjectStore, tracks: Tracks, clock: Clock
) -> None:
    def day(number: int) -> None:
        if number == 1:
            complete(kube, store, running(kube))

    trouble = Misbehaviour(verb="create", resource="jobs.batch", status=503, count=TRIES)
    with launcher_on(kube, store, clock) as launcher, kube.misbehaving(trouble):
        attempt = supervise(tracks, launcher, clock, day)
    assert attempt is not None
    assert attempt.reason == "completed"
    assert kube.requests["create", "jobs.batch"] == TRIES + 1
