"""A person's command answers within a bound, and says what it waits for meanwhile.

Each wait below has a bound of its own; on a machine under load many of them follow one another. What
they wait for is read from where the process is when the alarm comes, so no code below knows of this.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from tracks_dagster.track.errors import TracksError

NOTICE_S = 15.0  # between two words on what it waits for
ANSWER_S_MAX = 120.0

# The innermost of these on the stack is what the process waits for.
_WAITS_FOR = {
    "tracks_dagster.stores": "the object store (TRACKS_STORE)",
    "tracks_dagster.ledger.effects.database": "the ledger's database",
    "tracks_dagster.kubernetes.effects": "the cluster's API server",
}
_ITSELF = "this machine: the process itself gets little time to run"


@contextmanager
def answer_in_time(doing: str, *, to_know: str) -> Iterator[None]:
    """Tell on stderr what the block waits for; raise TracksError once it has taken ANSWER_S_MAX.

    doing: for the words, "drain r-1"; to_know: the command that tells whether it was done. Does nothing
    outside of the main thread, which alone gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    began = time.monotonic()

    def ring(_number: int, frame: FrameType | None) -> None:
        waited_s, what = time.monotonic() - began, _waits_for(frame)
        if waited_s < ANSWER_S_MAX:
            told = f"Still waiting for {what}: {waited_s:.0f} s of at most {ANSWER_S_MAX:g} s."
            click.echo(told, file=sys.stderr)
            return
        raise TracksError(
            f"Cannot {doing} within {ANSWER_S_MAX:g} s: waited for {what}. It may have been recorded: "
            f"`{to_know}` tells. To give the command again does no harm."
        )

    before = signal.signal(signal.SIGALRM, ring)
    notice_s = min(NOTICE_S, ANSWER_S_MAX)
    signal.setitimer(signal.ITIMER_REAL, notice_s, notice_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _waits_for(frame: FrameType | None) -> str:
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        for room, what in _WAITS_FOR.items():
            if module.startswith(room):
                return what
        frame = frame.f_back
    return _ITSELF
