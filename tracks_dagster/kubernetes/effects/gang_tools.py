"""What a launcher watches each of its gangs with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kubernetes.client import ApiClient

from tracks_dagster.kubernetes.effects.api.gang_api import GangApi
from tracks_dagster.kubernetes.effects.places import Place
from tracks_dagster.kubernetes.gangs.start_budget import StartBudget
from tracks_dagster.kubernetes.settings.cluster import ClusterSettings
from tracks_dagster.track.ports import Clock, ObjectStore
from tracks_dagster.track.text.redact import Redact


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What every gang of a launcher is watched with. seconds: a steady clock."""

    api: GangApi
    client: ApiClient
    cluster: ClusterSettings
    store: ObjectStore
    now: Clock
    clean: Redact
    seconds: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    @property
    def place(self) -> Place:
        """Where gangs are looked for."""
        return Place(
            namespace=self.cluster.namespace, server=str(self.client.configuration.host or "")
        )

    @property
    def budget(self) -> StartBudget:
        """How long a gang may take to come up."""
        return StartBudget(
            scheduling_s=self.cluster.scheduling_timeout_s,
            start_s=self.cluster.start_timeout_s,
            partial_s=self.cluster.partial_start_timeout_s,
        )
