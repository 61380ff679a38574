"""The rules of a person's own pod template: it may set everything but what makes a gang a gang.

A template that sets more is refused, never quietly overruled: its author meant it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tracks_dagster.track.names import LABEL_APP, POD_VARIABLES
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.redact import secrets_of
from tracks_dagster.wings.kubernetes.compute_demand import REQUIRED
from tracks_dagster.wings.kubernetes.settings import TRAINER

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

_WHERE = "pod_template"
# The prefixes of labels and annotations that the launcher and the controllers own.
_OWNED_PREFIXES = ("tracks/", "batch.kubernetes.io/", "jobset.sigs.k8s.io/")
_OWNED = (LABEL_APP, QUEUE_LABEL, "job-name", "controller-uid")
_APART = ("containers", "volumes")
_NEVER = "a gang's pods are never restarted"
_SPEC = {
    "restartPolicy": _NEVER,
    "hostname": "the ranks find each other by it",
    "subdomain": "the ranks find each other by it",
    "nodeName": "the scheduler places a gang's pods",
    "terminationGracePeriodSeconds": "set termination_grace in kubernetes.yaml",
}
_CONTAINER = {
    "command": "every pod runs its ranks' parent",
    "args": "every pod runs its ranks' parent",
    "image": "set image in kubernetes.yaml, which the attempt's record names",
    "imagePullPolicy": "set image_pull_policy in kubernetes.yaml",
    "restartPolicy": _NEVER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateParts:
    """A template taken apart. spec: without `_APART`; trainer: the container that ours is laid over;
    others: the rest of them, which run beside it."""

    labels: Mapping[str, Json]
    annotations: Mapping[str, Json]
    spec: Mapping[str, Json]
    volumes: Sequence[Mapping[str, Json]]
    trainer: Mapping[str, Json]
    others: Sequence[Mapping[str, Json]]


def read_template(template: Mapping[str, Json], problems: list[str]) -> TemplateParts:
    """Return the parts of a PodTemplateSpec; adds to `problems` what it may not set."""
    problems += _strangers(template, ("metadata", "spec"), _WHERE, "a PodTemplateSpec has")
    meta = _map(template.get("metadata"), f"{_WHERE}.metadata", problems)
    kept = ("labels", "annotations")
    problems += _strangers(meta, kept, f"{_WHERE}.metadata", "a gang's pods take")
    labels, annotations = (
        _marks(meta.get(field), f"{_WHERE}.metadata.{field}", problems) for field in kept
    )
    where = f"{_WHERE}.spec"
    spec = _map(template.get("spec"), where, problems)
    problems += _refused(spec, _SPEC, where, allowed={"restartPolicy": "Never"})
    _check_shapes(spec, where, problems)
    trainer, others = _containers(spec, where, problems)
    return TemplateParts(
        labels=labels,
        annotations=annotations,
        spec={field: value for field, value in spec.items() if field not in _APART},
        volumes=_maps(spec.get("volumes"), f"{where}.volumes", problems),
        trainer=trainer,
        others=others,
    )


def check_variables(values: Mapping[str, str], where: str) -> list[str]:
    """Return why these variables cannot be set: they are the launcher's own, or secrets."""
    entries = [{"name": name, "value": value} for name, value in values.items()]
    return _literals(entries, where, own=POD_VARIABLES)


def _containers(
    spec: Mapping[str, Json], where: str, problems: list[str]
) -> tuple[Mapping[str, Json], Sequence[Mapping[str, Json]]]:
    """Return the container of that name, else the first one, and the others."""
    found = _maps(spec.get("containers"), f"{where}.containers", problems)
    index = next((i for i, each in enumerate(found) if each.get("name") == TRAINER), 0)
    others = [each for number, each in enumerate(found) if number != index]
    starting = _maps(spec.get("initContainers"), f"{where}.initContainers", problems)
    for container in (*others, *starting):
        at = f"{where}, container {container.get('name')}"
        problems += _literals(_maps(container.get("env"), f"{at}, env", problems), at, own=())
    if not found:
        return {}, others
    return _trainer(found[index], f"{where}.containers[{index}]", problems), others


