"""The values for Dagster's Helm chart, as tests read them, and Dagster's own word on a config."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from dagster._config import process_config, resolve_to_config_type

DEPLOY = Path(__file__).parents[2] / "deploy"
FILE = DEPLOY / "dagster-values.yaml"
VALUES: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
RELEASE, NAMESPACE = "dagster", "tracks"
KUBERNETES_VERSIONS = (
    "1.32",
    "1.34",
    ".".join(kubernetes_validate.latest_version().split(".")[:2]),
)


def launcher_values() -> dict[str, Any]:
    found: dict[str, Any] = VALUES["runLauncher"]["config"]["customRunLauncher"]
    return found


def class_of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def accepted(kind: Any, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config with its defaults, as Dagster reads it."""
    done = process_config(resolve_to_config_type(kind.config_type()), dict(config))
    assert done.success, [error.message for error in done.errors or ()]
    assert done.value is not None
    return done.value
