"""A pod whose container runs, and why a kubelet ends one itself."""

from __future__ import annotations

from dataclasses import dataclass

from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.container import Container, Pretence


@dataclass(frozen=True, kw_only=True)
class Eviction:
    """Why the kubelet ends a pod itself. marked: whether it sets the condition, too."""

    message: str
    marked: bool
    reason: str = "Evicted"


@dataclass(kw_only=True)
class Life:
    """A pod whose container runs. kill_at: when its grace is over, by the steady clock."""

    pod: Json
    container: Container | Pretence
    out_of_memory: bool = False
    eviction: Eviction | None = None
    kill_at: float | None = None
