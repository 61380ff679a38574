"""The newest lines of every pod's log, read often enough that a pod which ends at once leaves some.

A log is read at once when its pod is disrupted, deleted or ended, and in turns before that. Not
followed: 64 pods × 500 gangs would be 32 000 open streams through the API server, all their life. In
turns at LOG_READS_PER_S a gang costs 2 requests a second however large it is; of 64 pods each is then
read every 32 s, of up to 10 every 5 s.

A kubelet that cannot read a log sends a message instead, with status 200. It has no time, so
every line without one is reported as trouble, and none is kept as the container's.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from tracks_dagster.reasons.evidence import LOG_TAIL_BYTES_MAX
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.wings.kubernetes.effects.change_stream import REFUSED
from tracks_dagster.wings.kubernetes.effects.reads import LOGS, ReadFailed, Reads
from tracks_dagster.wings.kubernetes.gang_fold import PODS_MAX
from tracks_dagster.wings.kubernetes.sightings import tail

LOG_READS_PER_S = 2.0  # of one gang, beside those at once
LOG_EVERY_S = 5.0  # of one pod, at the most
LEAVING_EVERY_S = 1.0  # of one that was deleted and still runs
REFUSED_S = 30.0  # before the next try, where the account may not read logs
LINES_MAX = 1000  # of one read
LINE_BYTES_MAX = 16 * 1024
KEPT_BYTES_MAX = 4 * LOG_TAIL_BYTES_MAX  # of one read
WORKERS = 4
LAST_READS_MAX = 3  # tries of the read that comes after the end
REFUSAL_BYTES_MAX = 500  # of a kubelet's words in the place of a log
NOT_THERE = 404
# RFC 3339; a kubelet writes its node's zone, which is not the same all year.
_TIME = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_log = logging.getLogger(__name__)


class TookLog(Protocol):
    """Takes a tail. until: the last line's time; whole: the container has ended, no more of it can be
    read; at_once: something happened to the pod."""

    def __call__(self, uid: str, log: str, *, until: str, whole: bool, at_once: bool) -> None: ...


@dataclass(slots=True, kw_only=True)
class _Pod:
    uid: str
    name: str
    container: str
    tail: str = ""
    until: str = ""
    due_at: float = 0.0
    leaves: bool = False
    ended: bool = False
    tries: int = 0
    is_read: bool = False  # by a worker, now
    at_once: bool = False


class LogTails:
    """Reads on a few threads of its own, begun with the first pod. Safe from several threads."""

    def __init__(
        self,
        reads: Reads,
        took: TookLog,
        troubled: Callable[[str, str], None],
        *,
        clean: Redact,
        reads_per_s: float = LOG_READS_PER_S,
        every_s: float = LOG_EVERY_S,
    ) -> None:
        self._reads, self._took, self._troubled, self._clean = reads, took, troubled, clean
        self._pause_s, self._every_s = 1.0 / reads_per_s, every_s
        self._pods: dict[str, _Pod] = {}
        self._urgent: deque[str] = deque()
        self._turn_at = 0.0
        self._refused_until = 0.0
        self._changed = threading.Condition()
        self._workers: list[threading.Thread] = []
        self._is_closed = False

    def follow(self, uid: str, name: str, container: str) -> None:
        """Read that pod's log from now on: its container runs, or has run."""
        with self._changed:
            if uid in self._pods or self._is_closed or len(self._pods) >= PODS_MAX:
                return
            self._pods[uid] = _Pod(uid=uid, name=name, container=container)
            self._begin()
            self._changed.notify()

    def hurry(self, uid: str, *, ended: bool) -> None:
        """Read it at once. ended: its container has ended, so that it is the last time."""
        with self._changed:
            pod = self._pods.get(uid)
            if pod is None or (pod.ended and not ended):
                return
            pod.leaves, pod.ended = True, pod.ended or ended
            pod.at_once = True
            self._urgent.append(uid)
            self._changed.notify()

    def drop(self, uid: str) -> None:
        """Its object is gone, and its log with it; a read that is due at once is still tried."""
        with self._changed:
            pod = self._pods.get(uid)
            if pod is not None:
                pod.ended, pod.tries = True, LAST_READS_MAX
                if not pod.at_once and not pod.is_read:
                    del self._pods[uid]

    def close(self, wait_s: float = 0.0) -> None:
        """Stop, once what has to be read at once is read or `wait_s` have passed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._has_urgent(), wait_s)
            self._is_closed = True
            self._changed.notify_all()

    def _has_urgent(self) -> bool:
        if time.monotonic() < self._refused_until:
            return False
        return any(pod.at_once or (pod.is_read and pod.leaves) for pod in self._pods.values())

    def _begin(self) -> None:
        """Start one more worker, up to WORKERS; called under the lock."""
        if len(self._workers) < min(WORKERS, len(self._pods)):
            worker = threading.Thread(target=self._work, name="pod-logs", daemon=True)
            self._workers.append(worker)
            worker.start()

    def _work(self) -> None:
        while (pod := self._next()) is not None:
            try:
                self._read(pod)
            except Exception as error:  # noqa: BLE001 - a thread's edge: the other pods' logs go on
                _log.exception("Cannot read the log of pod %s", pod.name)
                what = f"Cannot read the log of pod {pod.name}: {type(error).__name__}: {error}"
                self._troubled(LOGS, what)
                with self._changed:
                    self._pods.pop(pod.uid, None)
                    self._changed.notify()

    def _next(self) -> _Pod | None:
        """Return the pod to read next, when it is time; None when closed."""
        with self._changed:
            while not self._is_closed:
                now = time.monotonic()
                pod = self._pick(now)
                if pod is not None:
                    pod.is_read = True
                    return pod
                self._changed.wait(max(0.01, min(self._pause_s, LEAVING_EVERY_S)))
            return None

    def _pick(self, now: float) -> _Pod | None:
        """Return one that is read at once, else the one that is longest due, in turns."""
        if now < self._refused_until:
            return None
        for _ in range(len(self._urgent)):
            pod = self._pods.get(self._urgent.popleft())
            if pod is not None and pod.is_read:
                self._urgent.append(pod.uid)  # once more, when that read is over
            elif pod is not None and pod.at_once:
                return pod
        if now < self._turn_at:
            return None
        due = [pod for pod in self._pods.values() if not pod.is_read and pod.due_at <= now]
        if due:
            self._turn_at = now + self._pause_s
        return min(due, key=lambda pod: (not pod.leaves, pod.due_at), default=None)

    def _read(self, pod: _Pod) -> None:
        with self._changed:
            at_once, pod.at_once, ended = pod.at_once, False, pod.ended
        over = ended
        try:
            grew, refusal = self._grow(pod)
            self._troubled(LOGS, refusal)
            if refusal and ended:
                pod.tries += 1
                over = pod.tries >= LAST_READS_MAX
            if grew or at_once or (over and ended):
                whole = over and ended
                self._took(pod.uid, pod.tail, until=pod.until, whole=whole, at_once=at_once)
        except ReadFailed as error:
            over = self._failed(pod, error, ended=ended)
            if over and ended:
                self._took(pod.uid, pod.tail, until=pod.until, whole=True, at_once=True)
        with self._changed:
            pod.is_read = False
            every_s = min(LEAVING_EVERY_S, self._every_s) if pod.leaves else self._every_s
            pod.due_at = time.monotonic() + every_s
            if over and not pod.at_once:
                self._pods.pop(pod.uid, None)
            self._changed.notify()

    def _failed(self, pod: _Pod, error: ReadFailed, *, ended: bool) -> bool:
        """Return whether it is pointless to try again."""
        if error.status in REFUSED and error.status != NOT_THERE:
            self._refused_until = time.monotonic() + REFUSED_S
            self._troubled(LOGS, str(error))
            return ended
        pod.tries += ended
        return error.status == NOT_THERE or pod.tries >= LAST_READS_MAX

    def _grow(self, pod: _Pod) -> tuple[bool, str]:
        """Add the lines after the last known one; return whether there were any, and what the kubelet
        refusal in the place of the log."""
        since = f"{pod.until[:19]}Z" if pod.until else ""
        lines = self._reads.log(pod.name, pod.container, lines=LINES_MAX, since=since)
        fresh, until, refusal = _newest(lines, after=pod.until)
        if fresh:
            pod.tail = tail(pod.tail + self._clean(fresh), LOG_TAIL_BYTES_MAX)
            pod.until = until
        if refusal:
            refusal = f"The log of pod {pod.name} cannot be read now; its kubelet says: {refusal}"
        return bool(fresh), refusal


def split_line(line: bytes) -> tuple[str, bytes]:
    """Return a log line's time, in UTC to the nanosecond, and its words; "" as the time of a line
    that has none, which is not the container's."""
    at, _, words = line.partition(b" ")
    found = _TIME.fullmatch(at)
    if found is None:
        return "", line
    second, fraction, zone = (part.decode("ascii") for part in found.groups(b""))
    try:
        moment = datetime.fromisoformat(second + ("+00:00" if zone == "Z" else zone))
    except ValueError:
        return "", line
    second = moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{second}.{fraction:0<9}Z", words


def _newest(lines: Iterable[bytes], *, after: str) -> tuple[str, str, str]:
    """Return the last of the lines later than `after`, without their times; the last's time; and the
    first line without a time, "" for none."""
    kept: deque[bytes] = deque()
    size, until, refusal = 0, after, ""
    for line in lines:
        at, words = split_line(line)
        if not at:
            refusal = refusal or words[:REFUSAL_BYTES_MAX].decode("utf-8", "replace").strip()
            continue
        if at <= after:
            continue
        until = max(until, at)
        # Half a line hides what a secret in it is called: its end begins at a word.
        words = words if len(words) <= LINE_BYTES_MAX else _end_of(words)
        kept.append(words)
        size += len(words)
        while size > KEPT_BYTES_MAX:
            size -= len(kept.popleft())
    text = b"".join(line + b"\n" for line in kept).decode("utf-8", "replace")
    return text, until, refusal


def _end_of(words: bytes) -> bytes:
    return words[-LINE_BYTES_MAX:].partition(b" ")[2]
