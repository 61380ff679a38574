"""Fakes written by hand: they honour the guarantees of the ports and fail where a test says so."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import Enum

from tracks_dagster.attempts.launch import next_number
from tracks_dagster.attempts.ports import GangPhase, GangReport, GangSpec, OrchestratorRun
from tracks_dagster.evals.ports import EvalOutcome, EvalSpec
from tracks_dagster.reasons.evidence import RankEnd
from tracks_dagster.reasons.hangs import StackDump
from tracks_dagster.track.bodies import RankPlace
from tracks_dagster.track.errors import GangError, GangUnreachable, OutcomeUnknown, StoreUnavailable
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import LEFTOVER_AGE_S, ObjectStore, check_key
from tracks_dagster.track.records import Json


class Fault(Enum):
    """What goes wrong with one call."""

    FAILS = "nothing happens, and the caller learns so"
    LOST_BEFORE = "the request is lost on the way: nothing happens"
    LOST_AFTER = "the reply is lost: the call took effect"
    LOST_UNTIL_LATER = "the request is delayed: it takes effect after the next call"


_READS = ("get", "read_into", "list", "folders", "sweep")


class FakeObjectStore:
    """An object store in memory. `fail("create", 2, Fault.LOST_AFTER)` loses the reply of the
    second creation from now; a lost creation is an OutcomeUnknown, anything else StoreUnavailable.

    `calls` holds every call as (method, key), in order; `leftover_ages_s` the age in seconds of
    everything that killed writers left.
    """

    def __init__(self, url: str = "memory://fake") -> None:
        self.url = url
        self.leftover_ages_s: list[float] = []
        self.objects: dict[str, bytes] = {}
        self.calls: list[tuple[str, str]] = []
        self._counts: Counter[str] = Counter()
        self._faults: dict[tuple[str, int], Fault] = {}
        self._delayed: list[tuple[str, bytes]] = []
        self._lock = threading.RLock()

    def fail(self, method: str, number: int, fault: Fault) -> None:
        """Make the `number`-th call of `method` from now (1 is the next one) go wrong."""
        self._faults[method, self._counts[method] + number] = fault

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        with self._lock:
            self._begin("get", key)
            data = self.objects.get(key)
            return data if data is None or bytes_max is None else data[: bytes_max + 1]

    def read_into(self, key: str, buffer: memoryview) -> int | None:
        with self._lock:
            self._begin("read_into", key)
            data = self.objects.get(key)
            if data is None:
                return None
            count = min(len(data), len(buffer))
            buffer[:count] = data[:count]
            return len(data)

    def create(self, key: str, data: bytes | memoryview) -> bool:
        with self._lock:
            fault = self._begin("create", key)
            if fault is Fault.LOST_UNTIL_LATER:
                self._delayed.append((key, bytes(data)))
            if fault in (Fault.LOST_BEFORE, Fault.LOST_UNTIL_LATER):
                raise OutcomeUnknown(f"The reply to the creation of {key} was lost.")
            created = key not in self.objects
            self.objects.setdefault(key, bytes(data))
            if fault is Fault.LOST_AFTER:
                raise OutcomeUnknown(f"The reply to the creation of {key} was lost.")
            return created

    def put(self, key: str, data: bytes | memoryview) -> None:
        with self._lock:
            fault = self._begin("put", key)
            if fault in (None, Fault.LOST_AFTER):
                self.objects[key] = bytes(data)
            if fault is not None:
                raise StoreUnavailable(f"The reply to the writing of {key} was lost.")

    def list(self, prefix: str) -> Iterator[str]:
        with self._lock:
            self._begin("list", prefix)
            return iter(sorted(key for key in self.objects if key.startswith(prefix)))

    def folders(self, prefix: str) -> Iterator[str]:
        with self._lock:
            self._begin("folders", prefix)
            below = sorted(k.removeprefix(prefix) for k in self.objects if k.startswith(prefix))
            return iter(dict.fromkeys(name.split("/")[0] for name in below if "/" in name))

    def delete(self, key: str) -> None:
        with self._lock:
            fault = self._begin("delete", key)
            if fault in (None, Fault.LOST_AFTER):
                self.objects.pop(key, None)
            if fault is not None:
                raise StoreUnavailable(f"The reply to the deletion of {key} was lost.")

    def sweep(self, *, older_than_s: float = LEFTOVER_AGE_S) -> int:
        with self._lock:
            self._begin("sweep", "")
            count = len(self.leftover_ages_s)
            self.leftover_ages_s = [age for age in self.leftover_ages_s if age <= older_than_s]
            return count - len(self.leftover_ages_s)

    def _begin(self, method: str, key: str) -> Fault | None:
        """Count the call; raise for a plain failure, else return the fault that it meets."""
        if method in ("create", "put"):
            check_key(key)
        self.calls.append((method, key))
        self._counts[method] += 1
        fault = self._faults.pop((method, self._counts[method]), None)
        self._settle_delayed(method)
        if fault is Fault.FAILS or (fault is not None and method in _READS):
            raise StoreUnavailable(f"The {method} of {key} failed, as the test wants it.")
        return fault

    def _settle_delayed(self, method: str) -> None:
        """Let delayed creations arrive; a read that finds nothing yet comes before them."""
        if method in ("get", "read_into"):
            return
        for key, data in self._delayed:
            self.objects.setdefault(key, data)
        self._delayed.clear()


class FakeClock:
    """A clock that moves when a test says so; `tick` moves it a little at every reading."""

    def __init__(
        self,
        at: datetime = datetime(2026, 1, 31, 2, 0, tzinfo=UTC),
        *,
        tick: timedelta = timedelta(0),
    ) -> None:
        self.at = at
        self._tick = tick

    def __call__(self) -> datetime:
        self.at += self._tick
        return self.at

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.at += timedelta(seconds=seconds)


class SequentialUids:
    """Uids in order, 32 hex digits each: 000…1, 000…2."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)  # safe from several threads

    def __call__(self) -> str:
        return f"{next(self._numbers):032x}"


