"""What a watcher takes in, without a cluster: sights of another watcher, shapes that nobody foresaw."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime

import pytest
from kubernetes.client import ApiClient
from kubernetes.config import ConfigException

from tests.fakes import FakeObjectStore
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.effects import change_stream, pod_watch
from tracks_dagster.wings.kubernetes.effects.change_stream import LastingThread
from tracks_dagster.wings.kubernetes.effects.pod_watch import PodWatch
from tracks_dagster.wings.kubernetes.effects.reads import (
    JOBS,
    PODS,
    Listed,
    ReadFailed,
    Reads,
    Wanted,
)
from tracks_dagster.wings.kubernetes.sightings import pod_line

PREFIX = "runs/r/attempts/1"
AT = "2026-01-31T02:00:00.000000Z"


def pod(version: str, uid: str = "u-0") -> Json:
    meta = {"name": "p-0", "uid": uid, "resourceVersion": version}
    state = {"name": "c", "state": {"running": {"startedAt": "2026-01-31T02:00:00Z"}}}
    spec = {"nodeName": "n1", "containers": [{"name": "c"}]}
    status = {"phase": "Running", "containerStatuses": [state]}
    return {"metadata": meta, "spec": spec, "status": status}


def watch_on(store: FakeObjectStore) -> PodWatch:
    return PodWatch(
        ApiClient(),
        namespace="tracks",
        selector="app=gang",
        store=store,
        prefix=PREFIX,
        now=lambda: datetime(2026, 1, 31, tzinfo=UTC),
        clean=lambda text: text,
    )


@pytest.mark.parametrize(("listed_at", "is_gone"), [("40", False), ("50", True), ("9", False)])
@pytest.mark.parametrize("recalls_first", [True, False])
def test_a_pod_that_another_watcher_saw_after_this_ones_list_is_not_taken_for_gone(
    store: FakeObjectStore, listed_at: str, is_gone: bool, recalls_first: bool
) -> None:
    line = pod_line("ADDED", pod("50"), at=AT, clean=lambda text: text)
    store.put(f"{PREFIX}/pods/other/000000.jsonl", json.dumps(line).encode())
    watch = watch_on(store)
    nothing = Listed(items=[], version=listed_at)
    takes = [watch._recall, lambda: watch.listed(PODS, nothing, "")]
    for take in takes if recalls_first else reversed(takes):
        take()
    (seen,) = watch.seen().pods
    assert (seen.gone_at is not None) is is_gone
    assert seen.is_over is is_gone


def test_a_change_of_a_shape_that_nobody_foresaw_is_reported_and_the_next_one_is_taken(
    store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(change: str, item: Json, **more: Json) -> Json:
        if item["metadata"]["uid"] == "u-1":
            raise KeyError("whatever")
        return pod_line(change, item, **more)

    monkeypatch.setattr(pod_watch, "pod_line", made)
    watch = watch_on(store)
    listed = Listed(items=[pod("1", "u-1"), pod("2", "u-2")], version="3")
    watch.listed(PODS, listed, "")
    assert [each.uid for each in watch.seen().pods] == ["u-2"]
    assert "KeyError: 'whatever'" in watch.seen().problems[0]


def test_a_thread_that_fails_is_reported_and_goes_on_until_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_stream, "AGAIN_S", 0.0)
    stop = threading.Event()
    result: list[str] = []
    tries: list[int] = []

    def work() -> None:
        tries.append(1)
        if len(tries) == 3:
            stop.set()
        raise RuntimeError(f"try {len(tries)}")

    thread = LastingThread(work, "t", stop, result.append)
    thread.run()
    assert result == ["RuntimeError: try 1", "RuntimeError: try 2"]


def test_credentials_that_are_gone_for_a_moment_are_a_failed_read_like_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = ApiClient()

    def no_token(*_: object, **__: object) -> None:
        raise ConfigException("Service token file does not exist.")

    monkeypatch.setattr(client, "call_api", no_token)
    with pytest.raises(ReadFailed, match="Service token file does not exist"):
        Reads(client, "tracks").list(Wanted(resource=JOBS))
