"""Slurm's tables as they were a few seconds ago: one question for all gangs and processes of a home.

A site's controller serves thousands of users: who wants to know more often than every POLL_S reads
the last answer, from memory or from the home's file. A question is asked in a thread. Nobody who
looks waits longer than LOOK_S_MAX; with a controller that is away the last answer stays, and says how
old it is.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import IO

from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import GangError, GangUnreachable, TrackBroken
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.ports import Clock
from tracks_dagster.track.records import canonical_json, format_time, parse_time
from tracks_dagster.wings.slurm.effects.client import CALL_S_MAX, IDS_MAX, SlurmClient
from tracks_dagster.wings.slurm.rows import JobRow, read_accounts, read_queue
from tracks_dagster.wings.slurm.submission import is_marked

POLL_S = 10.0  # between two questions to the controller, from all processes of a home
LOCK_S_MAX = CALL_S_MAX + 5.0  # that another process's question is waited for
LOCK_POLL_S = 0.05
ANSWERS_S = 120.0  # for which an answer of accounting lies there for who wanted it
SHARED_BYTES_MAX = 64 * 1024**2  # of all such answers; one of IDS_MAX jobs has some hundred KiB
LOOK_S_MAX = 3.0  # that a look waits for an answer; then it takes the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Our jobs in the queue, by id. at: when they were asked for; problem: why not later."""

    at: datetime
    jobs: Mapping[str, JobRow] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What sacct printed when it was asked about these jobs. at: text time of the answer; problem: why
    there is none. No word at all: the site has no accounting."""

    at: str
    ids: tuple[str, ...] = ()
    text: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Of a home. answers: newest last; wanted: job to ask about → how often that was in vain."""

    answers: tuple[Answer, ...] = ()
    wanted: Mapping[str, int] = field(default_factory=dict)


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
        self._client, self._path, self._now = client, path, now
        self._failed = path.with_suffix(".failed")  # why there was no answer the last time
        self._lock = threading.Lock()
        self._tables: Tables | None = None
        self._problem = ""
        self._question = _Question(self._ask, "slurm queue", seconds)

    def look(self, *, first_s: float = LOOK_S_MAX) -> Tables:
        """Return the queue, as fresh as may be; raises GangUnreachable before the first answer.

        first_s: how long that one is waited for.
        """
        is_open = self._question.wait(first_s if self._tables is None else LOOK_S_MAX)
        with self._lock:
            tables, problem = self._tables, self._problem
        if not problem and (tables is None or is_open):
            problem = f"{self._client.where} has not answered yet."
        if tables is None:
            raise GangUnreachable(problem)
        return replace(tables, problem=problem)

    def _ask(self) -> float:
        try:
            at, text = self._read_or_ask()
            rows = [row for row in read_queue(text) if is_marked(row.name, row.comment)]
        except (GangError, OSError, ValueError) as error:
            with self._lock:
                self._problem = str(error)
            return POLL_S
        with self._lock:
            self._tables = Tables(at=at, jobs={row.id: row for row in rows})
            self._problem = ""
        return POLL_S

    def _read_or_ask(self) -> tuple[datetime, str]:
        """Return another process's answer where it is fresh, else ask; one process asks at a time.

        An answer that could not be had is one as well: the others do not ask again for POLL_S.
        """
        with _alone(self._path):
            if (found := self._read(self._path)) is not None:
                return found
            if (failed := self._read(self._failed)) is not None:
                raise GangUnreachable(failed[1])
            at = self._now()
            try:
                text = self._client.queue()
            except GangError as error:
                _share(self._failed, f"{self._times(at)}\n{error}")
                raise
            _share(self._path, f"{self._times(at)}\n{text}")
            return at, text

    def _times(self, asked_at: datetime) -> str:
        """Return when it was asked and when it was answered: a slow answer is as fresh as another."""
        return f"{format_time(asked_at)} {format_time(self._now())}"

    def _read(self, path: Path) -> tuple[datetime, str] | None:
        """Return when the question of a fresh answer was asked, and the answer; None without one."""
        try:
            stored = path.read_text(encoding="utf-8", errors="replace")
            times, _, text = stored.partition("\n")
            at, *answered = map(parse_time, times.split(" "))
        except (OSError, ValueError):
            return None
        age_s = (self._now() - (answered or [at])[0]).total_seconds()
        return (at, text) if 0 <= age_s < POLL_S else None