class FakeEvaluator:
    """An evaluator that leaves what the test gives it, one answer a call; the last one repeats.

    An answer is the result to store, the message of a failure, or an error to raise.
    """

    def __init__(self, store: FakeObjectStore, *answers: Mapping[str, Json] | str | Exception):
        self.specs: list[EvalSpec] = []
        self.alone_at: list[str] = []
        self.is_alone = True
        self.is_seen = True  # whether anybody sees its exit code
        self._store = store
        self._answers = list(answers)

    def run(self, spec: EvalSpec) -> EvalOutcome:
        """Answer; a result is in the store before the outcome says so."""
        self.specs.append(spec)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, str):
            self._store.put(spec.result_key, json.dumps(answer).encode())
        exit_code = 1 if isinstance(answer, str) else 0
        return EvalOutcome(
            exit_code=exit_code if self.is_seen else None,
            message=answer if isinstance(answer, str) else "",
            started_at="2026-01-31T02:00:00.000000Z",
            finished_at="2026-01-31T02:00:05.000000Z",
        )

    @contextmanager
    def alone(self, result_key: str) -> Iterator[bool]:
        self.alone_at.append(result_key)
        yield self.is_alone


class FakeOrchestrator:
    """Dagster as services see it: runs that the test puts there, by the key they were asked for."""

    def __init__(self) -> None:
        self.runs: dict[str, list[OrchestratorRun]] = {}
        self.cancelled: set[str] = set()  # Dagster runs whose end a person asked for

    def put(
        self, key: str, dagster_run_id: str, *, is_finished: bool = False, **more: str | datetime
    ) -> None:
        """Let there be a newest run of `key`, or let the one of that id change. more: its fields.

        Its run key is the next one, where nothing else is given.
        """
        number = next_number(key, self.runs.get(key, []))
        run = OrchestratorRun(
            dagster_run_id=dagster_run_id,
            is_finished=is_finished,
            is_canceling=dagster_run_id in self.cancelled,
            is_failed=is_finished,
            **{"run_key": f"{key}/{number}", **more},  # type: ignore[arg-type]
        )
        others = [r for r in self.runs.get(key, []) if r.dagster_run_id != dagster_run_id]
        self.runs[key] = [run, *others]

    def runs_of_attempt(self, attempt_key: str) -> Sequence[OrchestratorRun]:
        return self.runs.get(attempt_key, [])

    def runs_of_eval(self, eval_attempt_key: str) -> Sequence[OrchestratorRun]:
        return self.runs.get(eval_attempt_key, [])

    def find(self, dagster_run_id: str) -> OrchestratorRun | None:
        every = (run for runs in self.runs.values() for run in runs)
        return next((run for run in every if run.dagster_run_id == dagster_run_id), None)

    def was_cancelled(self, dagster_run_id: str) -> bool:
        return dagster_run_id in self.cancelled


