"""The launcher on a cluster: at most one gang an attempt, looked at cheaply, ended and seen gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client as library

from tests.fakes import FakeObjectStore
from tests.wings.kubernetes.double import furniture
from tests.wings.kubernetes.double.faults import Misbehaviour
from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.gangs import until
from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tests.wings.kubernetes.double.launching import (
    Clock,
    asked,
    is_gone,
    launcher_on,
    pods_of,
    running,
    seen,
    spec,
)
from tracks_dagster.attempts.effects.closing import is_over
from tracks_dagster.attempts.ports import GangPhase
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.wings.kubernetes.effects.gang_job import BOARD_S, NEVER_S
from tracks_dagster.wings.kubernetes.effects.launcher import DRAIN_AGAIN_S
from tracks_dagster.wings.kubernetes.job_names import job_name
from tracks_dagster.wings.kubernetes.manifests import gang_objects

JOB, PODS, SERVICES = "jobs.batch", "pods", "services"
NAME = job_name(AttemptRef("r-1", 1))


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubeDouble]:
    """A double whose pods have no processes."""
    with kube_double(tmp_path / "kube", pretend=True) as double:
        yield double


@pytest.fixture
def clock() -> Clock:
    return Clock()


# --- start


def test_a_gang_is_one_job_and_one_service_no_matter_who_starts_it_how_often(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as first, launcher_on(kube, store) as second:
        assert first.start(spec())
        assert not first.start(spec())
        assert not second.start(spec())
        running(kube)
    jobs, _ = kube.objects.all(JOB)
    services, _ = kube.objects.all(SERVICES)
    assert [job["metadata"]["name"] for job in jobs] == [NAME]
    assert [service["metadata"]["name"] for service in services] == [NAME]
    assert services[0]["metadata"]["ownerReferences"][0]["uid"] == jobs[0]["metadata"]["uid"]


def test_a_gang_whose_starter_died_before_it_remembered_is_adopted_and_remembered(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher:
        launcher.start(spec())
        store.objects.clear()
    with launcher_on(kube, store) as adopter:
        report = adopter.observe(AttemptRef("r-1", 1))
        assert report.phase is GangPhase.ALIVE
        assert [rank.rank for rank in report.ranks] == [0, 1, 2, 3]
        adopter.kill(AttemptRef("r-1", 1))
        assert not adopter.start(spec())


def test_an_attempt_never_has_a_second_gang_after_the_first_was_killed(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher, launcher_on(kube, store) as other:
        launcher.start(spec())
        launcher.kill(AttemptRef("r-1", 1))
        assert not launcher.start(spec())
        assert not other.start(spec())
        assert other.glance(AttemptRef("r-1", 1)).phase is GangPhase.GONE
    assert kube.objects.all(JOB)[0] == []


def test_a_reply_that_was_lost_starts_no_second_gang(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    wrong = Misbehaviour(verb="create", resource=JOB, count=1, lose_reply=True)
    with launcher_on(kube, store) as launcher, kube.misbehaving(wrong):
        launcher.start(spec())
        assert launcher.observe(AttemptRef("r-1", 1)).phase is GangPhase.ALIVE
    assert len(kube.objects.all(JOB)[0]) == 1


def test_a_server_in_trouble_is_asked_again(kube: KubeDouble, store: FakeObjectStore) -> None:
    wrong = Misbehaviour(verb="create", count=2, status=503)
    with launcher_on(kube, store) as launcher, kube.misbehaving(wrong):
        assert launcher.start(spec())


def test_a_job_of_that_name_that_is_another_attempts_is_reported_and_left_alone(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher:
        _, job = gang_objects(spec(), launcher._tools.cluster)
        job["metadata"]["annotations"] = {"tracks/attempt": "other/a07"}
        library.BatchV1Api(kube.client()).create_namespaced_job(NAMESPACE, job)
        with pytest.raises(GangError, match=rf"Cannot start r-1/a01: Job {NAME}.*other/a07"):
            launcher.start(spec())
    assert len(kube.objects.all(JOB)[0]) == 1


def test_a_job_of_the_same_attempt_of_another_home_is_not_adopted(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher:
        launcher.start(spec())
    elsewhere = FakeObjectStore("memory://other")
    with launcher_on(kube, elsewhere) as other:
        theirs = spec()
        object.__setattr__(theirs, "store_url", elsewhere.url)
        with pytest.raises(GangError, match=r"another store \(memory://fake\)"):
            other.start(theirs)


@pytest.mark.parametrize(
    ("verb", "resource", "words"),
    [("create", JOB, r"create.*jobs"), ("create", SERVICES, r"create.*services")],
)
def test_a_missing_permission_is_named_with_verb_and_resource(
    kube: KubeDouble, store: FakeObjectStore, verb: str, resource: str, words: str
) -> None:
    kube.deny(verb, resource)
    with launcher_on(kube, store) as launcher, pytest.raises(GangError, match=words) as raised:
        launcher.start(spec())
    assert "start r-1/a01" in str(raised.value)
    assert NAMESPACE in str(raised.value)


def test_a_namespace_that_is_not_there_is_named(kube: KubeDouble, store: FakeObjectStore) -> None:
    no_namespace = pytest.raises(GangError, match="there is no namespace nowhere")
    with launcher_on(kube, store, namespace="nowhere") as launcher, no_namespace:
        launcher.start(spec())


def test_a_quota_that_is_too_small_is_named(kube: KubeDouble, store: FakeObjectStore) -> None:
    kube.set_quota("team", {"count/jobs.batch": "0"})
    with launcher_on(kube, store) as launcher, pytest.raises(GangError, match="quota"):
        launcher.start(spec())


def test_everything_wrong_with_a_request_is_named_at_once(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher, pytest.raises(GangError, match="2 errors"):
        launcher.start(spec(device_class="moon", ranks=3))
    assert kube.objects.all(JOB)[0] == []


# --- glance


def test_fifty_gangs_are_glanced_at_with_one_list(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    with launcher_on(kube, store, clock) as launcher:
        for number in range(50):
            launcher.start(spec(f"r-{number}", ranks=1, ranks_per_node=1))
        clock.freeze()
        before = asked(kube)
        phases = {launcher.glance(AttemptRef(f"r-{number}", 1)).phase for number in range(50)}
        assert phases == {GangPhase.ALIVE}
        assert asked(kube) - before == {("list", JOB): 1}
        clock.advance(BOARD_S + 1)
        assert launcher.glance(AttemptRef("r-7", 1)).sees_all_nodes
        assert asked(kube) - before == {("list", JOB): 2}


def test_a_gang_that_never_was_costs_the_store_one_look_and_the_server_none(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    with launcher_on(kube, store, clock) as launcher:
        clock.freeze()
        launcher.glance(AttemptRef("r-9", 1))
        before, reads = asked(kube), len(store.calls)
        for _ in range(5):
            assert launcher.glance(AttemptRef("r-1", 1)).phase is GangPhase.NEVER_STARTED
        assert len(store.calls) - reads == 1
        assert asked(kube) == before
        clock.advance(NEVER_S + BOARD_S)
        assert launcher.glance(AttemptRef("r-1", 1)).phase is GangPhase.NEVER_STARTED
        assert len(store.calls) - reads == 2


def test_a_gang_that_another_process_has_just_started_is_not_taken_for_gone(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher, launcher_on(kube, store) as starter:
        launcher.glance(AttemptRef("r-9", 1))  # its list is from before the start
        starter.start(spec())
        assert launcher.glance(AttemptRef("r-1", 1)).phase is GangPhase.ALIVE


def test_pods_that_outlive_their_job_keep_the_gang_alive(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher, launcher_on(kube, store) as late:
        launcher.start(spec())
        running(kube)
        library.BatchV1Api(kube.client()).delete_namespaced_job(
            NAME, NAMESPACE, propagation_policy="Orphan"
        )
        assert late.glance(AttemptRef("r-1", 1)).phase is GangPhase.ALIVE
        assert late.observe(AttemptRef("r-1", 1)).phase is GangPhase.ALIVE
        late.kill(AttemptRef("r-1", 1))
        assert late.glance(AttemptRef("r-1", 1)).phase is GangPhase.GONE
    assert pods_of(kube) == []


# --- drain and kill


def test_a_drain_deletes_the_pods_once_however_often_it_is_asked_for(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    with launcher_on(kube, store, clock) as launcher:
        launcher.start(spec())
        running(kube)
        seen(launcher, lambda report: bool(report.beats), "both pods are seen running")
        before = asked(kube)
        for _ in range(5):
            launcher.drain(AttemptRef("r-1", 1), grace_s=30.0)
        assert (asked(kube) - before)["deletecollection", PODS] == 1
        assert (asked(kube) - before)["list", PODS] == 1
        report = seen(launcher, is_gone, "the drained gang is gone")
        assert all(rank.has_ended for rank in report.ranks)
        assert len(kube.objects.all(JOB)[0]) == 1  # it stays, as a mark that the attempt had a gang
        clock.advance(DRAIN_AGAIN_S + 1)
        launcher.drain(AttemptRef("r-1", 1), grace_s=30.0)


def test_a_shorter_grace_is_asked_for_at_once(kube: KubeDouble, store: FakeObjectStore) -> None:
    with launcher_on(kube, store) as launcher:
        launcher.start(spec())
        running(kube)
        before = asked(kube)
        launcher.drain(AttemptRef("r-1", 1), grace_s=30.0)
        launcher.drain(AttemptRef("r-1", 1), grace_s=5.0)
        launcher.drain(AttemptRef("r-1", 1), grace_s=5.0)
        assert (asked(kube) - before)["list", PODS] == 2


def test_a_gang_that_has_no_pods_yet_is_drained_by_deleting_its_job(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher:
        launcher.start(spec(queue="team"))
        launcher.drain(AttemptRef("r-1", 1), grace_s=30.0)
        assert launcher.observe(AttemptRef("r-1", 1)).phase is GangPhase.GONE
    assert kube.objects.all(JOB)[0] == []


def test_a_kill_leaves_neither_job_nor_pods_nor_service(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher:
        launcher.start(spec())
        seen(launcher, lambda report: bool(report.beats), "both pods are seen running")
        launcher.kill(AttemptRef("r-1", 1))
        launcher.kill(AttemptRef("r-1", 1))
        report = launcher.observe(AttemptRef("r-1", 1))
    assert report.phase is GangPhase.GONE
    assert [rank.exit_code for rank in report.ranks] == [143] * 4
    assert [len(kube.objects.all(each)[0]) for each in (JOB, PODS, SERVICES)] == [0, 0, 0]


def test_a_kill_reads_first_what_ended_while_nobody_watched(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher:
        launcher.start(spec())
    names = running(kube)
    kube.finish(names[1], 7)
    until(lambda: kube.pod(names[1])["status"]["phase"] == "Failed", "rank 2's pod has ended")
    with launcher_on(kube, store) as late:
        late.kill(AttemptRef("r-1", 1))
        ends = late.observe(AttemptRef("r-1", 1)).ranks
    assert [rank.exit_code for rank in ends[2:]] == [7, 7]


def test_killing_a_gang_that_never_was_does_nothing(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher:
        launcher.kill(AttemptRef("r-1", 1))
        assert launcher.observe(AttemptRef("r-1", 1)).phase is GangPhase.NEVER_STARTED
        assert launcher.start(spec())


def test_a_pod_on_a_lost_node_is_unreachable_and_keeps_nobody_waiting(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    with launcher_on(kube, store, clock) as launcher:
        launcher.start(spec())
        names = running(kube)
        launcher.observe(AttemptRef("r-1", 1))
        node = kube.pod(names[0])["spec"]["nodeName"]
        kube.lose_node(node)
        launcher.kill(AttemptRef("r-1", 1))  # an error after KILL_S_MAX
        report = launcher.observe(AttemptRef("r-1", 1))
        zombie = kube.pod(names[0])
    assert zombie["status"]["phase"] == "Running"
    assert report.phase is GangPhase.GONE
    result = [c for c in report.conditions if c.type == "PodUnreachable"]
    assert [c.reason for c in result] == ["NodeLost"]
    assert f"Pod {names[0]} on {node} was deleted" in result[0].message
    assert "fenced" in result[0].message


def test_a_killed_pod_whose_silent_node_was_not_yet_given_up_is_unreachable_too(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    with launcher_on(kube, store, clock) as launcher:
        launcher.start(spec())
        names = running(kube)
        seen(launcher, lambda report: bool(report.beats), "both pods are seen running")
        node = kube.pod(names[0])["spec"]["nodeName"]
        cut_off(kube, node)
        launcher.kill(AttemptRef("r-1", 1))
        report = launcher.observe(AttemptRef("r-1", 1))
    assert report.phase is GangPhase.GONE
    result = [c for c in report.conditions if c.type == "PodUnreachable"]
    assert [c.reason for c in result] == ["NodeLost"]


def cut_off(kube: KubeDouble, node: str) -> None:
    """Let the node fall silent, before anybody deletes its pods for it."""

    def deed() -> None:
        kube._cluster.kubelet.lost.add(node)
        found = kube.objects.get("nodes", "", node)
        kube.objects.change("nodes", found, lambda n: furniture.answers(n, ready="Unknown"))

    kube._cluster.ask(deed)


def test_a_gang_all_of_whose_pods_are_on_a_lost_node_is_over(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    with launcher_on(kube, store, clock) as launcher:
        launcher.start(spec(ranks=1, ranks_per_node=1))
        (name,) = running(kube, count=1)
        launcher.observe(AttemptRef("r-1", 1))
        kube.lose_node(kube.pod(name)["spec"]["nodeName"])
        report = seen(launcher, lambda r: is_over(r, clock.now()), "the zombie's gang is over")
    assert is_gone(report)
    assert "PodUnreachable" in {condition.type for condition in report.conditions}


def test_who_may_not_end_pods_learns_so_and_the_gang_stays(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher:
        launcher.start(spec())
        running(kube)
        kube.deny("delete", JOB)
        with pytest.raises(GangError, match=r"Cannot end r-1/a01.*delete.*jobs"):
            launcher.kill(AttemptRef("r-1", 1))
        assert launcher.glance(AttemptRef("r-1", 1)).phase is GangPhase.ALIVE
