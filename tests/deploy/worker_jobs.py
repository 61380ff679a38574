"""The Job of a run worker, as our launcher makes it of the values and a code server's context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

import kubernetes.client
import kubernetes_validate
from dagster import DagsterInstance, DagsterRun
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster_k8s.client import DagsterKubernetesClient

from tests.deploy.values import KUBERNETES_VERSIONS, VALUES
from tracks_dagster.track.names import LABEL_APP, LABEL_ATTEMPT, LABEL_RUN, TAG_ATTEMPT
from tracks_dagster.wings.kubernetes.edge.run_launcher import TrackedK8sRunLauncher

RUN_AS = 10001  # the user of the Dockerfile


def run_worker_job(launcher: TrackedK8sRunLauncher, context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of the run worker of an attempt."""
    repository = RepositoryPythonOrigin(
        executable_path="python",
        code_pointer=ModuleCodePointer("tracks_dagster.definitions", "defs"),
        container_image="image",
        container_context=context,
    )
    run = DagsterRun(
        job_name="train_attempt",
        job_code_origin=JobPythonOrigin(job_name="train_attempt", repository_origin=repository),
        tags={TAG_ATTEMPT: "r-1/a02"},
    )
    sent: list[Any] = []
    instance = mock.Mock(spec=DagsterInstance)
    api = mock.Mock(spec=DagsterKubernetesClient)
    api.create_namespaced_job_with_retries.side_effect = lambda body, namespace: sent.append(body)
    with (
        mock.patch.object(TrackedK8sRunLauncher, "_instance", instance),
        mock.patch.object(launcher, "_api_client", api),
    ):
        launcher._launch_k8s_job_with_args("dagster-run-1", ["true"], run)
    (job,) = sent
    found: dict[str, Any] = kubernetes.client.ApiClient().sanitize_for_serialization(job)
    return found


def check_run_worker(job: dict[str, Any]) -> None:
    for version in KUBERNETES_VERSIONS:
        kubernetes_validate.validate(job, version, strict=True)
    pod = job["spec"]["template"]
    assert pod["spec"]["serviceAccountName"] == "tracks-supervisor"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 180
    assert pod["spec"]["priorityClassName"] == "tracks-supervisor"
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": "4Gi"}
    assert set(container["resources"]["requests"]) == {"cpu", "memory", "ephemeral-storage"}
    check_not_root(pod["spec"])
    named_here = [each["secretRef"]["name"] for each in container["envFrom"] if "secretRef" in each]
    assert {"tracks-postgres-url", "tracks-store"} <= {*named_here}
    variables = {each["name"]: each for each in container["env"]}
    assert variables["TRACKS_STORE"]["value"] == "s3://tracks"
    password = variables["DAGSTER_PG_PASSWORD"]["valueFrom"]["secretKeyRef"]
    assert password == {"name": "tracks-postgres", "key": "postgresql-password"}
    assert variables["DAGSTER_HOME"]["value"] == VALUES["global"]["dagsterHome"]
    assert "/etc/tracks" in {each["mountPath"] for each in container["volumeMounts"]}
    # Whose supervisor it is, but no pod of a gang: their policy, budget and sweeper leave it alone.
    labels = pod["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "dagster"  # by these its own budget finds it
    assert labels["app.kubernetes.io/component"] == "run_worker"
    assert labels[LABEL_RUN] == "r-1"
    assert labels[LABEL_ATTEMPT] == "2"
    assert LABEL_APP not in labels
    assert LABEL_APP not in job["metadata"]["labels"]


def check_not_root(pod: Mapping[str, Any]) -> None:
    """Assert what the Pod Security Standard "restricted" demands of a pod."""
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == RUN_AS
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False, container["name"]
        assert context["capabilities"] == {"drop": ["ALL"]}, container["name"]
