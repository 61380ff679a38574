"""A person's `kubernetes.yaml` as `ClusterSettings`. Nothing is guessed and nothing skipped.

    image: registry.example.com/team/train:2026-01-31
    namespace: training
    termination_grace: 2min
    device_classes:
      a100: {resource: nvidia.com/gpu, node_selector: {gpu: a100}}
    queue: training
    classes:                      # of the policy: what their gangs ask for instead
      urgent: {queue: urgent, workload_priority: high}
    environment_from: [{secretRef: {name: object-store}}]

What is an object of the API (volumes, the pod template) keeps the API's own words. Of those, only what
the API server would not complain of at once, or would drop silently, is checked here; the rest it
checks itself, when the gang's Job is created.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, PlainValidator
from pydantic.alias_generators import to_camel

from tracks_dagster.attempts.run_config import (
    DNS_NAME,
    LABEL_KEY,
    LABEL_VALUE,
    QUEUE_NAME,
    toleration_problems,
)
from tracks_dagster.reasons.kube_json import mapping
from tracks_dagster.track.effects.settings_file import LEFT_OUT, FileModel, Loc, SettingsFile
from tracks_dagster.track.records import Json
from tracks_dagster.track.text import units
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.redact import is_secret_name, secrets_of
from tracks_dagster.track.text.units import in_quotes, shown
from tracks_dagster.wings.kubernetes.settings import (
    CPU,
    JOB_KINDS,
    PULL_POLICIES,
    TOPOLOGY_RULES,
    ClassSettings,
    ClusterSettings,
    DeviceClass,
)

# Names of the API: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][\w.:/@-]{0,1023}", re.ASCII)
_RESOURCE = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9][\w.-]{0,62}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_OURS = "TRACKS_"  # what the launcher passes to a gang
_SOURCES = ("configMapRef", "secretRef")
_SECRET = (
    "it looks like a secret, which everybody who may read Jobs would see; put it into a Secret and "
    "name that under environment_from: [{secretRef: {name: …}}], of run workers under env_secrets: […]."
)


def read_cluster(file: SettingsFile) -> ClusterSettings:
    """Return what the file contains; raises SettingsError with all that is wrong."""
    found = file.read(_ClusterFile)
    settings = mapping(file.value)
    _check_volumes(file, settings)
    for loc, source in _items(settings, "environment_from"):
        if len(source.keys() & set(_SOURCES)) != 1:
            words = "name one source, as {secretRef: {name: object-store}}, or a configMapRef."
            file.refuse(loc, words)
    for loc, toleration in _items(settings, "tolerations"):
        for words in toleration_problems(toleration):
            file.refuse(loc, words)
    for loc in _secrets(settings):
        file.refuse(loc, _SECRET)
    if found is None or file.problems:
        raise file.error()
    return ClusterSettings(**found.given())


def _check_volumes(file: SettingsFile, settings: Mapping[str, Json]) -> None:
    """Collect volumes without a source or with the name of another, and mounts of no volume."""
    lines: dict[str, int] = {}
    for loc, volume in _items(settings, "volumes"):
        if len(volume.keys() - {"name"}) != 1:
            file.refuse(loc, "give it one source, as persistentVolumeClaim: {claimName: store}.")
        for name in _name(volume):
            if name in lines:
                file.refuse(loc, f"line {lines[name]} has a volume {name} too.")
            lines.setdefault(name, file.line(loc))
    others = _items(settings, "pod_template", "spec", "volumes")
    known = sorted({*lines, *(name for _, volume in others for name in _name(volume))})
    for loc, mount in _items(settings, "volume_mounts"):
        for name in _name(mount):
            if name not in known:
                none = f"there is no volume {name!r}, nor any other; define it under volumes."
                file.refuse(loc, unknown("volume", name, known) if known else none)


def _name(item: Mapping[str, Json]) -> Iterator[str]:
    """Yield the name of an object of the API, if it has one."""
    if isinstance(item.get("name"), str):
        yield item["name"]


def _items(settings: Mapping[str, Json], *path: str) -> list[tuple[Loc, Mapping[str, Json]]]:
    """Return the mappings of a list and where they are; what is not one is refused by its model."""
    found: Json = settings
    for key in path:
        found = mapping(found).get(key)
    items = enumerate(found) if isinstance(found, list) else ()
    return [((*path, place), item) for place, item in items if isinstance(item, Mapping)]


def _secrets(settings: Mapping[str, Json]) -> Iterator[Loc]:
    """Yield where a variable holds a secret, which everybody could read in the manifest."""
    for name, value in mapping(settings.get("environment")).items():
        if isinstance(value, str) and _is_secret(name, value):
            yield "environment", name
    for key in ("pod_template", "run_worker"):
        yield from _secrets_below(settings.get(key), (key,))


def _secrets_below(value: Json, loc: Loc) -> Iterator[Loc]:
    """Yield items of `env`, and NAME=value of `env_vars`."""
    if isinstance(value, list):
        for place, item in enumerate(value):
            if loc[-1] == "env_vars" and _is_secret(*str(item).partition("=")[::2]):
                yield (*loc, place)
            yield from _secrets_below(item, (*loc, place))
    if isinstance(value, Mapping):
        name, given = value.get("name"), value.get("value")
        if isinstance(name, str) and isinstance(given, str) and _is_secret(name, given):
            yield loc
        for key, below in value.items():
            yield from _secrets_below(below, (*loc, key))


def _is_secret(name: str, value: str) -> bool:
    """Whether the name is a secret's, or the URL has a password."""
    return bool(value) and (is_secret_name(name) or bool(secrets_of({name: value})))


