"""The double's pods take the shapes that a real cluster's took: event for event, field by field."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kubernetes import client

from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.gangs import SLEEPS, job, running, until
from tests.wings.kubernetes.double.kube_double import KubeDouble
from tests.wings.kubernetes.double.objects import Change
from tests.wings.kubernetes.double.telling import recorded, telling

GOES_QUIETLY = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0))\n"
IGNORES = "import signal, time; signal.signal(15, signal.SIG_IGN)\n"
READY = "open('ready', 'w').close()\n"  # in the pod's own folder, once its signals are set
HAS_CHILD = "import subprocess, sys; subprocess.run(['sleep', '300']); sys.exit({code})"
PATIENT = {"podReplacementPolicy": "Failed"}  # the Job counts a pod when it has ended


class Seen:
    """Every event of every pod, by the pod's name."""

    def __init__(self, kube: KubeDouble) -> None:
        self.events: dict[str, list[Json]] = {}
        kube.objects.listeners.append(self._note)

    def _note(self, change: Change) -> None:
        if change.resource == "pods":
            result = telling(change.type, change.new)
            self.events.setdefault(change.new["metadata"]["name"], []).append(result)


def alike(events: list[Json]) -> list[Json]:
    """A recording's watch began again at times: its ADDED is our MODIFIED."""
    return [{**e, "type": "DELETED" if e["type"] == "DELETED" else "SEEN"} for e in events]


@pytest.fixture
def seen(kube: KubeDouble) -> Seen:
    return Seen(kube)


def start(kube: KubeDouble, batch: client.BatchV1Api, given: Json) -> str:
    """Create a Job of one pod and return the pod, once its program has begun."""
    batch.create_namespaced_job(NAMESPACE, given)
    (pod,) = running(kube, given["metadata"]["name"])
    return pod


def ready(kube: KubeDouble, pod: str) -> None:
    until(lambda: (kube.folder_of(pod) / "ready").exists(), f"{pod} has set its signals")


DISRUPTIONS: list[tuple[str, str, int, Json, str, Callable[[KubeDouble, str], None], int]] = [
    # recording, program, grace, Job, container, fault, first recorded event that ours begin at
    ("preempted-by-scheduler", SLEEPS, 5, PATIENT, "c", KubeDouble.preempt, 4),
    ("evicted-by-api", IGNORES + READY + SLEEPS, 2, PATIENT, "c", KubeDouble.evict, 0),
    (
        "run-worker-preempted-by-scheduler-exits-0",
        GOES_QUIETLY + READY + SLEEPS,
        5,
        {},
        "dagster",
        KubeDouble.preempt,
        0,
    ),
]


@pytest.mark.parametrize(
    ("case", "program", "grace_s", "spec", "container", "fault", "begin"), DISRUPTIONS
)
def test_a_disruption_is_reported_as_it_was_recorded(
    kube: KubeDouble,
    batch: client.BatchV1Api,
    seen: Seen,
    case: str,
    program: str,
    grace_s: int,
    spec: Json,
    container: str,
    fault: Callable[[KubeDouble, str], None],
    begin: int,
) -> None:
    given = job("gone", program, grace_s=grace_s, container={"name": container}, **spec)
    pod = start(kube, batch, given)
    if READY in program:
        ready(kube, pod)
    fault(kube, pod)
    until(lambda: seen.events[pod][-1]["type"] == "DELETED", "the pod is gone")
    ours, theirs = seen.events[pod][begin:], recorded(case)
    if begin:
        theirs = theirs[1:]  # this recording began when the pod ran already
    assert alike(ours) == alike(theirs)


def test_memory_pressure_is_reported_as_it_was_recorded(
    kube: KubeDouble, batch: client.BatchV1Api, seen: Seen
) -> None:
    pod = start(kube, batch, job("pressed"))
    kube.press_memory(pod)
    until(lambda: not seen.events[pod][-1]["tracked"], "the Job has counted it")
    assert alike(seen.events[pod]) == alike(recorded("evicted-node-memory-pressure")[:-2])


