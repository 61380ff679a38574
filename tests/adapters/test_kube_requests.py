"""Tries are bounded by their number, and by the time that they take."""

from __future__ import annotations

from typing import Any

import pytest
import urllib3
from kubernetes.client import ApiClient

from tests.fakes import FakeClock
from tracks_dagster.adapters.kubernetes.kube_requests import TRIES_S_MAX, WAITS_S, KubeRequests
from tracks_dagster.adapters.kubernetes.reads import PODS, ReadFailed, Reads, Wanted
from tracks_dagster.core.cluster import ClusterSettings
from tracks_dagster.core.errors import GangError, GangUnreachable


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


@pytest.mark.parametrize("answer", ["<html>log in</html>", [], {}, {"kind": "Status"}, None])
def test_an_answer_of_200_that_is_no_list_is_never_taken_for_an_empty_one(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    """A proxy's page in the place of a list would show every gang as gone."""
    client = ApiClient()
    monkeypatch.setattr(client, "call_api", lambda *_, **__: answer)
    requests = KubeRequests(client, ClusterSettings(image="i"), sleep=clock.advance)
    with pytest.raises(GangUnreachable, match=r"Cannot look: .* is no (list|object)"):
        requests.list_all("/api/v1/pods", (), doing="look")


@pytest.mark.parametrize("answer", ["<html>log in</html>", [], {}, None])
def test_an_answer_of_200_that_is_no_object_is_never_taken_for_one(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    client = ApiClient()
    monkeypatch.setattr(client, "call_api", lambda *_, **__: answer)
    requests = KubeRequests(client, ClusterSettings(image="i"), sleep=clock.advance)
    with pytest.raises(GangUnreachable, match=r"Cannot look: .* is no object"):
        requests.get("/api/v1/nodes/n", doing="look")


class Answered:
    """What the client gives for a streamed request that was answered with 200."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, _size: int, *, decode_content: bool) -> list[bytes]:
        return [self._body]

    def close(self) -> None: ...


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[]", b"{}", b'{"kind": "Status"}'])
def test_a_watcher_takes_no_page_of_a_proxy_for_an_empty_list(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    client = ApiClient()
    monkeypatch.setattr(client, "call_api", lambda *_, **__: Answered(body))
    with pytest.raises(ReadFailed, match="Cannot list pods in namespace n: the reply is no"):
        Reads(client, "n").list(Wanted(resource=PODS))


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[]", b"{}", b'{"type": "ADDED"}'])
def test_a_watcher_takes_no_page_of_a_proxy_for_an_event(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    client = ApiClient()
    monkeypatch.setattr(client, "call_api", lambda *_, **__: Answered(body))
    events = Reads(client, "n").watch(Wanted(resource=PODS), "1", timeout_s=1, silence_s=1.0)
    with pytest.raises(ReadFailed, match="An event of the API server's is no"):
        list(events)