class FakeGangs:
    """Gangs that a test moves by hand: `reports[run_id, attempt_id]` is what is observed.

    A started gang is alive; `kill` makes a living one gone, SIGKILL for each rank that had not ended.
    `calls` holds every call that changes something as (method, run_id, attempt_id), in order.
    """

    def __init__(self, node: str = "node-1") -> None:
        self.node = node
        self.reports: dict[tuple[str, int], GangReport] = {}
        self.specs: list[GangSpec] = []
        self.calls: list[tuple[str, str, int]] = []
        self.start_problem: str | None = None
        self.starts_unanswered = 0  # so many starts find nobody to ask
        self.asked_to_save: list[RankPlace] = []
        self.listens = True
        self.dumps: tuple[StackDump, ...] = ()

    def start(self, spec: GangSpec) -> bool:
        key = (spec.run_id, spec.attempt_id)
        self.calls.append(("start", *key))
        if self.starts_unanswered:
            self.starts_unanswered -= 1
            raise GangUnreachable("The API server cannot be reached.")
        if self.start_problem is not None:
            raise GangError(self.start_problem)
        if key in self.reports:
            return False
        self.specs.append(spec)
        ranks = tuple(RankEnd(rank=rank) for rank in range(spec.ranks))
        self.reports[key] = GangReport(phase=GangPhase.ALIVE, ranks=ranks, where=self.node)
        return True

    def glance(self, ref: AttemptRef) -> GangReport:
        return self.observe(ref)

    def observe(self, ref: AttemptRef) -> GangReport:
        never = GangReport(phase=GangPhase.NEVER_STARTED, where=self.node)
        return self.reports.get((ref.run_id, ref.attempt_id), never)

    def drain(self, ref: AttemptRef, *, grace_s: float) -> None:
        self.calls.append(("drain", ref.run_id, ref.attempt_id))

    def ask_to_save(self, ref: AttemptRef, place: RankPlace) -> bool:
        self.asked_to_save.append(place)
        return self.listens

    def dump_stacks(self, ref: AttemptRef) -> tuple[StackDump, ...]:
        self.calls.append(("dump_stacks", ref.run_id, ref.attempt_id))
        return self.dumps

    def kill(self, ref: AttemptRef) -> None:
        self.calls.append(("kill", ref.run_id, ref.attempt_id))
        report = self.reports.get((ref.run_id, ref.attempt_id))
        if report is not None and report.phase is GangPhase.ALIVE:
            self.end(
                ref.run_id, ref.attempt_id, *(RankEnd(rank=r.rank, signal=9) for r in report.ranks)
            )

    def ship(self, ref: AttemptRef, store: ObjectStore) -> None:
        self.calls.append(("ship", ref.run_id, ref.attempt_id))

    def end(self, run_id: str, attempt_id: int, *ends: RankEnd) -> None:
        """Let the gang be gone, its ranks ended as `ends` say; what had ended before stays."""
        report = self.reports[run_id, attempt_id]
        before = {rank.rank: rank for rank in report.ranks if rank.has_ended}
        ranks = tuple(before.get(end.rank, end) for end in ends)
        self.reports[run_id, attempt_id] = replace(report, phase=GangPhase.GONE, ranks=ranks)