def _trainer(container: Json, where: str, problems: list[str]) -> Mapping[str, Json]:
    """Return the container; what should be a list and is not one is a problem, and left out."""
    problems += _refused(container, _CONTAINER, where)
    lists = ("env", "envFrom", "ports", "volumeMounts")
    read = {field: _maps(container.get(field), f"{where}.{field}", problems) for field in lists}
    problems += _literals(read["env"], f"{where}.env", own=POD_VARIABLES)
    others = {field: value for field, value in container.items() if field not in read}
    return others | {field: entries for field, entries in read.items() if entries}


def _check_shapes(spec: Mapping[str, Json], where: str, problems: list[str]) -> None:
    """Check fields that others set too, and which are joined with theirs."""
    for field in ("tolerations", "imagePullSecrets"):
        _maps(spec.get(field), f"{where}.{field}", problems)
    _map(spec.get("nodeSelector"), f"{where}.nodeSelector", problems)
    where = f"{where}.affinity"
    affinity = _map(spec.get("affinity"), where, problems)
    nodes = _map(affinity.get("nodeAffinity"), f"{where}.nodeAffinity", problems)
    terms = _map(nodes.get(REQUIRED), f"{where}.nodeAffinity.{REQUIRED}", problems)
    _maps(terms.get("nodeSelectorTerms"), f"{where}.nodeAffinity.{REQUIRED}", problems)
    pods = _map(affinity.get("podAffinity"), f"{where}.podAffinity", problems)
    _maps(pods.get(REQUIRED), f"{where}.podAffinity.{REQUIRED}", problems)


def _literals(entries: Iterable[Mapping[str, Json]], where: str, own: Iterable[str]) -> list[str]:
    found = []
    for entry in entries:
        name, value = str(entry.get("name")), entry.get("value")
        if name in own:
            found.append(f"{where}: {name} is set by the launcher; leave it out.")
        elif isinstance(value, str) and secrets_of({name: value}):
            found.append(
                f"{where}: {name} holds a secret, which everyone could read in the manifest; put it "
                "into a Secret, and name that under environment_from."
            )
    return found


def _refused(
    part: Mapping[str, Json], rules: Mapping[str, str], where: str, allowed: Json = None
) -> list[str]:
    return [
        f"{where}.{field}: {why}; leave it out."
        for field, why in rules.items()
        if part.get(field) is not None and part[field] != (allowed or {}).get(field)
    ]


def _strangers(part: Mapping[str, Json], known: Sequence[str], where: str, words: str) -> list[str]:
    """A field of the Job (completionMode, backoffLimit) is one too: the Job is the launcher's."""
    return [
        f"{where}.{field}: {words} {' and '.join(known)}, nothing else; leave it out."
        for field in part
        if field not in known
    ]


def _marks(value: Json, where: str, problems: list[str]) -> Mapping[str, Json]:
    found = _map(value, where, problems)
    for name in found:
        if name in _OWNED or str(name).startswith(_OWNED_PREFIXES):
            hint = "; set queue in kubernetes.yaml" if name == QUEUE_LABEL else ""
            problems.append(f"{where}: {name} is set by the launcher{hint}; leave it out.")
    return found


def _map(value: Json, where: str, problems: list[str]) -> Mapping[str, Json]:
    if value is None or isinstance(value, Mapping):
        return value or {}
    problems.append(f"{where} is {value!r} and has to be a mapping.")
    return {}


def _maps(value: Json, where: str, problems: list[str]) -> Sequence[Mapping[str, Json]]:
    if value is None:
        return ()
    if isinstance(value, list | tuple) and all(isinstance(each, Mapping) for each in value):
        return value
    problems.append(f"{where} is {value!r} and has to be a list of mappings.")
    return ()
