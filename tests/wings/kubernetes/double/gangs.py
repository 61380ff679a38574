"""Small Jobs for the double's own tests, and waiting for what they do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.kube_double import KubeDouble

WAIT_S_MAX = 120.0  # a run worker that starts takes seconds on an idle machine
SLEEPS = "import time; time.sleep(300)"
T = TypeVar("T")


def job(
    name: str,
    code: str = SLEEPS,
    *,
    pods: int = 1,
    grace_s: int = 30,
    container: Json | None = None,
    pod: Json | None = None,
    **spec: object,
) -> Json:
    """Return an Indexed Job whose pods run that Python."""
    base = {"name": "c", "image": "any", "command": ["python", "-c", code]}
    template = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_s,
        "containers": [{**base, **(container or {})}],
        **(pod or {}),
    }
    counts = {"completions": pods, "parallelism": pods, "backoffLimit": 0}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "completionMode": "Indexed",
            **counts,
            **spec,
            "template": {"spec": template},
        },
    }


def until(wanted: Callable[[], T | None], what: str) -> T:
    """Wait until it returns something; bounded by WAIT_S_MAX."""
    give_up_at = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < give_up_at:
        found = wanted()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"Waited {WAIT_S_MAX:g} s in vain: {what}.")


def running(kube: KubeDouble, name: str, *, pods: int = 1) -> list[str]:
    """Wait until the Job's pods run; return their names by index."""

    def names() -> list[str] | None:
        found, _ = kube.objects.all("pods")
        mine = [p for p in found if p["metadata"]["labels"]["job-name"] == name]
        up = sorted(p["metadata"]["name"] for p in mine if p["status"]["phase"] == "Running")
        return up if len(up) == pods else None

    return until(names, f"{pods} pods of Job {name} run")
