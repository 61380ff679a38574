"""A gang's watcher against the double: what it stores of each end, and that it misses nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from kubernetes import client

from tests.fakes import FakeObjectStore, Fault
from tests.gang_lines import reason
from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.faults import Misbehaviour
from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.gangs import SLEEPS, job, running, until
from tests.wings.kubernetes.double.kube_double import KubeDouble
from tracks_dagster.wings.kubernetes.effects.change_stream import Backoff
from tracks_dagster.wings.kubernetes.effects.pod_evidence import TAILS, read_evidence
from tracks_dagster.wings.kubernetes.effects.pod_watch import Pace, PodWatch
from tracks_dagster.wings.kubernetes.sightings import GangSeen, PodStory

PREFIX = "runs/r/attempts/1"
QUICK = Pace(
    backoff=Backoff(s_min=0.01, s_max=0.1, refused_s=0.05),
    log_reads_per_s=100.0,
    log_every_s=0.05,
    tails_every_s=0.1,
)
SAYS = "print('step 1 with hunter2', flush=True)\n"
GOES_QUIETLY = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0))\n" + SAYS
STAYS = "import signal; signal.signal(15, lambda *_: print('asked to go, hunter2', flush=True))\n"
CHILD = (
    "import subprocess, sys; print('up', flush=True); subprocess.run(['sleep', '300']); sys.exit(7)"
)
Watching = Callable[..., PodWatch]


@pytest.fixture
def store() -> FakeObjectStore:
    return FakeObjectStore()


@pytest.fixture
def watching(kube: KubeDouble, store: FakeObjectStore) -> Iterator[Watching]:
    """Begin a watcher of the gang; each is stopped at the end."""
    begun: list[PodWatch] = []

    def begin(pace: Pace = QUICK) -> PodWatch:
        watch = PodWatch(
            kube.client(),
            namespace=NAMESPACE,
            selector="app=gang",
            store=store,
            prefix=PREFIX,
            now=lambda: datetime.now(UTC),
            clean=lambda text: text.replace("hunter2", "***"),
            pace=pace,
        )
        begun.append(watch)
        watch.start()
        return watch

    yield begin
    for watch in begun:
        watch.stop()


def gang(code: str = SLEEPS, *, pods: int = 1, **more: object) -> Json:
    """Return a Job whose pods carry its label."""
    made = job("gang", code, pods=pods, **more)
    made["spec"]["template"]["metadata"] = {"labels": {"app": "gang"}}
    return made


def begun(kube: KubeDouble, batch: client.BatchV1Api, given: Json) -> list[str]:
    batch.create_namespaced_job(NAMESPACE, given)
    return running(kube, "gang", pods=given["spec"]["completions"])


def one(watch: PodWatch, wanted: Callable[[PodStory], bool], what: str) -> PodStory:
    """Wait for a pod that is as wanted."""
    return until(lambda: next((p for p in watch.seen().pods if wanted(p)), None), what)


def has_log(pod: PodStory) -> bool:
    return "***" in pod.log


def stored(watch: PodWatch, store: FakeObjectStore) -> GangSeen:
    assert watch.flush(60.0)
    return read_evidence(store, PREFIX)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [(KubeDouble.preempt, "preempted"), (KubeDouble.evict, "node_drained")],
)
def test_a_pod_that_is_disrupted_and_gone_at_once_left_its_reason_and_its_log(
    kube: KubeDouble,
    batch: client.BatchV1Api,
    watching: Watching,
    store: FakeObjectStore,
    fault: Callable[[KubeDouble, str], None],
    expected: str,
) -> None:
    watch = watching()
    (name,) = begun(kube, batch, gang(GOES_QUIETLY + SLEEPS))
    one(watch, has_log, "its log was read while it ran")
    fault(kube, name)
    one(watch, lambda p: p.gone_at is not None, "it is gone")
    (pod,) = stored(watch, store).pods
    assert (pod.name, pod.missed, pod.index) == (name, False, 0)
    assert pod.leaves_at is not None
    assert pod.log == "step 1 with ***\n"
    assert reason(stored(watch, store)) == expected


def test_a_pod_that_is_deleted_by_force_has_the_tail_that_was_read_before(
    kube: KubeDouble,
    batch: client.BatchV1Api,
    core: client.CoreV1Api,
    watching: Watching,
    store: FakeObjectStore,
) -> None:
    watch = watching()
    (name,) = begun(kube, batch, gang(SAYS + SLEEPS))
    one(watch, has_log, "its log was read while it ran")
    core.delete_namespaced_pod(name, NAMESPACE, grace_period_seconds=0)
    one(watch, lambda p: p.gone_at is not None, "it is gone")
    gone = next(pod for pod in stored(watch, store).pods if pod.name == name)
    assert gone.log == "step 1 with ***\n"


def test_a_log_is_read_at_once_when_its_pod_is_to_go(
    kube: KubeDouble, batch: client.BatchV1Api, watching: Watching
) -> None:
    watch = watching(replace(QUICK, log_every_s=3600.0))
    ready = "open('ready', 'w').close()\n"
    stays = STAYS + ready + "while True: time.sleep(300)\n"
    (name,) = begun(kube, batch, gang("import time\n" + stays))
    until(lambda: (kube.folder_of(name) / "ready").exists(), "its signals are set")
    kube.evict(name)
    assert one(watch, has_log, "its log is read while it stays").is_over is False


def test_the_oom_of_a_child_is_read_from_the_containers_status(
    kube: KubeDouble, batch: client.BatchV1Api, watching: Watching, store: FakeObjectStore
) -> None:
    watch = watching()
    (name,) = begun(kube, batch, gang(CHILD))
    until(lambda: kube.children(name), "it has a child")
    kube.oom(name, child=True)
    one(watch, lambda p: p.is_over and p.log_is_whole, "it ended, and its log is read")
    assert stored(watch, store).pods[0].log == "up\n"
    assert reason(stored(watch, store)) == "host_oom"
    until(lambda: any(each.is_finished for each in watch.seen().jobs), "the Job has failed")


def test_of_a_gang_the_pod_that_ended_first_decides(
    kube: KubeDouble, batch: client.BatchV1Api, watching: Watching, store: FakeObjectStore
) -> None:
    watch = watching()
    _, second = begun(kube, batch, gang(SLEEPS, pods=2, grace_s=1))
    kube.oom(second)
    until(lambda: [p.is_over for p in watch.seen().pods] == [True, True], "both are over")
    assert [pod.index for pod in watch.seen().pods] == [0, 1]
    assert reason(stored(watch, store), pods=2, ranks_per_pod=4) == "host_oom"


def test_a_lost_nodes_zombie_is_kept_beside_its_replacement_and_decides(
    kube: KubeDouble, batch: client.BatchV1Api, watching: Watching, store: FakeObjectStore
) -> None:
    watch = watching()
    (zombie,) = begun(kube, batch, gang(backoffLimit=1))
    kube.lose_node(kube.pod(zombie)["spec"]["nodeName"])
    one(watch, lambda p: p.name != zombie and p.has_run, "its replacement runs")
    old = one(watch, lambda p: p.name == zombie, "the zombie")
    assert (old.is_over, old.leaves_at is not None) == (False, True)
    assert reason(stored(watch, store)) == "node_failure"


def test_an_image_that_cannot_be_pulled_is_reported(
    kube: KubeDouble, batch: client.BatchV1Api, watching: Watching, store: FakeObjectStore
) -> None:
    watch = watching()
    kube.missing_images.add("localhost/nope:1")
    batch.create_namespaced_job(NAMESPACE, gang(container={"image": "localhost/nope:1"}))
    until(lambda: reason(watch.seen()) == "image_pull", "the kubelet says so")
    assert reason(stored(watch, store)) == "image_pull"


def test_a_quota_that_lets_no_pod_in_is_read_from_the_jobs_event(
    kube: KubeDouble, batch: client.BatchV1Api, watching: Watching, store: FakeObjectStore
) -> None:
    watch = watching()
    kube.set_quota("small", {"pods": "0"})
    batch.create_namespaced_job(NAMESPACE, gang())
    until(lambda: watch.seen().events, "the event")
    assert reason(stored(watch, store)) == "scheduling_timeout"
    assert "exceeded quota: small" in watch.seen().events[0].message


def test_a_watch_that_is_cut_goes_on_where_it_was(
    kube: KubeDouble, batch: client.BatchV1Api, watching: Watching
) -> None:
    watch = watching()
    assert watch.wait_until_listed(60.0)
    kube.break_watches()
    (name,) = begun(kube, batch, gang())
    one(watch, lambda p: p.phase == "Running", "it runs")
    kube.restart()
    kube.kill(name)
    one(watch, lambda p: p.is_over, "it ended")
    assert watch.seen().gaps == ()
    assert kube.requests["list", "pods"] == 1


@pytest.mark.parametrize("status", [410, 429, 500])
def test_a_refused_watch_is_tried_again_and_nothing_is_lost(
    kube: KubeDouble, batch: client.BatchV1Api, watching: Watching, status: int
) -> None:
    watch = watching()
    assert watch.wait_until_listed(60.0)
    with kube.misbehaving(Misbehaviour(verb="watch", status=status, count=9)) as wrong:
        kube.break_watches()
        begun(kube, batch, gang())
        until(lambda: wrong.count <= 0, "it asked again")
        one(watch, lambda p: p.phase == "Running", "it runs")
    assert watch.seen().pods[0].missed is False


def test_what_went_while_nobody_could_watch_is_marked_and_read_from_events(
    kube: KubeDouble, batch: client.BatchV1Api, watching: Watching, store: FakeObjectStore
) -> None:
    watch = watching()
    (name,) = begun(kube, batch, gang(GOES_QUIETLY + SLEEPS, pods=1, backoffLimit=3))
    one(watch, has_log, "its log was read")
    down = Misbehaviour(status=503)
    with kube.misbehaving(down):
        kube.break_watches()
        kube.preempt(name)
        until(lambda: name not in kube.pids(), "its process is gone")
        until(lambda: _is_gone(kube, name), "its object is gone")
        kube.expire_resource_versions()
    gone = one(watch, lambda p: p.missed, "it is missed")
    assert gone.name == name
    gaps = until(lambda: watch.seen().gaps, "the gap is reported")
    assert "410" in gaps[0].why
    until(lambda: reason(watch.seen()) == "preempted", "the events are read again")
    pods = next(gap for gap in watch.seen().gaps if gap.resource == "pods")
    assert pods.missed == (name,)
    assert reason(stored(watch, store)) == "preempted"


def test_what_may_not_be_watched_is_a_problem_and_the_rest_goes_on(
    kube: KubeDouble, batch: client.BatchV1Api, watching: Watching
) -> None:
    kube.deny("list", "events")
    kube.deny("get", "pods/log")
    watch = watching()
    assert watch.wait_until_listed(60.0)
    begun(kube, batch, gang(SAYS + SLEEPS))
    result = until(lambda: found if len(found := watch.seen().problems) == 2 else None, "both")
    assert 'cannot list resource "events"' in result[0]
    assert "cannot get resource" in result[1]
    kube.allow("list", "events")
    until(lambda: len(watch.seen().problems) == 1, "the account may now")


def test_two_watchers_and_a_later_one_tell_one_story(
    kube: KubeDouble, batch: client.BatchV1Api, watching: Watching, store: FakeObjectStore
) -> None:
    first, second = watching(), watching()
    (name,) = begun(kube, batch, gang(GOES_QUIETLY + SLEEPS))
    for watch in (first, second):
        one(watch, has_log, "both read the log")
        watch.stop()
    kube.preempt(name)
    until(lambda: _is_gone(kube, name), "it is gone, and nobody saw it")
    store.fail("list", 1, Fault.FAILS)  # it lists the pods before it knows of the others
    third = watching()
    assert third.wait_until_listed(60.0)
    pod = one(third, lambda p: p.gone_at is not None, "the third knows it from the others")
    assert (pod.name, pod.missed, pod.log) == (name, True, "step 1 with ***\n")
    assert stored(third, store).pods == third.seen().pods
    assert len({key.split("/")[5] for key in store.objects}) == 3


def test_evidence_is_put_as_it_happens_in_segments_that_stay(
    kube: KubeDouble, batch: client.BatchV1Api, watching: Watching, store: FakeObjectStore
) -> None:
    store.fail("put", 1, Fault.FAILS)
    store.fail("put", 3, Fault.LOST_AFTER)
    watch = watching()
    (name,) = begun(kube, batch, gang(SAYS + SLEEPS))
    until(lambda: any(key.endswith(TAILS) for key in store.objects), "the tails of what runs")
    one(watch, has_log, "its log was read")
    until(lambda: watch.seen().jobs, "its Job is seen, by a watch of its own")
    assert watch.flush(60.0)
    before = {k: v for k, v in store.objects.items() if k.endswith(".jsonl")}
    kube.kill(name)
    one(watch, lambda p: p.is_over and p.log_is_whole, "it ended")
    assert stored(watch, store).pods == watch.seen().pods
    assert {k: store.objects[k] for k in before} == before
    names = sorted(key.rpartition("/")[2] for key in store.objects if not key.endswith(TAILS))
    assert names == [f"{number:06d}.jsonl" for number in range(len(names))]
    assert b"hunter2" not in b"".join(store.objects.values())
    lines = [json.loads(line) for data in before.values() for line in data.splitlines()]
    assert {line["kind"] for line in lines} >= {"pod", "job", "problem"}


def test_a_quiet_gang_costs_no_requests_but_its_logs(
    kube: KubeDouble, batch: client.BatchV1Api, watching: Watching
) -> None:
    watch = watching()
    begun(kube, batch, gang(SAYS + SLEEPS, pods=3))
    until(lambda: all(map(has_log, watch.seen().pods)) and watch.seen().pods, "all logs are read")
    asked = {k: v for k, v in kube.requests.items() if k[0] in ("list", "watch")}
    assert {k: v for k, v in asked.items() if k[1] != "events"} == {
        ("list", "pods"): 1,
        ("watch", "pods"): 1,
        ("list", "jobs.batch"): 1,
        ("watch", "jobs.batch"): 1,
    }


def _is_gone(kube: KubeDouble, pod: str) -> bool:
    return kube.objects.find("pods", NAMESPACE, pod) is None