class Accounts:
    """What accounting has of jobs that have left the queue; safe as a `Board`.

    Each process leaves in the home's file what it wants to know; who asks next asks for all. due: what
    this one wants: a job's id → how often it was asked about in vain, which come last. take: is called
    with each answer about one of them, in a thread.
    """

    def __init__(
        self,
        client: SlurmClient,
        path: Path,
        *,
        now: Clock,
        seconds: Callable[[], float],
        due: Callable[[], Mapping[str, int]],
        take: Callable[[str, list[JobRow]], None],
    ) -> None:
        self._client, self._path, self._now = client, path, now
        self._due, self._take = due, take
        self._taken: dict[str, str] = {}  # job → when its newest answer was made
        self._problem = ""
        self.is_off = False  # whether the site has none, as the last answer showed
        self._question = _Question(self._ask, "slurm accounting", seconds)

    def look(self) -> str:
        """Ask where that is due; return why there was no answer the last time, "" for none."""
        self._question.wait(LOOK_S_MAX, is_due=lambda: bool(self._due()))
        return self._problem

    def _ask(self) -> float:
        """Return after how many seconds another question may be asked."""
        due = self._due()
        try:
            with _alone(self._path):
                shared = self._read()
                shared, wait_s = self._asked(shared, self._unanswered(shared, due))
                self._unanswered(shared, due)
        except OSError as error:
            self._problem = str(error)
            return POLL_S
        newest = shared.answers[-1] if shared.answers else Answer(at="", text=" ")
        self._problem = newest.problem
        self.is_off = not newest.text and not newest.problem
        return wait_s

    def _unanswered(self, shared: Shared, due: Mapping[str, int]) -> dict[str, int]:
        """Take what answers have of these jobs; return those of which they have nothing new."""
        self._taken = {id_: at for id_, at in self._taken.items() if id_ in due}
        left = dict(due)
        for answer in reversed(shared.answers):
            new = [
                id_ for id_ in answer.ids if id_ in left and answer.at > self._taken.get(id_, "")
            ]
            rows = read_accounts(answer.text) if new else []
            by_id: dict[str, list[JobRow]] = {}
            for row in rows:
                by_id.setdefault(row.id, []).append(row)
            for id_ in new:
                self._taken[id_] = answer.at
                self._take(id_, by_id.get(id_, []))
                del left[id_]
        return left

    def _asked(self, shared: Shared, due: Mapping[str, int]) -> tuple[Shared, float]:
        """Ask for these jobs and all that others want, or leave the wish where it is too soon."""
        if not due:
            return shared, POLL_S
        now = self._now()
        wanted = {**shared.wanted, **due}
        recent = [each for each in shared.answers if 0 <= _age_s(each, now) < ANSWERS_S]
        age_s = _age_s(recent[-1], now) if recent else POLL_S
        if age_s < POLL_S:
            shared = Shared(answers=tuple(recent), wanted=wanted)
            self._write(shared)
            return shared, POLL_S - age_s
        ids = sorted(wanted, key=lambda id_: wanted[id_])[:IDS_MAX]
        try:
            text = self._client.accounts(ids)
            answer = Answer(at=format_time(self._now()), ids=tuple(ids), text=text)
            wanted = {id_: count for id_, count in wanted.items() if id_ not in {*ids}}
        except GangError as error:
            answer = Answer(at=format_time(self._now()), problem=str(error))
        shared = Shared(answers=(*recent, answer), wanted=wanted)
        self._write(shared)
        return shared, POLL_S

    def _read(self) -> Shared:
        try:
            data = self._path.read_bytes()
            return from_json(Shared, parse_json(data, bytes_max=SHARED_BYTES_MAX))
        except (OSError, ValueError, TrackBroken):
            return Shared()

    def _write(self, shared: Shared) -> None:
        _share(self._path, canonical_json(to_json(shared)).decode())


class _Question:
    """Asked in a thread, one at a time. ask: returns after how many seconds it may be asked again."""

    def __init__(self, ask: Callable[[], float], name: str, seconds: Callable[[], float]) -> None:
        self._ask, self._name, self._seconds = ask, name, seconds
        self._lock = threading.Lock()
        self._began_s: float | None = None
        self._again_s = POLL_S
        self._thread: threading.Thread | None = None

    def wait(self, limit_s: float, *, is_due: Callable[[], bool] = lambda: True) -> bool:
        """Ask where it is time and due; True while there is no answer.

        limit_s: how long one is waited for since it was asked, by all who look together.
        """
        with self._lock:
            thread, now_s = self._thread, self._seconds()
            if thread is None or not thread.is_alive():
                is_time = self._began_s is None or now_s - self._began_s >= self._again_s
                if not is_time or not is_due():
                    return False
                self._began_s, self._again_s = now_s, POLL_S
                thread = self._thread = threading.Thread(
                    target=self._run, name=self._name, daemon=True
                )
                thread.start()
            left_s = (self._began_s or 0.0) + limit_s - now_s
        if left_s > 0:
            thread.join(left_s)
        return thread.is_alive()

    def _run(self) -> None:
        self._again_s = self._ask()


def _age_s(answer: Answer, now: datetime) -> float:
    """Return how old an answer is; one whose time cannot be read is too old."""
    try:
        return (now - parse_time(answer.at)).total_seconds()
    except ValueError:
        return ANSWERS_S


def _share(path: Path, text: str) -> None:
    """Leave an answer for other processes; with a full disk they ask for themselves."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While no other process asks for the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("a") as lock:
        _wait_for(lock)
        yield


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
