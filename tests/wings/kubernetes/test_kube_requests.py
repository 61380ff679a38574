"""Tries are bounded by their number, and by the time that they take."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import urllib3
from kubernetes.client import ApiClient

from tests.fakes import FakeClock
from tracks_dagster.track.errors import GangError, GangUnreachable
from tracks_dagster.wings.kubernetes.effects.kube_requests import (
    HURRIED,
    TRIES_S_MAX,
    WAITS_S,
    KubeRequests,
    Silence,
)
from tracks_dagster.wings.kubernetes.effects.reads import PODS, ReadFailed, Reads, Wanted
from tracks_dagster.wings.kubernetes.settings import ClusterSettings


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


def test_of_all_that_a_tick_asks_of_a_silent_server_only_one_request_waits(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, waited = ApiClient(), []

    def call(*_: Any, _request_timeout: tuple[float, float], **__: Any) -> Any:
        if clock.at < up_at:
            waited.append(_request_timeout)
            clock.advance(_request_timeout[0])
            raise urllib3.exceptions.ConnectTimeoutError("no handshake")
        return {"kind": "Job"}

    monkeypatch.setattr(client, "call_api", call)
    up_at = clock.at + timedelta(seconds=40)
    silence = Silence()
    given = {"sleep": clock.advance, "seconds": lambda: clock.at.timestamp(), "silence": silence}
    cluster = ClusterSettings(image="i")
    tick = KubeRequests(client, cluster, patience=HURRIED, **given)  # type: ignore[arg-type]
    began = clock.at
    for _ in range(50):
        with pytest.raises(GangUnreachable, match="did not answer"):
            tick.get("/apis/batch/v1/namespaces/n/jobs/j", doing="look at gangs")
    assert waited == [(3.0, 10.0)]
    assert (clock.at - began).total_seconds() == 3.0
    supervisor = KubeRequests(client, cluster, **given)  # type: ignore[arg-type]
    with pytest.raises(GangUnreachable, match="it is asked again 15 s after it"):
        supervisor.get("/apis/batch/v1/namespaces/n/jobs/j", doing="end a gang")
    clock.advance(40)
    assert supervisor.get("/apis/batch/v1/namespaces/n/jobs/j", doing="look") == {"kind": "Job"}
    assert silence.since_s is None


def test_a_server_that_cuts_a_connection_or_is_busy_is_not_left_alone(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, answers = ApiClient(), [urllib3.exceptions.ProtocolError("reset"), {"kind": "Job"}]

    def call(*_: Any, **__: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(client, "call_api", call)
    cluster = ClusterSettings(image="i")
    requests = KubeRequests(client, cluster, sleep=clock.advance, patience=HURRIED)
    with pytest.raises(GangUnreachable):
        requests.get("/x", doing="look")
    assert requests.get("/x", doing="look") == {"kind": "Job"}


@pytest.mark.parametrize("answer", ["<html>log in</html>", [], {}, {"kind": "Status"}, None])
def test_an_answer_of_200_that_is_not_a_list_is_never_taken_for_an_empty_one(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    """A proxy's page in the place of a list would show every gang as gone."""
    client = ApiClient()
    monkeypatch.setattr(client, "call_api", lambda *_, **__: answer)
    requests = KubeRequests(client, ClusterSettings(image="i"), sleep=clock.advance)
    with pytest.raises(GangUnreachable, match=r"Cannot look: .* is not an? (list|object)"):
        requests.list_all("/api/v1/pods", (), doing="look")


@pytest.mark.parametrize("answer", ["<html>log in</html>", [], {}, None])
def test_an_answer_of_200_that_is_not_an_object_is_never_taken_for_one(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    client = ApiClient()
    monkeypatch.setattr(client, "call_api", lambda *_, **__: answer)
    requests = KubeRequests(client, ClusterSettings(image="i"), sleep=clock.advance)
    with pytest.raises(GangUnreachable, match=r"Cannot look: .* is not an object"):
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
    with pytest.raises(ReadFailed, match="Cannot list pods in namespace n: the reply is not "):
        Reads(client, "n").list(Wanted(resource=PODS))


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[]", b"{}", b'{"type": "ADDED"}'])
def test_a_watcher_takes_no_page_of_a_proxy_for_an_event(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    client = ApiClient()
    monkeypatch.setattr(client, "call_api", lambda *_, **__: Answered(body))
    events = Reads(client, "n").watch(Wanted(resource=PODS), "1", timeout_s=1, silence_s=1.0)
    with pytest.raises(ReadFailed, match="An event of the API server's is not "):
        list(events)
