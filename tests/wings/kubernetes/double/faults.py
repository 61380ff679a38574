"""What the double's HTTP does wrong where a test says so: refusals, delays, lost replies."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass, field

from tests.wings.kubernetes.double.answers import ApiError, Json, cannot, forbidden

KEPT_MAX = 1000


@dataclass(kw_only=True)
class Misbehaviour:
    """What to do wrong with the requests of a verb and a resource ("*": any), `count` of them.

    status: answer this at once. lose_reply: do it, and cut the connection. delay_s: do it, and
    reply later.
    """

    verb: str = "*"
    resource: str = "*"
    count: int = 1_000_000
    status: int | None = None
    lose_reply: bool = False
    delay_s: float = 0.0

    def concerns(self, verb: str, resource: str) -> bool:
        """Whether it is left to do, and meant for such a request."""
        return self.count > 0 and self.verb in ("*", verb) and self.resource in ("*", resource)


@dataclass(kw_only=True)
class Desk:
    """Where every request passes: what was asked, what is refused, what goes wrong.

    requests: how many of (verb, resource). received: the manifests of the last creations.
    """

    user: str
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    received: deque[Json] = field(default_factory=lambda: deque(maxlen=KEPT_MAX))
    received_count: int = 0
    denied: set[tuple[str, str]] = field(default_factory=set)
    wrongs: list[Misbehaviour] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def receive(self, manifest: Json) -> None:
        """Keep a manifest as it came."""
        with self.lock:
            self.received_count += 1
            self.received.append(manifest)

    def allows(self, verb: str, resource: str) -> bool:
        """Whether the account may; what is not denied is allowed."""
        asked = ((verb, resource), ("*", resource), (verb, "*"))
        return not any(pair in self.denied for pair in asked)

    def enter(self, verb: str, resource: str, name: str, namespace: str) -> Misbehaviour:
        """Count the request and return what to do wrong with it; 403 where it is denied."""
        with self.lock:
            self.requests[verb, resource] += 1
            wrong = next((w for w in self.wrongs if w.concerns(verb, resource)), Misbehaviour())
            wrong.count -= 1
        if not self.allows(verb, resource):
            plain = resource.replace("/", " ").split()[0]
            raise forbidden(plain, name, cannot(self.user, verb, resource, namespace))
        return wrong


def failure(status: int) -> ApiError:
    """Return the answer of an API server in trouble."""
    reason = {401: "Unauthorized", 410: "Expired", 429: "TooManyRequests"}
    reason |= {500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}
    return ApiError(status, reason.get(status, "Unknown"), "the test lets the double answer this")
