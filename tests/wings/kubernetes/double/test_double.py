"""The double of the API server, asked by the real `kubernetes` client: Jobs, pods, logs, watches."""

from __future__ import annotations

import json
import os
import threading

import pytest
from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException

from tests.wings.kubernetes.double.faults import Misbehaviour
from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.gangs import SLEEPS, job, running, until
from tests.wings.kubernetes.double.kube_double import KubeDouble

RANK = "import os; print('rank', os.environ['JOB_COMPLETION_INDEX'])"
TALKS = "import time\nfor i in range(3): print('line', i, flush=True); time.sleep(0.1)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True)\n"


def log_of(core: client.CoreV1Api, pod: str, **query: object) -> str:
    reply = core.read_namespaced_pod_log(pod, NAMESPACE, _preload_content=False, **query)
    return reply.data.decode()


def words_of(refused: pytest.ExceptionInfo[ApiException]) -> str:
    """Return the reason and the message of the server's Status."""
    status = json.loads(refused.value.body)
    return f"{status['reason']}: {status['message']}"


def test_the_pods_of_an_indexed_job_run_and_are_seen_from_birth_to_end(
    batch: client.BatchV1Api, core: client.CoreV1Api
) -> None:
    version = core.list_namespaced_pod(NAMESPACE).metadata.resource_version
    batch.create_namespaced_job(NAMESPACE, job("gang", RANK, pods=2))
    phases: dict[str, list[str]] = {}
    for event in watch.Watch().stream(
        core.list_namespaced_pod, NAMESPACE, resource_version=version, timeout_seconds=60
    ):
        pod = event["object"]
        index = pod.metadata.labels["batch.kubernetes.io/job-completion-index"]
        seen = phases.setdefault(index, [])
        if pod.status.phase not in seen[-1:]:
            seen.append(pod.status.phase)
        if [p[-1] for p in phases.values()] == ["Succeeded", "Succeeded"]:
            break
    assert phases == {"0": ["Pending", "Running", "Succeeded"], "1": phases["0"]}
    done = until(lambda: _complete(batch, "gang"), "the Job is complete")
    assert (done.status.succeeded, done.status.completed_indexes) == (2, "0,1")
    pods = core.list_namespaced_pod(NAMESPACE, label_selector="job-name=gang").items
    assert [log_of(core, pod.metadata.name) for pod in pods] == ["rank 0\n", "rank 1\n"]


def _complete(batch: client.BatchV1Api, name: str) -> client.V1Job | None:
    found = batch.read_namespaced_job_status(name, NAMESPACE)
    return found if found.status.completion_time else None


def test_a_log_is_followed_to_its_end_and_its_tail_is_read(
    kube: KubeDouble, batch: client.BatchV1Api, core: client.CoreV1Api
) -> None:
    batch.create_namespaced_job(NAMESPACE, job("talks", TALKS))
    (pod,) = running(kube, "talks")
    reply = core.read_namespaced_pod_log(pod, NAMESPACE, follow=True, _preload_content=False)
    assert b"".join(reply.stream()).decode() == "line 0\nline 1\nline 2\n"
    assert log_of(core, pod, tail_lines=1) == "line 2\n"
    assert log_of(core, pod, timestamps=True)[4:5] == "-"
    assert log_of(core, pod, limit_bytes=4) == "line"


