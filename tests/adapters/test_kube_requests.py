"""Tries are bounded by their number, and by the time that they take."""

from __future__ import annotations

from typing import Any

import pytest
import urllib3
from kubernetes.client import ApiClient

from tests.fakes import FakeClock
from tracks_dagster.adapters.kubernetes.kube_requests import TRIES_S_MAX, WAITS_S, KubeRequests
from tracks_dagster.core.cluster import ClusterSettings
from tracks_dagster.core.errors import GangError


@pytest.mark.parametrize(
    ("takes_s", "tries"), [(0.0, 1 + len(WAITS_S)), (10.0, 2), (TRIES_S_MAX + 1, 1)]
)
def test_a_server_out_of_reach_is_not_tried_for_long(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, takes_s: float, tries: int
) -> None:
    client, asked = ApiClient(), []

    def call(*_: Any, **__: Any) -> None:
        asked.append(1)
        clock.advance(takes_s)
        raise urllib3.exceptions.ProtocolError("no answer")

    monkeypatch.setattr(client, "call_api", call)
    requests = KubeRequests(
        client,
        ClusterSettings(image="i"),
        sleep=clock.advance,
        seconds=lambda: clock.at.timestamp(),
    )
    with pytest.raises(GangError, match="Cannot look"):
        requests.get("/api/v1/nodes/n", doing="look")
    assert len(asked) == tries
