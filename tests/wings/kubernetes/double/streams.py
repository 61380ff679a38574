"""What a request that stays open yields: the changes of a watch, the lines of a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.wings.kubernetes.double.answers import ApiError, Json, expired
from tests.wings.kubernetes.double.changes import Change, Trigger
from tests.wings.kubernetes.double.logs import LogReader
from tests.wings.kubernetes.double.objects import Objects
from tests.wings.kubernetes.double.selectors import Chosen, truth

WATCH_S_MAX = 1800.0
FOLLOW_S_MAX = 1800.0
POLL_S = 0.25  # to look whether it may go on
FOLLOW_POLL_S = 0.05

Alive = Callable[[], bool]


def watch(
    objects: Objects,
    resource: str,
    test: Chosen,
    *,
    version: str,
    timeout_s: float,
    bookmark_every_s: float | None,
    alive: Alive,
    kind: tuple[str, str, bool],
    trigger: Trigger | None = None,
    initial: bool = False,
) -> Iterator[Json]:
    """Yield events until the time is over. An old version is answered by one ERROR event, 410.

    initial: the state comes first, and a bookmark that says so (`sendInitialEvents`).
    """
    until = time.monotonic() + min(timeout_s, WATCH_S_MAX)
    whole = version in ("", "0") or initial
    try:
        state, past, open_watch = objects.subscribe(
            resource, None if whole else _number(version), trigger
        )
    except ApiError as error:
        yield {"type": "ERROR", "object": error.status()}
        return
    try:
        yield from ({"type": "ADDED", "object": item} for item in state if test(item))
        if initial:
            yield _bookmark(kind, open_watch.version, first=True)
        yield from (event for change in past if (event := _event(change, test)) is not None)
        bookmark_at = time.monotonic() + (bookmark_every_s or 0.0)
        while alive() and time.monotonic() < until and open_watch.lost is None:
            pause_s = POLL_S if bookmark_every_s is None else min(POLL_S, bookmark_every_s)
            change = open_watch.take(min(pause_s, until - time.monotonic()))
            if change is not None and (event := _event(change, test)) is not None:
                yield event
            if bookmark_every_s is not None and time.monotonic() >= bookmark_at:
                bookmark_at = time.monotonic() + bookmark_every_s
                if (at := objects.seen_all(open_watch)) is not None:
                    yield _bookmark(kind, at)
        if open_watch.lost:
            yield {"type": "ERROR", "object": expired(open_watch.version, open_watch.lost).status()}
    finally:
        objects.unsubscribe(open_watch)


def _number(version: str) -> int:
    if not version.isdigit():
        why = f'Invalid value: "{version}": resource version must be numeric'
        raise ApiError(400, "BadRequest", f"resourceVersion: {why}")
    return int(version)


def _event(change: Change, test: Chosen) -> Json | None:
    """Return what a watch with that selector sees: coming into it is a birth, leaving it an end."""
    before = change.old is not None and test(change.old)
    now = change.type != "DELETED" and test(change.new)
    if not before and not now:
        return None
    kind = "MODIFIED" if before and now else "ADDED" if now else "DELETED"
    return {"type": kind, "object": change.new}


def _bookmark(of: tuple[str, str, bool], version: int, *, first: bool = False) -> Json:
    kind, api, _ = of
    meta: Json = {"resourceVersion": str(version), "creationTimestamp": None}
    if first:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    return {"type": "BOOKMARK", "object": {"kind": kind, "apiVersion": api, "metadata": meta}}


def log(
    path: Path,
    query: dict[str, str],
    *,
    runs: Alive,
    alive: Alive,
) -> Iterator[bytes]:
    """Yield a log as the query wants it; `follow` goes on while the container runs."""
    since = ""
    if "sinceTime" in query:
        at = datetime.fromisoformat(query["sinceTime"]).astimezone(UTC)
        since = at.strftime("%Y-%m-%dT%H:%M:%S")
    if "sinceSeconds" in query:
        at = datetime.now(UTC) - timedelta(seconds=int(query["sinceSeconds"]))
        since = at.strftime("%Y-%m-%dT%H:%M:%S")
    reader = LogReader(path, timestamps=truth(query, "timestamps"), since=since)
    tail, left = query.get("tailLines"), int(query.get("limitBytes", 2**62))
    for line in _limited(reader.last(int(tail) if tail is not None else None), left):
        left -= len(line)
        yield line
    until = time.monotonic() + FOLLOW_S_MAX
    going = truth(query, "follow")
    while going and left > 0 and alive() and time.monotonic() < until:
        going = runs()
        time.sleep(FOLLOW_POLL_S)  # after the end: time for its last lines to be read
        for line in _limited(reader.fresh(), left):
            left -= len(line)
            yield line


def _limited(lines: Iterator[bytes], left: int) -> Iterator[bytes]:
    for line in lines:
        if left <= 0:
            return
        yield line[:left]
        left -= len(line)
