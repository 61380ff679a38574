"""One resource's changes without a gap: LIST, WATCH from there, and again whenever that breaks.

A watch that ends, in order or not, resumes from the last version that it got; a version that is too
old (410) means a new LIST, and what changed meanwhile is reported as a gap. Never ends by itself.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tracks_dagster.reasons.kube_json import mapping, text, version_order
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.effects.reads import (
    EVENTS,
    GONE,
    Listed,
    ReadFailed,
    Reads,
    Wanted,
)

AGAIN_S = 2.0  # after such an error
_log = logging.getLogger(__name__)
WATCH_S_MIN, WATCH_S_MAX = 180, 240  # below the five minutes that a version is good for
# A server that sends bookmarks does so every minute; a half-open connection is found by silence.
SILENCE_S = 90.0
SETTLED_S = 30.0  # a watch that lasted so long has shown everything up to its start
QUICK_S = 1.0  # a watch that ends sooner is a server that is going down
REFUSED = (401, 403, 404)  # a person has to change something
FAILURES_REPORTED = 5  # in a row: by then it is more than a restart


class LastingThread(threading.Thread):
    """Runs `work` until that returns, or until `stop` is set and it fails.

    troubled: called with an error that nobody foresaw; the work then starts again.
    """

    def __init__(
        self,
        work: Callable[[], None],
        name: str,
        stop: threading.Event,
        troubled: Callable[[str], None],
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._work, self._until, self._troubled = work, stop, troubled

    def run(self) -> None:
        """Work; called by `start`."""
        while True:
            try:
                return self._work()
            except Exception as error:  # noqa: BLE001 - a thread's edge
                if self._until.is_set():
                    return None  # what was read was cut off in the middle
                _log.exception("Thread %s goes on after an error", self.name)
                self._troubled(f"{type(error).__name__}: {error}")
            self._until.wait(AGAIN_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits after failures in a row: doubled up to a limit, between half and the whole of it.

    refused_s: after a refusal that only a person can take back.
    """

    s_min: float = 0.25
    s_max: float = 30.0
    refused_s: float = 30.0
    doublings_max: int = 10

    def wait_s(self, failures: int, error: ReadFailed | None = None) -> float:
        """Return how long to wait after so many failures in a row."""
        wait = min(self.s_max, self.s_min * 2.0 ** min(failures - 1, self.doublings_max))
        if error is not None:
            wait = self.refused_s if error.status in REFUSED else wait
            wait = max(wait, min(error.retry_after_s, self.s_max))
        return wait * (0.5 + random.random() / 2)


class Sink(Protocol):
    """Who takes the changes; called on the stream's own thread."""

    def listed(self, resource: str, listed: Listed, gap: str) -> None:
        """Take everything there is now. gap: why changes before it were not seen; empty at first."""
        ...

    def changed(self, resource: str, change: str, item: Json) -> None:
        """Take one change: ADDED, MODIFIED or DELETED."""
        ...

    def troubled(self, resource: str, message: str) -> None:
        """Take why it cannot be watched, as long as it lasts; empty when it can."""
        ...


class ChangeStream:
    """Runs on a thread of its own until `stop` is set.

    has_bookmarks: whether the server sends its version in a quiet time. It does not for events, which
    it does not cache.
    """

    def __init__(
        self,
        reads: Reads,
        wanted: Wanted,
        sink: Sink,
        *,
        stop: threading.Event,
        backoff: Backoff,
        has_bookmarks: bool = True,
    ) -> None:
        self._reads, self._wanted, self._sink = reads, wanted, sink
        self._stop, self._backoff, self._has_bookmarks = stop, backoff, has_bookmarks
        self._version = ""
        self._gap = ""
        self._failures = 0

    def run(self) -> None:
        """List and watch until stopped."""
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list()
                if not self._watch():
                    self._wait(None)
            except ReadFailed as error:
                self._fail(error)

    def _list(self) -> None:
        listed = self._reads.list(self._wanted)
        if not listed.is_whole:
            self._gap = self._too_many(listed)
        self._sink.listed(self._wanted.resource, listed, self._gap)
        self._version, self._gap = listed.version, ""
        self._sink.troubled(self._wanted.resource, "")

    def _too_many(self, listed: Listed) -> str:
        """Return what a list that is not whole leaves unseen; pods and Jobs have to be listed whole."""
        resource = self._wanted.resource
        words = f"There are more than {len(listed.items)} {resource}, and the rest was not read"
        if resource != EVENTS:
            raise ReadFailed(f"{words}: too many for one gang, or for one namespace.")
        return f"{words}." + (f" {self._gap}" if self._gap else "")

    def _watch(self) -> bool:
        """Take changes until the server ends the watch; False when that was suspiciously soon."""
        newest = "" if self._has_bookmarks else self._reads.newest_version(self._wanted.resource)
        began = time.monotonic()
        timeout_s = random.randint(WATCH_S_MIN, WATCH_S_MAX)
        silence_s = SILENCE_S if self._has_bookmarks else timeout_s + SILENCE_S
        had_events = False
        for event in self._reads.watch(
            self._wanted, self._version, timeout_s=timeout_s, silence_s=silence_s
        ):
            had_events = True
            self._take(event)
            if self._stop.is_set():
                break
        lasted_s = time.monotonic() - began
        if lasted_s >= SETTLED_S:
            self._version = max(self._version, newest, key=version_order)
        if lasted_s >= QUICK_S:
            self._failures = 0
        return had_events or lasted_s >= QUICK_S

    def _take(self, event: Mapping[str, Json]) -> None:
        item = mapping(event.get("object"))
        version = text(mapping(item.get("metadata")).get("resourceVersion"))
        kind = text(event.get("type"))
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            self._sink.changed(self._wanted.resource, kind, item)
        self._version = version or self._version
        self._failures = 0  # not by a LIST: a server may refuse every watch that follows
        self._sink.troubled(self._wanted.resource, "")

    def _fail(self, error: ReadFailed) -> None:
        if error.status == GONE:
            self._gap = self._gap or str(error)
            self._version = ""
            if self._failures == 0:  # list at once; again and again it is trouble like any other
                self._failures = 1
                return
        if error.status in REFUSED or self._failures >= FAILURES_REPORTED:
            self._sink.troubled(self._wanted.resource, str(error))
        self._wait(error)

    def _wait(self, error: ReadFailed | None) -> None:
        self._failures += 1
        self._stop.wait(self._backoff.wait_s(self._failures, error))
