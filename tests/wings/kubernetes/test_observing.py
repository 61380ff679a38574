"""What an observed gang tells: where its ranks stand, how they ended, and why it cannot begin."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from kubernetes import client as library

from tests.fakes import FakeObjectStore
from tests.wings.kubernetes.double.environment import environment
from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.gangs import until
from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tests.wings.kubernetes.double.launching import (
    Clock,
    asked,
    is_gone,
    launcher_on,
    running,
    seen,
    spec,
    uid_of,
)
from tracks_dagster.attempts import pod_files
from tracks_dagster.attempts.effects.closing import is_over
from tracks_dagster.attempts.effects.gang_files import (
    BEAT_READ_S,
    FRESH_S,
    SILENT_S_MAX,
)
from tracks_dagster.attempts.pod_files import PodBeat, PodEnd
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.evidence import CANNOT_START, Evidence, RankEnd
from tracks_dagster.reasons.hangs import Beat, Phase
from tracks_dagster.track.errors import GangError, StoreUnavailable
from tracks_dagster.track.names import ENV_ASKED, ENV_CLUSTER_QUEUE, AttemptRef
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.effects import watched_gang
from tracks_dagster.wings.kubernetes.effects.launcher import IDLE_S
from tracks_dagster.wings.kubernetes.effects.pod_watch import PodWatch
from tracks_dagster.wings.kubernetes.job_names import job_name
from tracks_dagster.wings.kubernetes.pod_lives import OVERDUE_S
from tracks_dagster.wings.kubernetes.settings import ClassSettings

BOOT = "11111111-2222-3333-4444-555555555555"
JOBS_READ = ("get", "jobs.batch")
AT = "2026-01-31T02:00:00.000000Z"


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubeDouble]:
    """A double whose pods have no processes."""
    with kube_double(tmp_path / "kube", pretend=True) as double:
        yield double


@pytest.fixture
def clock() -> Clock:
    return Clock()


def put_beat(
    store: FakeObjectStore, kube: KubeDouble, pod: str, index: int, step: int, at: str = ""
) -> None:
    ranks = tuple(
        Beat(rank=rank, phase=Phase.COMPUTING, step=step, count=step)
        for rank in (2 * index, 2 * index + 1)
    )
    beat = PodBeat(pod=pod, node="node1", boot_id=BOOT, index=index, ranks=ranks, at=at)
    store.put(
        pod_files.beat_key(AttemptRef("r-1", 1), uid_of(kube, pod)), pod_files.encode_beat(beat)
    )


def put_end(store: FakeObjectStore, uid: str, index: int, *ranks: RankEnd) -> None:
    end = PodEnd(
        pod=f"p-{index}",
        node="node1",
        boot_id=BOOT,
        index=index,
        ranks=ranks,
        cgroup={"memory.events.oom_kill": index},
        kernel_lines=(f"line of pod {index}",),
    )
    store.put(pod_files.end_key(AttemptRef("r-1", 1), uid), pod_files.encode_end(end))


def beat_reads(store: FakeObjectStore) -> int:
    return sum(key.endswith("beat.json") for _, key in store.calls)


def pod_watches() -> list[threading.Thread]:
    """Return the threads of all watches of gangs."""
    return [thread for thread in threading.enumerate() if thread.name == "pod-watch"]


def judge(report: GangReport) -> str:
    """Return the reason that the report alone supports."""
    evidence = Evidence(
        run_id="r-1",
        attempt_id=1,
        launch_id=None,
        ranks=report.ranks,
        conditions=report.conditions,
    )
    return classify(evidence).reason


def start_problems(report: GangReport) -> list[str]:
    return [f"{c.reason}: {c.message}" for c in report.conditions if c.type == CANNOT_START]


# --- where the ranks stand


def test_every_rank_of_a_gang_whose_pods_run_stands_at_its_start_until_it_says_more(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    with launcher_on(kube, store, clock) as launcher:
        launcher.start(spec())
        names = running(kube)
        report = seen(launcher, lambda r: len(r.beats) == 4, "all ranks have a beat")
        assert [beat.phase for beat in report.beats] == [Phase.STARTING] * 4
        put_beat(store, kube, names[1], 1, step=7)
        clock.advance(BEAT_READ_S)
        report = launcher.observe(AttemptRef("r-1", 1))
    assert [beat.step for beat in report.beats] == [0, 0, 7, 7]
    assert report.boot_ids == {"node1": BOOT}
    assert report.started_at is not None


def test_beats_are_read_once_in_five_seconds_and_the_server_is_asked_nothing(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    with launcher_on(kube, store, clock) as launcher:
        launcher.start(spec())
        running(kube)
        seen(launcher, lambda r: len(r.beats) == 4, "all ranks have a beat")
        clock.freeze()
        launcher.observe(AttemptRef("r-1", 1))
        before, count = asked(kube), beat_reads(store)
        for _ in range(20):
            launcher.observe(AttemptRef("r-1", 1))
        assert beat_reads(store) == count
        clock.advance(BEAT_READ_S)
        launcher.observe(AttemptRef("r-1", 1))
        more = asked(kube) - before
    assert beat_reads(store) - count == 2  # one a pod
    assert more[JOBS_READ] == 0
    assert sum(count for (verb, _), count in more.items() if verb == "list") == 0


def test_a_gang_that_waits_for_a_node_has_no_beats_to_judge_a_hang_by(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    with launcher_on(kube, store, clock, node_selector={"zone": "moon"}) as launcher:
        launcher.start(spec())
        report = seen(launcher, lambda r: bool(r.conditions), "the scheduler has spoken")
    assert report.phase is GangPhase.ALIVE
    assert report.beats == ()
    assert [rank.rank for rank in report.ranks] == [0, 1, 2, 3]


def test_ranks_whose_pod_does_not_reach_the_store_are_not_taken_for_standing_still(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    with launcher_on(kube, store, clock) as launcher:
        launcher.start(spec())
        names = running(kube)
        seen(launcher, lambda r: len(r.beats) == 4, "all ranks have a beat")
        clock.freeze()

        def beats_after(seconds: float, *, at: str) -> int:
            clock.advance(seconds)
            put_beat(store, kube, names[0], 0, step=7, at=f"{at} of the first")
            put_beat(store, kube, names[1], 1, step=7, at="once")
            return len(launcher.observe(AttemptRef("r-1", 1)).beats)

        assert beats_after(BEAT_READ_S, at="1") == 4
        assert beats_after(FRESH_S, at="2") == 4  # a rank that hangs in a pod that is there
        assert beats_after(BEAT_READ_S, at="3") == 0
        assert beats_after(SILENT_S_MAX, at="4") == 4


# --- how they ended


def test_what_a_pod_wrote_of_its_ranks_goes_before_its_containers_one_exit_code(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher:
        launcher.start(spec())
        names = running(kube)
        seen(launcher, lambda r: bool(r.beats), "both pods are seen running")
        put_end(
            store,
            uid_of(kube, names[0]),
            0,
            RankEnd(rank=0, exit_code=0, started_at=AT, ended_at=AT, log_tail="all done"),
            RankEnd(rank=1, signal=11, started_at=AT, ended_at=AT, log_tail="oh no"),
        )
        kube.finish(names[0], 1)
        report = seen(launcher, is_gone, "the gang is gone")
    first, second, *others = report.ranks
    assert (first.exit_code, first.signal, first.log_tail) == (0, None, "all done")
    assert (second.exit_code, second.signal, second.log_tail) == (None, 11, "oh no")
    assert [rank.exit_code for rank in others] == [143, 143]
    assert report.kernel_lines == ("line of pod 0",)
    assert report.cgroup == {"memory.events.oom_kill": 0}
    assert report.ended_at is not None


def test_the_watch_ends_with_the_gang_and_another_process_reads_the_same_end(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher:
        launcher.start(spec())
        names = running(kube)
        seen(launcher, lambda r: bool(r.beats), "both pods are seen running")
        for name in names:
            kube.finish(name, 0)
        report = seen(launcher, is_gone, "the gang is gone")
        until(lambda: not pod_watches() or None, "no watch is left")
        launcher.kill(AttemptRef("r-1", 1))
    with launcher_on(kube, store) as other:
        again = other.observe(AttemptRef("r-1", 1))
    assert again.phase is GangPhase.GONE
    assert [rank.exit_code for rank in again.ranks] == [0] * 4
    assert again.ranks == report.ranks


def test_a_gang_that_nobody_looks_at_any_more_is_watched_no_more_until_the_next_look(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    with launcher_on(kube, store, clock) as launcher:
        launcher.start(spec())
        running(kube)
        launcher.observe(AttemptRef("r-1", 1))
        of_one = len(pod_watches())
        assert of_one > 0
        clock.advance(IDLE_S + 1)
        launcher.start(spec("r-2"))
        until(lambda: not pod_watches() or None, "no watch is left")
        assert launcher.observe(AttemptRef("r-1", 1)).phase is GangPhase.ALIVE
        assert len(pod_watches()) == of_one


def test_a_preempted_gang_is_seen_though_its_pods_are_deleted_at_once(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher:
        launcher.start(spec())
        names = running(kube)
        seen(launcher, lambda r: bool(r.beats), "both pods are seen running")
        kube.preempt(names[1])
        report = seen(launcher, is_gone, "the gang is gone")
    assert judge(report) == "preempted"


class Sick(FakeObjectStore):
    """A store that takes no evidence while it is sick."""

    is_sick = False

    def put(self, key: str, data: bytes | memoryview) -> None:
        if self.is_sick and "/pods/" in key:
            raise StoreUnavailable(f"Cannot put {key}: it is sick.")
        super().put(key, data)


def test_what_was_seen_is_held_until_the_store_has_taken_it(
    kube: KubeDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_gang, "STORED_S_MAX", 0.2)
    store = Sick()
    with launcher_on(kube, store) as launcher:
        launcher.start(spec())
        names = running(kube)
        seen(launcher, lambda r: bool(r.beats), "both pods are seen running")
        store.is_sick = True
        for name in names:
            kube.finish(name, 3)
        with pytest.raises(GangError, match=r"r-1/a01 ended: the object store has not taken it"):
            seen(launcher, is_gone, "the gang is gone")
        library.CoreV1Api(kube.client()).delete_collection_namespaced_pod(NAMESPACE)
        store.is_sick = False
        monkeypatch.setattr(watched_gang, "STORED_S_MAX", 30.0)
        report = seen(launcher, is_gone, "the gang is gone")
    assert [rank.exit_code for rank in report.ranks] == [3] * 4


def test_a_gang_that_was_killed_is_gone_though_the_watch_has_not_seen_its_job_go(
    kube: KubeDouble, store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with launcher_on(kube, store) as launcher:
        launcher.start(spec())
        running(kube)
        seen(launcher, lambda r: bool(r.beats), "both pods are seen running")
        take = PodWatch.changed

        def late(watch: PodWatch, resource: str, change: str, item: Json) -> None:
            if resource != "jobs":
                take(watch, resource, change, item)

        monkeypatch.setattr(PodWatch, "changed", late)
        launcher.kill(AttemptRef("r-1", 1))
        report = launcher.observe(AttemptRef("r-1", 1))
    assert report.phase is GangPhase.GONE
    assert all(rank.has_ended for rank in report.ranks)


def test_a_pod_that_saves_is_waited_for_though_this_machines_clock_is_far_ahead(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    with launcher_on(kube, store, clock) as launcher:
        launcher._tools = replace(
            launcher._tools, now=lambda: datetime.now(UTC) + timedelta(hours=1)
        )
        launcher.start(spec(ranks=1, ranks_per_node=1))
        (name,) = running(kube, count=1)
        seen(launcher, lambda r: bool(r.beats), "its pod is seen running")
        node = kube.pod(name)["spec"]["nodeName"]
        kube._cluster.ask(lambda: kube._cluster.kubelet.lost.add(node))  # it stays, as if it saved
        launcher.drain(AttemptRef("r-1", 1), grace_s=60.0)
        watched = launcher._gang(AttemptRef("r-1", 1))
        until(lambda: watched._seen().pods[0].leaves_at, "its deletion is seen")
        assert launcher.observe(AttemptRef("r-1", 1)).phase is GangPhase.ALIVE
        clock.advance(120.0 + OVERDUE_S + 1)
        report = seen(launcher, is_gone, "the pod that stays is given up")
    assert "DeletionOverdue" in {condition.reason for condition in report.conditions}


# --- why it cannot begin


def test_a_gang_that_began_long_ago_is_adopted_and_never_taken_for_one_that_cannot_begin(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    with launcher_on(kube, store, clock) as launcher:
        launcher.start(spec())
        running(kube)
    clock.advance(24 * 3600)
    with launcher_on(kube, store, clock) as adopter:
        report = adopter.observe(AttemptRef("r-1", 1))  # before the watch has seen the pods
        assert not is_over(report, clock.now())
        report = seen(adopter, lambda r: bool(r.beats), "both pods are seen running")
    assert not is_over(report, clock.now())


def test_a_gang_that_no_node_can_take_is_given_up_with_the_schedulers_words(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    with launcher_on(kube, store, clock, node_selector={"zone": "moon"}) as launcher:
        launcher.start(spec())
        report = seen(launcher, lambda r: bool(r.conditions), "the scheduler has spoken")
        assert not is_over(report, clock.now())
        clock.advance(901)
        report = seen(launcher, lambda r: is_over(r, clock.now()), "the gang is given up")
        (words,) = start_problems(report)
        assert words.startswith("Unschedulable: Pod ")
        assert "got no node within 900 s: 0/2 nodes are available" in words
        launcher.kill(AttemptRef("r-1", 1))
        closed = launcher.observe(AttemptRef("r-1", 1))
    assert start_problems(closed) == [words]
    assert judge(closed) == "scheduling_timeout"


def test_an_image_that_cannot_be_pulled_ends_the_wait_after_its_budget(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    kube.missing_images.add("train:1")
    with launcher_on(kube, store, clock) as launcher:
        launcher.start(spec())
        seen(launcher, lambda r: bool(r.conditions), "the kubelet has spoken")
        clock.advance(601)
        report = seen(launcher, lambda r: is_over(r, clock.now()), "the gang is given up")
    assert "Failed to pull image" in start_problems(report)[0]
    assert judge(report) == "image_pull"


def test_a_quota_that_allows_no_pods_is_reported_in_its_own_words(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    kube.set_quota("team", {"pods": "0"})
    with launcher_on(kube, store, clock) as launcher:
        launcher.start(spec())
        seen(launcher, lambda r: bool(r.conditions), "the Job's controller has spoken")
        clock.advance(901)
        report = seen(launcher, lambda r: is_over(r, clock.now()), "the gang is given up")
    assert "exceeded quota: team" in start_problems(report)[0]
    assert judge(report) == "scheduling_timeout"


def test_a_gang_that_a_quota_gives_only_a_part_of_its_pods_gives_that_part_back_early(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    kube.set_quota("team", {"pods": "1"})
    with launcher_on(kube, store, clock) as launcher:
        launcher.start(spec())
        seen(launcher, lambda r: bool(r.conditions), "the Job's controller has spoken")
        assert not is_over(launcher.observe(AttemptRef("r-1", 1)), clock.now())
        clock.advance(301)
        report = seen(launcher, lambda r: is_over(r, clock.now()), "the gang is given up")
    (words,) = start_problems(report)
    assert "lacked 1 of its pods for 300 s in which 1 of 2 pods held theirs" in words
    assert "exceeded quota: team" in words
    assert judge(report) == "scheduling_timeout"


def test_a_gang_that_its_queue_holds_back_waits_for_ever(
    kube: KubeDouble, store: FakeObjectStore, clock: Clock
) -> None:
    with launcher_on(kube, store, clock) as launcher:
        launcher.start(spec(queue="team"))
        launcher.observe(AttemptRef("r-1", 1))
        clock.advance(7 * 24 * 3600)
        report = seen(launcher, lambda r: bool(r.conditions), "the Job is seen suspended")
    assert report.phase is GangPhase.ALIVE
    assert not is_over(report, clock.now())


def test_a_class_is_queued_admitted_and_passed_to_its_pods_by_the_cluster(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    kueue = kube.install_kueue()
    kueue.add_queue("urgent")
    rack = "cloud.provider.com/topology-rack"
    urgent = ClassSettings(
        queue="urgent", workload_priority="high", topology_key=rack, topology_rule="required"
    )
    with launcher_on(kube, store, queue="training", classes={"urgent": urgent}) as launcher:
        launcher.start(replace(spec(), workload_class="urgent"))
        name = job_name(AttemptRef("r-1", 1))

        def workload() -> Json:
            return next(iter(kube.objects.all("workloads.kueue.x-k8s.io")[0]), None)

        asked = until(workload, "Kueue has a Workload for it")["spec"]
        assert (asked["queueName"], asked["priorityClassName"]) == ("urgent", "high")
        [pods] = asked["podSets"]
        annotations = pods["template"]["metadata"]["annotations"]
        assert annotations["kueue.x-k8s.io/podset-required-topology"] == rack
        kueue.admit(name)
        [pod, *_] = [kube.pod(each) for each in running(kube)]
    result = environment(pod, image={}, read=lambda *_: {})
    assert result[ENV_CLUSTER_QUEUE] == "cluster-queue"
    assert json.loads(result[ENV_ASKED]) == {
        "workload_class": "urgent",
        "queue": "urgent",
        "workload_priority": "high",
        "topology": f"{rack} (required)",
    }


# --- the sweeper


def test_what_stands_is_listed_with_its_attempt_and_store_and_swept_whole(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    with launcher_on(kube, store) as launcher:
        launcher.start(spec())
        running(kube)
        job, service = launcher.standing()
        assert (job.key, job.kind, job.store_url) == ("r-1/a01", "Job", "memory://fake")
        assert (service.key, service.kind) == ("r-1/a01", "Service")
        launcher.sweep(job)
        launcher.sweep(job)
        assert list(launcher.standing()) == []
        until(lambda: not kube.objects.all("pods")[0], "the pods are gone")