@pytest.mark.parametrize(
    ("case", "code"),
    [("oomkilled-child-only-exit-7", 7), ("oomkilled-child-only-exit-0-phase-succeeded", 0)],
)
def test_the_oom_of_a_child_is_reported_as_it_was_recorded(
    kube: KubeDouble, batch: client.BatchV1Api, seen: Seen, case: str, code: int
) -> None:
    pod = start(kube, batch, job("child", HAS_CHILD.format(code=code)))
    until(lambda: kube.children(pod), "it has a child")
    kube.oom(pod, child=True)
    until(lambda: not seen.events[pod][-1]["tracked"], "the Job has counted it")
    (snapshot,) = recorded(case)
    assert alike([{**seen.events[pod][-1], "tracked": snapshot["tracked"]}]) == alike([snapshot])


def test_an_oom_of_one_rank_ends_the_gang_as_it_was_recorded(
    kube: KubeDouble, batch: client.BatchV1Api, seen: Seen
) -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(1))\n"
    given = job("ddpoom", code + READY + SLEEPS, pods=2, container={"name": "t"})
    batch.create_namespaced_job(NAMESPACE, given)
    first, second = running(kube, "ddpoom", pods=2)
    ready(kube, first)
    kube.oom(second)
    until(lambda: seen.events[first][-1]["type"] == "DELETED", "rank 0's pod is removed")
    until(lambda: not seen.events[second][-1]["tracked"], "the Job has counted rank 1's")
    assert alike(seen.events[second]) == alike(recorded("gang-rank1-oomkilled")[:-2])
    assert alike(seen.events[first]) == alike(recorded("gang-rank0-removed-after-rank1-oom"))


def test_a_lost_nodes_pod_stays_terminating_and_runs_on_beside_its_replacement(
    kube: KubeDouble, batch: client.BatchV1Api, core: client.CoreV1Api, seen: Seen
) -> None:
    zombie = start(kube, batch, job("lost", backoffLimit=1))
    kube.lose_node(core.read_namespaced_pod(zombie, NAMESPACE).spec.node_name)
    (replacement,) = [pod for pod in _two(kube) if pod != zombie]
    assert alike(seen.events[zombie]) == alike(recorded("node-lost-terminating-zombie"))
    nodes = {core.read_namespaced_pod(p, NAMESPACE).spec.node_name for p in (zombie, replacement)}
    assert nodes == {"node1", "node2"}
    for node in nodes:
        kube.restore_node(node)
    until(lambda: zombie not in kube.pids(), "its kubelet came back and killed it")


def _two(kube: KubeDouble) -> list[str]:
    return until(lambda: list(kube.pids()) if len(kube.pids()) == 2 else None, "a replacement runs")


def test_an_image_that_cannot_be_pulled_is_reported_as_it_was_recorded(
    kube: KubeDouble, batch: client.BatchV1Api, seen: Seen
) -> None:
    kube.missing_images.add("localhost/nope:1")
    batch.create_namespaced_job(NAMESPACE, job("bad", container={"image": "localhost/nope:1"}))
    (theirs,) = recorded("image-pull-backoff")
    wanted = [theirs["containers"], theirs["conditions"], theirs["phase"]]

    def backs_off() -> bool:
        ours = [events[-1] for events in seen.events.values()]
        return [[e["containers"], e["conditions"], e["phase"]] for e in ours] == [wanted]

    until(backs_off, "the kubelet backs off")


def test_a_pod_that_no_node_can_take_says_so_in_the_schedulers_words(
    kube: KubeDouble, batch: client.BatchV1Api, core: client.CoreV1Api
) -> None:
    wanted = {"resources": {"limits": {"nvidia.com/gpu": "16"}}}
    batch.create_namespaced_job(NAMESPACE, job("large", container=wanted))

    def said() -> client.V1PodCondition | None:
        pods = core.list_namespaced_pod(NAMESPACE).items
        return next((c for p in pods for c in p.status.conditions or ()), None)

    condition = until(said, "the scheduler has looked")
    assert (condition.type, condition.reason) == ("PodScheduled", "Unschedulable")
    assert condition.message.startswith("0/2 nodes are available: 2 Insufficient nvidia.com/gpu")


def test_a_full_volume_evicts_without_a_condition(
    kube: KubeDouble, batch: client.BatchV1Api, seen: Seen
) -> None:
    pod = start(kube, batch, job("full"))
    kube.fill_volume(pod, "scratch")
    until(lambda: not seen.events[pod][-1]["tracked"], "the Job has counted it")
    last = seen.events[pod][-1]
    assert (last["phase"], last["reason"]) == ("Failed", "Evicted")
    assert "DisruptionTarget" not in [c[0] for c in last["conditions"]]
