"""A person's `kubernetes.yaml` as `ClusterSettings`. Pure: the file comes as located values.

Nothing is guessed and nothing skipped; all errors are collected, each with its line. What is an object
of the API (volumes, the pod template) is kept in the API's own words: `fragments` reads it.

    image: registry.example.com/team/train:2026-01-31
    namespace: training
    termination_grace: 2min
    device_classes:
      a100: {resource: nvidia.com/gpu, node_selector: {gpu: a100}}
    environment_from: [{secretRef: {name: object-store}}]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tracks_dagster.attempts.kube_words import DNS_NAME, LABEL_KEY, QUEUE_NAME
from tracks_dagster.kubernetes.settings.cluster import (
    CPU,
    JOB_KINDS,
    PULL_POLICIES,
    ClusterSettings,
    DeviceClass,
)
from tracks_dagster.kubernetes.settings.fragments import (
    read_environment,
    read_environment_from,
    read_json_mapping,
    read_mounts,
    read_pod_template,
    read_tolerations,
    read_volumes,
    unmounted,
)
from tracks_dagster.kubernetes.settings.nodes import (
    DNS_LABEL,
    Read,
    read_items,
    read_labels,
    said,
    scalar,
    word,
)
from tracks_dagster.track.text import units
from tracks_dagster.track.text.located import Node, Problem, entries, problem
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import shown

NO_IMAGE = "image is missing: name the image that gangs run, as `image: registry/name:tag`."

_IMAGE = re.compile(r"[A-Za-z0-9][\w.:/@-]{0,1023}", re.ASCII)
_RESOURCE = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9][\w.-]{0,62}", re.ASCII)


def read_cluster(root: Node | None) -> tuple[ClusterSettings | None, list[Problem]]:
    """Return what the file says, None when it cannot be used, and everything that is wrong with it."""
    if root is None:
        return None, [Problem(line=1, words=NO_IMAGE)]
    problems: list[Problem] = []
    found: dict[str, Any] = {}
    given = entries(root, "The file", problems)
    for key, node in given:
        if key not in _KEYS:
            problems.append(problem(node, key, unknown("key", key, list(_KEYS))))
            continue
        name, read = _KEYS[key]
        found[name] = read(key, node, problems)
    if isinstance(root.value, Mapping) and "image" not in root.value:
        problems.append(Problem(line=root.line, words=NO_IMAGE))
    problems += unmounted(dict(given))
    if problems:
        return None, problems
    try:
        return ClusterSettings(**found), []
    except ValueError as error:  # every key holds by itself, but not beside the others
        return None, [Problem(line=root.line, words=str(error))]


def _path(value: object) -> str:
    """Return a file's path that means the same wherever a process starts."""
    found = units.name(value)
    if not found.startswith(("/", "~/")):
        raise ValueError(f"{shown(value)} is no absolute path; begin it with / or ~/.")
    return found


def _device_classes(path: str, node: Node, problems: list[Problem]) -> dict[str, DeviceClass]:
    found: dict[str, DeviceClass] = {}
    for name, given in entries(node, path, problems):
        where = f"{path}.{name}"
        if name == CPU:
            words = f"{CPU} is there always, and asks for no device; choose another name."
            problems.append(problem(given, where, words))
            continue
        fields: dict[str, Any] = {}
        for key, value in entries(given, where, problems):
            if key not in _DEVICE_CLASS:
                problems.append(problem(value, where, unknown("key", key, list(_DEVICE_CLASS))))
                continue
            fields[key] = _DEVICE_CLASS[key](f"{where}.{key}", value, problems)
        found[name] = DeviceClass(**fields)
    return found


_LABEL_WORD = scalar(said(LABEL_KEY, "the name of a label", "topology.kubernetes.io/zone"))
_NAME = scalar(said(DNS_NAME, "a name of an object", "team-a"))
_NAMESPACE = scalar(said(DNS_LABEL, "a namespace", "training"))
_QUEUE = scalar(said(QUEUE_NAME, "the name of a local queue", "team-a"))

_DEVICE_CLASS: Mapping[str, Read] = {
    "resource": scalar(
        units.or_none(said(_RESOURCE, "a resource that nodes have", "nvidia.com/gpu"))
    ),
    "node_selector": read_labels,
}

_KEYS: Mapping[str, tuple[str, Read]] = {
    "image": ("image", scalar(said(_IMAGE, "an image", "registry.example.com/train:1"))),
    "namespace": ("namespace", _NAMESPACE),
    "kubeconfig": ("kubeconfig", scalar(_path)),
    "context": ("context", scalar(units.name)),
    "image_pull_policy": ("image_pull_policy", word("pull policy", PULL_POLICIES)),
    "image_pull_secrets": ("image_pull_secrets", read_items(_NAME)),
    "service_account": ("service_account", _NAME),
    "python": ("python", scalar(units.name)),
    "environment": ("environment", read_environment),
    "environment_from": ("environment_from", read_environment_from),
    "volumes": ("volumes", read_volumes),
    "volume_mounts": ("volume_mounts", read_mounts),
    "pod_template": ("pod_template", read_pod_template),
    "job_kind": ("job_kind", word("kind of Job", JOB_KINDS)),
    "shared_memory": ("shared_memory_bytes", scalar(units.size_bytes)),
    "work_storage": ("work_storage_bytes", scalar(units.size_bytes)),
    "termination_grace": ("termination_grace_s", scalar(units.whole_seconds)),
    "scheduling_timeout": ("scheduling_timeout_s", scalar(units.whole_seconds)),
    "start_timeout": ("start_timeout_s", scalar(units.whole_seconds)),
    "partial_start_timeout": ("partial_start_timeout_s", scalar(units.whole_seconds)),
    "device_classes": ("device_classes", _device_classes),
    "node_selector": ("node_selector", read_labels),
    "tolerations": ("tolerations", read_tolerations),
    "priority_class": ("priority_class", _NAME),
    "topology_key": ("topology_key", _LABEL_WORD),
    "queue": ("queue", _QUEUE),
    "run_worker": ("run_worker", read_json_mapping),
    "taint_quarantined_nodes": ("taint_quarantined_nodes", scalar(units.flag)),
}
