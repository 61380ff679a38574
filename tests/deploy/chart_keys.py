"""The keys of Dagster's Helm chart 1.13 that the values in deploy/ use, and the type of each.

A description of our own and no copy: it has just these keys. `object` stands for what the chart hands
on as it is, to Kubernetes or into `dagster.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_IMAGE = {"repository": str, "tag": str, "pullPolicy": str}
_SECRETS = [{"name": str}]
_VARIABLES = [{"name": str, "value": str}]
_OURS = {
    "image": _IMAGE,
    "env": _VARIABLES,
    "envSecrets": _SECRETS,
    "volumes": [object],
    "volumeMounts": [object],
    "podSecurityContext": object,
    "securityContext": object,
}
_ACCOUNT = {"create": bool, "name": str}

KEYS: Mapping[str, Any] = {
    "global": {"dagsterHome": str, "postgresqlSecretName": str},
    "rbacEnabled": bool,
    "serviceAccount": _ACCOUNT,
    "generatePostgresqlPasswordSecret": bool,
    "postgresql": {
        "enabled": bool,
        "postgresqlHost": str,
        "postgresqlUsername": str,
        "postgresqlDatabase": str,
        "postgresqlParams": object,
        "service": {"port": int},
    },
    "dagsterWebserver": {
        **_OURS,
        "nameOverride": str,
        "service": {"type": str, "port": int},
        "readinessProbe": object,
        "extraPrependedInitContainers": [object],
        "workspace": {"enabled": bool, "servers": [{"host": str, "port": int, "name": str}]},
    },
    "dagsterDaemon": {
        **_OURS,
        "enabled": bool,
        "extraPrependedInitContainers": [object],
        "runCoordinator": {
            "enabled": bool,
            "type": str,
            "config": {
                "queuedRunCoordinator": {
                    "maxConcurrentRuns": int,
                    "tagConcurrencyLimits": [{"key": str, "limit": int}],
                    "dequeueIntervalSeconds": int,
                }
            },
        },
        "runMonitoring": {
            "enabled": bool,
            "pollIntervalSeconds": int,
            "startTimeoutSeconds": int,
            "cancelTimeoutSeconds": int,
            "maxResumeRunAttempts": int,
        },
        "runRetries": {"enabled": bool},
        "sensors": {"useThreads": bool, "numWorkers": int},
    },
    "runLauncher": {
        "type": str,
        "config": {"customRunLauncher": {"module": str, "class": str, "config": object}},
    },
    "dagster-user-deployments": {
        "enabled": bool,
        "enableSubchart": bool,
        "rbacEnabled": bool,
        "serviceAccount": _ACCOUNT,
        "deployments": [
            {
                **_OURS,
                "name": str,
                "dagsterApiGrpcArgs": [str],
                "port": int,
                "resources": object,
                "includeConfigInLaunchedRuns": {"enabled": bool},
            }
        ],
    },
    "retention": {
        "enabled": bool,
        "sensor": {
            "purgeAfterDays": {"skipped": int, "success": int, "failure": int, "started": int}
        },
    },
    "telemetry": {"enabled": bool},
    "additionalInstanceConfig": object,
}


def strangers(given: Any, known: Any = KEYS, path: str = "values") -> Iterator[str]:
    """Yield what of `given` the description does not have, or has with another type."""
    if isinstance(known, Mapping) and isinstance(given, Mapping):
        for key, value in given.items():
            if key in known:
                yield from strangers(value, known[key], f"{path}.{key}")
            else:
                yield f"{path}.{key} is not a key of the chart that is described here"
    elif isinstance(known, Sequence) and isinstance(given, list):
        for index, value in enumerate(given):
            yield from strangers(value, known[0], f"{path}[{index}]")
    elif not isinstance(known, type) or (known is not object and type(given) is not known):
        yield f"{path} is {given!r}; expected {getattr(known, '__name__', known)}"