def test_variables_come_from_the_spec_the_downward_api_and_a_secret(
    kube: KubeDouble, batch: client.BatchV1Api, core: client.CoreV1Api
) -> None:
    core.create_namespaced_secret(
        NAMESPACE, {"metadata": {"name": "keys"}, "data": {"key": "aHVzaA=="}}
    )
    variables = [
        {"name": "MINE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "key"}}},
        {"name": "BOTH", "value": "$(MINE)/$(KEY)"},
        {"name": "MASTER", "value": "env-0.gang:29500"},
    ]
    code = "import os; print(os.environ['BOTH'], os.environ['MASTER'], os.environ.get('USER'))"
    spec = {"env": variables, "ports": [{"containerPort": 29500}]}
    batch.create_namespaced_job(
        NAMESPACE, job("env", code, container=spec, pod={"subdomain": "gang"})
    )
    until(lambda: _complete(batch, "env"), "the Job is complete")
    (pod,) = core.list_namespaced_pod(NAMESPACE).items
    both, master, user = log_of(core, pod.metadata.name).split()
    assert (both, user) == (f"{pod.metadata.name}/hush", "None")
    assert master.startswith("127.0.0.1:")
    assert not master.endswith(":29500")


def test_a_name_that_is_taken_is_409(batch: client.BatchV1Api) -> None:
    batch.create_namespaced_job(NAMESPACE, job("twice"))
    with pytest.raises(ApiException) as refused:
        batch.create_namespaced_job(NAMESPACE, job("twice"))
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    assert "AlreadyExists" in words_of(refused)


def test_a_lost_reply_leaves_the_job_behind(kube: KubeDouble, batch: client.BatchV1Api) -> None:
    wrong = Misbehaviour(verb="create", resource="jobs.batch", count=1, lose_reply=True)
    with kube.misbehaving(wrong), pytest.raises(Exception, match=r"(?i)connection|aborted"):
        batch.create_namespaced_job(NAMESPACE, job("lost-reply"))
    with pytest.raises(ApiException) as refused:
        batch.create_namespaced_job(NAMESPACE, job("lost-reply"))
    assert refused.value.status == 409


@pytest.mark.parametrize(
    ("name", "namespace", "status", "words"),
    [
        ("a" * 64, NAMESPACE, 422, "must be no more than 63 characters"),
        ("Upper", NAMESPACE, 422, "RFC 1123"),
        ("fine", "nowhere", 404, 'namespaces "nowhere" not found'),
    ],
)
def test_a_bad_job_is_refused_in_the_servers_words(
    batch: client.BatchV1Api, name: str, namespace: str, status: int, words: str
) -> None:
    with pytest.raises(ApiException) as refused:
        batch.create_namespaced_job(namespace, job(name))
    assert refused.value.status == status
    assert words in words_of(refused)


def test_a_denial_names_verb_resource_and_account_and_the_review_says_the_same(
    kube: KubeDouble, batch: client.BatchV1Api
) -> None:
    kube.deny("create", "jobs.batch")
    with pytest.raises(ApiException) as refused:
        batch.create_namespaced_job(NAMESPACE, job("denied"))
    assert refused.value.status == 403
    assert 'cannot create resource "jobs" in API group "batch"' in words_of(refused)
    asked = {"verb": "create", "resource": "jobs", "group": "batch", "namespace": NAMESPACE}
    with kube.client() as connection:
        reviews = client.AuthorizationV1Api(connection)
        review = reviews.create_self_subject_access_review({"spec": {"resourceAttributes": asked}})
        assert review.status.allowed is False
        assert client.VersionApi(connection).get_code().git_version.startswith("v1.34")


def test_a_quota_refuses_jobs_with_403_and_pods_by_an_event(
    kube: KubeDouble, batch: client.BatchV1Api, core: client.CoreV1Api
) -> None:
    kube.set_quota("small", {"pods": "1", "count/jobs.batch": "1"})
    batch.create_namespaced_job(NAMESPACE, job("first", pods=2))
    with pytest.raises(ApiException) as refused:
        batch.create_namespaced_job(NAMESPACE, job("second"))
    assert refused.value.status == 403
    assert "exceeded quota: small" in words_of(refused)

    def messages() -> list[str]:
        chosen = "involvedObject.name=first,reason=FailedCreate"
        items = core.list_namespaced_event(NAMESPACE, field_selector=chosen).items
        return [event.message for event in items]

    assert "exceeded quota: small, requested: pods=1" in until(messages, "the event")[0]


def test_a_watch_from_a_forgotten_version_gets_410(
    kube: KubeDouble, core: client.CoreV1Api, batch: client.BatchV1Api
) -> None:
    version = core.list_namespaced_pod(NAMESPACE).metadata.resource_version
    batch.create_namespaced_job(NAMESPACE, job("one", RANK))
    kube.expire_resource_versions()
    with pytest.raises(ApiException) as gone:
        list(
            watch.Watch().stream(
                core.list_namespaced_pod, NAMESPACE, resource_version=version, timeout_seconds=5
            )
        )
    assert gone.value.status == 410


def test_bookmarks_carry_a_version_that_a_new_watch_may_begin_at(
    kube: KubeDouble, core: client.CoreV1Api, batch: client.BatchV1Api
) -> None:
    kube.api.bookmark_every_s = 0.05
    stream = watch.Watch().stream(
        core.list_namespaced_pod, NAMESPACE, allow_watch_bookmarks=True, timeout_seconds=30
    )
    mark = next(event for event in stream if event["type"] == "BOOKMARK")
    version = mark["raw_object"]["metadata"]["resourceVersion"]
    batch.create_namespaced_job(NAMESPACE, job("later", RANK))
    first = next(
        iter(
            watch.Watch().stream(
                core.list_namespaced_pod, NAMESPACE, resource_version=version, timeout_seconds=30
            )
        )
    )
    assert first["type"] == "ADDED"


def test_a_broken_watch_and_a_restart_lose_no_state(
    kube: KubeDouble, batch: client.BatchV1Api, core: client.CoreV1Api
) -> None:
    batch.create_namespaced_job(NAMESPACE, job("stays"))
    (pod,) = running(kube, "stays")
    ended: list[str] = []

    def look() -> None:
        try:
            for _ in watch.Watch().stream(core.list_namespaced_pod, NAMESPACE, timeout_seconds=60):
                kube.break_watches()
            ended.append("in order")
        except Exception as error:  # noqa: BLE001 - which one is the library's choice
            ended.append(type(error).__name__)

    looker = threading.Thread(target=look)
    looker.start()
    looker.join(60.0)
    assert ended not in ([], ["in order"])
    kube.restart()
    assert core.read_namespaced_pod(pod, NAMESPACE).status.phase == "Running"


def test_deletion_gives_the_grace_and_then_kills(
    kube: KubeDouble, batch: client.BatchV1Api, core: client.CoreV1Api
) -> None:
    batch.create_namespaced_job(NAMESPACE, job("stubborn", STUBBORN + SLEEPS, grace_s=1))
    (pod,) = running(kube, "stubborn")
    pid = kube.pids()[pod]
    until(lambda: log_of(core, pod), "it ignores SIGTERM now")
    deleted = core.delete_namespaced_pod(pod, NAMESPACE)
    assert deleted.metadata.deletion_grace_period_seconds == 1
    assert _lives(pid)
    until(lambda: not _lives(pid), "it is killed")
    until(lambda: _is_gone(core, pod), "its object is gone")


def test_a_job_deleted_without_a_policy_leaves_its_pods_and_with_background_takes_them(
    kube: KubeDouble, batch: client.BatchV1Api, core: client.CoreV1Api
) -> None:
    for name, policy in (("orphaned", None), ("cleaned", "Background")):
        batch.create_namespaced_job(NAMESPACE, job(name))
        (pod,) = running(kube, name)
        options = {"propagation_policy": policy} if policy else {}
        batch.delete_namespaced_job(name, NAMESPACE, **options)
        if policy:
            until(lambda gone=pod: _is_gone(core, gone), "the pod went with its Job")
        else:
            left = core.read_namespaced_pod(pod, NAMESPACE).metadata
            assert (left.owner_references, left.deletion_timestamp) == (None, None)


def test_a_suspended_job_has_no_pods_until_it_is_resumed(
    kube: KubeDouble, batch: client.BatchV1Api, core: client.CoreV1Api
) -> None:
    batch.create_namespaced_job(NAMESPACE, job("queued", RANK, suspend=True))
    until(
        lambda: batch.read_namespaced_job("queued", NAMESPACE).status.conditions, "it is suspended"
    )
    assert core.list_namespaced_pod(NAMESPACE).items == []
    batch.patch_namespaced_job("queued", NAMESPACE, {"spec": {"suspend": False}})
    until(lambda: _complete(batch, "queued"), "the Job is complete")


def test_nothing_is_left_when_it_closes(kube: KubeDouble, batch: client.BatchV1Api) -> None:
    child = "import subprocess; subprocess.run(['sleep', '300'])"
    batch.create_namespaced_job(NAMESPACE, job("left", child))
    (pod,) = running(kube, "left")
    pid = kube.pids()[pod]
    kube.close()
    assert not _lives(pid)
    assert not [t for t in threading.enumerate() if t.name.startswith("kube-double")]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _is_gone(core: client.CoreV1Api, pod: str) -> bool:
    try:
        core.read_namespaced_pod(pod, NAMESPACE)
    except ApiException as error:
        return error.status == 404
    return False
