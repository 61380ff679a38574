"""Slurm's queue as it was a few seconds ago: one question for all gangs and processes of a home.

A site's controller serves thousands of users: who wants to know more often than every POLL_S reads
the last answer, from memory or from the home's file. The question is asked in a thread. Nobody who
looks waits longer than LOOK_S_MAX; with a controller that is away the last answer stays, and says how
old it is.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import IO

from tracks_dagster.track.errors import GangError, GangUnreachable
from tracks_dagster.track.ports import Clock
from tracks_dagster.track.records import format_time, parse_time
from tracks_dagster.wings.slurm.effects.client import CALL_S_MAX, SlurmClient
from tracks_dagster.wings.slurm.rows import JobRow, read_queue
from tracks_dagster.wings.slurm.submission import is_marked

POLL_S = 10.0  # between two questions to the controller, from all processes of a home
LOCK_S_MAX = CALL_S_MAX + 5.0  # that another process's question is waited for
LOCK_POLL_S = 0.05
LOOK_S_MAX = 3.0  # that a look waits for an answer; then it takes the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Our jobs in the queue, by id. at: when they were asked for; problem: why not later."""

    at: datetime
    jobs: Mapping[str, JobRow] = field(default_factory=dict)
    problem: str = ""


class Board:
    """Safe for several threads and processes. path: of the home's file; seconds: a steady clock."""

    def __init__(
        self,
        client: SlurmClient,
        path: Path,
        *,
        now: Clock,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._path, self._now, self._seconds = client, path, now, seconds
        self._lock = threading.Lock()
        self._tables: Tables | None = None
        self._problem = ""
        self._asked_s: float | None = None
        self._thread: threading.Thread | None = None

    def look(self, *, first_s: float = LOOK_S_MAX) -> Tables:
        """Return the queue, as fresh as may be; raises GangUnreachable before the first answer.

        first_s: how long that one is waited for. All who look wait for one question together: none is
        waited for longer than that since it was asked.
        """
        thread = self._refresh()
        if thread is not None and self._asked_s is not None:
            limit_s = first_s if self._tables is None else LOOK_S_MAX
            left_s = self._asked_s + limit_s - self._seconds()
            if left_s > 0:
                thread.join(left_s)
        with self._lock:
            tables, problem = self._tables, self._problem
        if not problem and (tables is None or (thread is not None and thread.is_alive())):
            problem = f"{self._client.where} has not answered yet."
        if tables is None:
            raise GangUnreachable(problem)
        return replace(tables, problem=problem)

    def _refresh(self) -> threading.Thread | None:
        """Return the thread that asks, where one does; a new one at most every POLL_S."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return self._thread
            now_s = self._seconds()
            if self._asked_s is not None and now_s - self._asked_s < POLL_S:
                return None
            self._asked_s = now_s
            self._thread = threading.Thread(target=self._ask, name="slurm queue", daemon=True)
            self._thread.start()
            return self._thread

    def _ask(self) -> None:
        try:
            at, text = self._read_or_ask()
            rows = [row for row in read_queue(text) if is_marked(row.name, row.comment)]
        except (GangError, OSError, ValueError) as error:
            with self._lock:
                self._problem = str(error)
            return
        with self._lock:
            self._tables = Tables(at=at, jobs={row.id: row for row in rows})
            self._problem = ""

    def _read_or_ask(self) -> tuple[datetime, str]:
        """Return another process's answer where it is fresh, else ask; one process asks at a time."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("a") as lock:
            _wait_for(lock)
            found = self._read()
            if found is not None:
                return found
            at = self._now()
            text = self._client.queue()
            scratch = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            with suppress(OSError):  # a full disk: other processes ask for themselves
                scratch.write_text(f"{format_time(at)}\n{text}", encoding="utf-8")
                scratch.replace(self._path)
            return at, text

    def _read(self) -> tuple[datetime, str] | None:
        try:
            stored = self._path.read_text(encoding="utf-8", errors="replace")
            at_text, _, text = stored.partition("\n")
            at = parse_time(at_text)
        except (OSError, ValueError):
            return None
        age_s = (self._now() - at).total_seconds()
        return (at, text) if 0 <= age_s < POLL_S else None


def _wait_for(lock: IO[str]) -> None:
    """Wait until no other process asks, or for longer than a question takes: a process that was stopped
    meanwhile keeps the lock."""
    give_up_at = time.monotonic() + LOCK_S_MAX
    while time.monotonic() < give_up_at:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_POLL_S)
        else:
            return
