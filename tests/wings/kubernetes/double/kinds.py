"""The resources that the double has, and which fields of each a client may select by.

`KUEUE` and `JOBSET` are those of two extensions; they are there once a test installs them.
"""

from __future__ import annotations

# resource -> kind, group/version, namespaced
Kinds = dict[str, tuple[str, str, bool]]
KINDS: Kinds = {
    "pods": ("Pod", "v1", True),
    "services": ("Service", "v1", True),
    "events": ("Event", "v1", True),
    "configmaps": ("ConfigMap", "v1", True),
    "secrets": ("Secret", "v1", True),
    "serviceaccounts": ("ServiceAccount", "v1", True),
    "persistentvolumeclaims": ("PersistentVolumeClaim", "v1", True),
    "resourcequotas": ("ResourceQuota", "v1", True),
    "limitranges": ("LimitRange", "v1", True),
    "nodes": ("Node", "v1", False),
    "namespaces": ("Namespace", "v1", False),
    "jobs.batch": ("Job", "batch/v1", True),
    "leases.coordination.k8s.io": ("Lease", "coordination.k8s.io/v1", True),
    "priorityclasses.scheduling.k8s.io": ("PriorityClass", "scheduling.k8s.io/v1", False),
    "poddisruptionbudgets.policy": ("PodDisruptionBudget", "policy/v1", True),
    "networkpolicies.networking.k8s.io": ("NetworkPolicy", "networking.k8s.io/v1", True),
    "storageclasses.storage.k8s.io": ("StorageClass", "storage.k8s.io/v1", False),
    "runtimeclasses.node.k8s.io": ("RuntimeClass", "node.k8s.io/v1", False),
    "customresourcedefinitions.apiextensions.k8s.io": (
        "CustomResourceDefinition",
        "apiextensions.k8s.io/v1",
        False,
    ),
}
_QUEUES = "kueue.x-k8s.io"
KUEUE: Kinds = {
    f"localqueues.{_QUEUES}": ("LocalQueue", f"{_QUEUES}/v1beta1", True),
    f"clusterqueues.{_QUEUES}": ("ClusterQueue", f"{_QUEUES}/v1beta1", False),
    f"resourceflavors.{_QUEUES}": ("ResourceFlavor", f"{_QUEUES}/v1beta1", False),
    f"workloads.{_QUEUES}": ("Workload", f"{_QUEUES}/v1beta1", True),
    f"workloadpriorityclasses.{_QUEUES}": ("WorkloadPriorityClass", f"{_QUEUES}/v1beta1", False),
}
JOBSETS = "jobsets.jobset.x-k8s.io"
JOBSET: Kinds = {JOBSETS: ("JobSet", "jobset.x-k8s.io/v1alpha2", True)}
REVIEWS = {
    "selfsubjectaccessreviews.authorization.k8s.io": "SelfSubjectAccessReview",
    "selfsubjectrulesreviews.authorization.k8s.io": "SelfSubjectRulesReview",
    "selfsubjectreviews.authentication.k8s.io": "SelfSubjectReview",
}

_EVERY = {"metadata.name", "metadata.namespace"}
_SELECTABLE = {
    "pods": {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName"}
    | {"spec.serviceAccountName", "spec.hostNetwork", "status.phase", "status.podIP"}
    | {"status.nominatedNodeName"},
    "events": {
        f"involvedObject.{name}"
        for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion")
    }
    | {"involvedObject.fieldPath", "reason", "reportingComponent", "source", "type"},
    "jobs.batch": {"status.successful"},
    "nodes": {"spec.unschedulable"},
    "namespaces": {"status.phase"},
    "secrets": {"type"},
}


def selectable(resource: str) -> set[str]:
    """Return the fields that a field selector may name."""
    return _EVERY | _SELECTABLE.get(resource, set())