def _matching(pattern: re.Pattern[str], what: str, example: str) -> units.Reader[str]:
    """Return a reader of words that `pattern` matches as a whole."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(f"{shown(value)} is not {what}; write for example {example}.")
        return value

    return read


def _word(what: str, *valid: str) -> PlainValidator:
    """One of these words."""
    return PlainValidator(units.one_of(what, {each: each for each in valid}))


def _path(value: object) -> str:
    """Read a file's path that means the same wherever a process starts."""
    found = units.name(value)
    if not found.startswith(("/", "~/")):
        raise ValueError(f"{shown(value)} is not an absolute path; begin it with / or ~/.")
    return found


def _mount_path(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/"):
        raise ValueError(f"{shown(value)} is not an absolute path; write for example /data.")
    return value


def _variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value) or value.startswith(_OURS):
        why = "belongs to the launcher" if value.startswith(_OURS) else "cannot name a variable"
        raise ValueError(f"{value!r} {why}; choose another name.")
    return value


def _label_value(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(in_quotes(value))
    if not LABEL_VALUE.fullmatch(value):
        raise ValueError(
            f"{shown(value)} is not a value of a label: 63 of A-Z, a-z, 0-9, '-_.' at most."
        )
    return value


def _class_name(value: str) -> str:
    if value == CPU:
        raise ValueError(f"{CPU} is there always, and asks for no device; choose another name.")
    return value


def _as_written(model: type[FileModel]) -> PlainValidator:
    """An object of the API that `model` checks, and that stays as it is."""

    def check(value: Json) -> Json:
        model.model_validate(value)
        return value

    return PlainValidator(check)


_resource = _matching(_RESOURCE, "a resource that nodes have", "nvidia.com/gpu")
_label_key = _matching(LABEL_KEY, "the name of a label", "gpu, or topology.kubernetes.io/zone")

_Word = Annotated[str, PlainValidator(units.name)]
_Size = Annotated[int, PlainValidator(units.size_bytes)]
_Seconds = Annotated[int, PlainValidator(units.whole_seconds)]
_DnsName = Annotated[str, PlainValidator(_matching(DNS_NAME, "a name of an object", "team-a"))]
_DnsLabel = Annotated[str, PlainValidator(_matching(_DNS_LABEL, "a name of a volume", "store"))]
_LabelKey = Annotated[str, PlainValidator(_label_key)]
_QueueName = Annotated[
    str, PlainValidator(_matching(QUEUE_NAME, "the name of a local queue", "team-a"))
]
_Rule = Annotated[str, _word("rule for a topology", *TOPOLOGY_RULES)]
_Labels = Mapping[_LabelKey, Annotated[str, PlainValidator(_label_value)]]


class _ApiModel(FileModel):
    model_config = ConfigDict(alias_generator=to_camel)


class _Reference(_ApiModel):
    name: _DnsName
    optional: Json = LEFT_OUT


class _Source(_ApiModel):
    prefix: Json = LEFT_OUT
    config_map_ref: _Reference = LEFT_OUT
    secret_ref: _Reference = LEFT_OUT


class _Volume(_ApiModel):
    model_config = ConfigDict(extra="allow")  # its source, of which there are many kinds

    name: _DnsLabel


class _Mount(_ApiModel):
    name: _DnsLabel
    mount_path: Annotated[str, PlainValidator(_mount_path)] = Field(
        description="write an absolute path, for example /data"
    )
    sub_path: Json = LEFT_OUT
    sub_path_expr: Json = LEFT_OUT
    read_only: Json = LEFT_OUT
    recursive_read_only: Json = LEFT_OUT
    mount_propagation: Json = LEFT_OUT


class _Toleration(_ApiModel):
    key: Json = LEFT_OUT
    operator: Json = LEFT_OUT
    value: Json = LEFT_OUT
    effect: Json = LEFT_OUT
    toleration_seconds: Json = LEFT_OUT


class _PodTemplate(_ApiModel):
    metadata: Mapping[str, Json] = LEFT_OUT
    spec: Mapping[str, Json] = LEFT_OUT


class _DeviceClass(FileModel):
    resource: Annotated[str | None, PlainValidator(units.or_none(_resource))] = LEFT_OUT
    node_selector: _Labels = LEFT_OUT


class _Class(FileModel):
    queue: _QueueName = LEFT_OUT
    workload_priority: _DnsName = LEFT_OUT
    priority_class: _DnsName = LEFT_OUT
    topology_key: _LabelKey = LEFT_OUT
    topology_rule: _Rule = LEFT_OUT


class _ClusterFile(FileModel):
    image: Annotated[
        str, PlainValidator(_matching(_IMAGE, "an image", "registry.example.com/train:1"))
    ] = Field(description="name the image that gangs run, as `image: registry/name:tag`")
    namespace: Annotated[str, PlainValidator(_matching(_DNS_LABEL, "a namespace", "training"))] = (
        LEFT_OUT
    )
    kubeconfig: Annotated[str, PlainValidator(_path)] = LEFT_OUT
    context: _Word = LEFT_OUT
    image_pull_policy: Annotated[str, _word("pull policy", *PULL_POLICIES)] = LEFT_OUT
    image_pull_secrets: tuple[_DnsName, ...] = LEFT_OUT
    service_account: _DnsName = LEFT_OUT
    python: _Word = LEFT_OUT
    environment: Mapping[Annotated[str, PlainValidator(_variable)], str] = LEFT_OUT
    environment_from: tuple[Annotated[Json, _as_written(_Source)], ...] = LEFT_OUT
    volumes: tuple[Annotated[Json, _as_written(_Volume)], ...] = LEFT_OUT
    volume_mounts: tuple[Annotated[Json, _as_written(_Mount)], ...] = LEFT_OUT
    pod_template: Annotated[Json, _as_written(_PodTemplate)] = LEFT_OUT
    job_kind: Annotated[str, _word("kind of Job", *JOB_KINDS)] = LEFT_OUT
    shared_memory_bytes: _Size = LEFT_OUT
    work_storage_bytes: _Size = LEFT_OUT
    termination_grace_s: _Seconds = LEFT_OUT
    scheduling_timeout_s: _Seconds = LEFT_OUT
    start_timeout_s: _Seconds = LEFT_OUT
    partial_start_timeout_s: _Seconds = LEFT_OUT
    device_classes: Mapping[
        Annotated[str, PlainValidator(_class_name)],
        Annotated[_DeviceClass, AfterValidator(lambda found: DeviceClass(**found.given()))],
    ] = LEFT_OUT
    node_selector: _Labels = LEFT_OUT
    tolerations: tuple[Annotated[Json, _as_written(_Toleration)], ...] = LEFT_OUT
    priority_class: _DnsName = LEFT_OUT
    topology_key: _LabelKey = LEFT_OUT
    queue: _QueueName = LEFT_OUT
    workload_priority: _DnsName = LEFT_OUT
    scheduler: _DnsName = LEFT_OUT
    topology_rule: _Rule = LEFT_OUT
    topology: _DnsName = LEFT_OUT
    classes: Mapping[
        _Word, Annotated[_Class, AfterValidator(lambda found: ClassSettings(**found.given()))]
    ] = LEFT_OUT
    run_worker: Mapping[str, Json] = LEFT_OUT
    taint_quarantined_nodes: Annotated[bool, PlainValidator(units.flag)] = LEFT_OUT
