"""From one attempt and the cluster's settings to the objects that are its gang. Pure.

The request overrides the settings, the settings the pod template, the template the defaults
(`pod_template`). The same attempt and settings make the same bytes.
"""

from __future__ import annotations

from tracks_dagster.attempts.ports import GangSpec
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.compute_demand import Demand, demand
from tracks_dagster.wings.kubernetes.job_names import (
    ANNOTATION_ATTEMPT,
    MEMBER,
    gang_labels,
    job_name,
)
from tracks_dagster.wings.kubernetes.pod_template import MASTER_PORT, pod_template, read_parts
from tracks_dagster.wings.kubernetes.queueing import Marks, is_queued_by_kueue, marks_of
from tracks_dagster.wings.kubernetes.settings import JOB, JOB_SET, ClusterSettings

JOB_SET_API = "jobset.x-k8s.io/v1alpha2"


def gang_objects(spec: GangSpec, cluster: ClusterSettings) -> list[dict[str, Json]]:
    """Return the headless Service of a gang, then its Job (or JobSet), of the same name.

    Raises InvalidInput with everything that is wrong with the request, the settings and the
    template together.
    """
    problems: list[str] = []
    wanted = demand(spec.compute, cluster, problems, workload_class=spec.workload_class)
    parts = read_parts(spec, cluster, problems)
    if problems:
        key = spec.ref.key
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        title = f"Cannot start {key} on Kubernetes; what was asked for has {count}:"
        raise InvalidInput("\n".join([title, *(f"  {problem}" for problem in problems)]))
    gang = _job_spec(wanted, pod_template(spec, cluster, wanted, parts))
    if cluster.job_kind == JOB_SET:
        return [_service(spec, cluster), _job_set(spec, cluster, wanted, gang)]
    job = {
        "apiVersion": "batch/v1",
        "kind": JOB,
        "metadata": _metadata(spec, cluster, marks_of(wanted)),
        "spec": _suspended(wanted) | gang,
    }
    return [_service(spec, cluster), job]


def _service(spec: GangSpec, cluster: ClusterSettings) -> dict[str, Json]:
    """It gives each pod a name in DNS, from the moment that it has an address: the ranks look for
    each other before any of them is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(spec, cluster, Marks()),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": gang_labels(spec.ref),
            "ports": [{"name": "rendezvous", "port": MASTER_PORT, "protocol": "TCP"}],
        },
    }


def _job_spec(wanted: Demand, template: Json) -> dict[str, Json]:
    """One pod an index, and none a second time: a rank that comes back is another launch, and would
    be fenced. Without a policy for failed pods: one that is gone ends the gang, for any reason.

    TerminatingOrFailed: a pod counts as failed when its deletion begins, so that its gang learns it at
    once and can save together; with Failed, a Job whose node is lost would wait for a kubelet that
    never answers. It has no time to live: while it exists, nobody starts the attempt again.
    """
    return {
        "completionMode": "Indexed",
        "completions": wanted.nodes,
        "parallelism": wanted.nodes,
        "backoffLimit": 0,
        "podReplacementPolicy": "TerminatingOrFailed",
        "template": template,
    }


def _job_set(
    spec: GangSpec, cluster: ClusterSettings, wanted: Demand, gang: dict[str, Json]
) -> dict[str, Json]:
    """The same Job as the only member of a JobSet, which never starts it again.

    The Service is ours, as for a Job: with enableDNSHostnames the JobSet's controller would make one
    of its own, of the same name, and set the same subdomain.
    """
    marks = marks_of(wanted)
    member = {
        "name": MEMBER,
        "replicas": 1,
        # Volcano looks at the Job that owns the pods, KAI at the JobSet above it.
        "template": {"metadata": _marks(spec, Marks(annotations=marks.annotations)), "spec": gang},
    }
    return {
        "apiVersion": JOB_SET_API,
        "kind": JOB_SET,
        "metadata": _metadata(spec, cluster, marks),
        "spec": {
            **_suspended(wanted),
            "failurePolicy": {"maxRestarts": 0},
            "network": {"enableDNSHostnames": False},
            "replicatedJobs": [member],
        },
    }


def _metadata(spec: GangSpec, cluster: ClusterSettings, marks: Marks) -> dict[str, Json]:
    name = job_name(spec.ref)
    return {"name": name, "namespace": cluster.namespace, **_marks(spec, marks)}


def _marks(spec: GangSpec, marks: Marks) -> dict[str, Json]:
    key = spec.ref.key
    return {
        "labels": {**marks.labels, **gang_labels(spec.ref)},
        "annotations": {**marks.annotations, ANNOTATION_ATTEMPT: key},
    }


def _suspended(wanted: Demand) -> dict[str, Json]:
    """Kueue admits all pods of a gang or none, by lifting the suspension."""
    return {"suspend": True} if is_queued_by_kueue(wanted) else {}
