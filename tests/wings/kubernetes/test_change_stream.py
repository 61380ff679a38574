"""One resource's changes without a gap, against reads that follow a script."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import cast

import pytest

from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.effects import change_stream
from tracks_dagster.wings.kubernetes.effects.change_stream import Backoff, ChangeStream
from tracks_dagster.wings.kubernetes.effects.reads import (
    EVENTS,
    GONE,
    PODS,
    Listed,
    ReadFailed,
    Reads,
    Wanted,
)

Step = ReadFailed | list[Mapping[str, Json]]
AT_ONCE = Backoff(s_min=0.0, s_max=0.0, refused_s=0.0)


def event(version: int, kind: str = "MODIFIED") -> Mapping[str, Json]:
    return {"type": kind, "object": {"metadata": {"uid": "u", "resourceVersion": str(version)}}}


class ScriptedReads:
    """Answers each watch with the next step, and ends the stream after the last; `asked` in order."""

    def __init__(
        self, stop: threading.Event, *steps: Step, newest: str = "", lists_all: bool = True
    ) -> None:
        self.asked: list[str] = []
        self.lists_all = lists_all
        self._steps, self._stop, self._newest = list(steps), stop, newest

    def list(self, wanted: Wanted) -> Listed:
        self.asked.append("list")
        return Listed(
            items=[], version="10", is_whole=self.lists_all or self.asked.count("list") > 1
        )

    def newest_version(self, resource: str) -> str:
        return self._newest

    def watch(
        self, wanted: Wanted, version: str, *, timeout_s: int, silence_s: float
    ) -> Iterator[Mapping[str, Json]]:
        self.asked.append(f"watch {version}")
        if not self._steps:
            self._stop.set()
            return
        step = self._steps.pop(0)
        if isinstance(step, ReadFailed):
            raise step
        yield from step


class Heard:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.gaps: list[str] = []
        self.changes: list[str] = []
        self.troubles: list[str] = []

    def listed(self, resource: str, listed: Listed, gap: str) -> None:
        self.gaps.append(gap)

    def changed(self, resource: str, change: str, item: Json) -> None:
        self.changes.append(change)

    def troubled(self, resource: str, message: str) -> None:
        if self.troubles[-1:] != [message]:
            self.troubles.append(message)


def run(
    *steps: Step, resource: str = PODS, newest: str = "", lists_all: bool = True
) -> tuple[list[str], Heard]:
    stop, heard = threading.Event(), Heard()
    reads = ScriptedReads(stop, *steps, newest=newest, lists_all=lists_all)
    ChangeStream(
        cast(Reads, reads),
        Wanted(resource=resource),
        heard,
        stop=stop,
        backoff=AT_ONCE,
        has_bookmarks=resource != EVENTS,
    ).run()
    return reads.asked, heard


def failed(status: int | None) -> ReadFailed:
    return ReadFailed(f"Cannot watch: {status}", status=status)


def test_a_watch_goes_on_from_the_last_version_that_it_reported_bookmarks_too() -> None:
    asked, heard = run([event(11), event(12, "BOOKMARK")], failed(None), [event(13, "DELETED")])
    assert asked == ["list", "watch 10", "watch 12", "watch 12", "watch 13"]
    assert heard.changes == ["MODIFIED", "DELETED"]
    assert heard.gaps == [""]


def test_a_version_that_is_too_old_is_listed_again_and_reported_as_a_gap() -> None:
    asked, heard = run([event(11)], failed(GONE), [event(12)])
    assert asked == ["list", "watch 10", "watch 11", "list", "watch 10", "watch 12"]
    assert heard.gaps == ["", "Cannot watch: 410"]


def test_more_events_than_are_read_are_reported_as_a_gap_and_watched_from_there() -> None:
    asked, heard = run([event(11)], resource=EVENTS, lists_all=False)
    assert asked == ["list", "watch 10", "watch 11"]
    assert heard.gaps == ["There are more than 0 events, and the rest was not read."]
    assert heard.changes == ["MODIFIED"]


def test_pods_that_cannot_be_listed_whole_are_listed_again() -> None:
    asked, heard = run([event(11)], lists_all=False)
    assert asked == ["list", "list", "watch 10", "watch 11"]
    assert heard.gaps == [""]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_is_reported_at_once_and_is_over_with_the_next_answer(status: int) -> None:
    _, heard = run(failed(status), [event(11)])
    assert heard.troubles == ["", f"Cannot watch: {status}", ""]


def test_a_failure_that_may_pass_is_reported_when_it_lasts() -> None:
    few = [failed(503)] * change_stream.FAILURES_REPORTED
    assert run(*few)[1].troubles == [""]
    assert run(*few, failed(503))[1].troubles == ["", "Cannot watch: 503"]


def test_without_bookmarks_a_quiet_watch_goes_on_from_where_the_server_was_at_its_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, _ = run([], [], resource=EVENTS, newest="500")
    assert asked == ["list", "watch 10", "watch 10", "watch 10"]
    monkeypatch.setattr(change_stream, "SETTLED_S", 0.0)
    asked, _ = run([], [event(501)], [], resource=EVENTS, newest="500")
    assert asked == ["list", "watch 10", "watch 500", "watch 501", "watch 501"]


def test_a_server_that_refuses_every_watch_is_not_asked_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[int] = []

    def at_once(_: Backoff, failures: int, error: ReadFailed | None = None) -> float:
        counted.append(failures)
        return 0.0

    monkeypatch.setattr(Backoff, "wait_s", at_once)
    run(*[failed(GONE)] * 4)
    assert counted[:3] == [2, 3, 4]


def test_waits_double_up_to_a_bound_and_honour_the_server_within_it() -> None:
    backoff = Backoff(s_min=1.0, s_max=8.0, refused_s=30.0)
    for failures, longest in ((1, 1.0), (2, 2.0), (4, 8.0), (1000, 8.0)):
        assert longest / 2 <= backoff.wait_s(failures) <= longest
    busy = ReadFailed("busy", status=429, retry_after_s=3600.0)
    assert 4.0 <= backoff.wait_s(1, busy) <= 8.0
    assert 15.0 <= backoff.wait_s(1, failed(403)) <= 30.0
