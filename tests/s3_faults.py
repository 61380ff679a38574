"""An S3 that misbehaves by a seed, in front of moto's own S3 in this process.

A seed is a schedule: for every request of a scenario (which method, which object, the how manieth of
its kind) it says whether the request goes wrong and how. Nothing is drawn from the order in which
threads send, so a seed plays the same schedule again. How requests come here: `tests.s3_fronts`.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import Enum

from botocore.awsrequest import AWSPreparedRequest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.core.request import normalize_request
from moto.s3.models import FakeKey, s3_backends
from moto.s3.responses import S3Response

BUCKET = "faulty-bucket"
PREFIX = "store"
REQUESTS_MAX = 3000  # of one schedule: more is a loop without a bound
SILENT_ON_THE_WIRE = 0.15  # of the schedules; in the others a silence is a closed connection
RATES = (0.03, 0.1, 0.2, 0.35)  # of requests that go wrong, one of them for a whole schedule
STORM_RATE = 0.1  # of phases in which the first tries of every request meet a 503
STORM_TRIES_MAX = 6  # the SDK gives up after four


class Wrong(Enum):
    """What goes wrong with one request."""

    BUSY = "503 SlowDown: nothing happened"
    ERROR_AFTER = "500 InternalError: it happened"
    CONFLICT = "409: nothing happened"
    CONFLICT_AFTER = "409: it happened"
    TAKEN_BY_ITSELF = "412: it happened just now, by this very request"
    SILENT = "no reply: nothing happened"
    SILENT_AFTER = "no reply: it happened"
    LATE = "no reply: it happens later"
    RESET = "the connection was reset: nothing happened"
    RESET_AFTER = "the connection was reset: it happened"
    CUT = "the reply breaks off in its body"
    SHORT = "the reply is whole by its header and lacks the end of the object"


_WRITES = (
    *(Wrong.BUSY,) * 3,
    *(Wrong.ERROR_AFTER,) * 3,
    *(Wrong.CONFLICT, Wrong.CONFLICT_AFTER) * 2,
    *(Wrong.RESET, Wrong.RESET_AFTER) * 3,
    Wrong.SILENT,
    *(Wrong.SILENT_AFTER,) * 2,
    *(Wrong.LATE,) * 2,
)
_CREATES = (*_WRITES, *(Wrong.TAKEN_BY_ITSELF,) * 4)
_READS = (*(Wrong.BUSY,) * 3, *(Wrong.RESET,) * 3, Wrong.SILENT, *(Wrong.CUT,) * 5)
_HAPPENED = frozenset(
    {
        Wrong.ERROR_AFTER,
        Wrong.CONFLICT_AFTER,
        Wrong.TAKEN_BY_ITSELF,
        Wrong.SILENT_AFTER,
        Wrong.RESET_AFTER,
        Wrong.CUT,
        Wrong.SHORT,
    }
)
_SILENT = frozenset({Wrong.SILENT, Wrong.SILENT_AFTER, Wrong.LATE})
_RESET = frozenset({Wrong.RESET, Wrong.RESET_AFTER})
_ERRORS = {
    Wrong.BUSY: (503, "SlowDown"),
    Wrong.ERROR_AFTER: (500, "InternalError"),
    Wrong.CONFLICT: (409, "ConditionalRequestConflict"),
    Wrong.CONFLICT_AFTER: (409, "ConditionalRequestConflict"),
    Wrong.TAKEN_BY_ITSELF: (412, "PreconditionFailed"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request. key: the object's, without bucket and prefix; empty for one that lists."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return self.url.partition("?")[0].partition(f"/{PREFIX}/")[2]

    @property
    def is_creation(self) -> bool:
        return any(name.lower() == "if-none-match" for name in self.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A reply. wrong: SILENT, RESET or CUT when it does not come, or not whole."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    wrong: Wrong | None = None


class FaultySchedule:
    """The S3 of one schedule, empty at first. `played` counts what went wrong.

    Nothing goes wrong before the first `enter`. is_silent: whether a silence on the wire is one.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.played: Counter[Wrong] = Counter()
        self.requests = 0
        self.phase = ""
        draw = random.Random(f"{seed}")
        self.is_silent = draw.random() < SILENT_ON_THE_WIRE
        self._rate = draw.choice(RATES)
        self._storm_tries = 0
        self._shortens = False
        self._tries: Counter[tuple[str, str, str]] = Counter()
        self._late: dict[str, deque[tuple[int, Asked]]] = {}
        self._lock = threading.RLock()
        self._backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        self._backend.reset()
        FakeKey.instances_tracked.clear()  # type: ignore[attr-defined]  # else moto keeps all for ever
        self._backend.create_bucket(BUCKET, "us-east-1")

    def enter(self, phase: str, *, shortens: bool = False) -> None:
        """Begin a phase of the scenario; what was late has arrived by then.

        shortens: reads of this phase may lie about lengths.
        """
        with self._lock:
            self._deliver_all()
            self.phase, self._shortens = phase, shortens
            draw = random.Random(f"{self.seed}/{phase}")
            is_storm = draw.random() < STORM_RATE
            self._storm_tries = draw.randint(1, STORM_TRIES_MAX) if is_storm else 0

    def put(self, key: str, data: bytes) -> None:
        """Store an object as if it had been there before."""
        self._backend.put_object(BUCKET, f"{PREFIX}/{key}", data)

    def stored(self) -> dict[str, bytes]:
        """Let what was late arrive, and return all objects as they lie in the bucket."""
        with self._lock:
            self._deliver_all()
            found = self._backend.buckets[BUCKET].keys.items()
            return {name.removeprefix(f"{PREFIX}/"): key.value for name, key in found}

    def serve(self, asked: Asked) -> Answer:
        """Answer a request, or not."""
        with self._lock:
            self.requests += 1
            self._deliver(asked.key)
            wrong = self._draw(asked) if self.phase else None
            if wrong is None:
                return _moto(asked)
            self.played[wrong] += 1
            if wrong is Wrong.LATE:
                self._late.setdefault(asked.key, deque()).append((2, asked))
            answer = _moto(asked) if wrong in _HAPPENED else Answer()
            return self._spoilt(wrong, asked, answer)

    def _draw(self, asked: Asked) -> Wrong | None:
        """Return what goes wrong with this request: by its name and count, never by the order."""
        name = (self.phase, f"{asked.method} {asked.is_creation}", asked.key)
        self._tries[name] += 1
        if self._tries[name] <= self._storm_tries:
            return Wrong.BUSY
        draw = random.Random(f"{self.seed}/{name}/{self._tries[name]}")
        if draw.random() >= self._rate:
            return None
        if asked.method == "GET":
            return draw.choice((*_READS, *(Wrong.SHORT,) * 2) if self._shortens else _READS)
        return draw.choice(_CREATES if asked.is_creation else _WRITES)

    def _spoilt(self, wrong: Wrong, asked: Asked, answer: Answer) -> Answer:
        if wrong in _SILENT:
            return Answer(wrong=Wrong.SILENT)
        if wrong in _RESET:
            return Answer(wrong=Wrong.RESET)
        if wrong in (Wrong.CUT, Wrong.SHORT):
            if answer.status != 200:
                return answer
            short = answer.body[: len(answer.body) // 2]
            whole = wrong is Wrong.SHORT
            return Answer(
                status=answer.status,
                headers=answer.headers,
                body=short if whole else answer.body,
                wrong=None if whole else Wrong.CUT,
            )
        if wrong is Wrong.TAKEN_BY_ITSELF and answer.status != 200:
            return answer
        status, code = _ERRORS[wrong]
        error = f"<Error><Code>{code}</Code><Message>as scheduled</Message></Error>".encode()
        return Answer(status=status, headers={"Content-Type": "application/xml"}, body=error)

    def _deliver(self, key: str) -> None:
        """Let late requests arrive: before the second request after theirs that names the object."""
        waiting = self._late.get(key)
        for _ in range(len(waiting or ())):
            left, asked = waiting.popleft()  # type: ignore[union-attr]
            if left == 1:
                _moto(asked)
            else:
                waiting.append((left - 1, asked))  # type: ignore[union-attr]

    def _deliver_all(self) -> None:
        for waiting in self._late.values():
            for _, asked in waiting:
                _moto(asked)
        self._late.clear()


def _moto(asked: Asked) -> Answer:
    """Let moto's S3 do it."""
    request = normalize_request(
        AWSPreparedRequest(asked.method, asked.url, dict(asked.headers), asked.body, False)
    )
    dispatch = S3Response.key_dispatch if asked.key else S3Response.bucket_dispatch
    status, headers, body = dispatch(request, asked.url, request.headers)
    data = body.encode() if isinstance(body, str) else bytes(body)
    return Answer(status=status, headers={k: str(v) for k, v in headers.items()}, body=data)
