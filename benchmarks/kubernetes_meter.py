"""A door to the double of an API server that counts what passes: requests, and bytes of the answers.

Each door has a port of its own, so that the requests of each process are counted apart. Pods
of the double's pretend mode write nothing; the door answers for their logs.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.wings.kubernetes.double import furniture
from tests.wings.kubernetes.double.kube_double import KubeDouble
from tests.wings.kubernetes.double.requests import Answer, Place, Request, place_of, verb_of
from tests.wings.kubernetes.double.server import Server
from tests.wings.kubernetes.double.streams import Alive

Asked = tuple[str, str]  # verb and resource, as a role names them

LINE = (
    b"step 1200 loss 2.7183 lr 3.0e-04 tokens/s 412000 mfu 0.41 mem 71.3 GiB " + b"." * 55 + b"\n"
)
FRESH_LINES = 8  # since the last read of a log


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """What has passed a door so far. sent_bytes: of answers, without HTTP's own."""

    requests: Mapping[Asked, int]
    sent_bytes: Mapping[Asked, int]

    def since(self, before: Passed) -> Passed:
        """Return what passed after `before`."""
        return Passed(
            requests=_less(self.requests, before.requests),
            sent_bytes=_less(self.sent_bytes, before.sent_bytes),
        )


class Door:
    """Serves on its own port until closed. log_bytes: of what every pod's log holds at first."""

    def __init__(self, kube: KubeDouble, folder: Path, name: str, *, log_bytes: int) -> None:
        self._kube, self._log_lines = kube, log_bytes // len(LINE)
        self._requests: Counter[Asked] = Counter()
        self._sent_bytes: Counter[Asked] = Counter()
        self._open_watches = 0
        self._lock = threading.Lock()
        self._server = Server(self._handle, token=furniture.TOKEN)
        self.kubeconfig = folder / f"{name}.kubeconfig"
        url = f"http://127.0.0.1:{self._server.port}"
        self.kubeconfig.write_text(json.dumps(furniture.kubeconfig(url)))

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    @property
    def open_watches(self) -> int:
        """How many watches are open now."""
        return self._open_watches

    def passed(self) -> Passed:
        """Return what has passed so far."""
        with self._lock:
            return Passed(requests=dict(self._requests), sent_bytes=dict(self._sent_bytes))

    def _handle(self, request: Request, alive: Alive) -> Answer:
        place = place_of(request.path)
        asked = (verb_of(request, place), _resource(place))
        with self._lock:
            self._requests[asked] += 1
        if asked == ("get", "pods/log"):
            return Answer(lines=self._counted(asked, self._log(request)))
        answer = self._kube.api.handle(request, alive)
        if answer.events is not None:
            return Answer(lines=self._counted(asked, self._stream(answer.events)))
        if answer.body is not None:
            self._count(asked, len(json.dumps(answer.body)))
        return answer

    def _stream(self, events: Iterator[Any]) -> Iterator[bytes]:
        with self._lock:
            self._open_watches += 1
        try:
            for event in events:
                yield json.dumps(event).encode() + b"\n"
        finally:
            with self._lock:
                self._open_watches -= 1

    def _counted(self, asked: Asked, lines: Iterator[bytes]) -> Iterator[bytes]:
        for line in lines:
            self._count(asked, len(line))
            yield line

    def _log(self, request: Request) -> Iterator[bytes]:
        """Yield the whole log, or what came since."""
        count = FRESH_LINES if "sinceTime" in request.query else self._log_lines
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode()
        for _ in range(count):
            yield at + b" " + LINE

    def _count(self, asked: Asked, size: int) -> None:
        with self._lock:
            self._sent_bytes[asked] += size


class Counted:
    """A store, a ledger or Dagster, whose calls are counted by method."""

    def __init__(self, of: Any) -> None:
        self._of, self._lock = of, threading.Lock()
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        """Return its own, counted when it is called."""
        found = getattr(self._of, name)
        if not callable(found):
            return found

        def call(*given: Any, **named: Any) -> Any:
            with self._lock:
                self.calls[name] += 1
            return found(*given, **named)

        return call


def _resource(place: Place) -> str:
    return f"{place.resource}/{place.part}" if place.part else place.resource


def _less(now: Mapping[Asked, int], before: Mapping[Asked, int]) -> dict[Asked, int]:
    more = {asked: count - before.get(asked, 0) for asked, count in now.items()}
    return {asked: count for asked, count in more.items() if count}
