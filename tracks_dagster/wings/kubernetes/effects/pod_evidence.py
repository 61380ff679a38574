"""A watcher's evidence in the object store: written as it happens, and read back to judge.

`<prefix>/pods/<watcher uid>/<segment:06d>.jsonl` holds lines as `sightings` makes them, and is
never rewritten. `tails.json` beside it is: the newest log lines of the pods that run, which as segments
would grow with the run's length. Each watcher writes below its own uid only.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from tracks_dagster.stores.bounded import read_bounded
from tracks_dagster.track.errors import StoreError
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, canonical_json
from tracks_dagster.wings.kubernetes.gang_fold import GangFold
from tracks_dagster.wings.kubernetes.sightings import GangSeen, Line, tail

# One segment a second at the most; the first line after a quiet time goes at once.
PUT_EVERY_S = 1.0
TAILS_EVERY_S = 15.0
SEGMENT_BYTES_MAX = 4 * 1024 * 1024  # or one line; what is read may have twice as much
SEGMENT_READ_MAX = 2 * SEGMENT_BYTES_MAX
WAITING_BYTES_MAX = 64 * 1024 * 1024  # while the store does not answer; then the oldest lines go
STORE_AGAIN_S = 1.0
SEGMENTS_MAX = 100_000  # that are read of one attempt
TAILS = "tails.json"
TAILS_BYTES_MAX = 1024 * 1024  # of all pods together


def read_evidence(store: ObjectStore, prefix: str) -> GangSeen:
    """Return what all watchers of an attempt stored; prefix: the attempt's folder.

    Raises StoreUnavailable. A line that cannot be read is skipped.
    """
    return GangFold(read_lines(store, prefix)).seen()


def read_lines(store: ObjectStore, prefix: str) -> Iterator[Json]:
    """Yield every line that a watcher of the attempt stored."""
    keys = store.list(f"{prefix.rstrip('/')}/pods/")
    for _, key in zip(range(SEGMENTS_MAX), keys, strict=False):
        if key.endswith((".jsonl", TAILS)):
            yield from _parsed(read_bounded(store, key, SEGMENT_READ_MAX) or b"")


def _parsed(data: bytes) -> Iterator[Json]:
    for line in data.splitlines():
        try:
            yield parse_json(line)
        except ValueError:
            continue


def _shortened(tails: Sequence[Line]) -> Iterator[Line]:
    size = TAILS_BYTES_MAX // max(1, len(tails))
    return ({**line, "text": tail(line["text"], size)} for line in tails)


class EvidenceWriter:
    """Puts lines in the order in which they were added, on a thread of its own.

    tails: returns the lines of `tails.json`, or None when there is nothing new. A store that does not
    answer is asked again for ever; what waits is bounded, and what was lost is counted in `lost`.
    """

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        *,
        tails: Callable[[], Sequence[Line] | None],
        tails_every_s: float = TAILS_EVERY_S,
    ) -> None:
        self._store, self._folder, self._tails = store, folder, tails
        self._tails_every_s = tails_every_s
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._segment = 0
        self._batch = b""  # the segment that is being put
        self._tails_at = time.monotonic() + tails_every_s
        self._changed = threading.Condition()
        self._is_closing = False
        self.lost = 0

    def add(self, line: Line) -> None:
        """Let the line be put soon; returns at once."""
        data = canonical_json(line)
        with self._changed:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            while self._waiting_bytes > WAITING_BYTES_MAX:
                self._waiting_bytes -= len(self._waiting.popleft())
                self.lost += 1
            self._changed.notify_all()

    def run(self) -> None:
        """Put segments until closed, and then what is left; a last time only if the store fails."""
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, self._tails_every_s)
                closing = self._is_closing
            done = self._put_batch() and self._put_tails(at_last=closing)
            if closing and (not done or not self._has_lines()):
                break
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_closing, PUT_EVERY_S if done else STORE_AGAIN_S
                )
        with self._changed:
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything added so far is in the store; False when it does not by then."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._has_lines(), timeout_s)

    def close(self) -> None:
        """Let `run` put what is left and return."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def _has_lines(self) -> bool:
        return bool(self._waiting or self._batch)

    def _has_work(self) -> bool:
        return self._has_lines() or self._is_closing or time.monotonic() >= self._tails_at

    def _put_batch(self) -> bool:
        """Put one segment if there are lines; False when the store did not take it."""
        with self._changed:
            # One that was started may be there already, and stays as it is.
            batch = self._batch = self._batch or self._taken()
        if not batch:
            return True
        try:
            self._store.put(f"{self._folder}/{self._segment:06d}.jsonl", batch)
        except StoreError:
            return False
        with self._changed:
            self._segment += 1
            self._batch = b""
            self._changed.notify_all()
        return True

    def _taken(self) -> bytes:
        """Take lines for one segment, at least one if there is any; called under the lock."""
        taken: list[bytes] = []
        size = 0
        while self._waiting and (not taken or size + len(self._waiting[0]) <= SEGMENT_BYTES_MAX):
            taken.append(self._waiting.popleft() + b"\n")
            size += len(taken[-1])
        self._waiting_bytes -= size - len(taken)
        return b"".join(taken)

    def _put_tails(self, *, at_last: bool) -> bool:
        if time.monotonic() < self._tails_at and not at_last:
            return True
        self._tails_at = time.monotonic() + self._tails_every_s
        lines = self._tails()
        if lines is None:
            return True
        try:
            data = b"".join(canonical_json(line) + b"\n" for line in _shortened(lines))
            self._store.put(f"{self._folder}/{TAILS}", data)
        except StoreError:
            return False
        return True
