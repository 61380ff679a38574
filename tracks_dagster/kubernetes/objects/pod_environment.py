"""The variables of a gang's pods, and who sets them.

The later layer wins: what helps by default, the template's container, the settings, the attempt.
What names the attempt itself is nobody's to change, and no value here is a secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tracks_dagster.attempts.ports import GangSpec
from tracks_dagster.kubernetes.objects.compute_demand import Demand, threads
from tracks_dagster.kubernetes.objects.job_names import job_name, pod_host
from tracks_dagster.kubernetes.objects.merging import by_key
from tracks_dagster.kubernetes.settings.cluster import ClusterSettings
from tracks_dagster.track import names
from tracks_dagster.track.records import Json

WORK = "/var/tracks"  # an emptyDir: what a pod writes there goes with it
MASTER_PORT = 29500  # torchrun's own default

INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"

# A failure has to be read in the log, and has to end the process. 3: torch's own default, end without
# aborting the communicators, which may hang; torchrun's agent would set 1 where nothing is set
# (torch 2.13: ProcessGroupNCCL.hpp, local_elastic_agent.py). Interfaces differ: NCCL_SOCKET_IFNAME
# is left to the settings.
_NCCL = {"NCCL_DEBUG": "WARN", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}

_FIELDS = {
    # Declared, though the Job's controller would add it: what it adds comes last, and a variable can
    # name only those before it.
    names.ENV_INDEX: f"metadata.annotations['{INDEX_ANNOTATION}']",
    names.ENV_NODE: "spec.nodeName",
    names.ENV_POD: "metadata.name",
    names.ENV_POD_UID: "metadata.uid",
}


def environment(
    spec: GangSpec, cluster: ClusterSettings, wanted: Demand, template: Iterable[Mapping[str, Json]]
) -> list[Json]:
    """Return the `env` of the container that trains. template: the entries of its template.

    `$(NAME)` in a value of the settings or the template is Kubernetes' own reference to a variable;
    in one of the attempt it is text.
    """
    fields = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in _FIELDS.items()
    ]
    own = {name: _literal(value) for name, value in _of_attempt(spec, cluster, wanted).items()}
    asked = {name: _literal(value) for name, value in spec.environment.items()}
    return by_key(
        "name",
        fields,
        _entries(own),
        _entries(_helpful(spec, wanted)),
        template,
        _entries(cluster.environment),
        _entries(asked),
    )


def master_host(spec: GangSpec, job_kind: str) -> str:
    """Return the name of the first pod in the cluster's DNS, as pods of its namespace find it."""
    name = job_name(spec.run_id, spec.attempt_id)
    return f"{pod_host(name, 0, job_kind)}.{name}"


def _of_attempt(spec: GangSpec, cluster: ClusterSettings, wanted: Demand) -> dict[str, str]:
    values = {
        names.ENV_STORE: spec.store_url,
        names.ENV_RUN_ID: spec.run_id,
        names.ENV_ATTEMPT_ID: str(spec.attempt_id),
        names.ENV_OPENED_SEQ: str(spec.opened_seq),
        names.ENV_WORK: WORK,
        names.ENV_IMAGE: cluster.image,
        names.ENV_TRAINER: names.TRAINER_FAMILY
        if spec.trainer == names.TRAINER_FAMILY
        else names.TRAINER_SCRIPT,
    }
    if (
        spec.trainer != names.TRAINER_FAMILY
    ):  # its source lies in the store; a manifest has no room for it
        values[names.ENV_TRAINER_KEY] = spec.trainer
    return values | {
        names.ENV_NODES: str(wanted.nodes),
        names.ENV_RANKS_PER_NODE: str(wanted.ranks_per_node),
        names.ENV_MASTER_ADDR: master_host(spec, cluster.job_kind),
        names.ENV_MASTER_PORT: str(MASTER_PORT),
        names.ENV_TERMINATION_GRACE_S: str(cluster.termination_grace_s),
    }


def _helpful(spec: GangSpec, wanted: Demand) -> dict[str, str]:
    found = {"PYTHONUNBUFFERED": "1"}  # a log that ends where the process did
    each = threads(spec.compute)
    if each is not None:
        found["OMP_NUM_THREADS"] = str(each)
    return found | (_NCCL if wanted.device.resource is not None else {})


def _entries(values: Mapping[str, str]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _literal(value: str) -> str:
    """Return the value so that a kubelet leaves it as it is: it reads $(NAME), and $$ as one $."""
    return value.replace("$", "$$") if "$(" in value or "$$" in value else value
