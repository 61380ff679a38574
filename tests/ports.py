"""Ports for servers of tests that are given theirs before they listen."""

from __future__ import annotations

import random
import socket
from itertools import count

# Below those that a kernel gives by itself, which it may give again before their server listens.
FIRST, END = 10_000, 32_000
TRIES_MAX = 1000
# Each process of tests counts on from a place of its own, so that two of them do not meet.
_numbers = count(random.SystemRandom().randrange(END - FIRST))


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now, and that nobody else is given soon."""
    for _ in range(TRIES_MAX):
        port = FIRST + next(_numbers) % (END - FIRST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"None of {TRIES_MAX} ports is free.")
