"""What stands in the double's cluster before a test begins: a namespace, nodes, an account."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path

from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.objects import now_text

NAMESPACE = "tracks"
TOKEN = "tests"
NODE = {
    "cpu": "64",
    "memory": "256Gi",
    "ephemeral-storage": "200Gi",
    "nvidia.com/gpu": "8",
    "pods": "110",
}
UNREACHABLE = "node.kubernetes.io/unreachable"


def node(name: str, allocatable: Mapping[str, str], labels: Mapping[str, str]) -> Json:
    """Return the manifest of a node that is ready."""
    made: Json = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "spec": {},
        "status": {
            "allocatable": dict(allocatable),
            "capacity": dict(allocatable),
            "conditions": [],
            "addresses": [{"type": "Hostname", "address": name}],
            "nodeInfo": _info(name),
        },
    }
    for kind in ("MemoryPressure", "DiskPressure", "PIDPressure"):
        words = f"kubelet has {_FINE[kind]}"
        say(made, kind, "False", f"KubeletHas{_FINE[kind].title().replace(' ', '')}", words)
    say(made, "Ready", "True", *_READY)
    return made


_FINE = {
    "MemoryPressure": "sufficient memory available",
    "DiskPressure": "no disk pressure",
    "PIDPressure": "sufficient PID available",
}
_READY = ("KubeletReady", "kubelet is posting ready status")
_SILENT = ("NodeStatusUnknown", "Kubelet stopped posting node status.")


def _info(name: str) -> Json:
    result = {"kubeletVersion": "v1.34.9", "containerRuntimeVersion": "containerd://2.1.4"}
    boot = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    ids = {"machineID": boot.replace("-", ""), "systemUUID": boot, "bootID": boot}
    system = {"operatingSystem": "linux", "architecture": "amd64", "osImage": "Double"}
    versions = {"kernelVersion": "6.8.0", "kubeProxyVersion": ""}
    return {**result, **ids, **system, **versions}


def say(node: Json, kind: str, status: str, reason: str = "", message: str = "") -> None:
    """Set a condition of a node."""
    held = node["status"]["conditions"]
    old = next((c for c in held if c["type"] == kind), None)
    same = old is not None and old["status"] == status
    new = {
        "type": kind,
        "status": status,
        "lastHeartbeatTime": now_text(),
        "lastTransitionTime": old["lastTransitionTime"] if old and same else now_text(),
        "reason": reason,
        "message": message,
    }
    if old is None:
        held.append(new)
    else:
        held[held.index(old)] = new


def answers(node: Json, *, ready: str, effect: str = "NoExecute") -> None:
    """Edit a node: it answers (True), or does not (Unknown). effect: of the taint it gets."""
    say(node, "Ready", ready, *(_READY if ready == "True" else _SILENT))
    others = [t for t in node["spec"].get("taints") or () if t["key"] != UNREACHABLE]
    taint = {"key": UNREACHABLE, "effect": effect, "timeAdded": now_text()}
    node["spec"]["taints"] = others + ([taint] if ready != "True" else [])


def quota(name: str, hard: Mapping[str, str]) -> Json:
    """Return a quota's object; who looks at it sees what is hard."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"hard": dict(hard)},
        "status": {"hard": dict(hard), "used": dict.fromkeys(hard, "0")},
    }


def definition(name: str, kind: str, group_version: str, *, namespaced: bool) -> Json:
    """Return the definition of a custom resource."""
    group, _, version = group_version.partition("/")
    plural = name.partition(".")[0]
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    established = {"type": "Established", "status": "True", "reason": "InitialNamesAccepted"}
    schema = {"openAPIV3Schema": {"type": "object"}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": group,
            "names": names,
            "scope": "Namespaced" if namespaced else "Cluster",
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
        "status": {
            "conditions": [{**established, "lastTransitionTime": now_text()}],
            "acceptedNames": names,
            "storedVersions": [version],
        },
    }


def kubeconfig(url: str) -> Json:
    """Return a kubeconfig for the double at that address (JSON is YAML)."""
    context = {"cluster": "double", "user": "tests", "namespace": NAMESPACE}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "double", "cluster": {"server": url}}],
        "users": [{"name": "tests", "user": {"token": TOKEN}}],
        "contexts": [{"name": "double", "context": context}],
        "current-context": "double",
    }


def low_memory(container: str) -> str:
    """Return a kubelet's words for the eviction of a pod when the node is low on memory."""
    return (
        "The node was low on resource: memory. Threshold quantity: 17331Mi, available: "
        f"17681736Ki. Container {container} was using 1258944Ki, request is 100Mi, has larger "
        "consumption of memory. "
    )


def cluster_file(folder: Path, *, mount: Path) -> Path:
    """Write settings of a cluster whose pods see `mount`, with devices a100 and h100; their path."""
    config = folder / "kubeconfig"
    config.write_text(json.dumps(kubeconfig("http://127.0.0.1:1")))
    path = folder / "kubernetes.yaml"
    path.write_text(
        "image: train:1\ndevice_classes: {a100: {}, h100: {}}\n"
        "volumes: [{name: s, persistentVolumeClaim: {claimName: s}}]\n"
        f"volume_mounts: [{{name: s, mountPath: {mount}}}]\nkubeconfig: {config}\n"
    )
    return path
