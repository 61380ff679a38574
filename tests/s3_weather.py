"""Bad weather between the SDK and an S3 server, drawn from a seed: single faults, and bursts of them.

The double (`tests.s3_double`) plays it. A seed gives the same bursts at the same seconds and the same
share of single faults; which request meets which depends on the order in which processes send.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

from tests.s3_double import Misbehaviour, S3Double

RATE = 0.12  # of requests that go wrong outside of a burst
CALM_S = (6.0, 15.0)  # between two bursts
BURST_S = (2.0, 6.0)
SKEW_S = 3600.0

SINGLE = {
    "delayed": Misbehaviour(delay_s=1.5),
    "lost": Misbehaviour(drop_request=True),
    "reply lost": Misbehaviour(drop_reply=True),
    "reset in mid-body": Misbehaviour(reset_body=True),
    "truncated": Misbehaviour(cut_body=True),
    "repeated": Misbehaviour(repeat=True),
    "503": Misbehaviour(status=503, code="SlowDown"),
}
BURSTS = {
    "burst of 503": Misbehaviour(status=503, code="SlowDown"),
    "skewed clock": Misbehaviour(status=403, code="RequestTimeTooSkewed", clock_s=SKEW_S),
}


class WeatherDouble(S3Double):
    """A double that misbehaves by a seed from `begin` to `end`. played: how many requests met what."""

    def __init__(self, endpoint: str, *, seed: int) -> None:
        super().__init__(endpoint=endpoint)
        self.played: Counter[str] = Counter()
        self._draw = random.Random(seed)
        self._lock = threading.Lock()
        self._is_bad = False
        self._burst = ""
        self._turns_at = 0.0  # when the burst, or the calm between two of them, ends

    def begin(self) -> None:
        """Let the weather turn bad."""
        with self._lock:
            self._is_bad = True

    def end(self) -> None:
        """Let it clear up."""
        with self._lock:
            self._is_bad = False

    def next(self, method: str) -> Misbehaviour:
        """Return what to do wrong with a request that came now."""
        with self._lock:
            if not self._is_bad:
                return Misbehaviour()
            name = self._burst_now() or self._single()
            if name:
                self.played[name] += 1
            return (SINGLE | BURSTS).get(name, Misbehaviour())

    def _burst_now(self) -> str:
        now = time.monotonic()
        if now >= self._turns_at:
            is_over = bool(self._burst)
            self._burst = "" if is_over else self._draw.choice(sorted(BURSTS))
            self._turns_at = now + self._draw.uniform(*(CALM_S if is_over else BURST_S))
        return self._burst

    def _single(self) -> str:
        return self._draw.choice(sorted(SINGLE)) if self._draw.random() < RATE else ""
